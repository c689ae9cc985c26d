"""Settings of lags that a job asks for: checked, in words, and as what adds the lags.

Relies on :class:`dmondrian.data.KeyedLags` for what is allowed. Promises that no column that is
added holds the label of its row, or one that is not known when the row is forecast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dmondrian._text.wording import counted
from dmondrian.data.keyed_lags import N_ROWS, KeyedLags, lag_name
from dmondrian.data.schema import Schema
from dmondrian.errors import ParameterError

KEYS = ("columns", "lags", "key", "differences", "n_rows")


def checked_lags(
    settings: Mapping[str, Any],
    target: str | None = None,
    delay: Any = 1,
    is_shuffled: bool = False,
) -> dict[str, Any]:
    """Return the settings of lags with all keys, as JSON has them.

    Parameters
    ----------
    settings : mapping
        "columns", and "lags", "key", "differences" and "n_rows" where they are wanted, as of
        :class:`KeyedLags`; "differences" is True or False.
    target : str or None
    delay : int or str
        Rows, or a time, within which labels come together.
    is_shuffled : bool
        Whether rows are learned in another order than that of their lags.

    Raises
    ------
    ParameterError
        A name or value is not allowed, or a lag is of a label that is not known yet.
    """
    if not isinstance(settings, Mapping) or not {"columns"} <= set(settings) <= set(KEYS):
        listed = ", ".join(map(repr, settings)) if isinstance(settings, Mapping) else repr(settings)
        raise ParameterError(
            f"lags has {listed or 'nothing'}; expected a mapping with 'columns', and of 'lags', "
            "'key', 'differences' and 'n_rows' those that are wanted"
        )
    differences = settings.get("differences", True)
    if not isinstance(differences, bool):
        raise ParameterError(f"differences is {differences!r}; expected True or False")
    lags = KeyedLags(
        settings["columns"],
        settings.get("lags", 1),
        key=settings.get("key"),
        n_rows=settings.get("n_rows", N_ROWS),
    )
    if target is not None and target == lags.key:
        raise ParameterError(
            f"key is the target {target!r}: earlier rows of the same label would give it away; "
            "name another column, or none"
        )
    if target is not None and target in lags.columns:
        if is_shuffled:
            raise ParameterError(
                f"columns has the target {target!r}, and shuffle mixes the rows: many would be "
                "forecast before the row whose label is their lag. Leave shuffle out, or the "
                "target out of columns"
            )
        _refuse_early_labels(target, lags.lags, delay)
    return {
        "columns": list(lags.columns),
        "lags": list(lags.lags),
        "key": lags.key,
        "differences": differences,
        "n_rows": lags.n_rows,
    }


def _refuse_early_labels(target: str, lags: Sequence[int], delay: Any) -> None:
    """Refuse lags of the target that a row could not know when it is forecast."""
    if isinstance(delay, np.timedelta64) or not isinstance(delay, int | np.integer):
        raise ParameterError(
            f"columns has the target {target!r}, and labels come by the time delay={delay!r}: how "
            "many rows are back by then is not known, so an earlier label could be one that is not "
            "known yet. Give delay as a number of rows, or leave the target out of columns"
        )
    early = [lag for lag in lags if lag < delay]
    if early:
        raise ParameterError(
            f"lags has {early[0]}, and columns the target {target!r}, whose labels come "
            f"{delay:,} rows together: the label {counted(early[0], 'row')} back may not be known "
            f"when a row is forecast. Give lags of at least {delay:,}, or leave the target out"
        )


def lags_of(settings: Mapping[str, Any], target: str | None) -> KeyedLags:
    """Return what adds the lags of settings; differences of the target are none.

    The target is its difference from a lag, and the lag: together they hold the label.
    """
    columns, differences = settings["columns"], settings["differences"]
    of = [name for name in columns if name != target] if differences else False
    return KeyedLags(
        columns, settings["lags"], key=settings["key"], differences=of, n_rows=settings["n_rows"]
    )


def lags_of_labels(settings: Mapping[str, Any], target: str | None) -> dict[int, str]:
    """Return the columns that are labels of earlier rows, by how many rows they are back."""
    if target is None or target not in settings["columns"]:
        return {}
    return {lag: lag_name(target, lag) for lag in settings["lags"]}


def lag_of_key(settings: Mapping[str, Any] | None, target: str | None) -> int | None:
    """Return how many rows of the same key back the newest label is that a row has as a lag.

    None where no label of the same key is a lag.
    """
    if settings is None or settings["key"] is None:
        return None
    return min(lags_of_labels(settings, target), default=None)


def in_words(settings: Mapping[str, Any]) -> str:
    """Return the settings of lags for people."""
    columns = ", ".join(map(repr, settings["columns"]))
    key = "" if settings["key"] is None else f" by {settings['key']!r}"
    numbers = ", ".join(f"{lag:,}" for lag in settings["lags"])
    more = ", with differences" if settings["differences"] else ""
    return f"{columns}{key}, {numbers} back{more}, within {settings['n_rows']:,} rows of all keys"


def without_lags(schema: Schema, settings: Mapping[str, Any]) -> Schema:
    """Return a schema without the columns that lags add: what other data need to have."""
    added = set(lags_of(settings, schema.target).names)
    return replace(schema, columns=tuple(c for c in schema.columns if c.name not in added))
