"""Mixin for custom losses: predictions from the solutions of a `ConvexLoss` in each node.

Relies on :class:`dmondrian.forest.custom_loss.ConvexLoss` for values of nodes, and on the forest
for the node that predicts a row.

Shapes: n rows, m nodes, L lifetimes, T trees.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dmondrian.ensemble.settings.lifetime import check_lifetimes
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.estimators.generalized import GeneralizedMondrianForest
from dmondrian.estimators.one_state import in_one_state
from dmondrian.forest.custom_loss import CLASSES, ConvexLoss
from dmondrian.forest.forest import Forest
from dmondrian.losses.cell import Cell

_CHUNK = 4096  # rows predicted at a time


class OwnLoss(GeneralizedMondrianForest):
    """Mixin that adds custom losses to an estimator; not to be used directly."""

    _solved: tuple[Forest, float, list[tuple[np.ndarray, np.ndarray]]]

    @property
    def _own(self) -> ConvexLoss | None:
        """The custom loss of the fitted forest, whatever was set since; None for a built-in one."""
        loss = self._begun_with["loss"]
        return loss if isinstance(loss, ConvexLoss) else None

    def _check_own(self) -> None:
        """Refuse parameters that need the loss in compiled code."""
        refusals = {
            "aggregation": (self.aggregation == "aggregate", "prices rows as they are learned"),
            "lifetime": (
                self._lifetime_choice == "prequential",
                'prices rows as they are learned; use "penalized", "validation" or choose_lifetime',
            ),
            "feature_scales": (isinstance(self.feature_scales, str), "are learned by the loss"),
            "predict_extension": (
                self.predict_extension != "leaf",
                "needs cells that do not exist",
            ),
        }
        for name, (is_asked, reason) in refusals.items():
            if is_asked:
                raise ParameterError(
                    f"{name}={getattr(self, name)!r} {reason}: not with a loss of your own, whose "
                    "functions the trees do not know"
                )

    def _check_run(self) -> None:
        super()._check_run()
        if isinstance(self.loss, ConvexLoss):
            raise ParameterError(
                "a run's workers and checkpoints hold no functions: a loss of your own can be "
                "fitted on arrays only"
            )

    def _parameters_of(self, n_features: int, n_classes: int) -> ForestParameters:
        if isinstance(self.loss, ConvexLoss):
            self._check_own()
        return super()._parameters_of(n_features, n_classes)

    def _learn(
        self, X: np.ndarray, y: np.ndarray, w: np.ndarray | None, n_classes: int, first: bool
    ) -> None:
        if isinstance(self.loss, ConvexLoss) and first:
            labels = CLASSES if n_classes else np.asarray(y, np.float64)
            self.loss.warn_unless_sound(labels, self.bound)
            if n_classes:
                self.loss.warn_unless_of_classes()
        self.__dict__.pop("_solved", None)
        super()._learn(X, y, w, n_classes, first)
        self._set_node_risks()

    def _set_node_risks(self) -> None:
        """Give the forest the function for the risks of nodes, by which trees choose lifetimes."""
        own_loss, bound = self._own, self._begun_with["bound"]
        if own_loss is not None:
            is_binary = self._fitted_cost().is_binary
            self.forest_.predictor.node_risks = lambda tree: own_loss.solve(tree, bound, is_binary)[
                1
            ]

    def _solutions(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the solution and risk of each node of each tree; computed once after learning."""
        forest, own_loss, bound = self.forest_, self._own, self._begun_with["bound"]
        assert own_loss is not None  # checked by the caller
        known = self.__dict__.get("_solved")
        if known is None or known[0] is not forest or known[1] != forest.total_weight:
            is_binary = self._fitted_cost().is_binary
            solved = [own_loss.solve(tree, bound, is_binary) for tree in forest.trees]
            known = self._solved = forest, forest.total_weight, solved
        solutions: list[tuple[np.ndarray, np.ndarray]] = known[2]
        return solutions

    def _means(self, X: np.ndarray, lifetimes: np.ndarray) -> np.ndarray:
        """Return the mean over trees at each lifetime, [L] or of each tree [T, L]; [L, n, 1]."""
        forest, solutions = self.forest_, self._solutions()
        chosen = forest.policies._replace(loss=Cell(bool(forest.parameters.empty_prior)))
        sums = np.zeros((lifetimes.shape[-1], len(X), 1))
        for start in range(0, len(X), _CHUNK):
            rows = slice(start, start + _CHUNK)
            nodes_of_rows = forest.answers(X[rows], chosen, lifetimes, 1)[..., 0].astype(np.int64)
            for (z, _), ids in zip(solutions, nodes_of_rows, strict=True):
                sums[:, rows, 0] += np.where(ids >= 0, z[ids], 0.0).T
        return sums / len(solutions)

    def _mean_prediction(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        if self._own is None:
            return super()._mean_prediction(X)
        with self._turns.reading():
            X = self._check_rows(X)
            return self._means(X, self.forest_.tree_lifetimes())[0]

    @in_one_state
    def _predictions_at(self, X: Any, lifetimes: Iterable[float]) -> np.ndarray:
        check_is_fitted(self)
        if self._own is None:
            return super()._predictions_at(X, lifetimes)
        X = self._check_rows(X)
        realised = self.forest_.parameters.realised_lifetime
        return self._means(X, check_lifetimes(lifetimes, realised))

    def _held_out_losses(
        self, X: np.ndarray, y: np.ndarray, w: np.ndarray | None, grid: np.ndarray
    ) -> np.ndarray:
        if self._own is None:
            return super()._held_out_losses(X, y, w, grid)
        labels = 2.0 * y - 1.0 if self._fitted_cost().is_binary else y
        prices = self._own.prices(self._means(X, grid)[:, :, 0], labels)
        return (prices if w is None else prices * w).sum(axis=1)

    @in_one_state
    def nodes(self, tree: int) -> dict[str, Any]:
        """Return one tree as arrays, ``forecast`` and ``risk`` by the user's own loss.

        Parameters
        ----------
        tree : int
            Index of the tree, 0 .. n_estimators - 1.
        """
        fields = super().nodes(tree)
        if self._own is not None:
            z, fields["risk"] = self._solutions()[int(tree)]
            fields["forecast"] = z[:, None].copy()
        return fields

    def _merged(self, *others: Self) -> Self:
        check_is_fitted(self)
        losses = [getattr(other, "_begun_with", {}).get("loss") for other in others]
        if any(loss != self._begun_with["loss"] for loss in losses):
            raise ParameterError("forests of other losses cannot be merged: give all the same one")
        return super()._merged(*others)

    @in_one_state
    def save(self, path: Any) -> None:
        """Write the fitted estimator as a checkpoint, without pickle.

        Parameters
        ----------
        path : path or URL
            A new folder (or object store prefix); see :func:`dmondrian.load`.

        Raises
        ------
        ParameterError
            If the loss is the user's own, whose functions no checkpoint holds.
        """
        check_is_fitted(self)
        if self._own is not None:
            raise ParameterError(
                "a checkpoint holds no functions, so a loss of your own cannot be saved: pickle "
                "the estimator where the functions can be imported"
            )
        super().save(path)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_solved", None)  # computed again
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if hasattr(self, "forest_"):
            self._set_node_risks()

    def _adopt(
        self,
        forest: Forest,
        classes: np.ndarray | None = None,
        feature_names: Iterable[str] | None = None,
    ) -> Self:
        fitted = super()._adopt(forest, classes, feature_names)
        fitted._set_node_risks()
        return fitted
