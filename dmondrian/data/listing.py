"""Selection of the files of a folder or glob.

Relies on `table_formats` and `links`. Promises: files are sorted by path; names starting with ``_``
or ``.`` in a listed folder are skipped; folders of a table format and broken links are refused; a
file that is also linked to is read once.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pyarrow import fs

from dmondrian.checkpoint.new_folder import PARQUET_ENDINGS
from dmondrian.data.links import Link, link_on_the_way, links_below, second_names
from dmondrian.data.table_formats import refuse_tables, refuse_uncommitted
from dmondrian.errors import DataError

UriOf: TypeAlias = Callable[[str], str]
IsEmptied: TypeAlias = Callable[[str], bool]

GLOB = re.compile(r"[*?\[]")
_OURS = ("run.json", "_score.json")  # in the folder of a run, and of scores


class NoFilesError(DataError):
    """A file, folder or glob of a source names no Parquet file that is there."""


def never(location: str) -> bool:
    """Return False: no folder may be without files."""
    return False


def files_below(
    filesystem: fs.FileSystem,
    path: str,
    uri_of: UriOf,
    notes: list[str],
    lost: list[Link] | None = None,
) -> list[fs.FileInfo]:
    """Return the data files of a folder, sorted by path.

    Parameters
    ----------
    filesystem : pyarrow.fs.FileSystem
    path : str
    uri_of : callable
        Returns a path of the file system as the user writes it.
    notes : list of str
        Notes on skipped files are added.
    lost : list of Link or None
        Links whose targets are missing are added; None if they are errors.

    Raises
    ------
    DataError
        There are none, the folder is kept by a table format, or a link cannot be followed.
    """
    links = _links(filesystem, path)
    infos = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    chosen = _chosen(infos, links, path, uri_of(path), notes, lost)
    read = [info.path for info in chosen] or [f"{path.rstrip('/')}/"]
    refuse_tables(filesystem, path, infos, read, uri_of)
    refuse_uncommitted(filesystem, infos, read)
    if not chosen:
        raise _no_parquet(uri_of(path))
    return chosen


def _no_parquet(location: str) -> NoFilesError:
    return NoFilesError(
        f"the folder {location} holds no Parquet file (names ending in "
        f"{', '.join(PARQUET_ENDINGS)}; names starting with _ or . are passed over)"
    )


def _chosen(
    infos: Sequence[fs.FileInfo],
    links: Sequence[Link],
    path: str,
    location: str,
    notes: list[str],
    lost: list[Link] | None = None,
) -> list[fs.FileInfo]:
    """Return the data files among all entries below a folder.

    Raises
    ------
    DataError
        A link that may stand for some of them cannot be followed.
    """
    depth = len(path.rstrip("/")) + 1
    own_folders = sorted(
        {info.path[depth : -len(info.base_name)] for info in infos if _is_ours(info)} - {""}
    )
    if own_folders:
        notes.append(
            f"passed over in {location}: {', '.join(own_folders)} (runs or scores of dmondrian)"
        )

    def is_seen(name: str) -> bool:
        return not _is_hidden(name) and not name.startswith(tuple(own_folders))

    files = [
        info
        for info in sorted(infos, key=lambda info: info.path)
        if info.type == fs.FileType.File and is_seen(info.path[depth:])
    ]
    broken = [link for link in links if not link.is_sound and is_seen(link.path[depth:])]
    for link in broken:
        if link.is_circle or (lost is None and _may_hold_rows(link.path)):
            raise link.error()
        if lost is not None and _may_hold_rows(link.path):
            lost.append(link)
    chosen = [info for info in files if info.path.lower().endswith(PARQUET_ENDINGS)]
    if not chosen:  # Hive and Impala write data files without any ending
        chosen = [info for info in files if "." not in info.base_name]
    read = {info.path for info in chosen}
    passed_over = [info.path[depth:] for info in files if info.path not in read]
    passed_over += [link.path[depth:] for link in broken if lost is None or link not in lost]
    if chosen and passed_over:
        more = f" and {len(passed_over) - 3} more" if len(passed_over) > 3 else ""
        notes.append(f"passed over in {location}: {', '.join(passed_over[:3])}{more} (not Parquet)")
    return _once(chosen, links, path, notes)


def _once(
    chosen: list[fs.FileInfo], links: Sequence[Link], path: str, notes: list[str]
) -> list[fs.FileInfo]:
    """Return the files without links to other files among them."""
    if not links:
        return chosen
    second = second_names(path, [info.path for info in chosen])
    if second:
        link, file = next(iter(second.items()))
        more = f" ({len(second)} such links)" if len(second) > 1 else ""
        notes.append(f"{link} is a link to {file}, which is read once{more}")
    return [info for info in chosen if info.path not in second]


def _links(filesystem: fs.FileSystem, path: str) -> list[Link]:
    """Return the links below a folder; object stores have none."""
    is_local = isinstance(filesystem, fs.LocalFileSystem) and os.path.isdir(path)
    return sorted(links_below(path), key=lambda link: link.path) if is_local else []


def _may_hold_rows(path: str) -> bool:
    """Return whether the missing target of a link may be Parquet or a folder, by its name."""
    ending = os.path.splitext(path)[1]
    return ending.lower() in PARQUET_ENDINGS or not re.fullmatch(r"\.[A-Za-z]\w*", ending)


def _is_ours(info: fs.FileInfo) -> bool:
    """Return whether a file marks its folder as a run or as scores, which are not read."""
    return info.type == fs.FileType.File and info.base_name in _OURS


def files_matching(
    filesystem: fs.FileSystem,
    pattern: str,
    uri_of: UriOf,
    notes: list[str],
    is_emptied: IsEmptied = never,
) -> list[fs.FileInfo]:
    """Return the files that match a glob, and the data files of folders that do, sorted by path.

    Parameters and errors as in `files_below`, except that no match is no error, nor is a folder
    without files of which `is_emptied` returns True.
    """
    parts = pattern.split("/")
    fixed = next(i for i, part in enumerate(parts) if GLOB.search(part))
    base, wanted = "/".join(parts[:fixed]) or "/", parts[fixed:]
    depth = len(base.rstrip("/")) + 1
    links = _links(filesystem, base)
    for link in (link for link in links if not link.is_sound):
        names = link.path[depth:].split("/")
        if matches(names, wanted) or (_may_hold_rows(link.path) and _begins(names, wanted)):
            raise link.error()
    selector = fs.FileSelector(base, allow_not_found=True, recursive=True)
    infos = filesystem.get_file_info(selector)
    matched = [info for info in infos if matches(info.path[depth:].split("/"), wanted)]
    folders = [info.path for info in matched if info.type == fs.FileType.Directory]
    files = {info.path: info for info in matched if info.type == fs.FileType.File}
    read = [*files, *(f"{folder}/" for folder in folders)]
    refuse_tables(filesystem, base, infos, read, uri_of)
    for folder in sorted(folders):
        inside = filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
        chosen = _chosen(inside, _links(filesystem, folder), folder, uri_of(folder), notes)
        if not chosen and not is_emptied(uri_of(folder)):
            raise _no_parquet(uri_of(folder))
        files.update((info.path, info) for info in chosen)
    refuse_uncommitted(filesystem, infos, [*files])
    if not files and isinstance(filesystem, fs.LocalFileSystem) and (lost := link_on_the_way(base)):
        raise lost.error()
    return _once([files[path] for path in sorted(files)], links, base, notes)


def matches(names: list[str], patterns: list[str]) -> bool:
    """Whether path components match glob components; ``**`` stands for any number of folders."""
    if not patterns:
        return not names
    if patterns[0] == "**":
        visible = [not _is_hidden(name) for name in names]
        return any(
            all(visible[:skip]) and matches(names[skip:], patterns[1:])
            for skip in range(len(names) + 1)
        )
    if not names or (_is_hidden(names[0]) and names[0][0] != patterns[0][0]):
        return False
    return fnmatch.fnmatchcase(names[0], patterns[0]) and matches(names[1:], patterns[1:])


def _begins(names: list[str], patterns: list[str]) -> bool:
    """Whether something below a path may match glob components."""
    return any(matches(names, patterns[:length]) for length in range(1, len(patterns)))


def _is_hidden(relative: str) -> bool:
    """Apply Spark's rule: ``_SUCCESS`` and ``.crc`` are hidden, partition folders ``_k=v`` not."""
    return any(
        part.startswith(".") or (part.startswith("_") and "=" not in part)
        for part in relative.split("/")
    )
