"""The classifier of AMF: Mondrian forests that mix over all prunings of every tree (M21).

Shapes: n rows, d features, K classes, T trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar, Literal, Self

from numpy.typing import ArrayLike

from dmondrian.ensemble.settings.numeric_limits import LARGEST_ALPHA, LEAST_ALPHA
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.estimators._sklearn_private import Interval, StrOptions, fit_context
from dmondrian.estimators.classifier import ForestClassifier
from dmondrian.estimators.single_row import row_by_row
from dmondrian.estimators.stream_following import (
    DRIFT_CONSTRAINTS,
    EXPERTS_CONSTRAINTS,
    FOLLOWING,
    Allowed,
    StreamFollowing,
)
from dmondrian.tuning.auto_settings import LAST, START_ALPHA


class AMFClassifier(StreamFollowing, ForestClassifier):
    """Aggregated Mondrian forest classifier, learning row by row.

    Take it for rows that keep coming: each is learned once, forecasts are calibrated
    probabilities, and the main settings are chosen from the first rows. Each tree is a Mondrian
    tree on the range of the data. Each prediction mixes the predictions of all prunings of the
    tree with exact exponential weights (M21). With ``drift="follow"`` the forest also follows a
    stream whose law changes.

    Parameters
    ----------
    n_estimators : int, default=10
        Number of trees. More trees have a lower loss, for more time and memory in proportion.
    alpha : float or "auto", default="auto"
        Dirichlet pseudo-count of each class in the forecast of a node; M21 uses 0.5. "auto" is
        chosen from the first rows; with ``drift="follow"`` it is 0.5 / K.
    learning_rate : float or "auto", default="auto"
        Exponent of the weights of prunings. "auto" is 1, the exact Bayesian mixture for log loss;
        ``drift="follow"`` takes no other.
    charge_opening : bool or "auto", default="auto"
        Whether the row that opens a leaf costs the leaf log K, as in M21. True makes single trees
        better and, on clean data, averaged forests worse. "auto" is chosen from the first rows;
        with ``drift="follow"`` it is False, and True is refused.
    use_aggregation : bool, default=True
        Whether to mix over all prunings; if False the leaf alone predicts.
    split_pure : bool, default=False
        Whether to split leaves whose rows all carry one label. False, as in M21's experiments,
        keeps trees small. With True alone each tree is exactly a Mondrian tree of the data, whose
        law does not depend on the order of the rows.
    predict_extension : {"leaf", "expected"}, default="leaf"
        "leaf" predicts from the leaf that x falls in. "expected" predicts from the tree extended
        by x: the exact expectation over its random extensions (M21, Algorithm 6). On the cube that
        is the one cell that x would be given (Algorithm 3). M21's regret bounds need "expected",
        and it knows when x is far from all data. It takes more time, and such forests cannot be
        exported as tree ensembles.
    domain : {"range", "cube"}, default="range"
        "range" splits the range of the data. "cube" is M21's theory: a Mondrian process on
        [0, 1]^d whose cells are split until their rows are equal, pure or not. It needs columns in
        [0, 1], and more nodes: twice as many for rows spread over the cube, more where rows lie
        close together.
    clip : bool, default=False
        On the cube, whether to move rows that lie outside to its surface (``n_clipped_`` counts
        them); if False they are refused.
    max_nodes : int or None, default=None
        Most nodes of a tree. A tree that has reached it is split no more; its boxes and statistics
        go on learning.
    feature_scales : array-like of shape (d,), "auto", "learned" or None, default="auto"
        What each column is multiplied by: twice the scale, twice the splits. An array has numbers
        > 0, kept as float32. "learned" finds powers of two on the first ``warmup_rows`` rows,
        which takes seconds and is worth most where many columns are noise. "auto" is "learned",
        but None on the cube, beyond 4096 columns and with ``drift="follow"``. None is M21's.
    feature_units : "auto" or None, default="auto"
        "auto" rounds each column, times its scale, to multiples of a power of two, which halves
        the memory of boxes. Units are those of the first 512 rows, and stay. Choose None if later
        rows lie in a far smaller range. None keeps float32, as do the cube and
        ``drift="follow"``.
    warmup_rows : int, default=4096
        Number of rows from which settings are chosen for good, 32 to 65536. A row that equals the
        row before is not counted. The rows are kept until then, also in checkpoints.
    calibrate : bool or "auto", default="auto"
        Whether to raise the averaged probabilities to a power fitted to forecasts of earlier rows.
        "auto" mixes these powers and the probabilities as they are. On the forecasts it is fitted
        to, it loses at most log 2 nats in all more than either. True is the power alone. Choose
        False for a stream that drifts, where rows are forecast far ahead. With
        ``drift="follow"`` "auto" adds nothing: its mixture has a power of its own.
    drift : {"follow"} or None, default=None
        None never forgets. "follow" adds trees of all ages and mixes them by what they forecast
        recently. It takes much longer. See :doc:`/jobs/manual/drift`.
    delay : int or str, default=1
        With ``drift="follow"``, how many rows get their labels together, 1 to 32768. Choose 1 where
        each label is known before the next row is predicted. For a file that is predicted before
        its labels are known, choose its number of rows, 256 at most. As text it is a length of
        time, "7 days", "12 h" or "90 s", or a number where times are numbers; ``fit`` and
        ``partial_fit`` then take ``times``. :doc:`/jobs/manual/streams` has a table.
    experts : {("mondrian",), ("mondrian", "boosted"), ("mondrian", "boosted", "scaled")}
        What ``drift="follow"`` mixes; ("mondrian",) by default. "boosted" adds small trees fitted
        by gradient boosting to kept rows: where few of many columns matter, or columns act
        together. "scaled" adds eight trees a member with feature scales searched on these rows, up
        to 200 features: where columns differ in how finely they have to be split. Both take more
        time and memory.
    monotonic_cst : array-like of int of shape (d,), dict of str to int, or None, default=None
        With "boosted" among the ``experts``: 1 for columns with which no forecast falls, -1 for
        those with which none rises, 0 for others, all else equal. A dict has names of columns, in
        a run names of its features. It binds the whole forest, by the probability of the second of
        two classes; more classes and columns that are categories are refused.
    class_weight : dict of label to weight, "balanced" or None, default=None
        What weights of rows are multiplied by, for their label; 1 for labels that are not named.
        "balanced" gives all classes the same weight by the rows of ``fit``, n / (K n_k);
        ``partial_fit`` and runs refuse it, as they do not know these rows beforehand.
        Probabilities are those of the weighted rows, also after calibration.
    missing_values : {"error", "encode"}, default="error"
        "encode" takes NaN: trees see each column, with 0 where it is missing (0.5 on the cube), and
        an indicator beside it. So there are twice as many features, whatever rows come. Scale the
        columns to ranges near 1, around 0.
    categorical_features : "from_dtype", array-like of names or places, or None, default=None
        Columns of frames that are categories, all of them or those named: pandas'
        ``CategoricalDtype`` or polars' ``Enum``. Trees see a feature for each category of the type
        and one for all others, 0 or 1 / K. Each frame that is learned has the same categories.
        Those of polars' ``Categorical``, whose type lists none, are the values in the first rows.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws. An int makes the forest a pure function of the parameters and the rows
        in order.
    n_jobs : int or None, default=None
        Threads over trees; None means 1, -1 all processors.

    Attributes
    ----------
    classes_ : array of shape (K,)
        Labels, sorted.
    n_classes_ : int
        K.
    n_features_in_ : int
        d.
    feature_names_in_ : array of shape (d,), only if the rows had names
    forest_ : Forest
        The fitted forest.
    alpha_ : float
        Pseudo-count in use.
    charge_opening_ : bool
        Opening price in use.
    feature_scales_ : float32 array of shape (d,)
        What each column is multiplied by.
    feature_units_ : float64 array of shape (d,)
        What columns, times their scales, are rounded to multiples of; 0 for none.
    feature_importances_ : float64 array of shape (d,)
        Share of each feature in what the splits are worth.
    calibration_exponent_ : float
        Power in use, 1/4 to 16; 1 without ``calibrate``.
    calibration_weight_ : float
        Weight of the powers in forecasts, 0 to 1; the rest is of probabilities as they are. 1
        unless ``calibrate`` is "auto".
    n_waiting_ : int
        Number of rows that wait for the end of their block, with a ``delay`` > 1.
    n_late_ : int
        Number of rows that came after the block of their time, with a ``delay`` that is a time.
    age_weights_ : float64 array of shape (12,), only with ``drift="follow"``
        Shares in the forecasts: of trees that never forget, then of trees in each octave of age
        from 32 to 64 rows on (:mod:`dmondrian.drift.age_weights`). With more ``experts``, and two
        classes or more, shares of scaled trees and of boosted sets follow.

    Notes
    -----
    **Rows in order.** With an int as ``random_state`` the forest is a pure function of the
    parameters and the rows in order. How rows are cut into calls of ``partial_fit``, and the
    number of threads, change no byte.

    **Settings.** "auto" is chosen by the progressive log loss of small forests on the first 256
    rows, whenever rows have doubled, and for good on the first ``warmup_rows``. The rows before a
    choice are learned anew when it changes a setting. See :doc:`/jobs/manual/chosen_settings`.

    **Weights.** A row of whole weight w counts as w rows. With ``drift="follow"`` it also moves
    the weights of mixtures w times, 16 at most: divide weights whose size has no meaning, as those
    of surveys, by their mean.

    **Labels that come late.** With a ``delay`` rows are forecast by what was known before their
    block, and learned after its last row. Rows of a block that is not full wait. Predictions after
    ``fit`` know them, and after ``partial_fit`` they do not. Labels that each come D rows or D
    days late are no blocks: learn a row when its label is known, with a quarter of D as the delay.

    **Refused with drift="follow"**, each with the reason: ``learning_rate`` other than 1,
    ``charge_opening=True``, ``use_aggregation=False``, ``predict_extension="expected"``,
    ``domain="cube"``, ``feature_scales="learned"`` and ``calibrate=True``. Such forests are not
    merged, and go to ONNX but neither to C nor to SHAP values. ``delay``, ``experts`` and
    ``monotonic_cst`` are refused without it.

    **Features.** With ``missing_values="encode"`` or categories, ``nodes``, ``feature_scales_``,
    ``feature_units_`` and scales that are given are of the features that trees see, and
    ``feature_importances_`` and names of the columns. Runs encode by their schema instead. See
    :doc:`/jobs/manual/estimators`.

    **Threads** may share the estimator: any number may ask it while others learn, who take turns.
    An answer is that of all trees after one row.

    References
    ----------
    M21: Mourtada, Gaiffas, Scornet (2021), "AMF: Aggregated Mondrian Forests for Online
    Learning", JRSS B 83(3).

    Of ``drift="follow"``: Daniely, Gonen, Shalev-Shwartz (2015), "Strongly adaptive online
    learning", ICML, section 3 (covering intervals). Herbster, Warmuth (1998), "Tracking the best
    expert", Machine Learning 32 (fixed share). Zinkevich (2003), "Online convex programming and
    generalized infinitesimal gradient ascent", ICML, theorem 1. Mattern (2013), "Linear and
    geometric mixtures - analysis", DCC, section 4.

    Of boosted sets: Friedman (2001), "Greedy function approximation: a gradient boosting machine",
    Annals of Statistics 29. Chen, Guestrin (2016), "XGBoost: a scalable tree boosting system",
    KDD, section 2.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmondrian import AMFClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> AMFClassifier(random_state=0).fit(X, y).predict(X[:1])
    array([0])
    """

    algorithm = "amf-classifier"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **ForestClassifier._parameter_constraints,
        "alpha": [Interval(Real, LEAST_ALPHA, LARGEST_ALPHA, closed="both"), StrOptions({"auto"})],
        "charge_opening": ["boolean", StrOptions({"auto"})],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "split_pure": ["boolean"],
        "use_aggregation": ["boolean"],
        **DRIFT_CONSTRAINTS,
        **EXPERTS_CONSTRAINTS,
    }
    _following: ClassVar[Allowed] = {
        "learning_rate": (("auto", 1), "mixtures over prunings are exact"),
        **FOLLOWING,
        "calibrate": (("auto", False), "its guard learns an exponent already"),
    }

    def __init__(
        self,
        n_estimators: int = 10,
        *,
        alpha: float | Literal["auto"] = "auto",
        learning_rate: float | Literal["auto"] = "auto",
        charge_opening: bool | Literal["auto"] = "auto",
        use_aggregation: bool = True,
        split_pure: bool = False,
        predict_extension: Literal["leaf", "expected"] = "leaf",
        domain: Literal["range", "cube"] = "range",
        clip: bool = False,
        max_nodes: int | None = None,
        feature_scales: ArrayLike | Literal["auto", "learned"] | None = "auto",
        feature_units: Literal["auto"] | None = "auto",
        warmup_rows: int = LAST,
        calibrate: bool | Literal["auto"] = "auto",
        drift: Literal["follow"] | None = None,
        delay: int | str = 1,
        experts: Sequence[str] = ("mondrian",),
        monotonic_cst: ArrayLike | dict[str, int] | None = None,
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        missing_values: Literal["error", "encode"] = "error",
        categorical_features: ArrayLike | Literal["from_dtype"] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.alpha = alpha
        self.learning_rate = learning_rate
        self.charge_opening = charge_opening
        self.use_aggregation = use_aggregation
        self.split_pure = split_pure
        self.predict_extension = predict_extension
        self.domain = domain
        self.clip = clip
        self.max_nodes = max_nodes
        self.feature_scales = feature_scales
        self.feature_units = feature_units
        self.warmup_rows = warmup_rows
        self.calibrate = calibrate
        self.drift = drift
        self.delay = delay
        self.experts = experts
        self.monotonic_cst = monotonic_cst
        self.class_weight = class_weight
        self.missing_values = missing_values
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.n_jobs = n_jobs

    @row_by_row
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, times: Any = None
    ) -> Self:
        """Learn more rows, in their order.

        Parameters
        ----------
        X, y, sample_weight, times
            As in :meth:`fit`.
        classes : array-like of shape (K,)
            All labels that will ever come; needed at the first call.

        Returns
        -------
        This estimator

        Raises
        ------
        DataError
            If a label is not one of the classes, or a time is missing; nothing is learned then.
        """
        return self._fit_more(X, y, classes, sample_weight, times)

    def _forest_parameters(self, n_features: int, n_classes: int) -> ForestParameters:
        return ForestParameters(
            **self._shared_parameters(n_features),
            use_aggregation=bool(self.use_aggregation),
            n_classes=int(n_classes),
            alpha=START_ALPHA / n_classes if self.alpha == "auto" else float(self.alpha),
            learning_rate=1.0 if self.learning_rate == "auto" else float(self.learning_rate),
            charge_opening=self.charge_opening != "auto" and bool(self.charge_opening),
            split_pure=bool(self.split_pure),
            drift=self._drift_settings(n_classes),
        )

    def _auto_settings(self, n_features: int, n_classes: int) -> tuple[str, ...]:
        # All settings are alike where there is one class.
        return super()._auto_settings(n_features, n_classes) if n_classes > 1 else ()

    @property
    def alpha_(self) -> float:
        """Pseudo-count in use."""
        return self._fitted_forest().parameters.alpha

    @property
    def charge_opening_(self) -> bool:
        """Opening price in use."""
        return self._fitted_forest().parameters.charge_opening
