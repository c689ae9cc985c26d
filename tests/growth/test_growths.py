"""The contract of growth, on each policy."""

from __future__ import annotations

from dmondrian import AMFClassifier, MondrianForestClassifier, OnlineRandomForestClassifier
from dmondrian.growth.cube import Cube
from dmondrian.growth.fringe import Fringe
from dmondrian.growth.range import Range
from tests.contracts.growth_contract import GrowthContract


class TestRange(GrowthContract):
    policy = Range

    def estimator(self) -> AMFClassifier:
        return AMFClassifier(2, split_pure=True, random_state=0)


class TestCube(GrowthContract):
    policy = Cube

    def estimator(self) -> MondrianForestClassifier:
        return MondrianForestClassifier(2, domain="cube", lifetime=5.0, random_state=0)


class TestFringe(GrowthContract):
    policy = Fringe
    has_boxes = False

    def estimator(self) -> OnlineRandomForestClassifier:
        return OnlineRandomForestClassifier(2, random_state=0)
