"""The living workers of a cluster, and the placement of shards on them.

A lost worker is noticed in `Workers.refresh`, which polls the scheduler: each second, or, after
`follow`, when it reported that workers came or went, and now and again.

Relies on the scheduler's list of workers. Promises that shards go where the load per thread is
least, that equal sets of workers place equally, that an adaptive cluster (`cluster.adapt`) sees
demand while there is no worker, and that a local one restarts those that it gave up.
"""

from __future__ import annotations

import asyncio
import heapq
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from distributed import Client, Future

from dmondrian.distributed.cluster.local_restarts import LocalRestarts
from dmondrian.errors import ClusterError

POLL_SECONDS = 1.0
"""Least seconds between two polls of the scheduler, unless a task fails with its worker."""

AUDIT_SECONDS = 30.0
"""Most seconds between two polls, where the scheduler reports changes."""

_SUBSCRIBING = 5.0  # seconds until a scheduler surely reports changes
_TOPIC = "all"  # of the scheduler's events

ABSENT_SECONDS = 120.0
"""How long a run waits for a first or a new worker, or for the scheduler to return."""

REPLY_SECONDS = 30.0
"""How long the scheduler and the workers may take to reply."""

_CLOSED = ("closing", "closed")  # a client that failed to reconnect does not try again
_LEAVING = ("closing_gracefully", "closing")
_LIVING = ("running", "paused")  # a paused worker waits for memory and keeps its shards


def _do_nothing() -> None:
    """Task without effect, which any worker may run."""


class _Changes:
    """Counter of workers that came or went, as the scheduler reports it to one client."""

    def __init__(self) -> None:
        self.count = 0
        self.users = 0  # `Workers` that look at the count

    def __call__(self, event: tuple[float, Any]) -> None:
        _, about = event
        if isinstance(about, dict) and about.get("action") in ("add-worker", "remove-worker"):
            self.count += 1


class Workers:
    """The living workers of a cluster, by address.

    Parameters
    ----------
    client : Client
    patience : float
        Seconds without workers or scheduler after which `refresh` raises.
    """

    def __init__(self, client: Client, patience: float = ABSENT_SECONDS) -> None:
        self._client = client
        self._patience = patience
        self._refreshed = self._polled = -float("inf")
        self._follows = False
        self._changes: _Changes | None = None  # reported to the client; None if none are
        self._n_changes = 0  # those before the last poll
        self._subscribed = 0.0  # monotonic seconds
        self._seen = time.monotonic()
        self._n_living = 0  # living workers, including unresponsive ones
        scheduler = getattr(client, "scheduler", None)  # None where it is closed
        self._address = str(getattr(scheduler, "address", "the scheduler"))
        self.is_connected = True  # to the scheduler, at the last poll
        self._demand: Future | None = None  # a pending task, while there is no worker
        self._restarts = LocalRestarts(client)
        self.threads: dict[str, int] = {}  # threads of each living worker
        self.memory: dict[str, int] = {}  # memory limit of each in bytes; 0 for none
        self.used: dict[str, int] = {}  # memory that each used at the last poll, in bytes
        self.unresponsive: set[str] = set()  # workers that stopped replying

    def refresh(self, now: bool = False) -> bool:
        """Look for changes if it is time to; return whether it was.

        The scheduler is polled if it reported a change, for an audit, and where there are no
        workers or it reports nothing.

        Parameters
        ----------
        now : bool
            Poll it in any case.

        Raises
        ------
        ClusterError
            There was no worker, or no scheduler, for longer than `patience`.
        """
        moment = time.monotonic()
        if not now and moment - self._refreshed < POLL_SECONDS:
            return False
        self._refreshed = moment
        if not now and self._is_known(moment):
            self._seen = moment
            return True
        self._polled = moment
        self._n_changes = 0 if self._changes is None else self._changes.count
        infos = self._query_scheduler()
        was_connected, self.is_connected = self.is_connected, self._client.status == "running"
        if self._follows and self.is_connected and not (was_connected and self._is_subscribed()):
            self._subscribe(moment)
        if infos is not None:
            living = {a: int(w["nthreads"]) for a, w in infos.items() if w["status"] in _LIVING}
            self.threads = {a: n for a, n in sorted(living.items()) if a not in self.unresponsive}
            self.memory = {a: int(infos[a]["memory_limit"] or 0) for a in self.threads}
            self.used = {
                a: int((infos[a].get("metrics") or {}).get("memory") or 0) for a in self.threads
            }
            self._n_living = len(living)
            self._request_worker()
            self._restarts.look(self._n_living)
        if infos is not None and self.threads:
            self._seen = moment
        elif moment - self._seen > self._patience or self._client.status in _CLOSED:
            self._give_up(time.monotonic() - self._seen)
        return True

    def follow(self) -> None:
        """Have the scheduler report changes, and poll it seldom, until `close`."""
        self._follows = True

    def _is_subscribed(self) -> bool:
        """Return whether the client still takes in events for these workers."""
        handlers = getattr(self._client, "_event_handlers", {})
        return self._changes is not None and handlers.get(_TOPIC) is self._changes

    def _subscribe(self, moment: float) -> None:
        """Have the scheduler report changes, unless the client has another use for its events."""
        there = getattr(self._client, "_event_handlers", {}).get(_TOPIC)
        if there is None or isinstance(there, _Changes):  # one for all runs of a client
            if self._changes is None:
                self._changes = there or _Changes()
                self._changes.users += 1
            self._n_changes, self._subscribed = self._changes.count, moment
            self._client.subscribe_topic(_TOPIC, self._changes)

    def _is_known(self, moment: float) -> bool:
        """Return whether the workers are as they were at the last poll, as far as was reported."""
        return (
            self._changes is not None
            and self._is_subscribed()
            and self._changes.count == self._n_changes
            and self._polled >= self._subscribed + _SUBSCRIBING
            and moment < self._polled + AUDIT_SECONDS
            and bool(self.threads)
            and self.is_connected
            and self._client.status == "running"
        )

    @property
    def scheduler(self) -> str:
        """Address of the scheduler."""
        return self._address

    @property
    def seconds_left(self) -> float:
        """Seconds for which a run still waits for a worker, or for the scheduler to return."""
        left = self._patience - (time.monotonic() - self._seen)
        if not self.is_connected:  # the client gives up after its timeout and closes itself
            left = min(left, float(getattr(self._client, "_timeout", left)))
        return max(0.0, left)

    def _query_scheduler(self) -> Mapping[str, Any] | None:
        """Return the scheduler's records of all workers; None if it does not reply in time.

        Not by `Client.scheduler_info`: the client refreshes that record in the background without
        the workers, so that at times it shows none.
        """
        client = self._client
        if client.status != "running" or client.scheduler is None:
            return {}
        with suppress(OSError, TimeoutError):
            asked = client.sync(
                client.scheduler.identity, n_workers=-1, callback_timeout=REPLY_SECONDS
            )
            return asked["workers"]
        return None

    def was_retired(self, address: str) -> bool:
        """Return whether this worker was retired by the cluster: that is no failure."""
        if self._client.status != "running" or self._client.scheduler is None:
            return False
        with suppress(OSError, TimeoutError):
            events = self._client.sync(
                self._client.scheduler.events, topic=address, callback_timeout=REPLY_SECONDS
            )
            return any(event.get("status") in _LEAVING for _, event in events)
        return False

    def _request_worker(self) -> None:
        """Keep a task pending while there is no worker: pinned orders alone show no demand."""
        if self._n_living:
            self._release()
        elif self._demand is None and self._client.status == "running":
            key = f"dmondrian-demand-{uuid.uuid4().hex}"
            self._demand = self._client.submit(_do_nothing, key=key, pure=False)

    def close(self) -> None:
        """Release the pending task, if any, and have no more changes reported."""
        self._release()
        self._follows = False
        if self._changes is not None:
            self._changes.users -= 1
            if (
                self._is_subscribed()
                and not self._changes.users
                and self._client.status == "running"
            ):
                self._client.unsubscribe_topic(_TOPIC)
            self._changes = None

    def _release(self) -> None:
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
            if self._restarts.n_wanted:
                what_to_do = f"{self._restarts.what_was_done()}; run the same command again"
        raise ClusterError(
            f"{what} for {seconds:.0f} seconds; {what_to_do}: it goes on from the last checkpoint"
        )

    def run_on(self, addresses: Sequence[str], task: Callable[..., Any], *args: Any) -> None:
        """Run a coroutine function on workers, without waiting for it; skip unreachable ones."""
        if not addresses or self._client.status != "running":
            return

        with suppress(OSError, TimeoutError):
            self._client.sync(self._run_on, addresses, task, args, callback_timeout=REPLY_SECONDS)

    def query(
        self, task: Callable[..., Any], *args: Any, seconds: float = REPLY_SECONDS
    ) -> dict[str, Any]:
        """Run a coroutine function on all workers; return the results in time, by address."""
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
        """Query each worker separately: one that hangs must not delay the others' results."""
        replies = {
            asyncio.create_task(
                self._client.run(task, *args, workers=[address], on_error="raise")
            ): address
            for address in addresses
        }
        done, late = await asyncio.wait(replies, timeout=wait) if replies else (set(), set())
        for reply in late:
            reply.cancel()
        return {
            replies[reply]: reply.result()[replies[reply]]
            for reply in done
            if reply.exception() is None
        }

    def run_on_unresponsive(self, task: Callable[..., Any], *args: Any) -> None:
        """Run a coroutine function on unresponsive workers if they recover soon.

        Waits for none of them: the scheduler keeps the call while it tries to connect.
        """
        loop = self._client.loop
        if self.unresponsive and loop is not None and self._client.status == "running":
            loop.add_callback(self._run_on, sorted(self.unresponsive), task, args)

    async def _run_on(
        self, addresses: Sequence[str], task: Callable[..., Any], args: Sequence[Any]
    ) -> None:
        with suppress(OSError, asyncio.CancelledError):
            await self._client.run(
                task, *args, workers=list(addresses), on_error="ignore", wait=False
            )

    def places(self, load: Mapping[str, int], n_shards: int) -> list[str]:
        """Return the workers for more shards, each the least loaded per thread then.

        Takes O(workers + shards log workers).

        Parameters
        ----------
        load : mapping of str to int
            Shards that each worker holds.
        n_shards : int

        Returns
        -------
        list of str
            An address for each shard; empty without workers.
        """
        lightest = _LightestFirst(self.threads, load)
        return [lightest.take() for _ in range(n_shards if self.threads else 0)]

    def moves(self, places: Mapping[int, str], shards: Iterable[int]) -> Iterator[tuple[int, str]]:
        """Return shards that should move to another worker, each with its address.

        A move costs a restore and a short replay, so the more loaded worker must gain by it.

        Parameters
        ----------
        places : mapping of int to str
            Worker of each shard that has one.
        shards : iterable of int
            Those that may move, in the order in which they are tried.
        """
        load = Counter(places.values())
        lightest = _LightestFirst(self.threads, load)
        for shard in shards:
            address = places[shard]
            if address in self.threads:
                now = lightest.load[address] / self.threads[address]
                if lightest.next_load < now:
                    lightest.give_back(address)
                    yield shard, lightest.take()


class _LightestFirst:
    """Workers by their load per thread with one more shard, the least first; equal ones by address.

    Parameters
    ----------
    threads : mapping of str to int
        Of each worker.
    load : mapping of str to int
        Shards that each worker holds.
    """

    def __init__(self, threads: Mapping[str, int], load: Mapping[str, int]) -> None:
        self._threads = threads
        self.load = {address: load.get(address, 0) for address in threads}
        self._heap = [(self._key(address), address) for address in threads]
        heapq.heapify(self._heap)

    def _key(self, address: str) -> float:
        return (self.load[address] + 1) / self._threads[address]

    @property
    def next_load(self) -> float:
        """Shards per thread that the lightest worker has with one more."""
        while self._heap[0][0] != self._key(self._heap[0][1]):  # its load has changed since
            heapq.heappop(self._heap)
        return self._heap[0][0]

    def take(self) -> str:
        """Return the lightest worker, which gets a shard."""
        assert self.next_load > 0.0
        address = self._heap[0][1]
        self._change(address, 1)
        return address

    def give_back(self, address: str) -> None:
        """Take a shard from a worker."""
        self._change(address, -1)

    def _change(self, address: str, difference: int) -> None:
        self.load[address] += difference
        heapq.heappush(self._heap, (self._key(address), address))
