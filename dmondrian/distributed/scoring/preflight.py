"""Checks of the scoring options of a training job, before training.

Promises that mistakes are raised before training, which may take hours: files that are not Parquet,
a column of the model that the data lack, a folder that cannot be written to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dmondrian.data import Schema, make_scoring_plan
from dmondrian.data.lag_settings import checked_lags, without_lags
from dmondrian.distributed.scoring.delta_scores import check_deltalake, refuse_unknown_types
from dmondrian.distributed.scoring.memory_plan import parse_limit
from dmondrian.distributed.scoring.output_folder import check_flag, check_out
from dmondrian.errors import ParameterError

NEEDED, OPTIONAL = ("data", "out"), ("keep", "details", "memory_limit")


def check_score_options(options: Mapping[str, Any], learned: Any = ()) -> None:
    """Refuse wrong scoring options, as far as known before the plan is made.

    Parameters
    ----------
    options : mapping
        Arguments of :func:`dmondrian.distributed.score` by name: "data", "out" and optionally
        "keep", "details" and "memory_limit".
    learned : object
        The data of the training, as given: they may not read the scores either.

    Raises
    ------
    ParameterError
        A name is missing or unknown, a value is not allowed, or scores would be read as data.
    DataError
        There are no rows, files are unreadable, or lack a column to keep.
    CheckpointError
        The folder holds Parquet files other than scores.
    StoreError
        The folder cannot be written.
    """
    unknown = sorted(set(options) - {*NEEDED, *OPTIONAL, "delta"})
    missing = [name for name in NEEDED if name not in options]
    if unknown or missing:
        raise ParameterError(
            f"score has {', '.join(map(repr, options)) or 'nothing'}; expected 'data' and 'out', "
            "and of 'keep', 'details', 'delta' and 'memory_limit' those that are wanted"
        )
    check_flag("details", options.get("details", True))
    check_flag("delta", options.get("delta", False))
    if options.get("delta", False):
        check_deltalake(options["out"])
    parse_limit(options.get("memory_limit"))
    check_out(options["out"], options["data"], learned)
    check_readable(options, Schema(columns=()))


def check_readable(
    options: Mapping[str, Any], schema: Schema, lags: Mapping[str, Any] | None = None
) -> None:
    """Refuse data that lack columns of the schema, or those that lags are made of.

    And kept columns that cannot be in a Delta table, where one is wanted.

    Raises
    ------
    DataError
        As :func:`dmondrian.data.make_scoring_plan`.
    """
    keep = options.get("keep", ())
    keep = kept = [keep] if isinstance(keep, str) else list(keep)
    if lags is not None:
        lag_settings = checked_lags(lags)
        schema = without_lags(schema, lag_settings)
        keep = [
            *keep,
            *lag_settings["columns"],
            *([] if lag_settings["key"] is None else [lag_settings["key"]]),
        ]
    plan = make_scoring_plan(options["data"], schema, tuple(dict.fromkeys(keep)))
    if options.get("delta", False):
        refuse_unknown_types(plan, kept)
