"""Arrays with room to grow where they are.

To grow an array elsewhere takes both of them at once, a copy, and twice as many new pages of
memory, which cost more than the copy. So a large array is the beginning of a range of addresses,
which takes memory as far as it was written to, and none behind; and it grows by being told longer.
Memory comes in pages of 4 KiB or of 2 MiB. Large ones take less time, but the last of them takes
its 2 MiB however little of it is written, until what is behind is given back.

Relies on Linux for that: on other systems, and where addresses are counted or limited, arrays are
copied. Promises zeros wherever nothing was written.

Shapes: rows of one width and type, so many as there is capacity for.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dmondrian._memory import CACHE_LINE

LEAST = 1 << 20  # bytes; smaller arrays are copied
_AHEAD = 256  # addresses for each byte: a tree is copied twice on its way to 64 GiB
LARGE_PAGE = 1 << 21  # bytes
_SPARED = 8  # one part in so many of an array may be room in its last large page
_FEW = 5  # large pages of an array; room in the last of more is little beside them
_COLLAPSE = 25  # MADV_COLLAPSE of Linux, which mmap of Python does not name
_NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, which mmap of Python 3.11 does not name
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")  # 2: addresses count as memory


class _Range(mmap.mmap):
    """Addresses that belong to one array, however long it is."""

    large = 0  # bytes at its beginning for which large pages are asked for

    @functools.cached_property
    def before(self) -> int:
        """The bytes before the first whole large page, which would be taken in small ones."""
        return int(-np.frombuffer(self, np.uint8).ctypes.data % LARGE_PAGE)

    def enlarge(self, end: int, written: int = 0) -> None:
        """Ask for large pages: for those that the first ``end`` bytes fill.

        What is ``written`` in small ones is copied (by Linux 6.1 and later; else it stays there).
        """
        begin, end = self.large, min(end, len(self) - LARGE_PAGE) // LARGE_PAGE * LARGE_PAGE
        if end <= begin:
            return
        with contextlib.suppress(OSError):  # a kernel without large pages
            self.madvise(mmap.MADV_HUGEPAGE, self.before + begin, end - begin)
            self.large = end
            begun = min(-(-written // LARGE_PAGE) * LARGE_PAGE, end) - begin
            if begun > 0:
                self.madvise(_COLLAPSE, self.before + begin, begun)

    def trim(self, written: int) -> None:
        """Give back what large pages hold behind the first ``written`` bytes, if that is much.

        That is more than an eighth of them, and must be zeros. What is written next comes in
        small pages, until large ones are asked for again.
        """
        rest, end = -(-written // mmap.PAGESIZE) * mmap.PAGESIZE, self.large
        begun = -(-rest // LARGE_PAGE) * LARGE_PAGE
        if begun <= end and _SPARED * (begun - rest) > written:
            begin = begun - LARGE_PAGE
            # The first call has the page split; else the system would have nothing of it back.
            with contextlib.suppress(OSError):  # memory that is locked
                self.madvise(mmap.MADV_FREE, self.before + rest, begun - rest)
                self.madvise(mmap.MADV_DONTNEED, self.before + rest, begun - rest)
                self.madvise(mmap.MADV_NOHUGEPAGE, self.before + begin, end - begin)
                self.large = begin


@functools.cache
def _is_counted() -> bool:
    """Tell whether this machine counts addresses as memory."""
    try:
        return _OVERCOMMIT.read_text().strip() == "2"
    except OSError:
        return True


def _are_addresses_free() -> bool:
    """Tell so of this moment: a program may limit itself at any time.

    What it reserved before counts under such a limit all the same.
    """
    if sys.platform != "linux" or _is_counted():
        return False
    import resource

    kinds = resource.RLIMIT_AS, resource.RLIMIT_DATA  # what may be written to is data
    return all(resource.getrlimit(kind)[0] == resource.RLIM_INFINITY for kind in kinds)


def _reserved(n_bytes: int) -> tuple[_Range, np.ndarray] | None:
    """Return a range and its bytes, uint8 [more than ``n_bytes`` zeros]; None if there is none."""
    if n_bytes < LEAST or not _are_addresses_free():
        return None
    flags, length = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE, _AHEAD * n_bytes
    try:
        addresses = _Range(-1, length + LARGE_PAGE, flags=flags)
    except (OSError, ValueError):  # no such range is left
        return None
    with contextlib.suppress(OSError):  # a kernel without large pages
        addresses.madvise(mmap.MADV_NOHUGEPAGE)  # one that always gives them would do it here
    return addresses, np.frombuffer(addresses, np.uint8, length, addresses.before)


def _range_of(array: np.ndarray) -> tuple[_Range, np.ndarray] | None:
    """Return the range whose beginning the array is, itself and as bytes; None if it has none."""
    whole = array.base
    owner = getattr(whole, "base", None)
    if isinstance(owner, memoryview):
        owner = owner.obj
    if whole is None or not isinstance(owner, _Range) or array.ctypes.data != whole.ctypes.data:
        return None
    return owner, whole


def aligned(capacity: int, width: int, dtype: Any) -> np.ndarray:
    """Return zeros of shape (capacity, width) that begin with a cache line."""
    n_bytes = capacity * width * np.dtype(dtype).itemsize
    room = np.zeros(n_bytes + CACHE_LINE, np.uint8)
    start = -room.ctypes.data % CACHE_LINE
    return room[start : start + n_bytes].view(dtype).reshape(capacity, width)


def growing(capacity: int, width: int, dtype: Any) -> np.ndarray:
    """Return what :func:`aligned` does, with room behind it where that takes no memory."""
    return _growing(capacity, width, dtype, capacity * width * np.dtype(dtype).itemsize)


def _growing(capacity: int, width: int, dtype: Any, large: int) -> np.ndarray:
    """Return what :func:`growing` does, in the large pages that ``large`` bytes fill."""
    n_bytes = capacity * width * np.dtype(dtype).itemsize
    found = _reserved(n_bytes)
    if found is None:
        return aligned(capacity, width, dtype)
    found[0].enlarge(large)
    return found[1][:n_bytes].view(dtype).reshape(capacity, width)


def grown(
    array: np.ndarray,
    used: int,
    capacity: int,
    expected: int | None = None,
    is_slow: bool = False,
) -> np.ndarray:
    """Return ``array`` [m, width] with ``capacity`` rows, of which the first ``used`` are kept.

    It is the same memory where there is room behind it: then the array that was given must not
    grow a second time, as both would be written to. An array that is longer than a large page lies
    in such; where it is told how many rows are ``expected``, in those that they fill, and one more
    if little of it is room; where it ``is_slow`` to fill them, and has few yet, in those that are
    full.
    """
    found, row = _range_of(array), array.shape[1] * array.itemsize
    n_bytes = capacity * row
    large = n_bytes + LARGE_PAGE - 1 if n_bytes > LARGE_PAGE else 0
    if is_slow and used * row <= _FEW * LARGE_PAGE:
        large = used * row
    if expected is not None:
        large = expected * row + expected * row // _SPARED
    if found is not None and capacity >= len(array) and n_bytes <= len(found[1]):
        found[0].enlarge(large, used * row)
        return found[1][:n_bytes].view(array.dtype).reshape(capacity, array.shape[1])
    new = _growing(capacity, array.shape[1], array.dtype, large)
    new[:used] = array[:used]
    return new


def trimmed(array: np.ndarray, used: int) -> np.ndarray:
    """Return the first ``used`` rows of ``array``, and give back most of what is behind them.

    Nothing may have been written there. An array that does not grow where it is stays as it is.
    """
    found = _range_of(array)
    if found is None:
        return array
    n_bytes = used * array.shape[1] * array.itemsize
    found[0].trim(n_bytes)
    return found[1][:n_bytes].view(array.dtype).reshape(used, array.shape[1])


def next_capacity(arrays: Sequence[np.ndarray], expected: int, is_kept: bool = True) -> int:
    """Return how many rows arrays of equally many should have room for when they are full.

    Half as many again, which are copied. Where nothing is copied twice as many, or up to 64 times
    where so many are ``expected``: memory is taken as it is written to. But a large page is taken
    as a whole. Where all of it ``is_kept``, an array that is not expected to fill one ends before
    it, once; one that is has to have filled a quarter of it, as not all comes that is expected; and
    there is room for eight times as many at most.
    """
    n = len(arrays[0])
    room = max(2 * n, min(expected, (8 if is_kept else 64) * n))
    widths = [width for width in (array.shape[1] * array.itemsize for array in arrays) if width]
    for end in (LARGE_PAGE // width for width in widths if is_kept):
        if n < end and expected <= end:
            room = min(room, end)
        elif 4 * n < end:
            room = min(room, 2 * n)
    if room * min(widths) < LEAST or not _are_addresses_free():
        return n + n // 2
    return room


def bytes_held(array: np.ndarray, used: int) -> int:
    """Return the bytes of memory that the array takes, of which ``used`` rows were written.

    Where the system has no large page to give they are fewer, by less than one.
    """
    found = _range_of(array)
    if found is None:
        return array.nbytes
    written, large = used * array.shape[1] * array.itemsize, found[0].large
    page = LARGE_PAGE if written <= large else mmap.PAGESIZE  # such bytes are whole pages
    return -(-written // page) * page
