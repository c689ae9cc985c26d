"""Arrays of nodes grow by copies, and keep what was written."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from dmondrian.tree.memory import (
    aligned,
    bytes_held,
    next_capacity,
    release,
    resized,
)

HUGE = 1 << 21  # bytes of a huge page
PAGES = Path("/proc/self/pagemap")  # 64 bits for each page: 63 it is there, 62 swapped out


def _filled(capacity: int) -> np.ndarray:
    array = aligned(capacity, 16, np.int32)
    array[:] = np.arange(array.size).reshape(array.shape)
    return array


@pytest.mark.parametrize("capacity", [0, 1, 3, 100, 5000, 40_000])
@pytest.mark.parametrize(("used", "soon"), [(0, 0), (0, 39_000), (39_000, 40_000)])
@pytest.mark.parametrize(("width", "dtype"), [(16, np.int32), (5, np.float32), (0, np.uint64)])
def test_arrays_are_zeros_that_begin_with_a_cache_line(capacity, used, soon, width, dtype):
    array = aligned(capacity, width, dtype, min(used, capacity), min(soon, capacity))
    assert (array.shape, array.dtype) == ((capacity, width), np.dtype(dtype))
    assert array.ctypes.data % 64 == 0 or not array.size
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert not array.any()


@pytest.mark.parametrize(
    ("used", "capacity"), [(3, 7), (7, 7), (5000, 5001), (0, 4), (40_000, 60_000), (40_000, 9)]
)
@pytest.mark.parametrize("is_filled_soon", [False, True])
def test_what_was_written_is_kept_and_zeros_follow(used, capacity, is_filled_soon):
    array, used = _filled(max(used, 5)), min(used, capacity)
    soon = capacity if is_filled_soon else 0
    longer = resized(array, used, capacity, soon)
    assert longer.shape == (capacity, 16)
    assert np.array_equal(longer[:used], array[:used])
    assert not longer[used:].any()
    longer[:] = -1
    assert np.array_equal(array, _filled(len(array)))  # it has memory of its own


def test_growing_copies_less_than_three_times_what_is_kept():
    capacity, copied, none = 64, 0, np.empty((64, 0), np.uint64)
    while capacity < 10**6:
        copied += capacity
        arrays = np.empty((capacity, 16), np.int32), none
        assert capacity < next_capacity(arrays) <= 8 * capacity
        capacity = next_capacity(arrays)
        assert copied < 3 * capacity  # however many these are


def _resident(array: np.ndarray) -> int:
    """Return the bytes of the array's pages that are in memory, by the kernel's own account.

    Page by page: the system may count two arrays that lie side by side as one.
    """
    n_pages = -(-array.nbytes // mmap.PAGESIZE)
    descriptor = os.open(PAGES, os.O_RDONLY)
    try:
        entries = os.pread(descriptor, 8 * n_pages, 8 * (array.ctypes.data // mmap.PAGESIZE))
    finally:
        os.close(descriptor)
    is_held = np.frombuffer(entries, np.uint64) >> np.uint64(62) > 0  # there, or swapped out
    assert len(is_held) == n_pages
    return mmap.PAGESIZE * int(is_held.sum())


@pytest.mark.parametrize(("rows", "used"), [(10**6, 0), (10**6, 1), (10**6, 10**6), (10**5, 1),
                                            (10**5, 60_000), (100, 1)])  # fmt: skip
def test_memory_is_held_for_what_was_written_and_at_most_a_huge_page_more(rows, used):
    array = aligned(rows, 16, np.int32)
    array[:used] = 1
    held, needed = bytes_held(array, used), used * array[:1].nbytes
    assert needed <= held <= min(needed + HUGE, array.nbytes + mmap.PAGESIZE)
    if PAGES.exists() and rows > 100:  # a small array shares its pages
        assert _resident(array) <= held


@pytest.mark.skipif(not PAGES.exists(), reason="Linux shows what is resident")
@pytest.mark.parametrize(("rows", "kept"), [(100_000, mmap.PAGESIZE), (400_000, HUGE)])
def test_released_memory_goes_back_and_what_was_written_stays(rows, kept):
    array, used = aligned(rows, 16, np.int32, soon=rows), rows // 2 + 1
    array[:] = 7
    assert _resident(array) >= array.nbytes
    array[used:] = 0
    release(array, used)
    assert (array[:used] == 7).all()
    assert _resident(array) <= bytes_held(array, used) <= used * 64 + kept
    assert not array[used:].any()
    array[used:] = 9  # it can be filled again
    assert (array[used:] == 9).all()
    release(aligned(10, 16, np.int32), 5)  # a small one has no pages of its own


def test_an_array_that_the_system_has_no_memory_for():
    with pytest.raises(MemoryError, match="no 4611686018427387904 bytes"):
        aligned(2**60, 1, np.float32)
