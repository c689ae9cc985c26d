"""Lease: which process moves a run, so that two never do at once.

::

    lease/000001.json    a holder: host, process, when it began; create-only
    lease/000001.beat    its last sign of life and where it stands; written again and again
    lease/000001.stop    somebody asks it to save and stop

Whoever takes a run deletes what is left of holders but the last `KEPT`.

Relies on `Store.put_same` for the next number, and on no clock but its own: whoever wants a run
that is held watches whether the beat changes. Promises that one alone is given a number; that a
holder whose beat stands still for `LEASE_SECONDS`, or whose process on this machine is gone, is
taken over without a human; that it learns so before its next commit. A commit that slips through
all the same does no harm: the forest is a function of the stream, so it is the commit of the one
that took over.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dmondrian.checkpoint import document
from dmondrian.errors import CorruptError, FencedError, NotFoundError, StoreError
from dmondrian.store import Store

FOLDER = "lease"
BEAT_SECONDS = 2.0
"""Between two signs of life."""

LEASE_SECONDS = 15.0
"""How long a beat may stand still before its holder is taken for dead."""

KEPT = 32
"""Holders whose notes are kept, the newest."""

RUNNING, ENDED = "running", "ended"
_NAME = re.compile(rf"{FOLDER}/([0-9]{{6,18}})\.json")
_ANY = re.compile(rf"{FOLDER}/([0-9]{{6,18}})\.(json|beat|stop)")
_MAX_BYTES = 2**20


@dataclass(frozen=True)
class Holder:
    """Who holds, or held, a run; and its last sign of life."""

    number: int
    host: str
    pid: int
    job: str  # one command, however often it is started again
    began: float  # seconds since the epoch, for people
    is_gone: bool  # its process on this machine, before its beat was read: no other comes
    beat: Mapping[str, Any] | None  # None before the first

    @property
    def has_ended(self) -> bool:
        """Whether the holder wrote that it has ended; one that was killed wrote nothing."""
        return self.beat is not None and self.beat.get("state") == ENDED

    @property
    def is_over(self) -> bool:
        """Whether the holder has ended, or its process on this machine is gone."""
        return self.is_gone or self.has_ended

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def holder_of(store: Store) -> Holder | None:
    """Return who holds a run, or held it last; None where nobody ever did."""
    numbers = _numbers(store)
    return _read(store, numbers[-1]) if numbers else None


def holders(store: Store) -> list[Holder]:
    """Return the last `KEPT` who held a run, in order; their numbers count all that ever did."""
    last_holders = []
    for number in _numbers(store)[-KEPT:]:
        with suppress(NotFoundError):  # deleted meanwhile
            last_holders.append(_read(store, number))
    return last_holders


def ask_to_stop(store: Store, holder: Holder) -> None:
    """Have a holder save and stop."""
    store.put(f"{FOLDER}/{holder.number:06d}.stop", b"")


def check_free(store: Store) -> None:
    """Refuse a folder that another process works on; this one may.

    Raises
    ------
    FencedError
        Another process that is alive holds it.
    """
    holder = holder_of(store)
    if holder is None or holder.is_over:
        return
    if (holder.host, holder.pid) != (socket.gethostname(), os.getpid()):
        _wait_for_death(store, holder, is_patient=False)


class Lease:
    """A hold of a run, to be entered; made by `Lease.take`.

    Attributes
    ----------
    number : int
    is_asked_to_stop : bool
        Somebody called `ask_to_stop`.
    """

    def __init__(self, store: Store, number: int, is_asked_to_stop: bool = False) -> None:
        self.number = number
        self.is_asked_to_stop = is_asked_to_stop
        self._store = store
        self._progress: dict[str, Any] = {}
        self._timeline: list[Sequence[float]] = []
        self._events: list[Mapping[str, Any]] = []
        self._count = 0
        self._is_lost = False
        self._outcome: str | None = None
        self._error: str | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._live, name="dmondrian-lease", daemon=True)

    @classmethod
    def take(cls, store: Store, job: str | None = None) -> Lease:
        """Hold a run, after the holder before is dead or done.

        Parameters
        ----------
        store : Store
            Of the run's folder.
        job : str or None
            What stays the same when a command is started again by a machine: a request to stop
            that the one before did not live to see is then obeyed.

        Raises
        ------
        FencedError
            Another process that is alive holds the run.
        """
        job = job or uuid.uuid4().hex
        while True:
            before = holder_of(store)
            if before is not None and not before.is_over:
                _wait_for_death(store, before, is_patient=before.job == job)
            number = 1 if before is None else before.number + 1
            about = {
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "machine": _machine(),
                "started": _started(os.getpid()),
                "job": job,
                "began": time.time(),
            }
            try:
                store.put_same(f"{FOLDER}/{number:06d}.json", document.seal(about))
            except FencedError:
                continue  # somebody else was quicker; see whether that one lives
            if _delete_old(store, number) > number:
                continue  # so many were, while this one stood still, that the number was free again
            is_stopped = before is not None and before.job == job and _is_asked(store, before)
            return cls(store, number, is_stopped)

    def __enter__(self) -> Lease:
        self._beat(RUNNING)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.set()
        self._thread.join(timeout=LEASE_SECONDS)
        if not self._is_lost:
            self._beat(ENDED)

    def set_progress(
        self,
        progress: Mapping[str, Any],
        timeline: Sequence[Sequence[float]] = (),
        events: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Set the progress of the run, its timeline, and the newest events.

        The next beat carries them.
        """
        self._progress, self._timeline, self._events = dict(progress), list(timeline), list(events)

    def end(self, outcome: str, error: str | None = None) -> None:
        """Note how the work ended, for the last beat."""
        self._outcome, self._error = outcome, error

    def check(self, now: bool = True) -> None:
        """Make sure that the run is still held here.

        Parameters
        ----------
        now : bool
            Ask the store; else go by what the last beat saw.

        Raises
        ------
        FencedError
            Another process took the run over: this one was silent for too long.
        """
        if now:
            self._look()
        if self._is_lost:
            raise FencedError(
                f"another process took over {self._store.url} while this one gave no sign of life "
                f"for {LEASE_SECONDS:.0f} seconds; nothing is lost: it goes on from the last "
                "checkpoint"
            )

    def _live(self) -> None:
        while not self._ending.wait(BEAT_SECONDS):
            try:
                self._look()
            except StoreError:
                continue  # it may be back in a moment; a commit asks again
            if self._is_lost:
                return
            self._beat(RUNNING)

    def _look(self) -> None:
        names = self._store.list(FOLDER)
        self._is_lost = any(number > self.number for number in map(_number, names) if number)
        if f"{FOLDER}/{self.number:06d}.stop" in names:
            self.is_asked_to_stop = True

    def _beat(self, state: str) -> None:
        self._count += 1
        beat = {"count": self._count, "state": state, "at": time.time(), "told": self._progress}
        beat |= {"outcome": self._outcome, "error": self._error, "timeline": self._timeline}
        beat["events"] = self._events
        try:
            self._store.put(_beat_name(self.number), json.dumps(beat, default=str).encode())
        except StoreError:
            return  # silence is what a failing store makes of it; others see no difference


def _wait_for_death(store: Store, holder: Holder, is_patient: bool) -> None:
    """Return when a holder is dead; raise FencedError at its first sign of life, or wait on."""
    end = time.monotonic() + LEASE_SECONDS
    while time.monotonic() < end:
        time.sleep(BEAT_SECONDS / 4)
        now = holder_of(store)
        if now is None or now.number != holder.number or now.is_over:
            return
        if now.beat != holder.beat and is_patient:
            holder, end = now, time.monotonic() + LEASE_SECONDS
        elif now.beat != holder.beat:
            raise FencedError(
                f"{store.url} is being worked on by {now}: wait until it is done, or stop it with "
                f"`dmondrian cancel {store.url}`; when it dies, the same command takes over"
            )


def _numbers(store: Store) -> list[int]:
    return sorted(number for number in map(_number, store.list(FOLDER)) if number)


def _delete_old(store: Store, number: int) -> int:
    """Delete notes of holders long before a number; return the highest number that is there."""
    names = store.list(FOLDER)
    there = [(int(match[1]), match[0]) for match in map(_ANY.fullmatch, names) if match]
    store.delete(name for holder_number, name in there if holder_number <= number - KEPT)
    return max(number, *(_number(name) for name in names))


def _number(name: str) -> int:
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else 0


def _read(store: Store, number: int) -> Holder:
    name = f"{FOLDER}/{number:06d}.json"
    data = store.get(name, _MAX_BYTES)
    try:
        about = document.unseal(data, f"{name} in {store.url}")
    except CorruptError:
        # Nothing of the forest is in these notes, and the beat shows whether somebody works on it.
        about = {"host": "a machine that its damaged note does not name"}
    machine, started, pid = about.get("machine"), about.get("started"), int(about.get("pid", 0))
    is_here = machine is not None and str(machine) == _machine()
    is_gone = is_here and started is not None and _started(pid) != str(started)
    try:
        beat = json.loads(store.get(_beat_name(number), _MAX_BYTES))
    except (NotFoundError, ValueError):
        beat = None  # not yet, or it is being written
    return Holder(
        number=number,
        host=str(about.get("host")),
        pid=pid,
        job=str(about.get("job")),
        began=float(about.get("began", 0.0)),
        is_gone=is_gone,
        beat=beat if isinstance(beat, dict) else None,
    )


def _is_asked(store: Store, holder: Holder) -> bool:
    return store.exists(f"{FOLDER}/{holder.number:06d}.stop")


def _beat_name(number: int) -> str:
    return f"{FOLDER}/{number:06d}.beat"


def _machine() -> str | None:
    """Return a name of this boot and its numbering of processes; None where it has no name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """Moment a process of this machine began; None where there is none, or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
