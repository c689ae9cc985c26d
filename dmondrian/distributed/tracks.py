"""Where each shard stands, as the coordinator sees it, and the bounds of a run.

Relies on nothing but futures; promises nothing: it is the coordinator's notebook.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dmondrian.distributed.orders import LOST, Answer

if TYPE_CHECKING:
    from distributed import Future

FETCH_SECONDS = 60.0
"""To fetch an answer that is ready."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a run; none of them changes a forest."""

    window: int = 4  # units that the fastest shard may be ahead of the last settled one
    depth: int = 2  # steps of one shard under way: one runs, one waits at the worker
    losses: int = 8  # workers that a shard may lose in a row without getting further
    tries: int = 4  # failures of a shard in a row before the run gives up
    silence: float = 900.0  # seconds without an answer after which a worker is given up


@dataclass
class Track:
    """Where one shard stands."""

    shard: int
    base: int  # unit that follows the newest saved state
    digest: str | None  # blob of that state; None for empty trees
    address: str | None = None  # worker that holds it
    is_held: bool = False  # restored there
    done: int = 0  # unit that follows the last one answered
    sent: int = 0  # unit to send next
    best: int = -1  # furthest unit ever answered: getting further is progress
    failures: int = 0  # since the last progress
    losses: int = 0  # workers lost since the last progress
    retry_at: float = 0.0  # monotonic seconds before which nothing is sent
    pending: dict[str, Future] = field(default_factory=dict)


def fetch(future: Future, shard: int) -> Answer:
    """Return the answer of a finished order; a failed or vanished one counts as lost."""
    try:
        return future.result(timeout=FETCH_SECONDS)
    except Exception as error:  # noqa: BLE001 - KilledWorker, a lost result: all mean try again
        return Answer(LOST, shard, "unknown", error=(type(error).__name__, str(error)))
