"""Limits of this process: memory, which bounds what is read from files, and open files.

Relies on the system's figures; promises an upper bound, not that this much is free; and that the
limit of open files is raised no further than the system allows, and nothing fails where it is not.
"""

from __future__ import annotations

import os
from contextlib import suppress
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


def raise_limit(n_files: int) -> int | None:
    """Raise this process's limit of open files as far as needed and allowed; return it.

    Parameters
    ----------
    n_files : int
        Needed.

    Returns
    -------
    int or None
        The limit; None where there is none, or none that can be asked for.
    """
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    if soft < n_files:
        wanted = n_files if hard == resource.RLIM_INFINITY else min(n_files, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft


def _physical_bytes() -> int:
    """Return the memory of this machine in bytes."""
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    import psutil  # type: ignore[import-untyped]  # of Dask, without types; on Windows alone

    return int(psutil.virtual_memory().total)
