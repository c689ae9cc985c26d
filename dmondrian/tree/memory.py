"""Arrays of nodes: aligned, and longer ones in their place.

An array that is full is copied to a longer one. Large arrays lie in pages of their own, which the
system gives when they are first written to: spare capacity takes none, and all of them go back with
the array, where a heap would keep holes between trees that grow in turn. So a large array becomes
twice as long, for which its bytes are copied once on average; a small one, longer by an eighth.

Pages are huge ones, of which the system needs few, where that wastes little: where an array is
filled soon, after which :func:`release` gives back the rest, and all over the largest arrays.

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

_LARGE = 1 << 17  # bytes of an array from which on it has pages of its own
_HUGE_PAGE = 1 << 21  # bytes
_ALL_HUGE = 1 << 24  # bytes of an array, half of them in use, from which on all pages are huge
_SPARE = 16  # capacity of a small array beyond this part of it is worth a copy without it
_FLAGS = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}


def _pages(n_bytes: int, soon: int) -> np.ndarray:
    """Return zeros, uint8 [n_bytes], in pages of their own: huge ones where ``soon`` fills them."""
    try:
        memory = mmap.mmap(-1, n_bytes, **_FLAGS)
    except OSError as error:
        raise MemoryError(f"the system has no {n_bytes} bytes for an array of nodes") from error
    whole = n_bytes if n_bytes >= _ALL_HUGE else soon // _HUGE_PAGE * _HUGE_PAGE
    if not uses("huge_pages"):
        whole = 0
    _advise(memory, "MADV_HUGEPAGE", 0, whole)
    _advise(memory, "MADV_NOHUGEPAGE", whole, n_bytes)
    return np.frombuffer(memory, np.uint8)


def _advise(memory: mmap.mmap, advice: str, first: int, last: int) -> None:
    """Give the system this advice on some bytes, where it takes any."""
    if first < last and hasattr(mmap, advice):
        memory.madvise(getattr(mmap, advice), first, last - first)


def aligned(capacity: int, width: int, dtype: Any, soon: int = 0) -> np.ndarray:
    """Return zeros of shape (capacity, width) that begin with a cache line.

    ``soon`` is how many of the rows are written next, in order.
    """
    row = width * np.dtype(dtype).itemsize
    n_bytes = capacity * row
    if n_bytes >= _LARGE:
        return _pages(n_bytes, soon * row).view(dtype).reshape(capacity, width)
    memory = np.zeros(n_bytes + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + n_bytes].view(dtype).reshape(capacity, width)


def resized(array: np.ndarray, used: int, capacity: int, soon: int) -> np.ndarray:
    """Return a copy of the first ``used`` rows of ``array``, with ``capacity`` rows.

    ``soon`` >= ``used`` is how many of them are written next, in order.
    """
    new = aligned(capacity, array.shape[1], array.dtype, soon)
    new[:used] = array[:used]
    return new


def release(array: np.ndarray, used: int) -> None:
    """Give the memory behind the first ``used`` rows of a large array back; nothing is in it."""
    if array.nbytes < _LARGE:
        return
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    memory = owner.obj  # of a memoryview
    filled = used * array[:1].nbytes
    _advise(memory, "MADV_NOHUGEPAGE", filled // _HUGE_PAGE * _HUGE_PAGE, array.nbytes)
    _advise(memory, "MADV_DONTNEED", _whole(filled, mmap.PAGESIZE), array.nbytes)


def _whole(n_bytes: int, page: int) -> int:
    """Return the bytes of so many pages as hold ``n_bytes``."""
    return -(-n_bytes // page) * page


def next_capacity(arrays: Iterable[np.ndarray]) -> int:
    """Return how many rows arrays of equally many get when they are full."""
    n, n_bytes = max((len(array), array.nbytes) for array in arrays)
    return 2 * n if n_bytes >= _LARGE else n + n // 8


def bytes_held(array: np.ndarray, used: int) -> int:
    """Return the bytes of memory that an array takes of which ``used`` rows were written."""
    if array.nbytes < _LARGE:
        return array.nbytes
    is_huge = array.nbytes >= _ALL_HUGE and uses("huge_pages")
    page = _HUGE_PAGE if is_huge else mmap.PAGESIZE
    return min(_whole(used * array[:1].nbytes, page), _whole(array.nbytes, mmap.PAGESIZE))


def is_spacious(array: np.ndarray, used: int) -> bool:
    """Return whether the spare capacity takes so much memory that a copy without it pays."""
    return array.nbytes < _LARGE and len(array) > used + used // _SPARE
