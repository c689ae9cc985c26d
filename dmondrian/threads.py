"""Threads: the same work on many trees or chunks of rows at once; kernels release the lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def run_threads(work: Callable[[Any], Any], items: Sequence[Any], n_threads: int) -> None:
    """Call ``work`` on every item, on up to ``n_threads`` threads."""
    if n_threads <= 1 or len(items) <= 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(min(n_threads, len(items))) as pool:
        for _ in pool.map(work, items):
            pass
