"""What every loss promises. Subclass it: name the policy, an estimator, and the loss in NumPy."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dmondrian.tree.policies import (
    add_empty_forecast,
    add_forecast,
    at_once,
    learn_above,
    opening_price,
    prepare,
    price,
)
from tests.contracts.policy_contract import PolicyContract, is_classifier

PLACE = np.full((1, 3), 0.5, np.float32)


class LossContract(PolicyContract):
    hooks = (prepare, at_once, price, opening_price, learn_above, add_forecast, add_empty_forecast)
    slack: ClassVar[float] = 0.0  # by which a prior, or a sketch of the labels, may cost a row more

    def loss(self, y: np.ndarray, forecast: np.ndarray) -> np.ndarray:
        """Return the loss of each forecast at label y, float64 [len(forecast)]."""
        raise NotImplementedError

    def forecasts(self, forest: Any, X: np.ndarray) -> np.ndarray:
        """Return what the loss judges, by default the prediction."""
        return np.asarray(forest.predict(X), np.float64)

    def candidates(self, y: np.ndarray) -> np.ndarray:
        """Return constants that a cell might forecast."""
        return np.linspace(y.min(), y.max(), 201)

    def cell_of(self, y: np.ndarray) -> Any:
        """Return an estimator whose rows all lie in one cell."""
        return self.estimator().fit(np.repeat(PLACE, len(y), axis=0), y)

    def test_a_cell_forecasts_the_best_constant(self) -> None:
        y = np.random.default_rng(0).gamma(2.0, 1.0, 101)
        if is_classifier(self.estimator()):
            y = np.where(y > 2.5, 1.0, -1.0)
        (said,) = self.forecasts(self.cell_of(y), PLACE)
        costs = [self.loss(y, np.full(len(y), one)).mean() for one in self.candidates(y)]
        assert self.loss(y, np.full(len(y), said)).mean() <= min(costs) + self.slack + 1e-12

    def test_labels_far_from_zero_give_finite_forecasts(self) -> None:
        y = np.random.default_rng(1).normal(size=40)
        y = np.sign(y) if is_classifier(self.estimator()) else 1e12 * y
        assert np.isfinite(self.forecasts(self.cell_of(y), PLACE)).all()

    def test_forecasts_of_many_cells_are_finite(self) -> None:
        X = np.random.default_rng(4).random((50, 3)).astype(np.float32)
        assert np.isfinite(self.forecasts(self.fitted(), X)).all()
