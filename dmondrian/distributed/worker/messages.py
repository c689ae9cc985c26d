"""What the coordinator asks of a worker, and what a worker answers.

Relies on nothing but the standard library and NumPy arrays inside answers. Promises that orders
and answers are small (a run is named by its URL; rows and trees never travel in an order) and
hold no credentials.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from dmondrian.checkpoint.summary import Summary
    from dmondrian.prequential.forecasts import Summed
    from dmondrian.prequential.stream_sample import Sampled


@dataclass(frozen=True)
class Order:
    """One request about one shard."""

    run: str  # URL of the run folder
    attempt: str  # id of the attempt that asks; an older attempt's shards are dropped
    shard: int  # number of the shard
    address: str  # worker that holds, or shall hold, the shard


@dataclass(frozen=True)
class Restore(Order):
    """Take a shard up, as it was at a position."""

    position: int = 0  # rows the shard has learned there
    digest: str | None = None  # its blob; None for empty trees
    code: str = ""  # digest of the coordinator's kernels: other code would grow other trees
    ahead: int = 0  # where cells are fitted jointly: then take in the rows up to this position


@dataclass(frozen=True)
class Step(Order):
    """Learn the rows from position `start` to `stop`."""

    start: int = 0
    stop: int = 0
    forecasts: bool = True  # also answer with the forecasts of each row made before it is learned
    speaks: bool = False  # also answer with targets, weights and counts: one shard of a run does
    samples: bool = False  # also forecast the sample of rows that calibration is fitted to
    save: bool = False  # upload the state at `stop`
    n_threads: int = 1  # threads over trees
    settled: int = 0  # rows before this position are scored: their answers may be forgotten
    mean: np.ndarray | None = None  # float64 [n, k], what all trees of the run say of the rows
    ahead: int = 0  # then take in the rows up to this position, and say what they are
    generation: int = 0  # after `hold` a worker begins no step of an earlier one


@dataclass
class BlockAnswer:
    """What a shard says of consecutive rows of one chunk."""

    start: int  # position of the first row
    total: Summed | None = None  # forecasts [n, K] summed over the shard's trees
    sampled: Sampled | None = None  # forecasts of a sample of rows, summed as whole numbers
    y: np.ndarray | None = None  # float64 [n]
    weight: np.ndarray | None = None  # float64 [n]
    counts: dict[str, int] = field(default_factory=dict)  # values clipped, unseen, dropped
    ahead: np.ndarray | None = None  # float64 [m, k], summed forecasts of the m rows behind it


OK = "ok"  # done, now or in an earlier call of the same order
MOVED = "moved"  # the task ran on another worker than it was meant for
LOST = "lost"  # this worker does not hold the shard, or has forgotten an answer
GAP = "gap"  # the shard is not at the step's start: an earlier step has not run here
DIRTY = "dirty"  # learning failed half way: the shard must be restored
HELD = "held"  # the step was sent before its worker was asked to hold, and was not begun
GONE = "gone"  # nothing came back: a worker that was lost, an error outside the order
FAILED = "failed"  # reading or saving failed: the shard is whole and the order can be repeated


@dataclass
class Answer:
    """What came of an order."""

    status: str
    shard: int
    worker: str
    position: int = -1  # rows the shard has learned; -1 where there is no shard
    blocks: list[BlockAnswer] = field(default_factory=list)
    saved: tuple[str, int] | None = None  # digest and bytes of the state at the step's stop
    summary: Summary | None = None  # of the trees in that state
    seconds: float = 0.0  # time the order took on the worker
    saving: float = 0.0  # seconds of these for encoding the state and storing it
    nodes: int = 0  # nodes of the shard's trees
    error: tuple[str, str] | None = None  # class name and message
    ahead: np.ndarray | None = None  # of a shard that was restored: forecasts of its next rows
