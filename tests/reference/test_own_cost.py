"""Costs of two classes of one's own, as they come by a stream, beside cells and minima by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from dmondrian import ConvexLoss, GeneralizedMondrianForestClassifier
from tests.reference.cube import Cell, CubeTree

TREES, SEED, LIFETIME = 3, 5, 4.0
MISSED = 5.0  # what an error on the second class costs, in errors on the first


def logistic(z: float, y: float) -> float:
    return (5.0 if y > 0.0 else 1.0) * math.log1p(math.exp(-y * z))


def logistic_slope(z: float, y: float) -> float:
    return -y * (5.0 if y > 0.0 else 1.0) / (1.0 + math.exp(y * z))


def square(z: float, y: float) -> float:
    return (5.0 if y > 0.0 else 1.0) * (1.0 - y * z) ** 2


def square_slope(z: float, y: float) -> float:
    return -2.0 * y * (5.0 if y > 0.0 else 1.0) * (1.0 - y * z)


def hinge(z: float, y: float) -> float:
    return (5.0 if y > 0.0 else 1.0) * max(1.0 - y * z, 0.0)


def hinge_slope(z: float, y: float) -> float:
    return -y * (5.0 if y > 0.0 else 1.0) if y * z < 1.0 else 0.0


def best_logistic(first: float, second: float) -> float:
    if min(first, second) == 0.0:
        return math.inf if second > 0.0 else -math.inf
    return math.log(MISSED * second / first)


def best_square(first: float, second: float) -> float:
    return (MISSED * second - first) / (MISSED * second + first)


def best_hinge(first: float, second: float) -> float:
    return float(np.sign(MISSED * second - first))


COSTS: dict[str, tuple[Callable, Callable, Callable]] = {
    "logistic": (logistic, logistic_slope, best_logistic),
    "square": (square, square_slope, best_square),
    "hinge": (hinge, hinge_slope, best_hinge),
}


@dataclass
class OfCost(CubeTree):
    """A tree of two classes whose cells say the best constant of their weights, within beta_n."""

    best: Callable[[float, float], float] = best_square
    beta: float = 1.0

    def forecast(self, cell: Cell) -> list[float]:
        of_class = [
            math.fsum(self.w[r] for r in cell.rows if self.y[r] == label) for label in (0, 1)
        ]
        return [min(max(self.best(*of_class), -self.beta), self.beta)]


@pytest.mark.parametrize("bound", [None, 0.8])
@pytest.mark.parametrize("empty_cell", ["parent", "prior"])
@pytest.mark.parametrize("cost", sorted(COSTS))
def test_a_stream_predicts_what_cells_and_minima_by_hand_do(
    cost: str, empty_cell: str, bound: float | None
) -> None:
    rng = np.random.default_rng(2)
    X = rng.random((60, 2), np.float32)
    y = (rng.random(60) < X[:, 0] ** 2).astype(int)
    w = rng.integers(0, 4, 60) * 0.5
    asked = np.concatenate([X[:10], rng.random((30, 2), np.float32)])
    price, slope, best = COSTS[cost]
    forest = GeneralizedMondrianForestClassifier(
        TREES, loss=ConvexLoss(price, slope), bound=bound, lifetime=LIFETIME, domain="cube",
        empty_cell=empty_cell, feature_units=None, random_state=SEED,
    )  # fmt: skip
    done = 0
    for n in (1, 8, 60):
        forest.partial_fit(X[done:n], y[done:n], classes=[0, 1], sample_weight=w[done:n])
        done = n
        if w[:n].sum() == 0.0:
            continue
        beta = max(1.0, math.log(1.0 + w[:n].sum())) if bound is None else bound
        seed = forest.forest_.parameters.seed
        trees = [
            OfCost(X[:n], y[:n], w[:n], seed, t, 0, LIFETIME, best, beta) for t in range(TREES)
        ]
        predicted = [
            [tree.predict(x, LIFETIME, empty_cell == "prior")[0] for tree in trees] for x in asked
        ]
        found = forest.decision_function(asked)
        np.testing.assert_allclose(found, np.mean(predicted, axis=1), rtol=1e-12, atol=1e-12)
        assert np.array_equal(forest.predict(asked), (found > 0.0).astype(int))
