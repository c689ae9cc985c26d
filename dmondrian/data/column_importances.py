"""Importances of a model's columns: the worth of splits on each, as its checkpoint notes them.

Relies on sums that checkpoints keep by feature: no tree is read. Promises words where there are
none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dmondrian.data.schema import Schema
from dmondrian.ensemble.feature_importances import why_none

if TYPE_CHECKING:
    from dmondrian.checkpoint.model import Trees


def bound_columns(parameters: Mapping[str, Any], schema: Schema | None) -> list[str]:
    """Return the columns with which forecasts rise or fall: boosted sets alone see their numbers.

    ``parameters`` are those of a stored forest, ``schema`` as in :func:`importances_of_columns`.
    """
    directions = (parameters.get("drift") or {}).get("monotone") or []
    if schema is None:
        return [f"x{j}" for j, direction in enumerate(directions) if direction]
    names, start = [], 0
    for column in schema.columns:
        if any(directions[start : start + column.width]):
            names.append(column.name)
        start += column.width
    return names


def importances_of_columns(
    trees: Trees, stored: Mapping[str, Any], schema: Schema | None
) -> tuple[list[tuple[str, float]], str | None]:
    """Return columns and their shares, the largest first; and why there are none, None if not.

    Parameters
    ----------
    trees : Trees
        Of :func:`dmondrian.checkpoint.known_trees`, as is `stored`.
    stored : mapping
        model_json.
    schema : Schema or None
        Of the run; None of a model of arrays, which has features in place of columns.
    """
    reason = why_none(trees.parameters)
    shares = trees.summary.importances()
    if reason is None and shares is None:
        reason = (
            "the gains of splits are too large to be added up"
            if trees.is_recorded
            else "the checkpoint was written by an earlier version, which did not record them; "
            "`dmondrian describe RUN --importances` finds them in the trees"
        )
    if shares is None:
        return [], reason
    if schema is None:
        names = stored.get("feature_names") or [f"x{j}" for j in range(len(shares))]
        pairs = list(zip(names, shares, strict=True))
    else:
        pairs, start = [], 0
        for column in schema.columns:
            pairs.append((column.name, math.fsum(shares[start : start + column.width])))
            start += column.width
    return sorted(pairs, key=lambda pair: -pair[1]), reason
