"""Base class of the forest estimators: fitting, state, inspection.

Relies on :class:`dmondrian.forest.forest.Forest` for learning and on scikit-learn's validation.
Promises the estimator contract of scikit-learn; ``pickle``, ``joblib`` and ``copy`` use
the same checked state as checkpoints.

Threads may share an estimator: any number may read while others learn, one at a time in any order.
A prediction is that of the whole forest after some row, the same for all trees and all rows of the
call: a concurrent ``partial_fit`` is visible up to a row that it has learned, a concurrent ``fit``
only after its end, with all its results (classes, calibration, columns). Learning lets readers in
between blocks of its rows, so that they wait for a block and not for the whole call.

Shapes: n rows, d features, K classes, m nodes, T trees.
"""

from __future__ import annotations

import operator
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from numbers import Integral
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike
from scipy.sparse import csr_matrix, issparse
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dmondrian.drift.drift_forest import forest_from_state
from dmondrian.ensemble.feature_importances import importances
from dmondrian.ensemble.row_paths import leaves_of_rows, paths_of_rows
from dmondrian.ensemble.rows.unit_cube import check_cube
from dmondrian.ensemble.settings.fringe_settings import NO_CAP
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.threads import Turns
from dmondrian.errors import ParameterError
from dmondrian.estimators._sklearn_private import Interval, StrOptions
from dmondrian.estimators.feature_scales import (
    given_scales,
    is_per_column,
    numbers_per_column,
    scales_of,
    thresholds_of_given,
    units_of,
)
from dmondrian.estimators.frame_values import (
    check_labels_known,
    check_units,
    error_of_values,
    missing_times,
    time_units,
)
from dmondrian.estimators.memory_check import check_memory
from dmondrian.estimators.missing_values import ALLOWED, ENCODE, filling, with_indicators
from dmondrian.estimators.monotone_columns import plain_constraints
from dmondrian.estimators.one_state import in_one_state
from dmondrian.estimators.plain_rows import plain_labels, plain_rows
from dmondrian.estimators.row_parts import TimeBudget, answered_in_parts, dense, parts_of
from dmondrian.estimators.same_forest import comparing_names, copy_of
from dmondrian.estimators.sample_weight import checked_weights
from dmondrian.estimators.single_row import mean_of_single_row
from dmondrian.forest.forest import Forest, tree_fields
from dmondrian.tree import nodes
from dmondrian.tuning.auto_settings import LARGEST_WARMUP, LEAST_WARMUP, OPEN_SETTINGS, WIDEST_AUTO

if TYPE_CHECKING:
    from dmondrian.estimators.frame_columns import Columns


def draw_seed(random_state: Any) -> int:
    """Return the 64-bit seed that ``random_state`` stands for."""
    high, low = check_random_state(random_state).randint(0, 2**32, size=2, dtype=np.uint64)
    return (int(high) << 32) | int(low)


class BaseForest(BaseEstimator):
    """Base of the forest estimators; not to be used directly."""

    algorithm: ClassVar[str]
    # attributes that hold only for the rows learned so far
    _forgets: ClassVar[tuple[str, ...]] = ()
    _takes_sparse: ClassVar[bool] = True  # rows, which are learned in parts

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_estimators": [Interval(Integral, 1, None, closed="left")],
        "predict_extension": [StrOptions({"leaf", "expected"})],
        "domain": [StrOptions({"range", "cube"})],
        "clip": ["boolean"],
        "feature_scales": [StrOptions({"auto", "learned"}), "array-like", None],
        "feature_units": [StrOptions({"auto"}), None],
        "warmup_rows": [Interval(Integral, LEAST_WARMUP, LARGEST_WARMUP, closed="both")],
        "max_nodes": [Interval(Integral, 1, None, closed="left"), None],
        "missing_values": ALLOWED,
        "categorical_features": [StrOptions({"from_dtype"}), "array-like", None],
        "random_state": ["random_state"],
        "n_jobs": [Integral, None],
    }

    n_estimators: int
    predict_extension: str
    domain: Literal["range", "cube"]
    clip: bool
    max_nodes: int | None
    feature_scales: ArrayLike | Literal["auto", "learned"] | None
    feature_units: Literal["auto"] | None = None
    missing_values: Literal["error", "encode"] = "error"
    categorical_features: ArrayLike | Literal["from_dtype"] | None = None
    _columns: Columns  # only where some are categories
    warmup_rows: int
    random_state: Any
    _seed: int | None = None  # that was drawn before, of a run that is trained again
    n_jobs: int | None
    forest_: Forest
    n_features_in_: int
    feature_names_in_: np.ndarray
    _begun_with: dict[str, Any]

    @cached_property
    def _turns(self) -> Turns:
        """Lock of the threads that share this estimator, made once by the first of them."""
        made: Turns = self.__dict__.setdefault("_turns", Turns())
        return made

    def _validate_params(self) -> None:
        """Validate parameters as scikit-learn does, and refuse bools for numbers."""
        super()._validate_params()
        for name, allowed in self._parameter_constraints.items():
            value, is_number = getattr(self, name), any(isinstance(a, Interval) for a in allowed)
            if is_number and "boolean" not in allowed and isinstance(value, (bool, np.bool_)):
                raise ParameterError(
                    f"The {name!r} parameter of {type(self).__name__} must be a number. "
                    f"Got {value!r} instead."
                )

    @abstractmethod
    def _forest_parameters(self, n_features: int, n_classes: int) -> ForestParameters:
        """Return the parameters of a new forest; draws the seed."""

    def _run_parameters(
        self, n_features: int, n_classes: int, names: Sequence[str] | None = None
    ) -> ForestParameters:
        """Return the parameters of the forests of a run on a cluster, whose features have names."""
        return self._forest_parameters(n_features, n_classes)

    def _shared_parameters(self, n_features: int) -> dict[str, Any]:
        """Return the parameters of the forest common to all estimators; draws the seed."""
        return {
            "feature_scales": self._given_scales(n_features),
            "domain": self.domain,
            "clip": bool(self.clip),
            "algorithm": self.algorithm,
            "n_features": int(n_features),
            "seed": draw_seed(self.random_state) if self._seed is None else self._seed,
            "expected_extension": self.predict_extension == "expected",
            "max_nodes": None if self.max_nodes is None else min(int(self.max_nodes), NO_CAP),
        }

    def _given_scales(self, n_features: int) -> tuple[float, ...] | None:
        """Return the feature scales, if they are given as numbers."""
        is_given = self.feature_scales is not None and not self._leaves_scales_open()
        if self.domain == "cube" and is_given:
            raise ParameterError('feature_scales are of the range: use domain="range", or None')
        return given_scales(self.feature_scales, n_features)

    @abstractmethod
    def _checked_labels(self, y: np.ndarray) -> np.ndarray:
        """Return encoded labels, float64 [n]; refuse invalid ones."""

    def _class_weighted(
        self, codes: np.ndarray, w: np.ndarray | None, seen: float
    ) -> np.ndarray | None:
        """Return weights of rows times those of their classes, where there are classes."""
        return w

    @abstractmethod
    def _label_finder(self) -> Callable[[Any], float | None]:
        """Return a function that encodes one label, or returns None if it needs full validation."""

    def _check_stream(self) -> None:
        """Refuse parameters that need all rows at once, for ``partial_fit``."""

    def _check_run(self) -> None:
        """Refuse parameters that are not supported in runs on a cluster."""
        self._check_stream()
        if self.missing_values != "error":
            raise ParameterError(
                f"missing_values={self.missing_values!r} is of rows that are given as arrays or "
                "frames: a run encodes missing values of its columns anyway; leave it out"
            )
        if self.categorical_features is not None:
            raise ParameterError(
                f"categorical_features={self.categorical_features!r} is of frames that are fitted: "
                "a run takes texts for categories, and the columns of [data] categorical; leave it "
                "out"
            )

    def _check_time(self, column: str | None, kind: str | None = None) -> None:
        """Refuse a column of times that no label comes by, for runs on a cluster."""
        if column is not None:
            raise ParameterError(
                f"time={column!r} goes with a delay that is a time, and {type(self).__name__} has "
                "none: leave it out"
            )

    def _leaves_scales_open(self) -> bool:
        """Return whether domain and width decide if feature scales are learned."""
        return isinstance(self.feature_scales, str) and self.feature_scales == "auto"

    def _auto_settings(self, n_features: int, n_classes: int) -> tuple[str, ...]:
        """Return the names of the settings chosen from the first rows."""
        is_settled = self.domain == "cube" or n_features > WIDEST_AUTO
        given_up = self._leaves_scales_open() and is_settled
        return tuple(
            name
            for name, values in OPEN_SETTINGS.items()
            if isinstance(value := getattr(self, name, None), str)
            and value in values
            and not (name == "feature_scales" and given_up)
            and not (name == "feature_units" and self.domain == "cube")
        )

    def _fitted_forest(self) -> Forest:
        """Return the forest; raise AttributeError before fitting."""
        if not hasattr(self, "forest_"):
            raise AttributeError(f"this {type(self).__name__} is not fitted yet")
        return self.forest_

    @property
    def feature_scales_(self) -> np.ndarray:
        """Factor of each column, float32 [d]."""
        return scales_of(self._fitted_forest().parameters)

    @property
    def feature_units_(self) -> np.ndarray:
        """Unit to whose multiples each scaled column is rounded, float64 [d]; 0 for none."""
        return units_of(self._fitted_forest().parameters)

    @property
    @in_one_state
    def feature_importances_(self) -> np.ndarray:
        """Share of each feature in the gains of the splits, float64 [d], sum 1.

        The gain of a split is the decrease in loss if labels on its two sides are forecast
        separately, at least 0: of log loss by Krichevsky-Trofimov forecasts for classes, of squared
        error by running means for numbers. All zeros if no split has a gain.
        """
        return self._of_columns(importances(self._fitted_forest()))

    def _of_columns(self, of_features: np.ndarray) -> np.ndarray:
        """Return sums over the features of each given column."""
        if not self._encodes_rows():
            return of_features
        ends = np.cumsum(self._widths())
        return np.array([part.sum() for part in np.split(of_features, ends[:-1])])

    @property
    def n_clipped_(self) -> int:
        """Rows that ``clip`` moved to the cube's surface, since fitting or loading."""
        return self._fitted_forest().n_clipped

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "forest_")

    def _validate_rows(
        self, X: Any, y: Any, sample_weight: Any, *, first: bool, numeric: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return checked rows, labels and weights (None for weights of one)."""
        rows = None if first else plain_rows(self, X)
        labels = None if rows is None else plain_labels(y, len(rows))
        if rows is not None and labels is not None:
            X, y = rows, labels
        else:
            checking = self if first else comparing_names(self, X)
            if first:
                self._find_categories(X)
            elif "_columns" in self.__dict__:
                self._check_categories(X)
            X, y = self._checked(checking, X, y, reset=first, y_numeric=numeric)
        X = self._to_learn(X, first)
        if sample_weight is None:
            return X, y, None
        seen = 0.0 if first else self.forest_.total_weight
        return X, y, checked_weights(sample_weight, X.shape[0], seen)

    def _to_learn(self, X: Any, first: bool) -> Any:
        """Return validated rows as trees see them; sparse ones as they are, but looked through."""
        if not issparse(X):
            return self._features(X, first)
        if self.domain == "cube" and not self.clip:
            for part in parts_of(X):
                self._features(dense(X[part]), first)
        return X

    @contextmanager
    def _learner(self, anew: bool) -> Iterator[Self]:
        """Yield the estimator that learns, exclusively: this one, whose forest learns in place.

        To begin a forest (``anew``, or if there is none), a copy of it. At the end of the block
        this estimator takes over the copy's state, atomically for all threads; if the block fails,
        it stays unchanged.
        """
        with self._turns.learning():
            if not anew and hasattr(self, "forest_"):
                yield self
                return
            copy = copy_of(self)
            before = copy.__dict__.copy()
            try:
                yield copy
            except (MemoryError, KeyboardInterrupt) as error:
                error.add_note("no row is learned: the estimator is as it was before the call")
                raise
            self._become(copy, before)

    def _become(self, copy: Self, before: dict[str, Any]) -> None:
        """Take over the attributes of a copy that differ from ``before``."""
        attributes, new_attributes = self.__dict__, copy.__dict__
        changed = {
            n: new_attributes[n]
            for n in new_attributes
            if n not in before or new_attributes[n] is not before[n]
        }
        if self._turns.is_broken:  # they belong to the previous forest
            changed["_turns"] = Turns()
        with changed.get("_turns", self._turns).alone():
            for name in before:
                if name not in new_attributes:
                    attributes.pop(name, None)
            attributes.update(changed)  # in one step

    def _learn(
        self, X: Any, y: np.ndarray, w: np.ndarray | None, n_classes: int, first: bool
    ) -> None:
        """Learn checked rows, into a new forest if ``first``."""
        if first:
            is_doubled = issparse(X) and self._encodes_missing(first)
            forest = self._new_forest(X.shape[1] * (1 + is_doubled), n_classes)
            self._update_forest(forest, X, np.asarray(y, np.float64), w)
            self.forest_ = forest
            self._forget()
        else:
            self._learn_more(X, np.asarray(y, np.float64), w)

    def _learn_more(self, X: Any, y: np.ndarray, w: np.ndarray | None) -> None:
        """Learn rows in place, with readers in between."""
        forest = self.forest_
        known = forest.total_weight
        with self._turns.alone():
            forgotten = self._forget()
        try:
            self._update_forest(forest, X, y, w, self._turns)
        except BaseException:
            if forest.total_weight == known:  # no row was learned
                self.__dict__.update(forgotten)
            raise

    def _update_forest(
        self,
        forest: Forest,
        X: Any,
        y: np.ndarray,
        w: np.ndarray | None,
        turns: Turns | None = None,
    ) -> None:
        """Let a forest learn checked rows; see :meth:`dmondrian.forest.forest.Forest.update`."""
        times: np.ndarray | None = self.__dict__.pop("_times", None)
        budget: TimeBudget | None = self.__dict__.pop("_time_budget", None)
        for part in parts_of(X, budget):
            rows = self._as_seen(X, part)
            own = [None if given is None else given[part] for given in (w, times)]
            n_threads = self._n_threads(len(rows))
            forest.update(rows, y[part], own[0], n_threads, turns, own[1], (part.start, len(y)))
        if turns is None:
            self.n_samples_fit_ = part.stop
        if budget is not None and part.stop < X.shape[0]:
            warnings.warn(
                f"time_budget={budget.seconds:g} ended the fit after {part.stop:,} of "
                f"{X.shape[0]:,} rows: the forest is that of these rows; partial_fit goes on",
                stacklevel=2,
            )

    def _as_seen(self, X: Any, part: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Return a part of the rows that are learned, as trees see them."""
        rows: np.ndarray = self._features(dense(X[part])) if issparse(X) else X[part]
        return rows

    def _take_times(self, times: Any, n: int) -> None:
        """Keep the times of the ``n`` rows that are learned next, where labels come by time."""

    def _check_budget(self, budget: TimeBudget | None) -> None:
        """Keep how long rows may be learned, of estimators that learn them in parts."""
        if budget is not None:
            self._time_budget = budget

    def _learn_all(self, X: Any, y: np.ndarray, w: np.ndarray | None, n_classes: int) -> None:
        """Learn all checked rows of ``fit`` into a new forest."""
        self._learn(X, y, w, n_classes, first=True)

    def _forget(self) -> dict[str, Any]:
        """Drop the attributes that hold only for the rows learned so far; return them."""
        attributes = self.__dict__
        return {name: attributes.pop(name) for name in self._forgets if name in attributes}

    def _new_forest(self, n_features: int, n_classes: int) -> Forest:
        parameters = self._forest_parameters(n_features, n_classes)
        check_memory(parameters, int(self.n_estimators))
        self._begun_with = self._lasting_params()
        self.__dict__.pop("_is_of_run", None)
        auto = self._auto_settings(n_features, n_classes)
        numbers, calibrate = range(self.n_estimators), getattr(self, "calibrate", False)
        return Forest(parameters, numbers, auto, int(self.warmup_rows), calibrate)

    def _lasting_params(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the parameters that are fixed from the first row on, or those in ``names``."""
        if names is None:
            params = self.get_params(deep=False)
        else:
            params = {name: getattr(self, name) for name in names}
        for name in ("feature_scales", "lifetime"):  # comparing arrays gives arrays
            if is_per_column(params.get(name)):
                params[name] = numbers_per_column(params[name], name).tolist()
        for name in ("lifetime", "class_weight"):  # a dict may be changed in place
            if isinstance(params.get(name), dict):
                params[name] = dict(params[name])
        if not isinstance(params.get("categorical_features"), (str, type(None))):
            params["categorical_features"] = np.asarray(params["categorical_features"]).tolist()
        if isinstance(params.get("experts"), list):  # as a list may
            params["experts"] = tuple(params["experts"])
        if params.get("monotonic_cst") is not None:
            params["monotonic_cst"] = plain_constraints(params["monotonic_cst"])
        return {name: params[name] for name in params if name not in ("n_jobs", "random_state")}

    def _check_unchanged(self) -> None:
        """Refuse parameters that were changed after the first row."""
        now = self._lasting_params(self._begun_with)  # by name, which is faster than get_params
        changed = [name for name in now if now[name] != self._begun_with[name]]
        if changed:
            changes = ", ".join(f"{n}={now[n]!r} (was {self._begun_with[n]!r})" for n in changed)
            raise ParameterError(
                f"parameters changed after the first rows were learned: {changes}; set them back, "
                "or call fit to begin anew"
            )

    def _n_threads(self, n_rows: int = 2) -> int:
        """Return the number of threads for `n_rows` rows; 1 for one row."""
        return 1 if n_rows == 1 else int(effective_n_jobs(self.n_jobs))

    def _check_rows(self, X: Any) -> np.ndarray:
        """Return validated rows to predict, as trees see them."""
        check_is_fitted(self)
        rows = plain_rows(self, X)
        if rows is None:
            checking = comparing_names(self, X)
            rows = self._validated(checking, X, reset=False)
        return self._features(rows)

    def _checked_pairs(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return validated rows that are not learned, and their labels, numbers."""
        X, y = self._validated(comparing_names(self, X), X, y, reset=False, y_numeric=True)
        return self._features(X), self._checked_labels(y)

    def _validated(self, checking: Any, *data: Any, reset: bool, **options: Any) -> Any:
        """Return what scikit-learn makes of rows, with or without labels; dense."""
        checked = self._checked(checking, *data, reset=reset, **options)
        return (dense(checked[0]), checked[1]) if isinstance(checked, tuple) else dense(checked)

    def _checked(self, checking: Any, *data: Any, reset: bool, **options: Any) -> Any:
        """Return what scikit-learn makes of rows, with or without labels, sparse or dense."""
        finite: Any = "allow-nan" if self._encodes_missing(reset) else True
        if (columns := self.__dict__.get("_columns")) is not None:
            from dmondrian.estimators.frame_columns import with_numbers  # loads PyArrow

            data = with_numbers(data[0], columns), *data[1:]
        if len(data) > 1:
            check_labels_known(data[1])
        try:
            with np.errstate(over="ignore"):  # beyond float32: refused below, in words
                checked = validate_data(
                    checking,
                    *data,
                    accept_sparse="csr" if self._takes_sparse else False,
                    dtype=np.float32,
                    order="C",
                    reset=reset,
                    ensure_all_finite=finite,
                    **options,
                )
        except (TypeError, ValueError) as error:
            if "Input X contains NaN" in str(error):
                raise self._error_of_missing_values() from None
            is_of_text = "could not convert string" in str(error) or "Cannot cast" in str(error)
            if is_of_text or isinstance(error, TypeError):
                named = error_of_values(data[0], error, reset)
                raise (error if named is None else named) from None
            raise
        rows = checked[0] if isinstance(checked, tuple) else checked
        if not reset:
            check_units(data[0], self.__dict__.get("_time_units", ()))
        elif (units := time_units(data[0], rows.shape[1])) is not None:
            self._time_units = units
        else:
            self.__dict__.pop("_time_units", None)
        if (is_missing := missing_times(data[0], rows)) is not None:
            if finite is True:
                raise self._error_of_missing_values()
            rows[is_missing] = np.nan
        return checked

    def _error_of_missing_values(self) -> ParameterError:
        if "missing_values" not in self.get_params(deep=False):
            hint = "fill them, or leave these rows out"
        elif self.missing_values == ENCODE:  # set after the first rows
            hint = "the forest was begun without missing_values='encode': fit it anew"
        else:
            hint = "missing_values='encode' learns and forecasts such rows; else fill them"
        return ParameterError(f"Input X contains NaN, which stands for missing values: {hint}")

    def _find_categories(self, X: Any) -> None:
        """Find which columns of the first rows are categories, and their levels."""
        self.__dict__.pop("_columns", None)
        if self.categorical_features is None:
            return
        from dmondrian.estimators.frame_columns import columns_of

        columns = columns_of(X, self.categorical_features, self.missing_values == ENCODE)
        if columns is not None:
            self._columns = columns

    def _check_categories(self, X: Any) -> None:
        """Refuse rows to learn of other categories than those of the first rows."""
        from dmondrian.estimators.frame_columns import check_same

        check_same(X, self._columns)

    def _encodes_rows(self) -> bool:
        """Whether trees see other columns than those that are given."""
        return "_columns" in self.__dict__ or self._encodes_missing()

    def _widths(self) -> list[int]:
        """Return how many features trees see of each given column."""
        n_more = int(self._encodes_missing())
        columns = self.__dict__.get("_columns") or [None] * int(self.n_features_in_)
        return [1 + n_more if column is None else column.width for column in columns]

    def _encodes_missing(self, first: bool = False) -> bool:
        """Whether rows may have missing values: of a new forest, or as the forest was begun."""
        begun_with = None if first else self.__dict__.get("_begun_with")
        if begun_with is None:
            return self.missing_values == ENCODE
        return bool(begun_with.get("missing_values") == ENCODE)

    def _features(self, X: np.ndarray, first: bool = False) -> np.ndarray:
        """Return validated rows as trees see them, float32 [n, d] or, with indicators, [n, 2 d]."""
        encodes_missing = self._encodes_missing(first)
        if (columns := self.__dict__.get("_columns")) is not None:
            from dmondrian.estimators.frame_columns import features_of

            fills = filling(self.domain) if encodes_missing else None
            is_number = [column is None for column in columns]
            self._check_domain(np.where(is_number & ~np.isnan(X), X, np.float32(0.5)))
            return features_of(X, columns, fills)
        if not encodes_missing:
            self._check_domain(X)
            return X
        is_missing = np.isnan(X)
        X = np.where(is_missing, filling(self.domain), X)
        self._check_domain(X)
        return with_indicators(X, is_missing)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing_values == ENCODE
        tags.input_tags.sparse = self._takes_sparse
        return tags

    def _check_domain(self, X: np.ndarray) -> None:
        """Refuse rows outside the cube, naming the column."""
        if self.domain == "cube" and not self.clip:
            check_cube(X, getattr(self, "feature_names_in_", None))

    def _mean_prediction(self, X: Any) -> np.ndarray:
        """Return the mean over trees, float64 [n, K] or [n, 1]."""
        mean = mean_of_single_row(self, X)
        return self._mean_of_rows(X) if mean is None else mean

    def _mean_of_rows(self, X: Any) -> np.ndarray:
        """Do what :meth:`_mean_prediction` does, in the general way."""
        with self._turns.reading():
            if issparse(X) and self._takes_sparse:
                return answered_in_parts(self._mean_of_rows, X)
            X = self._check_rows(X)
            sums = self.forest_.predict_sums(X, n_threads=self._n_threads(len(X)))
            return sums.mean

    @in_one_state
    def weighted_depth(self, X: Any) -> np.ndarray:
        """Return the mean depth of the cells that predict each row.

        The posterior mean, over all prunings, of the depth of the leaf of x; mean over
        trees. It is larger where the target changes quickly.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        float64 array of shape (n,), in levels; 0 means that the root alone predicts. Without a
        mixture it is the depth of the predicting cell.

        References
        ----------
        Mourtada, Gaiffas, Scornet (2021), section 5.1.
        """
        X = self._check_rows(X)
        return self.forest_.weighted_depth(X)

    @in_one_state
    def apply(self, X: Any) -> np.ndarray:
        """Return the leaf that each row reaches in each tree.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)

        Returns
        -------
        int64 array of shape (n, n_estimators), ids as in :meth:`nodes`; -1 in a tree without rows.
        Learning more rows may make an inner node of a leaf, and renumbers none.

        Notes
        -----
        Splits alone lead to the leaf: that a row outside the boxes of a tree's cells may be parted
        from them, and how prunings are weighed, is not asked. With ``drift="follow"`` the trees are
        those that never forget.
        """
        rows = self._check_rows(X)
        return leaves_of_rows(self.forest_, rows)

    @in_one_state
    def decision_path(self, X: Any) -> tuple[csr_matrix, np.ndarray]:
        """Return which nodes each row passes on its way to the leaves of :meth:`apply`.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)

        Returns
        -------
        indicator : scipy.sparse.csr_matrix of shape (n, m), int64
            Ones, in the columns of nodes that the row passes.
        n_nodes_ptr : int64 array of shape (n_estimators + 1,)
            Column ``n_nodes_ptr[t] + v`` is node v of tree t.
        """
        rows = self._check_rows(X)
        return paths_of_rows(self.forest_, rows)

    @in_one_state
    def nodes(self, tree: int) -> dict[str, Any]:
        """Return one tree as arrays.

        Parameters
        ----------
        tree : int
            Index of the tree, 0 .. n_estimators - 1.

        Returns
        -------
        dict
            Arrays with one entry per node, copies: ``left``, ``right``, ``parent``
            (int32 node ids, -1 for none), ``feature`` (int32, -1 at leaves),
            ``threshold`` (float32; rows with x <= threshold go left), ``time`` (float64
            split time, inf at leaves), ``n_rows`` (float64 weight of the rows seen),
            ``lower``, ``upper`` (float32 [m, d], smallest box around the rounded rows seen, up to
            rounding if a feature scale is no power of two), and
            ``counts`` (float64 [m, K], classifiers) or ``mean`` (float64, regressors; nan
            in cells without rows);
            and ``root``, the id of the root. Ids are permanent: learning adds nodes and
            never renumbers them.
        """
        check_is_fitted(self)
        last = len(self.forest_.store) - 1
        try:
            number = operator.index(tree)
        except TypeError:
            number = -1
        if not 0 <= number <= last:
            raise ParameterError(f"tree should be an integer in 0..{last}, got {tree!r}")
        head = self.forest_.trees[number]
        arrays = tree_fields(self.forest_.parameters, head)
        stat = arrays.pop("stat")
        arrays.pop("odds", None), arrays.pop("odds_exponent", None)
        splits = arrays["feature"] >= 0
        for side in {"lower", "upper"} & set(arrays):
            arrays[side] /= self.feature_scales_
        arrays["threshold"][splits] = thresholds_of_given(
            arrays["threshold"][splits], arrays["feature"][splits], self.forest_.parameters
        )
        result: dict[str, Any] = {**arrays, "n_rows": stat[:, 0].copy()}
        result.update(self._node_forecasts(stat, float(head.head_f[nodes.OFFSET])))
        result["root"] = int(head.head_i[nodes.ROOT])
        return result

    @abstractmethod
    def _node_forecasts(self, stat: np.ndarray, offset: float) -> dict[str, np.ndarray]:
        """Return the entries of :meth:`nodes` with the labels of each node."""

    def _adopt(
        self,
        forest: Forest,
        classes: np.ndarray | None = None,
        feature_names: Iterable[str] | None = None,
    ) -> Self:
        """Return a copy of this estimator fitted with ``forest``."""
        fitted = clone(self)
        fitted.forest_ = forest
        fitted._begun_with = fitted._lasting_params()
        n_features = forest.parameters.n_features
        fitted.n_features_in_ = n_features // 2 if fitted._encodes_missing() else n_features
        if (columns := self.__dict__.get("_columns")) is not None:
            fitted._columns, fitted.n_features_in_ = columns, len(columns)
        if feature_names is not None:
            fitted.feature_names_in_ = np.array(list(feature_names), dtype=object)
        if classes is not None:
            fitted.classes_ = np.asarray(classes)
            fitted.n_classes_ = len(fitted.classes_)
        return fitted

    @in_one_state
    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator as a checkpoint, without pickle.

        Parameters
        ----------
        path : path or URL
            A new folder (or object store prefix); see :func:`dmondrian.load`.

        Raises
        ------
        CheckpointError
            The folder holds another model.
        FencedError
            Another process works on it, such as a server that learns.
        """
        check_is_fitted(self)
        self._check_unchanged()
        from dmondrian.estimators.save import save_estimator

        save_estimator(self, path)

    @in_one_state
    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__().copy()
        for name in ("_single_row", "_times", "_turns"):  # not part of the state
            state.pop(name, None)
        if "forest_" in state:
            from dmondrian.checkpoint import encode_forest

            state["forest_"] = encode_forest(*state["forest_"].stored())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        if isinstance(state.get("forest_"), bytes):
            from dmondrian.checkpoint import decode_forest

            state["forest_"] = forest_from_state(*decode_forest(state["forest_"]))
        # Parameters that the version which pickled it did not have.
        off = {"feature_units": None, "calibrate": False}
        later = {name: off[name] for name in off if name in self._get_param_names()}
        later = {**type(self)().get_params(deep=False), **later}
        super().__setstate__({**later, **state})
