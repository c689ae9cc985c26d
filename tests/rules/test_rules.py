"""The contract of rules, on each policy."""

from __future__ import annotations

from typing import Any

import numpy as np

from dmondrian import AMFClassifier, MondrianForestClassifier, MondrianForestRegressor
from dmondrian.rules.aggregate import Aggregate
from dmondrian.rules.cell_gaussian import Cells
from dmondrian.rules.gaussian import GaussianHierarchy
from dmondrian.rules.kneser_ney import KneserNey
from dmondrian.rules.large_shares import LargeShares
from dmondrian.rules.leaf import Leaf, Vote
from dmondrian.tree.policies import (
    add_branch,
    add_leaf,
    begin,
    ignores_above,
    pass_node,
    reads_siblings,
)
from tests.contracts.question_contract import QuestionContract
from tests.contracts.rule_contract import FrozenRuleContract, RuleContract


class TestAggregate(RuleContract):
    policy = Aggregate

    def estimator(self) -> Any:
        return AMFClassifier(2, random_state=0)


class TestLeaf(RuleContract):
    policy = Leaf

    def estimator(self) -> Any:
        return MondrianForestRegressor(2, aggregation="mean", lifetime=9.0, random_state=0)


class TestVote(RuleContract):
    policy = Vote

    def estimator(self) -> Any:
        return MondrianForestClassifier(2, aggregation="vote", lifetime=9.0, random_state=0)


class TestKneserNey(RuleContract):
    policy = KneserNey

    def estimator(self) -> Any:
        return MondrianForestClassifier(2, aggregation="hierarchy", random_state=0)


class TestGaussianHierarchy(RuleContract):
    policy = GaussianHierarchy

    def estimator(self) -> Any:
        return MondrianForestRegressor(2, aggregation="hierarchy", random_state=0)


class TestLargeShares(FrozenRuleContract):
    policy = LargeShares

    def estimator(self) -> Any:
        return AMFClassifier(2, drift="follow", random_state=0)


class TestCells(QuestionContract):
    """It has no sums, only lists: a deviation is made of them."""

    policy = Cells
    hooks = (begin, pass_node, add_branch, add_leaf, reads_siblings, ignores_above)
    made_in = "dmondrian.uncertainty.gaussian_mixture"

    def estimator(self) -> Any:
        return MondrianForestRegressor(
            2, aggregation="mean", domain="cube", lifetime=9.0, random_state=0
        )

    def ask(self, estimator: Any, X: np.ndarray) -> np.ndarray:
        return estimator.predict(X, return_std=True)[1]

    def expected(self, tree: dict[str, np.ndarray], v: int, depth: int) -> tuple[float, float]:
        n, total, squares = tree["stat"][v, :3]
        return total / n, max(squares / n - (total / n) ** 2, 0.0)
