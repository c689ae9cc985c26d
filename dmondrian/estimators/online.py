"""Base class of the online random forests (D13): settings, nodes, importances.

Relies on :mod:`dmondrian.ensemble.settings.fringe_settings`.

Shapes: d features, m nodes.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

from dmondrian.ensemble.settings.fringe_settings import (
    LARGEST_RATE,
    MOST_POINTS,
    NO_CAP,
    FringeSettings,
)
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.estimators._sklearn_private import Interval, StrOptions
from dmondrian.estimators.base import BaseForest
from dmondrian.estimators.one_state import in_one_state
from dmondrian.tree import nodes
from dmondrian.tuning.auto_settings import LAST


class OnlineRandomForest(BaseForest):
    """Base of the online random forests; not to be used directly."""

    # Parameters of other forests that do not apply: no scales, no extensions.
    domain, clip, feature_scales, warmup_rows = "range", False, None, LAST
    predict_extension = "leaf"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **{
            name: BaseForest._parameter_constraints[name]
            for name in (
                "n_estimators",
                "max_nodes",
                "missing_values",
                "categorical_features",
                "random_state",
                "n_jobs",
            )
        },
        "candidate_rate": [Interval(Real, 0, LARGEST_RATE, closed="both")],
        "n_thresholds": [Interval(Integral, 1, MOST_POINTS, closed="both")],
        "min_gain": [Interval(Real, 0, None, closed="left")],
        "min_samples_leaf": [Interval(Real, 0, None, closed="neither")],
        "min_samples_growth": [Interval(Real, 1, None, closed="left")],
        "must_split_ratio": [Interval(Real, 0, None, closed="neither")],
        "max_fringe": [Interval(Integral, 1, NO_CAP, closed="both"), None],
        "structure_share": [Interval(Real, 0, 1, closed="neither")],
        "ignore_share": [Interval(Real, 0, 1, closed="left")],
    }

    candidate_rate: float
    n_thresholds: int
    min_gain: float
    min_samples_leaf: float
    min_samples_growth: float
    must_split_ratio: float
    max_fringe: int | None
    criterion: str
    structure_share: float
    ignore_share: float

    def _settings(self) -> FringeSettings:
        """Return the settings of split selection; refuse inconsistent ones."""
        if self.must_split_ratio < 1.0:
            raise ParameterError(
                "must_split_ratio is beta(d) / alpha(d), and D13 needs beta(d) >= alpha(d): a leaf "
                "must split no sooner than it may; expected a number >= 1, got "
                f"{self.must_split_ratio!r}"
            )
        if self.structure_share + self.ignore_share >= 1.0:
            raise ParameterError(
                "structure_share + ignore_share should be below 1, so that rows are left to "
                f"estimate by; got {self.structure_share!r} + {self.ignore_share!r}"
            )
        return FringeSettings(
            candidate_rate=float(self.candidate_rate),
            n_thresholds=int(self.n_thresholds),
            min_gain=float(self.min_gain),
            min_samples_leaf=float(self.min_samples_leaf),
            min_samples_growth=float(self.min_samples_growth),
            must_split_ratio=float(self.must_split_ratio),
            max_fringe=None if self.max_fringe is None else int(self.max_fringe),
            criterion=self.criterion,
            structure_share=float(self.structure_share),
            ignore_share=float(self.ignore_share),
        )

    def _check_stream(self) -> None:
        self._settings()

    def _parameters_of(self, n_features: int, n_classes: int, aggregation: str) -> ForestParameters:
        return ForestParameters(
            **self._shared_parameters(n_features),
            n_classes=int(n_classes),
            split_pure=True,
            aggregation=aggregation,
            empty_prior=True,
            fringe=self._settings(),
        )

    @property
    @in_one_state
    def feature_importances_(self) -> np.ndarray:
        """Share of each feature in the gains of all splits, float64 [d], sum 1.

        The gain of a split is that of the structure rows by which it was chosen, times their
        weight. All zeros before the first split.
        """
        gains = np.zeros(self._fitted_forest().parameters.n_features)
        for tree in self.forest_.trees:
            used = int(tree.head_i[nodes.N_NODES])
            inside = np.flatnonzero(tree.i[:used, nodes.LEFT] >= 0)
            last = nodes.STAT + tree.n_stats - 1
            np.add.at(gains, tree.i[inside, nodes.FEATURE], tree.d[inside, last])
        total = gains.sum()
        return self._of_columns(gains / total if total > 0.0 else gains)

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
            Arrays with one entry per node, copies: ``left``, ``right``, ``parent`` (int32 node
            ids, -1 for none), ``feature`` (int32, -1 at leaves), ``threshold`` (float32; rows with
            x <= threshold go left), ``depth`` (int64), ``time`` (float64, of a split its depth + 1,
            inf at leaves), ``gain`` (float64, of the split times the weight of its structure rows,
            0 at leaves), ``fringe`` (bool, whether the leaf has candidates), ``n_rows`` (float64,
            weight of the estimation rows; of a split those until it was made), and ``counts``
            (float64 [m, K], classifiers) or ``mean`` (float64, regressors; nan without rows); and
            ``root``, the id of the root. Ids are permanent.
        """
        fields = super().nodes(tree)
        del fields["candidates"], fields["candidates_size"]
        parent, time = fields["parent"], fields["time"]
        fields["depth"] = np.where(parent >= 0, time[parent], 0.0).astype(np.int64)
        fields["fringe"] = fields["fringe"] == 1
        fields["gain"] = np.where(fields["left"] >= 0, fields["gain"], 0.0)
        return fields


CRITERION = StrOptions({"entropy", "gini", "hellinger"})
