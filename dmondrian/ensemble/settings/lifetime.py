"""Lifetimes: until when a tree is split, and until when splits count in predictions.

A fixed lifetime bounds the tree (L14). A growing one, lambda_n = c n^p, does not: the tree is
realised without bound and a prediction after n rows descends only while split times are at most
lambda_n. That is exact, since every node keeps its statistics, and it answers for every lifetime;
what it costs is the nodes after lambda_n, up to one leaf per distinct row. A tree realised to a
horizon only would have to keep the rows of its leaves to be extended later.

Promises that lambda_n is the same number on every machine.

References: Mourtada, Gaiffas, Scornet (2017), Algorithm 4, Theorems 1 and 2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from dmondrian.ensemble.settings.lifetime_kernels import power_law
from dmondrian.errors import CorruptError, ParameterError


@dataclass(frozen=True)
class PowerLifetime:
    """The lifetime c n^p after rows of total weight n.

    Attributes
    ----------
    c : float
        Lifetime after one row, > 0, in units of one over those of the columns.
    p : float
        Power, > 0; 1 / (d + 2) gives the minimax rate for Lipschitz functions, and any
        below 1 / d consistency (M17, Theorems 2 and 1).
    """

    c: float = 1.0
    p: float = 0.25

    def __post_init__(self) -> None:
        for name in ("c", "p"):
            value = getattr(self, name)
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if not is_number or not 0.0 < value < math.inf:
                raise ParameterError(f"PowerLifetime's {name} should be > 0, got {value!r}")
            if type(value) not in (float, int):  # NumPy's, which JSON cannot write
                object.__setattr__(self, name, float(value))

    def at(self, total_weight: float) -> float:
        """Return the lifetime after rows (0 before any).

        Parameters
        ----------
        total_weight : float
            Of the rows.
        """
        if total_weight <= 0.0:
            return 0.0
        return float(power_law(float(self.c), float(self.p), float(total_weight)))


Lifetime = float | PowerLifetime | None  # None: no end


def end_of(lifetime: Lifetime) -> float:
    """Return the time up to which a tree is realised."""
    return lifetime if isinstance(lifetime, float) else math.inf


def lifetime_at(lifetime: Lifetime, total_weight: float) -> float:
    """Return the lifetime of a prediction after rows of this total weight."""
    if isinstance(lifetime, PowerLifetime):
        return lifetime.at(total_weight)
    return end_of(lifetime)


def check_lifetimes(lifetimes: Iterable[float], realised: float) -> np.ndarray:
    """Return lifetimes to predict at, float64 [L].

    Raises
    ------
    ParameterError
        Unless they are positive, increase, and do not pass the one that trees are realised to.
    """
    try:
        values = np.asarray(list(lifetimes), np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"lifetimes should be numbers, got {lifetimes!r}") from error
    if values.ndim != 1 or not len(values) or not (values > 0.0).all():
        raise ParameterError(f"lifetimes should be one or more numbers > 0, got {values.tolist()}")
    if (values[1:] <= values[:-1]).any():
        raise ParameterError(f"lifetimes should increase, got {values.tolist()}")
    if values[-1] > realised:
        raise ParameterError(
            f"lifetime {values[-1]:g} was asked for, but the trees are realised up to {realised:g} "
            "only: ask for less, or train with a larger lifetime"
        )
    return values


def lifetime_to_json(lifetime: Lifetime) -> float | dict[str, Any] | None:
    """Return a lifetime as JSON holds it (a dict for a growing one)."""
    return dataclasses.asdict(lifetime) if isinstance(lifetime, PowerLifetime) else lifetime


def lifetime_from_json(value: Any) -> Lifetime:
    """Return the lifetime of :func:`lifetime_to_json`, checked.

    Raises
    ------
    CorruptError
        If it is none.
    """
    if isinstance(value, dict) and set(value) == {"c", "p"}:
        try:
            return PowerLifetime(**value)
        except ParameterError as error:
            raise CorruptError(str(error)) from error
    if value is None or (type(value) is float and 0.0 < value < math.inf):
        return value
    raise CorruptError(f"impossible lifetime {value!r}")
