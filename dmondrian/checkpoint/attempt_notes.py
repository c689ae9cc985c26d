"""Notes of attempts at a run: hosts, times and outcomes, which no other object has.

::

    attempts/<time>-<id>.json    an attempt, noted when it ended
    earlier.json                 beside them: sums over attempts whose notes are deleted

Relies on the run's lease, so that one process writes them. Promises that of a run that is followed
for years few notes are there; and that each attempt is counted once, whatever ends a process that
puts notes together: those that are counted in the sums are named there until they are deleted.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from dmondrian.checkpoint import document
from dmondrian.errors import CorruptError, NotFoundError
from dmondrian.store import Store

FOLDER = "attempts"
EARLIER_NAME = f"{FOLDER}/earlier.json"
KEPT = 32
"""Notes that are kept; twice as many are there before old ones are put together."""


@dataclass(frozen=True)
class Work:
    """Totals of the attempts at a run: their number, their time, their seconds of work."""

    began: float | None  # of the first one, seconds since 1970
    ended: float | None  # of the last one
    seconds: float  # of work
    attempts: int

    def to_json(self) -> dict[str, Any]:
        """Return the note as JSON values."""
        return dict(vars(self))


def add_note(store: Store, info: Mapping[str, Any]) -> str:
    """Note one attempt; return its id."""
    # Names are in order of time; two attempts may end within a second.
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    attempt_id = f"{stamp}-{uuid.uuid4().hex[:8]}"
    store.put(f"{FOLDER}/{attempt_id}.json", document.seal(info))
    names = _names(store)
    if len(names) >= 2 * KEPT:
        _put_together(store, names[:-KEPT])
    return attempt_id


def notes_of(store: Store) -> list[dict[str, Any]]:
    """Return what the newest attempts noted, in order; a damaged note is left out."""
    counted = _earlier(store)[1]
    return [note for name, note in _read(store, _names(store)) if name not in counted]


def work_of(store: Store) -> Work | None:
    """Return what all attempts add up to; None where none is noted."""
    earlier, _ = _earlier(store)
    return _sum(earlier, notes_of(store))


def _put_together(store: Store, names: Sequence[str]) -> None:
    """Count notes in the sums, then delete them."""
    earlier, counted = _earlier(store)
    notes = [note for name, note in _read(store, names) if name not in counted]
    total = _sum(earlier, notes)
    if total is not None:
        store.put(EARLIER_NAME, document.seal({**total.to_json(), "counted": [*names]}))
    store.delete(names)


def _sum(earlier: Work | None, notes: Sequence[Mapping[str, Any]]) -> Work | None:
    for note in notes:
        summary = note.get("summary")
        if not isinstance(summary, dict):  # of another version
            continue
        work = Work(note.get("began"), note.get("ended"), float(summary.get("seconds", 0.0)), 1)
        if earlier is None:
            earlier = work
        else:
            seconds, n = earlier.seconds + work.seconds, earlier.attempts + 1
            earlier = replace(work, began=earlier.began, seconds=seconds, attempts=n)
    return earlier


def _names(store: Store) -> list[str]:
    return [name for name in store.list(FOLDER) if name != EARLIER_NAME]


def _read(store: Store, names: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    notes = []
    for name in names:
        with suppress(CorruptError, NotFoundError):
            notes.append((name, document.unseal(store.get(name), name)))
    return notes


def _earlier(store: Store) -> tuple[Work | None, set[str]]:
    """Return the sums, and the names of notes that are counted in them and may still be there."""
    try:
        stored = document.unseal(store.get(EARLIER_NAME, document.MAX_BYTES), EARLIER_NAME)
        work = Work(
            stored["began"], stored["ended"], float(stored["seconds"]), int(stored["attempts"])
        )
        return work, {str(name) for name in stored["counted"]}
    except (CorruptError, NotFoundError, LookupError, TypeError, ValueError):
        return None, set()
