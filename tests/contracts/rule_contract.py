"""What every rule promises. Subclass it: name the policy and give an estimator."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import pytest

from dmondrian.ensemble.predictor import predictor
from dmondrian.tree.policies import (
    add_branch,
    add_leaf,
    begin,
    ignores_above,
    pass_node,
    reads_siblings,
)
from tests.contracts.policy_contract import PolicyContract, is_classifier, labels, rows


class RuleContract(PolicyContract):
    hooks = (begin, pass_node, add_branch, add_leaf, reads_siblings, ignores_above)

    def ask(self, forest, X: np.ndarray) -> np.ndarray:
        """Return predictions: probabilities [n, 2], or numbers [n]."""
        ask = forest.predict_proba if is_classifier(forest) else forest.predict
        return np.asarray(ask(X), np.float64)

    def test_predictions_are_means_of_labels(self) -> None:
        forest, X = self.fitted(), rows(5)
        found = self.ask(forest, X)
        if is_classifier(forest):
            assert (found >= 0.0).all()
            np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)
        else:
            y = labels(forest, rows())
            assert (found >= y.min() - 1e-9).all()
            assert (found <= y.max() + 1e-9).all()

    def test_one_label_everywhere_is_predicted_everywhere(self) -> None:
        forest, X = self.estimator(), rows()
        if is_classifier(forest):
            forest.partial_fit(X, np.full(len(X), 1.0), classes=[-1.0, 1.0])
            assert (self.ask(forest, rows(6))[:, 1] > 0.5).all()
        else:
            forest.fit(X, np.full(len(X), 2.5))
            np.testing.assert_allclose(self.ask(forest, rows(6)), 2.5, rtol=1e-9)

    def test_rows_are_predicted_one_by_one_as_together(self) -> None:
        forest, X = self.fitted(), rows(7)
        single = np.concatenate([self.ask(forest, X[i : i + 1]) for i in range(40)])
        assert single.tobytes() == self.ask(forest, X)[:40].tobytes()

    def test_a_restored_forest_predicts_the_same(self) -> None:
        forest, X = self.fitted(), rows(8)
        restored = pickle.loads(pickle.dumps(forest))
        assert self.ask(restored, X).tobytes() == self.ask(forest, X).tobytes()


class FrozenRuleContract:
    """Of a rule that writes the leaves of frozen trees, and that nothing else is asked by.

    Subclass it, name the policy's type, and give an estimator that freezes trees by it.
    """

    policy: ClassVar[type]
    hooks: ClassVar[Iterable[Any]] = (begin, pass_node, add_leaf)

    def estimator(self) -> Any:
        """Return a new estimator of two trees."""
        raise NotImplementedError

    def test_every_hook_of_the_kind_is_answered(self) -> None:
        missing = [
            hook.__name__ for hook in self.hooks if self.policy not in hook.declared.implementations
        ]
        assert missing == []

    def test_frozen_trees_answer_as_the_trees_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        estimator, X = self.estimator(), rows()
        estimator.fit(X, labels(estimator, X))
        frozen, asked = copy.deepcopy(estimator), rows(7)
        written = []
        freeze = predictor.freeze

        def noted(loss: Any, rule: Any, *others: Any) -> Any:
            written.append(type(rule))
            return freeze(loss, rule, *others)

        monkeypatch.setattr(predictor, "freeze", noted)
        frozen.forest_.freeze()
        assert self.policy in written
        assert np.array_equal(frozen.predict(asked), estimator.predict(asked))
        if is_classifier(estimator):
            together = estimator.predict_proba(asked)
            assert frozen.predict_proba(asked).tobytes() == together.tobytes()
