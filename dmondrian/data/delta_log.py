"""Changes of a Delta table between two of its versions: which files hold rows that were appended.

A commit of a Delta log adds and removes files. One that only adds has appended rows. One that does
both has written rows again: with other values (UPDATE, MERGE), without some (DELETE), or as they
were in fewer files (OPTIMIZE, whose actions have ``dataChange`` false).

Relies on the actions of the log (the protocol of Delta, github.com/delta-io/delta/blob/master/
PROTOCOL.md). Promises that rows which were in the table at the first version are in no file that is
returned, and that each row appended later is in one: in the file that appended it, so that the
result does not depend on when one looks; where that file is gone, in the one that took its rows
over, if that has no others. Rows that were changed or deleted before they were learned are taken as
they are at last if they were written again apart from others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dmondrian.errors import DataError

LEARNED, NEW, BOTH = "learned", "new", "both"  # rows of a file


@dataclass
class Added:
    """A file that was added after the first version."""

    path: str
    partition: Mapping[str, str | None]
    rows: int  # by its statistics; 0 where there are none
    status: str
    n_masked: int = 0  # rows that a deletion vector leaves out
    entry: Entry | None = None  # where its rows are among those to learn


@dataclass
class Entry:
    """Files with appended rows; `originals` are those whose rows they took over, if any."""

    files: list[Added]
    originals: list[Entry] = field(default_factory=list)

    def all_files(self) -> Iterator[Added]:
        """Yield the files, and those whose rows they took over."""
        yield from self.files
        for original in self.originals:
            yield from original.all_files()

    def best(self, is_there: Callable[[str], bool]) -> Iterator[Added]:
        """Yield the files to read: the originals if all of them are there."""
        found = [file for entry in self.originals for file in entry.best(is_there)]
        if found and all(is_there(file.path) for file in found):
            yield from found
        else:
            yield from self.files


@dataclass
class Counts:
    """Rows that changed after they were learned."""

    deleted: int = 0
    updated: int = 0
    unlearned: int = 0  # rows written into files together with learned ones


class Changes:
    """Files with rows that were appended to a table, commit by commit.

    Parameters
    ----------
    learned : mapping of str to int
        Rows of the files that were in the table at the first version, as far as they are known.
        Files that are removed and were not added since were in it too.
    """

    def __init__(self, learned: Mapping[str, int]) -> None:
        self._learned = learned
        self._files: dict[str, Added] = {}
        self._entries: dict[int, Entry] = {}  # by identity, in order
        self.counts = Counts()

    def entries(self) -> list[Entry]:
        """Return the files with appended rows, oldest first."""
        return list(self._entries.values())

    def commit(self, actions: Iterable[Mapping[str, Any]]) -> None:
        """Take the actions of the next commit."""
        adds: dict[str, Mapping[str, Any]] = {}
        removes: dict[str, Mapping[str, Any]] = {}
        info: Mapping[str, Any] = {}
        for action in actions:
            if "add" in action:
                adds[action["add"]["path"]] = action["add"]
            elif "remove" in action:
                removes[action["remove"]["path"]] = action["remove"]
            elif "commitInfo" in action:
                info = action["commitInfo"]
        if info.get("operation") == "RESTORE":
            self._restore(list(adds.values()), list(removes.values()))
            return
        for path in sorted(adds.keys() & removes.keys()):
            self._mask(adds.pop(path), removes.pop(path))
        parts = {_part(action) for action in (*adds.values(), *removes.values())}
        is_parted = None not in parts
        n_removed, n_added = 0, 0  # rows of files that are rewritten and hold learned rows
        for part in sorted(parts, key=str) if is_parted else [None]:
            some = [path for path in sorted(adds) if not is_parted or _part(adds[path]) == part]
            gone = [path for path in removes if not is_parted or _part(removes[path]) == part]
            rows = self._rewrite([adds[path] for path in some], [removes[path] for path in gone])
            n_removed, n_added = n_removed + rows[0], n_added + rows[1]
        if n_removed or n_added:
            self._count(n_removed, n_added, info)

    def _restore(self, adds: list[Mapping[str, Any]], removes: list[Mapping[str, Any]]) -> None:
        """Take the files of an earlier version: what was not appended since is learned."""
        gone = [self._files.get(action["path"]) for action in removes]
        self._take_out([file for file in gone if file is not None and file.status == NEW])
        self.counts.deleted += sum(
            self._rows(action)
            for action, file in zip(removes, gone, strict=True)
            if file is None or file.status != NEW
        )
        again = [self._files.get(add["path"]) for add in adds]
        news = [file is not None and file.status == NEW for file in again]
        self._add([add for add, is_new in zip(adds, news, strict=True) if is_new], NEW)
        self._add([add for add, is_new in zip(adds, news, strict=True) if not is_new], LEARNED)

    def _mask(self, add: Mapping[str, Any], remove: Mapping[str, Any]) -> None:
        """Note that a file got another deletion vector."""
        now, then = _n_masked(add), _n_masked(remove)
        file = self._files.get(add["path"])
        if file is not None:
            file.n_masked = now
        if file is None or file.status != NEW:
            self.counts.deleted += max(0, now - then)

    def _rewrite(
        self, adds: list[Mapping[str, Any]], removes: list[Mapping[str, Any]]
    ) -> tuple[int, int]:
        """Take the files of one partition that a commit adds and removes.

        Returns
        -------
        n_removed, n_added : int
            Rows of these files, if data changed that are learned.
        """
        is_change = any(action.get("dataChange", True) for action in (*adds, *removes))
        gone = [self._files.get(action["path"]) for action in removes]
        fresh = [file for file in gone if file is not None and file.status == NEW]
        others = [
            action
            for action, file in zip(removes, gone, strict=True)
            if file is None or file.status != NEW
        ]
        if not removes:
            self._add(adds, NEW if is_change else LEARNED)
            return 0, 0
        if not others:
            olds = self._take_out(fresh)
            if adds:
                self._add(adds, NEW, [] if is_change else olds)
        elif not fresh or (is_change and not adds):
            self._take_out(fresh)
            self._add(adds, LEARNED)
        else:
            self._add(adds, BOTH)
        if not is_change or not others:
            return 0, 0
        return sum(map(self._rows, others)), sum(map(_rows, adds))

    def _add(
        self, adds: list[Mapping[str, Any]], status: str, originals: list[Entry] | None = None
    ) -> None:
        if status == NEW:
            adds = [add for add in adds if add["path"] not in self._learned]
        files = [
            Added(add["path"], add.get("partitionValues") or {}, _rows(add), status, _n_masked(add))
            for add in adds
        ]
        self._files.update((file.path, file) for file in files)
        if status != NEW:
            return
        groups = [files] if originals else [[file] for file in files]
        for group in groups:
            entry = Entry(group, originals or [])
            self._entries[id(entry)] = entry
            for file in group:
                file.entry = entry

    def _take_out(self, files: list[Added]) -> list[Entry]:
        """Take the entries of files from those to learn; entries of more files are cut before."""
        found = list({id(file.entry): file.entry for file in files if file.entry}.values())
        taken = []
        for entry in found:
            if all(file in files for file in entry.files):
                taken.append(self._entries.pop(id(entry)))
                continue
            parts = [Entry([file]) for file in entry.files]
            rest = {}
            for key, one in self._entries.items():
                rest.update({id(part): part for part in parts} if one is entry else {key: one})
            for part in parts:
                part.files[0].entry = part
                if part.files[0] in files:
                    taken.append(rest.pop(id(part)))
            self._entries = rest
        return taken

    def _rows(self, remove: Mapping[str, Any]) -> int:
        file = self._files.get(remove["path"])
        return self._learned.get(remove["path"], 0) if file is None else file.rows

    def _count(self, n_removed: int, n_added: int, info: Mapping[str, Any]) -> None:
        """Count what a commit did to rows that were learned, by its metrics if it has them."""
        operation = str(info.get("operation", ""))
        metrics = {
            str(name).replace("_", "").lower(): value
            for name, value in (info.get("operationMetrics") or {}).items()
        }

        def metric(*names: str) -> int | None:
            values = [metrics[name] for name in names if name in metrics]
            try:
                return int(values[0]) if values else None
            except (TypeError, ValueError):
                return None

        if operation == "MERGE":
            self.counts.updated += metric("numtargetrowsupdated") or 0
            self.counts.deleted += metric("numtargetrowsdeleted") or 0
            self.counts.unlearned += metric("numtargetrowsinserted") or 0
        elif operation == "UPDATE":
            updated = metric("numupdatedrows")
            self.counts.updated += n_added if updated is None else updated
        elif operation == "DELETE":
            deleted = metric("numdeletedrows")
            self.counts.deleted += n_removed - n_added if deleted is None else deleted
        else:
            self.counts.deleted += n_removed
            self.counts.unlearned += n_added


def files_to_learn(
    changes: Changes, is_there: Callable[[str], bool], table: str, by: str = "VACUUM does"
) -> list[Added]:
    """Return the files with rows that were appended, oldest first.

    Parameters
    ----------
    changes : Changes
    is_there : callable
        Whether the file of a path exists.
    table, by : str
        For messages: its name, and what deletes files.

    Raises
    ------
    DataError
        A file is gone and its rows are in others together with rows that were learned, or has a
        deletion vector.
    """
    found = [file for entry in changes.entries() for file in entry.best(is_there)]
    gone = [file.path for file in found if not is_there(file.path)]
    if gone:
        raise DataError(
            f"{table}: {gone[0]} appended rows that the run has not learned; its file was deleted "
            f"({by}), and its rows are in files that hold learned rows too, which cannot be "
            "separated: restore the file, or train another run. A run that goes on before files "
            "are deleted does not come to this"
        )
    refuse_masked(table, {file.path: file.n_masked for file in found})
    return found


def refuse_masked(table: str, n_masked: Mapping[str, int]) -> None:
    """Refuse files of which deletion vectors leave rows out.

    Raises
    ------
    DataError
        With the first of these files.
    """
    masked = [path for path, n in n_masked.items() if n]
    if masked:
        more = f" and {len(masked) - 1:,} more" if len(masked) > 1 else ""
        raise DataError(
            f"{table}: rows of {masked[0]}{more} are deleted by a deletion vector, which is not "
            "read here: write these files again without the rows (REORG TABLE ... APPLY (PURGE)), "
            "or set delta.enableDeletionVectors = false before rows are deleted"
        )


def appended_only(live: Collection[str], learned: Collection[str]) -> list[str] | None:
    """Return the live files beside learned ones; None if some of these are not live any more."""
    return None if set(learned) - set(live) else [path for path in live if path not in learned]


def _part(action: Mapping[str, Any]) -> tuple[tuple[str, Any], ...] | None:
    """Return the partition of an action; None if it does not say."""
    values = action.get("partitionValues")
    return None if values is None else tuple(sorted(values.items()))


def _n_masked(action: Mapping[str, Any]) -> int:
    return int((action.get("deletionVector") or {}).get("cardinality", 0))


def _rows(add: Mapping[str, Any]) -> int:
    """Return the rows of a file by its statistics."""
    try:
        return int(json.loads(add.get("stats") or "{}").get("numRecords", 0))
    except (ValueError, TypeError, AttributeError):
        return 0
