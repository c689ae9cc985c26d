"""What a policy promises that is asked of trees, and learns nothing.

Subclass it: name the policy, the module that makes one, an estimator, and what is answered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.contracts.growth_contract import cells
from tests.contracts.policy_contract import labels, rows, state_of, statistics_of


class QuestionContract:
    """The estimator has two trees, each of whose predictions is that of a row's leaf."""

    policy: ClassVar[type]
    hooks: ClassVar[Iterable[Any]]
    made_in: ClassVar[str]  # the module that makes the policy to ask with it

    def estimator(self) -> Any:
        """Return a new estimator."""
        raise NotImplementedError

    def ask(self, estimator: Any, X: np.ndarray) -> np.ndarray:
        """Return what a fitted estimator answers by the policy, [n] or [n, 2] of each tree."""
        raise NotImplementedError

    def expected(self, tree: dict[str, np.ndarray], v: int, depth: int) -> tuple[float, float]:
        """Return two numbers of a tree in leaf ``v``, from which :meth:`answer` comes."""
        raise NotImplementedError

    def answer(self, each: np.ndarray) -> np.ndarray:
        """Return what :meth:`ask` does, of the numbers of all trees, [n, 2, 2].

        By default they are mean and variance of labels, and asked for is the deviation.
        """
        mean, variance = each[..., 0], each[..., 1]
        return np.sqrt(variance.mean(axis=1) + mean.var(axis=1))

    def fitted(self) -> Any:
        estimator, X = self.estimator(), rows()
        return estimator.fit(X, labels(estimator, X))

    def test_every_hook_of_the_kind_is_answered(self) -> None:
        assert [
            h.__name__ for h in self.hooks if self.policy not in h.declared.implementations
        ] == []

    def test_the_policy_is_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = []

        def make(*values: Any) -> Any:
            made.append(self.policy(*values))
            return made[-1]

        estimator = self.fitted()
        monkeypatch.setattr(f"{self.made_in}.{self.policy.__name__}", make)
        self.ask(estimator, rows(3)[:9])
        assert made

    def test_answers_are_those_of_the_leaves(self) -> None:
        estimator, X = self.fitted(), rows()
        each = np.zeros((len(X), 2, 2))
        for t, tree in enumerate(statistics_of(estimator)):
            depths = {-1: -1}
            for v, inside in cells(tree, X):
                depths[v] = depths[int(tree["parent"][v])] + 1
                if tree["left"][v] < 0 and len(inside):
                    each[inside, t] = self.expected(tree, v, depths[v])
        np.testing.assert_allclose(self.ask(estimator, X), self.answer(each), rtol=1e-9, atol=1e-7)

    def test_questions_change_no_byte_and_rows_are_answered_one_by_one_as_together(self) -> None:
        estimator, X = self.fitted(), rows(7)[:20]
        before = state_of(estimator)
        together = self.ask(estimator, X)
        single = np.concatenate([self.ask(estimator, X[i : i + 1]) for i in range(len(X))])
        assert single.tobytes() == together.tobytes()
        assert state_of(estimator) == before
