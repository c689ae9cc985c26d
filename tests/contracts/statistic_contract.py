"""What every statistic of a node promises. Subclass it: name the policy and give an estimator."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dmondrian.tree.policies import count, is_pure, is_pure_with
from tests.contracts.growth_contract import cells
from tests.contracts.policy_contract import PolicyContract, rows, statistics_of


class StatisticContract(PolicyContract):
    hooks = (count, is_pure, is_pure_with)
    n_additive: ClassVar[int | None] = None  # leading numbers that add up over rows; None: all

    def test_a_node_holds_the_weight_of_its_rows(self) -> None:
        X = rows()
        w = np.random.default_rng(2).integers(1, 4, len(X)).astype(np.float64)
        for tree in statistics_of(self.fitted(X, w)):
            for v, inside in cells(tree, X):
                assert tree["stat"][v, 0] == w[inside].sum()

    def test_statistics_of_children_add_up(self) -> None:
        for tree in statistics_of(self.fitted()):
            inner = np.flatnonzero(tree["left"] >= 0)
            stat = tree["stat"][:, : self.n_additive]
            both = stat[tree["left"][inner]] + stat[tree["right"][inner]]
            np.testing.assert_allclose(both, stat[inner], rtol=1e-12, atol=1e-9)

    def test_whole_weights_equal_repeats(self) -> None:
        X = rows()
        w = np.random.default_rng(3).integers(1, 4, len(X))
        weighted = statistics_of(self.fitted(X, w.astype(np.float64)))
        repeated = statistics_of(self.fitted(np.repeat(X, w, axis=0)))
        for one, other in zip(weighted, repeated, strict=True):
            np.testing.assert_array_equal(one["left"], other["left"])
            np.testing.assert_allclose(
                one["stat"][:, : self.n_additive], other["stat"][:, : self.n_additive], rtol=1e-12
            )
