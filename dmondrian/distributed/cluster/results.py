"""Results of tasks, fetched in the background (`Inbox`).

Relies on the client's event loop and on the scheduler, asked for each result by itself: Dask's own
gathering joins requests and runs a lost task again, so that one worker that hangs holds back the
results of all others, and a task pinned to a worker that died may be waited for in vain. Promises
that taking what has arrived never waits for a worker, that a result lost with its worker is said
to be lost, and that the scheduler may forget a task as soon as its result is taken, it is dropped
or the inbox is closed. A future left to the garbage collector would keep its task on the cluster
for as long as the traceback of some failure holds it.
"""

from __future__ import annotations

import asyncio
import queue
import time
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future

_Arrived = queue.SimpleQueue[tuple[str, Any, BaseException | None]]


class LostResultError(Exception):
    """A task was done, and its result was lost with the worker that held it."""


@dataclass(frozen=True)
class Arrival:
    """What became of one task."""

    key: str
    about: Any  # what `watch` was told
    result: Any  # None where there is an error
    error: BaseException | None  # what the task raised, or why there is no result


class Inbox:
    """Tasks under way, and the results of those that are done."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._watched: dict[str, tuple[Future, Any]] = {}
        self._arrived: _Arrived = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, future: Future, about: Any) -> str:
        """Fetch a task's result when it is there; return its key."""
        key = str(future.key)
        self._watched[key] = future, about
        future.add_done_callback(self._fetch)
        return key

    def take(self, timeout: float) -> Arrival | None:
        """Return what arrived first, after `timeout` seconds at most; None if nothing did."""
        end = time.monotonic() + timeout
        while True:
            try:
                left = max(0.0, end - time.monotonic())
                key, result, error = self._arrived.get(timeout=left)
            except queue.Empty:
                return None
            if key in self._watched:  # else it was dropped
                future, about = self._watched.pop(key)
                future.release()
                return Arrival(key, about, result, error)

    def drop(self, key: str) -> None:
        """Let go of a task; what comes of it all the same is never taken."""
        if key in self._watched:
            self._watched.pop(key)[0].release()

    def close(self) -> None:
        """Let go of all tasks."""
        for key in list(self._watched):
            self.drop(key)

    def _fetch(self, future: Future) -> None:
        """Have the event loop fetch a result; Dask calls this when the task is done."""
        loop = self._client.loop
        if loop is not None and str(future.key) in self._watched:
            loop.add_callback(_fetch, self._client, future, self._arrived)


async def _fetch(client: Client, future: Future, arrived: _Arrived) -> None:
    result, error = None, None
    try:
        result = await _result(client, future)
    except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001 - the taker judges it
        error = failure
    arrived.put((str(future.key), result, error))


async def _result(client: Client, future: Future) -> Any:
    """Return a result that the scheduler can get; raise what the task raised."""
    if future.status in ("error", "cancelled"):
        return await future  # raises at once
    assert client.scheduler is not None  # of an open client, which gave the future
    answer = await client.scheduler.gather(keys=[future.key])
    if answer["status"] != "OK":
        raise LostResultError("the result was lost with its worker")
    return answer["data"][future.key]
