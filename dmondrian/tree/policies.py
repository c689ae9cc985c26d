"""Hooks that the two loops call; what implements them is chosen by the types of policies.

A policy is a NamedTuple of scalars; its type chooses the implementation at compile time
(:mod:`dmondrian._numba.jit`). Growth routes a row to its leaf; Stat remembers labels; Loss
defines what a node forecasts and what a row costs there; Rule turns a path into a
prediction. A price factor is exp(-learning rate x price) as (m, k), m 2^(256 k).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import hook


class Visit(NamedTuple):
    """A node on the path of a prediction, and the state of the walk there."""

    v: np.uint64  # the node
    is_leaf: bool  # at the lifetime
    lifetime: float  # asked for
    depth: float
    rest: float  # share of the mixture, where the rule mixes, not yet given to nodes above


class Branch(NamedTuple):
    """A cell of a point's own, apart from the rows of a node."""

    probability: float  # that there is one
    where: float  # means something to the growth alone
    n_splits: (
        int  # cuts that part the point from the node; all but the last leave it beside the rows
    )


@hook
def learn(growth, stat, loss, rule, tree, key, x, y, w, prefetched):
    """Learn one row of weight ``w`` > 0; return whether there was capacity for it.

    What has been learned of it until capacity was short is kept, and ``learn`` is asked again.
    """


@hook
def grow(growth, stat, rule, tree, x, y, key, prefetched):
    """Take ``x`` into the tree, whose key is ``key``; return (leaf, opens, inserted, n_noted).

    ``opens`` is whether the row is the first of its leaf, ``inserted`` is the parent that the
    row put above an older node, or -1. ``prefetched`` is the path on which ``x`` went some rows ago
    (:class:`dmondrian.tree.prefetch.PrefetchedPath`), ``n_noted`` how many of its nodes are above
    the leaf; if that is wrong it costs time alone. The leaf is -1 where the arrays are full; the
    tree is sound then, and the row can be taken in again once there is capacity.
    """


@hook
def branch_off(growth, stat, tree, key, at, x):
    """Return the branch of ``x`` off the node of visit ``at``, until the end of its cell.

    Asked at the node of :func:`parting` and below it.
    """


@hook
def parting(growth, tree, leaf, x):
    """Return the highest node that ``x`` may branch off, on the path to its ``leaf``; -1 if none.

    From that node down each is asked for its branch (:func:`branch_off`), and none above it.
    """


@hook
def reads_boxes(growth):
    """Return whether :func:`parting` or :func:`branch_off` reads boxes, to ask for them early."""


@hook
def mean_decay(growth, branch, span, rate):
    """Return E exp(-``rate`` t), t from the birth of a node to ``branch``, if there is one.

    ``span`` is the time from birth to end.
    """


@hook
def branch_time(growth, branch, quantile):
    """Return the quantile of the time t of :func:`mean_decay`."""


@hook
def is_pure_with(stat, tree, v, y):
    """Return whether all rows at ``v`` and this one carry the same label."""


@hook
def is_pure(stat, tree, v):
    """Return whether the rows at ``v`` carry one label."""


@hook
def count(stat, tree, v, y, w):
    """Add a row of label ``y`` and weight ``w`` to the statistics of ``v``."""


@hook
def tally_size(stat):
    """Return how many numbers describe the rows in a candidate cell: s, and e for its gain."""


@hook
def tally(stat, tree, at, stride, n, thresholds, value, y, w):
    """Count a row at those of ``n`` candidate cells whose threshold is not below ``value``.

    Number i of candidate k lies at ``tree.pool[at + i stride + k]``, its threshold at
    ``tree.pool[thresholds + k]``.
    """


@hook
def note_gain(stat, tree, criterion, whole, left, stride, n, thresholds, value, y, w):
    """Take a row into the e numbers of :func:`tally_size`, before it is tallied.

    ``whole`` and ``left`` are where the tallies of the parted cell and of the left one begin.
    """


@hook
def spread(stat, tree, criterion, whole, stride):
    """Return the impurity of the cell to be parted times its weight, by its tally."""


@hook
def gain_of_split(stat, tree, criterion, before, whole, left, stride):
    """Return the gain of a candidate split per unit of weight, by its tallies.

    ``before`` is the :func:`spread` of the cell to be parted.
    """


@hook
def gain_unit(stat, tree, whole, stride):
    """Return the unit in which a least gain is given, by the tally of the cell to be parted."""


@hook
def inherit(stat, tree, v, whole, left, stride, goes_left):
    """Set the statistics of leaf ``v`` to the tally of a candidate cell, of the left or right."""


@hook
def error(stat, tree, v):
    """Return the total loss at leaf ``v`` of one forecast for all its rows."""


@hook
def add_statistics(stat, tree, v, other_stats):
    """Add to ``v`` the statistics ``other_stats`` [s] of other rows of its cell."""


@hook
def gain(stat, tree, v):
    """Return what the split of internal node ``v`` is worth to forecasts of its rows."""


@hook
def prepare(loss, rule, tree, y):
    """Get ready for one more row of label ``y``, before anything of it is learned."""


@hook
def at_once(loss, done):
    """Return how much of a row's weight may be learned at once, where ``done`` of it has been."""


@hook
def price(loss, tree, v, y, w):
    """Return the price factor (n, d, k) of a row at ``v``, before it is counted: n / d 2^(256 k).

    The quotient is left to whoever has others to divide at the same time.
    """


@hook
def opening_price(loss, tree, v, y, w):
    """Return the price factor (m, k) of the row that opened leaf ``v``."""


@hook
def learn_above(loss, stat, rule, tree, leaf, q, kq, shift, y, w, cached_path):
    """Price, count and weigh a row at all nodes above ``leaf``, whose factor is (q, kq).

    ``shift`` is a factor more for the mixture of the first of them, ``cached_path`` holds the nodes
    that these probably are (:class:`dmondrian.tree.prefetch.CachedPath`); the loops that do so are
    in :mod:`dmondrian.tree.backward`.
    """


@hook
def exponent(loss, tree, v, y, w):
    """Return x where :func:`price` returns e^x; not asked where no loss has one."""


@hook
def add_forecast(loss, tree, v, depth, weight, out):
    """Add ``weight`` times the forecast of ``v`` (at this depth) to ``out``."""


@hook
def add_empty_forecast(loss, tree, v, depth, weight, out):
    """Add ``weight`` times the forecast of an empty leaf opened above ``v``."""


@hook
def complete_forecast(loss, tree, share, out):
    """Make ``out``, to which nodes that share ``share`` of a mixture have added, its forecast."""


@hook
def worth(loss, tree, v, y):
    """Return what ``v``'s forecast is worth at label ``y``, more for a better one."""


@hook
def note_forecast(loss, tree, out, y):
    """Take in what the tree has forecast of a row of label ``y``, before it learns the row."""


@hook
def forecast_at(loss, tree, v, y):
    """Return what the loss at label ``y`` sees of ``v``'s forecast: of the class, or the mean."""


@hook
def forecast_loss(loss, total, n_trees, y):
    """Return the loss, >= 0, at label ``y`` of the averaged forecast ``total`` / ``n_trees``."""


@hook
def risk(loss, tree, v):
    """Return the total loss of the rows at ``v`` under what ``v`` forecasts, 0 without rows."""


@hook
def reads_siblings(rule):
    """Return whether the rule looks at both children of the nodes on a prediction's path."""


@hook
def ignores_above(rule, tree, v, lifetime):
    """Return whether no node above ``v`` matters to predictions at ``v`` and below it.

    From this ``lifetime`` on, and where nothing branches off at ``v`` or above. A walk down may
    begin at such a node.
    """


@hook
def begin(rule, path):
    """Set ``path`` to what is known above the root."""


@hook
def pass_node(rule, loss, tree, at, path):
    """Take the internal node of visit ``at`` into ``path``; return the rest below it.

    ``path`` is the rule's own memory of the nodes above.
    """


@hook
def add_branch(rule, growth, loss, tree, at, branch, scale, path, out):
    """Add ``scale`` times what an empty cell branching off above the node forecasts to ``out``."""


@hook
def add_leaf(rule, loss, tree, at, scale, path, out):
    """Add ``scale`` times what the node, a leaf in this visit, forecasts to ``out``."""


@hook
def gather(rule, tree):
    """Write to ``tree.messages`` what the rule must know of all nodes to predict."""


@hook
def second_moment(rule, tree, out, c):
    """Return the second moment about ``OFFSET`` of output ``c`` of the tree's answer ``out``."""


@hook
def inserted_factor(rule, tree, new):
    """Return the factor by which the insertion of ``new`` changed its subtree's weight.

    Asked after ``inherit_weight`` and before the row shifts the weight of ``new``.
    """


@hook
def shift_weight(rule, tree, v, n, d, kp, q, kq):
    """Learn one row at internal node ``v``; return the mixture's price factor there.

    The node's own is n / d 2^(256 kp), that of the mixture below it q 2^(256 kq).
    """


@hook
def shift_near(rule, tree, v, n, d, q):
    """Shift a weight where both exponents are 0, as :func:`shift_weight`; return whether, and q.

    What is far from 1 it may leave to that, and calls nothing: loops take it in.
    """


@hook
def inherit_weight(rule, tree, new, v, v_is_leaf):
    """Set the weight of parent ``new`` inserted above ``v``."""


@hook
def rebuild_weights(rule, loss, tree):
    """Set all weights from the losses' own logs of them, at the learning rate in force."""


@hook
def log_weight(loss, tree, v):
    """Return ln w_v = -(learning rate in force) x (cumulated price at ``v``)."""
