"""What every loss promises. Subclass it: name the policy, an estimator, and the loss in NumPy."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dmondrian.tree.nodes import N_NODES
from dmondrian.tree.policies import (
    add_empty_forecast,
    add_forecast,
    at_once,
    complete_forecast,
    learn_above,
    note_forecast,
    opening_price,
    prepare,
    price,
    worth,
)
from tests.contracts.policy_contract import PolicyContract, is_classifier, rows

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
        (own,) = self.forecasts(self.cell_of(y), PLACE)
        costs = [self.loss(y, np.full(len(y), one)).mean() for one in self.candidates(y)]
        assert self.loss(y, np.full(len(y), own)).mean() <= min(costs) + self.slack + 1e-12

    def test_labels_far_from_zero_give_finite_forecasts(self) -> None:
        y = np.random.default_rng(1).normal(size=40)
        y = np.sign(y) if is_classifier(self.estimator()) else 1e12 * y
        assert np.isfinite(self.forecasts(self.cell_of(y), PLACE)).all()

    def test_forecasts_of_many_cells_are_finite(self) -> None:
        X = np.random.default_rng(4).random((50, 3)).astype(np.float32)
        assert np.isfinite(self.forecasts(self.fitted(), X)).all()


class FollowingLossContract(PolicyContract):
    """Of a loss by whose forecasts late labels count more."""

    hooks = (
        prepare, at_once, price, opening_price, learn_above,
        add_forecast, complete_forecast, note_forecast, worth,
    )  # fmt: skip

    def forecast_of(self, y: np.ndarray) -> float:
        """Return what is forecast where all rows lie in one cell."""
        forest = self.estimator().fit(np.repeat(PLACE, len(y), axis=0), y)
        if is_classifier(forest):
            return float(forest.predict_proba(PLACE)[0, 1])
        return float(forest.predict(PLACE)[0])

    def test_late_labels_count_more(self) -> None:
        y = np.repeat([0.0, 1.0], [200, 40])
        assert self.forecast_of(y) > 0.7
        assert self.forecast_of(1.0 - y) < 0.3

    def test_labels_in_turn_are_forecast_by_their_mean(self) -> None:
        assert abs(self.forecast_of(np.tile([0.0, 1.0], 100)) - 0.5) < 0.1

    def test_forecasts_of_many_cells_are_finite(self) -> None:
        assert np.isfinite(self.fitted().predict(rows(4))).all()


class StandInContract:
    """Of a policy that stands for another where all rows weigh one.

    Subclass it: name both, make one of the other, and give an estimator that uses the other.
    """

    policy: ClassVar[type]
    stands_for: ClassVar[type]

    def stand_in(self, loss: Any) -> Any:
        """Return the policy that stands for ``loss``."""
        raise NotImplementedError

    def estimator(self) -> Any:
        """Return a new estimator of two classes, 0 and 1."""
        raise NotImplementedError

    def test_prices_of_rows_of_weight_one_are_the_same_to_the_last_bit(self) -> None:
        X = rows()
        forest = self.estimator().fit(X, (X[:, 0] > X[:, 1]).astype(int))
        loss = forest.forest_.policies.loss
        stand_in = self.stand_in(loss)
        assert (type(stand_in), type(loss)) == (self.policy, self.stands_for)
        for tree in forest.forest_.trees:
            for v in range(int(tree.head_i[N_NODES])):
                for y in (0.0, 1.0):
                    found, wanted = (price(one, tree, v, y, 1.0) for one in (stand_in, loss))
                    assert tuple(map(float, found)) == tuple(map(float, wanted))
