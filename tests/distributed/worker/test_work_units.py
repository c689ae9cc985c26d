"""Units cover a stream, and end where checkpoints are wanted; intervals are read or refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from types import ModuleType

import pytest

from dmondrian.data import Chunk
from dmondrian.distributed.training import checkpoint_schedule
from dmondrian.distributed.training.checkpoint_schedule import (
    AUTO_SECONDS,
    AUTO_SHARE,
    CheckpointInterval,
    CheckpointSchedule,
    parse_every,
)
from dmondrian.distributed.worker.work_units import cut, cut_jointly
from dmondrian.errors import ParameterError
from dmondrian.joint_fit.minibatch import batch_at
from dmondrian.prequential.forecast_lag import LAG, marks


def chunks_of(*rows: int) -> tuple[Chunk, ...]:
    stops = list(accumulate(rows))
    return tuple(
        Chunk(i, stop - n, stop, i, i + 1)
        for i, (n, stop) in enumerate(zip(rows, stops, strict=True))
    )


@pytest.mark.parametrize("at", [(), (0,), (11, 53)])
@pytest.mark.parametrize("every", [None, 1, 7, 30])
@pytest.mark.parametrize("max_rows", [1, 10, 1000])
def test_units_cover_all_rows_once_in_order(
    max_rows: int, every: int | None, at: tuple[int, ...]
) -> None:
    units = cut(chunks_of(5, 9, 3, 3, 30, 1, 2), max_rows, every, at)
    assert [u.start for u in units] == [0] + [u.stop for u in units[:-1]]
    assert units[-1].stop == 53
    assert [u.index for u in units] == list(range(len(units)))
    assert all(0 < u.rows <= max_rows for u in units)
    assert {u.stop for u in units} >= set(at) - {0}


def test_small_chunks_are_joined_up_to_the_limit_and_large_ones_are_cut() -> None:
    units = cut(chunks_of(4, 4, 4, 25, 4), max_rows=10)
    assert [u.stop for u in units] == [8, 12, 22, 32, 41]


def test_a_unit_ends_at_each_multiple_of_the_interval() -> None:
    units = cut(chunks_of(4, 4, 16, 3), max_rows=1000, every=10)
    assert [u.stop for u in units] == [10, 20, 27]
    assert [CheckpointInterval(rows=10).is_due(u) for u in units] == [True, True, False]


def test_a_unit_ends_where_a_checkpoint_was_taken() -> None:
    assert [u.stop for u in cut(chunks_of(30), every=20, at=(13,))] == [13, 20, 30]


@pytest.mark.parametrize("every", [None, 7, 700, 5000])
@pytest.mark.parametrize("max_rows", [1, 500, 6000])
def test_units_end_with_slices_or_chunks_where_rows_are_forecast_in_slices(
    max_rows: int, every: int | None
) -> None:
    chunks = chunks_of(1500, 50_000, 3, 20_000)
    stops = {chunk.stop for chunk in chunks}
    ends = stops | {*marks(0, 100_000, 1)}
    units = cut(chunks, max_rows, every, is_sliced=True)
    assert [u.start for u in units] == [0] + [u.stop for u in units[:-1]]
    assert {u.stop for u in units} >= {max(stops)}
    assert {u.stop for u in units} <= ends
    assert max(u.rows for u in units) <= max(max_rows, LAG)
    if every is not None:
        due = [u.stop for u in units if CheckpointInterval(rows=every).is_due(u)]
        wanted = {min(e for e in ends if e >= at) for at in range(every, 71_503, every)}
        assert set(due) == wanted
    assert 1501 in {u.stop for u in cut(chunks, max_rows, every, (1501,), is_sliced=True)}


def test_units_have_fewer_rows_where_many_numbers_forecast_a_row() -> None:
    assert [u.rows for u in cut(chunks_of(200_000), n_outputs=2)] == [65_536] * 3 + [3_392]
    assert {u.rows for u in cut(chunks_of(8192), n_outputs=2**12)} == {2048}
    assert {u.rows for u in cut(chunks_of(3), n_outputs=2**30)} == {1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100000 rows", CheckpointInterval(rows=100_000)),
        ("100_000 rows", CheckpointInterval(rows=100_000)),
        ("1 row", CheckpointInterval(rows=1)),
        (500, CheckpointInterval(rows=500)),
        ("30 s", CheckpointInterval(seconds=30.0)),
        ("1.5 seconds", CheckpointInterval(seconds=1.5)),
        ("5 min", CheckpointInterval(seconds=300.0)),
        ("2 hours", CheckpointInterval(seconds=7200.0)),
        ("auto", CheckpointInterval(seconds=AUTO_SECONDS, share=AUTO_SHARE)),
        (None, CheckpointInterval()),
    ],
)
def test_intervals_people_write(text: str | int | None, expected: CheckpointInterval) -> None:
    assert parse_every(text) == expected


@pytest.mark.parametrize("text", ["", "rows", "0 rows", "1.5 rows", "-5 min", "0 s", "5 weeks", 0])
def test_other_intervals_are_refused_with_examples(text: str | int) -> None:
    with pytest.raises(ParameterError, match="100000 rows"):
        parse_every(text)


def test_checkpoints_come_less_often_where_saving_takes_long() -> None:
    every = parse_every("auto")
    assert every.seconds_after(0.0) == AUTO_SECONDS
    assert every.seconds_after(60.0) == 60.0 / AUTO_SHARE
    assert parse_every("30 s").seconds_after(60.0) == 30.0
    assert parse_every(None).seconds_after(60.0) == parse_every(500).seconds_after(60.0) == math.inf


def test_the_pace_waits_for_the_slowest_worker(
    set_clock: Callable[[ModuleType, Callable[[], float]], None],
) -> None:
    now = 100.0
    set_clock(checkpoint_schedule, lambda: now)
    schedule = CheckpointSchedule(parse_every("auto"))
    now += AUTO_SECONDS
    assert schedule.is_due
    schedule.note_request()
    assert not schedule.is_due
    for worker, seconds in (("a", 2.0), ("b", 1.5), ("b", 1.5)):
        schedule.add_saving(worker, seconds)
    schedule.commit()
    now += 3.0 / AUTO_SHARE - 1.0
    assert not schedule.is_due
    now += 1.0
    assert schedule.is_due
    assert schedule.saving == 5.0


@pytest.mark.parametrize("at", [(), (0,), (7,), (5, 9, 40)])
def test_steps_of_mini_batches_end_with_these_with_chunks_and_at_checkpoints(
    at: tuple[int, ...],
) -> None:
    units = cut_jointly(chunks_of(5, 30, 18), 4, at)
    assert [u.start for u in units] == [0] + [u.stop for u in units[:-1]]
    assert [u.index for u in units] == list(range(len(units)))
    ends = {batch_at(position, 4)[1] for position in range(53)} | {5, 35, 53} | set(at) - {0}
    assert [u.stop for u in units] == sorted(end for end in ends if end <= 53)
