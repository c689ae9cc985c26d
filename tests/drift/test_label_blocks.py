"""Blocks of time are counted from the first row; late rows are of the open block."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmondrian.drift import label_blocks
from dmondrian.drift.label_blocks import Clock, LabelBlocks
from dmondrian.ensemble.settings.drift_settings import DriftSettings
from dmondrian.errors import CorruptError, DataError, ParameterError


def blocks_of(period: str | None = "10") -> LabelBlocks:
    return LabelBlocks(DriftSettings(period=period))


def walked(blocks: LabelBlocks, times: np.ndarray, n_before: int) -> list[tuple[int, int, bool]]:
    """Count rows; return the blocks, first and last row, and whether one ended before each."""
    found = []
    for rows, is_after_end, is_end in blocks.cut(n_before, len(times), times):
        if is_after_end:
            blocks.end_block()
        blocks.count(times[rows])
        assert not is_end
        found.append((n_before + rows.start, n_before + rows.stop, is_after_end))
    return found


def test_a_block_begins_with_the_first_row_of_a_later_time() -> None:
    blocks = blocks_of()
    times = np.array([3.0, 12.9, 13.0, 2.0, 22.0, 94.0, 94.0, 30.0])
    assert walked(blocks, times, 0) == [(0, 2, False), (2, 5, True), (5, 8, True)]
    # 2 is before the first row, and 30 of a block that no row opened: both came late.
    assert blocks.clock == Clock(3.0, 9, 3, 3, 2)
    assert (blocks.delay, blocks.n_waiting(8)) == (3, 3)


@given(
    st.lists(st.integers(-30, 60).map(float), min_size=1, max_size=40),
    st.lists(st.integers(0, 40), max_size=5),
)
def test_cuts_change_nothing(steps: list[float], cuts: list[int]) -> None:
    times = np.cumsum(steps)
    whole, parts, found = blocks_of(), blocks_of(), []
    expected = walked(whole, times, 0)
    ends = sorted({0, len(times), *(cut for cut in cuts if cut < len(times))})
    for a, b in itertools.pairwise(ends):
        for start, stop, is_after_end in walked(parts, times[a:b], a):
            if found and not is_after_end:
                found[-1] = (found[-1][0], stop, found[-1][2])
            else:
                found.append((start, stop, is_after_end))
    assert found == expected
    assert parts.clock == whole.clock
    # By the rule as it stands.
    first, block, numbers = times[0], 0, []
    for time in times.tolist():
        block = max(block, int((time - first) // 10.0))
        numbers.append(block)
    sizes = [len(list(rows)) for _, rows in itertools.groupby(numbers)]
    assert [stop - start for start, stop, _ in expected] == sizes


def test_blocks_of_rows_end_after_their_last_row() -> None:
    blocks = LabelBlocks(DriftSettings(delay=4))
    assert [(b.rows.start, b.rows.stop, *b[1:]) for b in blocks.cut(6, 7, None)] == [
        (0, 2, False, True), (2, 6, False, True), (6, 7, False, False),
    ]  # fmt: skip
    assert (blocks.n_waiting(13), blocks.delay, blocks.to_json()) == (1, 4, {})


def test_rows_that_lack_times_or_are_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParameterError, match='delay="10" needs the time of each row'):
        blocks_of().check(None, 3)
    with pytest.raises(ParameterError, match="delay=1 counts rows"):
        blocks_of(None).check(np.zeros(3), 3)
    for bad in (np.zeros(2), np.array([0.0, np.nan, 1.0]), np.array([0.0, np.inf, 1.0])):
        with pytest.raises(DataError, match="3 finite numbers"):
            blocks_of().check(bad, 3)
    with pytest.raises(DataError, match="too far apart for a delay of 10"):
        blocks_of().check(np.array([-1e18, 0.0, 1e18]), 3)
    monkeypatch.setattr(label_blocks, "LARGEST_DELAY", 4)
    blocks, times = blocks_of(), np.array([0.0, 10.0, 11.0, 12.0, 13.0, 20.0])
    blocks.check(times, 6)
    with pytest.raises(DataError, match=r"5 rows came within 10, .* at most 4: give a shorter"):
        blocks.check(np.append(times[:5], 14.0), 6)
    walked(blocks, times[:4], 0)
    blocks.check(times[4:], 2)
    with pytest.raises(DataError, match="5 rows came within 10"):
        blocks.check(np.array([13.0, 14.0]), 2)
    walked(blocks, np.array([990.0]), 4)  # a wrong time, and then the stream goes on
    with pytest.raises(DataError, match=r"block of 990, .* earlier times, up to 25: if that time"):
        blocks.check(np.array([21.0, 22.0, 25.0, 24.0]), 4)


def test_a_clock_is_read_as_it_was_and_no_other_one() -> None:
    blocks = blocks_of()
    walked(blocks, np.array([0.25, 3.0, 12.0, 1.0, 25.0]), 0)
    stored = json.loads(json.dumps(blocks.to_json()))
    assert stored == {"clock": [0.25, 2, 1, 2, 1]}
    again = blocks_of()
    again.load_json(stored, 5)
    assert again.clock == blocks.clock
    blocks_of().load_json({"clock": [None, 0, 0, 1, 0]}, 0)
    blocks_of(None).load_json({}, 5)
    bad: list[tuple[Any, int]] = [
        ([0.25, 2, 1, 2, 1], 0), ([0.25, 2, 0, 2, 1], 5), ([0.25, 0, 1, 2, 1], 5),
        ([0.25, 2, 6, 2, 1], 5), ([0.25, 2, 1, 5, 1], 5), ([0.25, 2, 1, 2, 5], 5),
        ([None, 2, 1, 2, 1], 5), ([1, 2, 1, 2, 1], 5), ([float("nan"), 2, 1, 2, 1], 5),
        ([0.25, 2, 1, 2.0, 1], 5), ([0.25, 2, 1, 2], 5), ([0.25, 2, True, 2, 1], 5), (None, 5),
        ("clock", 5), ([0.25, -2, 1, 2, 1], 5),
    ]  # fmt: skip
    for clock, n in bad:
        with pytest.raises(CorruptError, match="blocks of time after"):
            blocks_of().load_json({"clock": clock}, n)
    with pytest.raises(CorruptError, match="blocks of time after"):
        blocks_of(None).load_json(stored, 5)
