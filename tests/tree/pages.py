"""What Linux tells of the memory in which arrays lie, and marks of tests that ask it."""

import mmap
import pathlib
import platform
import re
import resource
import sys

import numpy as np
import pytest

from dmondrian.tree.memory import LARGE_PAGE

_OVERCOMMIT = pathlib.Path("/proc/sys/vm/overcommit_memory")
needs_ranges = pytest.mark.skipif(
    sys.platform != "linux"
    or not _OVERCOMMIT.exists()
    or _OVERCOMMIT.read_text().strip() == "2"
    or max(resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)) >= 0,
    reason="addresses are limited here",
)

_ENABLED = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
needs_large_pages = pytest.mark.skipif(
    not _ENABLED.exists() or "[never]" in _ENABLED.read_text(), reason="no large pages here"
)

_RELEASE = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
needs_collapse = pytest.mark.skipif(
    _RELEASE < (6, 1), reason="no large pages are made of small ones here"
)
needs_population = pytest.mark.skipif(
    _RELEASE < (5, 14), reason="pages are not taken before they are written to here"
)


def told_of(array):
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


def sum_of(name, array):
    """Return the sum of what Linux tells by this name of all memory where the array is, bytes."""
    step = LARGE_PAGE // array[:1].nbytes
    told = {}
    for first in (*range(0, len(array), step), len(array) - 1):  # they need not be one piece
        found = told_of(array[first:])
        told[found["at"][0]] = int(found[name][0])
    return 1024 * sum(told.values())


def large(array):
    """Return how many bytes of the memory where the array is lie in large pages."""
    return sum_of("AnonHugePages", array)


def resident(array):
    """Return the bytes taken of the memory where the array is, to the end of its last large page.

    Of these addresses alone: memory next to them may be told with them as one piece.
    """
    first = array.ctypes.data // mmap.PAGESIZE
    last = -(-(array.ctypes.data + array.nbytes) // LARGE_PAGE) * LARGE_PAGE // mmap.PAGESIZE
    with open("/proc/self/pagemap", "rb") as pages:
        pages.seek(8 * first)
        told = np.frombuffer(pages.read(8 * (last - first)), np.uint64)
    return mmap.PAGESIZE * int((told >> np.uint64(62) != 0).sum())  # there, or swapped


def peak_from_here():
    """Return what tells by how many bytes this process has been larger since at its largest."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = _peak()
    return lambda: _peak() - before


def _peak():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
