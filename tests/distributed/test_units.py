"""Units cut a plan by its blocks alone; intervals are read or refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dmondrian.distributed.units import Every, cut, parse_every
from dmondrian.errors import ParameterError


def blocks_of(*rows: int) -> tuple[SimpleNamespace, ...]:
    starts = [sum(rows[:i]) for i in range(len(rows))]
    return tuple(
        SimpleNamespace(index=i, position=p, rows=n)
        for i, (p, n) in enumerate(zip(starts, rows, strict=True))
    )


@pytest.mark.parametrize("every", [None, 1, 7, 30])
@pytest.mark.parametrize("max_rows", [1, 10, 1000])
def test_units_cover_all_blocks_once_in_order(max_rows: int, every: int | None) -> None:
    blocks = blocks_of(5, 9, 3, 3, 30, 1, 2)
    units = cut(blocks, max_rows, every)
    assert [i for u in units for i in range(u.first, u.last)] == list(range(len(blocks)))
    assert [u.start for u in units] == [0] + [u.stop for u in units[:-1]]
    assert units[-1].stop == 53
    assert [u.index for u in units] == list(range(len(units)))


def test_small_blocks_are_joined_up_to_the_limit_and_large_ones_stand_alone() -> None:
    units = cut(blocks_of(4, 4, 4, 50, 4), max_rows=10)
    assert [(u.first, u.last) for u in units] == [(0, 2), (2, 3), (3, 4), (4, 5)]


def test_a_unit_ends_where_a_multiple_of_the_interval_is_reached() -> None:
    units = cut(blocks_of(4, 4, 4, 4, 4), max_rows=1000, every=8)
    assert [u.stop for u in units] == [8, 16, 20]
    assert [Every(rows=8).is_due(u) for u in units] == [True, True, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100000 rows", Every(rows=100_000)),
        ("100_000 rows", Every(rows=100_000)),
        ("1 row", Every(rows=1)),
        (500, Every(rows=500)),
        ("30 s", Every(seconds=30.0)),
        ("1.5 seconds", Every(seconds=1.5)),
        ("5 min", Every(seconds=300.0)),
        ("2 hours", Every(seconds=7200.0)),
        (None, Every()),
    ],
)
def test_intervals_people_write(text: str | int | None, expected: Every) -> None:
    assert parse_every(text) == expected


@pytest.mark.parametrize("text", ["", "rows", "0 rows", "1.5 rows", "-5 min", "0 s", "5 weeks", 0])
def test_other_intervals_are_refused_with_examples(text: str | int) -> None:
    with pytest.raises(ParameterError, match="100000 rows"):
        parse_every(text)
