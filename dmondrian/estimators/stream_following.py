"""What estimators of AMF have in common that may follow a stream: ``drift``, ``delay``, experts.

Relies on :mod:`dmondrian.drift`. Promises that parameters which do not go with it are refused
before a row is learned, each with the reason.

Shapes: n rows, k outputs.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from scipy.sparse import issparse

from dmondrian.drift.drift_forest import DriftForest
from dmondrian.drift.scaled_trees import never_grown
from dmondrian.drift.waiting_rows import late_in_words, nothing_learned
from dmondrian.ensemble.settings.drift_settings import LARGEST_DELAY, DriftSettings
from dmondrian.ensemble.settings.label_period import period_of
from dmondrian.errors import ParameterError
from dmondrian.estimators._sklearn_private import Interval, StrOptions, fit_context
from dmondrian.estimators.base import BaseForest
from dmondrian.estimators.memory_check import check_memory
from dmondrian.estimators.monotone_columns import constrains, directions_of
from dmondrian.estimators.one_state import in_one_state
from dmondrian.estimators.row_parts import answered_in_parts
from dmondrian.estimators.row_times import checked_times

if TYPE_CHECKING:
    from dmondrian.ensemble.settings.parameters import ForestParameters
    from dmondrian.forest.forest import Forest

DRIFT_CONSTRAINTS: dict[str, list[Any]] = {
    "drift": [StrOptions({"follow"}), None],
    "delay": [Interval(Integral, 1, LARGEST_DELAY, closed="both"), str],
}
EXPERTS_CONSTRAINTS: dict[str, list[Any]] = {
    "experts": [tuple, list],
    "monotonic_cst": ["array-like", dict, None],
}
EXPERTS = ("mondrian", "boosted", "scaled")
"""What members of a forest that follows the stream may mix: the first, the first two, or all."""

Allowed = dict[str, tuple[tuple[Any, ...], str]]
"""Values of parameters that go with ``drift``, and why no others."""

FOLLOWING: Allowed = {
    "charge_opening": (("auto", False), "leaves of young trees are opened freely"),
    "use_aggregation": ((True,), "trees mix over their prunings"),
    "predict_extension": (("leaf",), "rows are forecast from the leaf that they fall in"),
    "domain": (("range",), "trees split the range of their own rows"),
}


class StreamFollowing(BaseForest):
    """Base of the estimators that may follow a stream; not to be used directly."""

    drift: Literal["follow"] | None
    delay: int | str
    experts: Sequence[str] = EXPERTS[:1]
    monotonic_cst: Any = None
    _following: ClassVar[Allowed] = FOLLOWING

    def _drift_settings(self, n_classes: int = 0) -> DriftSettings | None:
        """Return how a new forest follows the stream, if it does.

        Of one class there is nothing to fit; of numbers there are none.
        """
        if self.drift is None:
            return None
        boosted, scaled = ("boosted" in self.experts, "scaled" in self.experts)
        if n_classes == 1:
            boosted = scaled = False
        return DriftSettings.of_delay(self.delay, boosted, scaled)

    def _check_experts(self) -> None:
        """Refuse experts that there are not, or not in this forest."""
        experts = tuple(self.experts)
        if experts not in (EXPERTS[:1], EXPERTS[:2], EXPERTS):
            raise ParameterError(
                f"experts={experts!r} are not experts of a forest: expected {EXPERTS[:1]!r}, "
                f"{EXPERTS[:2]!r} for boosted sets beside Mondrian trees, or {EXPERTS!r} for trees "
                "with scales found on the rows kept for these sets, too"
            )
        if self.drift is None and experts != EXPERTS[:1]:
            raise ParameterError(
                f'experts={experts!r} is of drift="follow": these experts are mixed with trees by '
                "weights that follow the stream, and this forest has none; choose "
                f'drift="follow", or leave experts at {EXPERTS[:1]!r}'
            )

        if constrains(self.monotonic_cst) and "boosted" not in experts:
            raise ParameterError(
                f"monotonic_cst={self.monotonic_cst!r} binds boosted sets, and this forest has "
                'none: choose drift="follow" and experts=("mondrian", "boosted"), or leave '
                "monotonic_cst out"
            )

    def _with_directions(
        self, parameters: ForestParameters, names: Sequence[str] | None, is_of_run: bool
    ) -> ForestParameters:
        """Return parameters with the columns with which forecasts rise or fall.

        ``names`` are those of the columns as they are given, where they have some.
        """
        if not parameters.follows_stream or not constrains(self.monotonic_cst):
            return parameters
        widths, columns = [1] * parameters.n_features, None
        if not is_of_run:
            widths, columns = self._widths(), self.__dict__.get("_columns")
        is_category = [column is not None for column in columns or [None] * len(widths)]
        directions = directions_of(self.monotonic_cst, names, widths, is_category)
        if parameters.n_classes > 2:
            raise ParameterError(
                f"monotonic_cst with {parameters.n_classes} classes: constraints are of numbers "
                "and of the second of two classes; leave it out, or learn one class against the "
                "others"
            )
        if not any(directions) or not parameters.mixes_boosted_sets:
            return parameters
        drift = dataclasses.replace(parameters.following, monotone=directions)
        return parameters.replace(drift=drift)

    def _run_parameters(
        self, n_features: int, n_classes: int, names: Sequence[str] | None = None
    ) -> ForestParameters:
        parameters = super()._run_parameters(n_features, n_classes, names)
        return self._with_directions(parameters, names, is_of_run=True)

    def _check_run(self) -> None:
        super()._check_run()
        self._check_drift()

    def _check_time(self, column: str | None, kind: str | None = None) -> None:
        """Refuse a column of times without a delay that is a time, or such a delay without one.

        ``kind`` is "time" or "number", where it is known.
        """
        period = period_of(self.delay) if isinstance(self.delay, str) else None
        if period is None and column is not None:
            raise ParameterError(
                f"time={column!r} goes with a delay that is a time, and delay={self.delay!r} "
                'counts rows: give delay as text, such as "7 days", or leave the time out'
            )
        if period is not None and column is None:
            raise ParameterError(
                f"delay={self.delay!r} needs the time of each row: name its column, time of [data] "
                "in a job, time= of `train`"
            )
        if period is not None and kind is not None and (kind == "time") != period.is_dated:
            raise ParameterError(
                f"delay={self.delay!r} is a length of time, and the column {column!r} has numbers: "
                'give the delay in the units of the numbers, as text, such as "500"'
                if period.is_dated
                else f"delay={self.delay!r} is in units of numbers, and the column {column!r} has "
                'times: give the delay with a unit, such as "7 days"'
            )

    def _check_drift(self) -> None:
        """Refuse parameters that do not go with ``drift``."""
        self._check_experts()
        delay: Any = self.delay
        if isinstance(delay, np.timedelta64):  # NumPy counts it among whole numbers
            raise ParameterError(
                f'delay={self.delay!r}: give a time as text, such as "1 day", or a number of rows'
            )
        if self.drift is None:
            if self.delay != 1:
                raise ParameterError(
                    f'delay={self.delay!r} goes with drift="follow" alone: a forest that never '
                    "forgets learns each row as it comes, and no weights of mixtures at a delay; "
                    'leave delay out, or add drift="follow"'
                )
            return
        if isinstance(self.delay, str):
            period_of(self.delay)
        for name, (allowed, why) in self._following.items():
            value = getattr(self, name)
            is_plain = value is None or isinstance(value, (str, int, float, np.generic))
            if not is_plain or value not in allowed:
                expected = " or ".join(repr(each) for each in allowed)
                raise ParameterError(
                    f'{name}={value!r} does not go with drift="follow": {why}; expected {expected}'
                )
        if isinstance(self.feature_scales, str) and self.feature_scales == "learned":
            raise ParameterError(
                'feature_scales="learned" does not go with drift="follow": scales that are found '
                "once are those of the first rows, and young trees find their own; expected "
                '"auto", None or numbers'
            )

    def _auto_settings(self, n_features: int, n_classes: int) -> tuple[str, ...]:
        return () if self.drift is not None else super()._auto_settings(n_features, n_classes)

    def _new_forest(self, n_features: int, n_classes: int) -> Forest:
        self._check_drift()
        if self.drift is None:
            return super()._new_forest(n_features, n_classes)
        parameters = self._forest_parameters(n_features, n_classes)
        names = getattr(self, "feature_names_in_", None)
        parameters = self._with_directions(
            parameters, None if names is None else names.tolist(), is_of_run=False
        )
        check_memory(parameters, int(self.n_estimators))
        if (why := never_grown(parameters)) is not None:
            warnings.warn(why, stacklevel=2)
        self._begun_with = self._lasting_params()
        self.__dict__.pop("_is_of_run", None)
        return DriftForest(parameters, range(self.n_estimators))

    @fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        times: Any = None,
        *,
        max_rows: int | None = None,
        time_budget: float | None = None,
    ) -> Self:
        """Learn rows from nothing, in their order.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            Taken as float32. Splits follow the ranges of the columns: scale them.
        y : array-like of shape (n,)
            Classes of any kind, or numbers.
        sample_weight : array-like of shape (n,), optional
            Non-negative; a whole weight w equals w repeats of the row (to the byte up to
            256, beyond that by a closed form that differs in the last digits).
        times : array-like of shape (n,), optional
            Of each row, in the order of the stream: datetime64, datetimes or dates (UTC where they
            have no zone), or numbers. Given if ``delay`` is a time, and then alone.
        max_rows, time_budget
            As of any forest: :meth:`dmondrian.estimators.regressor.ForestRegressor.fit`.

        Returns
        -------
        This estimator
        """
        forest: Any = self  # a classifier or regressor as well
        forest._fit(X, y, sample_weight, times, max_rows, time_budget)
        return self

    def _following_outputs(self, X: Any) -> np.ndarray | None:
        """Return the outputs, float64 [n, k], of a forest that follows a stream, else None.

        Whatever ``drift`` was set to since.
        """
        with self._turns.reading():
            forest = self.__dict__.get("forest_")
            if not isinstance(forest, DriftForest):
                return None
            if issparse(X):
                outputs: np.ndarray = answered_in_parts(self._following_outputs, X)
                return outputs
            rows = self._check_rows(X)
            return forest.predict_mixture(rows, self._n_threads(len(rows)))

    def _learn_all(self, X: Any, y: np.ndarray, w: np.ndarray | None, n_classes: int) -> None:
        super()._learn_all(X, y, w, n_classes)
        if isinstance(self.forest_, DriftForest):
            self.forest_.labels_are_known = True
        rows = getattr(self.forest_, "rows_so_far", None)
        if rows is not None and not rows["learned"] and rows["waiting"]:
            following = self.forest_.parameters.following
            warnings.warn(nothing_learned(rows["waiting"], following), stacklevel=2)
        if (unsorted := late_in_words(self.n_late_, self.n_samples_fit_)) is not None:
            warnings.warn(unsorted, stacklevel=2)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        forest = self.__dict__.get("forest_")
        if isinstance(forest, DriftForest) and forest.labels_are_known:
            state["_is_complete"] = True  # a forest is stored without it
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({key: value for key, value in state.items() if key != "_is_complete"})
        if "_is_complete" in state:
            follower: Any = self.__dict__["forest_"]
            follower.labels_are_known = True

    def _take_times(self, times: Any, n: int) -> None:
        """Check the times of rows; :meth:`_update_forest` takes them when the rows are checked."""
        period = None
        if self.drift is not None and isinstance(self.delay, str):
            period = period_of(self.delay)
        if times is not None and period is None:
            raise ParameterError(
                "times go with a delay that is a time: give "
                f'drift="follow" and delay as text, such as "7 days" (it is {self.delay!r}), or '
                "leave out the times"
            )
        if times is None and period is not None:
            raise ParameterError(
                f"delay={self.delay!r} needs the time of each row: give times, one for each row"
            )
        if period is not None:
            self._times = checked_times(times, n, period)

    @in_one_state
    def _mean_of_rows(self, X: Any) -> np.ndarray:
        outputs = self._following_outputs(X)
        return super()._mean_of_rows(X) if outputs is None else outputs

    @property
    def n_waiting_(self) -> int:
        """Rows that wait for the end of their block: after ``fit`` predictions know them."""
        with self._turns.reading():
            rows = getattr(self._fitted_forest(), "rows_so_far", None)
            return 0 if rows is None else int(rows["waiting"])

    @property
    def n_late_(self) -> int:
        """Rows whose time was before the block of rows that they came among."""
        with self._turns.reading():
            blocks = getattr(self._fitted_forest(), "blocks", None)
            return 0 if blocks is None else int(blocks.clock.n_late)

    @property
    def age_weights_(self) -> np.ndarray:
        """Shares of trees by their age, in the forecasts of the forest that predicts."""
        with self._turns.reading():
            forest = self.__dict__.get("forest_")
            if not isinstance(forest, DriftForest):
                raise AttributeError(
                    f'{type(self).__name__} has age_weights_ once it is fitted with drift="follow"'
                )
            forest.store.check_not_torn()
            return forest.caught_up().age_shares()
