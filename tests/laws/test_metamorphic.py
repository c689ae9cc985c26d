"""Oracle O20: changes of the rows that must change the trees in a known way, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from dmondrian.forest.forest import Forest
from tests.laws.grow import grow_forest, nodes_of

SHAPE = ("left", "right", "parent", "feature", "root")
N_CLASSES = 3


def rows(seed: int = 0, n: int = 120, d: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Return rows on a grid of 2^-10 in [-1, 1): sums with small powers of two are exact."""
    rng = np.random.default_rng(seed)
    X = (rng.integers(-1024, 1024, size=(n, d)) / 1024.0).astype(np.float32)
    y = (np.abs(X[:, 0]) * 2.9 + rng.random(n) * 0.5).astype(int) % N_CLASSES
    return X, y.astype(np.float64)


def grow(X: np.ndarray, y: np.ndarray, **parameters: object) -> Forest:
    return grow_forest(X, y, n_trees=4, n_classes=N_CLASSES, **parameters)  # type: ignore[arg-type]


def state_bytes(forest: Forest) -> tuple[str, list[dict[str, bytes]]]:
    header, trees = forest.state()
    return str(header["trees"]), [
        {name: array.tobytes() for name, array in tree.items()} for tree in trees
    ]


@pytest.mark.parametrize("split_pure", [False, True])
@pytest.mark.parametrize("shift", [2.0, -64.0, 2.0**12])
def test_translated_rows_give_translated_trees(shift: float, split_pure: bool) -> None:
    X, y = rows()
    moved = X + np.float32(shift)
    assert (moved.astype(float) - shift == X).all()
    here, there = grow(X, y, split_pure=split_pure), grow(moved, y, split_pure=split_pure)
    for a, b in zip(nodes_of(here), nodes_of(there), strict=True):
        for name in (*SHAPE, "time", "counts"):
            np.testing.assert_array_equal(a[name], b[name])
        np.testing.assert_array_equal(a["lower"] + np.float32(shift), b["lower"])
        np.testing.assert_array_equal(a["upper"] + np.float32(shift), b["upper"])
        inside = a["left"] >= 0  # thresholds are rounded to the coarser grid at the shift
        np.testing.assert_allclose(
            a["threshold"][inside] + shift, b["threshold"][inside], rtol=0, atol=2e-7 * abs(shift)
        )
    np.testing.assert_array_equal(here.predict_sums(X).total, there.predict_sums(moved).total)


@pytest.mark.parametrize("power", [-20, -1, 3, 40])
def test_scaled_rows_give_scaled_trees_on_a_scaled_clock(power: int) -> None:
    X, y = rows(seed=1)
    c = 2.0**power
    one, scaled = grow(X, y), grow(X * np.float32(c), y)
    for a, b in zip(nodes_of(one), nodes_of(scaled), strict=True):
        for name in (*SHAPE, "counts"):
            np.testing.assert_array_equal(a[name], b[name])
        np.testing.assert_array_equal(a["time"] / c, b["time"])
        for name in ("threshold", "lower", "upper"):
            np.testing.assert_array_equal(a[name] * np.float32(c), b[name])
    for expected_extension in (False, True):
        totals = [
            grow(X * np.float32(k), y, expected_extension=expected_extension)
            .predict_sums((X[::-1] + np.float32(0.125)) * np.float32(k))
            .total
            for k in (1.0, c)
        ]
        np.testing.assert_allclose(totals[0], totals[1], rtol=1e-12)


def test_permuted_labels_give_permuted_forecasts() -> None:
    X, y = rows(seed=2)
    order = np.array([2, 0, 1])
    plain, permuted = grow(X, y), grow(X, order[y.astype(int)].astype(float))
    for a, b in zip(nodes_of(plain), nodes_of(permuted), strict=True):
        for name in (*SHAPE, "time", "threshold", "lower", "upper"):
            np.testing.assert_array_equal(a[name], b[name])
        np.testing.assert_array_equal(a["counts"], b["counts"][:, order])
    query = X[::-1] + np.float32(0.3)
    np.testing.assert_array_equal(
        plain.predict_sums(query).total, permuted.predict_sums(query).total[:, order]
    )


def test_labels_do_not_shape_trees_that_split_pure_leaves() -> None:
    X, y = rows(seed=3)
    other = np.random.default_rng(0).permutation(y)
    for a, b in zip(nodes_of(grow(X, y)), nodes_of(grow(X, other)), strict=True):
        for name in (*SHAPE, "time", "threshold", "lower", "upper"):
            np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.parametrize("value", [0.0, 1e30])
def test_a_constant_column_is_never_split_and_changes_nothing(value: float) -> None:
    X, y = rows(seed=4)
    constant = np.full((len(X), 1), value, np.float32)
    plain, wider = grow(X, y), grow(np.hstack([X, constant]), y)
    for a, b in zip(nodes_of(plain), nodes_of(wider), strict=True):
        for name in (*SHAPE, "time", "threshold", "counts"):
            np.testing.assert_array_equal(a[name], b[name])
    first = nodes_of(grow(np.hstack([constant, X]), y))
    assert all((nodes["feature"] != 0).all() for nodes in first)
    assert all(len(nodes["left"]) == 2 * len(X) - 1 for nodes in first)


@pytest.mark.parametrize("split_pure", [False, True])
def test_rows_seen_before_change_no_structure(split_pure: bool) -> None:
    X, y = rows(seed=5)
    forest = grow(X, y, split_pure=split_pure)
    before = nodes_of(forest)
    again = np.random.default_rng(0).integers(0, len(X), size=500)
    forest.update(X[again], np.random.default_rng(1).integers(0, 3, size=500).astype(float))
    for a, b in zip(before, nodes_of(forest), strict=True):
        for name in (*SHAPE, "time", "threshold", "lower", "upper"):
            np.testing.assert_array_equal(a[name], b[name])
        assert b["n_rows"][b["root"]] == len(X) + 500


def test_each_distinct_row_has_its_own_leaf_when_pure_leaves_split() -> None:
    X, y = rows(seed=6, n=60)
    X = np.repeat(X, 3, axis=0)[np.random.default_rng(0).permutation(180)]
    for nodes in nodes_of(grow(X, np.repeat(y, 3))):
        leaves = nodes["left"] < 0
        assert leaves.sum() == len(np.unique(X, axis=0))
        np.testing.assert_array_equal(nodes["lower"][leaves], nodes["upper"][leaves])


@pytest.mark.parametrize("batch", [1, 7, 50])
@pytest.mark.parametrize("n_classes", [0, N_CLASSES])
def test_batches_and_threads_change_no_byte(batch: int, n_classes: int) -> None:
    X, y = rows(seed=7, n=400)
    w = np.random.default_rng(0).choice([0.0, 1.0, 2.0, 0.5], size=len(X))
    whole = grow_forest(X, y, n_trees=4, n_classes=n_classes, w=w)
    pieces = grow_forest(X[:0], y[:0], n_trees=4, n_classes=n_classes, w=w[:0])
    for i, start in enumerate(range(0, len(X), batch)):
        part = slice(start, start + batch)
        pieces.update(X[part], y[part], w[part], n_threads=1 + i % 2)
    assert state_bytes(whole) == state_bytes(pieces)
    totals = [f.predict_sums(X, n_threads=t).total for f, t in ((whole, 1), (pieces, 2))]
    assert totals[0].tobytes() == totals[1].tobytes()


def test_threads_of_a_prediction_do_not_meet() -> None:
    X, y = rows(seed=12)
    query = np.tile(X, (100, 1)) + np.float32(0.1)  # more rows than one thread takes at once
    forest = grow(X, y, expected_extension=True)
    one, four = (forest.predict_sums(query, t, spread=True, distance=True) for t in (1, 4))
    for a, b in zip(one[:3], four[:3], strict=True):
        assert a.tobytes() == b.tobytes()
    first = forest.predict_sums(query[: len(X)])
    assert one.total[-len(X) :].tobytes() == first.total.tobytes()


def test_sums_run_over_trees_in_the_order_of_their_numbers() -> None:
    X, y = rows(seed=13)
    forest = grow(X, y)
    sums = forest.predict_sums(X, spread=True)
    single = []
    for number in range(4):
        alone = Forest(forest.parameters, [number])
        alone.update(X, y)
        single.append(alone.predict_sums(X).total)
    np.testing.assert_array_equal(sums.total, ((single[0] + single[1]) + single[2]) + single[3])
    np.testing.assert_allclose(sums.square, sum(p * p for p in single), rtol=1e-14)


def test_a_tree_does_not_know_its_neighbours() -> None:
    X, y = rows(seed=8)
    together = grow(X, y)
    parameters = together.parameters
    alone = [Forest(parameters, [number]) for number in range(4)]
    for forest in alone:
        forest.update(X, y)
    assert state_bytes(Forest.join(alone[::-1])) == state_bytes(together)
    times = [float(nodes["time"][nodes["root"]]) for nodes in nodes_of(together)]
    assert len(set(times)) == 4


def test_a_cap_that_is_not_reached_is_no_cap() -> None:
    X, y = rows(seed=9)
    free, wide = grow(X, y), grow(X, y, max_nodes=2 * len(X) - 1)
    assert state_bytes(free) == state_bytes(wide)
    tight = grow(X, y, max_nodes=2 * len(X) - 3)
    assert state_bytes(free) != state_bytes(tight)
    for nodes in nodes_of(grow(X, y, max_nodes=20)):
        assert len(nodes["left"]) == 19
        assert nodes["n_rows"][nodes["root"]] == len(X)


def test_a_state_stored_in_the_middle_goes_on_to_the_same_bytes() -> None:
    X, y = rows(seed=10)
    for n_classes in (0, N_CLASSES):
        whole = grow_forest(X, y, n_trees=3, n_classes=n_classes)
        half = grow_forest(X[:50], y[:50], n_trees=3, n_classes=n_classes)
        half = Forest.from_state(*half.state())
        half.update(X[50:], y[50:])
        assert state_bytes(whole) == state_bytes(half)


@pytest.mark.parametrize("expected_extension", [False, True])
@pytest.mark.parametrize(("shift", "scale"), [(0.0, 8.0), (0.0, -0.25), (1024.0, 1.0), (-7.3, 1e6)])
def test_a_shifted_and_scaled_target_shifts_and_scales_the_forecast(
    shift: float, scale: float, expected_extension: bool
) -> None:
    X, y = rows(seed=11)
    y = y + np.random.default_rng(3).normal(size=len(y))
    query = X[::-1] + np.float32(0.3)
    for rate in (0.0, 1.0, 8.0):
        plain, moved = (
            grow_forest(
                X,
                target,
                n_trees=3,
                n_classes=0,
                learning_rate=rate,
                expected_extension=expected_extension,
            )
            for target in (y, scale * y + shift)
        )
        expected = scale * plain.predict_sums(query).total + 3 * shift
        np.testing.assert_allclose(
            moved.predict_sums(query).total, expected, rtol=1e-7, atol=1e-7 * abs(scale)
        )
