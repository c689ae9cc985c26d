"""Numbers of the page as people read them.

Relies on nothing.
"""

from __future__ import annotations


def short(value: float, digits: int = 3) -> str:
    """Return a count as an axis shows it."""
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if scale <= abs(value) < 1000.0 * scale:
            return f"{value / scale:.{digits}g}{unit}"
    return f"{value:.{digits}g}"


def number(value: float) -> str:
    """Return a number as an axis shows it."""
    return short(value, 4)


def metric(value: float) -> str:
    """Return a metric as a tile shows it: about five digits."""
    digits = 4 if abs(value) < 100.0 else 2 if abs(value) < 1000.0 else 0
    return f"{value:,.{digits}f}" if abs(value) < 1e9 else f"{value:.4g}"


def percent(value: float) -> str:
    """Return a share as a percentage."""
    return f"{value:.0%}" if value in (0.0, 1.0) or value >= 0.1 else f"{value:.1%}"
