"""Base class of the generalised Mondrian forests (Z24): a loss, bounds, and chosen lifetimes.

Relies on :class:`dmondrian.estimators.chosen_lifetime.ChosenLifetime` and on
:mod:`dmondrian.ensemble.lifetime_selection`.

Shapes: n rows, d features, k outputs, L lifetimes, T trees.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from dmondrian.ensemble.lifetime_selection import held_out, held_out_path, lifetime_grid
from dmondrian.ensemble.lifetime_selection_kernels import assess
from dmondrian.ensemble.settings.lifetime import Lifetime, PowerLifetime
from dmondrian.ensemble.settings.loss_settings import SELECTIONS, Cost, responses, theory_rate
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.estimators._sklearn_private import Interval, StrOptions
from dmondrian.estimators.chosen_lifetime import ChosenLifetime
from dmondrian.estimators.one_state import in_one_state
from dmondrian.prequential.progressive_validation_kernels import write_losses
from dmondrian.tree.nodes import N_NODES

_CANDIDATES = 128  # lifetimes that held-out rows choose from
_CHUNK = 4096  # held-out rows predicted at a time


class GeneralizedMondrianForest(ChosenLifetime):
    """Base of the generalised Mondrian forests; not to be used directly."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **ChosenLifetime._parameter_constraints,
        "aggregation": [StrOptions({"mean", "aggregate"})],
        "learning_rate": [StrOptions({"theory"}), Interval(Real, 0, None, closed="neither")],
        "lifetime": [
            *ChosenLifetime._parameter_constraints["lifetime"],
            StrOptions({*SELECTIONS, "validation"}),
        ],
        "predict_extension": [StrOptions({"leaf", "expected"})],
    }

    _choices = '"penalized", "prequential" or "validation"'

    loss: Any
    learning_rate: Any

    def _cost(self) -> Cost:
        """Return the loss settings."""
        return Cost(
            self.loss,
            bound=None if self.bound is None else float(self.bound),
            selection=self._lifetime_choice if self._lifetime_choice in SELECTIONS else None,
            penalty=None if self.penalty is None else float(self.penalty),
            rate=self._rate(),
        )

    def _rate(self) -> float:
        """Return the learning rate of the mixture over prunings; 0 without one."""
        if self.aggregation != "aggregate":
            return 0.0
        is_fixed = isinstance(self.lifetime, Real) or self._has_column_lifetimes
        if not (self.lifetime is None or is_fixed):
            raise ParameterError(
                'aggregation="aggregate" mixes over all prunings of the tree, which has one '
                f"lifetime: use a number or None, not lifetime={self.lifetime!r}"
            )
        if self.bound is None:
            raise ParameterError(
                'aggregation="aggregate" needs a bound: a loss is exp-concave for bounded z only'
            )
        theory = theory_rate(self.loss, float(self.bound))
        return theory if self.learning_rate == "theory" else float(self.learning_rate)

    def _given_lifetime(self, n_features: int) -> Lifetime:
        if self._lifetime_choice not in (None, "grow"):
            return None
        return super()._given_lifetime(n_features)

    def _check_stream(self) -> None:
        if self._lifetime_choice == "validation":
            raise ParameterError(
                'lifetime="validation" holds out rows of a fit: call fit; or learn the stream with '
                'lifetime=None and call choose_lifetime with held-out rows; or use "prequential"'
            )

    def _parameters_of(self, n_features: int, n_classes: int) -> ForestParameters:
        if self.loss == "geometric" and (self.empty_cell == "prior" or (self.bound or 2.0) <= 1.0):
            raise ParameterError(
                "the geometric family has z in [-bound, -1 / bound]: use a bound > 1, and "
                'empty_cell="parent", as 0 is no value of z'
            )
        return ForestParameters(
            **self._shared_parameters(n_features),
            n_classes=int(n_classes),
            split_pure=True,
            horizon=None if self.max_lifetime is None else float(self.max_lifetime),
            cost=self._cost(),
        )

    def _learn(
        self, X: Any, y: np.ndarray, w: np.ndarray | None, n_classes: int, first: bool
    ) -> None:
        if first:
            self.__dict__.pop("_held_out_path", None)
        if not first or self._lifetime_choice != "validation":
            super()._learn(X, y, w, n_classes, first)
            return
        held = held_out(X.shape[0], float(self.validation_fraction))
        mine = None if w is None else w[~held]
        super()._learn(X[~held], y[~held], mine, n_classes, first)
        self._choose(X[held], np.asarray(y[held], np.float64), None if w is None else w[held])

    def choose_lifetime(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Choose one lifetime for all trees: the one of least loss of the forest on these rows.

        Candidates are 128 lifetimes from the first split to the last, evenly in their logarithm.
        Nothing is learned; later rows are learned and predictions keep the lifetime.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows that the forest did not learn.
        y : array-like of shape (n,)
        sample_weight : array-like of shape (n,), optional

        Returns
        -------
        This estimator

        Raises
        ------
        ParameterError
            If the forest mixes over prunings, which listens to all lifetimes; if the rows have no
            weight, or no finite loss.
        """
        check_is_fitted(self)
        with self._learner(anew=False):
            numeric = self.forest_.parameters.n_classes == 0
            X, y, w = self._validate_rows(X, y, sample_weight, first=False, numeric=numeric)
            labels = self._checked_labels(y)
            self._choose(X, labels, self._class_weighted(labels.astype(np.int64), w, 0.0))
        return self

    def _choose(self, X: Any, y: np.ndarray, w: np.ndarray | None) -> None:
        forest = self.forest_
        parameters, cost = forest.parameters, self._fitted_cost()
        forest.check_learned()
        cost.check_labels(y)
        grid = lifetime_grid(forest.trees, _CANDIDATES)
        losses = np.zeros(len(grid))
        for start in range(0, X.shape[0], _CHUNK):
            rows = slice(start, start + _CHUNK)
            chunk_weights = None if w is None else w[rows]
            losses += self._held_out_losses(self._as_seen(X, rows), y[rows], chunk_weights, grid)
        path = held_out_path(grid, losses, float(len(y) if w is None else w.sum()))
        chosen = dataclasses.replace(cost, lifetime=float(path.chosen[0]), selection=None)
        with self._turns.alone():
            forest.parameters = parameters.replace(cost=chosen)
            self._held_out_path = path
            self._forget()

    def _held_out_losses(
        self, X: np.ndarray, y: np.ndarray, w: np.ndarray | None, grid: np.ndarray
    ) -> np.ndarray:
        """Return the total loss of the forest at each lifetime, float64 [L]."""
        sums = self.forest_.predict_sums(X, n_threads=self._n_threads(), lifetimes=grid)
        out, total = np.empty(len(X)), np.empty(len(grid))
        for stage in range(len(grid)):
            policy, summed = self.forest_.policies.loss, np.ascontiguousarray(sums.total[stage])
            write_losses(policy, summed, sums.n_trees, y, out)
            total[stage] = (out if w is None else out * w).sum()
        return total

    def _responses_at(self, X: Any, lifetimes: Iterable[float] | None) -> np.ndarray:
        """Return means of labels, float64 [n, k], or [L, n, k] where lifetimes are given."""
        z = self._mean_prediction(X) if lifetimes is None else self._predictions_at(X, lifetimes)
        return responses(self._fitted_cost().loss, z)

    @in_one_state
    def nodes(self, tree: int) -> dict[str, Any]:
        """Return one tree as arrays.

        Parameters
        ----------
        tree : int
            Index of the tree, 0 .. n_estimators - 1.

        Returns
        -------
        dict
            As in :class:`dmondrian.MondrianForestRegressor`, and ``forecast``, the prediction of
            each cell (float64 [m, k], on the scale of the loss; 0 in cells without rows) and
            ``risk``, the total loss of its rows with it (float64 [m]).
        """
        fields = super().nodes(tree)
        arrays = self.forest_.trees[tree]
        m = int(arrays.head_i[N_NODES])
        fields["forecast"], fields["risk"] = np.zeros((m, self.forest_.n_outputs)), np.zeros(m)
        assess(self.forest_.policies.loss, arrays, fields["forecast"], fields["risk"])
        return fields

    def _node_forecasts(self, stat: np.ndarray, offset: float) -> dict[str, np.ndarray]:
        seen = stat[:, 0] > 0.0  # a cell of the cube may have no rows
        means = np.full(len(stat), np.nan)
        return {"mean": offset + np.divide(stat[:, 1], stat[:, 0], out=means, where=seen)}


Chosen = PowerLifetime | dict[str, float] | float | str | ArrayLike | None
"""Types of ``lifetime``."""
