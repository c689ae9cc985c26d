"""Base class of estimators that choose their lifetime from rows: generalised forests, densities.

Relies on :mod:`dmondrian.ensemble.lifetime_selection`.

Shapes: T trees, L lifetimes.
"""

from __future__ import annotations

from numbers import Real
from typing import Any, ClassVar

import numpy as np

from dmondrian.ensemble.lifetime_selection import LifetimePath
from dmondrian.ensemble.settings.loss_settings import Cost
from dmondrian.estimators._sklearn_private import Interval
from dmondrian.estimators.mondrian import MondrianForest
from dmondrian.estimators.one_state import in_one_state


class ChosenLifetime(MondrianForest):
    """Base of the forests whose lifetime may be chosen from rows; not to be used directly."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **MondrianForest._parameter_constraints,
        "bound": [Interval(Real, 0, None, closed="neither"), None],
        "penalty": [Interval(Real, 0, None, closed="left"), None],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "max_lifetime": [Interval(Real, 0, None, closed="neither"), None],
    }
    _choices: ClassVar[str]  # names of the methods of choice

    bound: float | None
    penalty: float | None
    validation_fraction: float
    max_lifetime: float | None
    _held_out_path: LifetimePath

    def _fitted_cost(self) -> Cost:
        return self.forest_.parameters.cost

    @property
    @in_one_state
    def lifetimes_(self) -> np.ndarray:
        """Current lifetime of each tree for predictions, float64 [T]."""
        return np.concatenate(self._fitted_forest().tree_lifetimes())

    @property
    def lifetime_(self) -> float:
        """Current lifetime of predictions; the median if trees choose their own."""
        return float(np.median(self.lifetimes_))

    @property
    @in_one_state
    def lifetime_path_(self) -> LifetimePath:
        """Risks at many lifetimes, and the choice.

        A named tuple: ``lifetimes`` (float64 [L]), ``risks`` (float64 [T, L] per unit of weight,
        of each tree's own rows; [1, L] of held-out rows), ``penalty`` (of a unit of lifetime) and
        ``chosen``, float64 [T] or [1]; ``objective`` is what the choice minimises.
        """
        forest = self._fitted_forest()
        if hasattr(self, "_held_out_path"):
            return self._held_out_path
        if not forest.parameters.selects_lifetimes:
            raise AttributeError(
                f"no lifetime was chosen from rows known here: use lifetime={self._choices}, or "
                f"choose_lifetime; it is {self.lifetime!r}"
            )
        return forest.lifetime_path()
