"""Forests under a loss of the user's own: predictions by the cells that are used.

Relies on :class:`dmondrian.forest.custom_loss.ConvexLoss` for values of nodes, and on the forest's
answers for which node is used at a row.

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

_CHUNK = 4096  # rows whose cells are looked up at once


class OwnLoss(GeneralizedMondrianForest):
    """Adds losses of the user's own to an estimator; not to be used directly."""

    _solved: tuple[Forest, float, list[tuple[np.ndarray, np.ndarray]]]

    @property
    def _own(self) -> ConvexLoss | None:
        """The user's loss that was learned, whatever was set since; None for another."""
        loss = self._begun_with["loss"]
        return loss if isinstance(loss, ConvexLoss) else None

    def _check_own(self) -> None:
        """Refuse what asks the loss of compiled trees."""
        refusals = {
            "aggregation": (self.aggregation == "aggregate", "prices rows as they are learned"),
            "lifetime": (
                self._way == "prequential",
                'prices rows as they are learned; use "penalized", "validation" or choose_lifetime',
            ),
            "feature_scales": (isinstance(self.feature_scales, str), "are learned by the loss"),
            "predict_extension": (
                self.predict_extension != "leaf",
                "asks cells that are not there",
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
        self._tell_risks()

    def _tell_risks(self) -> None:
        """Let the forest, whose trees may choose their lifetimes, know what nodes' rows lose."""
        own, bound = self._own, self._begun_with["bound"]
        if own is not None:
            is_binary = self._fitted_cost().is_binary
            self.forest_.predictor.node_risks = lambda tree: own.solve(tree, bound, is_binary)[1]

    def _solutions(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return what the nodes of each tree say, and risks; found once after learning."""
        forest, own, bound = self.forest_, self._own, self._begun_with["bound"]
        assert own is not None  # asked by those who know
        known = self.__dict__.get("_solved")
        if known is None or known[0] is not forest or known[1] != forest.total_weight:
            is_binary = self._fitted_cost().is_binary
            solved = [own.solve(tree, bound, is_binary) for tree in forest.trees]
            known = self._solved = forest, forest.total_weight, solved
        solutions: list[tuple[np.ndarray, np.ndarray]] = known[2]
        return solutions

    def _means(self, X: np.ndarray, lifetimes: np.ndarray) -> np.ndarray:
        """Return the mean over trees at each lifetime, [L] or of each tree [T, L]; [L, n, 1]."""
        forest, solutions = self.forest_, self._solutions()
        chosen = forest.policies._replace(loss=Cell(bool(forest.parameters.empty_prior)))
        found = np.zeros((lifetimes.shape[-1], len(X), 1))
        for start in range(0, len(X), _CHUNK):
            rows = slice(start, start + _CHUNK)
            speakers = forest.answers(X[rows], chosen, lifetimes, 1)[..., 0].astype(np.int64)
            for (z, _), speaks in zip(solutions, speakers, strict=True):
                found[:, rows, 0] += np.where(speaks >= 0, z[speaks], 0.0).T
        return found / len(solutions)

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
        told = super().nodes(tree)
        if self._own is not None:
            z, told["risk"] = self._solutions()[int(tree)]
            told["forecast"] = z[:, None].copy()
        return told

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
        state.pop("_solved", None)  # found again
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if hasattr(self, "forest_"):
            self._tell_risks()

    def _adopt(
        self,
        forest: Forest,
        classes: np.ndarray | None = None,
        feature_names: Iterable[str] | None = None,
    ) -> Self:
        fitted = super()._adopt(forest, classes, feature_names)
        fitted._tell_risks()
        return fitted
