"""Memory limit of this process, which bounds what is read from files.

Relies on the system's figures; promises an upper bound, not that this much is free.
"""

from __future__ import annotations

import os
from pathlib import Path

# A container's limit in Linux: version 2 of control groups, and version 1.
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def usable_bytes() -> int:
    """Return the memory of this machine or container in bytes."""
    limit = _physical_bytes()
    for name in LIMITS:
        try:
            limit = min(limit, int(Path(name).read_text()))
        except (OSError, ValueError):
            continue  # no such file, or the word "max"
    return limit


def _physical_bytes() -> int:
    """Return the memory of this machine in bytes."""
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    import psutil  # type: ignore[import-untyped]  # of Dask, without types; on Windows alone

    return int(psutil.virtual_memory().total)
