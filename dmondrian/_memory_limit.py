"""Memory: how much of it this process may use, which bounds what is read from outside.

Relies on what the system says; promises an upper bound, not that so much is free.
"""

from __future__ import annotations

import os
from pathlib import Path

# Where Linux tells a container's limit: version 2 of control groups, and version 1.
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def usable_bytes() -> int:
    """Return the memory of this machine or container in bytes."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in LIMITS:
        try:
            limit = min(limit, int(Path(name).read_text()))
        except (OSError, ValueError):
            continue  # no such file, or the word "max"
    return limit
