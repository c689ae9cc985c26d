"""The covering trees of forests that follow a stream, as the contracts ask an estimator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from dmondrian.tree import nodes


class CoveringTrees:
    """An estimator with ``drift="follow"``, whose ``forest_`` are its oldest covering trees.

    These have learned all rows, as no other covering trees have.
    """

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._estimator, name)

    def set_params(self, **given: Any) -> CoveringTrees:
        self._estimator.set_params(**given)
        return self

    def fit(self, X: np.ndarray, y: np.ndarray) -> CoveringTrees:
        self._estimator.fit(X, y)
        return self

    def partial_fit(self, X: np.ndarray, y: np.ndarray, **given: Any) -> CoveringTrees:
        self._estimator.partial_fit(X, y, **given)
        return self

    @property
    def forest_(self) -> Any:
        members = self._estimator.forest_.members
        trees = [one.trees[place] for one in members for place in np.flatnonzero(one.births == 0)]
        assert len(trees) == len(members)
        return SimpleNamespace(
            policies=members[0]._policies,
            state=lambda: ({}, [nodes.fields(tree) for tree in trees]),
        )
