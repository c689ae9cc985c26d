"""The label itself as forecast: its mean, and its second moment about ``OFFSET``.

A cell's variance is that of its labels, to which the variance one level above is added like the
square of one more row: a cell of one row has its parent's variance, one of many rows its own. A
cell lighter than one row is divided by one: the less it weighs, the nearer it is to its parent's.

Relies on moments as statistics. Promises the mean of :mod:`dmondrian.losses.squared` to the last
bit; nothing is learned with it.
"""

from __future__ import annotations

from typing import NamedTuple

from dmondrian._jit import implements, inner
from dmondrian.core.nodes import OFFSET, PARENT, STAT
from dmondrian.core.policies import add_empty_forecast, add_forecast
from dmondrian.stats.moments import SQUARES, SUM, squared_error

ROWS_ABOVE = 1.0


class Label(NamedTuple):
    """Two moments of the label."""

    rows_above: float  # rows that the variance above a cell counts as


@inner
def squared_deviations(tree, v):
    """Return the squared deviations of the labels at ``v`` from their mean, in all."""
    return squared_error(tree.d[v, STAT], tree.d[v, SUM], tree.d[v, SQUARES])


def add_label(loss, tree, v, depth, weight, out):
    n, u = tree.d[v, STAT], tree.i[v, PARENT]
    center = tree.d[v, SUM] / n
    variance = squared_deviations(tree, v)
    if u >= 0:
        variance += loss.rows_above * squared_deviations(tree, u) / tree.d[u, STAT]
        variance /= max(n, loss.rows_above)
    else:
        variance /= n
    out[0] += weight * (tree.head_f[OFFSET] + center)
    out[1] += weight * (center * center + variance)


implements(add_forecast, Label)(add_label)
implements(add_empty_forecast, Label)(add_label)  # what the smallest cell above with rows says
