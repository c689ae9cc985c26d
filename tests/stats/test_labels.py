"""Ranked labels: exact up to their capacity, and true bounds beyond it, in any order and merge."""

from __future__ import annotations

import numpy as np
import pytest

from dmondrian import GeneralizedMondrianForestRegressor
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.forest.forest import Forest

SIZE = 16
RANDOM = np.random.default_rng(0).normal(size=600)
ORDERS = {
    "random": RANDOM,
    "rising": np.sort(RANDOM),
    "falling": np.sort(RANDOM)[::-1],
    "inwards": np.sort(RANDOM)[np.argsort(np.abs(np.arange(600) - 299.5))[::-1]],
    "ties": np.round(RANDOM, 1),
    "an atom": np.where(np.arange(600) % 2 == 0, 7.5, RANDOM),
}


def node(y: np.ndarray, w: np.ndarray | None = None, size: int = SIZE) -> Forest:
    """Return a forest of one cell with these labels."""
    forest = GeneralizedMondrianForestRegressor(
        1, loss="quantile", max_rows_per_leaf=size, lifetime=1.0, domain="cube", random_state=0
    )
    return forest.fit(np.full((len(y), 1), 0.5, np.float32), y, w)


def ranks(forest: Forest, size: int = SIZE) -> tuple[np.ndarray, ...]:
    """Return labels, bounds from above of the weight below each, from below of that up to it."""
    stat = forest.forest_.state()[1][0]["stat"][0]
    return tuple(stat[5:].reshape(3, size + 1)[:, : int(stat[4])])


def check_bounds(forest: Forest, y: np.ndarray) -> float:
    """Check all bounds against the labels; return the certificate, in rows."""
    labels, below, upto = ranks(forest)
    assert len(labels) <= SIZE
    assert labels[0] == y.min()
    assert labels[-1] == y.max()
    up_to_here = (y[:, None] <= labels).sum(axis=0)
    below_here = (y[:, None] < labels).sum(axis=0)
    assert (upto <= up_to_here).all()
    assert (below >= below_here).all()
    assert upto[-1] == len(y)
    gaps = below[1:] - upto[:-1]
    assert (gaps >= 0).all()
    middle = 0.5 * (upto[:-1] + below[1:])
    errors = np.maximum(np.abs(up_to_here[:-1] - middle), np.abs(below_here[1:] - middle))
    assert (errors <= 0.5 * gaps).all()
    return gaps.max()


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_bounds_are_true_in_any_order_and_merge(order: str) -> None:
    y = ORDERS[order]
    gap = check_bounds(node(y), y)
    assert 0.0 < gap < (8.0 if order == "inwards" else 2.3) * len(y) / SIZE
    parts = [node(part) for part in np.array_split(y, 3)]
    merged = parts[0].merge(*parts[1:])
    assert check_bounds(merged, y) < 6.0 * len(y) / SIZE


def test_an_atom_is_never_forgotten() -> None:
    labels, below, upto = ranks(node(ORDERS["an atom"]))
    heavy = np.flatnonzero(labels == 7.5)[0]
    assert upto[heavy] - below[heavy] == 300


@pytest.mark.parametrize("n", [1, 5, SIZE])
def test_all_is_exact_while_memory_lasts(n: int) -> None:
    y = RANDOM[:n]
    labels, below, upto = ranks(node(y))
    assert labels.tolist() == np.sort(y).tolist()
    assert below.tolist() == list(range(n))
    assert upto.tolist() == list(range(1, n + 1))


def test_weights_are_repeats_to_the_byte() -> None:
    y, w = np.round(RANDOM[:60], 1), np.random.default_rng(1).integers(1, 5, 60)
    weighted, repeated = node(y, w), node(np.repeat(y, w))
    assert weighted.forest_.state()[1][0]["stat"].tobytes() == (
        repeated.forest_.state()[1][0]["stat"].tobytes()
    )
    fractions = node(RANDOM[:10], w[:10] / 8.0)
    _, below, upto = ranks(fractions)
    np.testing.assert_allclose(upto - below, w[:10][np.argsort(RANDOM[:10])] / 8.0, rtol=1e-12)


def test_merged_forests_are_those_of_all_rows_while_memory_lasts() -> None:
    rng = np.random.default_rng(2)
    X, y = rng.random((120, 2)).astype(np.float32), np.round(rng.normal(size=120), 2)

    def forest() -> GeneralizedMondrianForestRegressor:
        return GeneralizedMondrianForestRegressor(
            2, loss="quantile", max_rows_per_leaf=128, lifetime=3.0, domain="cube", random_state=0
        )

    one, two = forest().fit(X[:50], y[:50]), forest().fit(X[50:], y[50:])
    merged, whole = one.merge(two), forest().fit(X, y)
    query = rng.random((50, 2)).astype(np.float32)
    assert np.array_equal(merged.predict(query), whole.predict(query))
    chosen = forest().set_params(lifetime="prequential")
    with pytest.raises(ParameterError, match="prequential"):
        chosen.fit(X, y).merge(chosen.fit(X, y))


@pytest.mark.parametrize("damage", ["order", "count", "half", "rank", "empty"])
def test_damaged_labels_are_refused(damage: str) -> None:
    header, trees = node(RANDOM[:9]).forest_.state()
    stat = trees[0]["stat"]
    if damage == "order":
        stat[0, 5] = 100.0
    elif damage == "count":
        stat[0, 4] = SIZE + 1
    elif damage == "half":
        stat[0, 4] = 1.5
    elif damage == "rank":
        stat[0, 5 + SIZE + 1 + 1] = -1.0
    else:
        stat[0, 4] = 0.0
    with pytest.raises(CorruptError, match="labels should be in order"):
        Forest.from_state(header, trees)
