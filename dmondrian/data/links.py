"""Symbolic links below a local folder: to files, to missing targets, or to a folder above.

A plain listing silently leaves out broken links, follows circular ones until the system stops it,
and lists files twice that are linked to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dmondrian._atomic_write import broken_link
from dmondrian.errors import DataError

# Commands of tools that replace files by links, by a part of the link target.
_FETCHERS = {"/annex/objects/": "git annex get", "/.dvc/cache/": "dvc pull"}


@dataclass(frozen=True)
class Link:
    """A symbolic link on the way to a path, and its target."""

    path: str
    target: str  # as written in the link
    is_lost: bool = False  # its target is missing
    is_circle: bool = False  # its target is a folder above it

    @property
    def is_sound(self) -> bool:
        """Whether the link can be followed."""
        return not (self.is_lost or self.is_circle)

    def error(self) -> DataError:
        """Return the error for a link that cannot be followed."""
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


def links_below(folder: str) -> Iterator[Link]:
    """Yield the links below a folder, however deep."""
    yield from _search(folder, (os.path.realpath(folder),))


def second_names(folder: str, paths: Sequence[str]) -> dict[str, str]:
    """Return the paths that are links to others of `paths`, with these others.

    Two links to one file elsewhere count as two files: git-annex stores equal files once.
    """
    top, depth = os.path.realpath(folder), len(folder.rstrip("/")) + 1
    real = {path: os.path.realpath(path) for path in paths}
    named = {
        target: path for path, target in real.items() if target == os.path.join(top, path[depth:])
    }
    return {path: named[target] for path, target in real.items() if named.get(target, path) != path}


def link_on_the_way(path: str) -> Link | None:
    """Return the first broken link among the parts of a path, or None."""
    link = broken_link(path)
    return None if link is None else Link(*link, is_lost=True)


def _search(folder: str, above: tuple[str, ...]) -> Iterator[Link]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield from _follow(entry, above)
            elif entry.is_dir():
                yield from _search(entry.path, (*above, os.path.join(above[-1], entry.name)))


def _follow(entry: os.DirEntry[str], above: tuple[str, ...]) -> Iterator[Link]:
    if not os.path.exists(entry.path):
        yield Link(entry.path, os.readlink(entry.path), is_lost=True)
        return
    real = os.path.realpath(entry.path)
    is_circle = any(f"{folder}/".startswith(f"{real.rstrip('/')}/") for folder in above)
    yield Link(entry.path, os.readlink(entry.path), is_circle=is_circle)
    if entry.is_dir() and not is_circle:
        yield from _search(entry.path, (*above, real))
