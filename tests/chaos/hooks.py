"""What happens inside a worker process: it dies, fails or swells at the n-th call of something.

These functions are sent by `Client.run`. Relies on the names it replaces being looked up at each
call. Promises that a hook strikes once and that `disarm` puts everything back.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dmondrian.checkpoint import Run
from dmondrian.distributed.worker import tasks
from dmondrian.forest.forest import Forest

_replaced: list[tuple[Any, str, Any]] = []
_MOMENTS: dict[str, tuple[Any, str]] = {
    "update": (Forest, "update"),
    "read": (tasks, "read_chunk"),
    "upload": (Run, "put_blob"),
    "restore": (Run, "get_blob"),
    "learn": (tasks, "_learn"),
}


def die() -> None:
    """End this process as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def _replace(moment: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    owner, name = _MOMENTS[moment]
    before = getattr(owner, name)
    _replaced.append((owner, name, before))
    setattr(owner, name, make(before))


def disarm() -> None:
    """Put back what was replaced."""
    while _replaced:
        owner, name, before = _replaced.pop()
        setattr(owner, name, before)


def arm_kill(moment: str, nth: int, delay: float, is_after: bool = False) -> None:
    """Die at the n-th call: `delay` seconds into it, or right after it."""
    calls = iter(range(1, nth + 1))

    def make(before: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            is_now = next(calls, None) == nth
            if is_now and not is_after:
                if delay == 0.0:
                    die()
                threading.Timer(delay, die).start()
            result = before(*arguments, **options)
            if is_now and is_after:
                die()
            return result

        return call

    _replace(moment, make)


def arm_raise(nth: int) -> None:
    """Fail amid the n-th block learned: the trees have learned rows that are none of the stream."""
    calls = iter(range(1, nth + 1))

    def make(before: Callable[..., Any]) -> Callable[..., Any]:
        def call(plan: Any, shard: Any, *arguments: Any) -> Any:
            if next(calls, None) == nth:
                n_features = shard.forest.parameters.n_features
                shard.forest.update(np.full((3, n_features), 0.5, np.float32), np.zeros(3))
                raise FloatingPointError("half way")
            return before(plan, shard, *arguments)

        return call

    _replace("learn", make)


def swell(n_bytes: int) -> None:
    """Use that much memory, beside whatever else this process does, until it is ended."""

    def hold() -> None:
        hog = np.ones(n_bytes, dtype=np.uint8)
        while hog[0]:
            time.sleep(1.0)

    threading.Thread(target=hold, daemon=True).start()


def holds(dask_worker: Any, url: str) -> bool:
    """Return whether a worker holds anything of a run."""
    holder = dask_worker.plugins.get(tasks.PLUGIN)
    return holder is not None and url in holder.registry._runs


def tasks_known(dask_scheduler: Any) -> int:
    """Return how many tasks the scheduler remembers."""
    return len(dask_scheduler.tasks)
