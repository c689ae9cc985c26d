"""Queue of task results that are fetched in the background.

Relies on the client's event loop and on the scheduler, which is asked for each result separately:
Dask's own gathering merges requests and reruns lost tasks, so that one hanging worker delays the
results of all others, and a task pinned to a dead worker may be waited for forever. Promises that
`take` never waits for a worker, that a result lost with its worker is reported as lost, and that
the scheduler may forget a task as soon as its result is taken, it is dropped or the queue is
closed. A future left to the garbage collector would keep its task on the cluster for as long as the
traceback of some failure holds it.
"""

from __future__ import annotations

import asyncio
import queue
import time
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future

_FinishedTasks = queue.SimpleQueue[tuple[str, Any, BaseException | None]]


class LostResultError(Exception):
    """A task was finished, but its result was lost with the worker that held it."""


@dataclass(frozen=True)
class FinishedTask:
    """Result or error of one task."""

    key: str
    context: Any  # as passed to `watch`
    result: Any  # None if there is an error
    error: BaseException | None  # what the task raised, or why there is no result


class ResultQueue:
    """Results of watched tasks, in order of completion."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._watched: dict[str, tuple[Future, Any]] = {}
        self._finished: _FinishedTasks = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, future: Future, context: Any) -> str:
        """Fetch a task's result when it is finished; return its key."""
        key = str(future.key)
        self._watched[key] = future, context
        future.add_done_callback(self._fetch)
        return key

    def take(self, timeout: float) -> FinishedTask | None:
        """Return the next finished task, within `timeout` seconds; None if there is none."""
        end = time.monotonic() + timeout
        while True:
            try:
                left = max(0.0, end - time.monotonic())
                key, result, error = self._finished.get(timeout=left)
            except queue.Empty:
                return None
            if key in self._watched:  # otherwise it was dropped
                future, context = self._watched.pop(key)
                future.release()
                return FinishedTask(key, context, result, error)

    def drop(self, key: str) -> None:
        """Release a task; its result, if there is one, is ignored."""
        if key in self._watched:
            self._watched.pop(key)[0].release()

    def close(self) -> None:
        """Release all tasks."""
        for key in list(self._watched):
            self.drop(key)

    def _fetch(self, future: Future) -> None:
        """Fetch a result in the event loop; Dask calls this when the task is finished."""
        loop = self._client.loop
        if loop is not None and str(future.key) in self._watched:
            loop.add_callback(_fetch, self._client, future, self._finished)


async def _fetch(client: Client, future: Future, finished: _FinishedTasks) -> None:
    result, error = None, None
    try:
        result = await _result(client, future)
    except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001 - whoever takes the result handles it
        error = failure
    finished.put((str(future.key), result, error))


async def _result(client: Client, future: Future) -> Any:
    """Return a task's result, fetched by the scheduler; raise what the task raised."""
    if future.status in ("error", "cancelled"):
        return await future  # raises at once
    assert client.scheduler is not None  # the client is open: it made the future
    answer = await client.scheduler.gather(keys=[future.key])
    if answer["status"] != "OK":
        raise LostResultError("the result was lost with its worker")
    return answer["data"][future.key]
