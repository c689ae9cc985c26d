"""Errors about rows with lags in words of the user's data: which file, and which row of it.

Relies on errors that name a row as ``<file>, row <number>``. Promises that rows, and columns, are
named by the file of the data that has them; where an error is of the file with lags itself, which
may be damaged or gone, that file stays named, with what it is made of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import NamedTuple, TypeVar

from dmondrian.errors import DataError, SchemaError

NAME = re.compile(r"\d{15}\.parquet")
"""Names of files with lags."""

_Error = TypeVar("_Error", bound=DataError)


class Origin(NamedTuple):
    """Where the rows of a file with lags come from."""

    uri: str
    """File of the data."""

    first: int
    """Number of its row, from 0, that is the first one of the file with lags."""


def in_words_of_data(
    error: _Error, folders: Collection[str], origin: Callable[[str], Origin | None]
) -> _Error:
    """Return an error that names files of the data in place of those with their lags.

    Parameters
    ----------
    error : DataError
    folders : collection of str
        Folders or URLs of files with lags.
    origin : callable
        Returns where the rows of a file with lags come from, by its uri; None if that is not known.

    Returns
    -------
    DataError
        Of the same class; the same error if it names no such file.
    """
    places = "|".join(re.escape(folder.rstrip("/")) for folder in folders)
    made: dict[str, Origin] = {}

    def named(match: re.Match[str]) -> str:
        source = origin(match["uri"])
        if source is None:
            return match[0]
        if match["row"] is not None:
            return f"{source.uri}, row {source.first + int(match['row'])}"
        if isinstance(error, SchemaError):
            return source.uri
        made[match["uri"]] = source
        return match[0]

    text = str(error)
    mention = rf"(?P<uri>(?:{places})/{NAME.pattern})(?:, row (?P<row>\d+))?"
    changed = re.sub(mention, named, text)
    for uri, of in made.items():
        changed += f". {uri} is made of {of.uri}, from its row {of.first} on, with lags"
    return error if changed == text else type(error)(changed)
