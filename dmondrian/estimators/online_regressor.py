"""The regressor in the frame of online random forests with stream partitioning (D13).

Shapes: n rows, d features.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.estimators.online import OnlineRandomForest
from dmondrian.estimators.regressor import ForestRegressor


class OnlineRandomForestRegressor(OnlineRandomForest, ForestRegressor):
    """Random forest for numbers that chooses its splits by the fall of the variance, online.

    The frame is that of :class:`dmondrian.OnlineRandomForestClassifier`: streams, candidates and a
    bounded fringe. D13 proves consistency for classification only. A tree forecasts 0 until a row
    has come to its estimation stream, and is averaged in: of the first few rows alone the mean of
    trees may be nearer to 0 than all labels.

    Parameters
    ----------
    n_estimators : int, default=10
        Trees.
    candidate_rate, n_thresholds
        As in :class:`dmondrian.OnlineRandomForestClassifier`.
    min_gain : float, default=0.2
        tau: a split must explain more than this share of the variance in its cell, unless the leaf
        must be split.
    min_samples_leaf, min_samples_growth, must_split_ratio, max_fringe
    structure_share, ignore_share
        As in :class:`dmondrian.OnlineRandomForestClassifier`; a leaf of the fringe takes about
        56 (candidate_rate + 2) n_thresholds bytes.
    max_nodes, missing_values, categorical_features, random_state, n_jobs
        As in :class:`dmondrian.OnlineRandomForestClassifier`.

    Attributes
    ----------
    n_features_in_, feature_names_in_, forest_, feature_importances_
        As in :class:`dmondrian.OnlineRandomForestClassifier`; importances are in squared units of
        the label before they are shares.

    References
    ----------
    Denil, Matheson, de Freitas (2013), "Consistency of Online Random Forests", ICML.

    Examples
    --------
    >>> import numpy as np
    >>> from dmondrian import OnlineRandomForestRegressor
    >>> X = np.random.default_rng(0).random((2000, 5))
    >>> forest = OnlineRandomForestRegressor(random_state=0).fit(X, X[:, 0])
    >>> bool(forest.predict([[0.9, 0, 0, 0, 0]])[0] > 0.7)
    True
    """

    algorithm = "online-forest-regressor"
    criterion = "squared_error"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **OnlineRandomForest._parameter_constraints
    }

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
        structure_share: float = 0.5,
        ignore_share: float = 0.0,
        max_nodes: int | None = None,
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
        self.structure_share = structure_share
        self.ignore_share = ignore_share
        self.max_nodes = max_nodes
        self.missing_values = missing_values
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _forest_parameters(self, n_features: int, n_classes: int) -> ForestParameters:
        return self._parameters_of(n_features, 0, "mean")

    def _node_forecasts(self, stat: np.ndarray, offset: float) -> dict[str, np.ndarray]:
        return {**super()._node_forecasts(stat, offset), "gain": stat[:, -1].copy()}
