"""Arrays of nodes grow by copies, and keep what was written."""

import mmap

import numpy as np
import pytest

from dmondrian.tree.memory import aligned, bytes_held, is_spacious, next_capacity, resized


def _filled(capacity: int) -> np.ndarray:
    array = aligned(capacity, 16, np.int32)
    array[:] = np.arange(array.size).reshape(array.shape)
    return array


@pytest.mark.parametrize("capacity", [0, 1, 3, 100, 5000, 40_000])
@pytest.mark.parametrize("used", [0, 39_000])
@pytest.mark.parametrize(("width", "dtype"), [(16, np.int32), (5, np.float32), (0, np.uint64)])
def test_arrays_are_zeros_that_begin_with_a_cache_line(capacity, used, width, dtype):
    array = aligned(capacity, width, dtype, min(used, capacity))
    assert (array.shape, array.dtype) == ((capacity, width), np.dtype(dtype))
    assert array.ctypes.data % 64 == 0 or not array.size
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert not array.any()


@pytest.mark.parametrize(
    ("used", "capacity"), [(3, 7), (7, 7), (5000, 5001), (0, 4), (40_000, 60_000), (40_000, 9)]
)
def test_what_was_written_is_kept_and_zeros_follow(used, capacity):
    array, used = _filled(max(used, 5)), min(used, capacity)
    longer = resized(array, used, capacity)
    assert longer.shape == (capacity, 16)
    assert np.array_equal(longer[:used], array[:used])
    assert not longer[used:].any()
    longer[:] = -1
    assert np.array_equal(array, _filled(len(array)))  # it has memory of its own


def test_capacities_grow_by_a_share_of_themselves():
    """So that the bytes copied in all are a multiple of those kept, however many these are."""
    capacity, copied, none = 64, 0, np.empty((64, 0), np.uint64)
    while capacity < 10**6:
        copied += capacity
        arrays = np.empty((capacity, 16), np.int32), none
        assert 1.1 * capacity < next_capacity(arrays) <= 2 * capacity
        capacity = next_capacity(arrays)
    assert copied < 2 * capacity


def test_spare_capacity_of_large_arrays_takes_no_memory():
    large, small = aligned(10**6, 16, np.int32), aligned(100, 16, np.int32)
    assert bytes_held(large, 0) == 0
    assert bytes_held(large, 1) == mmap.PAGESIZE
    assert bytes_held(large, 10**6) == large.nbytes
    assert bytes_held(small, 1) == small.nbytes
    assert not is_spacious(large, 1)
    assert is_spacious(small, 50)
    assert not is_spacious(small, 99)


def test_an_array_that_the_system_has_no_memory_for():
    with pytest.raises(MemoryError, match="no 4611686018427387904 bytes"):
        aligned(2**60, 1, np.float32)
