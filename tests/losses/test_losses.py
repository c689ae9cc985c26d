"""The contract of losses, on each policy."""

from __future__ import annotations

from typing import Any

import numpy as np

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestClassifier,
    GeneralizedMondrianForestRegressor,
    MondrianForestClassifier,
    MondrianForestRegressor,
)
from dmondrian.joint_fit.cell_columns import leaves_of, presence_of
from dmondrian.losses import convex
from dmondrian.losses.average import Average
from dmondrian.losses.cell import Cell
from dmondrian.losses.convex import OfMean
from dmondrian.losses.depth import Depth
from dmondrian.losses.discounted_kt import DiscountedKT
from dmondrian.losses.discounted_squared import DiscountedSquared
from dmondrian.losses.huber import Huber
from dmondrian.losses.kt import KT, UnitWeightKT
from dmondrian.losses.label import Label
from dmondrian.losses.occupied import Occupied
from dmondrian.losses.proportions import Proportions
from dmondrian.losses.quantile import Pinball
from dmondrian.losses.squared import Squared
from dmondrian.losses.value import Value
from dmondrian.tree.policies import add_empty_forecast, add_forecast
from tests.contracts.covering_trees import CoveringTrees
from tests.contracts.loss_contract import FollowingLossContract, LossContract, StandInContract
from tests.contracts.question_contract import QuestionContract
from tests.stats.test_statistics import OfFittedValues


class SquaredLoss(LossContract):
    def loss(self, y: np.ndarray, forecast: np.ndarray) -> np.ndarray:
        return (y - forecast) ** 2


class LogLoss(LossContract):
    """Forecasts are probabilities of the class 1."""

    def loss(self, y: np.ndarray, forecast: np.ndarray) -> np.ndarray:
        return -np.log(np.where(y > 0.0, forecast, 1.0 - forecast))

    def forecasts(self, forest: Any, X: np.ndarray) -> np.ndarray:
        return forest.predict_proba(X)[:, 1]

    def candidates(self, y: np.ndarray) -> np.ndarray:
        return np.linspace(0.005, 0.995, 199)


class TestKT(LogLoss):
    policy = KT
    slack = 1e-3  # alpha rows of each class that were not seen

    def estimator(self) -> Any:
        return AMFClassifier(1, random_state=0)


class TestProportions(LogLoss):
    policy = Proportions

    def estimator(self) -> Any:
        return MondrianForestClassifier(1, lifetime=5.0, random_state=0)


class TestSquared(SquaredLoss):
    policy = Squared

    def estimator(self) -> Any:
        return AMFRegressor(1, random_state=0)


class TestAverage(SquaredLoss):
    policy = Average

    def estimator(self) -> Any:
        return MondrianForestRegressor(1, lifetime=5.0, random_state=0)


class TestHuber(LossContract):
    policy = Huber
    slack = 1e-4

    def estimator(self) -> Any:
        return GeneralizedMondrianForestRegressor(1, loss="huber", random_state=0)

    def loss(self, y: np.ndarray, forecast: np.ndarray) -> np.ndarray:
        away = np.abs(y - forecast)
        return np.where(away <= 1.0, 0.5 * away**2, away - 0.5)


class TestPinball(LossContract):
    policy = Pinball

    def estimator(self) -> Any:
        return GeneralizedMondrianForestRegressor(
            1, loss="quantile", quantile=0.8, max_rows_per_leaf=256, random_state=0
        )

    def loss(self, y: np.ndarray, forecast: np.ndarray) -> np.ndarray:
        away = y - forecast
        return np.maximum(0.8 * away, -0.2 * away)


class TestOfMean(LossContract):
    """The logistic loss, of y z."""

    policy = OfMean

    def estimator(self) -> Any:
        return GeneralizedMondrianForestClassifier(1, loss="logistic", random_state=0)

    def loss(self, y: np.ndarray, forecast: np.ndarray) -> np.ndarray:
        return np.logaddexp(0.0, -y * forecast)

    def forecasts(self, forest: Any, X: np.ndarray) -> np.ndarray:
        return forest.decision_function(X)

    def candidates(self, y: np.ndarray) -> np.ndarray:
        return np.linspace(-5.0, 5.0, 201)


def test_a_convex_loss_has_the_number_of_its_place() -> None:
    numbers = [getattr(convex, name.upper()) for name in convex.LOSSES]
    assert numbers == list(range(len(convex.LOSSES)))


class TestWhole(StandInContract):
    policy = UnitWeightKT
    stands_for = KT

    def estimator(self) -> Any:
        return AMFClassifier(2, random_state=0)

    def stand_in(self, loss: Any) -> Any:
        return UnitWeightKT(loss.alpha, loss.n_classes * loss.alpha)


class TestDiscountedKT(FollowingLossContract):
    policy = DiscountedKT

    def estimator(self) -> Any:
        return CoveringTrees(AMFClassifier(2, drift="follow", random_state=0))


class TestDiscountedSquared(FollowingLossContract):
    policy = DiscountedSquared

    def estimator(self) -> Any:
        return CoveringTrees(AMFRegressor(2, drift="follow", random_state=0))


class TestValue(OfFittedValues):
    policy = Value
    hooks = LossContract.hooks


class Question(QuestionContract):
    hooks = (add_forecast, add_empty_forecast)


class TestDepth(Question):
    policy = Depth
    made_in = "dmondrian.ensemble.predict"

    def estimator(self) -> Any:
        return AMFRegressor(2, use_aggregation=False, calibrate=False, random_state=0)

    def ask(self, estimator: Any, X: np.ndarray) -> np.ndarray:
        return estimator.weighted_depth(X)

    def expected(self, tree: dict[str, np.ndarray], v: int, depth: int) -> tuple[float, float]:
        return depth, 0.0

    def answer(self, each: np.ndarray) -> np.ndarray:
        return each[..., 0].mean(axis=1)


class TestLabel(Question):
    policy = Label
    made_in = "dmondrian.ensemble.predict"

    def estimator(self) -> Any:
        return AMFRegressor(2, use_aggregation=False, calibrate=False, random_state=0)

    def ask(self, estimator: Any, X: np.ndarray) -> np.ndarray:
        return estimator.predict(X, return_std=True)[1]

    def expected(self, tree: dict[str, np.ndarray], v: int, depth: int) -> tuple[float, float]:
        n, total, squares = tree["stat"][v, :3]
        n_above, total_above, squares_above = tree["stat"][tree["parent"][v], :3]
        above = squares_above / n_above - (total_above / n_above) ** 2
        return total / n, (squares - total**2 / n + above) / max(n, 1.0)


class TestCell(Question):
    policy = Cell
    made_in = "dmondrian.joint_fit.cell_columns"

    def estimator(self) -> Any:
        return MondrianForestRegressor(
            2, aggregation="mean", domain="cube", lifetime=9.0, random_state=0
        )

    def ask(self, estimator: Any, X: np.ndarray) -> np.ndarray:
        return leaves_of(estimator.forest_, X)

    def expected(self, tree: dict[str, np.ndarray], v: int, depth: int) -> tuple[float, float]:
        return v, 0.0

    def answer(self, each: np.ndarray) -> np.ndarray:
        return each[..., 0]


class TestOccupied(TestCell):
    policy = Occupied

    def estimator(self) -> Any:
        return MondrianForestRegressor(2, aggregation="mean", lifetime=9.0, random_state=0)

    def ask(self, estimator: Any, X: np.ndarray) -> np.ndarray:
        return presence_of(estimator.forest_, X)

    def expected(self, tree: dict[str, np.ndarray], v: int, depth: int) -> tuple[float, float]:
        return 1.0, 0.0

    def test_rows_far_away_are_hardly_in_a_cell_with_rows(self) -> None:
        found = self.ask(self.fitted(), np.array([[9.0, 9.0, 9.0]], np.float32))
        assert (found >= 0.0).all()
        assert (found < 1e-6).all()
