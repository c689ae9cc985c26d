"""What every estimator promises. Subclass it and give the estimator."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import dmondrian
from tests.contracts.policy_contract import state_of


class EstimatorContract:
    """Labels are classes if the estimator predicts classes, else numbers."""

    ask: ClassVar[str] = "predict"  # the method that is compared
    is_classifier: ClassVar[bool] = False
    ignores_labels: ClassVar[bool] = False

    def estimator(self) -> Any:
        """Return a new estimator, small and with a seed."""
        raise NotImplementedError

    def rows(self, n: int = 400) -> tuple[np.ndarray, np.ndarray]:
        """Return rows of the unit cube, float64 [n, 4], and their labels."""
        X = np.random.default_rng(0).random((n, 4))
        signal = X[:, 0] + (X[:, 1] > 0.5)
        return X, (signal > 1.0).astype(np.int64) if self.is_classifier else signal

    def answers(self, estimator: Any, X: np.ndarray) -> bytes:
        found = getattr(estimator, self.ask)(X)
        return np.asarray(found.toarray() if hasattr(found, "toarray") else found).tobytes()

    def given(self) -> dict[str, Any]:
        """Return what a first `partial_fit` needs beside rows and labels."""
        return {"classes": [0, 1]} if self.is_classifier else {}

    def test_every_parameter_has_a_constraint_and_a_line_in_the_docstring(self) -> None:
        estimator = self.estimator()
        parameters = set(estimator.get_params())
        assert parameters == set(type(estimator)._parameter_constraints)
        assert all(name in (type(estimator).__doc__ or "") for name in parameters)

    def test_it_cannot_be_asked_before_it_has_learned(self) -> None:
        X, _ = self.rows()
        with pytest.raises(NotFittedError):
            self.answers(self.estimator(), X)
        with pytest.raises(NotFittedError):
            self.answers(clone(self.estimator().fit(*self.rows())), X)

    def test_chunks_and_threads_change_no_byte(self) -> None:
        X, y = self.rows()
        whole = self.estimator().partial_fit(X, y, **self.given())
        parts = self.estimator().set_params(n_jobs=2)
        for first, last in ((0, 1), (1, 2), (2, 40), (40, 133), (133, len(X))):
            parts.partial_fit(X[first:last], y[first:last], **self.given())
        assert state_of(parts) == state_of(whole)
        assert self.answers(parts, X) == self.answers(whole, X)

    def test_pickle_joblib_copy_and_save_keep_every_byte(self, tmp_path: Path) -> None:
        X, y = self.rows()
        forest = self.estimator().fit(X[:200], y[:200])
        stream = io.BytesIO()
        joblib.dump(forest, stream)
        stream.seek(0)
        forest.save(tmp_path / "model")
        copies = [
            joblib.load(stream),
            pickle.loads(pickle.dumps(forest)),
            copy.deepcopy(forest),
            dmondrian.load(tmp_path / "model"),
        ]
        before = self.answers(forest, X)
        forest.partial_fit(X[200:], y[200:])
        for other in copies:
            assert self.answers(other, X) == before != self.answers(forest, X)
            other.partial_fit(X[200:], y[200:])
            assert state_of(other) == state_of(forest)

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda X, y: (np.where(np.arange(4) == 2, np.nan, X), y),
            lambda X, y: (np.where(np.arange(4) == 1, np.inf, X), y),
            lambda X, y: (X[:, :3], y),
            lambda X, y: (np.hstack([X, X]), y),
            lambda X, y: (X[:-1], y),
            lambda X, y: (X[:0], y[:0]),
            lambda X, y: (X[0], y[:1]),
            lambda X, y: (np.char.add("x", X.astype(str)), y),
        ],
        ids=["nan", "inf", "few", "many", "lengths", "empty", "1d", "text"],
    )
    def test_a_refused_call_learns_nothing(self, spoil: Callable[..., Any]) -> None:
        X, y = self.rows()
        forest = self.estimator().fit(X, y)
        before, answers = state_of(forest), self.answers(forest, X)
        bad, labels = spoil(X.copy(), y)
        if self.ignores_labels and np.shape(bad) == (len(X) - 1, X.shape[1]):
            forest.partial_fit(bad, labels)  # whatever the labels are
            return
        with pytest.raises(ValueError):  # each has a text of its own
            forest.partial_fit(bad, labels)
        assert state_of(forest) == before
        assert self.answers(forest, X) == answers
