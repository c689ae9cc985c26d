"""Mixin for quantiles, prediction intervals and confidence intervals of Mondrian regressors.

Relies on :mod:`dmondrian.uncertainty.gaussian_mixture` for the predictive distribution, and on
:mod:`dmondrian.uncertainty.confidence` for the weights of rows in a mean.

Shapes: n rows, d features, q quantiles, m rows learned or held out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dmondrian.ensemble.settings.lifetime import check_lifetimes
from dmondrian.errors import ParameterError
from dmondrian.estimators.mondrian import MondrianForest
from dmondrian.estimators.one_state import in_one_state
from dmondrian.uncertainty.confidence import RATIO, debiasing_weights, weight_norms
from dmondrian.uncertainty.conformal import conformal_quantile, probability
from dmondrian.uncertainty.gaussian_mixture import check_levels, mixture_std, predict_quantiles


class Intervals(MondrianForest):
    """Mixin with quantiles and intervals; not to be used directly."""

    _forgets: ClassVar[tuple[str, ...]] = ("interval_scores_",)  # invalid after learning more rows
    interval_scores_: np.ndarray

    @in_one_state
    def predict_quantiles(
        self, X: Any, quantiles: Iterable[float], lifetime: float | None = None
    ) -> np.ndarray:
        """Return quantiles of the predictive distribution at each row.

        It is a mixture of Gaussians, one of equal weight per tree. With
        ``aggregation="hierarchy"`` a tree's share is its exact predictive distribution: the
        posterior at the cell, and at each branch off above it. With "mean" it is one Gaussian, with
        mean and variance of the labels in the cell (0 in a cell of one row: without an end of the
        lifetime such quantiles are those between trees alone). Neither is calibrated, see
        :meth:`calibrate_intervals` and benchmarks/reports/intervals.md.

        Parameters
        ----------
        X : array-like of shape (n, d)
        quantiles : iterable of float
            Increasing, in (0, 1).
        lifetime : float, optional
            Lifetime to predict at; by default that of the rows learned so far.

        Returns
        -------
        float64 array of shape (n, q), each row increasing

        Raises
        ------
        ParameterError
            If quantiles do not increase within (0, 1), or no row was learned.

        References
        ----------
        Lakshminarayanan, Roy, Teh (2016), section 5.
        """
        levels = check_levels(quantiles)
        X = self._check_rows(X)
        at = self._one_lifetime(lifetime)
        return predict_quantiles(self.forest_, X, levels, at, self._n_threads())

    @in_one_state
    def predict_interval(
        self, X: Any, coverage: float = 0.9, *, calibrated: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of an interval for the label at each row.

        Parameters
        ----------
        X : array-like of shape (n, d)
        coverage : float, default=0.9
            Probability of the interval, in (0, 1).
        calibrated : bool, default=False
            False: between the quantiles at (1 - coverage) / 2 from both ends, see
            :meth:`predict_quantiles`. True: mean plus and minus a number of standard deviations
            fitted to held-out rows, see :meth:`calibrate_intervals`.

        Returns
        -------
        lower, upper : float64 arrays of shape (n,)
            Infinite where there are fewer than coverage / (1 - coverage) held-out rows.

        Raises
        ------
        ParameterError
            If coverage is not in (0, 1), or nothing was calibrated since rows were learned.
        """
        share = probability("coverage", coverage)
        if not calibrated:
            tail = (1.0 - share) / 2.0
            ends = self.predict_quantiles(X, [tail, 1.0 - tail])
            return ends[:, 0], ends[:, 1]
        check_is_fitted(self)
        if not hasattr(self, "interval_scores_"):
            raise ParameterError(
                "intervals are not calibrated, or rows were learned since: call "
                "calibrate_intervals with rows that were not learned"
            )
        mean, std = self._mean_and_std(self._check_rows(X), self._one_lifetime(None))
        reach = conformal_quantile(self.interval_scores_, share)
        half = np.full(len(mean), np.inf) if reach == math.inf else reach * std
        return mean - half, mean + half

    def calibrate_intervals(self, X: Any, y: Any) -> Self:
        """Calibrate the width of intervals on held-out rows.

        Split conformal prediction with errors in units of the predicted standard deviation: if
        these m rows and a new one are exchangeable, and none of them was learned,
        ``predict_interval(..., calibrated=True)`` contains the new label with at least the given
        probability, and at most 1 / (m + 1) more where errors are distinct; on average over rows,
        not at each x. Learning more rows drops the calibration.

        Parameters
        ----------
        X : array-like of shape (m, d)
        y : array-like of shape (m,)

        Returns
        -------
        This estimator, with ``interval_scores_``: ``|y - mean| / std`` of each row, sorted; 0
        for 0 / 0

        References
        ----------
        Lei, G'Sell, Rinaldo, Tibshirani, Wasserman (2018), "Distribution-Free Predictive Inference
        for Regression", section 5.2.
        """
        check_is_fitted(self)
        with self._learner(anew=False):
            X, y = self._checked_pairs(X, y)
            mean, std = self._mean_and_std(X, self._one_lifetime(None))
            error = np.abs(np.asarray(y, np.float64) - mean)
            unknown = np.where(error > 0.0, np.inf, 0.0)
            scores = np.sort(np.divide(error, std, out=unknown, where=std > 0.0))
            with self._turns.alone():
                self.interval_scores_ = scores
        return self

    @in_one_state
    def predict_debiased(self, X: Any, lifetime: float | None = None) -> np.ndarray:
        """Return the debiased forest's estimate of the mean label at each row.

        -0.8 times the prediction at the lifetime plus 1.8 times that at 1.5 times the lifetime,
        both of the same trees: the bias in the interior falls from O(lifetime^-2) to
        O(lifetime^-4) where the function has four derivatives (derived in
        ``dmondrian/uncertainty/confidence.py``). For cells' means on the cube.

        Parameters
        ----------
        X : array-like of shape (n, d)
        lifetime : float, optional
            The smaller of the two; by default that of the rows learned so far.

        Returns
        -------
        float64 array of shape (n,)

        Raises
        ------
        ParameterError
            If the forest is not one of cells' means on the cube, or not realised so far.

        References
        ----------
        Cattaneo, Klusowski, Underwood (2023), arXiv:2310.09702.
        """
        lifetimes, shares = self._inference_at(lifetime, debias=True)
        return np.asarray(shares @ self._predictions_at(X, lifetimes)[:, :, 0])

    @in_one_state
    def confidence_interval(
        self,
        X: Any,
        X_train: Any,
        *,
        level: float = 0.95,
        lifetime: float | None = None,
        debias: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of a confidence interval for the mean label at each row.

        f(x) +- z s(x) ||W(x)||: W(x) are the weights of the rows learned in the forest's mean, and
        s(x)^2 the mean over trees of the squared deviations from f(x) of the labels in its cell.
        For cells' means on the cube. The interval knows nothing of the bias: debias, or take a
        large lifetime (one that grows faster than n^(1/(d+4)) will do in the end, as the default's
        does), and stay away from the surface of the cube; nor of the trees' number: take many.

        Parameters
        ----------
        X : array-like of shape (n, d)
        X_train : array-like of shape (m, d)
            All rows that the forest learned, in any order and without weights: trees do not keep
            them, and the overlap of cells of different trees cannot be had without. The time is
            that of predicting them, the memory 12 bytes per row, tree and lifetime.
        level : float, default=0.95
            In (0, 1).
        lifetime : float, optional
            By default that of the rows learned so far.
        debias : bool, default=False
            Around :meth:`predict_debiased`, with its weights; s(x) is that of the lifetime.

        Returns
        -------
        lower, upper : float64 arrays of shape (n,)

        Raises
        ------
        DataError
            If ``X_train`` are other rows than those learned.
        ParameterError
            If the forest is not one of cells' means on the cube, or not realised so far.

        References
        ----------
        Cattaneo, Klusowski, Underwood (2023), arXiv:2310.09702.
        """
        z = NormalDist().inv_cdf(0.5 + 0.5 * probability("level", level))
        lifetimes, shares = self._inference_at(lifetime, debias)
        mean = shares @ self._predictions_at(X, lifetimes)[:, :, 0]
        X, learned = self._check_rows(X), self._check_rows(X_train)
        norms = weight_norms(self.forest_, X, learned, lifetimes, shares)
        half = z * norms * mixture_std(self.forest_, X, float(lifetimes[0]))
        return mean - half, mean + half

    def _one_lifetime(self, lifetime: float | None) -> float:
        """Return the lifetime to predict at, checked."""
        self.forest_.check_learned()
        if lifetime is None:
            return self.lifetime_
        realised = self.forest_.parameters.realised_lifetime
        return float(check_lifetimes(self._as_lifetimes(lifetime), realised)[0])

    def _mean_and_std(self, X: np.ndarray, lifetime: float) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the label at checked rows."""
        is_hierarchy = self.forest_.parameters.aggregation == "hierarchy"
        sums = self.forest_.predict_sums(
            X, self._n_threads(), spread=is_hierarchy, lifetimes=np.array([lifetime])
        )
        mean = sums.mean[0, :, 0]
        if not is_hierarchy:
            return mean, mixture_std(self.forest_, X, lifetime)
        return mean, np.sqrt(sums.variance[0, :, 0])

    def _inference_at(self, lifetime: float | None, debias: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the lifetimes whose predictions are combined, and the weight of each."""
        check_is_fitted(self)
        learned = self.forest_.parameters
        if learned.domain != "cube" or learned.aggregation != "mean":
            raise ParameterError(
                'inference is for domain="cube" and aggregation="mean", got '
                f"domain={learned.domain!r} and aggregation={learned.aggregation!r}"
            )
        at = self._one_lifetime(lifetime)
        if not debias:
            return np.array([at]), np.ones(1)
        both = np.array([at, RATIO * at])
        realised = self.forest_.parameters.realised_lifetime
        if not RATIO * at <= realised or at == np.inf:
            most = f"{realised / RATIO:g}" if realised < np.inf else "a finite number"
            raise ParameterError(
                f"debiasing combines predictions at two lifetimes, the second {RATIO:g} times the "
                f"first: expected lifetime= of at most {most} with these trees, got {at:g}"
            )
        return check_lifetimes(both, realised), debiasing_weights()
