"""The contract of rules, on each policy."""

from __future__ import annotations

from typing import Any

from dmondrian import AMFClassifier, MondrianForestClassifier, MondrianForestRegressor
from dmondrian.rules.aggregate import Aggregate
from dmondrian.rules.gaussian import GaussianHierarchy
from dmondrian.rules.kneser_ney import KneserNey
from dmondrian.rules.leaf import Leaf, Vote
from tests.contracts.rule_contract import RuleContract


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
