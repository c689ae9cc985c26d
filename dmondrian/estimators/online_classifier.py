"""The classifier of online random forests with stream partitioning (D13).

Shapes: n rows, d features, K classes, m nodes.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.estimators._sklearn_private import StrOptions
from dmondrian.estimators.classifier import ForestClassifier
from dmondrian.estimators.online import CRITERION, OnlineRandomForest


class OnlineRandomForestClassifier(OnlineRandomForest, ForestClassifier):
    """Random forest that chooses its splits by gain, online, in bounded memory, consistently.

    In each tree a row either chooses splits (the structure stream) or estimates what leaves say
    (the estimation stream), by a draw; so the forest is consistent (D13, Theorem 1). A row counts
    in one leaf alone and never again below it, which takes many rows or several passes: in one pass
    over some 20,000 rows ten trees of :class:`dmondrian.AMFClassifier` had the lower log loss on
    five sets of five. Among many columns of noise ``candidate_rate`` above d and
    ``min_samples_leaf`` of 60 did far better than the defaults
    (``benchmarks/reports/online_forests.md``).

    Parameters
    ----------
    n_estimators : int, default=10
        Trees.
    candidate_rate : float, default=10.0
        lambda: a leaf has min(1 + Poisson(lambda), d) candidate features.
    n_thresholds : int, default=10
        m: thresholds of each, the values of the first m structure rows of the leaf.
    min_gain : float, default=0.2
        tau: a split must gain more than this (bits for "entropy"), unless the leaf must be split.
    min_samples_leaf, min_samples_growth : float, default=5.0 and 1.00001
        alpha(d) = min_samples_leaf * min_samples_growth^d: estimation rows that each side of a
        split at depth d must have had. Consistency needs a growth above 1.
    must_split_ratio : float, default=10.0
        beta(d) = must_split_ratio * alpha(d), at least alpha(d): with so many estimation rows a
        leaf is split by its best valid candidate, whatever that gains.
    max_fringe : int or None, default=1000
        Leaves of a tree that keep candidates; this bounds the memory for them, about
        16 (candidate_rate + 2) n_thresholds (K + 2) bytes each. Leaves beyond wait for a place.
    criterion : {"entropy", "gini", "hellinger"}, default="entropy"
        What a gain is: the fall of the entropy in bits or of the Gini impurity, or, for two classes
        of which one is rare, the Hellinger distance.
    structure_share : float, default=0.5
        Probability that a row is of the structure stream of a tree.
    ignore_share : float, default=0.0
        Probability that a tree ignores a row.
    aggregation : {"mean", "vote"}, default="mean"
        How the trees become one: "mean" of the class shares of the leaves, or "vote" of their
        majorities, as in D13.
    max_nodes : int or None, default=None
        Cap on the nodes of a tree; when reached, leaves go on counting and candidates are given up.
    calibrate : bool or "auto", default=False
        As in :class:`dmondrian.AMFClassifier`.
    missing_values, categorical_features, class_weight, random_state, n_jobs
        As in :class:`dmondrian.AMFClassifier`.

    Attributes
    ----------
    classes_ : array of shape (K,)
    n_classes_ : int
    n_features_in_ : int
    feature_names_in_ : array of shape (d,), only if the rows had names
    forest_ : Forest
    feature_importances_ : float64 array of shape (d,)
        Share of each feature in the gains of all splits, on structure rows.
    calibration_exponent_, calibration_weight_ : float
        As in :class:`dmondrian.AMFClassifier`.

    Notes
    -----
    Rows of several passes are numbered on: ``partial_fit`` on the same rows again draws other
    streams. Where labels depend on the order of rows, the streams do not help.

    References
    ----------
    Denil, Matheson, de Freitas (2013), "Consistency of Online Random Forests", ICML.

    Examples
    --------
    >>> import numpy as np
    >>> from dmondrian import OnlineRandomForestClassifier
    >>> X = np.random.default_rng(0).random((2000, 5))
    >>> forest = OnlineRandomForestClassifier(random_state=0).fit(X, X[:, 0] > 0.5)
    >>> forest.predict([[0.1, 0, 0, 0, 0], [0.9, 0, 0, 0, 0]])
    array([False,  True])
    """

    algorithm = "online-forest-classifier"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **OnlineRandomForest._parameter_constraints,
        "calibrate": ForestClassifier._parameter_constraints["calibrate"],
        "class_weight": ForestClassifier._parameter_constraints["class_weight"],
        "criterion": [CRITERION],
        "aggregation": [StrOptions({"mean", "vote"})],
    }

    aggregation: str

    def __init__(
        self,
        n_estimators: int = 10,
        *,
        candidate_rate: float = 10.0,
        n_thresholds: int = 10,
        min_gain: float = 0.2,
        min_samples_leaf: float = 5.0,
        min_samples_growth: float = 1.00001,
        must_split_ratio: float = 10.0,
        max_fringe: int | None = 1000,
        criterion: Literal["entropy", "gini", "hellinger"] = "entropy",
        structure_share: float = 0.5,
        ignore_share: float = 0.0,
        aggregation: Literal["mean", "vote"] = "mean",
        max_nodes: int | None = None,
        calibrate: bool | Literal["auto"] = False,
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        missing_values: Literal["error", "encode"] = "error",
        categorical_features: ArrayLike | Literal["from_dtype"] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.candidate_rate = candidate_rate
        self.n_thresholds = n_thresholds
        self.min_gain = min_gain
        self.min_samples_leaf = min_samples_leaf
        self.min_samples_growth = min_samples_growth
        self.must_split_ratio = must_split_ratio
        self.max_fringe = max_fringe
        self.criterion = criterion
        self.structure_share = structure_share
        self.ignore_share = ignore_share
        self.aggregation = aggregation
        self.max_nodes = max_nodes
        self.calibrate = calibrate
        self.class_weight = class_weight
        self.missing_values = missing_values
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _forest_parameters(self, n_features: int, n_classes: int) -> ForestParameters:
        if self.criterion == "hellinger" and n_classes > 2:
            raise ParameterError(
                f'criterion="hellinger" is of two classes, got {n_classes}: use "entropy" or "gini"'
            )
        return self._parameters_of(n_features, n_classes, self.aggregation)

    def _node_forecasts(self, stat: np.ndarray, offset: float) -> dict[str, np.ndarray]:
        return {"counts": stat[:, 1:-1].copy(), "gain": stat[:, -1].copy()}
