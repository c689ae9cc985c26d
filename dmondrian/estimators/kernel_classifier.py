"""The classifier of the Mondrian kernel (B16).

Shapes: n rows, d features, K classes, T trees, c columns.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.metaestimators import available_if

from dmondrian.ensemble.settings.kernel_settings import LOSSES, proba_of, shares
from dmondrian.estimators._sklearn_private import StrOptions
from dmondrian.estimators.classifier import ForestClassifier
from dmondrian.estimators.kernel import MondrianKernel
from dmondrian.estimators.one_state import of_one_fit


def _has_proba(classifier: Any) -> bool:
    if classifier._fitted_loss == "hinge":
        raise AttributeError('loss="hinge" has no probabilities: use "log_loss" or "squared"')
    return True


class MondrianKernelClassifier(ForestClassifier, MondrianKernel):
    """Linear classification with the Laplace kernel, by the cells of Mondrian partitions.

    Take it for smooth borders between classes. By default a score for each class is fitted by least
    squares to ones at its rows and zeros at others, as in
    :class:`dmondrian.MondrianKernelRegressor`. Probabilities are the scores, raised to at least
    0.001, over their sum. Logistic and hinge loss are those of scikit-learn's
    ``LogisticRegression`` and ``LinearSVC`` on the same features.

    Parameters
    ----------
    n_estimators : int, default=50
        T, number of partitions.
    loss : {"squared", "log_loss", "hinge"}, default="squared"
        What is minimised. "log_loss" is of all classes together, with probabilities. "hinge" is a
        support vector machine without probabilities, of one class against the others if there are
        more than two. ``partial_fit`` and runs on a cluster take "squared" alone. See Notes.
    lifetime : float, array-like, "validation", "marginal_likelihood" or "average", default=1.0
        Inverse width of the kernel ``exp(-lifetime |x - x'|_1)``, in units of one over those of
        the columns. An array has one for each column, on the range:
        ``exp(-sum_j lifetime_j |x_j - x'_j|)``. Text is how ``fit`` chooses it, see Notes.
    max_lifetime : float or None, default=None
        Longest lifetime that is tried. None: where trees have half as many cells as rows, or
        ``max_columns`` are reached.
    lifetime_prior : {"log_uniform", "uniform"}, default="log_uniform"
        Prior of "average", up to the longest lifetime. "log_uniform" is uniform in the logarithm,
        from a tenth of the first cut on.
    validation_fraction : float, default=0.2
        Share of the rows that "validation" holds out.
    fitting : {"joint", "independent"}, default="joint"
        "joint" fits the values of all cells together, a kernel machine; "independent" fits those of
        each tree for itself, a forest. The partitions are the same. See Notes.
    solver : {"auto", "sgd", "cholesky"}, default="auto"
        "cholesky": exact ridge regression on the cells; a row is a rank-one update, O(c^2) for c
        columns. "sgd": mini-batches, O(T) per row. "auto": exact up to ``max_columns``, then
        mini-batches that go on from there (``fit`` begins anew). A run on a cluster takes
        mini-batches.
    regularization : float, default=0.01
        delta^2: what a squared weight costs, in units of a row's squared error. With other losses
        the unit is twice as large, so that it is 1 / C of scikit-learn.
    signal_std : float or None, default=None
        s, the standard deviation of the function, less its mean, before any row is learned. The
        noise of labels then has s sqrt(regularization). None: not known. The marginal likelihood
        and standard deviations take that into account, so the unit of labels changes nothing. 1.0
        is B16's own form, with noise of variance ``regularization``. Predicted means depend on it
        for "average" alone.
    max_columns : int, default=1024
        Columns up to which "auto" is exact, and exact sweeps go.
    batch_size : int, default=256
        Most rows of a mini-batch. The first ones are smaller, an eighth of the rows before them.
    n_passes : int, default=10
        How often mini-batches go through the rows of ``fit``. ``partial_fit`` and runs on a
        cluster go through them once.
    domain : {"range", "cube"}, default="range"
        "range" partitions the range of the data, in any units. A row outside a cell's box is in it
        with the probability that the process does not separate them. "cube" partitions [0, 1]^d:
        the partition does not depend on the rows.
    clip : bool, default=False
        On the cube, whether to move rows that lie outside to its surface; if False they are
        refused.
    class_weight : dict of label to weight, "balanced" or None, default=None
        What weights of rows are multiplied by, for their label; 1 for labels that are not named.
        "balanced" gives all classes the same weight by the rows of ``fit``, n / (K n_k);
        ``partial_fit`` and runs refuse it, as they do not know these rows beforehand.
    missing_values, categorical_features
        As in :class:`dmondrian.AMFClassifier`.
    random_state : int, RandomState or None, default=None
        Seed of all draws.
    n_jobs : int or None, default=None
        Threads over trees.

    Attributes
    ----------
    classes_ : array of shape (K,)
    n_classes_ : int
    n_features_in_ : int
    feature_names_in_ : array of shape (d,), only if the rows had names
    forest_ : Forest
        Partitions with the values of their cells; a prediction is their mean.
    lifetime_ : float
        Lifetime in use; of an average the longest.
    lifetime_path_ : KernelPath, only where ``fit`` chose the lifetime
        Lifetimes, columns, errors of held-out rows, log likelihoods and posterior shares.

    Notes
    -----
    **Chosen lifetimes** are found in ``fit``, by one sweep over all lifetimes. "validation" takes
    the one of least squared error on held-out rows, and then fits all rows. "marginal_likelihood"
    takes the one under which all rows are most likely. "average" takes none: it predicts the mean
    under the posterior of lifetimes, on the cube. The last two need exact fits, and try lifetimes
    up to ``max_columns``. After "average", ``partial_fit`` is as if all rows had been fitted up to
    the longest lifetime of the first fit. Each call has a sweep of its own: give many rows at a
    time.

    **Shrinkage.** With ``fitting="independent"`` a cell's own value shrinks to the mean of all rows
    in ``fit``, whatever their order. In ``partial_fit``, and in runs on a cluster, it shrinks to
    the mean of the rows before the cell's first.

    **Logistic and hinge loss** are fitted in ``fit`` alone, to all rows, up to a tolerance that is
    not the last bit of every machine. They take numbers as ``lifetime``, or "validation": by the
    loss of held-out rows on a grid, where each fit goes on from the one before.

    References
    ----------
    B16: Balog, Lakshminarayanan, Ghahramani, Roy, Teh (2016), "The Mondrian Kernel", UAI.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmondrian import MondrianKernelClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> MondrianKernelClassifier(random_state=0).fit(X, y).predict(X[:1])
    array([0])
    """

    algorithm = "mondrian-kernel-classifier"
    calibrate = False

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **MondrianKernel._parameter_constraints,
        "class_weight": ForestClassifier._parameter_constraints["class_weight"],
        "loss": [StrOptions(set(LOSSES))],
    }

    def __init__(
        self,
        n_estimators: int = 50,
        *,
        loss: Literal["squared", "log_loss", "hinge"] = "squared",
        lifetime: float | ArrayLike | Literal["validation", "marginal_likelihood", "average"] = 1.0,
        max_lifetime: float | None = None,
        lifetime_prior: Literal["log_uniform", "uniform"] = "log_uniform",
        validation_fraction: float = 0.2,
        fitting: Literal["joint", "independent"] = "joint",
        solver: Literal["sgd", "cholesky", "auto"] = "auto",
        regularization: float = 0.01,
        signal_std: float | None = None,
        max_columns: int = 1024,
        batch_size: int = 256,
        n_passes: int = 10,
        domain: Literal["range", "cube"] = "range",
        clip: bool = False,
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        missing_values: Literal["error", "encode"] = "error",
        categorical_features: ArrayLike | Literal["from_dtype"] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.loss = loss
        self.lifetime = lifetime
        self.max_lifetime = max_lifetime
        self.lifetime_prior = lifetime_prior
        self.validation_fraction = validation_fraction
        self.fitting = fitting
        self.solver = solver
        self.regularization = regularization
        self.signal_std = signal_std
        self.max_columns = max_columns
        self.batch_size = batch_size
        self.n_passes = n_passes
        self.domain = domain
        self.clip = clip
        self.class_weight = class_weight
        self.missing_values = missing_values
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.n_jobs = n_jobs

    @property
    def _loss(self) -> str:  # type: ignore[override]  # the regressor has but one
        return self.loss

    @property
    def _fitted_loss(self) -> str:
        """The loss that values were fitted by; before that the one they will be."""
        forest = self.__dict__.get("forest_")
        return self.loss if forest is None else forest.parameters.joint.loss

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        max_rows: int | None = None,
        time_budget: float | None = None,
    ) -> Self:
        """Learn rows from nothing; see :meth:`ForestClassifier.fit`.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Taken as float32. Cuts follow the ranges of the columns: scale them.
        y : array-like of shape (n,)
            Labels: strings, integers or booleans.
        sample_weight : array-like of shape (n,), optional
            Non-negative; a whole weight w equals w repeats of the row in exact fits.
        max_rows : int, optional
            Learn the first rows alone, so many.
        time_budget : None
            Rows are fitted together, and time is refused.

        Returns
        -------
        This estimator

        Raises
        ------
        ParameterError
            If the matrices of an exact fit do not fit into memory, which the message tells.
        """
        return super().fit(X, y, sample_weight, max_rows=max_rows, time_budget=time_budget)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the fitted scores, float64 [n, K].

        Of two classes what the second is more probable than the first by, [n], so that it orders
        rows as :meth:`predict_proba` does: the scores' difference does not, as rows differ in what
        scores sum to. Of logistic and hinge loss it is the linear function.

        Parameters
        ----------
        X : array-like of shape (n, d)
        """
        scores = self._mean_prediction(X)
        if scores.shape[1] != 2:
            return scores
        proba = shares(scores) if self._fitted_loss == "squared" else scores
        return proba[:, 1] - proba[:, 0]

    @available_if(_has_proba)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return class probabilities, float64 [n, K], columns as in ``classes_``.

        Not of hinge loss.

        Parameters
        ----------
        X : array-like of shape (n, d)
        """
        return proba_of(self._fitted_loss, self._mean_prediction(X))

    @available_if(_has_proba)
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return logs of :meth:`predict_proba`, float64 [n, K], in nats.

        Parameters
        ----------
        X : array-like of shape (n, d)
        """
        return super().predict_log_proba(X)

    @of_one_fit
    def predict(self, X: Any) -> np.ndarray:
        """Return the class of the highest score for each row, the first of equals.

        Parameters
        ----------
        X : array-like of shape (n, d)
        """
        scores = self._mean_prediction(X)
        scores = shares(scores) if self._fitted_loss == "squared" else scores
        return self.classes_[scores.argmax(axis=1)]
