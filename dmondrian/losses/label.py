"""The label itself as forecast: its mean, and its second moment about ``OFFSET``.

A cell's variance is that of its labels, to which the variance one level above is added like the
square of one more row: a cell of one row has its parent's variance, one of many rows its own. A
cell lighter than one row is divided by one: the less it weighs, the nearer it is to its parent's.

Relies on moments as statistics. Promises the mean of :mod:`dmondrian.losses.squared` to the last
bit; nothing is learned with it.
"""

from __future__ import annotations

from typing import NamedTuple

from dmondrian._numba.jit import implements, inline
from dmondrian.stats.moments import SQUARES, SUM, squared_error
from dmondrian.tree.nodes import OFFSET, PARENT, STAT
from dmondrian.tree.policies import add_empty_forecast, add_forecast

ROWS_ABOVE = 1.0


class Label(NamedTuple):
    """Two moments of the label."""

    rows_above: float  # rows that the variance above a cell counts as
    prior: bool  # whether the mean in an empty cell is 0


@inline
def squared_deviations(tree, v):
    """Return the squared deviations of the labels at ``v`` from their mean, in all."""
    return squared_error(tree.d[v, STAT], tree.d[v, SUM], tree.d[v, SQUARES])


@inline
def add_moments(loss, tree, v, center, weight, out):
    """Add two moments of a label with this mean, less ``OFFSET``, and the variance at ``v``."""
    n, u = tree.d[v, STAT], tree.i[v, PARENT]
    variance = squared_deviations(tree, v)
    if u >= 0:
        variance += loss.rows_above * squared_deviations(tree, u) / tree.d[u, STAT]
        variance /= max(n, loss.rows_above)
    else:
        variance /= n
    out[0] += weight * (tree.head_f[OFFSET] + center)
    out[1] += weight * (center * center + variance)


@implements(add_forecast, Label)
def add_label(loss, tree, v, depth, weight, out):
    add_moments(loss, tree, v, tree.d[v, SUM] / tree.d[v, STAT], weight, out)


@implements(add_empty_forecast, Label)
def add_empty_label(loss, tree, v, depth, weight, out):
    """Forecast the variance of the smallest cell above with rows."""
    center = -tree.head_f[OFFSET] if loss.prior else tree.d[v, SUM] / tree.d[v, STAT]
    add_moments(loss, tree, v, center, weight, out)
