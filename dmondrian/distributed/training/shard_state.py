"""Where each shard stands, as the coordinator sees it, and the bounds of a run.

Relies on nothing; promises nothing: it is the coordinator's notebook.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dmondrian.distributed.worker.messages import FAILED, GAP, GONE, MOVED, Answer
from dmondrian.errors import (
    ClusterError,
    DMondrianError,
    NotFoundError,
    OutageError,
    StoreError,
)

if TYPE_CHECKING:
    from dmondrian.checkpoint.summary import Summary
    from dmondrian.distributed.cluster.results import Arrival

_LONGEST_WAIT = 10.0  # seconds between two tries
_OUTAGE = OutageError.__name__
_OF_STORES = {kind.__name__ for kind in (StoreError, NotFoundError, OutageError)}


@dataclass(frozen=True)
class Limits:
    """Bounds of a run; none of them changes a forest."""

    window: int = 4  # units that the fastest shard may be ahead of the last settled one
    depth: int = 2  # steps of one shard under way: one runs, one waits at the worker
    losses: int = 8  # workers that a shard may lose in a row without getting further; those that
    # the cluster retired do not count
    tries: int = 4  # failures of a shard in a row before the run gives up
    outage: float = 90.0  # seconds that reads of remote data may fail before the run gives up
    silence: float = 900.0  # seconds without an answer after which a worker is given up


@dataclass
class Track:
    """Where one shard stands."""

    shard: int
    base: int  # unit that follows the newest saved state
    digest: str | None  # blob of that state; None for empty trees
    n_bytes: int = 0  # size of that blob
    summary: Summary | None = None  # of its trees, where this attempt saved them
    address: str | None = None  # worker that holds it
    is_held: bool = False  # restored there
    done: int = 0  # unit that follows the last one answered
    sent: int = 0  # unit to send next
    best: int = -1  # furthest unit ever answered: getting further is progress
    failures: int = 0  # since the last progress
    failing_since: float = 0.0  # monotonic seconds of the first of them
    losses: int = 0  # workers lost since the last progress
    retry_at: float = 0.0  # monotonic seconds before which nothing is sent
    pending: set[str] = field(default_factory=set)  # keys of the orders under way
    early: dict[int, Answer] = field(default_factory=dict)  # that came before an earlier unit's

    def __post_init__(self) -> None:
        """Begin at the saved state: what lies before it is learned."""
        self.done = self.sent = self.base
        self.best = self.base - 1

    def fail(self, answer: Answer, limits: Limits) -> bool:
        """Note a failure and when to try again; say whether it was one too many.

        A store that does not answer may do so in a minute: what bounds its failures is time.
        """
        now = time.monotonic()
        if self.failures == 0:
            self.failing_since = now
        if answer.status in (FAILED, GAP, MOVED, GONE):
            self.retry_at = now + min(0.2 * 4.0**self.failures, _LONGEST_WAIT)
        self.failures += 1
        if answer.status == FAILED and answer.error is not None and answer.error[0] == _OUTAGE:
            return now - self.failing_since > limits.outage
        return self.failures >= limits.tries

    def verdict(self, answer: Answer, position: int) -> DMondrianError:
        """Return the error that one failure too many ends the run with: a store's stays one."""
        told = ": ".join(answer.error) if answer.error else answer.status
        is_of_a_store = answer.error is not None and answer.error[0] in _OF_STORES
        return (StoreError if is_of_a_store else ClusterError)(
            f"shard {self.shard} failed {self.failures} times in a row at position {position}, "
            f"last on worker {answer.worker} ({told}); what is saved stands: when the cause is "
            f"gone, run the same command again"
        )


def answer_of(arrival: Arrival, shard: int) -> Answer:
    """Return the answer to an order, also where none came back."""
    if arrival.error is None:
        return arrival.result
    return Answer(GONE, shard, "unknown", error=(type(arrival.error).__name__, str(arrival.error)))


def load_of(tracks: Iterable[Track]) -> dict[str, int]:
    """Return how many shards each worker holds, or is to hold."""
    return Counter(track.address for track in tracks if track.address is not None)
