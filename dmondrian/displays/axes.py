"""Axes to draw into: those given, or new ones.

Relies on matplotlib, loaded here. Promises an error that names the extra where it is missing.
"""

from __future__ import annotations

from typing import Any

from dmondrian._optional import require


def axes_of(ax: Any) -> Any:
    """Return the axes given, or those of a new figure."""
    require("matplotlib", "plots", "plotting")
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]
