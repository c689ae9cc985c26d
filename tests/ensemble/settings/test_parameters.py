"""Parameters of a forest: the JSON, the policies and the capabilities of every system.

``stored_parameters.jsonl`` was written by the version whose parameters were one class for all
systems: estimators of many settings, with what that version answered for each.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest

from dmondrian.ensemble.settings.drift_settings import DriftSettings
from dmondrian.ensemble.settings.fringe_settings import FringeSettings
from dmondrian.ensemble.settings.kernel_settings import Joint
from dmondrian.ensemble.settings.lifetime import PowerLifetime
from dmondrian.ensemble.settings.loss_settings import Cost
from dmondrian.ensemble.settings.parameters import ForestParameters, policies
from dmondrian.ensemble.settings.stored_parameters import (
    is_density,
    learns_jointly,
    mixes_boosted_sets,
    mixes_scaled_trees,
)
from dmondrian.ensemble.settings.systems import (
    SYSTEMS,
    Amf,
    Generalized,
    Kernel,
    Mondrian,
    Online,
    System,
)
from dmondrian.errors import CorruptError
from dmondrian.estimators import ALGORITHMS

FILE = Path(__file__).with_name("stored_parameters.jsonl")
STORED = [json.loads(line) for line in FILE.read_text().splitlines()]
CAPABILITIES = {name for row in STORED for name in row["can"]}
FRINGE = FringeSettings(1.0, 10, 0.1, 10.0, 1.1, 100.0, None, "gini", 0.5, 0.0)
GIVEN: dict[type[System], dict[str, Any]] = {
    Amf: {},
    Mondrian: {"aggregation": "mean"},
    Generalized: {"aggregation": "mean", "cost": Cost("squared")},
    Kernel: {"aggregation": "mean", "lifetime": 1.0, "joint": Joint(1)},
    Online: {"aggregation": "mean", "fringe": FRINGE, "empty_prior": True},
}
# A value of each setting that some system has, and that no other has where it lacks it.
FOREIGN = {
    "alpha": 0.25,
    "learning_rate": 2.0,
    "charge_opening": False,
    "use_aggregation": False,
    "aggregation": "vote",
    "lifetime": 2.0,
    "discount": 3.0,
    "horizon": 4.0,
    "cost": Cost("huber"),
    "joint": Joint(2),
    "fringe": FRINGE,
    "target_range": (0.0, 1.0),
}


def made(algorithm: str, **settings: Any) -> ForestParameters:
    kind, is_classifier = SYSTEMS[algorithm]
    return ForestParameters(algorithm, 3, 2 * is_classifier, 5, **{**GIVEN[kind], **settings})


@pytest.mark.parametrize("row", STORED, ids=lambda row: row["parameters"]["algorithm"])
def test_stored_parameters_mean_what_they_did(row: dict[str, Any]) -> None:
    text = json.dumps(row["parameters"])
    read = ForestParameters.from_json(json.loads(text))
    assert json.dumps(read.to_json()) == text  # the order of keys is part of the bytes
    shown = [repr(policy).replace("\n", " ") for policy in policies(read)]
    assert shown == row["policies"]
    assert sorted(name for name in CAPABILITIES if getattr(read, name)) == row["can"]
    assert (read.n_outputs, read.n_stats) == (row["n_outputs"], row["n_stats"])
    assert list(read.levels) == row["levels"]
    assert [repr(read.lifetime_at(n)) for n in (0.0, 1.0, 100.0)] == row["lifetimes"]
    assert learns_jointly(row["parameters"]) == read.learns_jointly
    assert is_density(row["parameters"]) == read.is_density
    assert mixes_boosted_sets(row["parameters"]) is read.mixes_boosted_sets is False
    assert mixes_scaled_trees(row["parameters"]) is read.mixes_scaled_trees is False
    assert pickle.loads(pickle.dumps(read)) == read == copy.copy(read)
    assert hash(read) == hash(copy.deepcopy(read))


def test_settings_of_following_are_those_of_forests_that_follow() -> None:
    drift = DriftSettings(delay=7)
    follower = made("amf-classifier", drift=drift)
    assert follower.follows_stream
    assert follower.following is drift
    assert not made("amf-classifier").follows_stream
    with pytest.raises(AttributeError, match="does not follow the stream"):
        _ = made("amf-classifier").following


def test_every_algorithm_was_stored() -> None:
    assert {row["parameters"]["algorithm"] for row in STORED} == set(SYSTEMS) == set(ALGORITHMS)


@pytest.mark.parametrize("algorithm", SYSTEMS)
def test_settings_are_given_by_name_or_as_a_system(algorithm: str) -> None:
    flat = made(algorithm)
    assert type(flat.system) is SYSTEMS[algorithm][0]
    kept = {name: value for name, value in vars(flat).items() if name != "system"}
    assert ForestParameters(**kept, system=flat.system) == flat
    assert flat.replace() == flat == dataclasses.replace(flat)
    assert flat.replace(seed=6).seed == 6
    assert flat.replace(seed=6) == dataclasses.replace(flat, seed=6) != flat


def test_a_setting_of_the_system_is_replaced_alone() -> None:
    before = made("mondrian-forest-classifier", lifetime=PowerLifetime(1.0, 0.5), discount=2.0)
    after = before.replace(lifetime=2.0)
    assert (after.lifetime, after.system.discount) == (2.0, 2.0)
    assert before.lifetime == PowerLifetime(1.0, 0.5)
    assert before.lifetime_grows
    assert not after.lifetime_grows


@pytest.mark.parametrize("algorithm", SYSTEMS)
@pytest.mark.parametrize("name", FOREIGN)
def test_a_setting_of_another_system_is_refused(algorithm: str, name: str) -> None:
    kind = SYSTEMS[algorithm][0]
    if name in {setting.name for setting in dataclasses.fields(kind)}:  # type: ignore[arg-type]
        made(algorithm, **{name: FOREIGN[name]})
        return
    with pytest.raises(CorruptError, match=f"{algorithm} have no {name}: expected .*, got"):
        made(algorithm, **{name: FOREIGN[name]})


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [(algorithm, name) for algorithm, (kind, _) in SYSTEMS.items()
     for name in ("cost", "joint", "fringe") if name in GIVEN[kind]],
)  # fmt: skip
def test_what_a_system_needs_is_asked_for(algorithm: str, name: str) -> None:
    with pytest.raises(CorruptError, match=f"{algorithm} should have {name}"):
        made(algorithm, **{name: None})


@pytest.mark.parametrize("name", ["cost", "joint", "fringe"])
def test_parts_are_of_their_systems_alone(name: str) -> None:
    for algorithm, (kind, _) in SYSTEMS.items():
        assert hasattr(made(algorithm), name) == (name in GIVEN[kind])


def test_algorithm_and_system_belong_together() -> None:
    with pytest.raises(CorruptError, match="of an unknown algorithm 'trees'; expected one of"):
        ForestParameters("trees", 1, 2, 0)
    with pytest.raises(CorruptError, match=r"should have settings of Mondrian, .* of Amf"):
        ForestParameters("mondrian-forest-regressor", 1, 0, 0, Amf())
    with pytest.raises(TypeError, match="no 'alhpa'"):
        ForestParameters("amf-classifier", 1, 2, 0, alhpa=1.0)


@pytest.mark.parametrize(
    ("algorithm", "settings", "name"),
    [
        ("amf-classifier", {"alpha": 0.0}, "alpha"),
        ("amf-classifier", {"learning_rate": -1.0}, "learning_rate"),
        ("amf-classifier", {"target_range": (0.0, 1.0)}, "target_range"),
        ("amf-regressor", {"target_range": (1.0, 0.0)}, "target_range"),
        ("amf-regressor", {"target_range": (0.0, 1.0, 2.0)}, "target_range"),
        ("amf-regressor", {"max_nodes": 0}, "max_nodes"),
        ("amf-regressor", {"feature_scales": (1.0, 2.0)}, "feature_scales"),
        ("amf-regressor", {"feature_units": (1.0, 2.0, 3.0)}, "feature_units"),
        ("amf-regressor", {"domain": "cube", "feature_scales": (1.0,) * 3}, "feature_scales"),
        ("amf-regressor", {"domain": "ball"}, "domain"),
        ("mondrian-forest-regressor", {"aggregation": "vote"}, "aggregation"),
        ("mondrian-forest-classifier", {"aggregation": None}, "aggregation"),
        ("mondrian-forest-classifier", {"lifetime": -1.0}, "lifetime"),
        ("mondrian-forest-classifier", {"discount": 0.0}, "discount"),
        ("generalized-mondrian-forest-regressor", {"horizon": 0.0}, "horizon"),
        ("generalized-mondrian-forest-regressor", {"cost": Cost("logistic")}, "cost"),
        ("mondrian-density", {"cost": Cost("density")}, "domain"),
        ("mondrian-kernel-regressor", {"lifetime": None}, "lifetime"),
        ("mondrian-kernel-regressor", {"joint": Joint(2)}, "joint"),
        ("mondrian-kernel-regressor", {"max_nodes": 9}, "max_nodes"),
        ("online-forest-regressor", {}, "fringe"),  # whose criterion is of classes
        ("online-forest-classifier", {"empty_prior": False}, "empty_prior"),
        ("online-forest-classifier", {"domain": "cube"}, "domain"),
    ],
)
def test_a_setting_out_of_range_is_named(
    algorithm: str, settings: dict[str, Any], name: str
) -> None:
    with pytest.raises(CorruptError, match=rf"out of range, see {name}: ForestParameters\("):
        made(algorithm, **settings).check()


OLD_AMF = (
    b"\x80\x04\x95\xba\x01\x00\x00\x00\x00\x00\x00\x8c&dmondrian.ensemble.settings.parameters\x94"
    b"\x8c\x10ForestParameters\x94\x93\x94)\x81\x94}\x94(\x8c\talgorithm\x94\x8c\ramf-regressor\x94"
    b"\x8c\nn_features\x94K\x02\x8c\tn_classes\x94K\x00\x8c\x04seed\x94\x8a\t\x98\x06\x1b\x12j\x17"
    b"\x01\x8d\x00\x8c\x05alpha\x94G?\xe0\x00\x00\x00\x00\x00\x00\x8c\rlearning_rate\x94G@ \x00\x00"
    b"\x00\x00\x00\x00\x8c\x0echarge_opening\x94\x89\x8c\x0fuse_aggregation\x94\x88\x8c\nsplit_pure"
    b"\x94\x88\x8c\x12expected_extension\x94\x89\x8c\tmax_nodes\x94N\x8c\x0efeature_scales\x94N\x8c"
    b"\x0baggregation\x94N\x8c\x08lifetime\x94N\x8c\x08discount\x94N\x8c\x0bempty_prior\x94\x89\x8c"
    b"\x06domain\x94\x8c\x05range\x94\x8c\x04clip\x94\x89\x8c\x07horizon\x94N\x8c\x04cost\x94N\x8c"
    b"\x05joint\x94N\x8c\x06fringe\x94N\x8c\rfeature_units\x94N\x8c\x0ctarget_range\x94Nub."
)


@pytest.mark.parametrize(
    "place", [b"dmondrian.ensemble.settings.parameters", b"dmondrian.parameters"]
)
def test_a_pickle_of_the_class_of_all_settings_is_read(place: bytes) -> None:
    old = OLD_AMF.replace(b"&dmondrian.ensemble.settings.parameters", bytes([len(place)]) + place)
    data = old[:2] + old[11:]  # without the frame, whose length is another
    assert any(arg == place.decode() for _, arg, _ in pickletools.genops(data))
    read = pickle.loads(data)
    assert read == ForestParameters(
        "amf-regressor", 2, 0, 10160427978662282904, split_pure=True,
        system=Amf(learning_rate=8.0, charge_opening=False),
    )  # fmt: skip


@pytest.mark.parametrize("row", STORED[::4], ids=lambda row: row["parameters"]["algorithm"])
def test_a_state_of_the_class_of_all_settings_is_read(row: dict[str, Any]) -> None:
    expected = ForestParameters.from_json(row["parameters"])
    names = [*row["parameters"], "horizon", "cost", "joint", "fringe"]
    values = {name: getattr(expected.system, name, None) for name in names}
    flat = {**values, **{k: v for k, v in vars(expected).items() if k != "system"}}
    read = ForestParameters.__new__(ForestParameters)
    read.__setstate__(flat)
    assert read == expected
