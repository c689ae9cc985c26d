"""Arrays that grow in place.

To grow an array elsewhere takes both of them at once, a copy, and twice as many new pages of
memory, which cost more than the copy. So a large array is the beginning of a range of addresses,
which takes memory as far as it was written to, and none behind; and it grows by a larger length.
Memory comes in pages of 4 KiB or of 2 MiB. Large ones take less time, but the last of them takes
its 2 MiB however little of it is written, until what is behind is given back. So few are begun
before others are full: until then their place is taken in small ones.

Relies on Linux for that: on other systems, and where addresses are counted or limited, arrays are
copied. Promises zeros wherever nothing was written.

Shapes: rows of one width and type, so many as there is capacity for.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dmondrian._numba.intrinsics import CACHE_LINE

LEAST = 1 << 18  # bytes; smaller arrays are copied as they grow
_TIGHT = 1 << 16  # bytes; from here on an array that is copied gets a twelfth more, not half
_LEAST_MADE = 1 << 20  # bytes; smaller arrays begin in memory that others left: it is at hand
_AHEAD = 1024  # addresses for each byte: a tree is copied twice on its way to 256 GiB
LARGE_PAGE = 1 << 21  # bytes
_SPARED = 12  # one part in so many of an array may be room that takes memory ..
_WIDE = 512  # bytes; .. unless its rows have more: too much time would go into small pages
_COLLAPSE, _POPULATE = 25, 23  # MADV_.. of Linux, which mmap of Python 3.11 does not name
_PIECE = 1 << 24  # bytes, whole large pages, that are copied before they are given back
_NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, nor that
_NOWHERE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS if sys.platform != "win32" else 0  # of no file
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")  # 2: addresses count as memory


class _Range(mmap.mmap):
    """Addresses that belong to one array, however long it is."""

    large = 0  # bytes at its beginning for which large pages are asked for
    taken = 0  # bytes at its beginning that were taken, written or not

    @functools.cached_property
    def before(self) -> int:
        """The bytes before the first whole large page, which would be taken in small ones."""
        return int(-np.frombuffer(self, np.uint8).ctypes.data % LARGE_PAGE)

    def enlarge(self, end: int, written: int = 0) -> None:
        """Ask for large pages: for those that the first ``end`` bytes fill.

        What is ``written`` in small ones is copied (by Linux 6.1 and later; else it stays there).
        """
        written = max(written, self.taken)
        begin, end = self.large, min(end, len(self) - LARGE_PAGE) // LARGE_PAGE * LARGE_PAGE
        if end <= begin:
            return
        with contextlib.suppress(OSError):  # a kernel without large pages
            self.madvise(mmap.MADV_HUGEPAGE, self.before + begin, end - begin)
            self.large = end
            begun = min(-(-written // LARGE_PAGE) * LARGE_PAGE, end) - begin
            if begun > 0:
                self.madvise(_COLLAPSE, self.before + begin, begun)

    def take(self, end: int, written: int) -> None:
        """Take the pages up to ``end`` that are behind the first ``written`` bytes.

        By Linux 5.14 and later; else each comes when it is written to.
        """
        begin = max(self.taken, -(-written // mmap.PAGESIZE) * mmap.PAGESIZE)
        end = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
        if begin < end:
            try:
                self.madvise(_POPULATE, self.before + begin, end - begin)
                self.taken = end
            except OSError:  # no such advice, or not enough memory
                self.give_back(begin, end)

    def give_back(self, begin: int, end: int) -> None:
        """Give back the pages from ``begin`` to ``end``: zeros are there from now on."""
        with contextlib.suppress(OSError):  # memory that is locked
            self.madvise(mmap.MADV_DONTNEED, self.before + begin, end - begin)

    def trim(self, written: int) -> None:
        """Give back what was taken behind the first ``written`` bytes, which must be zeros.

        What large pages hold only if it is much. What is written next comes in small pages, until
        large ones are asked for again.
        """
        rest, end = -(-written // mmap.PAGESIZE) * mmap.PAGESIZE, self.large
        begun = -(-rest // LARGE_PAGE) * LARGE_PAGE
        behind = begun if begun <= end else rest
        if behind < self.taken:
            last = -(-self.taken // LARGE_PAGE) * LARGE_PAGE  # of a large page all was taken
            self.give_back(behind, max(self.taken, min(last, end)))
        self.taken = min(self.taken, rest)
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


def _is_filled_at_once() -> bool:
    """Tell whether memory is taken with its addresses: of a program that locks all it will get."""
    probe, is_there = mmap.mmap(-1, mmap.PAGESIZE, flags=_NOWHERE), (ctypes.c_ubyte * 1)()
    address = ctypes.c_void_p(np.frombuffer(probe, np.uint8).ctypes.data)
    _libc().mincore(address, ctypes.c_size_t(mmap.PAGESIZE), is_there)
    return bool(is_there[0] & 1)


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None)


def _reserved(n_bytes: int) -> tuple[_Range, np.ndarray] | None:
    """Return a range and its bytes, uint8 [more than ``n_bytes`` zeros]; None if there is none."""
    if not _are_addresses_free():
        return None
    flags, length = _NOWHERE | _NO_RESERVE, _AHEAD * n_bytes
    try:
        if _is_filled_at_once():
            return None
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
    """Return what :func:`aligned` does, of a large array with room behind it that takes nothing."""
    n_bytes = capacity * width * np.dtype(dtype).itemsize
    return _growing(capacity, width, dtype, n_bytes, _LEAST_MADE)


def _growing(capacity: int, width: int, dtype: Any, large: int, least: int) -> np.ndarray:
    """Return what :func:`growing` does, in the large pages that ``large`` bytes fill."""
    n_bytes = capacity * width * np.dtype(dtype).itemsize
    found = _reserved(n_bytes) if n_bytes >= least else None
    if found is None:
        return aligned(capacity, width, dtype)
    found[0].enlarge(large)
    return found[1][:n_bytes].view(dtype).reshape(capacity, width)


def least_of(arrays: Sequence[np.ndarray], capacity: int) -> int:
    """Return from how many bytes on each of these has a range: all, where the widest has one."""
    widest = max(array.shape[1] * array.itemsize for array in arrays)
    return 1 if capacity * widest >= LEAST else LEAST


def grown(
    array: np.ndarray,
    used: int,
    capacity: int,
    expected: int | None = None,
    least: int = LEAST,
) -> np.ndarray:
    """Return ``array`` [m, width] with ``capacity`` rows, of which the first ``used`` are kept.

    The array that was given is not to be used any more: the new one is the same memory where there
    is room behind it, or has taken it. It lies in large pages as far as these are full, and where
    little of them is room: beside what is used, or how many rows are ``expected``; wide rows lie
    in those that they begin. With fewer than ``least`` bytes it has no range.
    """
    found, row = _range_of(array), array.shape[1] * array.itemsize
    n_bytes, written = capacity * row, used * row
    is_little = written > _SPARED * LARGE_PAGE or (row > _WIDE and n_bytes > LARGE_PAGE)
    large = n_bytes + LARGE_PAGE - 1 if is_little else written
    if expected is not None:
        large = expected * row + expected * row // _SPARED
    if found is not None and capacity >= len(array) and n_bytes <= len(found[1]):
        found[0].enlarge(large, written)
        return found[1][:n_bytes].view(array.dtype).reshape(capacity, array.shape[1])
    new = _growing(capacity, array.shape[1], array.dtype, large, least)
    if found is None:
        new[:used] = array[:used]
        return new
    for first in range(0, written, _PIECE):  # so that the two never take much more than one
        last = min(first + _PIECE, written)
        new.reshape(-1).view(np.uint8)[first:last] = found[1][first:last]
        found[0].give_back(first, -(-last // mmap.PAGESIZE) * mmap.PAGESIZE)
    return new


def take(array: np.ndarray, used: int, more: int) -> None:
    """Take the memory of ``more`` rows behind the first ``used``, as far as there is room.

    At once it takes less time, and none of that when they are written.
    """
    found, row = _range_of(array), array.shape[1] * array.itemsize
    if found is not None:
        found[0].take(min(used + more, len(array)) * row, used * row)


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

    The widest of them decides. Half as many again, which are copied; where all of it ``is_kept`` a
    twelfth, once it is not little. Where it need not be copied twice as many, as memory is taken as
    it is written to, or up to 64 times where so many are ``expected``. Of what is kept, few large
    pages: each is asked for when it is full.
    """
    n = len(arrays[0])
    widths = [width for width in (array.shape[1] * array.itemsize for array in arrays) if width]
    room = 2 * n if is_kept else max(2 * n, min(expected, 64 * n))
    page = LARGE_PAGE // max(widths)
    if is_kept and n <= _SPARED * page and max(widths) <= _WIDE:
        room = min(room, (n // page + 1) * page)
    is_large = room * max(widths) >= LEAST
    if is_large and _are_addresses_free():
        return room
    is_tight = is_kept and n * max(widths) >= _TIGHT and not is_large
    return n + n // (_SPARED if is_tight else 2)


def bytes_held(array: np.ndarray, used: int) -> int:
    """Return the bytes of memory that the array takes, of which ``used`` rows were written.

    Where the system has no large page to give they are fewer, by less than one.
    """
    found = _range_of(array)
    if found is None:
        return array.nbytes
    large = found[0].large
    written = max(used * array.shape[1] * array.itemsize, found[0].taken)
    page = LARGE_PAGE if written <= large else mmap.PAGESIZE  # such bytes are whole pages
    return -(-written // page) * page
