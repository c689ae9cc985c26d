"""Arrays that grow where they are."""

import mmap
import pathlib
import resource
import subprocess
import sys

import numpy as np
import pytest

from dmondrian.tree.memory import (
    LARGE_PAGE,
    LEAST,
    aligned,
    bytes_held,
    growing,
    grown,
    least_of,
    next_capacity,
    take,
    trimmed,
)
from tests.tree.pages import (
    large,
    needs_collapse,
    needs_large_pages,
    needs_population,
    needs_ranges,
    resident,
    told_of,
)

ROWS = LEAST // 64  # rows of 16 words that fill the least range
PAGE = LARGE_PAGE // 64  # and a large page


def _ranging(capacity, width, dtype):
    """Return zeros that grow where they are, however few."""
    return grown(aligned(1, width, dtype), 0, capacity)


def _filled(make, capacity):
    array = make(capacity, 16, np.int32)
    array[:] = np.arange(array.size).reshape(array.shape)
    return array


@needs_ranges
def test_a_large_array_grows_where_it_is():
    array = _filled(_ranging, ROWS)
    longer = grown(array, ROWS, PAGE)
    assert longer.ctypes.data == array.ctypes.data
    assert longer.flags.c_contiguous
    assert (longer.shape, longer.dtype) == ((PAGE, 16), np.int32)
    assert np.array_equal(longer[:ROWS], array)
    assert not longer[ROWS:].any()


@needs_ranges
def test_an_array_goes_over_to_large_pages_where_it_is():
    array = _filled(_ranging, ROWS)
    longer = grown(array, ROWS, 9 * PAGE, 9 * PAGE)
    assert longer.ctypes.data == array.ctypes.data
    assert np.array_equal(longer[:ROWS], _filled(aligned, ROWS))
    assert not longer[ROWS:].any()


@needs_ranges
@pytest.mark.parametrize("more", [1, 2, 1000, PAGE])
def test_an_array_in_large_pages_begins_with_one(more):
    arrays = [growing(PAGE + more, 16, np.int32) for _ in range(3)]  # next to each other, mostly
    assert [array.ctypes.data % LARGE_PAGE for array in arrays] == [0, 0, 0]


@needs_ranges
@pytest.mark.parametrize(("m", "end"), [(ROWS, 1024 * ROWS), (9 * PAGE, 1024 * 9 * PAGE)])
def test_a_full_range_is_left_for_a_larger_one(m, end):
    array = _filled(_ranging, m)
    within = grown(array, m - 3, end)
    assert within.ctypes.data == array.ctypes.data
    beyond = grown(within, m - 3, end + 1)
    assert beyond.ctypes.data != array.ctypes.data
    assert np.array_equal(beyond[: m - 3], _filled(aligned, m - 3))
    assert not beyond[m - 3 : m].any()
    assert resident(array) <= 3 * 64 + mmap.PAGESIZE  # the rest of it was given back


@needs_ranges
@pytest.mark.parametrize(
    ("n", "expected", "capacity"),
    [
        (100, 150, 150),  # copied
        (100, 10**6, 150),  # and twice as many would be
        (1023, 10**6, 1023 + 1023 // 2),
        (1024, 10**6, 1024 + 1024 // 12),  # little is left from 64 KiB on
        (ROWS // 2 - 1, 10**6, ROWS // 2 - 1 + (ROWS // 2 - 1) // 12),
        (ROWS // 2, 0, ROWS),  # large enough for a range of addresses
        (ROWS // 2, 10**6, ROWS),  # they may not come
        (PAGE - 1, 0, PAGE),  # ends with a large page
        (PAGE, 0, 2 * PAGE),
    ],
)
def test_capacities_follow_from_what_memory_costs(n, expected, capacity):
    wide, none = growing(n, 16, np.int32), np.empty((n, 0), np.uint64)
    assert next_capacity((wide, none), expected) == capacity
    narrow = np.empty((n, 1), np.int8)  # has a range too, whatever it takes
    assert next_capacity((narrow, wide), expected) == capacity
    assert least_of((narrow, wide, none), capacity) == (1 if 64 * capacity >= LEAST else LEAST)
    longer = grown(narrow, n, capacity, least=1)
    assert bytes_held(longer, n) == -(-n // mmap.PAGESIZE) * mmap.PAGESIZE
    assert bytes_held(grown(none, n, capacity, least=1), n) == 0


@needs_ranges
def test_capacities_of_many_large_pages_need_not_end_with_one():
    n, bits = 12 * PAGE, np.empty((12 * PAGE + 1, 1), np.uint64)
    assert next_capacity((growing(n, 16, np.int32), bits[:n]), 0) == n + PAGE
    assert next_capacity((growing(n + 1, 16, np.int32), bits), 0) == 2 * n + 2


@needs_ranges
@pytest.mark.parametrize(
    ("n", "expected", "capacity"),
    [
        (ROWS // 64, ROWS, ROWS),
        (ROWS // 64, ROWS - 1, ROWS // 64 + ROWS // 128),  # no range, so copied
        (2000, 0, 3000),
        (PAGE // 8, 10**9, 8 * PAGE),
        (PAGE - 1, PAGE, 2 * PAGE - 2),
    ],
)
def test_all_that_is_expected_has_room_where_what_is_left_is_given_back(n, expected, capacity):
    assert next_capacity((growing(n, 16, np.int32),), expected, is_kept=False) == capacity


def _pages(array):
    """Tell of each whole or begun large page of an array whether it is to be large."""
    lasts = [min(first + PAGE, len(array)) - 1 for first in range(0, len(array), PAGE)]
    found = [told_of(array[first:])["VmFlags"] for first in range(0, len(array), PAGE)]
    assert found == [told_of(array[last:])["VmFlags"] for last in lasts]
    return ["hg" in flags for flags in found]


@needs_ranges
@needs_large_pages
def test_arrays_that_fill_a_large_page_lie_in_such():
    assert _pages(growing(2 * PAGE + 1, 16, np.int32)) == [True, True, False]
    array = growing(PAGE - 1, 16, np.int32)
    assert _pages(array) == [False]
    assert "nh" in told_of(array)["VmFlags"]  # else a kernel that always gives them does it here
    most = 12 * PAGE // 13
    assert _pages(grown(array, 9, PAGE, most)) == [False]
    assert _pages(grown(array, 9, PAGE, most + 1)) == [True]  # when all are there
    assert _pages(grown(array, 9, 3 * PAGE, 3 * most)) == [True, True, False]
    assert _pages(grown(array, 9, 3 * PAGE, 3 * most + 4)) == [True] * 3
    elsewhere = grown(aligned(9, 16, np.int32), 9, 2 * PAGE, most + 1)
    assert _pages(elsewhere) == [True, False]


@needs_ranges
@needs_large_pages
@needs_collapse
def test_few_large_pages_are_begun_when_others_are_full():
    array = grown(growing(PAGE - 1, 16, np.int32), 0, PAGE + 1)
    array[: PAGE + 1] = 7
    assert _pages(array) == [False, False]
    array = grown(array, PAGE + 1, 13 * PAGE)
    assert _pages(array) == [True] + [False] * 12
    assert bytes_held(array, PAGE + 1) == LARGE_PAGE + mmap.PAGESIZE
    assert resident(array) == LARGE_PAGE + mmap.PAGESIZE
    array[:] = 7
    array = grown(array, 12 * PAGE, 14 * PAGE)
    assert _pages(array) == [True] * 12 + [False] * 2
    array = grown(array, 12 * PAGE + 1, 14 * PAGE + 1)  # one more counts for little
    assert _pages(array) == [True] * 15
    assert (array[: 13 * PAGE] == 7).all()


@needs_ranges
@needs_large_pages
@pytest.mark.parametrize("width", [128, 129])
def test_wide_rows_lie_in_large_pages_that_they_begin(width):
    n = LARGE_PAGE // (4 * width)
    array = _ranging(n, width, np.float32)
    more = next_capacity((_ranging(n + 1, width, np.float32),), 0)
    assert more == (2 * (n + 1) if width == 129 else 2 * n)  # or it ends with a large page
    longer = grown(array, 5, n + 5)
    assert ("hg" in told_of(longer)["VmFlags"]) == (width == 129)


@needs_ranges
@needs_large_pages
@needs_population
def test_memory_is_taken_before_it_is_written():
    array = _ranging(4 * ROWS, 16, np.int32)
    array[:100] = 7
    take(array, 100, ROWS)
    n_bytes = 64 * (100 + ROWS) // mmap.PAGESIZE * mmap.PAGESIZE + mmap.PAGESIZE
    assert resident(array) == bytes_held(array, 100) == n_bytes
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    array[100 : 100 + ROWS] = 8
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 9  # of 64 pages
    assert not array[100 + ROWS :].any()
    take(array, 100 + ROWS, 10 * ROWS)  # for which there is no room
    assert bytes_held(array, 100) == array.nbytes
    take(_filled(aligned, 9), 3, 10)  # no range: nothing to take


@needs_ranges
@needs_large_pages
@needs_population
@needs_collapse
def test_what_was_taken_is_given_back_or_becomes_large():
    array = grown(_ranging(ROWS, 16, np.int32), 0, PAGE + 2 * ROWS)
    array[:100] = 7
    take(array, 100, ROWS)
    fewer = trimmed(array, 100)
    assert resident(fewer) == bytes_held(fewer, 100) == 2 * mmap.PAGESIZE
    assert (array[:100] == 7).all()
    array = grown(fewer, 100, PAGE + 2 * ROWS)
    array[: PAGE + 1] = 8
    take(array, PAGE + 1, ROWS)
    longer = grown(array, PAGE + 1, PAGE + 3 * ROWS)
    assert _pages(longer) == [True, False]
    assert bytes_held(longer, PAGE + 1) == LARGE_PAGE + 64 * ROWS + mmap.PAGESIZE
    longer = grown(longer, PAGE + 1, 2 * PAGE, 2 * PAGE)  # with all that was taken
    assert bytes_held(longer, PAGE + 1) == resident(longer) == 2 * LARGE_PAGE
    assert (longer[: PAGE + 1] == 8).all()
    assert not longer[PAGE + 1 :].any()
    take(longer, 2 * PAGE, 0)
    longer = grown(longer, 2 * PAGE, 4 * PAGE, 4 * PAGE)
    take(longer, 2 * PAGE, 1)  # a large one
    assert bytes_held(longer, 2 * PAGE) == resident(longer) == 3 * LARGE_PAGE
    fewer = trimmed(longer, PAGE + 1)
    assert bytes_held(fewer, PAGE + 1) == resident(longer) == LARGE_PAGE + mmap.PAGESIZE


@needs_ranges
@needs_large_pages
@pytest.mark.parametrize(
    ("used", "pages"),
    [
        (2 * PAGE + 1, [True, True, False, False]),
        (2 * PAGE, [True] * 4),
        (2 * PAGE - 1, [True] * 4),  # no whole small page is free
        (25 * PAGE // 13, [True] * 4),  # little is
        (7 * PAGE // 4, [True, False, False, False]),
        (64, [False] * 4),
    ],
)
def test_what_a_large_page_has_beyond_what_was_written_is_given_back_if_it_is_much(used, pages):
    array = grown(growing(PAGE, 16, np.int32), 0, 3 * PAGE + 1, 4 * PAGE)
    array[:used] = 7
    fewer = trimmed(array, used)
    assert (fewer.ctypes.data, len(fewer)) == (array.ctypes.data, used)
    assert _pages(array) == pages
    # A system that is short of large pages gives fewer.
    assert resident(array) <= bytes_held(fewer, used) < 64 * used * 13 / 12 + mmap.PAGESIZE
    assert (array[:used] == 7).all()
    assert not array[used:].any()


_PARTLY = pathlib.Path(
    "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/stats/nr_anon_partially_mapped"
)


@needs_ranges
@needs_large_pages
@pytest.mark.skipif(not _PARTLY.exists(), reason="the system does not tell of pages used in part")
def test_what_is_given_back_is_the_systems():
    """Else it would stay with pages of which the process has the rest, until memory is short."""
    before = int(_PARTLY.read_text())
    arrays = [growing(2 * PAGE, 16, np.int32) for _ in range(40)]
    for array in arrays:
        array[:64] = 7
        trimmed(array, 64)
    assert int(_PARTLY.read_text()) - before < 20


@needs_ranges
@needs_large_pages
@needs_collapse
def test_what_grows_after_it_was_given_back_goes_over_to_large_pages_again():
    array = growing(2 * PAGE, 16, np.int32)
    array[: PAGE + 100] = 7
    array = grown(trimmed(array, PAGE + 100), PAGE + 100, PAGE + 200, PAGE + 200)
    array[PAGE + 100 :] = 8
    array = grown(array, PAGE + 200, 2 * PAGE, PAGE + 200)
    array[PAGE + 200 :] = 8
    longer = grown(array, 2 * PAGE, 3 * PAGE, 3 * PAGE)
    longer[2 * PAGE] = 9
    assert longer.ctypes.data == array.ctypes.data
    assert bytes_held(longer, 2 * PAGE + 1) == large(longer) == 3 * LARGE_PAGE
    assert (longer[: PAGE + 100] == 7).all()
    assert (longer[PAGE + 100 : 2 * PAGE] == 8).all()
    assert not longer[2 * PAGE + 1 :].any()


def test_nothing_is_given_back_of_arrays_that_do_not_grow_where_they_are():
    for array in (_filled(aligned, 9), _filled(_ranging, ROWS)[3:9], np.empty((5, 0), np.uint64)):
        assert trimmed(array, 1) is array


@needs_ranges
def test_more_may_be_expected_than_there_are_addresses():
    array = growing(PAGE, 16, np.int32)
    for expected in (10**9, 10**10):
        array = grown(array, 9, 2 * PAGE, expected)
        array[-1] = 1
        assert bytes_held(array, 2 * PAGE) == 2 * LARGE_PAGE


@needs_ranges
@needs_large_pages
@needs_collapse
@pytest.mark.parametrize("n_pages", [0, 3])
def test_what_was_written_before_large_pages_is_copied_into_one(n_pages):
    m = n_pages * PAGE + PAGE - 1
    array = growing(m, 16, np.int32)
    array[:] = 7
    assert large(array) == n_pages * LARGE_PAGE
    assert bytes_held(array, m) == large(array) + LARGE_PAGE
    longer = grown(array, m, 9 * PAGE, 9 * PAGE)
    assert longer.ctypes.data == array.ctypes.data
    assert bytes_held(longer, m) == large(longer) == (n_pages + 1) * LARGE_PAGE
    assert (longer[:m] == 7).all()
    assert not longer[m:].any()


@pytest.mark.parametrize("make", [aligned, growing])
@pytest.mark.parametrize("capacity", [1, 3, 100])
def test_a_small_array_is_copied(make, capacity):
    array = _filled(make, capacity)
    assert array.ctypes.data % 64 == 0
    longer = grown(array, capacity, 2 * capacity + 3)
    assert longer.shape == (2 * capacity + 3, 16)
    assert longer.ctypes.data % 64 == 0
    assert np.array_equal(longer[:capacity], array)
    assert not longer[capacity:].any()
    assert not np.shares_memory(longer, array)
    assert next_capacity((array,), 0) == capacity + capacity // 2


def test_what_is_not_used_is_not_kept():
    array = _filled(_ranging, ROWS)
    fewer = grown(array, 3, 7)
    assert np.array_equal(fewer[:3], _filled(aligned, 3))
    assert not fewer[3:].any()


@pytest.mark.parametrize(
    ("make", "m", "part"), [(aligned, 10, slice(4)), (_ranging, ROWS, slice(3, 7))]
)
def test_an_array_within_a_larger_one_does_not_grow_over_what_follows(make, m, part):
    whole = _filled(make, m)
    longer = grown(whole[part], 4, 8)
    assert np.array_equal(longer[:4], whole[part])
    longer[:] = -1
    assert np.array_equal(whole, _filled(aligned, m))


def test_an_array_of_no_width_grows():
    assert grown(_ranging(ROWS, 0, np.uint64), ROWS, 2 * ROWS).shape == (2 * ROWS, 0)


@needs_ranges
def test_what_was_not_written_is_not_counted():
    array = growing(2 * PAGE + 65, 16, np.int32)
    large = {0: 0, 1: 1, PAGE: 1, PAGE + 1: 2, 2 * PAGE: 2}
    assert {used: bytes_held(array, used) // LARGE_PAGE for used in large} == large
    assert bytes_held(array, 2 * PAGE + 1) == 2 * LARGE_PAGE + mmap.PAGESIZE
    assert bytes_held(array, 2 * PAGE + 65) == 2 * LARGE_PAGE + 2 * mmap.PAGESIZE
    assert bytes_held(growing(PAGE - 1, 16, np.int32), 1) == mmap.PAGESIZE
    copied = aligned(10, 16, np.int32)
    assert bytes_held(copied, 3) == copied.nbytes


_LIMITS_ITSELF = """
import resource, sys, numpy as np
from dmondrian.tree.memory import growing
def size():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
free = [growing(1 << 14, 16, np.int32) for _ in range(3)]
limit, before = 1 << 34, size()
resource.setrlimit(getattr(resource, sys.argv[1]), (limit, limit))
limited = [growing(1 << 14, 16, np.int32) for _ in range(3)]
print(before > 3 << 28, size() - before < 1 << 28)
"""


@needs_ranges
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_program_that_limits_itself_later_keeps_its_addresses(limit):
    run = subprocess.run(
        [sys.executable, "-c", _LIMITS_ITSELF, limit], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["True", "True"]
