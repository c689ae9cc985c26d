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
from dmondrian.losses.average import Average
from dmondrian.losses.convex import OfMean
from dmondrian.losses.huber import Huber
from dmondrian.losses.kt import KT
from dmondrian.losses.proportions import Proportions
from dmondrian.losses.quantile import Pinball
from dmondrian.losses.squared import Squared
from tests.contracts.loss_contract import LossContract


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
