"""Data, given as folders or globs, that would read files which are about to be written.

Relies on addresses alone. Promises to list nothing: a place may be missing, or one that cannot be
read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from dmondrian.data.listing import matches
from dmondrian.errors import StoreError
from dmondrian.store import parse_address

Place = str | os.PathLike[str]


def place_that_reads(
    data: Any, folder: Place, names: Sequence[str], *, is_marked: bool = True
) -> str | None:
    """Return the place of some data that would read files of a folder; None if none would.

    Parameters
    ----------
    data : object
        As given by the caller; only paths are looked at.
    folder : str or path
    names : sequence of str
        Of the files, relative to the folder.
    is_marked : bool
        Whether the folder has the file of a run or of scores, by which data that are given as a
        folder above it pass over it.
    """
    path = _comparable(folder)
    if path is None:
        return None
    files = [f"{path}/{name}".split("/") for name in names]
    for place, address in _places(data):
        patterns = address.split("/")
        is_above = path == address or (not is_marked and path.startswith(f"{address.rstrip('/')}/"))
        if is_above or any(matches(file, patterns) for file in files):
            return place
    return None


def files_named_in(data: Any, folder: Place) -> list[str]:
    """Return the names of a folder's files that some data name one by one."""
    path = _comparable(folder)
    if path is None:
        return []
    split = (address.rpartition("/") for _, address in _places(data))
    return [name for parent, _, name in split if parent == path]


def _places(data: Any) -> Iterator[tuple[str, str]]:
    """Yield the paths of data as they were given, and to compare."""
    for place in [data] if isinstance(data, (str, os.PathLike)) else data:
        address = _comparable(place) if isinstance(place, (str, os.PathLike)) else None
        if address is not None:
            yield os.fspath(place), address


def _comparable(place: Place) -> str | None:
    """Return an address to compare; None for what only data can be, such as a table's."""
    try:
        address = parse_address(place)
    except StoreError:
        return None
    return os.path.realpath(address.path) if address.scheme == "file" else address.url
