"""The regressor of AMF: Mondrian forests that mix over all prunings of every tree (M21).

Shapes: n rows, d features, T trees.
"""

from __future__ import annotations

from numbers import Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import RegressorMixin, _fit_context
from sklearn.utils._param_validation import Interval, StrOptions

from dmondrian.errors import DataError
from dmondrian.estimators.base import BaseForest
from dmondrian.parameters import ForestParameters

_LARGEST_TARGET = 1e140  # squares of differences and their sums stay finite
AUTO_RATE = 8.0  # learning rate x variance; see benchmarks/README.md for the ablation


class AMFRegressor(RegressorMixin, BaseForest):
    """Aggregated Mondrian forest regressor, learning row by row.

    Shifting or scaling the target changes nothing: the learning rate is in units of the
    variance of the labels seen.

    Parameters
    ----------
    n_estimators : int, default=10
        Trees.
    learning_rate : float, "auto" or "theory", default="auto"
        A float r stands for r / (variance of the labels); "auto" is 8; "theory" is
        M21's 1 / (8 B^2), B half the range of the labels, far too timid in practice. The
        variance is taken anew when the weight of rows passes a power of two.
    charge_opening : bool, default=False
        Whether the row that opens a leaf pays its parent's error there, as in the paper.
    use_aggregation, predict_extension, max_nodes, feature_scales, random_state, n_jobs
        As in :class:`dmondrian.AMFClassifier`. There is no ``split_pure``: labels are continuous.

    Attributes
    ----------
    n_features_in_ : int
    feature_names_in_ : array of shape (d,), only if the rows had names
    forest_ : Forest

    References
    ----------
    Mourtada, Gaiffas, Scornet (2021), Equation 4 and Corollary 2.

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
        **BaseForest._parameter_constraints,
        "learning_rate": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"auto", "theory"}),
        ],
    }

    def __init__(
        self,
        n_estimators: int = 10,
        *,
        learning_rate: float | Literal["auto", "theory"] = "auto",
        charge_opening: bool = False,
        use_aggregation: bool = True,
        predict_extension: Literal["leaf", "expected"] = "leaf",
        max_nodes: int | None = None,
        feature_scales: Literal["learned"] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.learning_rate = learning_rate
        self.charge_opening = charge_opening
        self.use_aggregation = use_aggregation
        self.predict_extension = predict_extension
        self.max_nodes = max_nodes
        self.feature_scales = feature_scales
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _forest_parameters(self, n_features: int, n_classes: int = 0) -> ForestParameters:
        named = {"auto": AUTO_RATE, "theory": 0.0}
        rate = self.learning_rate
        return ForestParameters(
            **self._shared_parameters(n_features),
            n_classes=0,
            learning_rate=named[rate] if isinstance(rate, str) else float(rate),
            charge_opening=bool(self.charge_opening),
            split_pure=True,
        )

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn rows from nothing, in their order.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Taken as float32. Splits follow the ranges of the columns: scale them.
        y : array-like of shape (n,)
        sample_weight : array-like of shape (n,), optional
            Non-negative; a whole weight w equals w repeats of the row (to the byte up to
            256, beyond that by a closed form that differs in the last digits).

        Returns
        -------
        AMFRegressor
        """
        with self._all_or_nothing():
            X, y, w = self._validate_rows(X, y, sample_weight, first=True, numeric=True)
            self._check_some_weight(w)
            self._learn(X, _bounded(y), w, 0, first=True)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn more rows, in their order; parameters as in :meth:`fit`."""
        with self._all_or_nothing():
            first = not hasattr(self, "forest_")
            if not first:
                self._check_unchanged()
            X, y, w = self._validate_rows(X, y, sample_weight, first=first, numeric=True)
            self._learn(X, _bounded(y), w, 0, first=first)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted mean of each row, float64 [n]."""
        return self._mean_prediction(X)[:, 0]

    def _node_forecasts(self, stat: np.ndarray, offset: float) -> dict[str, np.ndarray]:
        return {"mean": offset + stat[:, 1] / stat[:, 0]}


def _bounded(y: np.ndarray) -> np.ndarray:
    """Return targets; refuse those whose squares no float64 holds."""
    largest = float(np.abs(y).max(initial=0.0))
    if largest > _LARGEST_TARGET:
        raise DataError(
            f"y has a value of size {largest:.3g}, expected at most {_LARGEST_TARGET:.0e}: "
            "scale the target"
        )
    return y
