"""Files that have come to a source, and are whole.

Whoever writes a Parquet file in place leaves a file without its end for a while; who writes it
elsewhere and renames it, or commits it to a table, does not.

Relies on the footer at the end of a file. Promises that a file is named only once its footer can be
read and its size and time of change have stayed the same meanwhile; that a file is opened again
only if it has changed; and that one which is not whole, or a link without its target, is reported
when it is first seen, after `AGAIN` seconds, and then each time its age has doubled.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dmondrian.data.footers import MAX_CONNECTIONS, read_footers
from dmondrian.data.lake import named_table, open_any, time_of
from dmondrian.data.links import Link
from dmondrian.data.listing import NoFilesError
from dmondrian.data.source import Source, SourceFile, is_local, list_files, stat_uri
from dmondrian.errors import DataError

_log = logging.getLogger("dmondrian")

AGAIN = 300.0
"""Seconds after which a file that is still not whole is reported again."""

State = tuple[int, str]  # size and stamp of a file


@dataclass(frozen=True)
class Arrived:
    """Files that a source has at one time."""

    files: dict[str, State]  # whole files by uri; those of tables are not among them
    tables: dict[str, int]  # version of each table
    # when the file that changed last did, or a table was committed to, in seconds since 1970
    newest: float | None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read."""
        return not self.files and not self.tables

    def has_come_since(self, earlier: Arrived | None) -> bool:
        """Whether a file or a version of a table is here that was not."""
        if earlier is None:
            return True
        is_new = any(earlier.files.get(uri) != state for uri, state in self.files.items())
        return is_new or self.tables != earlier.tables


class Arrivals:
    """Looks at a source again and again.

    Parameters
    ----------
    source : str, path or sequence of them
        As of :func:`dmondrian.data.make_plan`.
    known : collection of str
        Uris of files that were read before: they are not opened. It may grow meanwhile.
    """

    def __init__(self, source: Source, known: Collection[str] = ()) -> None:
        self._items = [source] if isinstance(source, (str, os.PathLike)) else list(source)
        self._known = known
        self._whole: dict[str, State] = {}
        self._reported: dict[str, tuple[float, float]] = {}  # first and last time of each
        self._commits: dict[str, tuple[int, float | None]] = {}  # version and time of each table

    def look(self) -> Arrived:
        """Return what is there now.

        Raises
        ------
        DataError
            The source cannot be listed.
        """
        listed: dict[str, SourceFile] = {}
        tables: dict[str, int] = {}
        lost: list[Link] = []
        for item in self._items:
            named = named_table(os.fspath(item))
            if named is not None:
                table = open_any(named)
                uri, version = table.state.uri, table.state.version
                tables[uri] = version
                if self._commits.get(uri, (None,))[0] != version:
                    self._commits[uri] = version, time_of(table)
                continue
            try:
                files, _ = list_files(item, self._known, lost)
            except NoFilesError:
                continue  # they may come
            listed.update((file.uri, file) for file in files)
        fresh = [file for file in listed.values() if not self._is_known(file)]
        with ThreadPoolExecutor(MAX_CONNECTIONS) as pool:
            checked = zip(fresh, pool.map(_why_not_whole, fresh), strict=True)
            reasons = {file.uri: why for file, why in checked if why is not None}
        changes = {uri: listed[uri].stamp for uri in reasons}
        self._report({**reasons, **{link.path: str(link.error()) for link in lost}}, changes)
        self._whole = {
            uri: (file.size, file.stamp) for uri, file in listed.items() if uri not in reasons
        }
        stamps = [file.stamp for file in listed.values() if file.uri in self._whole]
        times = [int(stamp) / 1e9 for stamp in stamps if stamp.isdigit()]
        times += [when for uri in tables if (when := self._commits[uri][1]) is not None]
        return Arrived(dict(self._whole), tables, max(times, default=None))

    def _is_known(self, file: SourceFile) -> bool:
        known = self._whole.get(file.uri)
        return known == (file.size, file.stamp) or (known is None and file.uri in self._known)

    def _report(self, reasons: dict[str, str], changes: dict[str, str]) -> None:
        """Log which files are not whole: at once, and again as they get older.

        Parameters
        ----------
        reasons : dict
            By uri.
        changes : dict
            Stamps by uri: in stores that have times, when each was changed last.
        """
        now = time.time()
        reported: dict[str, tuple[float, float]] = {}
        for uri, why in reasons.items():
            first, last = self._reported.get(uri, (now, 0.0))
            if not last:
                _log.info("%s is not whole yet and waits: %s", uri, why)
                last = now
            elif now - first >= max(AGAIN, 2.0 * (last - first)):
                stamp = changes.get(uri, "")
                age = now - (int(stamp) / 1e9 if stamp.isdigit() else first)
                _log.warning("%s is not whole after %.0f minutes: %s", uri, age / 60.0, why)
                last = now
            reported[uri] = first, last
        self._reported = reported


def _why_not_whole(file: SourceFile) -> str | None:
    """Return why a file cannot be read yet; None if it can."""
    try:
        read_footers([file], ())
        now = stat_uri(file.uri) if is_local(file.uri) else file.version
    except (DataError, OSError) as error:
        return str(error)
    if now is None or (now.size, now.stamp) != (file.size, file.stamp):
        return "it is being written"
    return None
