"""Symbolic links below a local folder that lead nowhere, or back to a folder above them.

A listing leaves the first out and follows the second until the system stops it, both in silence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from dmondrian.errors import DataError
from dmondrian.files import broken_link

# Tools that keep files elsewhere and links in their place, by what their links lead to.
_FETCHERS = {"/annex/objects/": "git annex get", "/.dvc/cache/": "dvc pull"}


@dataclass(frozen=True)
class Link:
    """A link that cannot be followed."""

    path: str
    target: str  # as it is written in the link
    is_circle: bool  # it leads to a folder above it

    def error(self) -> DataError:
        """Return the refusal: what the link is, and what to do."""
        if self.is_circle:
            return DataError(
                f"{self.path} is a link to {self.target}, a folder above it: its files would be "
                "read many times. Delete the link, or name the files otherwise"
            )
        fetch = next((how for part, how in _FETCHERS.items() if part in self.target), None)
        what = "bring the target back" if fetch is None else f"fetch the file (`{fetch}`)"
        return DataError(
            f"{self.path} is a link to {self.target}, which is not there: {what}, or delete the "
            "link if its rows are not wanted"
        )


def unfollowable(folder: str) -> Iterator[Link]:
    """Yield the links below a folder, however deep, whose target is gone or is above them."""
    yield from _search(folder, (os.path.realpath(folder),))


def link_on_the_way(path: str) -> Link | None:
    """Return the first link on the way to a path whose target is gone, or None."""
    found = broken_link(path)
    return None if found is None else Link(*found, False)


def _search(folder: str, above: tuple[str, ...]) -> Iterator[Link]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield from _follow(entry, above)
            elif entry.is_dir():
                yield from _search(entry.path, (*above, os.path.join(above[-1], entry.name)))


def _follow(entry: os.DirEntry[str], above: tuple[str, ...]) -> Iterator[Link]:
    if not os.path.exists(entry.path):
        yield Link(entry.path, os.readlink(entry.path), False)
    elif entry.is_dir():
        real = os.path.realpath(entry.path)
        if any(f"{one}/".startswith(f"{real.rstrip('/')}/") for one in above):
            yield Link(entry.path, os.readlink(entry.path), True)
        else:
            yield from _search(entry.path, (*above, real))
