"""Leaves and paths of rows, against a walk of the trees that an estimator shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    MondrianForestRegressor,
    OnlineRandomForestClassifier,
)

RNG = np.random.default_rng(0)
X = RNG.random((300, 3)).astype(np.float32)
X[:, 2] = np.round(X[:, 2] * 32) / 32  # steps, which trees keep as small integers
NEW = np.concatenate([X[:50], RNG.normal(0.5, 1.0, (50, 3)).astype(np.float32)])
Y = (X[:, 0] > 0.4).astype(int)
TWO: dict[str, Any] = {"n_estimators": 2, "random_state": 0}
FORESTS = [
    AMFClassifier(**TWO, feature_scales=[1.0, 4.0, 0.5]),
    AMFClassifier(**TWO, drift="follow"),
    AMFRegressor(**TWO, domain="cube", clip=True),
    MondrianForestRegressor(**TWO, lifetime=3.0),
    OnlineRandomForestClassifier(**TWO),
]


def walk(tree: dict[str, Any], x: np.ndarray) -> list[int]:
    """Return the nodes that a row passes."""
    passed = [tree["root"]]
    while tree["left"][v := passed[-1]] >= 0:
        is_left = x[tree["feature"][v]] <= tree["threshold"][v]
        passed.append(int(tree["left" if is_left else "right"][v]))
    return passed


@pytest.mark.parametrize("forest", FORESTS, ids=lambda forest: type(forest).__name__)
def test_leaves_and_paths_are_those_of_a_walk(forest: Any) -> None:
    forest.fit(X, Y)
    rows = np.clip(NEW, 0.0, 1.0) if getattr(forest, "domain", "range") == "cube" else NEW
    leaves, (passed, first) = forest.apply(NEW), forest.decision_path(NEW)
    assert leaves.dtype == np.int64
    assert leaves.shape == (100, 2)
    assert passed.format == "csr"
    for t in range(2):
        tree = forest.nodes(t)
        assert first[t + 1] - first[t] == len(tree["left"])
        for r, x in enumerate(rows):
            way = walk(tree, x)
            assert leaves[r, t] == way[-1]
            found = passed.indices[passed.indptr[r] : passed.indptr[r + 1]]
            mine = found[(found >= first[t]) & (found < first[t + 1])] - first[t]
            assert sorted(way) == mine.tolist()
    assert set(passed.data) == {1}


def test_rows_that_were_learned_pass_the_nodes_that_they_passed() -> None:
    forest = AMFClassifier(**TWO, feature_scales=None).fit(X[:150], Y[:150])
    before, _ = forest.decision_path(X[:150])
    n_before = [len(forest.nodes(t)["left"]) for t in range(2)]
    forest.partial_fit(X[150:], Y[150:])
    passed, first = forest.decision_path(X[:150])
    old = np.concatenate([first[t] + np.arange(n) for t, n in enumerate(n_before)])
    assert (passed[:, old] != before).nnz == 0
    assert passed.nnz > before.nnz


def test_trees_without_rows_have_no_leaves() -> None:
    forest = AMFClassifier(**TWO).partial_fit(X[:1], Y[:1], classes=[0, 1], sample_weight=[0.0])
    assert (forest.apply(NEW) == -1).all()
    passed, first = forest.decision_path(NEW)
    assert passed.shape == (100, 0)
    assert first.tolist() == [0, 0, 0]
