"""Freeing of what work on a run has left in a process, between two looks at its data.

A process that follows data for months should hold what one look needs. Four things keep more than
that, and none of them is freed soon by itself: objects that refer to each other, as Python counts
objects until it looks for them, and not the bytes of trees and plans that they hold; the names of
tasks, of which Dask keeps the newest 100,000; and pages without a used byte, which the allocators
of Arrow and of the C library keep.

Relies on glibc for the last of these; elsewhere they are kept. Promises to change nothing that is
in use.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import pyarrow as pa
from dask.utils import key_split


def free_memory() -> None:
    """Give memory that is not in use back; seldom, for it looks at all objects."""
    gc.collect()
    key_split.cache_clear()
    pa.default_memory_pool().release_unused()
    _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    """Return glibc's `malloc_trim`; where there is none, a function that does nothing."""
    with suppress(OSError, AttributeError, TypeError):  # such as musl, macOS and Windows
        trim = ctypes.CDLL(None).malloc_trim
        trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
        malloc_trim: Callable[[int], object] = trim
        return malloc_trim
    return int
