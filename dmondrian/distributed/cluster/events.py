"""Events of an attempt: losses and what is done about them, restarts.

Relies on the logger "dmondrian", whose records the command line shows and writes as JSON. Promises
that each event is logged once, when it happens (WARNING where something was lost or failed, else
INFO), with its values as the record's ``event``; to keep the newest for processes that follow the
run; and that a caller's listener is called with each, in the thread that trains.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger("dmondrian")
_NAMED = 6  # numbers listed; more are counted

CALLED = (
    "checkpoint", "held_out", "held_out_failed", "resuming", "worker_lost", "worker_joined",
    "worker_retired", "no_workers", "scheduler_lost", "scheduler_back", "shard_failed", "restored",
)  # fmt: skip
"""Kinds of events that an address or command can be called with, beside those of alerts."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a run.

    Attributes
    ----------
    kind : str
        "window": rows were learned, with "row", and "metrics" of the last ones; "checkpoint": one
        was committed, with "position" and "is_final"; "held_out": it was evaluated on held-out
        data; "alert", "alert_over" and "alert_failed": of conditions; "resuming", "worker_lost",
        "worker_joined", "worker_retired", "no_workers", "scheduler_lost", "scheduler_back",
        "shard_failed", "restored" and "held_out_failed".
    text : str
        A line for people.
    at : float
        Seconds since the epoch.
    values : dict
        More for programs, JSON-able.
    """

    kind: str
    text: str
    at: float
    values: dict[str, Any]


EventListener = Callable[[Event], object]


class Events:
    """The newest events of an attempt.

    Parameters
    ----------
    listener : callable or None
        Called with each :class:`Event`; what it raises ends the attempt.
    """

    most = 20

    def __init__(self, listener: EventListener | None = None) -> None:
        self._listener = listener
        self._kept: deque[dict[str, Any]] = deque(maxlen=self.most)
        self._count = 0

    def add(self, kind: str, text: str, is_loss: bool = True, **values: Any) -> None:
        """Log an event.

        Parameters
        ----------
        kind : str
            Its name in JSON, such as "worker_lost".
        text : str
            One line for people; a loss is prefixed with the time of day.
        is_loss : bool
            Whether something was lost or failed.
        **values
            More for programs, JSON-able.
        """
        at = time.time()
        if is_loss:
            text = f"{time.strftime('%H:%M:%S', time.localtime(at))} {text}"
        self._count += 1
        event = {"event": kind, "text": text, "at": at, **values}
        self._kept.append({"number": self._count, **event})
        _log.log(logging.WARNING if is_loss else logging.INFO, "%s", text, extra={"event": event})
        if self._listener is not None:
            self._listener(Event(kind, text, at, values))

    def notify(self, kind: str, text: str, **values: Any) -> None:
        """Call the listener alone: what happens again and again is neither logged nor kept."""
        if self._listener is not None:
            self._listener(Event(kind, text, time.time(), values))

    def newest(self) -> list[dict[str, Any]]:
        """Return the events that are kept, in order; each has a "number", counted from 1."""
        return list(self._kept)


def listed(what: str, numbers: Sequence[int]) -> str:
    """Return "shard 3" or "shards 1, 3 and 9", and a count where there are many."""
    first = [str(number) for number in numbers[:_NAMED]]
    if len(numbers) > _NAMED:
        return f"{what}s {', '.join(first)} and {len(numbers) - _NAMED} more"
    if len(numbers) == 1:
        return f"{what} {first[0]}"
    return f"{what}s {', '.join(first[:-1])} and {first[-1]}" if numbers else f"no {what}"


def counted(n: int, what: str) -> str:
    """Return "1 worker" or "2 workers"."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"
