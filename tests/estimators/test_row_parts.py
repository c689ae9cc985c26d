"""Rows that are learned in parts: sparse ones, and those of a fit that ends early."""

from __future__ import annotations

import pickle
import time
import tracemalloc
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestRegressor,
    MondrianDensity,
    MondrianFeatures,
    MondrianForestClassifier,
    MondrianForestRegressor,
    MondrianKernelClassifier,
    MondrianKernelRegressor,
    OnlineRandomForestClassifier,
)
from dmondrian.errors import DMondrianError, ParameterError
from dmondrian.estimators import row_parts

RNG = np.random.default_rng(0)
N, D = 700, 6
X = np.where(RNG.random((N, D)) < 0.3, RNG.random((N, D)), 0.0).astype(np.float32)
TARGETS = X[:, 0] - X[:, 1] + 0.1 * RNG.normal(size=N)
LABELS = np.where(TARGETS > 0.0, "up", "down")
WEIGHTS = RNG.integers(1, 4, N).astype(np.float64)
TWO: dict[str, Any] = {"n_estimators": 2, "random_state": 0}
AMF: dict[str, Any] = {**TWO, "warmup_rows": 64}
FORESTS = [
    AMFClassifier(**AMF, calibrate=True, class_weight="balanced"),
    AMFClassifier(**TWO, drift="follow"),
    AMFClassifier(**TWO, missing_values="encode", feature_scales=None),
    AMFRegressor(**AMF),
    MondrianForestClassifier(**TWO),
    OnlineRandomForestClassifier(**TWO),
    GeneralizedMondrianForestRegressor(**TWO, lifetime="validation", aggregation="mean"),
    MondrianDensity(2, random_state=0, lifetime="validation", max_lifetime=8.0),
]


def labels_of(forest: Any) -> np.ndarray:
    return LABELS if hasattr(forest, "predict_proba") else TARGETS


def bytes_of(forest: Any) -> bytes:
    """Return all that a forest learned, and what it answers."""
    name = next(n for n in ("predict_proba", "predict", "score_samples") if hasattr(forest, n))
    state = forest.__getstate__()["forest_"]
    return pickle.dumps((state, np.asarray(getattr(forest, name)(X)).tolist()))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make 41 rows dense at a time."""
    monkeypatch.setattr(row_parts, "PART_BYTES", 41 * 4 * D + 3)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("forest", "kind"),
    [
        *(
            # One makes rows dense for all forests: outside of the thorough run each third has it.
            pytest.param(forest, sparse.csr_matrix, marks=[pytest.mark.thorough] * (i % 3 > 0))
            for i, forest in enumerate(FORESTS)
        ),
        *((FORESTS[3], kind) for kind in (sparse.csr_array, sparse.csc_matrix, sparse.coo_array)),
    ],
)
def test_sparse_rows_are_learned_as_dense_ones(forest: Any, kind: Any) -> None:
    y = labels_of(forest)
    dense, given = clone(forest).fit(X, y, WEIGHTS), clone(forest).fit(kind(X), y, WEIGHTS)
    assert bytes_of(dense) == bytes_of(given)
    for name in ("predict_proba", "predict", "score_samples", "apply"):
        if hasattr(dense, name):
            ask = getattr(given, name)
            assert np.array_equal(np.asarray(ask(kind(X))), np.asarray(ask(X)))


@pytest.mark.usefixtures("small_parts")
def test_sparse_rows_are_learned_as_they_come() -> None:
    whole, parts = AMFRegressor(**AMF).fit(X, TARGETS), AMFRegressor(**AMF)
    for start in range(0, N, 150):
        rows = slice(start, start + 150)
        parts.partial_fit(sparse.csr_matrix(X[rows]), TARGETS[rows])
    assert bytes_of(whole) == bytes_of(parts)


@pytest.mark.usefixtures("small_parts")
def test_a_missing_value_among_sparse_rows_is_one_that_is_stored() -> None:
    holes = X.copy()
    holes[5, 2] = np.nan
    with pytest.raises(ParameterError, match="missing_values='encode' learns"):
        AMFClassifier(**AMF).fit(sparse.csr_matrix(holes), LABELS)
    forest = AMFClassifier(**AMF, missing_values="encode")
    dense = clone(forest).fit(holes, LABELS)
    assert bytes_of(clone(forest).fit(sparse.csr_matrix(holes), LABELS)) == bytes_of(dense)


@pytest.mark.usefixtures("small_parts")
def test_nothing_is_learned_of_rows_among_which_one_is_outside_the_cube() -> None:
    forest = AMFRegressor(**TWO, domain="cube").fit(X[:100], TARGETS[:100])
    before = bytes_of(forest)
    wrong = X[100:].copy()
    wrong[-1, 0] = 1.5
    with pytest.raises(DMondrianError, match=r"1\.5"):
        forest.partial_fit(sparse.csr_matrix(wrong), TARGETS[100:])
    assert bytes_of(forest) == before


def test_sparse_rows_that_no_array_can_hold_are_learned_and_refused_where_all_are_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_parts, "PART_BYTES", 41 * 4 * D)
    monkeypatch.setattr("dmondrian._memory_limit.usable_bytes", lambda: 4 * D * (N - 1))
    rows = sparse.csr_matrix(X)
    forest = AMFClassifier(**AMF).fit(rows, LABELS)
    assert forest.predict_proba(rows).shape == (N, 2)
    with pytest.raises(ParameterError, match=r"700 sparse rows of 6 columns take .*fewer rows"):
        forest.weighted_depth(rows)
    assert forest.weighted_depth(rows[:-1]).shape == (N - 1,)


def test_sparse_rows_take_little_memory_however_many_they_are() -> None:
    n, d = 1_000_000, 100
    random = np.random.default_rng(0)
    entries = random.random(n, dtype=np.float32), random.integers(0, d, n), np.arange(n + 1)
    many = sparse.csr_matrix(entries, shape=(n, d))
    y = random.random(n)
    forest = MondrianForestRegressor(1, lifetime=0.2, random_state=0).fit(many[:100], y[:100])
    forest.predict(many[:100])
    tracemalloc.start()  # counts arrays
    try:
        forest.fit(many, y)
        assert tracemalloc.get_traced_memory()[1] < 4 * row_parts.PART_BYTES
        tracemalloc.reset_peak()
        forest.predict(many)
        assert tracemalloc.get_traced_memory()[1] < 4 * row_parts.PART_BYTES
    finally:
        tracemalloc.stop()
    assert forest.forest_.total_weight == n
    assert 4 * n * d > 5 * 4 * row_parts.PART_BYTES


def test_sparse_rows_are_refused_as_dense_ones_are() -> None:
    forest = AMFClassifier(**AMF).fit(sparse.csr_matrix(X), LABELS)
    with pytest.raises(ValueError, match="Found array with 0 sample"):
        forest.predict(sparse.csr_matrix(X[:0]))
    with pytest.raises(ValueError, match="Complex data not supported"):
        forest.predict(sparse.csr_matrix(X).astype(complex))
    none = np.concatenate([np.zeros(300), np.ones(N - 300)])
    with pytest.raises(ValueError, match="at least one non-zero number"):
        forest.fit(X, LABELS, none, max_rows=300)


def test_estimators_that_read_all_rows_at_once_take_no_sparse_ones() -> None:
    with pytest.raises(TypeError, match="Sparse data was passed"):
        MondrianKernelRegressor(2, lifetime=1.0).fit(sparse.csr_matrix(X), TARGETS)
    kernel = MondrianKernelRegressor(2, lifetime=1.0, random_state=0).fit(X, TARGETS)
    with pytest.raises(TypeError, match="Sparse data was passed"):
        kernel.predict(sparse.csr_matrix(X))
    features = MondrianFeatures(3, random_state=0).fit(sparse.csr_matrix(X))
    there = features.transform(X)
    assert (features.transform(sparse.csr_matrix(X)) != there).nnz == 0


@pytest.mark.parametrize("forest", FORESTS[:-1], ids=lambda forest: type(forest).__name__)
def test_a_fit_of_at_most_some_rows_is_that_of_the_first_ones(forest: Any) -> None:
    y = labels_of(forest)
    some = clone(forest).fit(X, y, WEIGHTS, max_rows=300)
    assert some.n_samples_fit_ <= 300
    if "balanced" not in repr(forest):  # counts the rows of all classes
        first = clone(forest).fit(X[:300], y[:300], WEIGHTS[:300])
        assert bytes_of(some) == bytes_of(first)
        assert some.n_samples_fit_ == first.n_samples_fit_


@pytest.mark.parametrize("kind", [MondrianKernelClassifier, MondrianKernelRegressor])
def test_kernel_machines_count_the_rows_of_a_fit(kind: Any) -> None:
    kernel = kind(2, random_state=0)
    y = labels_of(kernel)
    assert kernel.fit(X, y, max_rows=300).n_samples_fit_ == 300
    assert bytes_of(kernel) == bytes_of(clone(kernel).fit(X[:300], y[:300]))
    assert kernel.fit(X, y).n_samples_fit_ == N
    given = {"classes": ["down", "up"]} if hasattr(kernel, "predict_proba") else {}
    stream = clone(kernel).partial_fit(X[:100], y[:100], **given).partial_fit(X[100:], y[100:])
    assert stream.n_samples_fit_ == 100
    with pytest.raises(ParameterError, match="rows are fitted together"):
        kernel.fit(X, y, time_budget=60.0)
    assert kernel.n_samples_fit_ == N


def test_the_classes_of_a_fit_that_ends_early_are_those_of_all_labels() -> None:
    labels = np.array(["a"] * 500 + ["b"] * 200)
    forest = AMFClassifier(**AMF).fit(X, labels, max_rows=400)
    assert forest.classes_.tolist() == ["a", "b"]
    assert forest.n_samples_fit_ == 400
    by_parts = AMFClassifier(**AMF).partial_fit(X[:400], labels[:400], ["a", "b"])
    assert bytes_of(forest) == bytes_of(by_parts)
    forest.partial_fit(X[400:], labels[400:])
    assert bytes_of(forest) == bytes_of(AMFClassifier(**AMF).fit(X, labels))


class Clock:
    """A clock that each look at it moves on by a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize(
    "kind", [pytest.param(np.asarray, marks=pytest.mark.thorough), sparse.csr_matrix]
)
@pytest.mark.parametrize("forest", FORESTS[:-2], ids=lambda forest: type(forest).__name__)
def test_a_forest_whose_time_was_up_is_that_of_the_rows_it_came_to(
    forest: Any, kind: Any, set_clock: Callable[[ModuleType, Callable[[], float]], None]
) -> None:
    y = labels_of(forest)
    set_clock(row_parts, Clock())
    with pytest.warns(UserWarning, match=r"time_budget=20 ended the fit after \d+ of 700 rows"):
        some = clone(forest).fit(kind(X), y, WEIGHTS, time_budget=20)
    set_clock(row_parts, time.monotonic)
    n = some.n_samples_fit_
    assert 64 <= n < N
    same = clone(forest).fit(X, y, WEIGHTS, max_rows=n)
    assert bytes_of(some) == bytes_of(same)


def test_a_budget_that_is_not_spent_changes_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forest = AMFRegressor(**AMF).fit(X, TARGETS, time_budget=3600.0)
    assert forest.n_samples_fit_ == N
    assert bytes_of(forest) == bytes_of(AMFRegressor(**AMF).fit(X, TARGETS))


def test_a_spent_budget_ends_a_fit_soon() -> None:
    rows, many = np.tile(X, (2000, 1)), np.tile(TARGETS, 2000)  # a minute and more
    with pytest.warns(UserWarning, match="time_budget"):
        forest = AMFRegressor(20, random_state=0, feature_scales=None).fit(
            rows, many, time_budget=1e-9
        )
    assert forest.n_samples_fit_ == 64


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_rows": 0}, "max_rows should be a whole number"),
        ({"max_rows": 2.5}, "max_rows should be a whole number"),
        ({"max_rows": True}, "max_rows should be a whole number"),
        ({"time_budget": 0}, "time_budget should be a number of seconds"),
        ({"time_budget": "1 min"}, "time_budget should be a number of seconds"),
        ({"time_budget": float("nan")}, "time_budget should be a number of seconds"),
    ],
)
def test_bounds_of_a_fit_that_are_none_are_refused(given: Any, expected: str) -> None:
    forest = AMFClassifier(**AMF)
    with pytest.raises(ParameterError, match=expected):
        forest.fit(X, LABELS, **given)
    assert not hasattr(forest, "classes_")


def test_rows_that_are_fitted_together_have_no_budget_of_time() -> None:
    forest = MondrianKernelRegressor(2, lifetime=1.0, random_state=0)
    with pytest.raises(ParameterError, match="rows are fitted together"):
        forest.fit(X, TARGETS, time_budget=1.0)
    some = forest.fit(X, TARGETS, max_rows=300).predict(X)
    assert np.array_equal(some, clone(forest).fit(X[:300], TARGETS[:300]).predict(X))
