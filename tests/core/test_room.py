"""Arrays that grow where they are."""

import copy
import mmap
import os
import pathlib
import pickle
import platform
import re
import resource
import subprocess
import sys

import numpy as np
import pytest

from dmondrian import AMFRegressor
from dmondrian.core import nodes
from dmondrian.core.room import (
    LARGE_PAGE,
    LEAST,
    aligned,
    bytes_held,
    growing,
    grown,
    next_capacity,
)

ROWS = LEAST // 64  # rows of 16 words that fill the least range
PAGE = LARGE_PAGE // 64  # and a large page

needs_ranges = pytest.mark.skipif(
    sys.platform != "linux"
    or max(resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)) >= 0,
    reason="addresses are limited here",
)

_ENABLED = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
needs_large_pages = pytest.mark.skipif(
    not _ENABLED.exists() or "[never]" in _ENABLED.read_text(), reason="no large pages here"
)
RELEASE = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])


def _filled(make, capacity):
    array = make(capacity, 16, np.int32)
    array[:] = np.arange(array.size).reshape(array.shape)
    return array


@needs_ranges
def test_a_large_array_grows_where_it_is():
    array = _filled(growing, ROWS)
    longer = grown(array, ROWS, PAGE)
    assert longer.ctypes.data == array.ctypes.data
    assert longer.shape == (PAGE, 16)
    assert longer.flags.c_contiguous
    assert longer.dtype == np.int32
    assert np.array_equal(longer[:ROWS], array)
    assert not longer[ROWS:].any()
    assert longer[ROWS - 1, 15] == array[-1, -1]


@needs_ranges
def test_an_array_goes_over_to_large_pages_where_it_is():
    array = _filled(growing, ROWS)
    longer = grown(array, ROWS, 9 * PAGE)
    assert longer.ctypes.data == array.ctypes.data
    assert np.array_equal(longer[:ROWS], _filled(aligned, ROWS))
    assert not longer[ROWS:].any()


@needs_ranges
@pytest.mark.parametrize("more", [1, 2, 1000, PAGE])
def test_an_array_in_large_pages_begins_with_one(more):
    arrays = [growing(PAGE + more, 16, np.int32) for _ in range(3)]  # next to each other, mostly
    assert [array.ctypes.data % LARGE_PAGE for array in arrays] == [0, 0, 0]


@needs_ranges
def test_a_full_range_is_left_for_a_larger_one():
    array = _filled(growing, PAGE + 1)
    end = 256 * (PAGE + 1)
    within, beyond = grown(array, 3, end), grown(array, 3, end + 1)
    assert within.ctypes.data == array.ctypes.data
    assert beyond.ctypes.data != array.ctypes.data
    assert np.array_equal(beyond[:3], array[:3])
    assert not beyond[3:5].any()


@needs_ranges
@pytest.mark.parametrize(
    ("n", "expected", "capacity"),
    [
        (100, 150, 150),  # copied
        (100, 10**6, 150),  # and twice as many would be
        (ROWS // 2, 0, ROWS),  # large enough for a range of addresses
        (ROWS // 4, ROWS, ROWS),
        (ROWS // 4, ROWS - 1, ROWS // 4 + ROWS // 8),
        (PAGE // 4 - 1, 10**9, PAGE // 4 - 1 + PAGE // 8 - 1),  # not a quarter of a large page
        (PAGE // 4, 10**9, 2 * PAGE),
        (ROWS, ROWS + 1, 2 * ROWS),
        (ROWS, 3 * ROWS, 3 * ROWS),
        (ROWS, 10**9, 8 * ROWS),
        (PAGE - 1, PAGE, PAGE),  # ends with a page that it is not expected to fill
        (PAGE - 1, PAGE + 1, 2 * PAGE - 2),
        (PAGE, PAGE, 2 * PAGE),
        (PAGE + 1, 0, 2 * PAGE + 2),
    ],
)
def test_capacities_follow_from_what_memory_costs(n, expected, capacity):
    wide, none = growing(n, 16, np.int32), np.empty((n, 0), np.uint64)
    assert next_capacity((wide, none), expected) == capacity
    narrow = np.empty((n, 1), np.int32)  # copied, unless there is more of it
    assert next_capacity((wide, narrow), expected) == (n + n // 2)


@needs_ranges
def test_a_wide_array_waits_until_a_quarter_of_its_large_page_is_full():
    n = PAGE // 8
    wide, narrow = growing(n, 100, np.int32), growing(n, 16, np.int32)
    assert next_capacity((narrow, wide), 10**9) == n + n // 2
    n = PAGE // 4
    wide, narrow = growing(n, 100, np.int32), growing(n, 16, np.int32)
    assert next_capacity((narrow, wide), 10**9) == 8 * n


def test_room_is_not_made_for_more_nodes_than_a_tree_may_have():
    rng = np.random.default_rng(0)
    X = rng.random((40_000, 16), np.float32)
    capped = AMFRegressor(1, max_nodes=12_000, random_state=0, feature_scales=None)
    assert len(capped.fit(X, X[:, 0]).forest_.trees[0].i) < 2 * 12_000


def _told_of(array):
    """Return what Linux tells of the memory that begins with the array: words by name."""
    address, told = array.ctypes.data, {}
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        name, *words = line.split()
        if not name.endswith(":"):
            first, last = (int(end, 16) for end in name.split("-"))
            is_here = first <= address < last
            told = {"at": [name]} if is_here else told
        elif is_here:
            told[name[:-1]] = words
    return told


def _pages(array):
    """Tell of each whole or begun large page of an array whether it is to be large."""
    lasts = [min(first + PAGE, len(array)) - 1 for first in range(0, len(array), PAGE)]
    found = [_told_of(array[first:])["VmFlags"] for first in range(0, len(array), PAGE)]
    assert found == [_told_of(array[last:])["VmFlags"] for last in lasts]
    return ["hg" in flags for flags in found]


@needs_ranges
@needs_large_pages
def test_pages_that_will_be_full_are_large():
    assert _pages(growing(2 * PAGE + 1, 16, np.int32)) == [True, True, False]
    array = growing(PAGE - 1, 16, np.int32)
    assert _pages(array) == [False]
    assert "nh" in _told_of(array)["VmFlags"]  # else a kernel that always gives them does it here
    assert _pages(grown(array, 9, PAGE, 5 * PAGE)) == [False]  # all that is expected may not come
    assert _pages(grown(array, 9, PAGE + 1, PAGE - 1)) == [False, False]
    assert _pages(grown(array, 9, 2 * PAGE, 2 * PAGE - 1)) == [True, False]
    assert _pages(grown(array, 9, 4 * PAGE, 3 * PAGE)) == [True, True, True, False]
    assert _pages(grown(array, 9, 4 * PAGE + 1)) == [True] * 5  # more rows may come
    elsewhere = grown(aligned(9, 16, np.int32), 9, 2 * PAGE, 2 * PAGE - 1)
    assert _pages(elsewhere) == [True, False]


@needs_ranges
def test_more_may_be_expected_than_there_are_addresses():
    array = growing(PAGE, 16, np.int32)
    for expected in (10**9, 10**10):
        array = grown(array, 9, 2 * PAGE, expected)
        array[-1] = 1
        assert bytes_held(array, 2 * PAGE) == 2 * LARGE_PAGE


@needs_ranges
@needs_large_pages
@pytest.mark.skipif(RELEASE < (6, 1), reason="no large pages are made of small ones here")
@pytest.mark.parametrize("n_pages", [0, 3])
def test_what_was_written_before_large_pages_is_copied_into_one(n_pages):
    m = n_pages * PAGE + PAGE - 1
    array = growing(m, 16, np.int32)
    array[:] = 7
    assert _large(array) == n_pages * LARGE_PAGE
    assert bytes_held(array, m) == _large(array) + LARGE_PAGE
    longer = grown(array, m, 9 * PAGE)
    assert longer.ctypes.data == array.ctypes.data
    assert bytes_held(longer, m) == _large(longer) == (n_pages + 1) * LARGE_PAGE
    assert (longer[:m] == 7).all()
    assert not longer[m:].any()


def _large(array):
    """Return how many bytes of the memory where the array is lie in large pages."""
    step = LARGE_PAGE // array[:1].nbytes
    told = {}
    for first in range(0, len(array), step):  # neighbours need not be one piece of memory
        found = _told_of(array[first:])
        told[found["at"][0]] = int(found["AnonHugePages"][0])
    return 1024 * sum(told.values())


@needs_ranges
@needs_large_pages
@pytest.mark.skipif(RELEASE < (6, 1), reason="no large pages are made of small ones here")
@pytest.mark.parametrize("batch", [10_000, 25_000])
def test_trees_of_many_batches_lie_in_large_pages(batch):
    X = np.random.default_rng(0).random((100_000, 3), np.float32)
    forest = AMFRegressor(n_estimators=1, random_state=0, feature_scales=None)
    for first in range(0, len(X), batch):
        forest.partial_fit(X[first : first + batch], X[first : first + batch, 0])
    used = 200_000 * 64
    # A system that is short of large pages gives fewer.
    assert _large(forest.forest_.trees[0].i) > used / 2


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
    array = _filled(growing, ROWS)
    fewer = grown(array, 3, 7)
    assert np.array_equal(fewer[:3], array[:3])
    assert not fewer[3:].any()


@pytest.mark.parametrize(
    ("make", "m", "part"), [(aligned, 10, slice(4)), (growing, ROWS, slice(3, 7))]
)
def test_an_array_within_a_larger_one_does_not_grow_over_what_follows(make, m, part):
    whole = _filled(make, m)
    longer = grown(whole[part], 4, 8)
    assert np.array_equal(longer[:4], whole[part])
    longer[:] = -1
    assert np.array_equal(whole, _filled(aligned, m))


def test_an_array_of_no_width_grows():
    assert grown(growing(ROWS, 0, np.uint64), ROWS, 2 * ROWS).shape == (2 * ROWS, 0)


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


def _bytes_per_node(n, batch, w=None):
    X = np.random.default_rng(0).random((n, 3), np.float32)
    forest = AMFRegressor(n_estimators=2, random_state=0, feature_scales=None)
    for first in range(0, n, batch):
        forest.partial_fit(X[first : first + batch], X[first : first + batch, 0], sample_weight=w)
    return forest.forest_.n_bytes / forest.forest_.n_nodes


@needs_ranges
@pytest.mark.parametrize("n", [1000, 3000, 7000, 12_000, 18_000, 30_000, 50_000])
def test_rows_that_come_at_once_leave_little_room_to_spare(n):
    """Of 88 bytes: 64 of words, 24 of boxes (3 features)."""
    assert _bytes_per_node(n, n) < 1.12 * 88


@needs_ranges
@pytest.mark.parametrize("weight", [0.001, 50.0, 1e9])
def test_so_they_do_whatever_they_weigh(weight):
    assert _bytes_per_node(20_000, 20_000, np.full(20_000, weight)) < 1.12 * 88


@needs_ranges
def test_rows_that_come_by_a_few_find_room_in_large_pages():
    """At this size more than a whole one of them is room."""
    assert _bytes_per_node(36_000, 1000) * 72_000 - 88 * 72_000 > LARGE_PAGE / 2


def _grown_forest():
    rng = np.random.default_rng(0)
    X = rng.random((12_000, 3), np.float32)
    forest = AMFRegressor(n_estimators=1, random_state=0, feature_scales=None)
    return forest.partial_fit(X[:9000], X[:9000, 0]), X


@pytest.mark.parametrize("same", [copy.deepcopy, lambda forest: pickle.loads(pickle.dumps(forest))])
def test_a_copy_grows_apart(same):
    forest, X = _grown_forest()
    assert forest.forest_.trees[0].i.nbytes > LEAST
    other = same(forest)
    before = forest.predict(X)
    other.partial_fit(X[9000:], X[9000:, 1])
    assert np.array_equal(forest.predict(X), before)
    assert int(forest.forest_.trees[0].head_i[nodes.N_NODES]) == 2 * 9000 - 1
    forest.partial_fit(X[9000:], X[9000:, 0])
    assert not np.array_equal(forest.predict(X), other.predict(X))


_LIMITS_ITSELF = """
import resource, sys, numpy as np
from dmondrian.core.room import growing
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


_RUN = """
import hashlib, pathlib, resource, sys
import numpy as np
from dmondrian import AMFRegressor
def peak():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
if sys.argv[1] == "limited":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
X = np.random.default_rng(0).random((150_000, 3), np.float32)
forest = AMFRegressor(n_estimators=1, random_state=0, feature_scales=None)
forest.partial_fit(X[:1000], X[:1000, 0])
forest.predict(X[:10])
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
before = peak()
forest.partial_fit(X[:20_000], X[:20_000, 0])
for first in range(20_000, len(X), 1000):
    forest.partial_fit(X[first : first + 1000], X[first : first + 1000, 0])
grown = peak() - before
state = forest.forest_.state()[1][0]
digest = hashlib.sha256(b"".join(state[name].tobytes() for name in sorted(state))).hexdigest()
print(digest, grown / forest.forest_.n_bytes)
"""


@needs_ranges
def test_growth_takes_little_more_memory_than_the_tree_and_leaves_its_bytes():
    """A single tree, the worst case: what is copied is the whole forest."""
    told = {}
    for how in ("free", "limited"):
        run = subprocess.run(
            [sys.executable, "-c", _RUN, how], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )  # fmt: skip
        told[how] = run.stdout.split()
    assert told["free"][0] == told["limited"][0]
    assert float(told["free"][1]) < 1.3 < float(told["limited"][1])
