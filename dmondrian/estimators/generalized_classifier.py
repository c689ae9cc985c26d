"""The binary classifier of generalised Mondrian forests (Z24, section 6.5).

Shapes: n rows, d features, L lifetimes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dmondrian.ensemble.settings.loss_settings import BINARY, OWN_BINARY, Cost, responses
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import DataError
from dmondrian.estimators._sklearn_private import StrOptions
from dmondrian.estimators.classifier import ForestClassifier
from dmondrian.estimators.custom_loss import OwnLoss
from dmondrian.estimators.generalized import Chosen, GeneralizedMondrianForest
from dmondrian.estimators.one_state import of_one_fit
from dmondrian.forest.custom_loss import ConvexLoss
from dmondrian.tuning.auto_settings import LAST


def _has_probabilities(self: GeneralizedMondrianForestClassifier) -> bool:
    learned = getattr(self, "_begun_with", {})
    loss = learned.get("loss", self.loss)
    if isinstance(loss, ConvexLoss):
        fault = loss.why_no_probabilities(learned.get("bound", self.bound))
        if fault is not None:
            raise AttributeError(f"{loss!r} has no probabilities: {fault}")
    elif loss == "hinge":
        raise AttributeError(
            'the best constant of the hinge tells the sign of 2p - 1 alone: loss="hinge" has no '
            'probabilities; use loss="smoothed_hinge"'
        )
    return True


class GeneralizedMondrianForestClassifier(OwnLoss, ForestClassifier):
    """Mondrian forest of the best constants under a binary cost.

    Take it for two classes and a cost of your choice. With labels y = +-1 each cell predicts the z
    of least total cost phi(-y z) over its rows, and the forest the mean over trees. The sign of the
    mean is the class. Trees, lifetimes and domains are those of
    :class:`dmondrian.MondrianForestClassifier`.

    Parameters
    ----------
    n_estimators : int, default=10
        Number of trees.
    loss : str or ConvexLoss, default="logistic"
        "bernoulli", "square", "hinge", "smoothed_hinge", "modified_square", "logistic" or
        "exponential" (:mod:`dmondrian.losses.convex` has the formulas); or your own, a
        :class:`dmondrian.ConvexLoss` of labels -1 and 1, with probabilities where it is a proper
        composite loss. "hinge" has no probabilities.
    bound : float or None, default=None
        beta_n of Z24: ``|z| <= bound``. None lets it grow with the rows, max(1, ln(1 + n)).
    lifetime, penalty, validation_fraction, max_lifetime
    aggregation, learning_rate, empty_cell, predict_extension
        As in :class:`dmondrian.GeneralizedMondrianForestRegressor`.
    domain, clip, max_nodes, feature_scales, feature_units, warmup_rows, random_state, n_jobs
        As in :class:`dmondrian.MondrianForestClassifier`; scales are chosen by the loss.
    class_weight, missing_values, categorical_features
        As in :class:`dmondrian.AMFClassifier`.

    Attributes
    ----------
    classes_ : array of shape (2,)
        The second is y = +1.
    n_classes_ : int
        2.
    n_features_in_, feature_names_in_, forest_, lifetime_, lifetimes_, lifetime_path_
    feature_scales_, feature_units_, feature_importances_
        As in :class:`dmondrian.GeneralizedMondrianForestRegressor`.

    References
    ----------
    Z24: Zhan, Wang, Xia, "Non-asymptotic Properties of Generalized Mondrian Forests in Statistical
    Learning", section 6.5.

    Examples
    --------
    >>> import numpy as np
    >>> from dmondrian import GeneralizedMondrianForestClassifier
    >>> X = np.linspace(0, 1, 200)[:, None]
    >>> forest = GeneralizedMondrianForestClassifier(loss="hinge", lifetime=20.0, random_state=0)
    >>> forest.fit(X, X[:, 0] > 0.5).predict([[0.1], [0.9]])
    array([False,  True])
    """

    algorithm = "generalized-mondrian-forest-classifier"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **GeneralizedMondrianForest._parameter_constraints,
        "class_weight": ForestClassifier._parameter_constraints["class_weight"],
        "loss": [StrOptions(set(BINARY)), ConvexLoss],
    }

    def __init__(
        self,
        n_estimators: int = 10,
        *,
        loss: str | ConvexLoss = "logistic",
        bound: float | None = None,
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
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        missing_values: Literal["error", "encode"] = "error",
        categorical_features: ArrayLike | Literal["from_dtype"] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.loss = loss
        self.bound = bound
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
        self.class_weight = class_weight
        self.missing_values = missing_values
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.n_jobs = n_jobs

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _cost(self) -> Cost:
        loss = OWN_BINARY if isinstance(self.loss, ConvexLoss) else self.loss
        return dataclasses.replace(super()._cost(), loss=loss)

    def _forest_parameters(self, n_features: int, n_classes: int) -> ForestParameters:
        if n_classes != 2:
            came = "one class" if n_classes == 1 else n_classes
            raise DataError(
                "Only binary classification is supported: binary costs are of two classes, got "
                f"{came}; use MondrianForestClassifier or AMFClassifier"
            )
        return self._parameters_of(n_features, 2)

    def decision_function(self, X: Any, lifetime: float | None = None) -> np.ndarray:
        """Return the averaged z of each row; its sign is the class.

        Parameters
        ----------
        X : array-like of shape (n, d)
        lifetime : float, optional
            Lifetime to predict at; by default that of the rows learned so far.

        Returns
        -------
        float64 array of shape (n,)
        """
        return self._prediction_at(X, lifetime)[:, 0]

    @of_one_fit
    def predict(self, X: Any, lifetime: float | None = None) -> np.ndarray:
        """Return the class of each row, the first where the decision function is 0.

        Parameters
        ----------
        X, lifetime
            As in :meth:`decision_function`.
        """
        check_is_fitted(self)
        return self.classes_[(self.decision_function(X, lifetime) > 0.0).astype(np.intp)]

    @available_if(_has_probabilities)
    @of_one_fit
    def predict_proba(self, X: Any, lifetime: float | None = None) -> np.ndarray:
        """Return class probabilities: those at which z would be the best constant.

        Refused, as an attribute that is not there, for the hinge and for a loss of your own that is
        no proper composite one. If the classes of yours have different prices, the more probable
        class may not be that of :meth:`predict`, the sign of z.

        Parameters
        ----------
        X, lifetime
            As in :meth:`decision_function`.

        Returns
        -------
        float64 array of shape (n, 2), columns as in ``classes_``
        """
        z = self.decision_function(X, lifetime)
        if self._own is not None:
            share = self._own.probabilities(z)
            return np.stack([1.0 - share, share], axis=1)
        loss = self._fitted_cost().loss
        return np.stack([responses(loss, -z), responses(loss, z)], axis=1)

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return logs of class probabilities; -inf where one is 0.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        float64 array of shape (n, 2), in nats
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def staged_decision_function(self, X: Any, lifetimes: Iterable[float]) -> Iterator[np.ndarray]:
        """Return the averaged z at each of many lifetimes, in one way down each tree.

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
        return (z[:, 0] for z in self._predictions_at(X, lifetimes))
