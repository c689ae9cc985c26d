"""Base classes of the Mondrian kernel estimators: partitions, fitting, lifetimes.

Relies on :mod:`dmondrian.kernel_machine`.

Shapes: n rows, d features, T trees, k outputs, L lifetimes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from dmondrian.ensemble.settings.kernel_settings import LARGEST_BATCH, SOLVERS, Joint
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.threads import Turns
from dmondrian.errors import ParameterError
from dmondrian.estimators._sklearn_private import Interval, StrOptions
from dmondrian.estimators.base import BaseForest
from dmondrian.estimators.column_lifetimes import ColumnLifetimes
from dmondrian.estimators.kernel_loss import check_settings, choose_by_loss, fit_values
from dmondrian.estimators.row_parts import TimeBudget
from dmondrian.forest.forest import Forest
from dmondrian.joint_fit.fit import fit_tree_by_tree
from dmondrian.joint_fit.lifetime_sums import Averaged
from dmondrian.joint_fit.lifetime_sweep import KernelPath
from dmondrian.joint_fit.minibatch import learn_batches
from dmondrian.kernel_machine.lifetime_averaging import averaged
from dmondrian.kernel_machine.lifetime_search import choose_lifetime
from dmondrian.tuning.auto_settings import LAST

CHOICES = ("validation", "marginal_likelihood", "average")
_SHARES = 3 * 8  # bytes of the matrices of an exact fit, for each pair of columns


class MondrianPartitions(ColumnLifetimes):
    """Base of estimators with Mondrian partitions of one lifetime; not to be used directly."""

    aggregation, empty_cell, predict_extension = "mean", "prior", "leaf"
    max_nodes, feature_scales, warmup_rows = None, None, LAST

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **{
            name: BaseForest._parameter_constraints[name]
            for name in ("domain", "clip", "random_state", "n_jobs")
        },
        "lifetime": [Interval(Real, 0, None, closed="neither"), "array-like"],
    }

    lifetime: float | str | ArrayLike

    def _partition(self, n_features: int, n_classes: int, joint: Joint) -> ForestParameters:
        if isinstance(self.lifetime, dict):
            raise ParameterError(
                f"lifetime={self.lifetime!r} is of the Mondrian forests, which grow: give a number "
                "> 0, or one for each column"
            )
        shared = self._shared_parameters(n_features)
        is_number = isinstance(self.lifetime, Real)
        at = float(self.lifetime) if is_number else 1.0  # type: ignore[arg-type]  # it is one
        if not np.isfinite(at):
            raise ParameterError(
                f"lifetime={at!r} separates all rows, which leaves no kernel: give a finite number"
            )
        expected = self.domain == "range" and joint.n_outputs > 0
        return ForestParameters(
            **{**shared, "expected_extension": expected},
            n_classes=int(n_classes),
            aggregation="mean",
            lifetime=at,
            split_pure=True,
            empty_prior=True,
            joint=joint,
        )

    @property
    def feature_importances_(self) -> np.ndarray:
        """Not available: splits are independent of labels, and cells are fitted jointly."""
        raise AttributeError(f"{type(self).__name__} has no feature_importances_")


class MondrianKernel(MondrianPartitions):
    """Base of the kernel machines; not to be used directly."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **MondrianPartitions._parameter_constraints,
        "n_estimators": BaseForest._parameter_constraints["n_estimators"],
        "missing_values": BaseForest._parameter_constraints["missing_values"],
        "categorical_features": BaseForest._parameter_constraints["categorical_features"],
        "lifetime": [
            *MondrianPartitions._parameter_constraints["lifetime"],
            StrOptions(set(CHOICES)),
        ],
        "max_lifetime": [Interval(Real, 0, None, closed="neither"), None],
        "lifetime_prior": [StrOptions({"log_uniform", "uniform"})],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "fitting": [StrOptions({"joint", "independent"})],
        "solver": [StrOptions(set(SOLVERS))],
        "regularization": [Interval(Real, 0, None, closed="neither")],
        "signal_std": [Interval(Real, 0, None, closed="neither"), None],
        "max_columns": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [Interval(Integral, 1, LARGEST_BATCH, closed="both")],
        "n_passes": [Interval(Integral, 1, None, closed="left")],
    }

    _takes_sparse: ClassVar[bool] = False  # all rows are read at once
    max_lifetime: float | None
    lifetime_prior: Literal["log_uniform", "uniform"]
    validation_fraction: float
    fitting: Literal["joint", "independent"]
    solver: Literal["sgd", "cholesky", "auto"]
    _loss: str = "squared"
    regularization: float
    signal_std: float | None
    max_columns: int
    batch_size: int
    n_passes: int
    lifetime_path_: KernelPath

    def _forest_parameters(self, n_features: int, n_classes: int = 0) -> ForestParameters:
        joint = Joint(
            max(int(n_classes), 1),
            self.solver,
            is_joint=self.fitting == "joint",
            ridge=float(self.regularization),
            batch_size=int(self.batch_size),
            max_columns=int(self.max_columns),
            scale=None if self.signal_std is None else float(self.signal_std),
            loss=self._loss,
        )
        return self._partition(n_features, n_classes, joint)

    def _run_parameters(
        self, n_features: int, n_classes: int, names: Sequence[str] | None = None
    ) -> ForestParameters:
        drawn = self._forest_parameters(n_features, n_classes)
        return drawn.replace(joint=dataclasses.replace(drawn.joint, solver="sgd"))

    @property
    def lifetime_(self) -> float:
        """Lifetime in use; 1 where each column has its own."""
        return self._fitted_forest().parameters.realised_lifetime

    def _check_stream(self) -> None:
        if self._loss != "squared":
            raise ParameterError(
                f'loss="{self._loss}" has its optimum found for all rows together: call fit, or '
                'learn the stream (or a run on a cluster) with loss="squared"'
            )
        if self._lifetime_choice in CHOICES:
            raise ParameterError(
                f"lifetime={self.lifetime!r} is chosen from all rows: call fit, or learn the "
                "stream with a number"
            )

    def _check_run(self) -> None:
        super()._check_run()
        if self.fitting == "joint" and self.solver == "cholesky":
            raise ParameterError(
                'solver="cholesky" is of one machine: a run on a cluster learns by solver="sgd"'
            )

    def _check_budget(self, budget: TimeBudget | None) -> None:
        if budget is not None:
            raise ParameterError(
                f"time_budget={budget.seconds:g}: rows are fitted together, and a part of the time "
                "would fit none of them; give max_rows, or partial_fit parts of the rows"
            )

    def _learn(
        self, X: np.ndarray, y: np.ndarray, w: np.ndarray | None, n_classes: int, first: bool
    ) -> None:
        y, n_threads = np.asarray(y, np.float64), self._n_threads(len(X))
        if first:
            forest = self._new_forest(X.shape[1], n_classes)
            self._update(forest, X, y, w, n_threads)
            self.forest_, self.n_samples_fit_ = forest, len(X)
        else:
            self._update(self.forest_, X, y, w, n_threads, self._turns)
            if isinstance(self.forest_.exact, Averaged) and self.forest_.exact.path is not None:
                self.lifetime_path_ = self.forest_.exact.path

    def _learn_all(
        self, X: np.ndarray, y: np.ndarray, w: np.ndarray | None, n_classes: int
    ) -> None:
        """Learn rows that are all there are, as often as asked for."""
        check_settings(self._loss, self.fitting, self.solver, self.lifetime)
        y, n_threads = np.asarray(y, np.float64), self._n_threads(len(X))
        self.__dict__.pop("lifetime_path_", None)
        self.n_samples_fit_ = len(X)
        parameters = self._new_forest(X.shape[1], n_classes).parameters
        if self._lifetime_choice is not None:
            search_arguments = (
                parameters,
                int(self.n_estimators),
                (X, y, w),
                n_threads,
                self.max_lifetime,
            )
            if self._lifetime_choice == "average":
                self.forest_, self.lifetime_path_ = averaged(*search_arguments, self.lifetime_prior)
                return
            fraction = float(self.validation_fraction)
            if self._loss == "squared":
                path = choose_lifetime(*search_arguments, self._lifetime_choice, fraction)
            else:
                path = choose_by_loss(*search_arguments, fraction)
            self.lifetime_path_ = path
            parameters = parameters.replace(lifetime=float(path.chosen))
        self.forest_ = self._fitted_at(parameters, X, y, w, n_threads)

    def _fitted_at(
        self,
        parameters: ForestParameters,
        X: np.ndarray,
        y: np.ndarray,
        w: np.ndarray | None,
        n_threads: int,
    ) -> Forest:
        """Return the forest that learned all rows: exactly, or in passes over them."""
        forest = Forest(parameters, range(self.n_estimators))
        if self._loss != "squared":
            fit_values(forest, (X, y, w), n_threads)
            return forest
        self._update(forest, X, y, w, n_threads)
        if not parameters.joint.is_joint:
            fit_tree_by_tree(forest, X, y, w)
            return forest
        if forest.exact is not None:
            return forest
        if self.solver == "auto":  # too many columns: from the first row by batches
            joint = dataclasses.replace(parameters.joint, solver="sgd")
            forest = Forest(parameters.replace(joint=joint), range(self.n_estimators))
            self._update(forest, X, y, w, n_threads)
        for _ in range(1, int(self.n_passes)):
            learn_batches(forest, X, y, w, n_threads, again=True)
        return forest

    def _update(
        self,
        forest: Forest,
        X: np.ndarray,
        y: np.ndarray,
        w: np.ndarray | None,
        n_threads: int,
        turns: Turns | None = None,
    ) -> None:
        if forest.exact is not None:
            from dmondrian._memory_limit import usable_bytes  # not needed for mini-batches

            forest.exact.most = int((usable_bytes() / 2 / _SHARES) ** 0.5)
        forest.update(X, y, w, n_threads, turns)

    def _node_forecasts(self, stat: np.ndarray, offset: float) -> dict[str, np.ndarray]:
        return {"weight": stat[:, 0].copy()}
