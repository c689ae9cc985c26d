"""Data that are given as paths or URLs, some of them relative to a root.

Promises that rows in memory, and collections without an order, are refused by type, and never taken
for a list of paths: iterating over a data frame gives its column names.
"""

from __future__ import annotations

import os
import posixpath
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


def rooted(data: Any, root: str | os.PathLike[str] | None) -> Any:
    """Return data whose relative paths are relative to a folder or URL.

    Parameters
    ----------
    data : str, path or sequence of them
        URLs and absolute paths stay as they are.
    root : str, path or None
        None leaves all as they are.

    Raises
    ------
    ParameterError
        The root is none, data are no paths, or a path leads out of a URL.
    """
    if root is None:
        return data
    if not isinstance(root, (str, os.PathLike)) or not os.fspath(root):
        raise ParameterError(f"root is {root!r}; expected a folder or URL")
    check_paths(data, "a root is for paths alone; leave it out")
    if isinstance(data, (str, os.PathLike)):
        return _below(os.fspath(root), os.fspath(data))
    return [_below(os.fspath(root), os.fspath(item)) for item in data]


def _below(root: str, path: str) -> str:
    if "://" in path or os.path.isabs(os.path.expanduser(path)):
        return path
    if "://" not in root:
        return os.path.join(os.path.expanduser(root), path)
    relative = posixpath.normpath(path)
    if relative.split("/")[0] == "..":
        raise ParameterError(f"data names {path!r}, which leads out of the root {root}")
    return root.rstrip("/") + (f"/{relative}" if relative != "." else "")


def _kind(value: Any) -> str:
    kind = type(value)
    library = kind.__module__.partition(".")[0]
    name = kind.__qualname__ if library == "builtins" else f"{library} {kind.__qualname__}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
