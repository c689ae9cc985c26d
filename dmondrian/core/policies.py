"""The questions the two loops ask, and nothing about who answers.

A policy is a NamedTuple of scalars; its type chooses the implementation at compile time
(:mod:`dmondrian._jit`). Growth routes a row to its leaf; Stat remembers labels; Loss
says what a node forecasts and what a row costs there; Rule turns a path into a
prediction. A price factor is exp(-learning rate x price) as (m, k), m 2^(256 k).
"""

from __future__ import annotations

from dmondrian._jit import hook


@hook
def grow(growth, stat, rule, tree, x, y, key):
    """Take ``x`` into the tree; return (leaf, whether the row opened that leaf)."""


@hook
def branch_off(growth, stat, tree, v, parent_time, x):
    """Return the probability that an extension by ``x`` branches off above ``v``."""


@hook
def is_pure_with(stat, tree, v, y):
    """Tell whether all rows at ``v`` and this one carry the same label."""


@hook
def is_pure(stat, tree, v):
    """Tell whether the rows at ``v`` carry one label."""


@hook
def count(stat, tree, v, y, w):
    """Add a row of label ``y`` and weight ``w`` to the statistics of ``v``."""


@hook
def prepare(loss, rule, tree, y):
    """Get ready for one more row of label ``y``, before anything of it is learned."""


@hook
def price(loss, tree, v, y, w):
    """Return the price factor (m, k) of a row at ``v``, before it is counted there."""


@hook
def opening_price(loss, tree, v, y, w):
    """Return the price factor (m, k) of the row that opened leaf ``v``."""


@hook
def add_forecast(loss, tree, v, depth, weight, out):
    """Add ``weight`` times the forecast of ``v`` (at this depth) to ``out``."""


@hook
def add_empty_forecast(loss, tree, v, depth, weight, out):
    """Add ``weight`` times the forecast of an empty leaf opened above ``v``."""


@hook
def forecast_loss(loss, total, n_trees, y):
    """Return the loss at label ``y`` of the averaged forecast ``total`` / ``n_trees``."""


@hook
def stop_weight(rule, tree, v):
    """Return the share of internal node ``v`` itself in what it and its subtree say."""


@hook
def insertion(rule, tree, v, v_is_leaf):
    """Return (share, factor) of a parent that would be inserted above ``v``.

    The share is that parent's own in what it and its subtree say, the factor the change
    of the subtree's weight by the insertion.
    """


@hook
def inserted_factor(rule, tree, new):
    """Return the factor by which the insertion of ``new`` changed its subtree's weight.

    Asked after ``inherit_weight`` and before the row shifts the weight of ``new``.
    """


@hook
def shift_weight(rule, tree, v, p, kp, q, kq):
    """Learn one row's price factors at internal node ``v``; return the mixture's."""


@hook
def inherit_weight(rule, tree, new, v, v_is_leaf):
    """Set the weight of parent ``new`` inserted above ``v``."""


@hook
def rebuild_weights(rule, loss, tree):
    """Set all weights from the losses' own logs of them, at the learning rate in force."""


@hook
def log_weight(loss, tree, v):
    """Return ln w_v = -(learning rate in force) x (cumulated price at ``v``)."""
