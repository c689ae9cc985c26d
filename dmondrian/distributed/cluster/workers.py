"""Living workers, and which of them should hold a shard (`Fleet`).

Relies on the scheduler's list of all workers. Promises that lost shards alone are placed anew,
that shards go where the load per thread is least, that equal fleets place equally, and that a
cluster which grows on demand (`cluster.adapt`) sees a demand while there is no worker.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from distributed import Client, Future

from dmondrian.errors import ClusterError

POLL_SECONDS = 1.0
"""Between two looks at the scheduler's list; a task that ran elsewhere makes one at once."""

ABSENT_SECONDS = 120.0
"""How long a run waits for a first or a new worker, or for the scheduler to come back."""

ANSWER_SECONDS = 30.0
"""How long the scheduler may take to answer, and workers to say that they have heard something."""

_CLOSED = ("closing", "closed")  # a client that could not reconnect: it does not try again
_LEAVING = ("closing_gracefully", "closing")
_LIVING = ("running", "paused")  # a paused worker keeps its shards: it waits for memory


def _be_there() -> None:
    """Task: nothing, on any worker."""


class Fleet:
    """The living workers, by address."""

    def __init__(self, client: Client, patience: float = ABSENT_SECONDS) -> None:
        self._client = client
        self._patience = patience
        self._looked = -float("inf")
        self._seen = time.monotonic()
        self._n_living = 0  # workers that live, also those that stopped answering
        scheduler = getattr(client, "scheduler", None)  # None where it is closed
        self._address = str(getattr(scheduler, "address", "the scheduler"))
        self.is_connected = True  # to the scheduler, at the last look
        self._demand: Future | None = None  # a task that any worker may run, while there is none
        self.threads: dict[str, int] = {}  # living workers and their threads
        self.memory: dict[str, int] = {}  # their limits in bytes; 0 where there is none
        self.shunned: set[str] = set()  # workers that stopped answering

    def look(self, now: bool = False) -> bool:
        """Ask the scheduler, if it is time; True when it was asked.

        Raises
        ------
        ClusterError
            There was no worker, or no scheduler, for longer than the patience.
        """
        moment = time.monotonic()
        if not now and moment - self._looked < POLL_SECONDS:
            return False
        self._looked = moment
        found = self._ask()
        self.is_connected = self._client.status == "running"
        if found is not None:
            living = {a: int(w["nthreads"]) for a, w in found.items() if w["status"] in _LIVING}
            self.threads = {a: n for a, n in sorted(living.items()) if a not in self.shunned}
            self.memory = {a: int(found[a]["memory_limit"] or 0) for a in self.threads}
            self._n_living = len(living)
            self._ask_for_one()
        if found is not None and self.threads:
            self._seen = moment
        elif moment - self._seen > self._patience or self._client.status in _CLOSED:
            self._give_up(time.monotonic() - self._seen)
        return True

    @property
    def scheduler(self) -> str:
        """Address of the scheduler."""
        return self._address

    @property
    def seconds_left(self) -> float:
        """How long a run still waits for a worker, or for the scheduler to come back."""
        left = self._patience - (time.monotonic() - self._seen)
        if not self.is_connected:  # the client tries for as long as this, and then closes itself
            left = min(left, float(getattr(self._client, "_timeout", left)))
        return max(0.0, left)

    def _ask(self) -> Mapping[str, Any] | None:
        """Return what the scheduler says of all workers; None where it says nothing in time.

        Not by `Client.scheduler_info`: the client renews its answer by itself, without the
        workers, and whoever asks at that moment reads that there are none.
        """
        client = self._client
        if client.status != "running" or client.scheduler is None:
            return {}
        with suppress(OSError, TimeoutError):
            asked = client.sync(
                client.scheduler.identity, n_workers=-1, callback_timeout=ANSWER_SECONDS
            )
            return asked["workers"]
        return None

    def was_retired(self, address: str) -> bool:
        """Say whether this worker was told to leave, and said so: that is nobody's failure."""
        if self._client.status != "running" or self._client.scheduler is None:
            return False
        with suppress(OSError, TimeoutError):
            told = self._client.sync(
                self._client.scheduler.events, topic=address, callback_timeout=ANSWER_SECONDS
            )
            return any(event.get("status") in _LEAVING for _, event in told)
        return False

    def _ask_for_one(self) -> None:
        """Have a task wait for a worker while there is none: orders are pinned, and call nobody."""
        if self._n_living:
            self.close()
        elif self._demand is None and self._client.status == "running":
            key = f"dmondrian-demand-{uuid.uuid4().hex}"
            self._demand = self._client.submit(_be_there, key=key, pure=False)

    def close(self) -> None:
        """Leave no task behind."""
        if self._demand is not None:
            self._demand.release()
            self._demand = None

    def _give_up(self, seconds: float) -> None:
        what_to_do = "start workers and run the same command again"
        if self._client.status != "running":
            what = f"lost the connection to {self.scheduler} and it did not come back"
            what_to_do = "when there is a scheduler, run the same command again"
        elif self._n_living:
            what = f"none of the {self._n_living} workers of {self.scheduler} answers"
        else:
            what = f"{self.scheduler} has no workers"
        raise ClusterError(
            f"{what} for {seconds:.0f} seconds; {what_to_do}: it goes on from the last checkpoint"
        )

    def tell(self, addresses: Sequence[str], task: Callable[..., Any], *args: Any) -> None:
        """Have workers run a coroutine function; who cannot be reached in time is not told."""
        if not addresses or self._client.status != "running":
            return

        with suppress(OSError, TimeoutError):
            self._client.sync(self._tell, addresses, task, args, callback_timeout=ANSWER_SECONDS)

    def ask(
        self, task: Callable[..., Any], *args: Any, seconds: float = ANSWER_SECONDS
    ) -> dict[str, Any]:
        """Have all workers run a coroutine function; return what came back in time, by address."""
        if self._client.status != "running":
            return {}
        with suppress(OSError, TimeoutError):
            asked = sorted(self.threads)
            return self._client.sync(
                self._gather, asked, task, args, seconds, callback_timeout=2 * seconds
            )
        return {}

    async def _gather(
        self, addresses: Sequence[str], task: Callable[..., Any], args: Sequence[Any], wait: float
    ) -> dict[str, Any]:
        """Ask each worker by itself: one that hangs must not hold back the others' answers."""
        asked = {
            asyncio.create_task(
                self._client.run(task, *args, workers=[address], on_error="raise")
            ): address
            for address in addresses
        }
        done, late = await asyncio.wait(asked, timeout=wait) if asked else (set(), set())
        for one in late:
            one.cancel()
        return {asked[one]: one.result()[asked[one]] for one in done if one.exception() is None}

    def leave_word(self, task: Callable[..., Any], *args: Any) -> None:
        """Have workers that stopped answering run a coroutine function should they wake soon.

        Waits for none of them: the scheduler keeps the word for as long as it tries to connect.
        """
        loop = self._client.loop
        if self.shunned and loop is not None and self._client.status == "running":
            loop.add_callback(self._tell, sorted(self.shunned), task, args)

    async def _tell(
        self, addresses: Sequence[str], task: Callable[..., Any], args: Sequence[Any]
    ) -> None:
        with suppress(OSError, asyncio.CancelledError):
            await self._client.run(
                task, *args, workers=list(addresses), on_error="ignore", wait=False
            )

    def place(self, load: Mapping[str, int]) -> str | None:
        """Worker for one more shard: the least loaded per thread; None without workers.

        Parameters
        ----------
        load : mapping of str to int
            Shards that each worker holds.
        """
        if not self.threads:
            return None
        return min(self.threads, key=lambda a: ((load.get(a, 0) + 1) / self.threads[a], a))

    def better(self, address: str, load: Mapping[str, int]) -> str | None:
        """Worker that one of the shards at `address` should move to, if that lightens the load.

        A move costs a restore and a short replay, so the heaviest worker must gain by it.
        """
        target = self.place(load)
        if target is None or target == address or address not in self.threads:
            return None
        now = load.get(address, 0) / self.threads[address]
        then = (load.get(target, 0) + 1) / self.threads[target]
        return target if then < now else None
