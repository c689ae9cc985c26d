"""The mixture over prunings under convex losses: rates, exact weights, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dmondrian import GeneralizedMondrianForestClassifier, GeneralizedMondrianForestRegressor
from dmondrian.ensemble.settings.loss_settings import BINARY, mean_range, theory_rate
from dmondrian.errors import DataError, ParameterError
from tests.reference.convex import LOSSES

CONCAVE = ["squared", "gaussian", "poisson", "geometric", "bernoulli", "logistic", "exponential",
           "square", "modified_square"]  # fmt: skip
BOUND = 1.7


@pytest.mark.parametrize("loss", CONCAVE)
def test_the_rate_is_the_largest_that_is_exp_concave(loss: str) -> None:
    rate = theory_rate(loss, BOUND)
    high = -1.0 / BOUND if loss == "geometric" else BOUND
    z = np.linspace(-BOUND, high, 4001)
    least, most = (0.0, 1.0) if loss in BINARY else mean_range(loss, BOUND)
    least = 0.0 if loss == "geometric" else least
    labels = [0.0, 1.0] if loss in BINARY else np.linspace(least, most, 41)

    def curvature(at: float) -> float:
        """Largest second difference of exp(-at loss), in units of its own size."""
        reported = [np.exp(-at * (LOSSES[loss](z, y) - LOSSES[loss](z, y).min())) for y in labels]
        return max((np.diff(values, 2) / values[1:-1]).max() for values in reported)

    assert curvature(rate) < 1e-9
    assert curvature(1.05 * rate) > 0.0 or loss.endswith("square")
    if loss.endswith("square"):  # its margin may be as far as -bound
        assert curvature(1.05 * rate) > -1e-3


@pytest.mark.parametrize("loss", ["hinge", "smoothed_hinge"])
def test_straight_pieces_are_refused(loss: str) -> None:
    forest = GeneralizedMondrianForestClassifier(
        loss=loss, aggregation="aggregate", bound=1.0, lifetime=None
    )
    with pytest.raises(ParameterError, match="straight pieces"):
        forest.fit(np.zeros((2, 1)), [0, 1])


def test_a_loss_without_a_known_rate_is_refused_whatever_its_shape() -> None:
    with pytest.raises(ParameterError, match="'log_cosh' is not: expected one of"):
        theory_rate("log_cosh", 1.0)


@pytest.mark.parametrize("loss", ["huber", "quantile"])
def test_labels_beyond_a_mean_are_refused(loss: str) -> None:
    with pytest.raises(ParameterError, match="straight pieces"):
        GeneralizedMondrianForestRegressor(
            loss=loss, aggregation="aggregate", bound=1.0, lifetime=None
        ).fit(np.zeros((2, 1)), [0, 1])


def test_what_a_mixture_needs() -> None:
    X, mixed = np.zeros((20, 1)), {"aggregation": "aggregate", "loss": "poisson"}
    with pytest.raises(ParameterError, match="needs a bound"):
        GeneralizedMondrianForestRegressor(**mixed, lifetime=None).fit(X, [0, 1] * 10)
    for lifetime in ("grow", "penalized", "validation"):
        with pytest.raises(ParameterError, match="one lifetime"):
            GeneralizedMondrianForestRegressor(**mixed, bound=1.0, lifetime=lifetime).fit(
                X, [0, 1] * 10
            )
    with pytest.raises(DataError, match="larger bound"):
        GeneralizedMondrianForestRegressor(**mixed, bound=1.0, lifetime=None).fit(X, [0, 4] * 10)
    with pytest.raises(DataError, match="larger bound"):
        GeneralizedMondrianForestRegressor(
            loss="squared", aggregation="aggregate", bound=1.0, lifetime=None
        ).fit(X, [0, -4] * 10)


def prunings(reported: dict[str, Any], v: int) -> list[tuple[list[int], float]]:
    """Return the leaves of every pruning of the subtree of ``v``, and its prior weight."""
    if reported["left"][v] < 0:
        return [([v], 1.0)]
    found = [([v], 0.5)]
    sides = (prunings(reported, reported[side][v]) for side in ("left", "right"))
    for (left, p), (right, q) in itertools.product(*sides):
        found.append((left + right, 0.5 * p * q))
    return found


@pytest.mark.parametrize("loss", ["poisson", "squared", "bernoulli"])
def test_the_mixture_is_the_posterior_mean_over_all_prunings(loss: str) -> None:
    rng = np.random.default_rng(4)
    X = rng.random((9, 2)).astype(np.float32)
    y = rng.integers(0, 2, 9).astype(float)
    options = {"loss": loss, "aggregation": "aggregate", "bound": 2.0, "lifetime": 2.0,
               "learning_rate": 0.8, "random_state": 2, "n_estimators": 1}  # fmt: skip
    if loss == "bernoulli":
        forest: Any = GeneralizedMondrianForestClassifier(**options).fit(X, y.astype(int))
        ask = forest.decision_function
    else:
        forest = GeneralizedMondrianForestRegressor(**options).fit(X, y)
        ask = forest.predict_link
    reported = forest.nodes(0)
    price = forest.forest_.state()[1][0]["stat"][:, 3]
    assert 3 <= len(price) <= 17
    assert (price != 0.0).sum() > 1
    every = prunings(reported, reported["root"])
    weights = np.array([p * np.exp(-0.8 * price[leaves].sum()) for leaves, p in every])
    for x in rng.random((12, 2)).astype(np.float32):
        path, v = [], reported["root"]
        while v >= 0:
            path.append(v)
            goes_left = x[reported["feature"][v]] <= reported["threshold"][v]
            v = reported["left"][v] if goes_left else reported["right"][v]
        predicted = [
            next(reported["forecast"][u, 0] for u in path if u in leaves) for leaves, _ in every
        ]
        assert ask(x[None])[0] == pytest.approx(
            (weights * predicted).sum() / weights.sum(), rel=1e-10
        )


def test_prices_are_losses_of_forecasts_made_before() -> None:
    """One cell: the price is the loss of the best constant of the rows before, row by row."""
    y = np.array([1.0, 0.0, 2.0, 1.0, 0.0])
    forest = GeneralizedMondrianForestRegressor(
        1, loss="poisson", aggregation="aggregate", bound=1.0, lifetime=1.0
    ).fit(np.zeros((5, 1)), y)
    before = [np.clip(np.log(y[:i].mean()), -1.0, 1.0) for i in range(1, 5)]
    expected = sum(np.exp(z) - y[i + 1] * z for i, z in enumerate(before))
    assert forest.forest_.state()[1][0]["stat"][0, 3] == pytest.approx(expected, rel=1e-13)
