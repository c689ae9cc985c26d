"""Forecasts of shards, added where they are: few arrays go to the coordinator.

A worker adds those of its own shards. Where there are many workers, a Dask task on one of
them joins the replies of up to `FAN_IN`, and joined replies are joined in the same manner. The last
reply alone goes to the coordinator: else the cost of a forecast there would grow with the workers.

Dask tasks add, not handlers of workers that send sums to each other, as in Dask's shuffle. So Dask
sees to transfers and memory, and makes a sum again if the worker that adds is lost, from replies
that are kept until then. Tasks cost the scheduler time for each order, and orders have enough units
to make that small.

Relies on sums that are the same to the last bit in whatever order they are added
(:mod:`dmondrian.ensemble.sums`), so that no result depends on which replies are joined. Promises
not to change the answers that shards keep for orders that are repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from dmondrian.distributed.worker.messages import (
    OK,
    AddedForecasts,
    Answer,
    ChunkAnswer,
    ChunkSums,
    Reply,
    Step,
)
from dmondrian.drift.guard import UNIT, Shares
from dmondrian.prequential.forecasts import RunningSum
from dmondrian.prequential.stream_sample import Sampled

FAN_IN = 16
"""Replies that one task joins."""


class RunningChunkSums:
    """Sums of what shards forecast of consecutive rows, one shard after the other.

    Takes the memory of one shard's forecasts, see :class:`RunningSum`.
    """

    def __init__(self) -> None:
        self._total: RunningSum | None = None
        self.sampled: Sampled | None = None
        self.shares: Shares | None = None
        self.exponents: dict[int, dict[int, Any]] = {}

    def add(self, part: ChunkSums) -> None:
        """Add forecasts of other shards, which are not changed."""
        if part.total is not None:
            self._total = self._total or RunningSum()
            self._total.add(part.total)
        if part.sampled is not None:
            if self.sampled is None:
                self.sampled = part.sampled._replace(sums=part.sampled.sums.copy())
            else:
                self.sampled.sums[:] += part.sampled.sums
        if part.shares is not None:
            self.shares = {} if self.shares is None else self.shares
            for key, whole in part.shares.items():
                if key not in self.shares:
                    self.shares[key] = whole.copy()
                elif key != UNIT:  # which all know alike
                    self.shares[key] += whole
        self.exponents |= part.exponents

    @property
    def total(self) -> Any:
        """Summed forecasts, None if there are none."""
        return None if self._total is None else self._total.whole

    def sums(self) -> ChunkSums:
        """Return what was added."""
        return ChunkSums(self.total, self.sampled, self.shares, self.exponents)


def sums_of(shard: int, chunk: ChunkAnswer) -> ChunkSums:
    """Return what one shard forecast."""
    return ChunkSums(
        chunk.total,
        chunk.sampled,
        chunk.shares,
        {shard: chunk.exponents} if chunk.exponents else {},
    )


def without_forecasts(answer: Answer) -> Answer:
    """Return an answer without what is in sums."""
    chunks = [
        replace(chunk, total=None, sampled=None, shares=None, exponents={})
        for chunk in answer.chunks
    ]
    return replace(answer, chunks=chunks)


def add_forecasts(orders: Sequence[Step], answers: Sequence[Answer], least: int = 2) -> Reply:
    """Return answers with the forecasts of the same rows added over shards.

    Only forecasts that were asked for and whose order was carried out are among the sums. Those of
    a row that fewer shards than ``least`` forecast stay in their answers.
    """
    by_rows: dict[tuple[int, int], list[int]] = {}
    for place, (order, answer) in enumerate(zip(orders, answers, strict=True)):
        if (
            answer.status == OK
            and order.forecasts
            and all(chunk.has_forecasts for chunk in answer.chunks)
        ):
            by_rows.setdefault((order.start, order.stop), []).append(place)
    reply = Reply(list(answers))
    for (start, stop), places in by_rows.items():
        if len(places) >= least:
            of_shards = [[sums_of(answers[p].shard, c) for c in answers[p].chunks] for p in places]
            reply.added.append(AddedForecasts(start, stop, places, _added(of_shards)))
            for place in places:
                reply.answers[place] = without_forecasts(answers[place])
    return reply


def join_replies(replies: Sequence[Reply]) -> Reply:
    """Task: return replies to several bundles as one, with the forecasts of the same rows added.

    Answers, and the places of orders, are in the order of the bundles.
    """
    whole = Reply([])
    by_rows: dict[tuple[int, int], list[AddedForecasts]] = {}
    for reply in replies:
        first = len(whole.answers)
        whole.answers += reply.answers
        for some in reply.added:
            moved = replace(some, places=[first + place for place in some.places])
            by_rows.setdefault((some.start, some.stop), []).append(moved)
    for (start, stop), parts in by_rows.items():
        places = [place for part in parts for place in part.places]
        sums = _added([part.sums for part in parts])
        whole.added.append(AddedForecasts(start, stop, places, sums))
    return whole


def _added(parts: Sequence[Sequence[ChunkSums]]) -> list[ChunkSums]:
    """Return the sums of each chunk of a unit over disjoint sets of shards."""
    return [_added_chunk(chunk_sums) for chunk_sums in zip(*parts, strict=True)]


def _added_chunk(parts: Iterable[ChunkSums]) -> ChunkSums:
    running = RunningChunkSums()
    for part in parts:
        running.add(part)
    return running.sums()
