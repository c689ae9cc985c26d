"""The regressor of AMF: Mondrian forests that mix over all prunings of every tree (M21).

Shapes: n rows, d features, T trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from dmondrian.ensemble.settings.numeric_limits import LARGEST_TARGET
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.estimators._sklearn_private import Interval, StrOptions, fit_context
from dmondrian.estimators.regressor import ForestRegressor
from dmondrian.estimators.single_row import row_by_row
from dmondrian.estimators.stream_following import (
    DRIFT_CONSTRAINTS,
    EXPERTS_CONSTRAINTS,
    FOLLOWING,
    Allowed,
    StreamFollowing,
)
from dmondrian.tuning.auto_settings import LAST
from dmondrian.uncertainty.temperature_scaling import calibrated_std
from dmondrian.uncertainty.variance_scaling import VarianceFactor

AUTO_RATE = 8.0  # learning rate x variance; see benchmarks/reports/ablation.md


class AMFRegressor(StreamFollowing, ForestRegressor):
    """Aggregated Mondrian forest regressor, learning row by row.

    Take it for numbers as labels, on rows that keep coming: each is learned once, and nothing has
    to be tuned. Each prediction mixes the means of all prunings of each tree with exponential
    weights (M21). ``calibrate=True`` adds standard deviations that are right on average, and
    ``drift="follow"`` follows a stream whose law changes.

    Parameters
    ----------
    n_estimators : int, default=10
        Number of trees.
    learning_rate : float, "auto" or "theory", default="auto"
        Of the weights of prunings. A float r stands for r / (variance of the labels), with the
        variance taken anew when the weight of rows passes a power of two; "auto" is 8. "theory" is
        M21's 1 / (8 B^2), B half the range of the labels so far: it has the paper's regret bounds,
        and is far too small in practice. ``drift="follow"`` takes "auto" alone.
    target_range : tuple of two floats or None, default=None
        Least and largest label there will be; others are refused. It fixes the learning rate from
        the first row on: "theory" is 1 / (8 B^2), a float r stands for r / B^2, and "auto" is
        refused, as is ``drift="follow"``.
    charge_opening : bool, default=False
        Whether the row that opens a leaf costs the leaf the error of the forecast there: that of
        its parent, or 0 with ``empty_cell="prior"``, as in M21. ``drift="follow"`` takes False.
    empty_cell : {"parent", "prior"}, default="parent"
        Forecast of a cell before its first row: that of its parent, or 0, as in M21, whose B then
        is the largest absolute label. ``drift="follow"`` takes "parent".
    calibrate : bool, default=False
        Whether to fit a factor for the variance of the label to forecasts of earlier rows, so that
        ``predict(X, return_std=True)`` is right on average
        (:mod:`dmondrian.uncertainty.variance_scaling`). Means stay as they are. Its cost grows
        with the logarithm of the rows. ``drift="follow"`` has a factor already, and takes False.
    drift : {"follow"} or None, default=None
        None never forgets. "follow" adds trees of all ages and mixes them by what they forecast
        recently. It takes many times as long, and finds neither feature scales nor units on the
        first rows. See :doc:`/jobs/manual/drift`.
    delay : int or str, default=1
        With ``drift="follow"``, how many rows get their labels together, or within what time; see
        :class:`dmondrian.AMFClassifier`.
    experts : {("mondrian",), ("mondrian", "boosted"), ("mondrian", "boosted", "scaled")}
        What ``drift="follow"`` mixes; ("mondrian",) by default. As in
        :class:`dmondrian.AMFClassifier`. Boosted sets are fitted to squared errors of labels, with
        those far off clipped: learn the logarithm of a label with a long tail.
    monotonic_cst : array-like of int of shape (d,), dict of str to int, or None, default=None
        Columns with which the mean never falls, 1, or never rises, -1; see
        :class:`dmondrian.AMFClassifier`. Standard deviations are not bound.
    use_aggregation, predict_extension, domain, clip, max_nodes
    feature_scales, feature_units, warmup_rows, missing_values, random_state, n_jobs
        As in :class:`dmondrian.AMFClassifier`. There is no ``split_pure``: labels are continuous.
    categorical_features
        As in :class:`dmondrian.AMFClassifier`.

    Attributes
    ----------
    n_features_in_ : int
        d.
    feature_names_in_ : array of shape (d,), only if the rows had names
    forest_ : Forest
        The fitted forest.
    variance_factor_ : float
        Factor of the variance in use, 0 to 100; 1 without ``calibrate``.
    feature_scales_, feature_units_, feature_importances_, n_waiting_, n_late_
    age_weights_
        As in :class:`dmondrian.AMFClassifier`.

    Notes
    -----
    The notes of :class:`dmondrian.AMFClassifier` on rows in order, settings, weights, labels that
    come late, features and threads hold here.

    **Units of the label.** Shifting or scaling the target changes nothing: the learning rate is in
    units of the labels seen. Exceptions are ``target_range`` and ``empty_cell="prior"``, which fix
    its location, and ``drift="follow"`` where errors are as small as the rounding of labels far
    from 0: subtract an offset from such a target.

    **Regret.** "theory" decreases as soon as labels widen the range, which costs at most 8 B^2
    more than M21, Lemma 1 allows. With a ``target_range`` the lemma holds as it is written.

    **Standard deviations.** With ``drift="follow"`` they follow noise that grows or falls, and are
    right on average over recent rows, not at each place. A label that is thousands of standard
    deviations off makes them too large for thousands of rows: clip such labels before they are
    learned. There are no quantiles.

    **Labels far off.** A forecast of ``drift="follow"`` never lies outside of those of its trees
    and boosted sets, and such a label moves weights by a bounded step. Boosted sets clip labels
    beyond the span of the others by more than that span. Where such labels are rare, true, and
    columns predict them, forecasts of their rows are too small. See :doc:`/jobs/manual/drift`.

    **Refused with drift="follow"**, each with the reason: what the parameters above name,
    ``use_aggregation=False``, ``predict_extension="expected"``, ``domain="cube"`` and
    ``feature_scales="learned"``. Such forests go to ONNX, C and SHAP values as they mix their trees
    now, and are not merged; runs of them grow.

    References
    ----------
    M21: Mourtada, Gaiffas, Scornet (2021), Equation 4 and Corollary 2.

    Daniely, Gonen, Shalev-Shwartz (2015), "Strongly adaptive online learning", ICML, section 3
    (covering intervals). Kivinen, Warmuth (1997), "Exponentiated gradient versus gradient descent
    for linear predictors", Information and Computation 132. Herbster, Warmuth (1998), "Tracking
    the best expert", Machine Learning 32 (fixed share).

    Examples
    --------
    >>> import numpy as np
    >>> from dmondrian import AMFRegressor
    >>> X = np.linspace(0, 1, 200)[:, None]
    >>> forest = AMFRegressor(random_state=0).fit(X, X[:, 0] > 0.5)
    >>> bool(forest.predict([[0.9]])[0] > 0.9)
    True
    """

    algorithm = "amf-regressor"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **ForestRegressor._parameter_constraints,
        "calibrate": ["boolean"],
        "charge_opening": ["boolean"],
        "use_aggregation": ["boolean"],
        "learning_rate": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"auto", "theory"}),
        ],
        "target_range": ["array-like", None],
        "empty_cell": [StrOptions({"parent", "prior"})],
        **DRIFT_CONSTRAINTS,
        **EXPERTS_CONSTRAINTS,
    }
    _following: ClassVar[Allowed] = {
        "learning_rate": (("auto",), "rates follow the errors that each tree makes of late"),
        "target_range": ((None,), "rates follow the errors that each tree makes of late"),
        **FOLLOWING,
        "empty_cell": (("parent",), "a number far from the labels would be no forecast"),
        "calibrate": ((False,), "variances are those of late labels and of trees that differ"),
    }

    def __init__(
        self,
        n_estimators: int = 10,
        *,
        learning_rate: float | Literal["auto", "theory"] = "auto",
        target_range: tuple[float, float] | None = None,
        charge_opening: bool = False,
        empty_cell: Literal["parent", "prior"] = "parent",
        calibrate: bool = False,
        drift: Literal["follow"] | None = None,
        delay: int | str = 1,
        experts: Sequence[str] = ("mondrian",),
        monotonic_cst: ArrayLike | dict[str, int] | None = None,
        use_aggregation: bool = True,
        predict_extension: Literal["leaf", "expected"] = "leaf",
        domain: Literal["range", "cube"] = "range",
        clip: bool = False,
        max_nodes: int | None = None,
        feature_scales: ArrayLike | Literal["auto", "learned"] | None = "auto",
        feature_units: Literal["auto"] | None = "auto",
        warmup_rows: int = LAST,
        missing_values: Literal["error", "encode"] = "error",
        categorical_features: ArrayLike | Literal["from_dtype"] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.learning_rate = learning_rate
        self.target_range = target_range
        self.charge_opening = charge_opening
        self.empty_cell = empty_cell
        self.calibrate = calibrate
        self.drift = drift
        self.delay = delay
        self.experts = experts
        self.monotonic_cst = monotonic_cst
        self.use_aggregation = use_aggregation
        self.predict_extension = predict_extension
        self.domain = domain
        self.clip = clip
        self.max_nodes = max_nodes
        self.feature_scales = feature_scales
        self.feature_units = feature_units
        self.warmup_rows = warmup_rows
        self.missing_values = missing_values
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.n_jobs = n_jobs

    @row_by_row
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, times: Any = None) -> Self:
        """Learn more rows, in their order; parameters as in :meth:`fit`."""
        return self._fit_more(X, y, sample_weight, times)

    def _forest_parameters(self, n_features: int, n_classes: int = 0) -> ForestParameters:
        named = {"auto": AUTO_RATE, "theory": 0.0}
        rate = self.learning_rate
        return ForestParameters(
            **self._shared_parameters(n_features),
            use_aggregation=bool(self.use_aggregation),
            n_classes=0,
            learning_rate=named[rate] if isinstance(rate, str) else float(rate),
            charge_opening=bool(self.charge_opening),
            empty_prior=self.empty_cell == "prior",
            target_range=self._given_range(),
            split_pure=True,
            drift=self._drift_settings(),
        )

    def _given_range(self) -> tuple[float, float] | None:
        """Return the range of labels that was given, checked."""
        if self.target_range is None:
            return None
        ends = np.asarray(self.target_range)
        is_pair = ends.shape == (2,) and ends.dtype.kind in "iuf"
        if not is_pair or not -LARGEST_TARGET <= ends[0] < ends[1] <= LARGEST_TARGET:
            raise ParameterError(
                f"target_range should be two numbers (low, high), low < high, got "
                f"{self.target_range!r}"
            )
        if self.learning_rate == "auto":
            raise ParameterError(
                'target_range is for learning_rate="theory", or for a number in units of 1 / B^2, '
                'B half of the range: "auto" follows the variance of the labels and needs no range'
            )
        return float(ends[0]), float(ends[1])

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the predicted mean of each row.

        Parameters
        ----------
        X : array-like of shape (n, d)
        return_std : bool, default=False
            Also return the standard deviation of a label at each row, its noise included: by the
            law of total variance over trees, prunings and the labels of their cells, times the root
            of ``variance_factor_``; see Notes for ``drift="follow"``. Cells keep sums of squares
            about the first label learned: deviations below about 1e-8 of the largest distance from
            it are lost in rounding.

        Returns
        -------
        float64 array of shape (n,), or a tuple of two
        """
        if not return_std:
            return super().predict(X)
        with self._turns.reading():
            if (outputs := self._following_outputs(X)) is not None:
                return outputs[:, 0], np.sqrt(outputs[:, 1])
            X = self._check_rows(X)
            self.forest_.check_learned()
            sums = self.forest_.predict_sums(X, self._n_threads(len(X)), labels=True)
            calibration = self.forest_.calibration
        return sums.mean[:, 0], calibrated_std(sums.variance[:, 0], calibration)

    @property
    def variance_factor_(self) -> float:
        """Factor of the variance of the label in use; 1 where it is not calibrated."""
        calibration = self._fitted_forest().calibration
        return calibration.factor if isinstance(calibration, VarianceFactor) else 1.0
