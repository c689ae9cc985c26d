"""Arrays with room to grow where they are.

To grow an array elsewhere takes both of them at once, a copy, and twice as many new pages of
memory, which cost more than the copy. So a large array is the beginning of a range of addresses,
which takes memory as far as it was written to, and none behind; and it grows by being told longer.

Relies on Linux for that: on other systems, and where addresses are counted or limited, arrays are
copied. Promises zeros wherever nothing was written.

Shapes: rows of one width and type, so many as there is capacity for.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dmondrian._memory import CACHE_LINE

LEAST = 1 << 20  # bytes; smaller arrays are copied
_AHEAD = 256  # addresses for each byte: a tree is copied twice on its way to 64 GiB
_LARGE_PAGES = 1 << 21  # bytes from which on an array lies in large pages, of 2 MiB
_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1, which Python's mmap does not name
_NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, which mmap of Python 3.11 does not name
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")  # 2: addresses count as memory


class _Range(mmap.mmap):
    """Addresses that belong to one array, however long it is."""


def _are_addresses_free() -> bool:
    """Tell so of this moment: a program may limit itself at any time.

    What it reserved before counts under such a limit all the same.
    """
    if sys.platform != "linux":
        return False
    import resource

    try:
        is_counted = _OVERCOMMIT.read_text().strip() == "2"
    except OSError:
        is_counted = True
    kinds = resource.RLIMIT_AS, resource.RLIMIT_DATA  # what may be written to is data
    limits = [resource.getrlimit(kind)[0] for kind in kinds]
    return not is_counted and limits == [resource.RLIM_INFINITY] * 2


def _reserved(n_bytes: int) -> tuple[_Range, np.ndarray] | None:
    """Return a range and its bytes, uint8 [more than ``n_bytes`` zeros]; None if there is none."""
    if n_bytes < LEAST or not _are_addresses_free():
        return None
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    try:
        addresses = _Range(-1, _AHEAD * n_bytes, flags=flags)
    except (OSError, ValueError):  # no such range is left
        return None
    return addresses, np.frombuffer(addresses, np.uint8)


def _range_of(array: np.ndarray) -> tuple[_Range, np.ndarray] | None:
    """Return the range whose beginning the array is, itself and as bytes; None if it has none."""
    whole = array.base
    owner = getattr(whole, "base", None)
    if isinstance(owner, memoryview):
        owner = owner.obj
    if whole is None or not isinstance(owner, _Range) or array.ctypes.data != whole.ctypes.data:
        return None
    return owner, whole


def _use_large_pages(addresses: _Range, before: int, n_bytes: int) -> None:
    """Have what is and will be written lie in large pages, whose places are found sooner."""
    if before < _LARGE_PAGES <= n_bytes:
        with contextlib.suppress(OSError):  # an old kernel, or one without them
            addresses.madvise(mmap.MADV_HUGEPAGE)
            addresses.madvise(_COLLAPSE, 0, _LARGE_PAGES)


def aligned(capacity: int, width: int, dtype: Any) -> np.ndarray:
    """Return zeros of shape (capacity, width) that begin with a cache line."""
    n_bytes = capacity * width * np.dtype(dtype).itemsize
    room = np.zeros(n_bytes + CACHE_LINE, np.uint8)
    start = -room.ctypes.data % CACHE_LINE
    return room[start : start + n_bytes].view(dtype).reshape(capacity, width)


def growing(capacity: int, width: int, dtype: Any) -> np.ndarray:
    """Return what :func:`aligned` does, with room behind it where that takes no memory."""
    n_bytes = capacity * width * np.dtype(dtype).itemsize
    found = _reserved(n_bytes)
    if found is None:
        return aligned(capacity, width, dtype)
    _use_large_pages(found[0], 0, n_bytes)
    return found[1][:n_bytes].view(dtype).reshape(capacity, width)


def grown(array: np.ndarray, used: int, capacity: int) -> np.ndarray:
    """Return ``array`` [m, width] with ``capacity`` rows, of which the first ``used`` are kept.

    It is the same memory where there is room behind it: then the array that was given must not
    grow a second time, as both would be written to.
    """
    found = _range_of(array)
    n_bytes = capacity * array.shape[1] * array.itemsize
    if found is not None and capacity >= len(array) and n_bytes <= len(found[1]):
        _use_large_pages(found[0], array.nbytes, n_bytes)
        return found[1][:n_bytes].view(array.dtype).reshape(capacity, array.shape[1])
    new = growing(capacity, array.shape[1], array.dtype)
    new[:used] = array[:used]
    return new


def next_capacity(array: np.ndarray) -> int:
    """Return how many rows the array should have room for when it is full.

    Half as many again; where nothing is copied twice as many, or an eighth more below a large page,
    which is taken as a whole.
    """
    if _range_of(array) is None:
        return len(array) + len(array) // 2
    return len(array) + len(array) // (8 if array.nbytes < _LARGE_PAGES else 1)


def bytes_held(array: np.ndarray, used: int) -> int:
    """Return the bytes of memory that the array takes, of which ``used`` rows were written."""
    if _range_of(array) is None:
        return array.nbytes
    page = _LARGE_PAGES if array.nbytes >= _LARGE_PAGES else mmap.PAGESIZE
    written = used * array.shape[1] * array.itemsize
    return -(-written // page) * page
