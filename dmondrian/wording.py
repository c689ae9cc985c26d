"""Numbers of things, as people read them.

Relies on nothing.
"""

from __future__ import annotations


def counted(number: int, what: str, plural: str | None = None) -> str:
    """Return a number and what it counts: "1 row", "2,000 rows", "2 classes"."""
    return f"{number:,} {what if number == 1 else plural or f'{what}s'}"
