"""Arrays of nodes: aligned, and longer ones in their place.

An array that is full is copied to a longer one. Large arrays lie in pages of their own, which the
system gives when they are first written to: spare capacity takes none, and all of them go back with
the array, where a heap would keep holes between trees that grow in turn. So a large array gets
eight times the capacity, and its bytes are seldom copied; a small one, half as much again.

Pages are huge ones, of which the system needs few, where that wastes little: where an array is
filled soon, after which :func:`release` gives back the rest, and those of the largest arrays.

Promises zeros wherever nothing was written.

Shapes: rows of one width and type, as many as there is capacity for.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from dmondrian._numba.intrinsics import CACHE_LINE
from dmondrian._numba.mechanisms import uses

_LARGE = 1 << 16  # bytes of an array from which on it has pages of its own
_TIMES = 8 if sys.platform != "win32" else 2  # as many rows; on Windows all addresses are memory
_HUGE_PAGE = 1 << 21  # bytes
_MANY_HUGE = 1 << 23  # bytes in use from which on a part of a huge page is little
_SPARE = 2  # capacity of a small array beyond this part of it is worth a copy without it
_FLAGS = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}


class _Pages(mmap.mmap):
    """Pages of one array.

    Attributes
    ----------
    n_huge : int
        Bytes at its beginning that lie in huge pages.
    """

    n_huge = 0


def _pages(n_bytes: int, used: int, soon: int) -> np.ndarray:
    """Return zeros, uint8 [n_bytes], in pages of their own: huge ones where these are filled."""
    try:
        memory = _Pages(-1, n_bytes, **_FLAGS)
    except OSError as error:
        raise MemoryError(f"the system has no {n_bytes} bytes for an array of nodes") from error
    is_filled = used >= _MANY_HUGE or (soon > used and 2 * soon >= _HUGE_PAGE)
    is_huge = is_filled and hasattr(mmap, "MADV_HUGEPAGE") and uses("huge_pages")
    memory.n_huge = n_bytes if is_huge else 0
    _advise(memory, "MADV_HUGEPAGE", 0, memory.n_huge)
    _advise(memory, "MADV_NOHUGEPAGE", memory.n_huge, n_bytes)
    return np.frombuffer(memory, np.uint8)


def _pages_of(array: np.ndarray) -> _Pages:
    """Return the pages of a large array."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    pages: _Pages = owner.obj  # of a memoryview
    return pages


def _advise(memory: mmap.mmap, advice: str, first: int, last: int) -> None:
    """Give the system this advice on some bytes, where it takes any."""
    if first < last and hasattr(mmap, advice):
        memory.madvise(getattr(mmap, advice), first, last - first)


def aligned(capacity: int, width: int, dtype: Any, used: int = 0, soon: int = 0) -> np.ndarray:
    """Return zeros of shape (capacity, width) that begin with a cache line.

    ``used`` is how many of the rows are written now, in order, ``soon`` how many before
    :func:`release`.
    """
    row = width * np.dtype(dtype).itemsize
    n_bytes = capacity * row
    if n_bytes >= _LARGE:
        pages = _pages(n_bytes, used * row, soon * row)
        return pages.view(dtype).reshape(capacity, width)
    memory = np.zeros(n_bytes + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + n_bytes].view(dtype).reshape(capacity, width)


def resized(array: np.ndarray, used: int, capacity: int, soon: int = 0) -> np.ndarray:
    """Return a copy of the first ``used`` rows of ``array``, with ``capacity`` rows.

    ``soon`` is as in :func:`aligned`.
    """
    new = aligned(capacity, array.shape[1], array.dtype, used, soon)
    new[:used] = array[:used]
    return new


def release(array: np.ndarray, used: int) -> None:
    """Give the memory behind the first ``used`` rows of a large array back; nothing is in it.

    But for the rest of the last huge page, where it is little beside what is used.
    """
    if array.nbytes < _LARGE:
        return
    pages, filled = _pages_of(array), used * array[:1].nbytes
    if filled < _MANY_HUGE:
        pages.n_huge = min(pages.n_huge, filled // _HUGE_PAGE * _HUGE_PAGE)
        _advise(pages, "MADV_NOHUGEPAGE", pages.n_huge, array.nbytes)
    page = _HUGE_PAGE if filled < pages.n_huge else mmap.PAGESIZE
    _advise(pages, "MADV_DONTNEED", _whole(filled, page), array.nbytes)


def _whole(n_bytes: int, page: int) -> int:
    """Return the bytes of so many pages as hold ``n_bytes``."""
    return -(-n_bytes // page) * page


def next_capacity(arrays: Iterable[np.ndarray]) -> int:
    """Return how many rows arrays of equally many get when they are full."""
    n, n_bytes = max((len(array), array.nbytes) for array in arrays)
    return _TIMES * n if n_bytes >= _LARGE else n + n // 2


def bytes_held(array: np.ndarray, used: int) -> int:
    """Return the bytes of memory that an array takes of which ``used`` rows were written."""
    if array.nbytes < _LARGE:
        return array.nbytes
    filled = used * array[:1].nbytes
    page = _HUGE_PAGE if filled < _pages_of(array).n_huge else mmap.PAGESIZE
    return min(_whole(filled, page), _whole(array.nbytes, mmap.PAGESIZE))


def is_spacious(array: np.ndarray, used: int) -> bool:
    """Return whether the spare capacity takes so much memory that a copy without it pays."""
    return array.nbytes < _LARGE and len(array) > used + used // _SPARE
