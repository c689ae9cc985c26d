"""Shards: trees in a worker's memory with their position in the stream.

Relies on forests whose state depends on the rows in order only. Promises that a shard's position
advances only when the rows are learned; where cells are fitted jointly
(:mod:`dmondrian.distributed.training.minibatch_barrier`), that a state to be saved is encoded
before the trees add later rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dmondrian.checkpoint.deltas import Base, EncodedState, encode_state
from dmondrian.checkpoint.summary import Summary
from dmondrian.data import Chunk
from dmondrian.distributed.worker.chunk_cache import PreparedChunk
from dmondrian.distributed.worker.messages import ChunkAnswer, Step
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.errors import ClusterError
from dmondrian.forest.forest import Forest
from dmondrian.joint_fit.minibatch import Piece, add_rows, apply_targets
from dmondrian.prequential.forecasts import forecast_and_learn_all
from dmondrian.prequential.stream_sample import forecast_and_learn


class SavedState(NamedTuple):
    """A state in the store."""

    blob: tuple[str, int]  # digest and bytes
    base: tuple[str, int] | None  # of what it is a difference from
    summary: Summary  # of its trees


@dataclass
class Shard:
    """Trees in memory and their position in the stream."""

    forest: Forest
    position: int  # rows of the stream learned
    n_trees: int  # of all shards of the run
    is_dirty: bool = False  # an update failed half way
    is_running: bool = False
    end: int = 0  # position that the running step ends at
    failed_recalls: int = 0  # `Step.recalls` of the step that failed last
    answers: dict[int, ChunkAnswer] = field(default_factory=dict)  # by first row, until scored
    next_batch: Piece | None = None  # rows after `position` added to the trees, but not fitted yet
    saved: dict[int, SavedState] = field(default_factory=dict)  # by position
    # by position: an encoded state that is not stored yet
    unsaved: dict[int, tuple[EncodedState, Summary]] = field(default_factory=dict)
    base: Base | None = None  # what the next state may be a difference from; it is stored
    stored_position: int = -1  # of the last state that was stored

    def forget_before(self, position: int) -> None:
        """Drop answers for rows before a position, and states saved up to it."""
        for first in [p for p in self.answers if p < position]:
            del self.answers[first]
        states: tuple[dict[int, Any], ...] = (self.saved, self.unsaved)
        for kept in states:
            for old in [p for p in list(kept) if p <= position]:  # another thread may store one
                kept.pop(old, None)


def learn_chunk(chunk: Chunk, shard: Shard, prepared: PreparedChunk, order: Step) -> None:
    """Forecast and learn the next rows of one chunk, and advance the shard's position."""
    first, last = shard.position, min(chunk.stop, order.stop)
    X, encoded = prepared.between(first - chunk.start, last - chunk.start)
    assert encoded.y is not None  # as prepared
    forest, rows = shard.forest, (X, encoded.y, encoded.weight)
    answer = ChunkAnswer(first)
    if order.forecasts and forest.parameters.follows_stream:
        members: Any = forest
        answer.shares = members.share_and_learn(*rows, order.n_threads, encoded.times)
        answer.exponents = members.exponents_at_marks
    elif order.forecasts:
        answer.total, answer.sampled = forecast_and_learn_all(
            forest, *rows, order.n_threads, position=first, n_trees=shard.n_trees,
            samples=order.samples, dropped=encoded.dropped,
        )  # fmt: skip
    elif order.samples:
        answer.sampled = forecast_and_learn(forest, *rows, order.n_threads)
    else:
        forest.update(*rows, n_threads=order.n_threads, times=encoded.times)
    if order.with_labels:
        answer.y, answer.weight, answer.counts = encoded.y, encoded.weight, dict(encoded.counts)
        answer.dropped, answer.times = encoded.dropped, encoded.times
        answer.earlier = encoded.earlier
    shard.answers[first] = answer
    shard.position = last


def learn_jointly(chunk: Chunk, shard: Shard, prepared: PreparedChunk, order: Step) -> None:
    """Fit cell values to the rows of an order, given the mean prediction of all trees."""
    X, y, w = rows_between(chunk, prepared, order.start, order.stop)
    if shard.next_batch is None:
        shard.next_batch = add_rows(shard.forest, X, w, order.n_threads)
    if order.mean is None or len(order.mean) != len(y) or len(shard.next_batch.rows) != len(y):
        raise ClusterError(f"rows {order.start} to {order.stop} were not added to these trees")
    apply_targets(shard.forest, shard.next_batch, y, w, order.mean)
    answer = ChunkAnswer(order.start)
    if order.with_labels:
        answer.y, answer.weight = y, w
        if prepared.earlier is not None:
            part = slice(order.start - chunk.start, order.stop - chunk.start)
            answer.earlier = prepared.earlier[part]
        answer.counts = dict(prepared.counts) if order.start == chunk.start else {}
        answer.counts["null_target"] = order.stop - order.start - len(y)
    shard.answers[order.start], shard.next_batch = answer, None
    shard.position = order.stop
    if order.save:
        shard.unsaved[order.stop] = encoded_state(shard, order)


def encoded_state(shard: Shard, order: Step) -> tuple[EncodedState, Summary]:
    """Return a shard's state as bytes, and the summary of its trees."""
    # Pruning keeps the base of each state that is stored, and knows of no other: while a state is
    # not stored yet, the next one is whole.
    base = None if shard.unsaved else shard.base
    encoded = encode_state(shard.forest, base, order.whole, order.last)
    return encoded, Summary.of(shard.forest)


def rows_between(
    chunk: Chunk, prepared: PreparedChunk, start: int, stop: int
) -> tuple[PreparedRows, np.ndarray, np.ndarray | None]:
    """Return rows of a chunk by their positions: X, y, w.

    Rows that were dropped count at the end of the chunk, and not in their places.
    """
    part = slice(start - chunk.start, stop - chunk.start)
    w = None if prepared.weight is None else prepared.weight[part]
    return prepared.rows[part], prepared.y[part], w
