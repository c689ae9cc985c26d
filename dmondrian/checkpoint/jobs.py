"""Jobs: what was handed over to a cluster, until it has ended.

::

    jobs/<id>.json    handed over; create-only
    jobs/<id>.stop    somebody asks it not to begin
    jobs/<id>.done    it has ended, and how

Relies on the job itself to say that it has ended; one whose cluster is gone never does.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from dmondrian.checkpoint import document
from dmondrian.store import Store

FOLDER = "jobs"
_MAX_BYTES = 2**20


@dataclass(frozen=True)
class Job:
    """A job that was handed over."""

    id: str
    began: float  # when it was handed over, seconds since the epoch, for people
    is_done: bool
    error: str | None  # why it failed


def hand_over(store: Store) -> str:
    """Note a new job; return its id, which sorts by time."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    job = f"{stamp}-{uuid.uuid4().hex[:16]}"
    store.put_new(f"{FOLDER}/{job}.json", document.seal({"began": time.time()}))
    return job


def end(store: Store, job: str, error: str | None = None) -> None:
    """Note that a job has ended."""
    store.put(f"{FOLDER}/{job}.done", document.seal({"ended": time.time(), "error": error}))


def ask_to_stop(store: Store, job: str) -> None:
    """Have a job that waits for a worker not begin."""
    store.put(f"{FOLDER}/{job}.stop", b"")


def is_asked_to_stop(store: Store, job: str) -> bool:
    """Whether somebody asked for that."""
    return store.exists(f"{FOLDER}/{job}.stop")


def newest(store: Store) -> Job | None:
    """Return the job that was handed over last; None where none ever was."""
    names = store.list(FOLDER)
    handed = sorted(name for name in names if name.endswith(".json"))
    if not handed:
        return None
    about = document.unseal(store.get(handed[-1], _MAX_BYTES), f"{handed[-1]} in {store.url}")
    done = handed[-1].removesuffix("json") + "done"
    error = None
    if done in names:
        found = document.unseal(store.get(done, _MAX_BYTES), f"{done} in {store.url}").get("error")
        error = None if found is None else str(found)
    job = handed[-1].removeprefix(f"{FOLDER}/").removesuffix(".json")
    return Job(job, float(about.get("began", 0.0)), done in names, error)
