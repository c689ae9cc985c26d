"""The regressor of Mondrian forests with a lifetime (L16, M17).

Shapes: n rows, d features, T trees, L lifetimes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from dmondrian.ensemble.settings.lifetime import PowerLifetime
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.estimators._sklearn_private import StrOptions
from dmondrian.estimators.intervals import Intervals
from dmondrian.estimators.mondrian import MondrianForest
from dmondrian.estimators.regressor import ForestRegressor
from dmondrian.tuning.auto_settings import LAST


class MondrianForestRegressor(Intervals, ForestRegressor):
    """Mondrian forest regressor with a fixed, growing or infinite lifetime.

    The prediction is the mean over trees of the mean label of the cell of x. A growing
    lifetime reaches the minimax rate for Lipschitz functions (M17, Proposition 4); a fixed one
    is inconsistent (M17, Proposition 1).

    Parameters
    ----------
    n_estimators : int, default=10
        Trees.
    lifetime : float, array-like of shape (d,), "grow", PowerLifetime or None, default="grow"
        As in :class:`dmondrian.MondrianForestClassifier`.
    aggregation : {"mean", "hierarchy"}, default="mean"
        "mean" of the cells' means, or "hierarchy": the posterior mean of a Gaussian hierarchy
        along each tree (L16), which also has a standard deviation. Its messages are computed
        at the first prediction after learning, in a pass over all nodes.
    empty_cell : {"parent", "prior"}, default="parent"
        Prediction of a cell without rows: that of its parent, or 0, as in M17.
    predict_extension, domain, clip, max_nodes
    feature_scales, feature_units, warmup_rows, missing_values, random_state, n_jobs
        As in :class:`dmondrian.MondrianForestClassifier`; scales are chosen by squared
        error. There is no ``split_pure``: labels are continuous.
    categorical_features
        As in :class:`dmondrian.AMFClassifier`.

    Attributes
    ----------
    n_features_in_ : int
    feature_names_in_ : array of shape (d,), only if the rows had names
    forest_ : Forest
    lifetime_ : float
        Lifetime that predictions use now.
    feature_scales_ : float32 array of shape (d,)
        What each column is multiplied by.
    feature_units_ : float64 array of shape (d,)
        As in :class:`dmondrian.AMFClassifier`.
    interval_scores_ : float64 array, only after :meth:`calibrate_intervals`
        Errors of the held-out rows in predicted standard deviations, sorted.
    feature_importances_ : float64 array of shape (d,)
        As in :class:`dmondrian.MondrianForestClassifier`.

    References
    ----------
    Lakshminarayanan, Roy, Teh (2016), "Mondrian Forests for Large-Scale Regression when
    Uncertainty Matters", AISTATS. Mourtada, Gaiffas, Scornet (2017), Appendix E.

    Examples
    --------
    >>> import numpy as np
    >>> from dmondrian import MondrianForestRegressor
    >>> X = np.linspace(0, 1, 200)[:, None]
    >>> forest = MondrianForestRegressor(lifetime=20.0, random_state=0).fit(X, X[:, 0] > 0.5)
    >>> bool(forest.predict([[0.9]])[0] > 0.9)
    True
    """

    algorithm = "mondrian-forest-regressor"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **MondrianForest._parameter_constraints,
        "aggregation": [StrOptions({"mean", "hierarchy"})],
    }

    def __init__(
        self,
        n_estimators: int = 10,
        *,
        lifetime: float | ArrayLike | Literal["grow"] | PowerLifetime | None = "grow",
        aggregation: Literal["mean", "hierarchy"] = "mean",
        predict_extension: Literal["auto", "leaf", "expected"] = "auto",
        empty_cell: Literal["parent", "prior"] = "parent",
        domain: Literal["range", "cube"] = "range",
        clip: bool = False,
        max_nodes: int | None = None,
        feature_scales: ArrayLike | Literal["auto", "learned"] | None = None,
        feature_units: Literal["auto"] | None = "auto",
        warmup_rows: int = LAST,
        missing_values: Literal["error", "encode"] = "error",
        categorical_features: ArrayLike | Literal["from_dtype"] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.lifetime = lifetime
        self.aggregation = aggregation
        self.predict_extension = predict_extension
        self.empty_cell = empty_cell
        self.domain = domain
        self.clip = clip
        self.max_nodes = max_nodes
        self.feature_scales = feature_scales
        self.feature_units = feature_units
        self.warmup_rows = warmup_rows
        self.missing_values = missing_values
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _forest_parameters(self, n_features: int, n_classes: int = 0) -> ForestParameters:
        return ForestParameters(**self._shared_parameters(n_features), n_classes=0, split_pure=True)

    def predict(self, X: Any, lifetime: float | None = None, return_std: bool = False) -> Any:
        """Return the predicted mean of each row.

        Parameters
        ----------
        X : array-like of shape (n, d)
        lifetime : float, optional
            Lifetime to predict at; by default that of the rows learned so far.
        return_std : bool, default=False
            Also return the standard deviation of a label at each row, its noise included: that
            of the mixture whose quantiles :meth:`predict_quantiles` returns. Cells keep sums of
            squares about the first label learned: deviations below about 1e-8 of the largest
            distance from it are lost in rounding. Means are not.

        Returns
        -------
        float64 array of shape (n,), or a tuple of two
        """
        if not return_std:
            return self._prediction_at(X, lifetime)[:, 0]
        with self._turns.reading():
            return self._mean_and_std(self._check_rows(X), self._one_lifetime(lifetime))

    def staged_predict(self, X: Any, lifetimes: Iterable[float]) -> Iterator[np.ndarray]:
        """Return the predicted means at each of many lifetimes, in one way down each tree.

        The hierarchy goes down once for each lifetime: its messages are those of one.

        Parameters
        ----------
        X : array-like of shape (n, d)
        lifetimes : iterable of float
            Increasing, > 0.

        Returns
        -------
        iterator over float64 arrays of shape (n,)

        Raises
        ------
        ParameterError
            If lifetimes do not increase, or pass the one that trees are realised to.
        """
        return iter(self._predictions_at(X, lifetimes)[:, :, 0])
