"""The coordinator's records of shards and of orders that were sent, and the limits of a run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dmondrian.checkpoint.manifest import shard_entry
from dmondrian.distributed.cluster.outage import PATIENCE
from dmondrian.distributed.worker.messages import FAILED, GAP, GONE, MOVED, Answer, Reply
from dmondrian.errors import (
    ClusterError,
    DMondrianError,
    NotFoundError,
    OutageError,
    StoreError,
)

if TYPE_CHECKING:
    from dmondrian.checkpoint.summary import Summary
    from dmondrian.distributed.cluster.results import FinishedTask

_LONGEST_WAIT = 10.0  # seconds between two tries
_OUTAGE = OutageError.__name__
_OF_STORES = {kind.__name__ for kind in (StoreError, NotFoundError, OutageError)}


@dataclass(frozen=True)
class Limits:
    """Limits of a run; none of them changes a forest."""

    window: int = 4  # units that shards may be ahead of the last settled one
    largest_window: int = 128  # where units take a short time, and their forecasts little memory
    depth: int = 2  # pending orders of a shard: one runs, one is queued at the worker
    lost_workers: int = 8  # workers that a shard may lose in a row without progress; those that
    # the cluster retired do not count
    tries: int = 4  # failures of a shard in a row before the run gives up
    outage: float = PATIENCE  # seconds of no answer of a store before the run gives up
    silence: float = 900.0  # seconds without an answer after which a worker is given up


@dataclass
class ShardState:
    """Progress, worker and failures of one shard."""

    shard: int
    saved_unit: int  # unit after the newest saved state
    digest: str | None  # blob of that state; None for empty trees
    n_bytes: int = 0  # size of that blob
    base_blob: tuple[str, int] | None = None  # of the whole state that it is a difference from
    summary: Summary | None = None  # of its trees, if this attempt saved them
    address: str | None = None  # worker that holds it
    is_held: bool = False  # whether it is restored there
    done: int = 0  # unit after the last one answered
    sent: int = 0  # next unit to send
    best: int = -1  # furthest unit ever answered: a later one is progress
    failures: int = 0  # since the last progress
    failing_since: float = 0.0  # monotonic seconds of the first of them
    lost_workers: int = 0  # since the last progress
    retry_at: float = 0.0  # monotonic seconds; nothing is sent before
    pending: dict[str, SentBundle] = field(default_factory=dict)  # its pending orders, by key
    apart: int = 0  # replies to steps before this unit are not joined with other workers'
    recalls: int = 1  # how often its orders were recalled, and 1; see `Step.recalls`
    early: dict[int, Answer] = field(default_factory=dict)  # by unit: answers out of order

    def __post_init__(self) -> None:
        """Start at the saved state: the rows before it are learned."""
        self.done = self.sent = self.saved_unit
        self.best = self.saved_unit - 1

    @property
    def entry(self) -> dict[str, Any]:
        """What a manifest has of its saved state."""
        assert self.digest is not None
        return shard_entry((self.digest, self.n_bytes), self.base_blob)

    def awaits_before(self, unit: int) -> bool:
        """Return whether an order for an earlier unit is pending that is not answered yet."""
        return any(
            state is self and u is not None and self.done <= u < unit
            for sent in self.pending.values()
            for state, u in sent.shard_units
            if self.shard in sent.wanted
        )

    def fail(self, answer: Answer, limits: Limits) -> bool:
        """Record a failure and when to retry; return whether the run must give up.

        Failures of an unreachable store are limited by time, as it may recover; others by number.
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

    def final_error(self, answer: Answer, position: int) -> DMondrianError:
        """Return the error that ends the run after the last retry; a `StoreError` for stores."""
        cause = ": ".join(answer.error) if answer.error else answer.status
        name = answer.error[0] if answer.error else ""
        kind = StoreError if name in _OF_STORES else ClusterError
        return (OutageError if name == _OUTAGE else kind)(
            f"shard {self.shard} failed {self.failures} times in a row at position {position}, "
            f"last on worker {answer.worker} ({cause}); what is saved is safe: when the cause is "
            f"gone, run the same command again to go on from there"
        )


@dataclass(eq=False)
class SentBundle:
    """Orders sent to one worker together."""

    key: str  # of the Dask task
    address: str  # worker
    shard_units: list[tuple[ShardState, int | None]]  # shard and unit of each; no unit for restores
    wanted: set[int]  # shards whose answers count: the orders of others were recalled
    saves: bool = False  # answered once the states are stored, beside the worker's threads
    reply: AwaitedReply | None = None  # set when it is sent

    @property
    def trains(self) -> bool:
        """Whether these are steps, and not restores."""
        return self.shard_units[0][1] is not None

    @property
    def is_apart(self) -> bool:
        """Whether its reply is not to be joined with those of other workers."""
        return any(unit is None or unit < state.apart for state, unit in self.shard_units)


@dataclass(eq=False)
class AwaitedReply:
    """The reply to one bundle, or to bundles of several workers, joined there."""

    key: str  # of the Dask task that returns it
    bundles: list[SentBundle]

    @property
    def is_joint(self) -> bool:
        """Whether several workers have to answer first."""
        return len(self.bundles) > 1

    @property
    def is_wanted(self) -> bool:
        """Whether an answer in it counts."""
        return any(sent.wanted for sent in self.bundles)

    @property
    def shard_units(self) -> list[tuple[ShardState, int | None]]:
        """Shard and unit of each order."""
        return [pair for sent in self.bundles for pair in sent.shard_units]

    def of(self, finished: FinishedTask) -> Reply:
        """Return the answer to each order, with status `GONE` where there is none."""
        if finished.error is None:
            return finished.result
        about = type(finished.error).__name__, str(finished.error)
        return Reply(
            [Answer(GONE, state.shard, "unknown", error=about) for state, _ in self.shard_units]
        )
