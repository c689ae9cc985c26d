"""What is to be scored when training ends, looked at before it begins.

Promises that a mistake in it is told then, and not after the hours that training may take: another
kind of file, a column that the model will read and the data lack, a folder that takes no scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dmondrian.data import Schema, make_scoring_plan
from dmondrian.distributed.scoring.memory_plan import parse_limit
from dmondrian.distributed.scoring.output_folder import check_details, check_out
from dmondrian.errors import ParameterError

NEEDED, OPTIONAL = ("data", "out"), ("keep", "details", "memory_limit")


def check_wanted(wanted: Mapping[str, Any]) -> None:
    """Refuse what could not be scored, as far as it is known before the stream is.

    Parameters
    ----------
    wanted : mapping
        Arguments of :func:`dmondrian.distributed.score` by name: "data", "out" and, where given,
        "keep", "details" and "memory_limit".

    Raises
    ------
    ParameterError
        A name is missing or not one of these, or it has no such value.
    DataError
        No rows, unreadable files, or a column to keep that they lack.
    CheckpointError
        The folder holds Parquet files that are no scores.
    StoreError
        The folder cannot be written.
    """
    others = sorted(set(wanted) - {*NEEDED, *OPTIONAL})
    missing = [name for name in NEEDED if name not in wanted]
    if others or missing:
        raise ParameterError(
            f"score has {', '.join(map(repr, wanted)) or 'nothing'}; expected 'data' and 'out', "
            "and of 'keep', 'details' and 'memory_limit' those that are wanted"
        )
    check_details(wanted.get("details", True))
    parse_limit(wanted.get("memory_limit"))
    check_out(wanted["out"])
    check_readable(wanted, Schema(columns=()))


def check_readable(wanted: Mapping[str, Any], schema: Schema) -> None:
    """Refuse data without the columns that a model of this schema reads.

    Raises
    ------
    DataError
        As :func:`dmondrian.data.make_scoring_plan`.
    """
    keep = wanted.get("keep", ())
    make_scoring_plan(wanted["data"], schema, (keep,) if isinstance(keep, str) else tuple(keep))
