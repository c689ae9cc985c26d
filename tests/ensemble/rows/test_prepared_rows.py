"""Rows are prepared once, whoever learns them in whatever pieces, and the trees are the same."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.rows import prepared_rows
from dmondrian.ensemble.rows.prepared_rows import Preparation
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import DataError, ParameterError
from dmondrian.tree import nodes

N, D = 600, 6


def draw(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a column of numbers, one of steps and four of two values, and labels."""
    rng = np.random.default_rng(seed)
    X = rng.random((N, D), np.float32)
    X[:, 1] = np.rint(X[:, 1] * 200.0)
    X[:, 2:] = X[:, 2:] > 0.5
    return X, X[:, 0] + X[:, 2]


def parameters(algorithm: str = "amf-regressor", **given: Any) -> ForestParameters:
    return ForestParameters(algorithm, D, 0, seed=1, **given)


CUBE: dict[str, Any] = {
    "algorithm": "mondrian-forest-regressor", "aggregation": "mean", "domain": "cube",
    "lifetime": 3.0,
}  # fmt: skip


def bytes_of(forest: Ensemble) -> list[bytes]:
    fields = (nodes.fields(tree) for tree in forest.trees)
    return [array.tobytes() for each in fields for array in each.values()]


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled and rounded": {
        "feature_scales": (0.5, 3.0, 1.0, 1.0, 0.7, 2.0),
        "feature_units": (2.0**-12,) * D,
    },
    "clipped": {**CUBE, "clip": True},
}


def count(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls by which rows are scaled or clipped, rounded and encoded."""
    calls: Counter[str] = Counter()
    for name in ("scale_columns", "clip_to_cube", "round_rows", "rows_of", "fitted"):
        made = getattr(prepared_rows, name)

        def counted(*given: Any, name: str = name, made: Any = made) -> Any:
            calls[name] += 1
            return made(*given)

        monkeypatch.setattr(prepared_rows, name, counted)
    return calls


def build(case: str, numbers: range) -> Ensemble:
    return Ensemble(parameters(**CASES[case]), numbers)


@pytest.mark.parametrize("case", CASES)
def test_prepared_rows_make_the_trees_that_rows_do(case: str) -> None:
    X, y = draw()
    plain, shared = build(case, range(4)), [build(case, range(2)), build(case, range(2, 4))]
    plain.update(X, y)
    prepared = shared[0].prepare(X)
    assert shared[1].prepare(prepared) is prepared
    for start in range(0, N, 150):
        part = slice(start, start + 150)
        for forest in shared:
            forest.update(prepared[part], y[part])
    assert bytes_of(plain) == [array for forest in shared for array in bytes_of(forest)]
    n_outside = int((np.clip(X, 0.0, 1.0) != X).any(axis=1).sum())
    assert plain.n_clipped == shared[0].n_clipped == (case == "clipped") * n_outside
    expected = plain.predict_sums(X).total
    first = shared[0].predict_sums(prepared)
    assert shared[1].predict_sums(prepared, onto=first).total.tobytes() == expected.tobytes()


@pytest.mark.parametrize("case", CASES)
def test_rows_are_prepared_once_for_all_forests_and_pieces(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = draw()
    forests = [build(case, range(t, t + 1)) for t in range(5)]
    calls = count(monkeypatch)
    prepared = forests[0].prepare(X)
    for start in range(0, N, 100):
        part = slice(start, start + 100)
        for forest in forests:
            forest.predict_sums(prepared[part], distance=True)
            forest.update(prepared[part], y[part])
    assert calls["fitted"] == 1  # the encoding that trees without rows choose
    assert set(calls.values()) == {1}
    assert ("round_rows" in calls) == (case == "scaled and rounded")
    assert ("clip_to_cube" in calls) == (case == "clipped")


def test_rows_that_do_not_fit_are_encoded_anew_once_for_each_encoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A feature of two values takes a third: each forest writes its boxes anew, in one way."""
    X, y = draw()
    third = X.copy()
    third[N // 2 :, 3] = 0.25
    forests = [build("plain", range(t, t + 1)) for t in range(3)]
    once = forests[0].prepare(X)
    for forest in forests:
        forest.update(once, y)
    calls = count(monkeypatch)
    prepared = forests[0].prepare(third)
    for start in (0, N // 2):
        part = slice(start, start + N // 2)
        for forest in forests:
            forest.update(prepared[part], y[part])
    assert calls["rows_of"] == 1  # that not all fit; what fits was found by the choice itself
    plain = build("plain", range(3))
    plain.update(X, y)
    plain.update(third, y)
    assert bytes_of(plain) == [array for forest in forests for array in bytes_of(forest)]


def test_threads_that_share_rows_encode_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = draw()
    forests = [build("plain", range(t, t + 1)) for t in range(4)]
    calls, barrier = count(monkeypatch), threading.Barrier(4)
    prepared = forests[0].prepare(X)

    def learn(forest: Ensemble) -> None:
        barrier.wait(60)
        forest.update(prepared, y)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(learn, forests))
    assert calls == {"fitted": 1}


def test_slices_and_copies_are_of_the_same_rows() -> None:
    X, _ = draw()
    X[::7, 0] += 1.0
    prepared = Preparation(build("clipped", range(1)).parameters).prepare(X)
    rows = np.clip(X, 0.0, 1.0)
    which = np.arange(N)[::5]
    for part, expected in (
        (prepared[10:50][5:20], slice(15, 30)),
        (prepared[500:900], slice(500, N)),
        (prepared[50:10], slice(0, 0)),
        (prepared[-5:], slice(N - 5, N)),
        (prepared[which], which),
    ):
        assert np.array_equal(part.values, rows[expected])
        assert part.n_clipped == int((rows[expected] != X[expected]).any(axis=1).sum())
        assert len(part) == len(rows[expected])


def test_rows_that_were_prepared_otherwise_are_refused() -> None:
    X, y = draw()
    prepared = Preparation(parameters()).prepare(X)
    scaled = Ensemble(parameters(feature_scales=(0.5,) * D), range(1))
    for ask in (lambda: scaled.update(prepared, y), lambda: scaled.predict_sums(prepared)):
        with pytest.raises(ParameterError, match="prepared for forests of other"):
            ask()
    with pytest.raises(ParameterError, match="should have 6 features"):
        Preparation(parameters()).prepare(X[:, :5])
    with pytest.raises(DataError, match="column 1"):
        Preparation(parameters(**CUBE)).prepare(X)
