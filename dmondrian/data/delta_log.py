"""Changes of a table between two of its versions: which files hold rows that were appended.

A commit of a Delta log adds and removes files. One that only adds has appended rows. One that does
both has written rows again: with other values (UPDATE, MERGE), without some (DELETE), or as they
were in fewer files (OPTIMIZE, whose actions have ``dataChange`` false). It may also leave rows of a
file out by a deletion vector: the file is removed and added with another one. Commits of Iceberg
tables are brought to this form.

Relies on the actions of the log (the protocol of Delta, github.com/delta-io/delta/blob/master/
PROTOCOL.md). Promises that rows which were in the table at the first version are in no file that is
returned, and that each row appended later is in one: in the file that appended it, so that the
result does not depend on when one looks; where that file is gone, or rows of it are left out, in
the one that took its rows over, if that has no others. Rows that were changed or deleted before
they were learned are taken as they are at last if they were written again apart from others.

What a commit adds that takes rows away from learned files, by removing these or by deletion
vectors, is not learned, in whatever partition it is: it may stand in the place of learned rows, and
an update may move a row to another partition. It is one rule for both ways to write. Only a DELETE
leaves rows where they are, so each partition counts by itself there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from dmondrian.data.plan import TableState
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
    # Rows that the file, or one it was made of, appended are in files with learned rows alone.
    is_torn: bool = False
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
        """Yield the files to read: the originals if all of them are there with all rows."""
        originals = [file for entry in self.originals for file in entry.best(is_there)]
        if originals and all(is_there(file.path) and not file.n_masked for file in originals):
            yield from originals
        else:
            yield from self.files


@dataclass
class Counts:
    """Rows that changed after they were learned."""

    deleted: int = 0
    updated: int = 0  # other rows stand in their place
    unlearned: int = 0  # rows written into files together with learned ones
    bounds: set[str] = field(default_factory=set)  # which of these are upper bounds

    def add(self, name: str, n: int, is_exact: bool) -> None:
        """Add rows to a count; a number that is not exact is an upper bound."""
        if n > 0:
            setattr(self, name, getattr(self, name) + n)
            if not is_exact:
                self.bounds.add(name)


@dataclass
class _Loss:
    """Rows that a commit takes away from files, and adds; of one partition or of all."""

    learned: int  # of removed files with learned rows
    fresh: int  # of removed files with none
    masked: int  # left out by deletion vectors of files with learned rows
    masked_fresh: int  # of files with none
    added: int
    is_pure: bool  # no file holds both

    @property
    def most(self) -> int:
        """Most learned rows that it took away."""
        return self.learned + self.masked

    @property
    def net(self) -> int:
        """Rows that are fewer now; below 0 they are more."""
        return self.most + self.fresh + self.masked_fresh - self.added

    @property
    def is_exact(self) -> bool:
        """Whether all rows that it took away were learned."""
        return self.is_pure and not self.fresh and not self.masked_fresh


class Changes:
    """Files with rows that were appended to a table, commit by commit.

    Parameters
    ----------
    learned : mapping of str to int
        Rows of the files that were in the table at the first version, as far as they are known.
        Files that are removed and were not added since were in it too.
    mixed : collection of str
        Those of them with rows that were not learned.
    """

    def __init__(self, learned: Mapping[str, int], mixed: Collection[str] = ()) -> None:
        self._learned = learned
        self._mixed = set(mixed)
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
        operation = str(info.get("operation") or "")
        if operation == "RESTORE":
            self._restore(list(adds.values()), list(removes.values()))
            return
        masks = [
            self._mask(adds.pop(path), removes.pop(path))
            for path in sorted(adds.keys() & removes.keys())
        ]
        actions = [*adds.values(), *removes.values(), *(add for add, _ in masks)]
        is_change = any(action.get("dataChange", True) for action in actions)
        parts = {_part(action) for action in actions}
        has_parts = None not in parts
        ordered = sorted(adds, key=lambda path: (str(_part(adds[path])) if has_parts else "", path))
        is_parted = has_parts and (operation == "DELETE" or not is_change)
        losses = []
        for part in sorted(parts, key=str) if is_parted else [None]:
            added = [path for path in ordered if not is_parted or _part(adds[path]) == part]
            removed = [path for path in removes if not is_parted or _part(removes[path]) == part]
            loss = self._rewrite(
                [adds[path] for path in added],
                [removes[path] for path in removed],
                [mask for mask in masks if not is_parted or _part(mask[0]) == part],
                is_change,
            )
            losses.append(loss)
        if not is_change:
            return
        before = self.counts.unlearned
        self._count([loss for loss in losses if loss is not None], info)
        if self.counts.unlearned > before:
            for path in adds:
                if (file := self._files[path]).status == LEARNED:
                    file.status = BOTH

    def _restore(self, adds: list[Mapping[str, Any]], removes: list[Mapping[str, Any]]) -> None:
        """Take the files of an earlier version: what was not appended since is learned."""
        gone = [self._files.get(action["path"]) for action in removes]
        self._take_out([file for file in gone if _is_new(file)])
        masked = {add["path"]: _n_masked(add) for add in adds}
        for action, file in zip(removes, gone, strict=True):
            if not _is_new(file):
                # A file that stays may have got its earlier deletion vector again.
                stay = self._rows(action) + _n_masked(action) - masked.get(action["path"], 0)
                left = stay if action["path"] in masked else 0
                is_pure = self._is_pure(action["path"])
                self.counts.add("deleted", self._rows(action) - left, is_pure)
        again = [self._files.get(add["path"]) for add in adds]
        news = [_is_new(file) for file in again]
        self._add([add for add, is_new in zip(adds, news, strict=True) if is_new], NEW)
        self._add([add for add, is_new in zip(adds, news, strict=True) if not is_new], LEARNED)

    def _mask(
        self, add: Mapping[str, Any], remove: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], int]:
        """Return that a file got another deletion vector, and how many rows this leaves out."""
        file = self._files.get(add["path"])
        if file is not None:
            file.n_masked = _n_masked(add)
            if file.entry is not None:
                file.entry.originals = []  # which have the rows that are left out
        return add, max(0, _n_masked(add) - _n_masked(remove))

    def _rewrite(
        self,
        adds: list[Mapping[str, Any]],
        removes: list[Mapping[str, Any]],
        masks: list[tuple[Mapping[str, Any], int]],
        is_change: bool,
    ) -> _Loss | None:
        """Take the files of one partition, or of all, that a commit adds, removes and masks.

        Returns
        -------
        _Loss or None
            None if no learned row is taken away.
        """
        gone = [self._files.get(action["path"]) for action in removes]
        hidden = [(self._files.get(action["path"]), n) for action, n in masks if n]
        fresh = [file for file in gone if _is_new(file)]
        learned_removes = [
            action for action, file in zip(removes, gone, strict=True) if not _is_new(file)
        ]
        touched = [*gone, *(file for file, _ in hidden)]
        if all(map(_is_new, touched)):
            olds = self._take_out([file for file in fresh if adds or not file.is_torn])
            if adds:
                is_new = is_change or bool(removes)
                self._add(adds, NEW if is_new else LEARNED, [] if is_change else olds)
            for action in adds if any(file.is_torn for file in fresh) else ():
                self._files[action["path"]].is_torn = True
            return None
        paths = [*(action["path"] for action in removes), *(add["path"] for add, n in masks if n)]
        is_pure = all(map(self._is_pure, paths))
        if not any(map(_is_new, touched)) or (is_change and not adds):
            self._take_out([file for file in fresh if not file.is_torn])
            self._add(adds, LEARNED if is_pure else BOTH)
        else:
            self._add(adds, BOTH)
            for file, _ in hidden:
                if file is not None and file.status == NEW:
                    file.is_torn = True
        return _Loss(
            learned=sum(map(self._rows, learned_removes)),
            fresh=sum(max(0, file.rows - file.n_masked) for file in fresh),
            masked=sum(n for file, n in hidden if not _is_new(file)),
            masked_fresh=sum(n for file, n in hidden if _is_new(file)),
            added=sum(map(_rows, adds)),
            is_pure=is_pure,
        )

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
        entries = list({id(file.entry): file.entry for file in files if file.entry}.values())
        taken = []
        for entry in entries:
            if all(file in files for file in entry.files):
                taken.append(self._entries.pop(id(entry)))
                continue
            parts = [Entry([file]) for file in entry.files]
            rest = {}
            for key, other_entry in self._entries.items():
                rest.update(
                    {id(part): part for part in parts}
                    if other_entry is entry
                    else {key: other_entry}
                )
            for part in parts:
                part.files[0].entry = part
                if part.files[0] in files:
                    taken.append(rest.pop(id(part)))
            self._entries = rest
        return taken

    def _is_pure(self, path: str) -> bool:
        """Return whether a file does not have both learned rows and others."""
        file = self._files.get(path)
        return path not in self._mixed if file is None else file.status != BOTH

    def _rows(self, remove: Mapping[str, Any]) -> int:
        """Return the rows that a removed file had and that were not left out."""
        file = self._files.get(remove["path"])
        rows = self._learned.get(remove["path"], 0) if file is None else file.rows
        return max(0, rows - _n_masked(remove))

    def _count(self, losses: list[_Loss], info: Mapping[str, Any]) -> None:
        """Count what a commit did to rows that were learned, with its metrics if it has them.

        Metrics are of all rows, of which some may not have been learned. Where the operation is
        not known, fewer rows than before are a deletion of the difference, and as many or more an
        update of those that were there.
        """
        operation = str(info.get("operation") or "")
        metrics = {
            str(name).replace("_", "").lower(): value
            for name, value in (info.get("operationMetrics") or {}).items()
        }

        def metric(name: str) -> int | None:
            try:
                return int(metrics[name]) if name in metrics else None
            except (TypeError, ValueError):
                return None

        most = sum(loss.most for loss in losses)
        is_exact = all(loss.is_exact for loss in losses)
        if operation == "DELETE":
            named = metric("numdeletedrows")
            n = sum(loss.masked + min(loss.learned, _apart(loss)) for loss in losses)
            is_known = all(loss.is_pure and not loss.fresh for loss in losses)
            self.counts.add("deleted", n if named is None else min(n, named), is_known)
        elif operation == "UPDATE" and (updated := metric("numupdatedrows")) is not None:
            self.counts.add("updated", min(most, updated), is_exact)
        elif operation == "MERGE" and metric("numtargetrowsupdated") is not None:
            for name, key in (
                ("updated", "numtargetrowsupdated"),
                ("deleted", "numtargetrowsdeleted"),
            ):
                self.counts.add(name, min(most, metric(key) or 0), is_exact)
            self.counts.add("unlearned", metric("numtargetrowsinserted") or 0, True)
        elif operation and operation not in ("UPDATE", "MERGE"):
            self.counts.add("deleted", most, all(loss.is_pure for loss in losses))
            self.counts.add("unlearned", sum(loss.added for loss in losses), True)
        else:
            for loss in losses:
                self._count_unnamed(loss)

    def _count_unnamed(self, loss: _Loss) -> None:
        """Count a commit whose operation is not known."""
        is_masked = not loss.learned and not loss.fresh
        is_known = loss.is_exact or (loss.is_pure and not loss.added)
        self.counts.add("deleted", min(loss.most, loss.net), is_known)
        if is_masked or loss.net <= 0:
            # Not every row of a file that was written again is another one.
            updated = min(loss.most, loss.added)
            self.counts.add("updated", updated, loss.is_exact and is_masked)
        self.counts.add("unlearned", -loss.net, True)


def state_after(then: TableState, now: TableState, counts: Counts) -> TableState:
    """Return the state of a table now, with what it did to learned rows up to then and since."""
    return replace(
        now,
        deleted=then.deleted + counts.deleted,
        updated=then.updated + counts.updated,
        unlearned=then.unlearned + counts.unlearned,
        bounds=tuple(sorted({*then.bounds, *counts.bounds})),
    )


def changes_since(then: TableState, rows: Mapping[str, int], learned: Collection[str]) -> Changes:
    """Return the changes of a table since a state, none yet.

    Parameters
    ----------
    then : TableState
    rows : mapping of str to int
        Rows of the files of the stream, and of those that were in the table.
    learned : collection of str
        Files of the stream.
    """
    # Of those with rows that were not learned it is not known which they are.
    return Changes(rows, [path for path in rows if path not in learned] if then.unlearned else ())


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
        A file is gone and its rows are in others together with rows that were learned; or rows of
        it were updated together with such rows, and left out.
    """
    files = [file for entry in changes.entries() for file in entry.best(is_there)]
    gone = [file.path for file in files if not is_there(file.path)]
    if gone:
        raise DataError(
            f"{table}: {gone[0]} appended rows that the run has not learned; its file was deleted "
            f"({by}), and its rows are in files that hold learned rows too, which cannot be "
            "separated: restore the file, or train another run. A run that goes on before files "
            "are deleted does not come to this"
        )
    if torn := [file.path for file in files if file.is_torn]:
        raise DataError(
            f"{table}: rows of {torn[0]}, which the run has not learned, were updated by the same "
            "commit as learned ones, and left out where they were (merge-on-read): they cannot be "
            "separated. Train another run; one that goes on before rows are updated does not come "
            "to this"
        )
    return files


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


def appended_only(
    live: Collection[str], learned: Collection[str], masked: Collection[str]
) -> list[str] | None:
    """Return the live files beside learned ones; None if some of these may stand in their place.

    Parameters
    ----------
    live, learned : collection of str
    masked : collection of str
        Files of which rows are left out: whoever did that may have written them anew elsewhere.
    """
    appended = [path for path in live if path not in learned]
    is_rewritten = any(path not in live for path in learned)
    is_masked = bool(appended) and any(path in learned for path in masked)
    return None if is_rewritten or is_masked else appended


def _is_new(file: Added | None) -> TypeGuard[Added]:
    """Return whether a file has appended rows alone."""
    return file is not None and file.status == NEW


def _apart(loss: _Loss) -> int:
    """Return the rows of removed files that a deletion did not write again."""
    return max(0, loss.learned + loss.fresh - loss.added)


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
