"""Random features for the Laplace kernel: the cells of Mondrian partitions (B16).

Shapes: n rows, d features, T trees, c columns.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_matrix
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from dmondrian.ensemble.settings.kernel_settings import Joint
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.estimators._sklearn_private import Interval, StrOptions, fit_context, num_samples
from dmondrian.estimators.base import BaseForest
from dmondrian.estimators.kernel import MondrianPartitions
from dmondrian.estimators.one_state import in_one_state
from dmondrian.joint_fit.cell_columns import columns_of
from dmondrian.joint_fit.fit import n_columns

_ENTRY_BYTES = 3 * 8  # of a row in one tree: the entry, its column, and its cell on the way there


class MondrianFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, MondrianPartitions):
    """Sparse random features whose inner products estimate the Laplace kernel.

    ``k(x, x') = exp(-lifetime |x - x'|_1)`` is the probability that two rows are in one cell of a
    Mondrian partition of that lifetime. A row has a one, over the root of T, in the column of its
    cell in each of T partitions, so that phi(x) . phi(x') is the share of partitions that do not
    part the two: without bias, with a standard error of at most 1 / (2 sqrt(T)).

    Columns are cells that hold rows which were fitted, numbered in the order in which rows open
    them. They keep their numbers for good: ``partial_fit`` adds columns, which are zero for all
    rows before.

    Parameters
    ----------
    n_components : int, default=100
        T, partitions: entries of a row that are not zero. How many columns, depends on the rows.
    lifetime : float or array-like of shape (d,), default=1.0
        Inverse width of the kernel, in units of one over those of the columns; an array, on the
        range, has one for each column: ``exp(-sum_j lifetime_j |x_j - x'_j|)``.
    domain : {"range", "cube"}, default="range"
        "range" partitions the range of the rows that were fitted, in any units. "cube" partitions
        [0, 1]^d: one in a cell without fitted rows has no entry for that partition.
    unseen : {"nearest", "extend"}, default="nearest"
        On the range, which cells rows are in that lie outside the boxes of the fitted ones.
        "nearest": those next to them, so that a model on the features has something to go by
        wherever a row lies; it is the more accurate in pipelines. "extend" draws in each partition
        whether such a row is parted from all fitted ones, as if the partition were extended to it:
        it has no entry there, and the law of the kernel between it and fitted rows holds. The draws
        are keyed by the row, which has the same features each time.
    clip : bool, default=False
        On the cube, move rows that lie outside to its surface; else they are refused.
    missing_values, categorical_features
        As in :class:`dmondrian.MondrianKernelClassifier`; partitions are of the encoded rows.
    random_state : int, RandomState or None, default=None
    n_jobs : int or None, default=None
        Threads over trees.

    Attributes
    ----------
    n_features_in_ : int
    feature_names_in_ : array of shape (d,), only if the rows had names
    n_columns_ : int
        Columns so far.
    forest_ : Forest
        The partitions.

    References
    ----------
    Balog, Lakshminarayanan, Ghahramani, Roy, Teh (2016), "The Mondrian Kernel", UAI, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from dmondrian import MondrianFeatures
    >>> X = np.array([[0.1], [0.2], [0.9]])
    >>> phi = MondrianFeatures(2000, lifetime=2.0, random_state=0).fit_transform(X)
    >>> kernel = (phi @ phi.T).toarray()
    >>> bool(abs(kernel[0, 1] - np.exp(-2.0 * 0.1)) < 0.03)
    True
    """

    algorithm = "mondrian-features"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **MondrianPartitions._parameter_constraints,
        "missing_values": BaseForest._parameter_constraints["missing_values"],
        "categorical_features": BaseForest._parameter_constraints["categorical_features"],
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "unseen": [StrOptions({"nearest", "extend"})],
    }

    def __init__(
        self,
        n_components: int = 100,
        *,
        lifetime: float | ArrayLike = 1.0,
        domain: Literal["range", "cube"] = "range",
        unseen: Literal["nearest", "extend"] = "nearest",
        clip: bool = False,
        missing_values: Literal["error", "encode"] = "error",
        categorical_features: ArrayLike | Literal["from_dtype"] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.lifetime = lifetime
        self.domain = domain
        self.unseen = unseen
        self.clip = clip
        self.missing_values = missing_values
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.n_jobs = n_jobs

    @property
    def n_estimators(self) -> int:  # type: ignore[override]  # the forest's word for n_components
        """Number of partitions."""
        return self.n_components

    def _forest_parameters(self, n_features: int, n_classes: int = 0) -> ForestParameters:
        return self._partition(n_features, 0, Joint(0))

    def _checked_labels(self, y: np.ndarray) -> np.ndarray:
        return np.zeros(len(y))  # rows are all there is

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:
        """Partition for rows, whose cells become the columns, in their order.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Taken as float32.
        y : ignored

        Returns
        -------
        This transformer
        """
        with self._learner(anew=True) as learner:
            X, zeros, _ = learner._rows(X, first=True)
            learner._learn_all(X, zeros, None, 0)
        return self

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Take in more rows, whose new cells become new columns; parameters as in :meth:`fit`."""
        with self._learner(anew=False) as learner:
            first = learner is not self
            if not first:
                learner._check_unchanged()
            X, zeros, _ = learner._rows(X, first=first)
            learner._learn(X, zeros, None, 0, first=first)
        return self

    def _rows(self, X: Any, first: bool) -> tuple[Any, np.ndarray, None]:
        rows, zeros, _ = self._validate_rows(
            X, np.zeros(num_samples(X)), None, first=first, numeric=True
        )
        self._check_memory(rows.shape[0])
        return rows, zeros, None

    def _check_memory(self, n: int) -> None:
        from dmondrian._memory_limit import usable_bytes  # other estimators do without stores

        size, there = _ENTRY_BYTES * n * int(self.n_components), usable_bytes()
        if size > there:
            raise ParameterError(
                f"the features of {n} rows in {self.n_components} partitions take "
                f"{size / 2**30:.3g} GiB, there are {there / 2**30:.3g}: give fewer rows at a time "
                "(partial_fit, and transform in parts), or fewer components"
            )

    @property
    @in_one_state
    def n_columns_(self) -> int:
        """Number of columns so far."""
        return n_columns(self._fitted_forest())

    @property
    def _n_features_out(self) -> int:
        return self.n_columns_

    @in_one_state
    def transform(self, X: Any) -> csr_matrix:
        """Return the features of rows.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        scipy.sparse.csr_matrix of shape (n, c), float64
            With T entries 1 / sqrt(T) in each row that was fitted, columns in order; fewer where a
            row is in a cell that holds none of these.
        """
        X = self._check_rows(X)
        self._check_memory(len(X))
        columns = np.sort(columns_of(self.forest_, X, self.unseen == "extend"), axis=1)
        is_known = columns >= 0
        ends = np.concatenate([[0], np.cumsum(is_known.sum(axis=1))])
        entries = np.full(ends[-1], 1.0 / np.sqrt(columns.shape[1]))
        return csr_matrix((entries, columns[is_known], ends), shape=(len(X), self.n_columns_))

    def _node_forecasts(self, stat: np.ndarray, offset: float) -> dict[str, np.ndarray]:
        return {"column": stat[:, 1].astype(np.int64) - 1}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags
