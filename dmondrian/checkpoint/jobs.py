"""Jobs: what was handed over to a cluster, until it has ended.

::

    jobs/<id>.json    handed over; create-only
    jobs/<id>.stop    somebody asks it not to begin, or to score no more
    jobs/<id>.beat    it scores: its last sign of life, written again and again
    jobs/<id>.done    it has ended, and how

Relies on the job itself to note that it has ended; one whose cluster is gone never does.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dmondrian.checkpoint import document
from dmondrian.errors import NotFoundError
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
    is_stopped: bool = False  # it ended because somebody asked it to
    scoring: Mapping[str, Any] | None = None  # the beat of one that scores: a count, rows, n_rows


def hand_over(store: Store) -> str:
    """Note a new job; return its id, which sorts by time."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    job = f"{stamp}-{uuid.uuid4().hex[:16]}"
    store.put_same(f"{FOLDER}/{job}.json", document.seal({"began": time.time()}))
    return job


def end(store: Store, job: str, error: str | None = None, is_stopped: bool = False) -> None:
    """Note that a job has ended."""
    about = {"ended": time.time(), "error": error, "stopped": is_stopped}
    store.put(f"{FOLDER}/{job}.done", document.seal(about))


def beat(store: Store, job: str, about: Mapping[str, Any]) -> None:
    """Give a sign of life of a job that scores."""
    store.put(f"{FOLDER}/{job}.beat", json.dumps(about).encode())


def ask_to_stop(store: Store, job: str) -> None:
    """Have a job that waits for a worker not begin, and one that scores leave the rest."""
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
    return _read(store, names, handed[-1].removeprefix(f"{FOLDER}/").removesuffix(".json"))


def find(store: Store, job: str) -> Job:
    """Return a job by its id."""
    return _read(store, store.list(FOLDER), job)


def _read(store: Store, names: Collection[str], job: str) -> Job:
    name = f"{FOLDER}/{job}"
    about = _document(store, f"{name}.json")
    done = _document(store, f"{name}.done") if f"{name}.done" in names else {}
    error = done.get("error")
    return Job(
        job,
        float(about.get("began", 0.0)),
        f"{name}.done" in names,
        None if error is None else str(error),
        done.get("stopped") is True,
        _beat(store, f"{name}.beat") if f"{name}.beat" in names else None,
    )


def _document(store: Store, name: str) -> dict[str, Any]:
    return document.unseal(store.get(name, _MAX_BYTES), f"{name} in {store.url}")


def _beat(store: Store, name: str) -> dict[str, Any]:
    try:
        content = json.loads(store.get(name, _MAX_BYTES))
    except (NotFoundError, ValueError):
        return {}  # it is being written
    return content if isinstance(content, dict) else {}
