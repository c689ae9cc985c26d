"""The density estimator of generalised Mondrian forests (Z24, section 6.6).

Shapes: n rows, d features, T trees, L lifetimes.
"""

from __future__ import annotations

import dataclasses
import operator
import warnings
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dmondrian.ensemble.lifetime_selection import held_out, held_out_path, lifetime_grid
from dmondrian.ensemble.settings.lifetime import Lifetime
from dmondrian.ensemble.settings.loss_settings import CELL_VALUES, Cost
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.estimators._sklearn_private import Interval, StrOptions, fit_context, num_samples
from dmondrian.estimators.chosen_lifetime import ChosenLifetime
from dmondrian.estimators.generalized import Chosen
from dmondrian.estimators.one_state import in_one_state
from dmondrian.estimators.sample_weight import check_some_weight
from dmondrian.tuning.auto_settings import LAST
from dmondrian.uncertainty.density import ForestDensity

_MUCH = 0.5  # of the probability for cells without rows
_CANDIDATES = 24  # lifetimes that held-out rows choose from; each is normalised anew


class MondrianDensity(DensityMixin, ChosenLifetime):
    """Density of rows in the unit cube, by the mean over trees of the log density of cells.

    The density of one tree is normalised exactly; that of a forest by draws, with a known
    standard error.

    Missing values and categories are refused: what would stand for them are features of 0 and 1
    alone, which have no density, and rows that :meth:`sample` draws would lie between.

    Parameters
    ----------
    n_estimators : int, default=10
        Trees.
    lifetime : float, "grow", PowerLifetime, "penalized", "validation" or None, default="grow"
        Until when cells are split, as in :class:`dmondrian.MondrianForestClassifier`. "validation":
        the one of largest likelihood of rows held out of ``fit``; see :meth:`choose_lifetime`.
        "penalized": each tree's own, of least empirical risk + ``penalty`` x lifetime (Z24,
        Equation 8), the risk being the negative mean log likelihood of the rows learned, by the
        ``bound`` and ``cell_value`` that they were learned with: no row is held out, so that
        streams can have it. None and "penalized" need a ``max_lifetime``.
    penalty : float or None, default=None
        alpha_n of "penalized"; None for the one that comes nearest to charging each split
        ln(n) / (2 n), found from each tree (see :mod:`dmondrian.ensemble.lifetime_selection`).
    max_lifetime : float or None, default=None
        Until when trees are split where the lifetime grows or is chosen.
    validation_fraction : float, default=0.1
        Share of the rows that "validation" holds out.
    bound : float or None, default=None
        beta_n: limit of a tree's log densities before normalisation, to [-bound, bound]; None for
        max(1, ln(1 + n)).
    cell_value : {"log_frequency", "minimizer"}, default="log_frequency"
        Log density of a tree in cell A, which has n_A of n rows. "log_frequency": log(n_A / (n vol
        A)) moved into the limits, which is *not* the least of Z24's empirical risk -(1/n) sum_i
        h(X_i) + log int exp(h) over [-bound, bound] wherever a limit is reached, as it is in each
        empty cell. "minimizer": that least, log(n_A / (n vol A)) + s moved into the limits with one
        exact number s for all cells of a tree, so that the largest values reach the bound (see
        :mod:`dmondrian.ensemble.density_risk`). On new rows the default has at least the same
        likelihood at chosen lifetimes; at much shorter ones, where the limits cut, the minimizer
        may have more (``benchmarks/generalized.py choices``). It may be changed after fitting, as
        may ``bound`` and ``n_draws``; lifetimes chosen by "penalized" stay.
    n_draws : int, default=10000
        Draws that normalise a forest: the standard error of the log density is at most
        ``normalization_error_``, which falls as one over the root of them.
    clip : bool, default=False
        Move rows outside the cube to its surface; otherwise they are refused.
    random_state, n_jobs
        As in :class:`dmondrian.MondrianForestClassifier`.

    Attributes
    ----------
    n_features_in_ : int
    feature_names_in_ : array of shape (d,), only if the rows had names
    forest_ : Forest
    lifetime_, lifetimes_ : float, float64 array of shape (T,)
        Lifetime in use now, of each tree; the former is their median.
    normalization_error_ : float
        Standard error of log densities, the same for all rows; 0 for one tree.
    empty_mass_ : float
        Probability that trees give to cells without rows, their mean. Above a half the estimate is
        close to uniform, which is warned of.
    lifetime_path_ : LifetimePath, only where a lifetime was chosen
        Its risks are negative mean log likelihoods: of held-out rows, or by each tree of the rows
        that it learned.

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
    _choices = '"penalized" or "validation"'
    _forgets = ("_density",)
    _density: tuple[tuple[Any, ...], ForestDensity]

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **{
            name: ChosenLifetime._parameter_constraints[name]
            for name in (
                "n_estimators",
                "penalty",
                "max_lifetime",
                "validation_fraction",
                "bound",
                "clip",
                "random_state",
                "n_jobs",
            )
        },
        "lifetime": [
            *ChosenLifetime._parameter_constraints["lifetime"],
            StrOptions({"penalized", "validation"}),
        ],
        "cell_value": [StrOptions(set(CELL_VALUES))],
        "n_draws": [Interval(Integral, 2, None, closed="left")],
    }

    def __init__(
        self,
        n_estimators: int = 10,
        *,
        lifetime: Chosen = "grow",
        penalty: float | None = None,
        max_lifetime: float | None = None,
        validation_fraction: float = 0.1,
        bound: float | None = None,
        cell_value: Literal["log_frequency", "minimizer"] = "log_frequency",
        n_draws: int = 10_000,
        clip: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.lifetime = lifetime
        self.penalty = penalty
        self.max_lifetime = max_lifetime
        self.validation_fraction = validation_fraction
        self.bound = bound
        self.cell_value = cell_value
        self.n_draws = n_draws
        self.clip = clip
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _given_lifetime(self, n_features: int) -> Lifetime:
        if (
            self.lifetime is None or self._lifetime_choice == "penalized"
        ) and self.max_lifetime is None:
            raise ParameterError(
                f"lifetime={self.lifetime!r}: without an end cells shrink to points, which have no "
                "density: give a number as lifetime, or a max_lifetime"
            )
        is_chosen = self._lifetime_choice in ("penalized", "validation")
        return None if is_chosen else super()._given_lifetime(n_features)

    def _forest_parameters(self, n_features: int, n_classes: int = 0) -> ForestParameters:
        return ForestParameters(
            **self._shared_parameters(n_features),
            n_classes=0,
            split_pure=True,
            horizon=None if self.max_lifetime is None else float(self.max_lifetime),
            cost=Cost(
                "density",
                bound=None if self.bound is None else float(self.bound),
                selection="penalized" if self._lifetime_choice == "penalized" else None,
                penalty=None if self.penalty is None else float(self.penalty),
                cell_value=self.cell_value,
            ),
        )

    def _check_stream(self) -> None:
        if self._lifetime_choice == "validation":
            raise ParameterError(
                'lifetime="validation" holds out rows of a fit: call fit, or learn the stream with '
                "a max_lifetime and call choose_lifetime with held-out rows"
            )

    def _checked_labels(self, y: np.ndarray) -> np.ndarray:
        return np.zeros(len(y))  # there are no labels

    @fit_context(prefer_skip_nested_validation=True)
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
        with self._learner(anew=True) as learner:
            learner.__dict__.pop("_held_out_path", None)
            X, y, w = learner._rows(X, sample_weight, first=True)
            check_some_weight(w)
            learner._learn_all(X, y, w, 0)
        return self

    def _learn_all(self, X: Any, y: np.ndarray, w: np.ndarray | None, n_classes: int) -> None:
        if self._lifetime_choice != "validation":
            super()._learn_all(X, y, w, n_classes)
            return
        is_held = held_out(X.shape[0], float(self.validation_fraction))
        kept = None if w is None else w[~is_held]
        super()._learn_all(X[~is_held], y[~is_held], kept, n_classes)
        self._choose(self._as_seen(X, is_held), None if w is None else w[is_held])

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn more rows, in their order; parameters as in :meth:`fit`."""
        with self._learner(anew=False) as learner:
            first = learner is not self
            if first:
                learner._check_stream()
            else:
                learner._check_unchanged()
            X, y, w = learner._rows(X, sample_weight, first=first)
            learner._learn(X, y, w, 0, first=first)
        return self

    def _rows(
        self, X: Any, sample_weight: Any, first: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        zeros = np.zeros(num_samples(X))
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
            self._choose(self._as_seen(X), w)
        return self

    def _choose(self, X: np.ndarray, w: np.ndarray | None) -> None:
        forest = self.forest_
        parameters, cost = forest.parameters, self._fitted_cost()
        grid = lifetime_grid(forest.trees, _CANDIDATES)
        weights = np.ones(len(X)) if w is None else w
        losses = np.array([-weights @ self._at(at).log_density(X) for at in grid])
        path = held_out_path(grid, losses, float(weights.sum()))
        chosen = dataclasses.replace(cost, lifetime=float(path.chosen[0]), selection=None)
        with self._turns.alone():
            forest.parameters = parameters.replace(cost=chosen)
            self._held_out_path = path

    def _at(self, lifetimes: float | np.ndarray) -> ForestDensity:
        """Return the density at one lifetime, or at each tree's own."""
        bound = None if self.bound is None else float(self.bound)
        each = np.broadcast_to(np.asarray(lifetimes, np.float64), (len(self.forest_.store),))
        return ForestDensity(self.forest_, each, bound, self.cell_value, int(self.n_draws))

    @property
    def _now(self) -> ForestDensity:
        """The density at the lifetime in use, made once after learning."""
        forest = self.forest_
        lifetimes = self.lifetimes_
        settings = self.bound, self.cell_value, self.n_draws
        key = forest, forest.total_weight, tuple(lifetimes.tolist()), *settings
        known = self.__dict__.get("_density")
        if known is None or known[0] != key:
            known = self._density = key, self._at(lifetimes)
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
        state.pop("_density", None)  # refers to the forest; computed again
        return state

    @property
    @in_one_state
    def normalization_error_(self) -> float:
        """Standard error of log densities, the same for all rows; 0 for one tree."""
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
