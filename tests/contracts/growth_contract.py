"""What every growth promises. Subclass it: name the policy and give an estimator."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dmondrian.tree.policies import branch_off, learn, parting, reads_boxes
from tests.contracts.policy_contract import PolicyContract, labels, rows, statistics_of


class GrowthContract(PolicyContract):
    hooks = (learn, parting, branch_off, reads_boxes)
    has_boxes: ClassVar[bool] = True

    def test_nodes_are_a_binary_tree(self) -> None:
        for tree in statistics_of(self.fitted()):
            left, right, parent = (tree[name].astype(np.int64) for name in _LINKS)
            inner = np.flatnonzero(left >= 0)
            assert len(inner) > 0
            assert (right[left < 0] == -1).all()
            assert (parent[left[inner]] == inner).all()
            assert (parent[right[inner]] == inner).all()
            assert (parent == -1).sum() == 1
            assert len(left) == 2 * len(inner) + 1

    def test_each_row_is_inside_the_boxes_on_its_way(self) -> None:
        X = rows()
        for tree in statistics_of(self.fitted(X)):
            for v, inside in cells(tree, X):
                if self.has_boxes and len(inside):
                    np.testing.assert_array_equal(tree["lower"][v], X[inside].min(axis=0))
                    np.testing.assert_array_equal(tree["upper"][v], X[inside].max(axis=0))

    def test_split_times_increase_downward(self) -> None:
        for tree in statistics_of(self.fitted()):
            if "time" in tree:
                above = tree["parent"][tree["parent"] >= 0]
                below = np.flatnonzero(tree["parent"] >= 0)
                assert (tree["time"][below] >= tree["time"][above]).all()

    def test_splits_stay_as_more_rows_come(self) -> None:
        X = rows()
        forest = self.fitted(X)
        before = [{k: v.copy() for k, v in tree.items()} for tree in statistics_of(forest)]
        more = rows(1)
        forest.partial_fit(more, labels(forest, more))
        for old, new in zip(before, statistics_of(forest), strict=True):
            split = np.flatnonzero(old["left"] >= 0)
            assert len(new["left"]) >= len(old["left"])
            for name in ("feature", "threshold"):
                np.testing.assert_array_equal(new[name][split], old[name][split])

    def test_a_cap_on_the_nodes_holds_and_rows_are_still_learned(self) -> None:
        X = rows()
        forest = self.estimator().set_params(max_nodes=9)
        forest.fit(X, labels(forest, X))
        for tree in statistics_of(forest):
            assert len(tree["left"]) <= 9
            assert tree["stat"][tree["parent"] == -1, 0] > 0.0
        assert np.isfinite(np.asarray(forest.predict(X), np.float64)).all()


_LINKS = ("left", "right", "parent")


def cells(tree: dict[str, np.ndarray], X: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return each node with the numbers of the rows that pass it."""
    (root,) = np.flatnonzero(tree["parent"] == -1)
    found, stack = [], [(int(root), np.arange(len(X)))]
    while stack:
        v, inside = stack.pop()
        found.append((v, inside))
        if tree["left"][v] >= 0:
            goes_left = X[inside, tree["feature"][v]] <= tree["threshold"][v]
            stack.append((int(tree["left"][v]), inside[goes_left]))
            stack.append((int(tree["right"][v]), inside[~goes_left]))
    return found
