"""Online random forests: streams, weights, bounds, inspection, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from dmondrian import OnlineRandomForestClassifier, OnlineRandomForestRegressor, load
from dmondrian.errors import DataError, ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.tree.nodes import N_ACTIVE
from tests.estimators.test_amf import rows, same_forest

KINDS = [OnlineRandomForestClassifier, OnlineRandomForestRegressor]
QUICK = {"min_samples_leaf": 2.0, "min_gain": 0.05, "random_state": 3}


def labels(X: np.ndarray, kind: type) -> np.ndarray:
    number = X[:, 0] + np.round(X[:, 1] * 4)
    return number if kind is OnlineRandomForestRegressor else (number > 2.5).astype(int)


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    return rows(1500)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_threads_and_neighbours_change_no_byte(kind, X) -> None:
    y = labels(X, kind)
    whole = kind(3, **QUICK).fit(X, y)
    for size, n_jobs in ((7, 1), (400, 2)):
        parts = kind(3, n_jobs=n_jobs, **QUICK)
        for start in range(0, len(X), size):
            block = slice(start, start + size)
            more = {"classes": [0, 1]} if kind is KINDS[0] else {}
            parts.partial_fit(X[block], y[block], **more)
        assert same_forest(whole, parts)
    fewer = kind(2, **QUICK).fit(X, y)
    for mine, its in zip(fewer.forest_.state()[1], whole.forest_.state()[1], strict=False):
        assert all(mine[name].tobytes() == its[name].tobytes() for name in mine)
    assert not np.array_equal(whole.nodes(0)["feature"], whole.nodes(1)["feature"])


@pytest.mark.parametrize("kind", KINDS)
def test_whole_weights_equal_repeats_and_zeros_leave_no_trace(kind, X) -> None:
    y = labels(X, kind)
    w = np.random.default_rng(0).integers(0, 4, len(X))
    w[100] = 40  # repeats split, and find no capacity half way
    weighted = kind(2, **QUICK).fit(X, y, sample_weight=w)
    repeated = kind(2, **QUICK).fit(np.repeat(X, w, axis=0), np.repeat(y, w))
    assert same_forest(weighted, repeated)


def test_repeats_go_on_where_memory_lacked() -> None:
    X, y = rows(120), np.arange(120) % 2
    w = np.full(120, 200)
    how = {"min_samples_leaf": 1.0, "min_gain": 0.0, "must_split_ratio": 1.0, "random_state": 0}
    weighted = OnlineRandomForestClassifier(1, **how).fit(X, y, sample_weight=w)
    repeated = OnlineRandomForestClassifier(1, **how).fit(np.repeat(X, w, axis=0), np.repeat(y, w))
    assert weighted.forest_.n_nodes > 64  # more than there was capacity for at first
    assert same_forest(weighted, repeated)


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_trees_say_the_same(kind, X) -> None:
    forest = kind(3, **QUICK).fit(X, labels(X, kind))
    ask = forest.predict if kind is KINDS[1] else forest.predict_proba
    before = ask(X)
    forest.forest_.freeze()
    assert np.array_equal(ask(X), before)
    leaves = forest.nodes(0)
    v = np.zeros(len(X), int)
    for _ in range(int(leaves["depth"].max())):
        inside = leaves["left"][v] >= 0
        feature = np.maximum(leaves["feature"][v], 0)
        goes_left = X[np.arange(len(X)), feature] <= leaves["threshold"][v]
        v = np.where(inside, np.where(goes_left, leaves["left"][v], leaves["right"][v]), v)
    first = kind(1, **QUICK).fit(X, labels(X, kind))
    if kind is KINDS[1]:
        np.testing.assert_allclose(first.predict(X), leaves["mean"][v], rtol=1e-12)
    else:
        shares = leaves["counts"][v] / leaves["n_rows"][v, None]
        np.testing.assert_allclose(first.predict_proba(X), shares, rtol=1e-12)


def test_a_vote_is_for_the_first_of_the_largest_classes(X) -> None:
    y = labels(X, KINDS[0]) + (X[:, 2] > 0.6)
    votes = OnlineRandomForestClassifier(4, aggregation="vote", **QUICK).fit(X, y)
    trees = [OnlineRandomForestClassifier(1, **QUICK)._adopt(
        type(votes.forest_)._of(votes.forest_.parameters, [t], [tree]), votes.classes_
    ).predict(X) for t, tree in enumerate(votes.forest_.trees)]  # fmt: skip
    reported = np.stack([(np.array(trees) == c).mean(axis=0) for c in range(3)], axis=1)
    assert np.array_equal(votes.predict_proba(X), reported)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_known_before_the_first_estimation_row(kind, X) -> None:
    forest = kind(1, structure_share=0.999, random_state=0).fit(X[:5], labels(X[:5], kind))
    assert forest.nodes(0)["n_rows"].tolist() == [0.0]
    if kind is KINDS[0]:
        assert (forest.predict_proba(X) == 1 / len(forest.classes_)).all()
    else:
        assert (forest.predict(X) == 0.0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_fringe_bounds_memory(kind) -> None:
    X = rows(20_000)
    y = labels(X, kind) if kind is KINDS[1] else np.random.default_rng(0).integers(0, 2, len(X))
    how = {**QUICK, "min_gain": 0.0}
    sizes = {}
    for limit in (1, 20, None):
        forest = kind(1, max_fringe=limit, **how).fit(X, y)
        reported = forest.nodes(0)
        n_leaves = int((reported["left"] < 0).sum())
        assert reported["fringe"].sum() == min(n_leaves, limit or n_leaves)
        assert forest.forest_.trees[0].head_i[N_ACTIVE] == reported["fringe"].sum()
        sizes[limit] = forest.forest_.trees[0].pool.nbytes
    assert sizes[1] < sizes[20] < sizes[None]
    block = 8 * forest.forest_.parameters.fringe.section(forest.forest_.parameters.n_classes)
    assert sizes[20] <= 2.25 * 20 * 6 * block  # at most d + 1 sections each, and capacity to grow


def test_max_nodes_gives_candidates_up(X) -> None:
    y = labels(X, KINDS[0])
    forest = OnlineRandomForestClassifier(2, max_nodes=9, **QUICK).fit(X, y)
    for tree in range(2):
        reported = forest.nodes(tree)
        assert len(reported["left"]) == 9
        assert not reported["fringe"].any()
    before = forest.nodes(0)["n_rows"].sum()
    forest.partial_fit(X, y)
    assert len(forest.nodes(0)["left"]) == 9
    assert forest.nodes(0)["n_rows"].sum() > before


def test_importances_are_the_gains_of_splits(X) -> None:
    forest = OnlineRandomForestClassifier(5, **QUICK).fit(X, labels(X, KINDS[0]))
    reported = forest.feature_importances_
    gains = np.zeros(X.shape[1])
    for tree in range(5):
        arrays = forest.nodes(tree)
        inside = arrays["left"] >= 0
        np.add.at(gains, arrays["feature"][inside], arrays["gain"][inside])
        assert (arrays["gain"][~inside] == 0).all()
    np.testing.assert_allclose(reported, gains / gains.sum(), rtol=1e-12)
    assert reported[:2].sum() > reported[2:].sum()
    assert not OnlineRandomForestClassifier().fit(X[:4], [0, 1, 0, 1]).feature_importances_.any()


def test_passes_are_numbered_on(X) -> None:
    y = labels(X, KINDS[0])
    forest = OnlineRandomForestClassifier(5, **QUICK).fit(X, y)
    once = forest.forest_.n_nodes
    forest.partial_fit(X, y)
    assert forest.forest_.total_weight == 2 * len(X)
    assert forest.forest_.n_nodes > once


def test_ignored_rows_count_nowhere(X) -> None:
    y = labels(X, KINDS[0])
    forest = OnlineRandomForestClassifier(1, structure_share=0.2, ignore_share=0.5, random_state=0)
    reported = forest.fit(X, y).nodes(0)
    leaves = reported["left"] < 0
    # Rows that came before a candidate are counted above it.
    assert reported["n_rows"][leaves].sum() <= 0.35 * len(X)
    assert reported["n_rows"].max() > 0


def test_gains_below_zero_by_rounding_are_stored_as_none() -> None:
    """Squares that swamp the variance, in leaves that must split: what is written can be read."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (4000, 3)).astype(np.float32)
    y = np.where(np.arange(4000) == 0, 1e9, 0.1 * rng.integers(0, 2, 4000))
    how = {"min_samples_leaf": 1.0, "must_split_ratio": 1.0, "min_gain": 0.0, "n_thresholds": 1}
    forest = OnlineRandomForestRegressor(5, random_state=0, **how).fit(X, y)
    assert forest.forest_.n_nodes > 5
    header, trees = forest.forest_.state()
    again = Forest.from_state(header, trees).state()[1]
    for mine, its in zip(trees, again, strict=True):
        assert all(mine[name].tobytes() == its[name].tobytes() for name in mine)


@pytest.mark.parametrize("criterion", ["gini", "hellinger"])
def test_other_criteria_find_the_rule_too(X, criterion) -> None:
    y = labels(X, KINDS[0])
    forest = OnlineRandomForestClassifier(10, criterion=criterion, **QUICK).fit(X, y)
    assert forest.feature_importances_[:2].sum() > 0.5
    with pytest.raises(ParameterError, match="of two classes, got 3"):
        OnlineRandomForestClassifier(criterion="hellinger").fit(X, np.arange(len(X)) % 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"n_thresholds": 0}, "'n_thresholds' parameter .* in the range \\[1"),
        ({"max_fringe": 0}, "'max_fringe' parameter .* in the range \\[1"),
        ({"max_fringe": 2**63}, "'max_fringe' parameter .* in the range"),
        ({"must_split_ratio": 0.5}, r"beta\(d\) >= alpha\(d\).* expected a number >= 1, got 0.5"),
        ({"min_samples_growth": 0.9}, "'min_samples_growth' parameter"),
        ({"structure_share": 0.6, "ignore_share": 0.4}, "should be below 1"),
        ({"min_samples_leaf": float("inf")}, "Got inf"),
        ({"candidate_rate": -1.0}, "'candidate_rate' parameter"),
        ({"n_thresholds": True}, "'n_thresholds' parameter .* must be a number. Got True"),
        ({"max_fringe": True}, "'max_fringe' parameter .* must be a number. Got True"),
        ({"ignore_share": False}, "'ignore_share' parameter .* must be a number. Got False"),
    ],
)
def test_impossible_settings_are_refused(kind, X, changes, reported) -> None:
    for learn in ("fit", "partial_fit"):
        more = {"classes": [0, 1]} if kind is KINDS[0] and learn == "partial_fit" else {}
        with pytest.raises(ValueError, match=reported):
            getattr(kind(**changes), learn)(X, labels(X, kind), **more)


@pytest.mark.parametrize("kind", KINDS)
def test_large_weights_are_stored_and_impossible_ones_change_nothing(kind, X, tmp_path) -> None:
    y, w = labels(X, kind), np.full(len(X), 1e96)
    forest, other = (kind(2, **QUICK).fit(X, y, sample_weight=w) for _ in range(2))
    assert forest.forest_.n_nodes > 20
    forest.save(tmp_path / "model")
    assert same_forest(forest, load(tmp_path / "model"))
    refused = {-1.0: "Negative", np.nan: "not a finite", 1.0: "does not change", 1e300: "1e.100"}
    for wrong, reported in refused.items():
        with pytest.raises(ValueError, match=reported):
            forest.partial_fit(X, y, sample_weight=np.full(len(X), wrong))
    assert same_forest(forest, other)
    with pytest.raises(ValueError, match="at least one non-zero"):
        kind(2, **QUICK).fit(X, y, sample_weight=np.zeros(len(X)))


def test_later_classes_are_refused_and_change_nothing(X) -> None:
    y = labels(X, KINDS[0])
    forest = OnlineRandomForestClassifier(2, **QUICK).partial_fit(X, y, classes=[0, 1])
    other = OnlineRandomForestClassifier(2, **QUICK).partial_fit(X, y, classes=[0, 1])
    unknown = r"labels \[2\] that are not among the 2 classes \[0, 1\]: name"
    with pytest.raises(DataError, match=unknown):
        forest.partial_fit(X, y + 1)
    assert same_forest(forest, other)


def test_shifts_of_the_target_move_predictions(X) -> None:
    y = np.round(labels(X, KINDS[1]).astype(float) * 64) / 64
    forest, moved = (OnlineRandomForestRegressor(3, **QUICK).fit(X, y + c) for c in (0.0, 2.0**20))
    for mine, its in zip(forest.forest_.state()[1], moved.forest_.state()[1], strict=True):
        assert all(mine[name].tobytes() == its[name].tobytes() for name in mine)
    np.testing.assert_allclose(moved.predict(X) - 2.0**20, forest.predict(X), atol=1e-8)
