"""Check that data are given as paths or URLs.

Promises that rows in memory, and collections without an order, are refused by type, and never taken
for a list of paths: iterating over a data frame gives its column names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from typing import Any

from dmondrian.errors import ParameterError

ROWS_IN_MEMORY = "shape", "schema", "to_parquet"
"""Attributes of types that hold rows in memory."""


def check_paths(data: Any, instead: str = "write them as Parquet and give the path") -> None:
    """Raise unless `data` is a path or URL, or a list of them.

    Parameters
    ----------
    data : object
        As given by the caller.
    instead : str
        Advice for rows in memory.

    Raises
    ------
    ParameterError
    """
    if isinstance(data, (str, os.PathLike)):
        return
    expected = "expected Parquet by its path or URL, or a list of them"
    if isinstance(data, Set):
        raise ParameterError(f"data is a {type(data).__name__}, which has no order: {expected}")
    # of the type: on a lazy frame these attributes may compute
    has_rows = any(hasattr(type(data), name) for name in ROWS_IN_MEMORY)
    if has_rows or isinstance(data, Mapping):
        raise ParameterError(
            f"data is {_kind(data)}, whose rows are in memory: {expected}; {instead}"
        )
    if not isinstance(data, Sequence) or isinstance(data, (bytes, bytearray, memoryview)):
        raise ParameterError(f"data is {_kind(data)}; {expected}")
    for number, item in enumerate(data):
        if not isinstance(item, (str, os.PathLike)):
            raise ParameterError(f"data[{number}] is {_kind(item)}; {expected}")


def _kind(value: Any) -> str:
    kind = type(value)
    library = kind.__module__.partition(".")[0]
    name = kind.__qualname__ if library == "builtins" else f"{library} {kind.__qualname__}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
