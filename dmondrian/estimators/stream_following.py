"""What estimators of AMF have in common that may follow a stream: ``drift``, ``delay``, experts.

Relies on :mod:`dmondrian.drift`. Promises that parameters which do not go with it are refused
before a row is learned, each with the reason.

Shapes: n rows, k outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from dmondrian.drift.drift_forest import DriftForest
from dmondrian.drift.waiting_rows import nothing_learned
from dmondrian.ensemble.settings.drift_settings import LARGEST_DELAY, DriftSettings
from dmondrian.errors import ParameterError
from dmondrian.estimators._sklearn_private import Interval, StrOptions
from dmondrian.estimators.base import BaseForest
from dmondrian.estimators.memory_check import check_memory
from dmondrian.estimators.one_state import in_one_state

if TYPE_CHECKING:
    from dmondrian.forest.forest import Forest

DRIFT_CONSTRAINTS: dict[str, list[Any]] = {
    "drift": [StrOptions({"follow"}), None],
    "delay": [Interval(Integral, 1, LARGEST_DELAY, closed="both")],
}
EXPERTS = ("mondrian", "boosted")
"""What members of a forest that follows the stream may mix; the first they always do."""

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
    delay: int
    experts: Sequence[str] = EXPERTS[:1]
    _following: ClassVar[Allowed] = FOLLOWING

    def _drift_settings(self, n_classes: int = 0) -> DriftSettings | None:
        """Return how a new forest follows the stream, if it does.

        Of one class there is nothing to fit; of numbers there are none.
        """
        if self.drift is None:
            return None
        boosted = "boosted" in self.experts and n_classes != 1
        return DriftSettings(delay=int(self.delay), boosted=boosted)

    def _check_experts(self) -> None:
        """Refuse experts that there are not, or not in this forest."""
        given = tuple(self.experts)
        if given not in (EXPERTS[:1], EXPERTS):
            raise ParameterError(
                f"experts={given!r} are not experts of a forest: expected {EXPERTS[:1]!r}, or "
                f"{EXPERTS!r} for boosted sets beside Mondrian trees"
            )
        if self.drift is None and given != EXPERTS[:1]:
            raise ParameterError(
                f'experts={given!r} is of drift="follow": boosted sets are mixed with trees by '
                "weights that follow the stream, and this forest has none; choose "
                f'drift="follow", or leave experts at {EXPERTS[:1]!r}'
            )

    def _check_run(self) -> None:
        super()._check_run()
        self._check_drift()

    def _check_drift(self) -> None:
        """Refuse parameters that do not go with ``drift``."""
        self._check_experts()
        if self.drift is None:
            if self.delay != 1:
                raise ParameterError(
                    f'delay={self.delay} goes with drift="follow" alone: a forest that never '
                    "forgets learns each row as it comes, and no weights of mixtures at a delay; "
                    'leave delay out, or add drift="follow"'
                )
            return
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
        check_memory(parameters, int(self.n_estimators))
        self._begun_with = self._lasting_params()
        self.__dict__.pop("_is_of_run", None)
        return DriftForest(parameters, range(self.n_estimators))

    def _following_outputs(self, X: Any) -> np.ndarray | None:
        """Return the outputs, float64 [n, k], of a forest that follows a stream, else None.

        Whatever ``drift`` was set to since.
        """
        with self._turns.reading():
            forest = self.__dict__.get("forest_")
            if not isinstance(forest, DriftForest):
                return None
            rows = self._check_rows(X)
            return forest.predict_mixture(rows, self._n_threads(len(rows)))

    def _learn_all(
        self, X: np.ndarray, y: np.ndarray, w: np.ndarray | None, n_classes: int
    ) -> None:
        super()._learn_all(X, y, w, n_classes)
        rows = getattr(self.forest_, "rows_so_far", None)
        if rows is not None and not rows["learned"] and rows["waiting"]:
            warnings.warn(nothing_learned(rows["waiting"], int(self.delay)), stacklevel=2)

    @in_one_state
    def _mean_prediction(self, X: Any) -> np.ndarray:
        found = self._following_outputs(X)
        return super()._mean_prediction(X) if found is None else found

    @property
    def n_waiting_(self) -> int:
        """Rows learned whose labels have not come: predictions do not know them yet."""
        with self._turns.reading():
            rows = getattr(self._fitted_forest(), "rows_so_far", None)
            return 0 if rows is None else int(rows["waiting"])

    @property
    def age_weights_(self) -> np.ndarray:
        """Shares of trees by their age."""
        with self._turns.reading():
            forest = self.__dict__.get("forest_")
            if not isinstance(forest, DriftForest):
                raise AttributeError(
                    f'{type(self).__name__} has age_weights_ once it is fitted with drift="follow"'
                )
            forest.store.check_whole()
            return forest.age_shares()
