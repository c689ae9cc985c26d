"""Options that a job asks of its data, beside those a run's first plan was made with.

Relies on the options that a plan notes, and for plans of earlier versions, which noted none, on
their schema. Promises that a run is recognised without reading the data that it began with, which
may be gone; and that an option which would have made another plan gives another digest, as far as
options or schema tell: of a plan without noted options, which columns were named `categorical`
although they are anyway, say, is unknown and makes no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dmondrian.data.arrow_values import CATEGORY, TEXT
from dmondrian.data.make import asked_text, given_options, option_defaults
from dmondrian.data.plan import Plan
from dmondrian.data.schema import Column


def asks_the_same(first: Plan, options: Mapping[str, Any]) -> bool:
    """Return whether options of `make_plan` are known to be those that a plan was made with."""
    return first.asked is not None and first.asked == asked_text(given_options(options))


def as_asked(first: Plan, options: Mapping[str, Any]) -> Plan:
    """Return a plan as options would have made it, so far as its schema tells, without its data.

    Parameters
    ----------
    first : Plan
    options : mapping
        Of :func:`dmondrian.data.make_plan`.

    Returns
    -------
    Plan
        Equal to the given one where no option makes a difference. Else what differs are the fields
        that the option sets, and not all that would follow from them.
    """
    asked = {**option_defaults(), **given_options(options)}
    excluded, categories = asked["exclude"], asked["categorical"]
    columns = [
        _as_asked(
            column.as_cyclic(column.name in asked["cyclic"]),
            column.name in categories,
            asked["max_categories"],
        )
        if column.kind != TEXT and column.name not in asked["text"]
        else _as_text(column, asked)
        for column in first.schema.columns
        if column.name not in excluded
    ]
    left_out = [pair for pair in first.schema.left_out if pair[1] != _EXCLUDED]
    schema = replace(
        first.schema,
        columns=tuple(columns),
        left_out=(*left_out, *((name, _EXCLUDED) for name in excluded))
        if sorted(excluded) != sorted(first.excluded)
        else first.schema.left_out,
        **{name: asked[name] for name in ("target", "weight", "time", "infinite", "null_target")},
    )
    if asked["task"] != schema.task:
        schema = replace(schema, task=asked["task"], classes=None)
    if asked["classes"] is not None:
        schema = replace(schema, classes=tuple(sorted(asked["classes"])))
    included = first.included
    if included is not None and set(asked["include"]) - set(included):
        included = tuple(asked["include"])
        schema = replace(schema, left_out=(*schema.left_out, *((name, "") for name in included)))
    return replace(
        first,
        schema=schema,
        shuffle=asked["shuffle"],
        seed=asked["seed"],
        excluded=tuple(excluded),
        included=included,
    )


_EXCLUDED = "excluded"  # why a column is left out


def _as_text(column: Column, asked: Mapping[str, Any]) -> Column:
    """Return a column as a text, or as none, as options ask for."""
    if column.name not in asked["text"]:
        return replace(column, kind=CATEGORY, hashed=())
    hashed = asked["text_features"], asked["text_words"]
    return replace(column, kind=TEXT, levels=(), n_distinct=0, hashed=hashed)


def _as_asked(column: Column, is_category: bool, most: int) -> Column:
    """Return a column as a category, or with as many levels, as options ask for."""
    if column.kind != CATEGORY:
        return replace(column, kind=CATEGORY) if is_category else column
    n_kept = min(most, column.n_distinct)
    if n_kept == len(column.levels):
        return column
    spare = tuple(f"{number}" for number in range(n_kept - len(column.levels)))
    return replace(column, levels=(*column.levels, *spare)[:n_kept])
