"""Boosted sets are what their definition has, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmondrian.boosting import column_bins
from dmondrian.boosting.boosted_set import BoostedSet
from dmondrian.boosting.boosted_stream import BoostedStream, settings_of
from dmondrian.boosting.boosting_kernels import BoostingSettings
from dmondrian.boosting.found_rounds import rounds_after
from dmondrian.boosting.near_labels import near_labels
from dmondrian.ensemble.rows.labelled_rows import LabelledRows
from tests.reference.boosting import (
    ReferenceBoostedNumbers,
    ReferenceBoostedSet,
    Settings,
    cuts_of,
)
from tests.reference.boosting import near_labels as reference_labels
from tests.reference.boosting import rounds_after as reference_rounds

GROWING = BoostingSettings(4, 6, 0.3, 1.0, 2, 0.01, 1.5)  # steps that are beyond it, and others


def rows(n: int, n_classes: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows with ties, a constant column and one that is another's double; labels; weights."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 5)).astype(np.float32)
    X[:, 1] = np.round(X[:, 1] * 3)
    X[:, 2] = 0.5
    X[:, 3] = 2.0 * X[:, 0]
    y = np.minimum((X[:, 0] + X[:, 1] > 1.2) + (X[:, 4] > 0.6), n_classes - 1)
    y = np.where(rng.random(n) < 0.2, rng.integers(0, n_classes, n), y).astype(np.float64)
    return X, y, rng.choice([0.25, 1.0, 3.0], n)


def assert_equal(
    X: np.ndarray,
    y: np.ndarray,
    w: np.ndarray,
    k: int,
    its: BoostingSettings,
    monotone: Sequence[int] = (),
) -> BoostedSet:
    fitted = BoostedSet.fit(X, y, w, k, its, monotone)
    kind = ReferenceBoostedSet if k else ReferenceBoostedNumbers
    n_bins = column_bins.n_bins_of(X.shape[1])
    rows = X.tolist(), y.tolist(), w.tolist()
    reference = kind(*rows, k, Settings(*its), n_bins, monotone)
    assert len(reference.trees) == len(fitted.trees.outputs)
    asked = np.concatenate([X, X + np.float32(0.01), -X])
    expected = [reference.answer(x) for x in asked.tolist()]
    np.testing.assert_array_equal(fitted.answer(asked), expected)
    return fitted


@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.thorough), True])
@pytest.mark.parametrize("n_classes", [2, 3, 5])
def test_sets_are_those_of_the_reference(n_classes: int, weighted: bool) -> None:
    X, y, w = rows(120, n_classes, n_classes)
    fitted = assert_equal(X, y, w if weighted else np.ones(len(w)), n_classes, GROWING)
    assert fitted.trees.n_splits.max() == GROWING.n_leaves - 1


@settings(max_examples=60)
@given(
    n=st.integers(1, 25),
    d=st.integers(1, 3),
    n_classes=st.integers(2, 4),
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([1e-12, 1.0, 1e9]),
    least_rows=st.integers(1, 4),
)
def test_small_sets_are_those_of_the_reference(
    n: int, d: int, n_classes: int, seed: int, scale: float, least_rows: int
) -> None:
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 5, (n, d)).astype(np.float32)
    y = rng.integers(0, n_classes, n).astype(np.float64)
    w = scale * rng.choice([0.5, 1.0, 100.0], n)
    its = GROWING._replace(n_rounds=2, least_rows=least_rows)
    assert_equal(X, y, w, n_classes, its)


@pytest.mark.parametrize("weighted", [False, True])
def test_sets_of_numbers_are_those_of_the_reference(weighted: bool) -> None:
    X, classes, w = rows(120, 3, 1)
    y = -300.0 + 7.0 * classes + np.random.default_rng(0).normal(size=120)
    y[60] = 900.0
    fitted = assert_equal(X, y, w if weighted else np.ones(len(w)), 0, GROWING)
    assert fitted.trees.n_splits.max() == GROWING.n_leaves - 1
    assert fitted.scale == 2048.0


@pytest.mark.parametrize("largest_step", [0.8, 10.0])
def test_steps_and_errors_of_numbers_are_bounded(largest_step: float) -> None:
    """A rate far above 1 goes beyond the labels, and then farther: by bounded steps."""
    X, classes, w = rows(120, 2, 1)
    its = GROWING._replace(rate=8.0, n_rounds=3, largest_step=largest_step)
    fitted = assert_equal(X, np.where(classes > 0, 1000.0, -1000.0), w, 0, its)
    largest = np.abs(fitted.trees.answers).max()
    if largest_step < 4.0:
        assert largest == 8.0 * largest_step
    else:  # errors count as 4 at most
        assert 28.0 < largest < 32.0
        assert np.abs(fitted.answer(X)).max() > 1000.0 * 4.0


@settings(max_examples=60)
@given(
    n=st.integers(1, 25),
    d=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([1e-12, 1.0, 1e9]),
    size=st.sampled_from([0.0, 1e-320, 1e-130, 1.0, 1e130]),
    offset=st.sampled_from([0.0, 1.0, -1e6]),
    least_rows=st.integers(1, 4),
)
def test_small_sets_of_numbers_are_those_of_the_reference(
    n: int, d: int, seed: int, scale: float, size: float, offset: float, least_rows: int
) -> None:
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 5, (n, d)).astype(np.float32)
    y = offset + size * rng.choice([-1.0, 0.0, 0.3, 5.0], n)
    w = scale * rng.choice([0.5, 1.0, 100.0], n)
    its = GROWING._replace(n_rounds=2, least_rows=least_rows)
    fitted = assert_equal(X, y, w, 0, its)
    assert np.isfinite(fitted.answer(X)).all()


@settings(max_examples=60)
@given(
    n=st.integers(1, 40),
    n_classes=st.sampled_from([0, 2]),
    monotone=st.lists(st.integers(-1, 1), min_size=3, max_size=3),
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([1e-12, 1.0, 1e9]),
)
def test_monotone_sets_are_those_of_the_reference_and_keep_their_directions(
    n: int, n_classes: int, monotone: list[int], seed: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 5, (n, 3)).astype(np.float32)
    drawn = rng.normal(size=n) + X @ rng.normal(size=3)
    y = (drawn > 0.0).astype(np.float64) if n_classes else drawn
    w = scale * rng.choice([0.5, 1.0, 100.0], n)
    its = GROWING._replace(least_rows=1)
    fitted = assert_equal(X, y, w, n_classes, its, monotone)
    grid = np.stack(np.meshgrid(*[np.arange(-1, 6)] * 3, indexing="ij")).astype(np.float32)
    answers = fitted.answer(np.ascontiguousarray(grid.reshape(3, -1).T))[:, -1].reshape(7, 7, 7)
    for axis, direction in enumerate(monotone):
        if direction:
            assert (direction * np.diff(answers, axis=axis) >= 0.0).all()


def test_without_a_direction_sets_are_monotone_in_no_column() -> None:
    X, y, w = rows(120, 2, 2)
    free, bound = (
        BoostedSet.fit(X, y, w, 2, GROWING, monotone) for monotone in ((), (-1, 0, 0, -1, 1))
    )
    assert set(free.trees.columns[free.trees.columns > 0].tolist()) >= {1, 4}
    assert not np.array_equal(free.answer(X), bound.answer(X))


@settings(max_examples=200)
@given(
    y=st.lists(
        st.one_of(st.sampled_from([0.0, 1.0, 1e6, -1e139]), st.floats(-3.0, 3.0)), max_size=20
    ),
    repeats=st.sampled_from([1, 7, 40]),
)
def test_labels_far_off_are_those_of_the_reference(y: list[float], repeats: int) -> None:
    every = y * repeats
    np.testing.assert_array_equal(near_labels(np.array(every)), reference_labels(every))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.thorough(but="True")
def test_a_stream_of_numbers_fits_the_set_of_the_reference_to_near_labels(weighted: bool) -> None:
    X, classes, w = rows(64, 3, 1)
    y = classes / 3.0 + 0.1 * np.random.default_rng(0).random(64)
    y[33], y[44] = 1e6, -0.01
    w = w if weighted else np.ones(64)
    stream = BoostedStream(5, 0, 1)
    stream.learn(X, y, w)
    near = reference_labels(y.tolist())
    assert [r for r in range(64) if near[r] != y[r]] == [33]
    its = Settings(*settings_of(0))
    reference = ReferenceBoostedNumbers(
        X.tolist(), near, w.tolist(), 0, its, column_bins.n_bins_of(5)
    )
    np.testing.assert_array_equal(stream.answer(X), [reference.answer(x) for x in X.tolist()])


@settings(max_examples=60)
@given(
    n=st.integers(1, 25),
    n_classes=st.sampled_from([0, 2, 3]),
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([1e-130, 1.0, 1e130]),
    far=st.sampled_from([1.0, 1e9, 1e300]),
    n_rounds=st.integers(1, 9),
    most=st.sampled_from([20, 5]),
)
def test_rounds_are_those_that_the_reference_finds(
    n: int, n_classes: int, seed: int, size: float, far: float, n_rounds: int, most: int
) -> None:
    """Of rows that came before it and others: sums of losses are equal to the last bit."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 5, (2 * n, 2)).astype(np.float32)
    y = rng.integers(0, n_classes or 4, 2 * n).astype(np.float64)
    if not n_classes:
        y = size * (y + rng.normal(size=2 * n))
        y[-1] = min(far * size, 1e139)
    w = rng.choice([0.5, 1.0, 100.0], 2 * n)
    its = GROWING._replace(n_rounds=n_rounds, least_rows=1)
    fitted = BoostedSet.fit(X[:n], y[:n], w[:n], n_classes, its)
    kind = ReferenceBoostedSet if n_classes else ReferenceBoostedNumbers
    values = [part.tolist() for part in (X[:n], y[:n], w[:n])]
    bins = column_bins.n_bins_of(2)
    reference = kind(*values, n_classes, Settings(*its), bins)
    since = LabelledRows(X[n:], y[n:], w[n:])
    later = [part.tolist() for part in since]
    found = rounds_after(fitted, since, 3, most)
    assert found == reference_rounds(reference, *later, 3, most)
    if len(fitted.trees.outputs):
        (own,) = fitted.losses_after([fitted.n_rounds], *since)
        losses = [reference.loss(x, label) for x, label in zip(*later[:2], strict=True)]
        assert own == np.add.accumulate(w[n:] * losses)[-1]


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_set_that_learned_too_much_is_followed_by_one_of_fewer_rounds(n_classes: int) -> None:
    """Labels of chance alone are best after the fewest rounds; clean rules by all of them."""
    X, y, w = rows(600, n_classes, 3)
    rules = (X[:, 0] > 0.5).astype(np.float64)
    since = slice(300, 600)
    for labels, expected in ((y, 30), (rules, 90)):
        fitted = BoostedSet.fit(X[:300], labels[:300], w[:300], n_classes, settings_of(n_classes))
        found = rounds_after(fitted, LabelledRows(X[since], labels[since], w[since]), 15, 400)
        assert found == expected


def test_columns_are_cut_at_quantiles(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X = np.stack(
        [
            rng.random(500),
            np.round(rng.random(500) * 40),
            rng.random(500) ** 9,
            np.full(500, 7.0),
            np.maximum(rng.normal(size=500) - 1.5, 0.0),
        ],
        axis=1,
    ).astype(np.float32)
    monkeypatch.setattr(column_bins, "MOST_BINS", 16)
    found = column_bins.column_bins(X)
    for j in range(X.shape[1]):
        cuts = cuts_of(X[:, j].tolist(), 16)
        own = found.ends[found.starts[j] : found.starts[j + 1]]
        assert own.tolist() == [*cuts, np.inf]
        expected = [sum(cut < x for cut in cuts) for x in X[:, j].tolist()]
        assert found.of_rows[j].tolist() == expected
        counts = np.bincount(found.of_rows[j], minlength=len(own))
        assert len(counts) <= 16
        if j < 3:
            assert counts.max() <= 2 * 500 // 16 + 2
        has_usual = bool(counts.max() > 250)
        assert has_usual == (j > 2) == (found.usual[j] >= 0)
    zeros = found.of_rows[4] == 0  # bins are for the other rows
    assert zeros.sum() > 400
    assert np.bincount(found.of_rows[4])[1:].max() <= 10
    for r in range(len(X)):
        listed = found.entries[found.rows_at[r] : found.rows_at[r + 1]]
        every = found.of_rows[:, r] + found.starts[:-1]
        assert listed.tolist() == every[every != found.usual].tolist()


def test_neighbours_among_numbers_are_parted() -> None:
    low = np.float32(1.0)
    X = np.array([[low], [np.nextafter(low, np.float32(2))]], np.float32)
    found = column_bins.column_bins(X)
    assert found.ends.tolist() == [1.0, np.inf]
    assert found.of_rows.tolist() == [[0, 1]]
    huge = np.array([[-3.4e38], [3.4e38]], np.float32)
    assert column_bins.column_bins(huge).ends.tolist() == [0.0, np.inf]


def test_bins_of_all_columns_are_bounded() -> None:
    assert column_bins.n_bins_of(1024) == 256
    assert column_bins.n_bins_of(1025) == 128
    assert column_bins.n_bins_of(10**7) == 8
