"""Current places of a plan's files, after data or run were moved or copied.

Relies on `Plan.origins`, so that the stored plan and its digest stay the same. Promises that a file
is recognised only by name, size, row groups and fingerprint, or, in plans without fingerprints,
ETag or time of change.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa

from dmondrian.checkpoint.stream import Stream
from dmondrian.data.block_table import Block
from dmondrian.data.fingerprint import fingerprint, read_end
from dmondrian.data.footers import MAX_CONNECTIONS, Footer
from dmondrian.data.plan import Plan
from dmondrian.data.source import SAFE, SourceFile, is_local, open_uri, stat_uri
from dmondrian.data.version import Version
from dmondrian.errors import DataError, OutageError
from dmondrian.store.failures import kind_of

_Parts = tuple[str, ...]  # of a path


@dataclass(frozen=True)
class _Planned:
    """A file as recorded in a plan."""

    size: int
    stamp: str
    fingerprint: str
    rows: dict[int, int]  # of each row group that has some

    def resembles(self, footer: Footer) -> bool:
        """Return whether a file has this one's size and row groups."""
        rows = {number: rows for number, rows in enumerate(footer.group_rows) if rows}
        return (footer.file.size, rows) == (self.size, self.rows)

    def is_at(self, file: SourceFile) -> bool:
        """Return whether a file of the same size is this one."""
        if self.fingerprint:
            return self.fingerprint == (file.fingerprint or _fingerprint_at(file.uri))
        return file.version.is_same(self.size, self.stamp, is_local=False)


def find_places(
    plan: Plan,
    footers: Sequence[Footer],
    unread: Collection[str] = (),
    learned: Collection[str] = (),
) -> tuple[dict[str, str], dict[str, str]]:
    """Find the files of a plan among those of a source.

    Parameters
    ----------
    plan : Plan
    footers : sequence of Footer
        Of the files of the source that may have to be read.
    unread : collection of str
        Uris of other files of the source, which are those of the plan.
    learned : collection of str
        Uris of files of the plan whose rows are all learned. Such a file is also found under
        another name, so that it is not learned again.

    Returns
    -------
    places : dict of str to str
        From the uri in the plan to the current uri, of the files found.
    doubtful : dict of str to str
        The same for files that look alike but cannot be confirmed to be the same.
    """
    listed = {footer.file.uri: footer for footer in footers}
    prints_then = dict(plan.table.fingerprints())
    places = {uri: uri for uri in prints_then if uri in listed or uri in unread}
    doubtful: dict[str, str] = {}
    spare = {_parts(uri): uri for uri in listed if uri not in prints_then}
    by_name: dict[str, list[_Parts]] = {}
    for parts in spare:
        by_name.setdefault(parts[-1], []).append(parts)
    # Of a stream that is followed nearly all files are gone: only some can be those that came.
    of_spare = {listed[uri].file.fingerprint for uri in spare.values()} - {""}
    missing = {
        parts: uri
        for uri, text in prints_then.items()
        if uri not in places and ((parts := _parts(uri))[-1] in by_name or text in of_spare)
    }
    planned = _files_of(plan.table.of_files(set(missing.values())))

    def try_at(then: _Parts, now: _Parts) -> bool:
        if now not in spare or not planned[missing[then]].resembles(listed[spare[now]]):
            return False
        if not planned[missing[then]].is_at(listed[spare[now]].file):
            doubtful.setdefault(missing[then], spare[now])
            return False
        places[missing.pop(then)] = spare.pop(now)
        return True

    for first in list(missing):
        if first not in missing:
            continue
        # Other missing files are looked for in the folders of the nearest match.
        near = sorted(by_name.get(first[-1], ()), key=lambda parts: -_shared_end(first, parts))
        match = next((parts for parts in near if try_at(first, parts)), None)
        if match is None:
            continue
        depth = _shared_end(first, match)
        old, new = first[:-depth], match[:-depth]
        for parts in [parts for parts in missing if parts[: len(old)] == old]:
            try_at(parts, new + parts[len(old) :])
    prints = {planned[uri].fingerprint: parts for parts, uri in missing.items() if uri in learned}
    prints.pop("", None)
    for parts, uri in list(spare.items()):
        renamed = prints.pop(listed[uri].file.fingerprint, None)
        if renamed is not None:
            try_at(renamed, parts)
    return places, doubtful


def fingerprints_now(uris: Collection[str]) -> dict[str, str]:
    """Return the fingerprints that files have now; "" of those that cannot be read."""
    with ThreadPoolExecutor(MAX_CONNECTIONS) as pool:
        return dict(zip(uris, pool.map(_fingerprint_at, uris), strict=True))


def find_renamed(
    learned: Mapping[str, str], changed: Mapping[str, str], spare: Mapping[str, str]
) -> dict[str, str]:
    """Find learned files under other names, as after a rotation of logs.

    Parameters
    ----------
    learned : mapping of str to str
        From uri to fingerprint, of learned files that are gone or have other bytes now.
    changed : mapping of str to str
        From uri to fingerprint now, of those of them that have other bytes.
    spare : mapping of str to str
        From uri to fingerprint, of files that no file of the plan is at.

    Returns
    -------
    dict of str to str
        From the uri in the plan to the current uri, of the files found. No two are at one place,
        and none is where another learned file of the plan stays.
    """
    wanted: dict[str, list[str]] = {}
    for uri, text in learned.items():
        if text:
            wanted.setdefault(text, []).append(uri)
    places: dict[str, str] = {}
    free = list(spare.items())
    while free:
        now, text = free.pop()
        if then := wanted.get(text):
            uri = then.pop()
            places[uri] = now
            if uri in changed:  # what its own name holds now may be another one
                free.append((uri, changed[uri]))
    return places


def place(plan: Plan, files: Mapping[str, tuple[str, str]]) -> Plan:
    """Return a plan with the current places of its files; its digest stays the same.

    Parameters
    ----------
    plan : Plan
    files : mapping of str to (str, str)
        From the uri of a file in the plan to its current uri and stamp; other files keep theirs.
    """
    if not files and not plan.origins:
        return plan
    origins: dict[str, tuple[str, str]] = {}
    places: dict[str, tuple[str, str]] = {}
    for uri, stamp in plan.table.file_stamps():
        origin, now = plan.origins.get(uri, (uri, stamp)), files.get(uri, (uri, stamp))
        if now != origin:
            origins[now[0]] = origin
        if now != (uri, stamp):
            places[uri] = now
    table = plan.table.moved(places) if places else plan.table
    return replace(plan, blocks=table, origins=origins).with_digest_of(plan)


def places_of(plan: Plan) -> dict[str, tuple[str, str]]:
    """Return the files whose places differ from the stored plan, as `place` takes them."""
    if not plan.origins:
        return {}
    stamps = dict(plan.table.file_stamps())
    return {origin[0]: (uri, stamps[uri]) for uri, origin in plan.origins.items()}


def stored_plan(stream: Stream) -> Plan:
    """Return the newest plan of a run, with the recorded places of its files.

    Raises
    ------
    CorruptError, NotFoundError
        The stored plan is damaged or missing.
    """
    return place(Plan.from_parquet(stream.read()), stream.places()[1])


def place_beside(plan: Plan, home: str, now: str) -> Plan:
    """Return the plan of a run that was copied together with its data.

    Parameters
    ----------
    plan : Plan
    home, now : str
        Address of the run when its places were recorded, and of the copy.

    Returns
    -------
    Plan
        With the unchanged files at the same place relative to the copy; other files keep theirs.
    """
    files = {}
    for uri, planned in _files_of(plan.blocks).items():
        there = _beside(uri, home, now)
        if there is None or there == uri:
            continue
        try:
            version = stat_uri(there)
        except (DataError, OSError):
            continue
        if version is None or version.size != planned.size:
            continue
        file = SourceFile(there, version.size, version.stamp, (), version.changed)
        if planned.is_at(file):
            files[uri] = (there, version.stamp)
    return place(plan, files)


def absent_files(plan: Plan, position: int = 0) -> tuple[list[str], list[str]]:
    """Return the files with rows of a stream behind a position that are gone, and changed ones.

    Raises
    ------
    DataError
        A store does not answer.
    """
    gone, changed = [], []
    files = _files_of(plan.blocks_after(position))
    with ThreadPoolExecutor(MAX_CONNECTIONS) as pool:
        for uri, version in zip(files, pool.map(_version_now, files), strict=True):
            if version is None:
                gone.append(uri)
            elif not version.is_same(files[uri].size, files[uri].stamp, is_local(uri)):
                changed.append(uri)
    return gone, changed


def _version_now(uri: str) -> Version | None:
    try:
        return stat_uri(uri)
    except OSError as error:
        raise kind_of(error, uri)(f"cannot look at {uri}, a file of the plan: {error}") from error


def _files_of(blocks: Iterable[Block]) -> dict[str, _Planned]:
    files: dict[str, _Planned] = {}
    for block in blocks:
        new = _Planned(block.size, block.stamp, block.fingerprint, {})
        files.setdefault(block.uri, new).rows[block.row_group] = block.group_rows
    return files


def _fingerprint_at(uri: str) -> str:
    """Return the fingerprint of a file, which may be remote; "" if it cannot be read."""
    try:
        with open_uri(uri) as file:
            return fingerprint(file, read_end(file))
    except (pa.ArrowException, OSError) as error:
        if kind_of(error, uri) is OutageError:  # whether it has changed is not known
            raise OutageError(f"cannot look at {uri}, a file of the plan: {error}") from error
        return ""


def _beside(uri: str, home: str, now: str) -> str | None:
    """Return the place of a file relative to `now` that it had relative to `home`, or None."""
    if any(is_local(place) != is_local(uri) for place in (home, now)):
        return None
    if is_local(uri):
        return posixpath.normpath(posixpath.join(now, posixpath.relpath(uri, home)))
    file, then = urlsplit(uri), urlsplit(home)
    if (file.scheme, file.netloc) != (then.scheme, then.netloc):
        return None
    split = urlsplit(now)
    relative = posixpath.relpath(unquote(file.path), then.path or "/")
    path = posixpath.normpath(posixpath.join(split.path or "/", relative))
    return f"{split.scheme}://{split.netloc}{quote(path, safe=SAFE)}"


def _parts(uri: str) -> _Parts:
    """Return the parts of a path; for a URL the host or bucket comes first."""
    if is_local(uri):
        return tuple(uri.split("/"))
    split = urlsplit(uri)
    return (f"{split.scheme}://{split.netloc}", *unquote(split.path).split("/")[1:])


def _shared_end(first: _Parts, second: _Parts) -> int:
    """Return the number of equal parts at the ends of two paths, less than either length."""
    most = min(len(first), len(second)) - 1
    for n in range(most):
        if first[-1 - n] != second[-1 - n]:
            return n
    return most
