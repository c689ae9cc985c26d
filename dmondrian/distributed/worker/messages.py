"""Messages between coordinator and workers: orders for shards, bundles of them, and their answers.

Relies on nothing but the standard library and NumPy arrays inside answers. Promises that messages
are small (a run is named by its URL; orders hold no rows and no trees) and hold no credentials.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import numpy as np

    from dmondrian.checkpoint.summary import Summary
    from dmondrian.drift.guard import Shares
    from dmondrian.prequential.forecasts import Summed
    from dmondrian.prequential.stream_sample import Sampled


@dataclass(frozen=True)
class Order:
    """Base of requests for one shard."""

    run: str  # URL of the run folder
    attempt: str  # id of the sending attempt; an older attempt's shards are dropped
    shard: int  # number of the shard
    address: str  # worker that holds, or is to hold, the shard


@dataclass(frozen=True)
class Restore(Order):
    """Request to restore a shard as it was at a position."""

    position: int = 0  # rows the shard has learned there
    digest: str | None = None  # its blob; None for empty trees
    code: str = ""  # digest of the coordinator's code: other code might grow other trees
    next_stop: int = 0  # for joint fits: end of the mini-batch to sum predictions of; 0 for none
    floor: int = 0  # no shard of this attempt is restored before it: older files are not read


@dataclass(frozen=True)
class Step(Order):
    """Request to learn the rows from position `start` to `stop`."""

    start: int = 0
    stop: int = 0
    forecasts: bool = True  # return forecasts of each row, made before it is learned
    with_labels: bool = False  # return targets, weights and counts: asked of one shard only
    samples: bool = False  # return forecasts of the row sample that calibration is fitted to
    save: bool = False  # upload the state at `stop`
    whole: bool = False  # upload it whole, not as the difference from another one
    last: bool = False  # no later state will be saved as a difference from this one
    n_threads: int = 1  # threads over trees
    settled: int = 0  # rows before it are scored: their answers may be dropped
    mean: np.ndarray | None = None  # float64 [n, k], predictions averaged over all trees
    next_stop: int = 0  # for joint fits: end of the next mini-batch to sum predictions of
    generation: int = 0  # after `halt` a worker begins no step of an earlier generation
    # How often orders of the shard were recalled, as `ShardState.recalls` counts: after a step that
    # failed a worker begins none with the same count. 0 for a step that depends on no other.
    recalls: int = 0


_Orders = TypeVar("_Orders", bound=Order, covariant=True)


@dataclass(frozen=True)
class Bundle(Generic[_Orders]):
    """Orders of one kind to shards of one worker, sent and answered together."""

    run: str
    attempt: str
    address: str
    orders: tuple[_Orders, ...]  # those to one shard in stream order
    adds: bool = False  # a task will add its forecasts to those of other workers


@dataclass
class ChunkAnswer:
    """A shard's results for consecutive rows of one chunk, or of a part of one."""

    start: int  # position of the first row
    # Forecasts are None where none were asked for, and where `AddedForecasts` has them.
    total: Summed | None = None  # forecasts [n, K] summed over the shard's trees
    sampled: Sampled | None = None  # forecasts of a sample of rows, summed as integers
    y: np.ndarray | None = None  # float64 [n]
    weight: np.ndarray | None = None  # float64 [n]
    times: np.ndarray | None = None  # float64 [n], where labels come by time
    earlier: np.ndarray | None = None  # float64 [n], label of the same key; nan for none
    counts: dict[str, int] = field(default_factory=dict)  # values clipped, unseen, dropped
    next_sums: np.ndarray | None = None  # float64 [m, k], predictions of the next mini-batch
    dropped: np.ndarray | None = None  # int64, places of rows that are not among the n
    shares: Shares | None = None  # forecasts by kind of member, of rows of positive weight
    # By rows learned, of a forest that follows the stream: see `Members.exponents_at_marks`.
    exponents: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def has_forecasts(self) -> bool:
        """Whether rows were forecast."""
        return self.total is not None or self.shares is not None


OK = "ok"  # done, now or in an earlier call of the same order
MOVED = "moved"  # the task ran on another worker than it was meant for
LOST = "lost"  # this worker does not hold the shard, or has dropped an answer
GAP = "gap"  # the shard is not at the step's start: an earlier step failed or has not run here
DIRTY = "dirty"  # learning failed half way: the shard must be restored
HALTED = "halted"  # the step is of an earlier generation and was not begun
GONE = "gone"  # no answer: a lost worker, an error outside the order
DAMAGED = "damaged"  # the blob to restore from is missing, or has other bytes than were saved
FAILED = "failed"  # reading or saving failed: the shard is whole and the order can be repeated


@dataclass
class Answer:
    """Answer of a shard to an order: its status, its forecasts, and the state that it saved."""

    status: str
    shard: int
    worker: str
    position: int = -1  # rows the shard has learned; -1 where there is no shard
    chunks: list[ChunkAnswer] = field(default_factory=list)
    saved: tuple[str, int] | None = None  # digest and bytes of the state at the step's stop
    base: tuple[str, int] | None = None  # of the state that this one is the difference from, if any
    summary: Summary | None = None  # of the trees in that state
    seconds: float = 0.0  # time the order took on the worker
    saving: float = 0.0  # seconds to encode the state, and to store it beside learning
    nodes: int = 0  # nodes of the shard's trees
    error: tuple[str, str] | None = None  # class name and message
    next_sums: np.ndarray | None = None  # of a restored shard: predictions of the next mini-batch


@dataclass
class ChunkSums:
    """Sums of some shards' forecasts of consecutive rows; None for those not asked for."""

    total: Summed | None = None
    sampled: Sampled | None = None
    shares: Shares | None = None
    # By shard, as they are not added: see `ChunkAnswer`.
    exponents: dict[int, dict[int, np.ndarray]] = field(default_factory=dict)


@dataclass
class AddedForecasts:
    """Forecasts of a unit's rows, summed over the trees of some shards."""

    start: int  # position of the unit's first row
    stop: int
    places: list[int]  # places in the reply of the answers that they are left out of
    sums: list[ChunkSums]  # of each chunk of the unit


@dataclass
class Reply:
    """Answers to the orders of a bundle, or of several bundles."""

    answers: list[Answer]  # in the order of the orders
    added: list[AddedForecasts] = field(default_factory=list)
