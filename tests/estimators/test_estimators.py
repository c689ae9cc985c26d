"""The contract of estimators, on each of them."""

from __future__ import annotations

from typing import Any

import pytest

import dmondrian
from dmondrian.estimators import ALGORITHMS
from tests.contracts.estimator_contract import EstimatorContract


class Classifier(EstimatorContract):
    ask = "predict_proba"
    is_classifier = True


class TestAMFClassifier(Classifier):
    def estimator(self) -> Any:
        return dmondrian.AMFClassifier(3, random_state=4)


class TestAMFRegressor(EstimatorContract):
    def estimator(self) -> Any:
        return dmondrian.AMFRegressor(3, random_state=4)


class TestMondrianForestClassifier(Classifier):
    def estimator(self) -> Any:
        return dmondrian.MondrianForestClassifier(3, random_state=4)


class TestMondrianForestRegressor(EstimatorContract):
    def estimator(self) -> Any:
        return dmondrian.MondrianForestRegressor(3, random_state=4)


class TestGeneralizedMondrianForestClassifier(Classifier):
    def estimator(self) -> Any:
        return dmondrian.GeneralizedMondrianForestClassifier(3, random_state=4)


class TestGeneralizedMondrianForestRegressor(EstimatorContract):
    def estimator(self) -> Any:
        return dmondrian.GeneralizedMondrianForestRegressor(3, random_state=4)


class TestOnlineRandomForestClassifier(Classifier):
    def estimator(self) -> Any:
        return dmondrian.OnlineRandomForestClassifier(3, random_state=4)


class TestOnlineRandomForestRegressor(EstimatorContract):
    def estimator(self) -> Any:
        return dmondrian.OnlineRandomForestRegressor(3, random_state=4)


class TestMondrianKernelClassifier(Classifier):
    ask = "decision_function"

    def estimator(self) -> Any:
        return dmondrian.MondrianKernelClassifier(3, random_state=4)


class TestMondrianKernelRegressor(EstimatorContract):
    def estimator(self) -> Any:
        return dmondrian.MondrianKernelRegressor(3, random_state=4)


class TestMondrianDensity(EstimatorContract):
    ask = "score_samples"
    ignores_labels = True

    def estimator(self) -> Any:
        return dmondrian.MondrianDensity(3, random_state=4)


class TestMondrianFeatures(EstimatorContract):
    ask = "transform"
    ignores_labels = True

    def estimator(self) -> Any:
        return dmondrian.MondrianFeatures(3, random_state=4)


@pytest.mark.parametrize("kind", ALGORITHMS.values(), ids=str)
def test_every_estimator_is_held_to_the_contract(kind: type) -> None:
    held = globals()[f"Test{kind.__name__}"]
    assert type(held().estimator()) is kind
