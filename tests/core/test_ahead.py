"""Ways that are noted when rows are looked ahead for: deeper trees, and rows beyond a block."""

from __future__ import annotations

import numpy as np
import pytest

from dmondrian import AMFClassifier, MondrianForestClassifier
from dmondrian.core import nodes
from dmondrian.core.ahead import N_AHEAD, N_NOTED
from dmondrian.ensemble import Ensemble
from dmondrian.fixed_point import whole_shares

N = 500


def chain(estimator: AMFClassifier | MondrianForestClassifier) -> tuple[Ensemble, np.ndarray]:
    """Trees that mostly part the largest point from all others, and those points."""
    X = (2.0 ** (126 - 0.5 * np.arange(N))).astype(np.float32)[:, None]
    forest = Ensemble(estimator._forest_parameters(1, 2), range(3))
    forest.update(X, np.arange(N) % 2 * 1.0)
    return forest, X


def depth_of(tree: nodes.Tree) -> int:
    depths, deepest = {int(tree.head_i[nodes.ROOT]): 0}, 0
    waiting = list(depths)
    while waiting:
        v = waiting.pop()
        deepest = max(deepest, depths[v])
        for child in tree.i[v, [nodes.LEFT, nodes.RIGHT]].tolist():
            if child >= 0:
                depths[child] = depths[v] + 1
                waiting.append(child)
    return deepest


@pytest.mark.parametrize(
    "estimator",
    [
        AMFClassifier(random_state=0, predict_extension="leaf"),
        AMFClassifier(random_state=0, predict_extension="expected"),
        MondrianForestClassifier(random_state=0, aggregation="hierarchy", lifetime=None),
    ],
    ids=["leaf", "expected", "hierarchy"],
)
def test_ways_that_are_noted_are_those_that_splits_tell(
    estimator: AMFClassifier | MondrianForestClassifier,
) -> None:
    forest, X = chain(estimator)
    assert min(depth_of(tree) for tree in forest.trees) > N_NOTED
    assert N > N_AHEAD  # so a second block comes, over the notes of the first
    asked = np.concatenate([X, 0.75 * X]).astype(np.float32)
    batch = forest.predict_sums(asked).total
    alone = np.concatenate([forest.predict_sums(row[None]).total for row in asked])
    assert batch.tobytes() == alone.tobytes()
    lifetime = np.array([forest.parameters.lifetime_at(float(N))])
    by_tree = forest.answers(asked, forest.policies, lifetime, 2)[:, :, 0]
    assert np.allclose(by_tree.sum(axis=0), batch, rtol=1e-14)
    for i in (0, 30, N - 1, N, 2 * N - 1):  # of rows that are learned next no way is noted
        other, _ = chain(estimator)
        first = np.zeros(1, np.int64)
        told, _ = other.answer_and_learn(asked[i : i + 1], np.zeros(1), None, 1, first, lifetime)
        assert (told[0] == sum(whole_shares(answer[i : i + 1])[0] for answer in by_tree)).all()
