"""What every policy promises: hooks are answered; chunks, threads and zero weights change nothing.

The contracts of growths, statistics, losses and rules subclass this one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

N_ROWS = 240


def rows(seed: int = 0, n: int = N_ROWS) -> np.ndarray:
    """Return float32 [n, 3] in the unit cube, some of them twice."""
    X = np.random.default_rng(seed).random((n, 3)).astype(np.float32)
    X[n // 2 : n // 2 + 20] = X[:20]
    return X


def labels(estimator: Any, X: np.ndarray) -> np.ndarray:
    """Return labels that depend on the rows: of two classes, or numbers."""
    signal = X[:, 0] + (X[:, 1] > 0.5) + 0.2 * np.sin(40.0 * X[:, 2])
    return np.where(signal > 1.0, 1.0, -1.0) if is_classifier(estimator) else 4.0 * signal


def is_classifier(estimator: Any) -> bool:
    return getattr(estimator, "_estimator_type", None) == "classifier" or hasattr(
        estimator, "predict_proba"
    )


def state_of(estimator: Any) -> list[dict[str, bytes]]:
    """Return the bytes of all trees."""
    return [
        {name: array.tobytes() for name, array in tree.items()}
        for tree in estimator.forest_.state()[1]
    ]


def statistics_of(estimator: Any) -> list[dict[str, np.ndarray]]:
    """Return the arrays of all trees."""
    return list(estimator.forest_.state()[1])


class PolicyContract:
    """Subclass it, name the policy's type, and give an estimator that uses it."""

    policy: ClassVar[type]
    hooks: ClassVar[Iterable[Any]]  # that every policy of the kind answers

    def estimator(self) -> Any:
        """Return a new estimator of two trees whose forest uses the policy."""
        raise NotImplementedError

    def fitted(self, X: np.ndarray | None = None, w: np.ndarray | None = None) -> Any:
        """Return the estimator after these rows, by default those of :func:`rows`."""
        estimator, X = self.estimator(), rows() if X is None else X
        return estimator.partial_fit(
            X, labels(estimator, X), sample_weight=w, **_classes(estimator)
        )

    def learned(self, estimator: Any) -> list[dict[str, bytes]]:
        """Return what a row without weight must not change, by default everything."""
        return state_of(estimator)

    def test_the_estimator_uses_the_policy(self) -> None:
        policies = self.fitted().forest_.policies
        assert self.policy in [type(policy) for policy in policies]

    def test_every_hook_of_the_kind_is_answered(self) -> None:
        missing = [
            hook.__name__ for hook in self.hooks if self.policy not in hook.declared.implementations
        ]
        assert missing == []

    def test_chunks_and_threads_change_no_byte(self) -> None:
        X = rows()
        whole, parts = self.fitted(X), self.estimator().set_params(n_jobs=2)
        y = labels(parts, X)
        for first, last in ((0, 1), (1, 2), (2, 9), (9, 100), (100, N_ROWS)):
            parts.partial_fit(X[first:last], y[first:last], **_classes(parts))
        assert state_of(parts) == state_of(whole)

    def test_rows_without_weight_are_not_learned(self) -> None:
        X = rows()
        plain = self.fitted(X)
        mixed = np.repeat(X, 2, axis=0)
        mixed[1::2] = 0.5
        w = np.tile([1.0, 0.0], N_ROWS)
        other, y = self.estimator(), np.repeat(labels(plain, X), 2)
        other.partial_fit(mixed, y, sample_weight=w, **_classes(other))
        assert self.learned(other) == self.learned(plain)


def _classes(estimator: Any) -> dict[str, Any]:
    return {"classes": [-1.0, 1.0]} if is_classifier(estimator) else {}
