"""Mini-batches: fixed ends, pieces, shards, one tree as ridge regression, and warm starts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dmondrian.forest.forest import Forest
from dmondrian.joint_fit.cell_columns import leaves_of
from dmondrian.joint_fit.minibatch import add_rows, apply_targets, batch_at, learn_batches, pieces
from dmondrian.kernel_machine.lifetime_grid import WarmSweep
from dmondrian.kernel_machine.lifetime_search import realised
from dmondrian.tree import nodes
from tests.reference.ridge import SlowSweep
from tests.reference.test_ridge import RIDGE, data, parameters

SGD: dict[str, Any] = {"solver": "sgd", "batch_size": 64}


def state_of(forest: Forest) -> tuple[str, bytes]:
    header, trees = forest.state()
    arrays = (tree[name] for tree in trees for name in sorted(tree))
    return json.dumps(header, sort_keys=True), b"".join(a.tobytes() for a in arrays)


def held_out_data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return X, y and weights, 0 for a fifth of the rows; 256 others, which end a batch."""
    X, y = data(320)
    weights = np.random.default_rng(4).choice([0.5, 1.0, 2.0], len(y))
    weights[::5] = 0.0
    return X, y, weights


def test_batches_cover_the_stream_and_are_an_eighth_of_what_came_before() -> None:
    position = 0
    while position < 20_000:
        start, stop = batch_at(position, 256)
        assert start == position
        assert 1 <= stop - start <= max(1, min(256, start / 8))
        assert all(batch_at(p, 256) == (start, stop) for p in range(start, stop))
        position = stop
    assert list(pieces(100, 50, 256)) == [(0, 4), (4, 12), (12, 20), (20, 28), (28, 44), (44, 50)]


@pytest.mark.parametrize("domain", ["cube", "range"])
def test_cuts_between_calls_threads_and_shards_change_no_byte(domain: str) -> None:
    X, y = data(900)
    w = np.random.default_rng(2).integers(0, 3, len(y)).astype(float)
    whole = Forest(parameters(domain, **SGD), range(6))
    whole.update(X, y, w, n_threads=2)
    parts = Forest(parameters(domain, **SGD), range(6))
    for rows in np.split(np.arange(len(y)), [1, 7, 100, 333, 334, 800]):
        parts.update(X[rows], y[rows], w[rows])
    assert state_of(whole) == state_of(parts)
    shards = [Forest(parameters(domain, **SGD), trees) for trees in (range(1), range(1, 6))]
    for start, stop in pieces(0, len(y), 64):
        taken = [add_rows(s, X[start:stop], w[start:stop], 1) for s in shards]
        mean = (taken[0].sums + taken[1].sums) / 6
        for shard, piece in zip(shards, taken, strict=True):
            apply_targets(shard, piece, y[start:stop], w[start:stop], mean)
    joined = Forest.join(shards)
    assert state_of(joined)[1] == state_of(whole)[1]
    assert joined.state()[0]["trees"] == whole.state()[0]["trees"]


@pytest.mark.parametrize("n_without_weight", [0, 40])
@pytest.mark.parametrize("lifetime", [0.2, 0.4])
def test_roots_split_within_a_batch_are_the_same_in_any_pieces(
    lifetime: float, n_without_weight: int
) -> None:
    X, y = data(150)
    X = X[np.argsort(X[:, 0])]  # the range grows, and with it the chance of a split
    w = (np.arange(len(y)) >= n_without_weight).astype(float)
    made = []
    for size in (len(y), 1, 7):
        forest = Forest(parameters("range", lifetime, **SGD), range(20))
        made.append(forest)
        single = []
        for start in range(0, len(y), size):
            rows = slice(start, start + size)
            forest.update(X[rows], y[rows], w[rows])
            single.append(sum(int(tree.head_i[nodes.N_NODES]) == 1 for tree in forest.trees))
        if size == 1:
            split_at = 1 + np.flatnonzero(np.diff(single) < 0)
            assert any(batch_at(int(row), 64)[0] < row for row in split_at)
    assert state_of(made[0]) == state_of(made[1]) == state_of(made[2])


@pytest.mark.parametrize("domain", ["cube", "range"])
def test_single_rows_leave_no_trace_in_nodes_that_were_leaves(domain: str) -> None:
    X, y = data(300)
    whole, parts = (Forest(parameters(domain, **SGD), range(6)) for _ in range(2))
    whole.update(X, y)
    for r in range(len(y)):
        parts.update(X[r : r + 1], y[r : r + 1])
    assert state_of(whole) == state_of(parts)


def test_rows_are_applied_again_in_any_pieces() -> None:
    """Cells are looked up for many batches at once, which must be those of each batch."""
    X, y = data(900)
    forests = [Forest(parameters("range", **SGD), range(3)) for _ in range(2)]
    for forest in forests:
        forest.update(X, y)
    before = state_of(forests[0])
    learn_batches(forests[0], X, y, None, 1, again=True)
    for rows in np.split(np.arange(len(y)), [1, 8, 77, 500]):
        learn_batches(forests[1], X[rows], y[rows], None, 1, again=True)
    assert state_of(forests[0]) == state_of(forests[1]) != before


def test_one_tree_is_a_ridge_estimate_after_its_first_batch() -> None:
    """Fitted for itself, with rows whose running mean is zero: cells shrink to zero."""
    X = data(64)[0]
    y = np.tile([1.0, -1.0], 32)
    forest = Forest(parameters("cube", is_joint=False, **SGD), range(1))
    for start, stop in pieces(0, 64, 64):
        forest.update(X[start:stop], y[start:stop])
    cells = leaves_of(forest, X)[:, 0]
    predicted = forest.predict_sums(X).mean[:, 0]
    expected = np.bincount(cells, y)[cells] / (np.bincount(cells)[cells] + RIDGE)
    assert np.corrcoef(predicted, expected)[0, 1] > 0.98


@pytest.mark.parametrize("domain", ["cube", "range"])
def test_a_longer_lifetime_changes_no_forecast_until_rows_are_applied(domain: str) -> None:
    X, y, weights = (values[:310] for values in held_out_data())  # passes end within a batch
    sweep = WarmSweep(parameters(domain, **SGD), 6, X, weights, 1, np.inf)
    learned = np.flatnonzero(weights > 0.0)
    for lifetime in (0.01, 0.5, 1.5, 4.0, 30.0):
        before, n_columns = sweep.forecasts(learned), sweep.n_columns
        sweep.cut_to(lifetime)
        assert sweep.forecasts(learned) == pytest.approx(before, abs=1e-8)
        sweep.apply_rows(y)
        assert abs(sweep.forecasts(learned) - before).max() > 1e-3
        assert sweep.n_columns > n_columns or lifetime < 0.1


@pytest.mark.parametrize("domain", ["cube", "range"])
def test_the_sweep_is_its_slow_reference(domain: str) -> None:
    """Cells of trees drawn for each lifetime alone, values in dictionaries, row by row."""
    X, y, weights = held_out_data()
    held = np.flatnonzero(weights == 0.0)
    sweep = WarmSweep(parameters(domain, **SGD), 6, X, weights, 1, 24.0)
    slow = SlowSweep(y, weights, RIDGE, SGD["batch_size"])
    reported = list(sweep.errors(y, held))
    assert reported[0][0] < 1.0
    assert reported[-1][0] == 24.0
    for lifetime, n_columns, error in reported:
        fresh = realised(parameters(domain), 6, X, weights, 1, lifetime, None)
        is_cut = [bool(t.i[t.head_i[nodes.ROOT], nodes.LEFT] >= 0) for t in fresh.trees]
        for _ in range(2):  # passes over the rows
            predicted = slow.at(leaves_of(fresh, X), is_cut)
        assert n_columns == slow.n_columns
        assert error == pytest.approx(np.mean((predicted[held] - y[held]) ** 2), rel=1e-6)


def test_passes_come_near_the_exact_fit() -> None:
    X, y = data(500)
    exact = Forest(parameters("range", 1.0, ridge=0.01), range(10))
    exact.update(X, y)
    by_batches = Forest(parameters("range", 1.0, ridge=0.01, **SGD), range(10))
    by_batches.update(X, y)

    def error(forest: Forest) -> float:
        return float(np.mean((forest.predict_sums(X).mean[:, 0] - y) ** 2))

    errors = [error(by_batches)]
    for _ in range(3):
        for _ in range(20):
            learn_batches(by_batches, X, y, None, 1, again=True)
        errors.append(error(by_batches))
    assert errors == sorted(errors, reverse=True)
    assert error(exact) < errors[-1] < 1.3 * error(exact)
