"""Regret of a tree against its own prunings, on streams made to be hard for it.

References: Mourtada, Gaiffas, Scornet (2021), Algorithm 3, Lemmas 1, 4 and 6, Corollaries 1 to 3;
Krichevsky and Trofimov (1981) in the form of Tjalkens et al. (1993).
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.errors import DataError, ParameterError
from dmondrian.stats.moments import PRICE
from dmondrian.tree.nodes import ETA, STAT
from tests.reference.amf import Node, ReferenceTree
from tests.reference.cases import numbers
from tests.reference.closed_form import tree_of

LOG_2 = math.log(2.0)
N_ROWS = 70


def amf(**changes: object) -> AMFClassifier:
    """Return one tree as the theory has it."""
    options = {"n_estimators": 1, "alpha": 0.5, "charge_opening": True, "domain": "cube"}
    options |= {"calibrate": False}
    return AMFClassifier(**{**options, "predict_extension": "expected", **changes})


def points_of(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Return rows of the cube: never seen before, near those seen before, or some of each."""
    d = int(rng.integers(1, 4))
    X = rng.random((N_ROWS, d))
    if kind != "spread":  # many cuts lie between the leaf of one point and the next point's cell
        source = rng.integers(0, 8, N_ROWS)
        X = np.clip(
            X[source] + 10.0 ** rng.uniform(-7, -2, X.shape) * rng.choice([-1, 1], X.shape), 0, 1
        )
    if kind == "repeated":
        X = X[rng.integers(0, N_ROWS // 2, N_ROWS)]
    return X.astype(np.float32)


def play(kind: str, seed: int, n_classes: int) -> tuple[float, ReferenceTree]:
    """Return the log loss of a tree whose every label is its least likely one, and the tree."""
    rng = np.random.default_rng([seed, n_classes])
    X, labels = points_of(kind, rng), np.arange(n_classes)
    forest = amf(random_state=seed)
    loss = 0.0
    for i, x in enumerate(X):
        p = forest.predict_proba(x[None])[0] if i else np.full(n_classes, 1.0 / n_classes)
        assert p.sum() == pytest.approx(1.0, abs=1e-12)
        y = labels[p.argmin()] if rng.random() < 0.8 else rng.choice(labels)
        loss -= math.log(p[y])
        forest.partial_fit(x[None], [y], classes=labels)
    return loss, tree_of(forest.nodes(0), alpha=0.5, charge_opening=True)


def least(node: Node, of_leaf: Callable[[Node], float]) -> float:
    """Return the least over prunings of the sum over their leaves, plus log 2 for each node."""
    own = of_leaf(node) + LOG_2
    if node.left is None or node.right is None:
        return own
    return min(own, LOG_2 + least(node.left, of_leaf) + least(node.right, of_leaf))


def best_constant(node: Node) -> float:
    """Return the log loss of the node's own frequencies, plus what Lemma 5 adds to it."""
    counts = np.array(node.memory.counts)
    n = counts.sum()
    if n == 0.0:
        return 0.0
    seen = counts[counts > 0.0]
    return float(-(seen * np.log(seen / n)).sum() + 0.5 * (len(counts) - 1) * math.log(4.0 * n))


@pytest.mark.parametrize("kind", ["spread", "near", "repeated"])
@pytest.mark.parametrize("seed", numbers(6))
@pytest.mark.parametrize("n_classes", [2, 5])
def test_no_pruning_is_better_by_more_than_its_price(kind: str, seed: int, n_classes: int) -> None:
    loss, tree = play(kind, seed, n_classes)
    assert tree.root is not None
    assert loss == pytest.approx(-tree.root.log_subtree, abs=1e-9)
    assert loss <= least(tree.root, lambda node: -node.log_w) + 1e-9  # Lemma 1
    assert loss <= least(tree.root, best_constant) + 1e-9  # Corollary 1


def test_a_point_beside_the_only_row_is_forecast_as_algorithm_3_does() -> None:
    forest = amf(random_state=0).partial_fit([[0.1]], [0], classes=[0, 1])
    learned = forest.nodes(0)
    n_splits = set()
    for x in np.linspace(0.0, 1.0, 32, dtype=np.float32):
        own = amf(random_state=0).partial_fit([[0.1]], [0], classes=[0, 1])
        own.partial_fit([[x]], [1])
        k = (len(own.nodes(0)["left"]) - 1) // 2
        n_splits.add(k)
        expected = (1.0 - 0.5**k) * 0.75 + 0.5**k * 0.5
        assert forest.predict_proba([[x]])[0, 0] == pytest.approx(expected, abs=1e-12)
        if os.environ.get("DMONDRIAN_THOROUGH") == "1":  # compiled for this question alone
            depth = sum(0.5**i for i in range(1, k + 1))
            assert forest.weighted_depth([[x]])[0] == pytest.approx(depth, abs=1e-12)
    assert {1, 2} < n_splits
    assert all(
        (learned[name] == own).all() for name, own in forest.nodes(0).items() if name != "root"
    )
    as_stored = amf(random_state=0, predict_extension="leaf").partial_fit(
        [[0.1]], [0], classes=[0, 1]
    )
    assert as_stored.predict_proba([[0.9]])[0, 0] == 0.75


def forecasts_above(nodes: dict[str, Any], x: float) -> np.ndarray:
    """Return what the nodes on the way to the leaf of ``x`` forecast, of rows with one column."""
    v, found = nodes["root"], []
    while v >= 0:
        found.append(nodes["mean"][v])
        v = nodes["left"][v] if x <= nodes["threshold"][v] else nodes["right"][v]
    return np.array(found)


def play_numbers(forest: AMFRegressor, n_small: int, n_large: int, seed: int) -> float:
    """Return the squared loss on labels of +-.01, then of +-1 chosen by an adversary.

    It takes the row and the label at which the mixture loses most beside its best node.
    """
    rng = np.random.default_rng(seed)
    points, loss = np.linspace(0.2, 0.8, 4).astype(np.float32), 0.0
    for i in range(n_small + n_large):
        k, y = i % 4, float(rng.choice([-0.01, 0.01]))
        predicted = forest.predict(points[:, None]) if i else np.zeros(4)
        if i > n_small:
            nodes, regret = forest.nodes(0), np.empty((4, 2))
            for j, x in enumerate(points):
                for side in (0, 1):
                    losses = (forecasts_above(nodes, x) - (-1.0, 1.0)[side]) ** 2
                    regret[j, side] = (predicted[j] - (-1.0, 1.0)[side]) ** 2 - losses.min()
            regret += 1e-3 * rng.random(regret.shape)
            k, side = np.unravel_index(regret.argmax(), regret.shape)
            y = (-1.0, 1.0)[side]
        if i or forest.empty_cell == "prior":  # else nothing is forecast of the first row
            loss += (y - predicted[k]) ** 2
        forest.partial_fit(points[k : k + 1, None], [y])
    return loss


def least_price(forest: AMFRegressor) -> float:
    """Return the least over prunings of their loss plus log 2 / eta for each node."""
    header, (arrays,) = forest.forest_.state()
    eta = header["trees"][0]["floats"][ETA]
    price = arrays["stat"][:, PRICE - STAT]

    def least(v: int) -> float:
        own = price[v] + LOG_2 / eta
        if arrays["left"][v] < 0:
            return own
        return min(own, LOG_2 / eta + least(arrays["left"][v]) + least(arrays["right"][v]))

    return least(header["trees"][0]["root"])


@pytest.mark.parametrize(
    ("n_small", "target_range", "empty_cell"),
    [
        (0, None, "prior"),
        (1025, None, "parent"),
        (0, (-1.0, 1.0), "prior"),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (
                (0, None, "parent"),
                (0, (-1.0, 1.0), "parent"),
                (1025, None, "prior"),
                (1025, (-1.0, 1.0), "parent"),
                (1025, (-1.0, 1.0), "prior"),
            )
        ),
    ],
)
def test_no_pruning_of_a_regressor_is_better_by_more_than_its_price(
    n_small: int, target_range: tuple[float, float] | None, empty_cell: str
) -> None:
    forest = AMFRegressor(
        1, learning_rate="theory", target_range=target_range, empty_cell=empty_cell,
        charge_opening=True, domain="cube", predict_extension="expected", random_state=0,
    )  # fmt: skip
    loss = play_numbers(forest, n_small, 400, seed=0)
    late = 0.0 if target_range else 8.0  # times B^2, of labels that widened the range
    assert loss <= least_price(forest) + late + 1e-9


def test_a_given_range_fixes_the_rate_and_bounds_the_labels() -> None:
    X, y = np.random.default_rng(0).random((300, 2)), np.linspace(-3.0, 5.0, 300)

    def rate_of(**changes: object) -> float:
        forest = AMFRegressor(2, random_state=0, target_range=(-3, 5), **changes).fit(X, y)
        return forest.forest_.state()[0]["trees"][1]["floats"][ETA]

    assert rate_of(learning_rate="theory") == 1.0 / (8.0 * 16.0)
    assert rate_of(learning_rate="theory", empty_cell="prior") == 1.0 / (8.0 * 25.0)
    assert rate_of(learning_rate=2.0) == 2.0 / 16.0
    with pytest.raises(ParameterError, match="auto"):
        rate_of()
    for wrong in ((5, -3), (0, 0), (1,), (0, np.inf), (np.nan, 1)):
        with pytest.raises(ParameterError, match="two numbers"):
            AMFRegressor(learning_rate="theory", target_range=wrong).fit(X, y)
    forest = AMFRegressor(2, learning_rate=1.0, target_range=[-3, 5], random_state=0).fit(X, y)
    before = forest.forest_.state()
    for rows in (1, 2, 300):  # one row has a way of its own
        with pytest.raises(DataError, match=r"1 of .* lie outside, the first is 5.5"):
            forest.partial_fit(X[:rows], [5.5, *y[: rows - 1]])
    after = forest.forest_.state()
    assert after[0] == before[0]
    assert all(
        (a[name] == b[name]).all()
        for a, b in zip(*(s[1] for s in (before, after)), strict=True)
        for name in a
    )
    assert pickle.loads(pickle.dumps(forest)).forest_.parameters.target_range == (-3.0, 5.0)


@pytest.mark.thorough  # two kernels for this alone
def test_an_empty_cell_forecasts_0_where_the_prior_does() -> None:
    X, y = np.array([[0.1], [0.12]]), np.array([7.0, 9.0])
    for empty_cell, expected in (("parent", 8.0), ("prior", 0.0)):
        forest = AMFRegressor(
            1, domain="cube", empty_cell=empty_cell, use_aggregation=False,
            predict_extension="expected", random_state=1,
        ).fit(X, y)  # fmt: skip
        reported = forest.nodes(0)
        assert (reported["n_rows"] == 0.0).any()
        predicted = forest.predict([[0.95]])
        assert predicted[0] == pytest.approx(expected)
        assert forest.predict([[0.95]], return_std=True)[0][0] == pytest.approx(expected)


def theory(seed: int) -> AMFRegressor:
    """Return one tree of M21's own regressor, of labels in [-1, 1]."""
    return AMFRegressor(
        1, learning_rate="theory", target_range=(-1.0, 1.0), empty_cell="prior",
        charge_opening=True, domain="cube", predict_extension="expected", random_state=seed,
    )  # fmt: skip


def play_signs(seed: int, n: int, d: int) -> tuple[AMFRegressor, np.ndarray, np.ndarray, float]:
    """Return a forest, its rows, and labels of +-1, most of them away from what it forecast."""
    rng = np.random.default_rng([seed, d])
    X, y, loss = rng.random((n, d), np.float32), np.empty(n), 0.0
    forest = theory(seed)
    for i, x in enumerate(X):
        predicted = forest.predict(x[None])[0] if i else 0.0
        side = 1.0 if X[i, 0] > 0.5 else -1.0  # a function of x, so that deep prunings are good
        y[i] = side if rng.random() < 0.6 else -1.0 if predicted > 0.0 else 1.0
        loss += (y[i] - predicted) ** 2
        forest.partial_fit(x[None], y[i : i + 1])
    return forest, X, y, loss


def rows_below(reported: dict[str, Any], X: np.ndarray) -> dict[int, list[int]]:
    """Return the rows of each node, in the order in which they came."""
    below: dict[int, list[int]] = {}
    for i, x in enumerate(X):
        v = int(reported["root"])
        while v >= 0:
            below.setdefault(v, []).append(i)
            side = "left" if x[reported["feature"][v]] <= reported["threshold"][v] else "right"
            v = int(reported[side][v])
    return below


def regret_of_the_mean(y: np.ndarray) -> float:
    """Return how much more the running mean loses than the best constant; it begins with 0."""
    means = np.concatenate([[0.0], np.cumsum(y)[:-1] / np.arange(1, len(y))])
    return float(((y - means) ** 2).sum() - ((y - y.mean()) ** 2).sum())


@pytest.mark.parametrize("d", [1, 2])
def test_the_regret_of_a_node_is_that_of_the_running_mean(d: int) -> None:
    """M21, Lemma 6: at most 8 B^2 (1 + log n), for the labels of each node."""
    forest, X, y, _ = play_signs(0, 150, d)
    reported = forest.nodes(0)
    price = forest.forest_.state()[1][0]["stat"][:, PRICE - STAT]
    n_large = 0
    for v, rows in rows_below(reported, X).items():
        mine = y[rows]
        regret = price[v] - ((mine - mine.mean()) ** 2).sum()
        assert regret == pytest.approx(regret_of_the_mean(mine), abs=1e-9)
        # Each row moves the mean by e / t: of its e^2, a share of 1 / t is regret.
        assert regret <= 4.0 * (1.0 / np.arange(1, len(mine) + 1)).sum() + 1e-9
        assert regret <= 8.0 * (1.0 + math.log(len(mine)))
        n_large += len(mine) > 10
    assert n_large > 5


def best_of_labels(y: np.ndarray) -> float:
    return float(((y - y.mean()) ** 2).sum()) if len(y) else 0.0


@pytest.mark.parametrize("d", [1, 2])
def test_no_lifetime_is_better_by_more_than_its_price(d: int) -> None:
    """M21, Corollaries 2 and 3: beside the best constants of the tree at each lifetime.

    Of each tree with the number of its own cells, and on average with that of all cells of the
    Mondrian process: (1 + lifetime)^d.
    """
    n, lifetimes = 120, (0.5, 2.0, 8.0)
    sides = {lifetime: [] for lifetime in lifetimes}
    for seed in range(12):
        forest, X, y, loss = play_signs(seed, n, d)
        reported = forest.nodes(0)
        below = rows_below(reported, X)
        born = np.where(reported["parent"] >= 0, reported["time"][reported["parent"]], 0.0)
        for lifetime in lifetimes:
            nodes = [v for v in below if born[v] <= lifetime]
            cells = [v for v in nodes if reported["time"][v] > lifetime]
            best = sum(best_of_labels(y[below[v]]) for v in cells)
            # Prunings have empty cells too: of all nodes but leaves both children count.
            n_nodes = 2 * (len(nodes) - len(cells)) + 1
            learning = sum(8.0 * (1.0 + math.log(len(below[v]))) for v in cells)
            assert loss <= best + 8.0 * LOG_2 * n_nodes + learning + 1e-9
            sides[lifetime].append((loss, best))
    for lifetime, found in sides.items():
        loss, best = np.mean(found, axis=0)
        n_cells = (1.0 + lifetime) ** d
        price = 8.0 * LOG_2 * (2.0 * n_cells - 1.0) + 8.0 * n_cells * (1.0 + math.log(n))
        assert 0.0 < loss - best <= price
