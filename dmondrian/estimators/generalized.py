"""What the generalised Mondrian forests share (Z24): a loss, limits, and what cells say.

Relies on :class:`dmondrian.estimators.mondrian.MondrianForest`.

Shapes: n rows, d features, k outputs, L lifetimes.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from dmondrian.core.assess import assess
from dmondrian.core.nodes import N_NODES
from dmondrian.cost import Cost, responses
from dmondrian.errors import ParameterError
from dmondrian.estimators.mondrian import MondrianForest
from dmondrian.parameters import ForestParameters


class GeneralizedMondrianForest(MondrianForest):
    """Base of the generalised Mondrian forests; not to be used directly."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **MondrianForest._parameter_constraints,
        "bound": [Interval(Real, 0, None, closed="neither"), None],
        "max_lifetime": [Interval(Real, 0, None, closed="neither"), None],
        "predict_extension": [StrOptions({"leaf", "expected"})],
    }

    loss: Any
    bound: float | None
    max_lifetime: float | None
    aggregation = "mean"

    def _cost(self) -> Cost:
        """Return what the cells minimise."""
        bound = None if self.bound is None else float(self.bound)
        return Cost(self.loss, bound=bound)

    def _parameters_of(self, n_features: int, n_classes: int) -> ForestParameters:
        cost = self._cost()
        if cost.loss == "geometric" and self.empty_cell == "prior":
            raise ParameterError(
                'empty_cell="prior" lets empty cells say 0, which is no value of the geometric '
                'family (z < 0): use empty_cell="parent"'
            )
        return ForestParameters(
            **self._shared_parameters(n_features),
            n_classes=int(n_classes),
            split_pure=True,
            horizon=None if self.max_lifetime is None else float(self.max_lifetime),
            cost=cost,
        )

    def _fitted_cost(self) -> Cost:
        cost = self.forest_.parameters.cost
        assert cost is not None  # every generalised forest has one
        return cost

    def _responses_at(self, X: Any, lifetimes: Iterable[float] | None) -> np.ndarray:
        """Return means of labels, float64 [n, k], or [L, n, k] where lifetimes are given."""
        z = self._mean_prediction(X) if lifetimes is None else self._predictions_at(X, lifetimes)
        return responses(self._fitted_cost().loss, z)

    def nodes(self, tree: int) -> dict[str, Any]:
        """Return one tree as arrays.

        Parameters
        ----------
        tree : int
            Index of the tree, 0 .. n_estimators - 1.

        Returns
        -------
        dict
            As in :class:`dmondrian.MondrianForestRegressor`, and ``forecast``, what each cell says
            (float64 [m, k], on the scale of the loss; 0 in cells without rows) and ``risk``, the
            total loss of its rows by it (float64 [m]).
        """
        told = super().nodes(tree)
        arrays = self.forest_.trees[tree]
        m = int(arrays.head_i[N_NODES])
        told["forecast"], told["risk"] = np.zeros((m, self.forest_.n_outputs)), np.zeros(m)
        assess(self.forest_.policies.loss, arrays, told["forecast"], told["risk"])
        return told

    def _node_forecasts(self, stat: np.ndarray, offset: float) -> dict[str, np.ndarray]:
        seen = stat[:, 0] > 0.0  # a cell of the cube may have no rows
        means = np.full(len(stat), np.nan)
        return {"mean": offset + np.divide(stat[:, 1], stat[:, 0], out=means, where=seen)}
