"""Base class of the Mondrian forests with a lifetime, which predict at any shorter one.

Relies on trees that keep the statistics of every node, so that one tree predicts at every
lifetime up to its own.

Shapes: n rows, d features, k outputs, L lifetimes.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from dmondrian.ensemble.settings.lifetime import Lifetime, PowerLifetime, check_lifetimes
from dmondrian.errors import ParameterError
from dmondrian.estimators._sklearn_private import Interval, StrOptions
from dmondrian.estimators.base import BaseForest
from dmondrian.estimators.class_weight import BALANCED
from dmondrian.estimators.column_lifetimes import ColumnLifetimes
from dmondrian.estimators.one_state import in_one_state, one_state
from dmondrian.forest.merge import merge


class MondrianForest(ColumnLifetimes):
    """Base of the Mondrian forests; not to be used directly."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BaseForest._parameter_constraints,
        "lifetime": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"grow"}),
            PowerLifetime,
            dict,
            "array-like",
            None,
        ],
        "predict_extension": [StrOptions({"auto", "leaf", "expected"})],
        "empty_cell": [StrOptions({"parent", "prior"})],
    }

    lifetime: float | str | PowerLifetime | dict[str, float] | ArrayLike | None
    aggregation: str
    empty_cell: Literal["parent", "prior"]

    def _shared_parameters(self, n_features: int) -> dict[str, Any]:
        expected = self.predict_extension == "expected" or (
            self.predict_extension == "auto" and self.aggregation == "hierarchy"
        )
        return {
            **super()._shared_parameters(n_features),
            "aggregation": self.aggregation,
            "expected_extension": expected,
            "lifetime": self._given_lifetime(n_features),
            "empty_prior": self.empty_cell == "prior",
        }

    def _given_lifetime(self, n_features: int) -> Lifetime:
        if self._has_column_lifetimes:
            return 1.0
        if self.lifetime is None or isinstance(self.lifetime, PowerLifetime):
            return self.lifetime
        if isinstance(self.lifetime, dict):
            if set(self.lifetime) != {"c", "p"}:
                raise ParameterError(f"a lifetime table has the keys c, p, got {self.lifetime!r}")
            return PowerLifetime(**self.lifetime)
        if isinstance(self.lifetime, str):
            return PowerLifetime(1.0, 1.0 / (n_features + 2))
        return float(self.lifetime)  # type: ignore[arg-type]  # the last possibility

    @property
    @in_one_state
    def lifetime_(self) -> float:
        """Current lifetime of predictions; 1 if each column has its own."""
        forest = self._fitted_forest()
        return forest.parameters.lifetime_at(forest.total_weight)

    def merge(self, *others: Self) -> Self:
        """Return the forest that learned the rows of this one and of others.

        On the unit cube partitions do not depend on rows, and statistics add up. Use it for
        rows that must stay on different machines, or for more machines than trees. Otherwise
        :func:`dmondrian.distributed.train` distributes the trees: with the same work, each
        worker holds its own trees only, and rows are forecast by a forest that learned all
        rows before them.

        Parameters
        ----------
        *others : fitted estimators of this class
            Of equal parameters (``domain="cube"``, a whole number as ``random_state``, no
            ``max_nodes``) and classes, that learned other rows of the same columns. If some
            have column names, the merged forest has them.

        Returns
        -------
        A new fitted estimator
            Equal to one that learned all rows, byte for byte in counts of rows (weights that
            are whole numbers); sums of labels up to the order of additions.

        Raises
        ------
        ParameterError
            If these forests cannot be merged.
        """
        for other in others:
            if type(other) is not type(self):
                raise ParameterError(
                    f"expected estimators of class {type(self).__name__}, got "
                    f"{type(other).__name__}"
                )
        with one_state(self, *others):
            return self._merged(*others)

    def _merged(self, *others: Self) -> Self:
        """Merge estimators that no thread changes; see :meth:`merge`."""
        for other in (self, *others):
            check_is_fitted(other)
            other._check_unchanged()
        classes = getattr(self, "classes_", None)
        for other in others:
            if classes is not None and not np.array_equal(classes, other.classes_):
                raise ParameterError(
                    f"forests of other classes cannot be merged: {classes[:5].tolist()} and "
                    f"{other.classes_[:5].tolist()}; name all classes in partial_fit"
                )
        encodings = {(o._encodes_missing(), o.__dict__.get("_columns")) for o in (self, *others)}
        if len(encodings) > 1:
            raise ParameterError(
                "forests that encode missing values or categories in other ways cannot be merged"
            )
        weights = [other._begun_with.get("class_weight") for other in (self, *others)]
        if any(weight != weights[0] or weight == BALANCED for weight in weights):
            raise ParameterError(
                f"forests of class_weight={weights[:5]!r} cannot be merged: expected the same for "
                'all, in numbers, as "balanced" is by the rows of each'
            )
        names = _common_names(
            getattr(model, "feature_names_in_", None) for model in (self, *others)
        )
        forest = merge([other.forest_ for other in (self, *others)])
        return self._adopt(forest, classes, names)

    def _prediction_at(self, X: Any, lifetime: Any) -> np.ndarray:
        """Return the mean over trees at a lifetime, float64 [n, k]."""
        if lifetime is None:
            return self._mean_prediction(X)
        return self._predictions_at(X, self._as_lifetimes(lifetime))[0]

    @staticmethod
    def _as_lifetimes(lifetime: Any) -> np.ndarray:
        if isinstance(lifetime, bool) or not isinstance(lifetime, Real):
            raise ParameterError(f"lifetime should be a number > 0 or None, got {lifetime!r}")
        return np.array([float(lifetime)])

    @in_one_state
    def _predictions_at(self, X: Any, lifetimes: Iterable[float]) -> np.ndarray:
        """Return the mean over trees at each lifetime, float64 [L, n, k]."""
        X = self._check_rows(X)
        sums = self.forest_.predict_sums(
            X,
            n_threads=self._n_threads(),
            lifetimes=check_lifetimes(lifetimes, self.forest_.parameters.realised_lifetime),
        )
        return sums.mean


def _common_names(names_of_forests: Iterable[np.ndarray | None]) -> np.ndarray | None:
    """Return the common column names of forests, if any; refuse different ones."""
    known = [names for names in names_of_forests if names is not None]
    for names in known[1:]:
        if not np.array_equal(known[0], names):
            raise ParameterError(
                f"forests of other columns cannot be merged: {known[0][:5].tolist()} and "
                f"{names[:5].tolist()}; expected the same names in the same order"
            )
    return known[0] if known else None
