"""The contract of statistics, on each policy."""

from __future__ import annotations

from typing import Any

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestRegressor,
    MondrianKernelRegressor,
)
from dmondrian.stats.cell_values import Values
from dmondrian.stats.counts import Counts
from dmondrian.stats.discounted_counts import DiscountedCounts
from dmondrian.stats.discounted_moments import DiscountedMoments
from dmondrian.stats.labels import Labels
from dmondrian.stats.moments import Moments
from dmondrian.tree.policies import count, is_pure, is_pure_with
from tests.contracts.covering_trees import CoveringTrees
from tests.contracts.policy_contract import PolicyContract
from tests.contracts.statistic_contract import StatisticContract


class TestCounts(StatisticContract):
    policy = Counts

    def estimator(self) -> Any:
        return AMFClassifier(2, random_state=0)


class TestMoments(StatisticContract):
    policy = Moments
    n_additive = 3  # behind them the cumulated price

    def estimator(self) -> Any:
        return AMFRegressor(2, random_state=0)


class TestDiscountedCounts(StatisticContract):
    policy = DiscountedCounts
    n_additive = 3  # behind them memories that forget

    def estimator(self) -> Any:
        return CoveringTrees(AMFClassifier(2, drift="follow", random_state=0))


class TestDiscountedMoments(StatisticContract):
    policy = DiscountedMoments
    n_additive = 3  # as above

    def estimator(self) -> Any:
        return CoveringTrees(AMFRegressor(2, drift="follow", random_state=0))


class TestLabels(StatisticContract):
    policy = Labels
    n_additive = 3  # behind them a bounded sketch

    def estimator(self) -> Any:
        return GeneralizedMondrianForestRegressor(2, loss="quantile", random_state=0)


class OfFittedValues(PolicyContract):
    """A value that is fitted is no sum over rows, so the contract of sums is not its own."""

    def estimator(self) -> Any:
        return MondrianKernelRegressor(2, lifetime=3.0, random_state=0)

    def learned(self, estimator: Any) -> list[dict[str, bytes]]:
        """Return the cells alone: a row without weight opens none, but takes a place in a batch."""
        return [
            {name: array for name, array in tree.items() if name != "stat"}
            for tree in super().learned(estimator)
        ]


class TestValues(OfFittedValues):
    policy = Values
    hooks = (count, is_pure, is_pure_with)
