"""The regressor of the Mondrian kernel (B16).

Shapes: n rows, d features, T trees, c columns.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from dmondrian.errors import ParameterError
from dmondrian.estimators.kernel import MondrianKernel
from dmondrian.estimators.regressor import ForestRegressor


class MondrianKernelRegressor(ForestRegressor, MondrianKernel):
    """Ridge regression with the Laplace kernel, by the cells of Mondrian partitions.

    Take it for smooth functions. The cells of T partitions are the features of
    :class:`dmondrian.MondrianFeatures`, and their weights are fitted together. A cell without rows
    predicts the mean label. Partitions of shorter lifetimes are those of a longer one without its
    later cuts, so one sweep finds the width of the kernel.

    Parameters
    ----------
    n_estimators : int, default=50
        T, number of partitions.
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
        delta^2: what a squared weight costs, in units of a row's squared error.
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
    missing_values, categorical_features
        As in :class:`dmondrian.AMFClassifier`.
    random_state : int, RandomState or None, default=None
        Seed of all draws.
    n_jobs : int or None, default=None
        Threads over trees.

    Attributes
    ----------
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

    References
    ----------
    B16: Balog, Lakshminarayanan, Ghahramani, Roy, Teh (2016), "The Mondrian Kernel", UAI.

    Examples
    --------
    >>> import numpy as np
    >>> from dmondrian import MondrianKernelRegressor
    >>> X = np.linspace(0, 1, 200)[:, None]
    >>> model = MondrianKernelRegressor(lifetime=5.0, random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> bool(abs(model.predict([[0.5]])[0] - np.sin(3.0)) < 0.1)
    True
    """

    algorithm = "mondrian-kernel-regressor"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **MondrianKernel._parameter_constraints
    }

    def __init__(
        self,
        n_estimators: int = 50,
        *,
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
        missing_values: Literal["error", "encode"] = "error",
        categorical_features: ArrayLike | Literal["from_dtype"] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
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
        self.missing_values = missing_values
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        max_rows: int | None = None,
        time_budget: float | None = None,
    ) -> Self:
        """Learn rows from nothing; see :meth:`ForestRegressor.fit`.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Taken as float32. Cuts follow the ranges of the columns: scale them.
        y : array-like of shape (n,)
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

    def predict(self, X: Any, return_std: bool = False, include_noise: bool = True) -> Any:
        """Return the predicted mean of each row.

        Parameters
        ----------
        X : array-like of shape (n, d)
        return_std : bool, default=False
            Also return the standard deviation of a label at each row, by Bayesian linear regression
            on the cells (of exact fits). Of an average over lifetimes it is that of the mixture:
            the fits' variances on average, plus the variance of their means. It takes a sweep for
            each 1024 rows.
        include_noise : bool, default=True
            Whether it is of a label, noise included, as scikit-learn's ``BayesianRidge`` returns
            it; else of the function, as ``GaussianProcessRegressor`` does.

        Returns
        -------
        float64 array of shape (n,), or a tuple of two
            Where ``signal_std`` is None, deviations are infinite for rows of a total weight up to
            two, and else those of Student's distribution.

        Raises
        ------
        ParameterError
            If deviations are asked of a fit that is not exact.

        References
        ----------
        Balog et al. (2016), section 4.2.1 and Supplement B.
        """
        if not return_std:
            return self._mean_prediction(X)[:, 0]
        with self._turns.reading():
            X = self._check_rows(X)
            self.forest_.check_learned()
            if self.forest_.exact is None:
                raise ParameterError(
                    "return_std needs an exact fit of all rows together, and this one has none: "
                    'fit with fitting="joint" and solver="cholesky", or "auto" with a larger '
                    "max_columns (runs on a cluster learn by mini-batches)"
                )
            mean = self.forest_.predict_sums(X, n_threads=self._n_threads(len(X))).mean[:, 0]
            variance, noise = self.forest_.exact.variances(self.forest_, X, mean)
        return mean, np.sqrt(variance + noise if include_noise else variance)
