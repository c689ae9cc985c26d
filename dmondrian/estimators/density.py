"""The density estimator of generalised Mondrian forests (Z24, section 6.6).

Shapes: n rows, d features, T trees, L lifetimes.
"""

from __future__ import annotations

import dataclasses
import operator
import warnings
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import DensityMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _num_samples, check_is_fitted

from dmondrian.cost import Cost
from dmondrian.density import ForestDensity
from dmondrian.errors import ParameterError
from dmondrian.estimators.generalized import Chosen
from dmondrian.estimators.mondrian import MondrianForest
from dmondrian.estimators.one_state import in_one_state
from dmondrian.estimators.row_weights import check_some_weight
from dmondrian.forest import Forest
from dmondrian.lifetime import Lifetime
from dmondrian.parameters import ForestParameters
from dmondrian.selection import LifetimePath, held_out, held_out_path, lifetime_grid
from dmondrian.warmup import LAST

_MUCH = 0.5  # of the probability for cells without rows
_CANDIDATES = 24  # lifetimes that held-out rows choose from; each is normalised anew


class MondrianDensity(DensityMixin, MondrianForest):
    """Density of rows in the unit cube, by the mean over trees of the log density of cells.

    The density of one tree is normalised exactly; that of a forest by draws, with an error that
    is told.

    Parameters
    ----------
    n_estimators : int, default=10
        Trees.
    lifetime : float, "grow", PowerLifetime, "validation" or None, default="grow"
        Until when cells are split, as in :class:`dmondrian.MondrianForestClassifier`. "validation":
        the one of largest likelihood of rows held out of ``fit``; see :meth:`choose_lifetime`. None
        needs a ``max_lifetime``.
    max_lifetime : float or None, default=None
        Until when trees are split where the lifetime grows or is chosen.
    validation_fraction : float, default=0.1
        Share of the rows that "validation" holds out.
    bound : float or None, default=None
        beta_n: a tree says log densities in [-bound, bound] before it is normalised; None for
        max(1, ln(1 + n)).
    n_draws : int, default=10000
        Draws that normalise a forest: the standard error of the log density is at most
        ``normalization_error_``, which falls as one over the root of them.
    clip : bool, default=False
        Move rows outside the cube to its surface; else they are refused.
    random_state, n_jobs
        As in :class:`dmondrian.MondrianForestClassifier`.

    Attributes
    ----------
    n_features_in_ : int
    feature_names_in_ : array of shape (d,), only if the rows had names
    forest_ : Forest
    lifetime_ : float
        Lifetime in use now.
    normalization_error_ : float
        Standard error of every log density that is told, the same for all rows; 0 for one tree.
    empty_mass_ : float
        Probability that trees give to cells without rows, their mean. Above a half the estimate is
        close to uniform, which is warned of.
    lifetime_path_ : LifetimePath, only where held-out rows chose the lifetime
        Its risks are negative mean log likelihoods.

    References
    ----------
    Zhan, Wang, Xia, "Non-asymptotic Properties of Generalized Mondrian Forests in Statistical
    Learning", section 6.6.

    Examples
    --------
    >>> import numpy as np
    >>> from dmondrian import MondrianDensity
    >>> X = np.random.default_rng(0).beta(2, 5, size=(500, 1))
    >>> density = MondrianDensity(lifetime=8.0, random_state=0).fit(X)
    >>> bool(density.score_samples([[0.2]])[0] > density.score_samples([[0.9]])[0])
    True
    """

    algorithm = "mondrian-density"
    aggregation, empty_cell, predict_extension = "mean", "parent", "leaf"
    domain = "cube"
    max_nodes, feature_scales, warmup_rows = None, None, LAST
    _held_out_path: LifetimePath
    _forgets = ("_density",)
    _density: tuple[tuple[Forest, float, float, float | None, int], ForestDensity]

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **{
            name: MondrianForest._parameter_constraints[name]
            for name in ("n_estimators", "clip", "random_state", "n_jobs")
        },
        "lifetime": [
            *MondrianForest._parameter_constraints["lifetime"],
            StrOptions({"validation"}),
        ],
        "max_lifetime": [Interval(Real, 0, None, closed="neither"), None],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "bound": [Interval(Real, 0, None, closed="neither"), None],
        "n_draws": [Interval(Integral, 2, None, closed="left")],
    }

    def __init__(
        self,
        n_estimators: int = 10,
        *,
        lifetime: Chosen = "grow",
        max_lifetime: float | None = None,
        validation_fraction: float = 0.1,
        bound: float | None = None,
        n_draws: int = 10_000,
        clip: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.lifetime = lifetime
        self.max_lifetime = max_lifetime
        self.validation_fraction = validation_fraction
        self.bound = bound
        self.n_draws = n_draws
        self.clip = clip
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _given_lifetime(self, n_features: int) -> Lifetime:
        if self.lifetime is None and self.max_lifetime is None:
            raise ParameterError(
                "without an end cells shrink to points, which have no density: give a lifetime "
                "or a max_lifetime"
            )
        return None if self.lifetime == "validation" else super()._given_lifetime(n_features)

    def _forest_parameters(self, n_features: int, n_classes: int = 0) -> ForestParameters:
        return ForestParameters(
            **self._shared_parameters(n_features),
            n_classes=0,
            split_pure=True,
            horizon=None if self.max_lifetime is None else float(self.max_lifetime),
            cost=Cost("density", bound=None if self.bound is None else float(self.bound)),
        )

    def _check_stream(self) -> None:
        if self.lifetime == "validation":
            raise ParameterError(
                'lifetime="validation" holds out rows of a fit: call fit, or learn the stream with '
                "a max_lifetime and call choose_lifetime with held-out rows"
            )

    def _checked_labels(self, y: np.ndarray) -> np.ndarray:
        return np.zeros(len(y))  # rows are all there is

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn rows from nothing, in their order.

        Parameters
        ----------
        X : array-like of shape (n, d)
            In [0, 1], taken as float32.
        y : ignored
        sample_weight : array-like of shape (n,), optional
            Non-negative; a whole weight w equals w repeats of the row.

        Returns
        -------
        This estimator
        """
        with self._learner(anew=True) as one:
            one.__dict__.pop("_held_out_path", None)
            X, y, w = one._rows(X, sample_weight, first=True)
            check_some_weight(w)
            one._learn_all(X, y, w, 0)
        return self

    def _learn_all(
        self, X: np.ndarray, y: np.ndarray, w: np.ndarray | None, n_classes: int
    ) -> None:
        if self.lifetime != "validation":
            super()._learn_all(X, y, w, n_classes)
            return
        is_held = held_out(len(X), float(self.validation_fraction))
        kept = None if w is None else w[~is_held]
        super()._learn_all(X[~is_held], y[~is_held], kept, n_classes)
        self._choose(X[is_held], None if w is None else w[is_held])

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn more rows, in their order; parameters as in :meth:`fit`."""
        with self._learner(anew=False) as one:
            first = one is not self
            if first:
                one._check_stream()
            else:
                one._check_unchanged()
            X, y, w = one._rows(X, sample_weight, first=first)
            one._learn(X, y, w, 0, first=first)
        return self

    def _rows(
        self, X: Any, sample_weight: Any, first: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        zeros = np.zeros(_num_samples(X))
        return self._validate_rows(X, zeros, sample_weight, first=first, numeric=True)

    def choose_lifetime(self, X: Any, sample_weight: Any = None) -> Self:
        """Choose the lifetime of largest likelihood of rows that were not learned.

        Candidates are 24 lifetimes from the first split to the last, evenly in their logarithm.

        Parameters
        ----------
        X : array-like of shape (n, d)
        sample_weight : array-like of shape (n,), optional

        Returns
        -------
        This estimator
        """
        self._check_rows(X)
        with self._learner(anew=False):
            X, _, w = self._rows(X, sample_weight, first=False)
            self._choose(X, w)
        return self

    def _choose(self, X: np.ndarray, w: np.ndarray | None) -> None:
        forest = self.forest_
        parameters = forest.parameters
        assert parameters.cost is not None  # as it was made
        grid = lifetime_grid(forest.trees, _CANDIDATES)
        weights = np.ones(len(X)) if w is None else w
        losses = np.array([-weights @ self._at(at).log_density(X) for at in grid])
        path = held_out_path(grid, losses, float(weights.sum()))
        chosen = dataclasses.replace(parameters.cost, lifetime=float(path.chosen[0]))
        with self._turns.alone():
            forest.parameters = dataclasses.replace(parameters, cost=chosen)
            self._held_out_path = path

    @property
    @in_one_state
    def lifetime_path_(self) -> LifetimePath:
        """Lifetimes tried, negative mean log likelihoods of held-out rows, and what was chosen."""
        self._fitted_forest()
        if not hasattr(self, "_held_out_path"):
            raise AttributeError(
                'no lifetime was chosen by held-out rows: use lifetime="validation", or '
                f"choose_lifetime; it is {self.lifetime!r}"
            )
        return self._held_out_path

    def _at(self, lifetime: float) -> ForestDensity:
        bound = None if self.bound is None else float(self.bound)
        return ForestDensity(self.forest_, lifetime, bound, int(self.n_draws))

    @property
    def _now(self) -> ForestDensity:
        """The density at the lifetime in use, made once after learning."""
        forest = self.forest_
        key = forest, forest.total_weight, self.lifetime_, self.bound, self.n_draws
        known = self.__dict__.get("_density")
        if known is None or known[0] != key:
            known = self._density = key, self._at(self.lifetime_)
            self._warn_of_empty_mass(known[1].empty_mass)
        density: ForestDensity = known[1]
        return density

    def _warn_of_empty_mass(self, mass: float) -> None:
        if mass > _MUCH:
            bound = self.bound if self.bound is not None else np.log1p(self.forest_.total_weight)
            warnings.warn(
                f"cells without rows have {mass:.0%} of the probability, as densities beyond "
                f"e^{float(bound):.3g} are cut: of new rows the estimate is close to uniform; give "
                "a larger bound, a shorter lifetime or fewer columns",
                UserWarning,
                stacklevel=3,
            )

    @property
    @in_one_state
    def empty_mass_(self) -> float:
        """Probability that trees give to cells without rows, mean over trees."""
        self._fitted_forest()
        return self._now.empty_mass

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_density", None)  # it holds the forest, and is made again
        return state

    @property
    @in_one_state
    def normalization_error_(self) -> float:
        """Standard error of every log density that is told; 0 for one tree."""
        self._fitted_forest()
        return self._now.error

    @in_one_state
    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log of the density at each row, float64 [n].

        Parameters
        ----------
        X : array-like of shape (n, d)
            In the cube.
        """
        X = self._check_rows(X)
        return self._now.log_density(X)

    @in_one_state
    def score(self, X: Any, y: Any = None) -> float:
        """Return the log likelihood of the rows: the sum of their log densities.

        Parameters
        ----------
        X : array-like of shape (n, d)
            In the cube.
        y : ignored
        """
        return float(self.score_samples(X).sum())

    @in_one_state
    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Return independent rows drawn from the density, exactly (no normaliser is needed).

        Parameters
        ----------
        n_samples : int, default=1
            At least 1.
        random_state : int, RandomState or None

        Returns
        -------
        float32 array of shape (n_samples, d)
        """
        check_is_fitted(self)
        try:
            n = operator.index(n_samples)
        except TypeError:
            n = 0
        if n < 1:
            raise ParameterError(f"n_samples should be an integer >= 1, got {n_samples!r}")
        seed = check_random_state(random_state).randint(2**31)
        return self._now.sample(n, np.random.default_rng(seed))

    def _node_forecasts(self, stat: np.ndarray, offset: float) -> dict[str, np.ndarray]:
        return {}
