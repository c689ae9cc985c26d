"""Scaled trees follow from the numbered rows alone, are bounded, and stored with their forest."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.boosting import boosted_stream
from dmondrian.boosting.kept_rows import n_newest_of
from dmondrian.checkpoint import decode_forest, encode_forest
from dmondrian.checkpoint.summary import Summary
from dmondrian.drift import members as members_module
from dmondrian.drift import scaled_trees
from dmondrian.drift.drift_forest import DriftForest, forest_from_state
from dmondrian.drift.guard import Guard, sum_shares
from dmondrian.drift.members import Members
from dmondrian.drift.scaled_trees import (
    FIRST_SCALED,
    LONGEST_LIFE,
    N_TREES,
    WIDEST,
    ScaledTrees,
    last_birth,
)
from dmondrian.ensemble.rows.labelled_rows import LabelledRows
from dmondrian.ensemble.settings.drift_settings import DriftSettings
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.estimators.stream_following import EXPERTS
from dmondrian.tree import nodes
from dmondrian.tree.box_encoding_choice import loaded_bytes
from tests.drift.streams import CUTS, early_births, numbers, switching
from tests.drift.test_drift_forest import parameters


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    early_births(monkeypatch)


def settings_of(delay: int = 1, n_classes: int = 2, period: str | None = None) -> Any:
    drift = DriftSettings(5, 7, delay, boosted=True, period=period, scaled=True)
    return parameters(n_classes, drift=drift)


def forest_of(delay: int = 1, n_classes: int = 2, n_members: int = 5) -> DriftForest:
    return DriftForest(settings_of(delay, n_classes), range(n_members))


def trees_of(forest: Members) -> Any:
    assert forest.scaled is not None
    return forest.scaled.forest


def test_births_are_at_four_times_as_many_rows_and_then_at_every_so_many() -> None:
    births = [n for n in range(400_000) if last_birth(n - 1, n) is not None]
    assert births == [1024, 4096, 16_384, *range(65_536, 400_000, 65_536)]
    assert [last_birth(*span) for span in ((0, 1023), (0, 5000), (4096, 9000), (4095, 4096))] == [
        None, 4096, None, 4096,
    ]  # fmt: skip


@pytest.mark.parametrize("d", [1, 64, 65, WIDEST])
def test_wherever_scaled_trees_are_born_a_set_is(d: int) -> None:
    """So that pieces of rows end there."""
    longest = n_newest_of(d) // 2
    for birth in (
        FIRST_SCALED,
        4 * FIRST_SCALED,
        16 * FIRST_SCALED,
        LONGEST_LIFE,
        3 * LONGEST_LIFE,
    ):
        assert boosted_stream.next_birth(birth - 1, longest) == birth


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("delay", [1, 40, 200])
def test_neither_cuts_nor_threads_nor_pieces_change_a_byte(
    delay: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = switching(450)
    w = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], 450)
    whole, parts, pieces = (forest_of(delay) for _ in range(3))
    forecasts = whole.forecast_and_learn(X, y.astype(float), w)
    found = [
        parts.forecast_and_learn(X[a:b], y[a:b].astype(float), w[a:b], n_threads=2) for a, b in CUTS
    ]
    np.testing.assert_array_equal(np.concatenate(found), forecasts)
    assert pickle.dumps(parts.state()) == pickle.dumps(whole.state())
    monkeypatch.setattr(members_module, "_LEAST_ROWS", 7)
    monkeypatch.setattr(members_module, "_MOST_ROWS", 7)
    np.testing.assert_array_equal(pieces.forecast_and_learn(X, y.astype(float), w), forecasts)
    assert pickle.dumps(pieces.state()) == pickle.dumps(whole.state())
    assert trees_of(whole).n_nodes > 5 * N_TREES


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("delay", [1, 40])
def test_forecasts_know_no_label_of_their_block_or_later(delay: int) -> None:
    X, y = switching(400)
    forecasts = forest_of(delay).forecast_and_learn(X, y.astype(float))
    start = 200
    other = np.where(np.arange(400) < start, y, 1 - y).astype(float)
    changed = forest_of(delay).forecast_and_learn(X, other)
    np.testing.assert_array_equal(changed[: start + delay], forecasts[: start + delay])
    assert not np.array_equal(changed[start + delay :], forecasts[start + delay :])


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize(("delay", "period"), [(1, None), (40, None), (1, "40")])
def test_members_in_shards_with_a_guard_apart_are_the_forest(
    delay: int, period: str | None
) -> None:
    X, y = switching(330)
    rng = np.random.default_rng(1)
    w, settings = rng.choice([0.0, 0.5, 1.0, 3.0], 330), settings_of(delay, period=period)
    at = None if period is None else np.cumsum(rng.integers(0, 3, 330)) * 1.0

    def times(a: int, b: int) -> np.ndarray | None:
        return None if at is None else at[a:b]

    whole = DriftForest(settings, range(5))
    forecasts = whole.forecast_and_learn(X, y.astype(float), w, times=times(0, 330))
    shards = [Members(settings, own) for own in ([0, 3], [4], [1, 2])]
    guard, found = Guard(settings, range(5)), []
    for a, b in itertools.pairwise([0, 7, 64, 65, 70, 230, 330]):
        rows = X[a:b], y[a:b].astype(float), w[a:b]
        shares = sum_shares([shard.share_and_learn(*rows, times=times(a, b)) for shard in shards])
        kept, own = rows[2] > 0.0, times(a, b)
        taken = None if own is None else own[kept]
        found.append(guard.mix_and_step(shares, rows[1][kept], rows[2][kept], taken))
    np.testing.assert_array_equal(np.concatenate(found), forecasts)
    read: Any = [forest_from_state(*decode_forest(encode_forest(*s.stored()))) for s in shards]
    joined = DriftForest.of(Members.join(read), json.loads(json.dumps(guard.to_json())))
    assert encode_forest(*joined.state()) == encode_forest(*whole.state())
    np.testing.assert_array_equal(joined.predict_proba(X), whole.predict_proba(X))
    np.testing.assert_array_equal(joined.age_shares(), whole.age_shares())


@pytest.mark.usefixtures("early")
def test_scales_are_searched_once_for_all_who_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = switching(300)
    searched, search = [], scaled_trees.learn_scales

    def counted(*given: Any) -> Any:
        searched.append(len(given[1][1]))
        return search(*given)

    monkeypatch.setattr(scaled_trees, "learn_scales", counted)
    kept: dict[int, Any] = {}

    def get_or_search(birth: int, make: Any) -> Any:
        if birth not in kept:
            kept[birth] = make()
        return kept[birth]

    for own in ([0, 1], [2]):
        shard = Members(settings_of(), own)
        assert shard.scaled is not None
        shard.scaled.get_or_search = get_or_search
        shard.update(X, y.astype(float))
    assert searched == [64, 128, 128]
    assert list(kept) == [64, 128, 256]


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("position", [0, 63, 64, 65, 127, 128, 200])
def test_a_stored_forest_goes_on_from_any_position(position: int) -> None:
    X, y = switching(330)
    whole, part = forest_of(), forest_of()
    forecasts = whole.forecast_and_learn(X, y.astype(float))
    part.update(X[:position], y[:position].astype(float))
    header, trees, _ = part.stored()
    assert header["drift"]["version"] == 17
    again: Any = forest_from_state(*decode_forest(encode_forest(header, trees, None)))
    rest = again.forecast_and_learn(X[position:], y[position:].astype(float))
    np.testing.assert_array_equal(rest, forecasts[position:])
    assert pickle.dumps(again.state()) == pickle.dumps(whole.state())


@pytest.mark.usefixtures("early")
def test_states_of_other_trees_are_refused() -> None:
    X, y = switching(200)
    forest, fewer, plain = forest_of(), forest_of(n_members=4), forest_of()
    for one in (forest, fewer):
        one.update(X, y.astype(float))
    plain.update(X[:50], y[:50].astype(float))
    header, trees = forest.state()
    n = 5 * N_TREES
    of_fewer = fewer.state()[0]["drift"]["scaled"]

    def changed(change: Any) -> dict[str, Any]:
        found = copy.deepcopy(header)
        change(found)
        return found

    forest_from_state(changed(lambda found: None), trees)

    def nested(**changes: Any) -> Any:
        return lambda found: found["drift"]["scaled"]["parameters"].update(changes)

    def drift(**changes: Any) -> Any:
        return lambda found: found["drift"].update(changes)

    others, no_scales = "should be those of the members, with rows", "powers of two up to 1"
    least = [2.0**-16, 1.0, 1.0, 1.0]
    forest_from_state(changed(nested(feature_scales=least)), trees)
    for change, given, message in (
        (drift(scaled=None), trees[:-n], "after 200 rows there should be scaled trees"),
        (drift(scaled=None), trees, "scaled ones as in their header; found 65"),
        (drift(scaled=of_fewer), trees[:-N_TREES], others),
        (lambda found: found["drift"].pop("scaled"), trees[:-n], "this one is of '17'"),
        (
            lambda found: found["parameters"]["drift"].pop("scaled"), trees,
            "scaled trees should be stored of a forest that has them, and no other",
        ),
        (
            lambda found: found["parameters"]["drift"].update(scaled=False), trees,
            "settings of a forest that follows a stream should be",
        ),
        (nested(seed=5), trees, others),
        (nested(max_nodes=None), trees, others),
        (nested(feature_scales=[2.0, 1.0, 1.0, 1.0]), trees, no_scales),
        (nested(feature_scales=[0.5] * 4), trees, no_scales),
        (nested(feature_scales=[0.3, 1.0, 1.0, 1.0]), trees, no_scales),
        (nested(feature_scales=[2.0**-17, 1.0, 1.0, 1.0]), trees, no_scales),
        (
            lambda found: found["drift"]["scaled"].update(calibration=None), trees,
            "scaled trees should have .* found",
        ),
        (
            lambda found: found["drift"]["scaled"].update(trees=[]), trees,
            "scaled ones as in their header; found 65",
        ),
        (
            lambda found: None, [*trees[:-1], {**trees[-1], "memory": np.ones(1)}],
            "should keep no memory beside their counts",
        ),
    ):  # fmt: skip
        with pytest.raises(CorruptError, match=message):
            forest_from_state(changed(change), given)
    young, arrays = plain.state()
    assert young["drift"]["scaled"] is None
    young["drift"]["scaled"] = header["drift"]["scaled"]
    with pytest.raises(CorruptError, match="there should be no scaled trees"):
        forest_from_state(young, [*arrays, *trees[-n:]])


@pytest.mark.usefixtures("early")
def test_trees_have_no_more_nodes_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = switching(300)
    monkeypatch.setattr(scaled_trees, "_MOST_BYTES", 20_000)
    forest = forest_of()
    forest.update(X, y.astype(float))
    used = [int(tree.head_i[nodes.N_NODES]) for tree in forest.scaled_trees]
    assert max(used) == 20_000 // (64 + 4 * 8) // 2 * 2 - 1 < 2 * 128


@pytest.mark.parametrize(("n_classes", "given", "most"), [(2, None, 174_762), (9, 7, 7)])
def test_the_bound_is_part_of_the_parameters_and_no_matter_of_memory(
    n_classes: int, given: int | None, most: int
) -> None:
    """Stored forests have it, and go on with it."""
    settings = settings_of(n_classes=n_classes).replace(max_nodes=given)
    own = ScaledTrees(settings, [0])
    grown = own.grown_after(0, FIRST_SCALED, lambda: LabelledRows(*rows_of(n_classes)), 1)
    assert grown is not None
    assert grown.parameters.max_nodes == most


def rows_of(n_classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y = switching(100, n_classes)
    return X, y.astype(float), np.ones(100)


@pytest.mark.usefixtures("early")
def test_they_are_counted_in_the_summary() -> None:
    X, y = switching(200)
    forest = forest_of()
    forest.update(X, y.astype(float))
    summary, scaled = Summary.of(forest), forest.scaled_trees
    counts = summary.covering
    assert counts is not None
    assert counts["trees"] == len(forest.covering_trees) + 5 * N_TREES
    assert counts["nodes"] == summary.nodes - forest.store.n_nodes
    own = loaded_bytes(forest.covering_trees) + loaded_bytes(scaled)
    assert counts["memory_bytes"] == own
    assert summary.memory_bytes == loaded_bytes(forest.store.trees) + own
    assert forest.n_nodes == sum(
        int(tree.head_i[nodes.N_NODES])
        for tree in (*forest.store.trees, *forest.covering_trees, *scaled)
    )


def test_shares_of_ages_know_trees_that_were_born_amid_a_block() -> None:
    """Of a forest that answers when all labels are known, as after a fit."""
    X, y = numbers(1300)
    model = AMFRegressor(2, drift="follow", delay=700, experts=EXPERTS, random_state=0).fit(X, y)
    assert trees_of(model.forest_) is None
    assert trees_of(model.forest_.caught_up()) is not None
    assert model.forest_.age_shares()[-2] == 0.0 < model.age_weights_[-2]


@pytest.mark.usefixtures("early")
def test_members_with_and_without_them_are_not_joined() -> None:
    X, y = switching(100)
    one, other = Members(settings_of(), [0]), Members(settings_of(), [1])
    for shard in (one, other):
        shard.update(X, y.astype(float))
    assert other.scaled is not None
    other.scaled.forest = None
    with pytest.raises(ParameterError, match="some have no scaled trees"):
        Members.join([one, other])


WARMED = """
import gc
from numba.core.dispatcher import Dispatcher
from dmondrian.distributed.cluster.client import warm
from tests.drift.test_scaled_trees import FIRST_SCALED, forest_of, settings_of, switching

def kernels():
    return sum(len(one.signatures) for one in gc.get_objects() if isinstance(one, Dispatcher))

warm(settings_of())
before = kernels()
X, y = switching(FIRST_SCALED + 50)
forest = forest_of(n_members=1)
forest.update(X, y.astype(float))
forest.predict_proba(X[:5])
print(before, kernels(), len(forest.scaled_trees))
"""


@pytest.mark.thorough
def test_a_worker_has_their_kernels_before_the_first_birth() -> None:
    command = [sys.executable, "-W", "ignore", "-c", WARMED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after, n_trees = map(int, done.stdout.split()[-3:])
    assert before == after
    assert n_trees == N_TREES


def test_of_many_columns_there_are_none() -> None:
    rng = np.random.default_rng(0)
    X = rng.random((FIRST_SCALED + 1, WIDEST + 1), np.float32)
    y = (X[:, 0] > 0.5).astype(int)
    model = AMFClassifier(1, drift="follow", experts=EXPERTS, random_state=0)
    with pytest.warns(UserWarning, match="grows no trees: rows have 201 features"):
        model.fit(X, y)
    assert trees_of(model.forest_) is None
    assert model.age_weights_[-2] == 0.0
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X[:9]), model.predict_proba(X[:9]))


@pytest.mark.parametrize(
    ("kind", "rows"),
    [(AMFClassifier, switching), (AMFRegressor, numbers)],
    ids=["classes", "numbers"],
)
@pytest.mark.parametrize("delay", [1, 300])
def test_estimators_mix_them_and_keep_them(kind: Any, rows: Any, delay: int) -> None:
    X, y = rows(1300)
    model = kind(2, drift="follow", delay=delay, experts=list(EXPERTS), random_state=0)
    model.fit(X[:1250], y[:1250])
    without = kind(2, drift="follow", delay=delay, experts=EXPERTS[:2], random_state=0)
    without.fit(X[:1250], y[:1250])
    assert trees_of(model.forest_).total_weight == 1250 - 1250 % delay
    assert model.forest_.n_nodes > without.forest_.n_nodes
    assert model.forest_.n_bytes > without.forest_.n_bytes
    assert model.age_weights_.shape == (1 + 11 + 2,)
    assert model.age_weights_.sum() == pytest.approx(1.0)
    amid = model.forest_.age_shares()  # before it knows the labels of the rows that wait
    assert np.array_equal(model.age_weights_, amid) == (delay == 1)
    outputs = [one.forest_.predict_mixture(X) for one in (model, without)]
    assert not np.array_equal(*outputs)
    other = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(other.predict(X), model.predict(X))
    for one in (other, model):
        one.partial_fit(X[1250:], y[1250:])
    np.testing.assert_array_equal(other.predict(X), model.predict(X))


@pytest.mark.parametrize("is_regression", [False, True])
def test_it_pays_where_one_column_has_to_be_split_finely(is_regression: bool) -> None:
    rng = np.random.default_rng(0)
    X = rng.random((3000, 6), np.float32)
    signal = np.sin(60.0 * X[:, 0].astype(float))
    y = signal + 0.1 * rng.normal(size=3000) if is_regression else signal > 0.0
    kind: Any = AMFRegressor if is_regression else AMFClassifier

    def loss(experts: Any) -> float:
        model = kind(2, drift="follow", experts=experts, random_state=0).fit(X[:2000], y[:2000])
        if is_regression:
            return float(np.mean((model.predict(X[2000:]) - y[2000:]) ** 2))
        found = model.predict_proba(X[2000:])[np.arange(1000), y[2000:].astype(int)]
        return float(-np.log(found).mean())

    assert loss(EXPERTS) < 0.9 * loss(EXPERTS[:2])


def test_one_class_has_none() -> None:
    X, _ = switching(100)
    model = AMFClassifier(1, drift="follow", experts=EXPERTS).fit(X, np.zeros(100, int))
    assert model.forest_.scaled is None
    assert model.forest_.parameters.to_json()["drift"] == {"first": 5, "last": 15, "delay": 1}
