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

    Each tree is a Mondrian tree on the range of the data; each prediction mixes, with
    exact exponential weights, the predictions of all its prunings.

    Parameters
    ----------
    n_estimators : int, default=10
        Trees.
    alpha : float or "auto", default="auto"
        Dirichlet pseudo-count of each class in a node's forecast; M21 uses 0.5. "auto"
        is chosen from the first rows, see Notes.
    learning_rate : float or "auto", default="auto"
        Exponent of the weights; "auto" is 1, the exact Bayesian mixture for log loss.
    charge_opening : bool or "auto", default="auto"
        Whether the row that opens a leaf pays log K there, as in the paper. That makes
        single trees better and, on clean data, averaged forests worse. "auto" is chosen
        from the first rows, see Notes.
    use_aggregation : bool, default=True
        Mix over all prunings; if False the leaf alone predicts.
    split_pure : bool, default=False
        Split leaves whose rows all carry one label. The paper's experiments do not, to
        keep trees small; only with True is each tree exactly a Mondrian tree of the
        data, whose law does not depend on the order of the rows.
    predict_extension : {"leaf", "expected"}, default="leaf"
        "leaf" predicts from the leaf that x falls in. "expected" predicts from the tree
        extended by x: on the range by the exact expectation over its random extensions
        (M21, Algorithm 6), on the cube from the one cell that x would be given (Algorithm 3).
        It knows when x is far from all data, and the regret bounds of M21 need it; it takes
        more time, and such forests cannot be exported as tree ensembles.
    domain : {"range", "cube"}, default="range"
        "range" splits the range of the data; "cube" is M21's theory, a Mondrian process on
        [0, 1]^d whose cells are split until their rows are equal, pure or not; it needs
        columns in [0, 1], and more nodes: twice as many for rows spread over the cube, more
        where rows lie close together.
    clip : bool, default=False
        On the cube, move rows that lie outside to its surface (``n_clipped_`` counts them);
        else they are refused.
    max_nodes : int or None, default=None
        Cap on the nodes of a tree; when reached, boxes and statistics go on learning.
    feature_scales : array-like of shape (d,), "auto", "learned" or None, default="auto"
        What each column is multiplied by: twice the scale, twice the splits. An array is
        of numbers > 0, kept as float32; "learned" finds powers of two on the first
        ``warmup_rows`` rows, so that columns that matter are split more often; see Notes.
        It takes seconds, most of them at the last choice, and of thousands of columns
        longer; meanwhile as much memory as ten trees of these rows. It is worth most where
        many columns are noise. Beyond 200 columns fewer forests are tried. "auto" is
        "learned", but None on the cube and beyond 4096 columns; None is the paper's.
    feature_units : "auto" or None, default="auto"
        "auto" rounds each column, times its scale, to multiples of a power of two, a 2^14th
        of the range of the first 512 rows or up to twice as much, so that boxes take half
        the memory; see Notes. None keeps float32, as does the cube.
    warmup_rows : int, default=4096
        Rows from which settings are chosen for good, 32 to 65536, counting as one those
        that equal the row before. They are kept until then, also in checkpoints.
    calibrate : bool or "auto", default="auto"
        True raises the averaged probabilities to a power b (over their sum), fitted in the stream
        to forecasts of a sample of rows just before these are learned: the mean over trees
        that disagree is less sure than it should be. "auto" forecasts with a mixture of these
        powers and the probabilities as they are, weighted by what each forecast of that sample: so
        it never loses more than log 2 nats on it, in all, than either. With ``drift="follow"``,
        whose guard has an exponent of its own, "auto" adds none. False leaves probabilities as they
        are, which is better where they are asked for far ahead on a stream that drifts. See Notes.
    drift : {"follow"} or None, default=None
        None never forgets. "follow" surrounds each tree with trees of all ages, mixed by what
        they forecast of late; see Notes. It takes much longer, and settings
        that are "auto" are not chosen from the first rows: ``alpha`` is 0.5 / K, columns have no
        scales but those that young trees find for themselves, and no units.
    delay : int or str, default=1
        With ``drift="follow"``, how many rows get their labels together, 1 to 32768. Rows count
        from 0: those of a block, ``[i * delay, (i + 1) * delay)``, are forecast by trees and
        weights that know no label of it, and learned after its last row. Say how the forest will
        be asked: 1 where each label is known before the next row is predicted; for a file that is
        predicted before its labels are known, as tables that are scored later, the rows of such a
        file, 256 at most, as weights for longer ones come from too few blocks to be better.
        Labels that each come so many rows late are no blocks: learn rows when their labels
        are known, with a quarter of these rows as the delay, since what waits for its block
        makes predictions older still; or with 64 where rows near in time are no more alike than
        others of their age: trees then learn at once, and weights from fresher predictions than
        yours, which makes them too sure where such rows are alike. Trees younger than ``delay`` are
        not mixed; the longer it is, the slower the weights move from the forest that never forgets.
        As text a length of time, "7 days", "12 h" or "90 s", or, for times that are numbers, a
        number as text: rows of so much time get their labels together, by the ``times`` that
        ``fit`` and ``partial_fit`` then take; see Notes.
    experts : {("mondrian",), ("mondrian", "boosted"), ("mondrian", "boosted", "scaled")}
        What members of a forest with ``drift="follow"`` mix; ("mondrian",) by default. With
        "boosted", one input more: sets of small trees, fitted by gradient boosting to rows kept of
        those before; see Notes. They look at labels to find their splits, which pays where few of
        many columns matter, or columns act together. With "scaled", one more: trees with feature
        scales that are searched on the newest of these rows, which learn all of them anew: eight a
        member, of up to 16 MiB each, from 1,024 rows on. A search takes seconds, at 4,096, 16,384
        and every 65,536 rows. It pays most where columns differ in how finely they have to be
        split; of more than 200 features, indicators of missing values counted, there are none.
    monotonic_cst : array-like of int of shape (d,), dict of str to int, or None, default=None
        With boosted sets among the ``experts``: 1 for a column with which forecasts never fall, -1
        for one with which they never rise, 0 for others; in a dict by the names of columns, in a
        run those of its features. Of two classes, the probability of the second; of more it is
        refused. It binds the forest as a whole: boosted sets are monotone in these columns, no
        other tree sees them, and what a set answers never counts negatively. So they are worth
        what boosted sets make of them. Of rows whose other columns are the same, missing ones
        included; categories have no order.
    missing_values : {"error", "encode"}, default="error"
        "encode" takes rows with missing values (NaN): trees see each column, with 0 where it is
        missing (the middle, .5, on the cube), and beside it whether it is, 0 or 1; so twice as many
        features, whatever rows come. Scale the columns to ranges near 1, around 0.
    categorical_features : "from_dtype", array-like of names or places, or None, default=None
        Columns of frames that are categories: pandas' ``CategoricalDtype`` or polars' ``Enum``, all
        of them or those named. Trees see a feature for each category of the type and one for all
        others, 0 or 1 / K, as in a job; each frame that is learned has the same categories. Of
        polars' ``Categorical``, whose type lists none, they are the values in the first rows.
    class_weight : dict of label to weight, "balanced" or None, default=None
        What weights of rows are multiplied by, for their label; 1 for labels that are not named.
        "balanced" gives all classes the same weight, by the rows of ``fit``: n / (K n_k);
        ``partial_fit`` and runs, which do not know these beforehand, refuse it. Probabilities are
        those of the weighted rows, also after calibration.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws. With an int, the forest is a pure function of the parameters
        and the rows in order, whatever the cuts between calls or the number of threads.
    n_jobs : int or None, default=None
        Threads over trees; None means 1, -1 all processors.

    Attributes
    ----------
    classes_ : array of shape (K,)
    n_classes_ : int
    n_features_in_ : int
    feature_names_in_ : array of shape (d,), only if the rows had names
    forest_ : Forest
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
        Power b in use, 1/4 to 16; 1 without ``calibrate``.
    calibration_weight_ : float
        Weight of the powers in forecasts, 0 to 1; the rest is of probabilities as they are. 1
        unless ``calibrate`` is "auto".
    n_waiting_ : int
        Rows that came and wait for the end of their block, with a ``delay`` > 1.
    n_late_ : int
        Rows that came after the block of their time, with a ``delay`` that is a time.
    age_weights_ : float64 array of shape (1 + 11,), only with ``drift="follow"``
        Shares in the forecasts of the trees that never forget, then of those of each octave of
        age, from 32 to 64 rows on (:mod:`dmondrian.drift.age_weights`); behind them those of scaled
        trees and of boosted sets, where ``experts`` has them and there are two classes or more.

    Notes
    -----
    Settings that are "auto" are chosen by the progressive log loss of small forests on the
    first 256 rows (alpha is 0.5 / K and the opening free before), whenever rows have doubled,
    and for good on the first ``warmup_rows``. The rows learned before a choice are kept, and
    learned anew when it changes a setting, so the forest still is a pure function of the rows in
    order. A choice is made when one row more has come.

    Feature scales are found on the same rows, by steps along the derivative of the loss of a small
    forest to the log of each scale; for good, by an evolution strategy that goes on from there
    (:mod:`dmondrian.tuning.feature_scales`). Every choice learns its rows with up to 240 trees,
    the last one with 750 and two of each column alone besides; beyond 50 classes with fewer.

    Columns are rounded from the first 512 rows on, and no more are needed to choose it. Rows that
    are asked about are rounded too. A column is not rounded where that would make values equal
    whose middle half lies in fewer than 512 units, as where a few rows lie far out; and none is
    where most are not (:mod:`dmondrian.ensemble.settings.feature_units`). Units stay: where later
    rows lie in a far smaller range than the first, ``feature_units=None`` tells them apart.

    The exponent is fitted to all of the first 1024 rows (by weight), then to 1024 rows of each
    doubling of the stream (:mod:`dmondrian.uncertainty.temperature_scaling`), so that what it costs
    grows with the logarithm of the rows. Whatever the cuts between calls, or of the trees on a
    cluster, it is the same number. A row counts with its weight, but is forecast once. In the
    weights of the mixture each row of the sample counts once. Both know rows one ahead alone: where
    a stream drifts, of rows far ahead the forest is less sure than of these.

    Threads may share the estimator, as all of this package: any number may ask it while others
    learn, who take turns. An answer is that of all trees after one row, the same for all rows asked
    about together: a call to ``partial_fit`` that goes on is seen up to a row that it has come to,
    and lets readers in between parts of its rows; one to ``fit`` is seen when it has ended.

    With ``missing_values="encode"`` feature 2 j is column j, 0 where it is missing, and feature
    2 j + 1 is 1 there. ``nodes``, ``feature_scales_``, ``feature_units_`` and scales that are given
    are of these 2 d features; ``feature_importances_`` and names are of the d columns. Categories
    make features in the same way, in the place of their column: one for each level in the order of
    the texts, one for others and, with "encode", one for missing ones, each 0 or 1 / K, with K
    levels that count the last. Runs encode missing values and categories by their schema instead.

    With ``drift="follow"`` each of the ``n_estimators`` members is a tree that never forgets (to
    the byte that of ``drift=None``, with the same ``alpha``, ``charge_opening=False`` and neither
    scales nor units) and covering trees: one tree in each octave of age from 32 to 65,536 rows,
    each born and replaced by the number of the row alone. Their nodes keep counts that forget at
    three rates; feature scales of a new tree are what splits on each column were worth of late. A
    member mixes the logarithms of these forecasts by gradient steps at three rates, and the forest
    mixes members. For any start r, and any t once the smallest tree has its rows, some tree has
    seen only rows after r, and at least a quarter of these, or 2^15 if that is fewer; on every
    interval the mixture of a member loses at most D / (2 rate) + rate G / 2 more than any fixed
    weights w of its trees, D the squared distance of w from the weights at its start and G the sum
    of squared gradients (before the cost of choosing among rates: at most ln 8000 and .0005 a row).

    Rows are numbered by their order alone; rows of weight 0 have no number. A row of weight w is
    learned by trees as w rows would be (whole weights up to 256; others in one piece, priced by the
    forecast before it), but takes one number, and moves the weights of mixtures w times, 16 at
    most: divide weights whose size has no meaning, as those of surveys, by their mean. Rows count
    from the first: with ``delay`` > 1 rows of a block that is not full wait (they are part of the
    state). ``fit`` knows the labels of all its rows: predictions after it are of a copy of the
    forest, made when it is first asked, that has learned the rows that wait. After ``partial_fit``,
    which goes on with the stream, predictions do not know them. The cut of rows
    into calls of ``partial_fit`` changes nothing, and is not a delay: of a chunk each row is
    forecast with all labels before its block known. Where all rows wait, nothing can be predicted,
    and ``fit`` warns.

    A ``delay`` of a time D cuts the stream into blocks of that time, as one of rows does into
    blocks of rows: the row at time T, the first row's T_0, is of block floor((T - T_0) / D), and
    rows of a block are learned when the first row of a later one comes, before that row is
    forecast. So labels are known between 0 and D after their row, all of a block at once; labels
    that each come D late are no blocks: give a quarter of D at most. A row whose block is over,
    since later ones came first, is of the open block, and counted in ``n_late_``. At most 32,768
    rows may come within D. What depends on the length of a delay, the ages that are mixed and how
    fast weights move, takes the number of rows of the block before. A block of few rows costs as
    much as one of dozens.

    Ctrl-C amid ``partial_fit`` waits for the end of at most 1,024 rows, or of a block whose labels
    came; a note of the ``KeyboardInterrupt`` has how many of the rows are learned, and the forest
    goes on from there. (An interrupt may find trees that never forget at different rows, or ahead
    of their calibration, and then they learn no more.)

    Boosted sets are fitted four times in each doubling of the stream, from row 64 on, and later
    before every 16,384th row, or every 4,096th of many columns; one answers until the next is
    fitted, and is the same for all members. The first has 60 rounds (30 of ten classes or more, and
    5 to 30 of more than 30) of trees of 15 leaves for the log odds, one for each class of more than
    two, grown on histograms of 256 bins a column, fewer of more than 1,024 columns. Each later one
    has half, three quarters, all, or half as many more, of the rounds of the one before, by what
    the rows that came since would have lost after these; never fewer than the first, and at most
    400, or as many as make 1,200 trees, fewer of more than 64 columns
    (:mod:`dmondrian.boosting.found_rounds`). A set ends with a round that finds no split. A row of
    weight w has w times its gradient, and is one of the five rows of the smallest leaf. A set is
    fitted by one thread, within the row before which it is born, and readers and Ctrl-C wait for
    it: for seconds where tens of thousands of rows are kept, for many of ten classes or dozens of
    columns that are all numbers. With a ``delay`` the last set born in a block is fitted alone.
    Rows are kept for it, also in checkpoints: all of the first 65,536, later the newest 32,768 to
    36,863 and 32,768 others by keyed draws; fewer of more than 64 columns. In a run each shard
    keeps them, and writes them with each of its states: fewer shards write less. There a worker
    fits a set once for all of its shards. Gradients are added up as whole numbers, so that sets,
    too, are a pure function of the parameters and the rows in order. What a set answers a row was
    fitted to earlier rows alone, so that weights find out what it is worth.

    A covering tree takes 16 MiB at most, so that a member is bounded, whatever the number of rows
    and classes: then its cells are split no more. ``nodes``, ``weighted_depth`` and
    ``feature_importances_`` are of the trees that never forget. Such forests go to
    ONNX as they mix their trees now, and neither to C nor to SHAP values, and are not merged; runs
    of them grow (:func:`dmondrian.distributed.grow`), forests fitted on arrays do not: what the
    guard learned of each row is not kept in these.

    References
    ----------
    Mourtada, Gaiffas, Scornet (2021), "AMF: Aggregated Mondrian Forests for Online
    Learning", JRSS B 83(3).

    Daniely, Gonen, Shalev-Shwartz (2015), "Strongly adaptive online learning", ICML, section 3
    (covering intervals). Herbster, Warmuth (1998), "Tracking the best expert", Machine Learning
    32 (fixed share). Zinkevich (2003), "Online convex programming and generalized infinitesimal
    gradient ascent", ICML, theorem 1. Mattern (2013), "Linear and geometric mixtures - analysis",
    DCC, section 4. Friedman (2001), "Greedy function approximation: a gradient boosting machine",
    Annals of Statistics 29. Chen, Guestrin (2016), "XGBoost: a scalable tree boosting system", KDD,
    section 2.

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
