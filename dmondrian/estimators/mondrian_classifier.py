"""The classifier of Mondrian forests with a lifetime (L14, M17).

Shapes: n rows, d features, K classes, T trees, L lifetimes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from numbers import Real
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from dmondrian.ensemble.settings.lifetime import PowerLifetime
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.estimators._sklearn_private import Interval, StrOptions
from dmondrian.estimators.classifier import ForestClassifier
from dmondrian.estimators.mondrian import MondrianForest
from dmondrian.estimators.one_state import in_one_state
from dmondrian.tuning.auto_settings import LAST


class MondrianForestClassifier(ForestClassifier, MondrianForest):
    """Mondrian forest classifier with a fixed, growing or infinite lifetime.

    Take it for the trees of the papers, where the lifetime alone determines the size of cells:
    splits do not depend on the labels. A growing lifetime reaches the minimax rate for Lipschitz
    probabilities (M17, Theorem 2). A fixed one is inconsistent: cells stay as large as they are
    for any number of rows (M17, Proposition 1; ``benchmarks/figures.py`` shows it).

    Parameters
    ----------
    n_estimators : int, default=10
        Number of trees.
    lifetime : float, array-like of shape (d,), "grow", PowerLifetime or None, default="grow"
        Until when splits count, in units of one over those of the columns: scale these to
        [0, 1]. A float is fixed, and trees are not split further. ``PowerLifetime(c, p)`` is
        c n^p after rows of weight n (in a job file the table ``{ c = 1.0, p = 0.25 }``), and
        "grow" is c = 1 and p = 1 / (d + 2). None is no end: every distinct row has its own cell.
        An array has a fixed lifetime for each column, see Notes.
    aggregation : {"mean", "vote", "hierarchy"}, default="mean"
        How trees are combined. "mean": of the class proportions of the cells. "vote": of the
        cells' majorities (M17, Algorithm 4). "hierarchy": the mean of proportions smoothed along
        each tree by interpolated Kneser-Ney (L14).
    discount : float or None, default=None
        Rate of the hierarchy's discounts, per unit of lifetime; None means 10 d (L14).
    split_pure : bool, default=True
        Whether to split leaves whose rows all carry one label. False pauses there, as in L14,
        and keeps trees small. Paused rows are not kept: the tree is then no exact Mondrian tree of
        the data, and predictions at shorter lifetimes are less exact. Of the range only.
    predict_extension : {"auto", "leaf", "expected"}, default="auto"
        "leaf" predicts from the cell of the tree as it is. "expected" predicts the expectation
        over the extensions of the tree by x, in which x may branch off into a cell of its own.
        "auto" is "expected" for the hierarchy, as in L14, else "leaf". Of the range only.
    empty_cell : {"parent", "prior"}, default="parent"
        Prediction of a cell without rows: that of its parent, or 1/K (the vote then goes to the
        first class, as in M17).
    domain : {"range", "cube"}, default="range"
        "range" splits the range of the data (L14). "cube" splits the whole of [0, 1]^d (M17): its
        partition does not depend on the rows. It needs columns in [0, 1], and more nodes: twice as
        many for rows spread over the cube, more where rows lie close together.
    clip : bool, default=False
        On the cube, whether to move rows that lie outside to its surface (``n_clipped_`` counts
        them); if False they are refused.
    max_nodes : int or None, default=None
        Most nodes of a tree. A tree that has reached it is split no more; its boxes and statistics
        go on learning.
    feature_scales, feature_units, warmup_rows, missing_values, class_weight, random_state, n_jobs
        As in :class:`dmondrian.AMFClassifier`, but no scales by default; they are chosen by
        the Brier score.
    categorical_features
        As in :class:`dmondrian.AMFClassifier`.
    calibrate : bool or "auto", default=False
        As in :class:`dmondrian.AMFClassifier`; of predictions at ``lifetime_``, not at other
        lifetimes that are asked for.

    Attributes
    ----------
    classes_ : array of shape (K,)
    n_classes_ : int
    n_features_in_ : int
    feature_names_in_ : array of shape (d,), only if the rows had names
    forest_ : Forest
    lifetime_ : float
        Lifetime that predictions use now.
    feature_scales_ : float32 array of shape (d,)
        What each column is multiplied by.
    feature_units_ : float64 array of shape (d,)
        As in :class:`dmondrian.AMFClassifier`.
    feature_importances_ : float64 array of shape (d,)
        Share of each feature in what the splits up to ``lifetime_`` are worth.
    calibration_exponent_, calibration_weight_ : float
        As in :class:`dmondrian.AMFClassifier`.

    Notes
    -----
    With an array as ``lifetime`` the process splits column j at the rate lifetime[j]. That is the
    process of lifetime 1 on columns multiplied by these numbers; an array is for the range.
    ``lifetime_`` is 1 then, and predictions at another lifetime are asked for by its share of the
    array.

    References
    ----------
    L14: Lakshminarayanan, Roy, Teh (2014), "Mondrian Forests: Efficient Online Random Forests",
    NIPS 27. M17: Mourtada, Gaiffas, Scornet (2017), "Universal consistency and minimax rates for
    online Mondrian Forests", NIPS 30.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmondrian import MondrianForestClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> MondrianForestClassifier(random_state=0).fit(X, y).predict(X[:1], lifetime=5.0)
    array([0])
    """

    algorithm = "mondrian-forest-classifier"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **ForestClassifier._parameter_constraints,
        **MondrianForest._parameter_constraints,
        "aggregation": [StrOptions({"mean", "vote", "hierarchy"})],
        "discount": [Interval(Real, 0, None, closed="neither"), None],
        "split_pure": ["boolean"],
    }

    def __init__(
        self,
        n_estimators: int = 10,
        *,
        lifetime: float | ArrayLike | Literal["grow"] | PowerLifetime | None = "grow",
        aggregation: Literal["mean", "vote", "hierarchy"] = "mean",
        discount: float | None = None,
        split_pure: bool = True,
        predict_extension: Literal["auto", "leaf", "expected"] = "auto",
        empty_cell: Literal["parent", "prior"] = "parent",
        domain: Literal["range", "cube"] = "range",
        clip: bool = False,
        max_nodes: int | None = None,
        feature_scales: ArrayLike | Literal["auto", "learned"] | None = None,
        feature_units: Literal["auto"] | None = "auto",
        warmup_rows: int = LAST,
        calibrate: bool | Literal["auto"] = False,
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        missing_values: Literal["error", "encode"] = "error",
        categorical_features: ArrayLike | Literal["from_dtype"] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.lifetime = lifetime
        self.aggregation = aggregation
        self.discount = discount
        self.split_pure = split_pure
        self.predict_extension = predict_extension
        self.empty_cell = empty_cell
        self.domain = domain
        self.clip = clip
        self.max_nodes = max_nodes
        self.feature_scales = feature_scales
        self.feature_units = feature_units
        self.warmup_rows = warmup_rows
        self.calibrate = calibrate
        self.class_weight = class_weight
        self.missing_values = missing_values
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _forest_parameters(self, n_features: int, n_classes: int) -> ForestParameters:
        return ForestParameters(
            **self._shared_parameters(n_features),
            n_classes=int(n_classes),
            split_pure=bool(self.split_pure),
            discount=None if self.discount is None else float(self.discount),
        )

    def predict_proba(self, X: Any, lifetime: float | None = None) -> np.ndarray:
        """Return class probabilities, or shares of votes.

        Parameters
        ----------
        X : array-like of shape (n, d)
        lifetime : float, optional
            Lifetime to predict at, uncalibrated; by default that of the rows learned so far.

        Returns
        -------
        float64 array of shape (n, K), columns as in ``classes_``
        """
        if lifetime is None:
            return super().predict_proba(X)
        return self._prediction_at(X, lifetime)

    def predict(self, X: Any, lifetime: float | None = None) -> np.ndarray:
        """Return the most probable class of each row, the first of equals.

        Parameters
        ----------
        X, lifetime
            As in :meth:`predict_proba`.
        """
        if lifetime is None:
            return super().predict(X)
        with self._turns.reading():
            proba = self.predict_proba(X, lifetime)
            return self.classes_[proba.argmax(axis=1)]

    def staged_predict_proba(self, X: Any, lifetimes: Iterable[float]) -> Iterator[np.ndarray]:
        """Return class probabilities at each of many lifetimes, in one way down each tree.

        Parameters
        ----------
        X : array-like of shape (n, d)
        lifetimes : iterable of float
            Increasing, > 0.

        Returns
        -------
        iterator over float64 arrays of shape (n, K)

        Raises
        ------
        ParameterError
            If lifetimes do not increase, or pass the one that trees are realised to.
        """
        return iter(self._predictions_at(X, lifetimes))

    @in_one_state
    def staged_predict(self, X: Any, lifetimes: Iterable[float]) -> Iterator[np.ndarray]:
        """Return the most probable classes at each lifetime.

        Parameters
        ----------
        X, lifetimes
            As in :meth:`staged_predict_proba`.
        """
        staged, classes = self._predictions_at(X, lifetimes), self.classes_
        return (classes[proba.argmax(axis=1)] for proba in staged)
