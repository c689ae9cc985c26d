"""Numbers of things and of bytes, as people read them.

Relies on nothing.
"""

from __future__ import annotations


def counted(number: int, what: str, plural: str | None = None) -> str:
    """Return a number and what it counts: "1 row", "2,000 rows", "2 classes"."""
    return f"{number:,} {what if number == 1 else plural or f'{what}s'}"


def size(n_bytes: float) -> str:
    """Return bytes with a unit: "12 B", "939 kB", "1.35 GB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:.3g} {unit}"
    return f"{n_bytes:.0f} B"
