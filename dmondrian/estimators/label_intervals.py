"""Quantiles and intervals of forests whose cells keep labels.

Relies on :mod:`dmondrian.uncertainty.label_mixture` and on :mod:`dmondrian.uncertainty.conformal`.

Shapes: n rows, d features, q levels, m rows held out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dmondrian.ensemble.settings.lifetime import check_lifetimes
from dmondrian.errors import ParameterError
from dmondrian.estimators.generalized import GeneralizedMondrianForest
from dmondrian.estimators.one_state import in_one_state
from dmondrian.uncertainty.conformal import conformal_quantile, probability
from dmondrian.uncertainty.gaussian_mixture import check_levels
from dmondrian.uncertainty.label_mixture import label_quantiles


class LabelIntervals(GeneralizedMondrianForest):
    """Mixin with quantiles and intervals; not to be used directly."""

    _forgets: ClassVar[tuple[str, ...]] = ("interval_scores_", "interval_coverage_")
    interval_scores_: np.ndarray
    interval_coverage_: float

    @in_one_state
    def predict_quantiles(
        self, X: Any, quantiles: Iterable[float], lifetime: float | None = None
    ) -> np.ndarray:
        """Return quantiles of the labels of the cells of each row, mixed over trees.

        Any levels, for any loss whose cells keep labels (quantile, Huber, your own with a
        derivative). ``predict`` returns for a quantile the mean over trees of the cells'
        quantiles, as Z24 does, which are too narrow in small cells. The mixture also has the
        variation between trees. Neither is calibrated, see :meth:`calibrate_intervals` and
        benchmarks/reports/generalized.md.

        Parameters
        ----------
        X : array-like of shape (n, d)
        quantiles : iterable of float
            Increasing, in (0, 1).
        lifetime : float, optional
            Lifetime to predict at; by default the one that ``predict`` uses.

        Returns
        -------
        float64 array of shape (n, q), each row increasing

        Raises
        ------
        ParameterError
            If quantiles do not increase within (0, 1), or cells keep no labels.

        References
        ----------
        Meinshausen (2006), "Quantile Regression Forests".
        """
        levels = check_levels(quantiles)
        return self._quantiles_of(self._check_rows(X), levels, lifetime)

    def _quantiles_of(
        self, rows: np.ndarray, levels: np.ndarray, lifetime: float | None = None
    ) -> np.ndarray:
        """Return quantiles at checked rows; see :meth:`predict_quantiles`."""
        forest, cost = self.forest_, self._fitted_cost()
        if not cost.keeps_labels:
            raise ParameterError(
                f"cells keep labels for quantiles and Huber's loss, and for your own with a "
                f"derivative, not for loss={self._begun_with['loss']!r}: train one of these"
            )
        forest.check_learned()
        lifetimes = self.lifetimes_
        if lifetime is not None:
            realised = forest.parameters.realised_lifetime
            at = check_lifetimes(self._as_lifetimes(lifetime), realised)
            lifetimes = np.repeat(at, len(forest.trees))
        return label_quantiles(forest, rows, levels, lifetimes, self._n_threads())

    @in_one_state
    def predict_interval(
        self, X: Any, coverage: float = 0.9, *, calibrated: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of an interval for the label at each row.

        Between the quantiles at (1 - coverage) / 2 from both ends, see :meth:`predict_quantiles`.

        Parameters
        ----------
        X : array-like of shape (n, d)
        coverage : float, default=0.9
            Probability of the interval, in (0, 1).
        calibrated : bool, default=False
            Move both ends as far as held-out rows ask for, see :meth:`calibrate_intervals`.

        Returns
        -------
        lower, upper : float64 arrays of shape (n,)
            Infinite where there were fewer than coverage / (1 - coverage) held-out rows.

        Raises
        ------
        ParameterError
            If coverage is not in (0, 1), or this one was not calibrated since rows were learned.
        """
        share = probability("coverage", coverage)
        reach = 0.0
        if calibrated:
            check_is_fitted(self)
            if getattr(self, "interval_coverage_", None) != share:
                raise ParameterError(
                    f"intervals of coverage {share:g} are not calibrated, or rows were learned "
                    "since: call calibrate_intervals with this coverage and rows that were not "
                    "learned"
                )
            reach = conformal_quantile(self.interval_scores_, share)
        return self._interval_of(self._check_rows(X), share, reach)

    def _interval_of(
        self, rows: np.ndarray, share: float, reach: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of intervals at checked rows, moved by ``reach``."""
        tail = (1.0 - share) / 2.0
        ends = self._quantiles_of(rows, check_levels([tail, 1.0 - tail]))
        lower, upper = ends[:, 0] - reach, ends[:, 1] + reach
        # A negative reach may let the ends pass each other: the interval is their middle then.
        middle = 0.5 * ends[:, 0] + 0.5 * ends[:, 1]
        return np.minimum(lower, middle), np.maximum(upper, middle)

    def calibrate_intervals(self, X: Any, y: Any, coverage: float = 0.9) -> Self:
        """Measure on held-out rows how far the ends of intervals have to be moved.

        Conformalised quantile regression: if these m rows and a new one are exchangeable, and none
        of them was learned, ``predict_interval(..., coverage, calibrated=True)`` holds the new
        label with at least this probability, on average over rows, not at each x. Learning more
        rows forgets the calibration.

        Parameters
        ----------
        X : array-like of shape (m, d)
        y : array-like of shape (m,)
        coverage : float, default=0.9

        Returns
        -------
        This estimator, with ``interval_scores_``: how far y is outside of the interval of each
        row (less than 0 where it is inside), sorted; and ``interval_coverage_``

        References
        ----------
        Romano, Patterson, Candes (2019), "Conformalized Quantile Regression", NeurIPS.
        """
        check_is_fitted(self)
        share = probability("coverage", coverage)
        with self._learner(anew=False):
            rows, y = self._checked_pairs(X, y)
            lower, upper = self._interval_of(rows, share)
            scores = np.sort(np.maximum(lower - y, y - upper))
            with self._turns.alone():
                self.interval_scores_, self.interval_coverage_ = scores, share
        return self
