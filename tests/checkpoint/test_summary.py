"""Summaries of trees: exact whatever the order and the cut, and checked when they are read."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from dmondrian import AMFClassifier
from dmondrian.checkpoint import Run, document, known_trees
from dmondrian.checkpoint.summary import Summary, exact_sum, total
from dmondrian.ensemble.feature_importances import importances, why_none
from dmondrian.errors import CorruptError
from dmondrian.estimators import ALGORITHMS
from dmondrian.estimators.load import load_estimator
from dmondrian.forest.forest import Forest
from dmondrian.forest.state import encode_float
from tests.checkpoint.test_model import forest


def test_sums_are_exact_in_any_order() -> None:
    values = (np.random.default_rng(0).standard_normal(200) * 10.0 ** np.arange(-100, 100)).tolist()
    reported = exact_sum(values)
    assert reported[0] == math.fsum(values)
    assert reported == exact_sum(values[::-1])
    parts = [*exact_sum(values[::3]), *exact_sum(values[1::3]), *exact_sum(values[2::3])]
    assert reported == exact_sum(parts)
    assert exact_sum([1.0, 2.0**-80]) == (1.0, 2.0**-80)
    assert exact_sum([0.1, -0.1]) == exact_sum([]) == ()


@pytest.mark.parametrize("algorithm", ["amf-classifier", "amf-regressor"])
def test_it_does_not_depend_on_the_cut_into_shards(algorithm: str) -> None:
    whole = Summary.of(forest(300, range(6), algorithm))
    cuts = [[range(6)], [range(2), range(2, 6)], [range(n, n + 1) for n in range(6)]]
    for cut in cuts:
        parts = [Summary.of(forest(300, trees, algorithm)) for trees in cut]
        assert total(parts) == total(parts[::-1]) == whole
    assert json.loads(json.dumps(whole.to_json())) == whole.to_json()
    assert Summary.from_json(json.loads(json.dumps(whole.to_json()))) == whole
    assert total([whole, None]) is None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_saved_estimator_is_summarised_without_its_trees(algorithm: str, tmp_path: Path) -> None:
    X = np.random.default_rng(1).random((80, 3), dtype=np.float32)
    model = ALGORITHMS[algorithm](2, random_state=0)
    if "feature_scales" in model.get_params():
        model.set_params(feature_scales=None)  # to search for them would take the test's time
    model.fit(X, X[:, 0] > 0.5) if model.__sklearn_tags__().target_tags.required else model.fit(X)
    model.save(tmp_path / "m")
    wanted = load_estimator(tmp_path / "m").forest_
    for blob in (tmp_path / "m" / "blobs").iterdir():
        blob.unlink()
    trees, _, manifest = known_trees(tmp_path / "m")
    assert trees.is_recorded
    assert (trees.n_trees, trees.summary.nodes) == (2, wanted.n_nodes)
    assert trees.parameters == json.loads(json.dumps(wanted.parameters.to_json()))
    # Memory is taken in whole pages.
    assert 0 <= wanted.n_bytes - trees.summary.memory_bytes <= 4096 * 3 * 2
    if why_none(trees.parameters) is None:
        assert trees.summary.importances() == importances(wanted).tolist()
    else:
        assert trees.summary.importances() is None
    assert manifest.forest == trees.summary


@pytest.mark.parametrize("factor", [1e304, 2e306])
def test_gains_that_no_double_holds_are_not_reported(factor: float) -> None:
    """Of one tree, or of all together: weights this large can be stored."""
    header, arrays = forest(50, range(400)).state()
    header["trees"] = [
        {**entry, "floats": [encode_float(50.0 * factor), *entry["floats"][1:]]}
        for entry in header["trees"]
    ]
    for tree in arrays:
        tree["stat"] = tree["stat"] * factor
    huge = Summary.of(Forest.from_state(header, arrays))
    assert huge.nodes > 0
    assert huge.gains is huge.importances() is None


def test_shares_of_large_gains() -> None:
    assert Summary(3, 0, ((1.5e308,), (1e308, 0.5e308), ())).importances() == [0.5, 0.5, 0.0]


DAMAGED = [
    ("nodes", -1), ("nodes", 1.5), ("nodes", True), ("memory_bytes", None), ("gains", 3),
    ("gains", [1.0]), ("gains", [["a"]]), ("gains", [[True]]), ("parameters", []),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), DAMAGED, ids=str)
def test_one_that_cannot_be_is_refused(tmp_path: Path, key: str, value: object) -> None:
    model = AMFClassifier(n_estimators=1, random_state=0, feature_scales=None)
    model.fit([[0.0], [1.0]], [0, 1]).save(tmp_path / "m")
    (file,) = (tmp_path / "m" / "manifests").iterdir()
    reported = document.unseal(file.read_bytes(), "")
    reported["forest"][key] = value
    file.write_bytes(document.seal(reported))
    with pytest.raises(CorruptError, match=r"forest is .* expected a summary of its trees"):
        Run.open(tmp_path / "m").manifest(2)
