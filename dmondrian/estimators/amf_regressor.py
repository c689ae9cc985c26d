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

    Shifting or scaling the target changes nothing, unless ``target_range`` or
    ``empty_cell="prior"`` fixes its location: the learning rate is in units of the labels seen.
    ``drift="follow"`` is an exception where errors are as small as rounding, see Notes.

    Parameters
    ----------
    n_estimators : int, default=10
        Trees.
    learning_rate : float, "auto" or "theory", default="auto"
        A float r stands for r / (variance of the labels); "auto" is 8. The variance is
        taken anew when the weight of rows passes a power of two. "theory" is M21's
        1 / (8 B^2), B half the range of the labels: it has the paper's regret bounds, and
        is far too small in practice. It decreases as soon as labels widen the range, which
        costs at most 8 B^2 more than Lemma 1 allows.
    target_range : tuple of two floats or None, default=None
        Between which all labels will lie; others are refused. The learning rate is then fixed
        from the first row on: "theory" is 1 / (8 B^2) and Lemma 1 holds as it is written, a
        float r stands for r / B^2. Not with "auto".
    charge_opening : bool, default=False
        Whether the row that opens a leaf pays the error of the forecast there: that of its
        parent, or 0 with ``empty_cell="prior"``, as in the paper.
    empty_cell : {"parent", "prior"}, default="parent"
        Forecast of a cell before its first row: that of its parent, or 0, as in the paper,
        whose B then is the largest absolute label.
    calibrate : bool, default=False
        Whether to fit a factor for the variance of the label to forecasts that were made before
        their rows were learned, so that ``predict(X, return_std=True)`` is right on average
        (:mod:`dmondrian.uncertainty.variance_scaling`). Means stay as they are. What it costs grows
        with the logarithm of the rows.
    drift : {"follow"} or None, default=None
        None never forgets. "follow" surrounds each tree with trees of all ages, mixed by what
        they forecast of late; see Notes. It takes many times as long. Columns have no scales but
        those that young trees find for themselves, and no units.
    delay : int or str, default=1
        With ``drift="follow"``, how many rows get their labels together, or within what time; see
        :class:`dmondrian.AMFClassifier`.
    experts : {("mondrian",), ("mondrian", "boosted"), ("mondrian", "boosted", "scaled")}
        What members of a forest with ``drift="follow"`` mix; ("mondrian",) by default. With
        "boosted", one input more: sets of small trees, fitted by gradient boosting to rows kept of
        those before; see Notes. They are fitted to squared errors: a label far from all others
        spoils them, and the mixture with them, for as long as its row is kept, which may be
        thousands of rows. With "scaled", one more; see :class:`dmondrian.AMFClassifier`.
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
    feature_names_in_ : array of shape (d,), only if the rows had names
    forest_ : Forest
    variance_factor_ : float
        Factor in use, 0 to 100; 1 without ``calibrate``.
    feature_scales_, feature_units_, feature_importances_, n_waiting_, n_late_
    age_weights_
        As in :class:`dmondrian.AMFClassifier`.

    Notes
    -----
    With ``drift="follow"`` ages, births, credits for feature scales, ``delay``, weights of rows and
    memory are those of :class:`dmondrian.AMFClassifier`, with squared loss in place of log loss
    (:mod:`dmondrian.drift.label_policies` has the whole). A member forecasts a mean of its trees'
    means, by weights that are multiplied by exponentials of the slope of the loss, at three rates;
    the forest is a mean of members by kind and of the trees that never forget. All losses are in
    units of the errors made of late, so that the scale of the target does not matter; where errors
    are as small as what rounding leaves of labels far from 0, it does, and weights then stay as
    they are or move by rounding: take an offset off such a target. A forecast never lies outside of
    those of trees and sets, and a label that is far off moves weights by a bounded step; but trees
    that learned it, and the unit in which members are added up, 2^-72 of the standard deviation of
    all labels, keep it. So does ``std``: the variance of cells that hold such a label is mixed
    until their trees have no weight left or are replaced, 65,536 rows later at most, and of trees
    that never forget for as long as these have weight. A label that is thousands of standard
    deviations off makes ``std`` too large for thousands of rows: clip such labels before they are
    learned.

    With ``drift="follow"`` the standard deviation that ``predict(X, return_std=True)`` returns is
    that of a label drawn from the same mixture of trees, prunings and the late labels of their
    cells, times a factor: the mean of (y - forecast)^2 over the variance, of the last rows. So it
    follows noise that grows or falls, and is right on average over late rows, not at each place.
    ``calibrate`` is not needed. It has no quantiles. Such forests go to ONNX, C and SHAP values as
    they mix their trees now, and are not merged; runs of them grow.

    Boosted sets are born, fitted to kept rows and mixed as those of
    :class:`dmondrian.AMFClassifier`. The first has 100 rounds of one tree, later ones 15 to 400;
    all have 20 rows in the smallest leaf, are fitted to squared errors, and answer the mean; the
    variance is that of the tree that never forgets, which does not know what the set explains: the
    factor of the forest's variance learns that, over all rows alike. Labels beyond the span of the
    kept rows by more than that span are clipped there, the span taken without one row in 256 to
    either side, and one at least: so one label far off takes nothing from what a set knows of the
    others (:mod:`dmondrian.boosting.near_labels`). Where such labels are rare, true, and columns
    predict them, forecasts of their rows are too small: learn a label without such a tail, such as
    its logarithm. Rows beside one are still forecast by trees that hold it. Where more labels are
    far off, errors are added up in units of 2^-30 of the farthest one's distance from the mean at
    least: labels that lie closer together are then equal to a set. A set may answer beyond its
    labels, by bounded steps. Forests that earlier versions stored go on with sets of labels as they
    are.

    References
    ----------
    Mourtada, Gaiffas, Scornet (2021), Equation 4 and Corollary 2.

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
            if (found := self._following_outputs(X)) is not None:
                return found[:, 0], np.sqrt(found[:, 1])
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
