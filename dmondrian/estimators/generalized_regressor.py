"""The regressor of generalised Mondrian forests (Z24).

Shapes: n rows, d features, q levels, L lifetimes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from dmondrian.ensemble.settings.loss_settings import (
    LARGEST_SIZE,
    OWN,
    OWN_OF_MEAN,
    REGRESSION,
    Cost,
)
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.estimators._sklearn_private import Interval, StrOptions
from dmondrian.estimators.custom_loss import OwnLoss
from dmondrian.estimators.generalized import Chosen, GeneralizedMondrianForest
from dmondrian.estimators.label_intervals import LabelIntervals
from dmondrian.estimators.one_state import in_one_state, of_one_fit
from dmondrian.estimators.regressor import ForestRegressor
from dmondrian.forest.custom_loss import ConvexLoss
from dmondrian.stats.labels import LEAST_SIZE
from dmondrian.tuning.auto_settings import LAST


class GeneralizedMondrianForestRegressor(LabelIntervals, OwnLoss, ForestRegressor):
    """Mondrian forest of the best constants under a convex loss: quantiles, counts, robust means.

    Take it where the label is a count, the costs of errors are unequal, or quantiles are wanted.
    Each cell predicts the constant of least total loss over its rows, and the forest the mean over
    trees (Z24, Equations 2 and 3). Trees, lifetimes and domains are those of
    :class:`dmondrian.MondrianForestRegressor`.

    Parameters
    ----------
    n_estimators : int, default=10
        Number of trees.
    loss : str or ConvexLoss, default="squared"
        "squared", "huber" or "quantile"; "gaussian", "poisson" or "geometric", the likelihood of a
        GLM with z its natural parameter; or your own, a :class:`dmondrian.ConvexLoss`. "poisson"
        and "geometric" take labels >= 0, the latter counting failures.
    quantile : float or array-like of float, default=0.5
        Level or levels of the quantile loss, in (0, 1). Several never cross.
    delta : float, default=1.0
        Where Huber's loss becomes linear, in units of the label.
    bound : float or None, default=None
        beta_n of Z24: ``|z| <= bound``, and ``z <= -1 / bound`` for the geometric family. None
        lets it grow with the rows for counts: beta_n = max(1, ln(1 + n)) to either side of the
        constant of all rows. For other losses None is no limit: z is within the labels' range.
    max_rows_per_leaf : int, default=64
        Most distinct labels that a cell keeps, for Huber's and the quantile loss. Up to there
        solutions are exact; beyond, they are those of ranks with a certified error, about
        0.8 / max_rows_per_leaf for rows in random order (:mod:`dmondrian.stats.labels`). Every
        node takes 24 bytes for each: give long streams a ``max_lifetime``, a fixed ``lifetime`` or
        ``max_nodes``.
    lifetime : float, "grow", PowerLifetime, "penalized", "prequential", "validation" or None
        Until when splits count, default "grow". Numbers, arrays, "grow", PowerLifetime and None
        are as in :class:`dmondrian.MondrianForestClassifier`. Others are chosen, see Notes:
        "penalized" and "prequential" for each tree, as rows come; "validation" for all trees, on
        rows held out of ``fit``.
    penalty : float or None, default=None
        alpha_n of "penalized". None is found from each tree: what comes nearest to charging each
        split twice what it gains on noise (:mod:`dmondrian.ensemble.lifetime_selection`).
    validation_fraction : float, default=0.1
        Share of the rows that "validation" holds out, every tenth or so; they are not learned.
    max_lifetime : float or None, default=None
        Until when trees are split where the lifetime grows or is chosen, and the most it can be.
        Without it a tree has a leaf for each distinct row.
    aggregation : {"mean", "aggregate"}, default="mean"
        "mean" predicts from the cell alone, as in Z24. "aggregate" is the exact mixture over all
        prunings, as in :class:`dmondrian.AMFRegressor`. It is for losses that are exp-concave
        within a ``bound``, with a fixed ``lifetime`` or None.
    learning_rate : "theory" or float, default="theory"
        Of the mixture; "theory" is the largest at which the loss is exp-concave.
    empty_cell : {"parent", "prior"}, default="parent"
        Prediction of a cell without rows: that of its parent, or 0, as in Z24.
    predict_extension : {"leaf", "expected"}, default="leaf"
        As in :class:`dmondrian.MondrianForestClassifier`.
    domain, clip, max_nodes, feature_scales, feature_units, warmup_rows, random_state, n_jobs
        As in :class:`dmondrian.MondrianForestClassifier`; scales are chosen by the loss.
    missing_values, categorical_features
        As in :class:`dmondrian.AMFRegressor`.

    Attributes
    ----------
    n_features_in_ : int
    feature_names_in_ : array of shape (d,), only if the rows had names
    forest_ : Forest
    lifetime_ : float
        Median of ``lifetimes_``.
    lifetimes_ : float64 array of shape (T,)
        Lifetime of each tree that predictions use now.
    lifetime_path_ : LifetimePath, only where a lifetime was chosen
        Lifetimes, risks, penalty and choice, for plotting.
    interval_scores_ : float64 array, only after :meth:`calibrate_intervals`
        How far held-out labels are outside of the intervals, sorted.
    interval_coverage_ : float, only after :meth:`calibrate_intervals`
        Coverage of these intervals.
    feature_scales_ : float32 array of shape (d,)
        What each column is multiplied by.
    feature_units_ : float64 array of shape (d,)
        As in :class:`dmondrian.AMFClassifier`.
    feature_importances_ : float64 array of shape (d,)
        As in :class:`dmondrian.MondrianForestRegressor`, by squared error whatever the loss.

    Notes
    -----
    **Chosen lifetimes.** "penalized" is each tree's own, of least empirical risk + ``penalty`` x
    lifetime (Z24, Equation 8). "prequential" is each tree's own, of least loss of cells' forecasts
    made before each of their rows; learning takes longer. "validation" is one for all trees, of
    least loss of the forest on held-out rows; ``partial_fit`` refuses it (see
    :meth:`choose_lifetime`). ``lifetime_path_`` has the curves.

    **Risks of "penalized".** Of a :class:`dmondrian.ConvexLoss` with a ``solution`` trees know no
    more than means of labels: risks are those above the risk of one cell. Where cells keep labels,
    risks are of the labels kept. They are too large in cells of far more rows than
    ``max_rows_per_leaf``, which makes lifetimes longer.

    References
    ----------
    Z24: Zhan, Wang, Xia, "Non-asymptotic Properties of Generalized Mondrian Forests in Statistical
    Learning".

    Examples
    --------
    >>> import numpy as np
    >>> from dmondrian import GeneralizedMondrianForestRegressor
    >>> X = np.linspace(0, 1, 400)[:, None]
    >>> y = np.random.default_rng(0).poisson(1.0 + 4.0 * X[:, 0])
    >>> forest = GeneralizedMondrianForestRegressor(loss="poisson", lifetime=5.0, random_state=0)
    >>> bool(forest.fit(X, y).predict([[0.9]])[0] > 3.0)
    True

    Quantiles of one forest never cross; here held-out rows choose the lifetime:

    >>> forest = GeneralizedMondrianForestRegressor(
    ...     loss="quantile", quantile=[0.05, 0.5, 0.95], lifetime="validation", random_state=0
    ... )
    >>> low, median, high = forest.fit(X, y).predict(X).T
    >>> bool(((low <= median) & (median <= high)).all())
    True
    """

    algorithm = "generalized-mondrian-forest-regressor"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **GeneralizedMondrianForest._parameter_constraints,
        "loss": [StrOptions(set(REGRESSION)), ConvexLoss],
        "quantile": [Interval(Real, 0, 1, closed="neither"), "array-like"],
        "delta": [Interval(Real, 0, None, closed="neither")],
        "max_rows_per_leaf": [Interval(Integral, LEAST_SIZE, LARGEST_SIZE, closed="both")],
    }

    def __init__(
        self,
        n_estimators: int = 10,
        *,
        loss: str | ConvexLoss = "squared",
        quantile: float | ArrayLike = 0.5,
        delta: float = 1.0,
        bound: float | None = None,
        max_rows_per_leaf: int = 64,
        lifetime: Chosen = "grow",
        penalty: float | None = None,
        validation_fraction: float = 0.1,
        max_lifetime: float | None = None,
        aggregation: Literal["mean", "aggregate"] = "mean",
        learning_rate: float | Literal["theory"] = "theory",
        empty_cell: Literal["parent", "prior"] = "parent",
        predict_extension: Literal["leaf", "expected"] = "leaf",
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
        self.loss = loss
        self.quantile = quantile
        self.delta = delta
        self.bound = bound
        self.max_rows_per_leaf = max_rows_per_leaf
        self.lifetime = lifetime
        self.penalty = penalty
        self.validation_fraction = validation_fraction
        self.max_lifetime = max_lifetime
        self.aggregation = aggregation
        self.learning_rate = learning_rate
        self.empty_cell = empty_cell
        self.predict_extension = predict_extension
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

    def _cost(self) -> Cost:
        own_loss = self.loss if isinstance(self.loss, ConvexLoss) else None
        name = self.loss if own_loss is None else OWN if own_loss.keeps_labels else OWN_OF_MEAN
        return dataclasses.replace(
            super()._cost(),
            loss=name,
            levels=tuple(sorted(self._levels())) if self.loss == "quantile" else (),
            delta=float(self.delta),
            size=int(self.max_rows_per_leaf),
        )

    def _levels(self) -> list[float]:
        """Return the quantile levels as given."""
        try:
            levels = np.array(self.quantile, np.float64).reshape(-1).tolist()
        except (TypeError, ValueError) as error:
            raise ParameterError(f"quantile should be numbers, got {self.quantile!r}") from error
        sound = levels and all(0.0 < level < 1.0 for level in levels)
        if not sound or len(set(levels)) < len(levels):
            raise ParameterError(
                f"quantile should be one or more distinct levels in (0, 1), got {self.quantile!r}"
            )
        return levels

    def _forest_parameters(self, n_features: int, n_classes: int = 0) -> ForestParameters:
        return self._parameters_of(n_features, 0)

    def _lasting_params(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        params = super()._lasting_params(names)
        params["quantile"] = np.array(params["quantile"]).tolist()  # an array compares by entry
        return params

    @of_one_fit
    def predict(self, X: Any, lifetime: float | None = None) -> np.ndarray:
        """Return the predicted mean, robust mean or quantiles of each row.

        For the GLM losses that is the mean label b'(z) of the averaged z of :meth:`predict_link`.

        Parameters
        ----------
        X : array-like of shape (n, d)
        lifetime : float, optional
            Lifetime to predict at; by default that of the rows learned so far.

        Returns
        -------
        float64 array of shape (n,), or (n, q) where ``quantile`` is a list, in its order
        """
        lifetimes = None if lifetime is None else self._as_lifetimes(lifetime)
        outputs = self._responses_at(X, lifetimes)
        return self._in_order(outputs if lifetimes is None else outputs[0])

    @of_one_fit
    def predict_link(self, X: Any, lifetime: float | None = None) -> np.ndarray:
        """Return z, the mean over trees of the cells' predictions on the scale of the loss.

        Parameters
        ----------
        X, lifetime
            As in :meth:`predict`.

        Returns
        -------
        float64 array, of the shape of :meth:`predict`
        """
        return self._in_order(self._prediction_at(X, lifetime))

    @in_one_state
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the score of the predictions; 1 is perfect.

        For one output R2, as all regressors of scikit-learn. For several quantiles the mean over
        levels of D2, the share of pinball loss explained compared with the same quantile of
        ``y`` (:func:`sklearn.metrics.d2_pinball_score`).

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,)
        sample_weight : array-like of shape (n,), optional
        """
        from sklearn.metrics import d2_pinball_score, r2_score  # slow to import

        predicted = self.predict(X)
        if predicted.ndim == 1:
            return float(r2_score(y, predicted, sample_weight=sample_weight))
        levels = np.ravel(self._begun_with["quantile"])
        shares = [
            d2_pinball_score(y, predicted[:, k], sample_weight=sample_weight, alpha=float(level))
            for k, level in enumerate(levels)
        ]
        return float(np.mean(shares))

    @of_one_fit
    def staged_predict(self, X: Any, lifetimes: Iterable[float]) -> Iterator[np.ndarray]:
        """Return the predictions at each of many lifetimes, in one pass through each tree.

        Parameters
        ----------
        X : array-like of shape (n, d)
        lifetimes : iterable of float
            Increasing, > 0.

        Returns
        -------
        iterator over float64 arrays, of the shape of :meth:`predict`

        Raises
        ------
        ParameterError
            If lifetimes do not increase, or pass the one that trees are realised to.
        """
        return iter([self._in_order(outputs) for outputs in self._responses_at(X, lifetimes)])

    def _in_order(self, outputs: np.ndarray) -> np.ndarray:
        """Return outputs [n, k] in the order of the levels given; [n] where there is one."""
        levels = self._begun_with["quantile"]  # those learned, whatever was set since
        if self._begun_with["loss"] != "quantile" or np.ndim(levels) == 0:
            return outputs[:, 0]
        return outputs[:, np.argsort(np.argsort(np.ravel(levels)))]
