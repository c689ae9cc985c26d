"""Columns with which forecasts rise or fall, as the parameter ``monotonic_cst`` names them.

The parameter has the name and the values that scikit-learn's trees have. Promises that a constraint
which nothing would follow is refused, with the reason.

Shapes: d given columns, m features that trees see of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from dmondrian.errors import ParameterError

_NAMED = 8  # columns in an error


def plain_constraints(constraints: Any) -> Any:
    """Return constraints as values that JSON can hold, and that compare as wholes."""
    if constraints is None or isinstance(constraints, dict):
        return (
            None
            if constraints is None
            else {name: _plain(value) for name, value in constraints.items()}
        )
    return [_plain(value) for value in np.asarray(constraints, object).ravel().tolist()]


def constrains(constraints: Any) -> bool:
    """Return whether a column is constrained."""
    plain = plain_constraints(constraints)
    return any(plain.values() if isinstance(plain, dict) else plain or ())


def directions_of(
    constraints: Any,
    names: Sequence[str] | None,
    widths: Sequence[int],
    is_category: Sequence[bool],
) -> tuple[int, ...]:
    """Return 1 or -1 for each feature with which forecasts rise or fall, 0 for others.

    Parameters
    ----------
    constraints : dict of str to int, or array-like of int of shape (d,)
        1, -1 or 0 for each column; columns that a dict leaves out have 0.
    names : sequence of str or None
        Of the columns, where they have names.
    widths : sequence of int
        How many features trees see of each column; the first is its number.
    is_category : sequence of bool
        Whether a column has categories, which have no order.

    Returns
    -------
    tuple of int of length m

    Raises
    ------
    ParameterError
        If there is no such column, a value is another, or a column has categories.
    """
    plain = plain_constraints(constraints)
    if isinstance(plain, dict):
        plain = by_place(plain, names)
    elif (shape := np.asarray(constraints, object).shape) != (len(plain),):
        raise ParameterError(f"monotonic_cst has shape {shape}, expected one value for each column")
    if len(plain) != len(widths):
        raise ParameterError(
            f"monotonic_cst has {len(plain)} values, and rows have {len(widths)} columns: give "
            "one for each, or a dict by the names of columns"
        )
    directions: list[int] = []
    for place, (value, width) in enumerate(zip(plain, widths, strict=True)):
        which = f"column {place}" if names is None else f"the column {names[place]!r}"
        if type(value) is not int or value not in (-1, 0, 1):
            raise ParameterError(
                f"monotonic_cst is {value!r} for {which}: expected 1 where forecasts rise with it, "
                "-1 where they fall, 0 for no constraint"
            )
        if value and is_category[place]:
            raise ParameterError(
                f"monotonic_cst is {value} for {which}, whose categories have no order: leave it "
                "out, or give it as numbers"
            )
        directions += [value, *(0 for _ in range(width - 1))]
    return tuple(directions)


def by_place(named: dict[Any, Any], names: Sequence[Any] | None) -> list[Any]:
    """Return the values of a dict in the order of the columns; raise as `directions_of`."""
    if names is None:
        raise ParameterError(
            "monotonic_cst names columns, and the rows have no names: fit a data frame, or give "
            "one value for each column"
        )
    unknown = [name for name in named if name not in names]
    if unknown:
        near = get_close_matches(str(unknown[0]), list(map(str, names)), 1)
        there = ", ".join(map(repr, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
        hint = f"did you mean {near[0]!r}?" if near else f"there are {there}"
        raise ParameterError(
            f"monotonic_cst names {unknown[0]!r}, which is no column of numbers: {hint}"
        )
    return [named.get(name, 0) for name in names]


def _plain(value: Any) -> Any:
    """Return a whole number as int, anything else as it is."""
    is_number = isinstance(value, (int, np.integer, float, np.floating))
    is_whole = is_number and not isinstance(value, bool) and float(value).is_integer()
    return int(value) if is_whole else value
