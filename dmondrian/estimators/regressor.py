"""Base class of the forest regressors: learning, and the predicted mean.

Relies on :class:`dmondrian.estimators.base.BaseForest`.

Shapes: n rows, d features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin

from dmondrian.ensemble.settings.numeric_limits import LARGEST_TARGET
from dmondrian.errors import DataError
from dmondrian.estimators._sklearn_private import fit_context
from dmondrian.estimators.base import BaseForest
from dmondrian.estimators.row_parts import budget_of, rows_of
from dmondrian.estimators.sample_weight import check_some_weight
from dmondrian.estimators.single_row import row_by_row


class ForestRegressor(RegressorMixin, BaseForest):
    """Base of the regressors; not to be used directly."""

    @fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        max_rows: int | None = None,
        time_budget: float | None = None,
    ) -> Self:
        """Learn rows from nothing, in their order.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            Taken as float32. Splits follow the ranges of the columns: scale them.
        y : array-like of shape (n,)
        sample_weight : array-like of shape (n,), optional
            Non-negative; a whole weight w equals w repeats of the row (to the byte up to
            256, beyond that by a closed form that differs in the last digits).
        max_rows : int, optional
            Learn the first rows alone, so many.
        time_budget : float, optional
            Seconds after which no more rows are begun; those left are passed over, with a warning.
            Settings that are chosen from the first rows are chosen to the end, which may take
            longer. ``n_samples_fit_`` is how many rows ``fit`` learned, which depends on the
            machine; the forest is that of these rows, and ``partial_fit`` goes on with the others.

        Returns
        -------
        This estimator
        """
        return self._fit(X, y, sample_weight, None, max_rows, time_budget)

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        times: Any = None,
        max_rows: int | None = None,
        time_budget: float | None = None,
    ) -> Self:
        """Do what :meth:`fit` does; ``times`` are those of estimators that take them."""
        budget = budget_of(time_budget)
        with self._learner(anew=True) as learner:
            X, y, w = learner._validate_rows(X, y, sample_weight, first=True, numeric=True)
            n = rows_of(max_rows, len(y))
            check_some_weight(w if w is None else w[:n])
            y = _bounded(y)
            learner._take_times(times, len(y))
            learner._check_budget(budget)
            learner._learn_all(X[:n], y[:n], None if w is None else w[:n], 0)
        return self

    @row_by_row
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn more rows, in their order; parameters as in :meth:`fit`."""
        return self._fit_more(X, y, sample_weight)

    def _fit_more(self, X: Any, y: Any, sample_weight: Any, times: Any = None) -> Self:
        """Do what :meth:`partial_fit` does; ``times`` are those of estimators that take them."""
        with self._learner(anew=False) as learner:
            first = learner is not self
            if first:
                learner._check_stream()
            else:
                learner._check_unchanged()
            X, y, w = learner._validate_rows(X, y, sample_weight, first=first, numeric=True)
            y = _bounded(y)
            learner._take_times(times, len(y))
            learner._learn(X, y, w, 0, first=first)
        return self

    def _checked_labels(self, y: np.ndarray) -> np.ndarray:
        """Return encoded labels, float64 [n]; refuse invalid ones."""
        return np.asarray(_bounded(y), np.float64)

    def _label_finder(self) -> Callable[[Any], float | None]:
        return _bounded_number

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted mean of each row.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        float64 array of shape (n,)
        """
        return self._mean_prediction(X)[:, 0]

    def _node_forecasts(self, stat: np.ndarray, offset: float) -> dict[str, np.ndarray]:
        seen = stat[:, 0] > 0.0  # a cell of the cube may have no rows
        means = np.full(len(stat), np.nan)
        return {"mean": offset + np.divide(stat[:, 1], stat[:, 0], out=means, where=seen)}


def _bounded(y: np.ndarray) -> np.ndarray:
    """Return targets; refuse missing ones, and those whose squares overflow."""
    if y.dtype.kind not in "biuf":
        y = _numbers(y)
    largest = float(np.abs(y).max(initial=0.0))
    if math.isnan(largest):  # scikit-learn looks for NaN before texts become numbers
        raise DataError("y contains NaN: leave out rows whose label is not known")
    if largest > LARGEST_TARGET:
        raise DataError(
            f"y has a value of size {largest:.3g}, expected at most {LARGEST_TARGET:.0e}: "
            "scale the target"
        )
    return y


def _numbers(y: np.ndarray) -> np.ndarray:
    """Return texts or objects converted to float64; refuse non-numbers."""
    if y.dtype.kind in "OUS":
        try:
            return y.astype(np.float64)
        except (TypeError, ValueError):
            pass  # no numbers
    raise DataError(
        f"y has values of dtype {y.dtype}, and a regressor learns numbers: convert them, or use a "
        "classifier"
    )


def _bounded_number(y: Any) -> float | None:
    """Return a target as :func:`_bounded` does; None if it is no number."""
    is_sound = not isinstance(y, str) and abs(y) <= LARGEST_TARGET
    return float(y) if is_sound else None
