"""Trees on geometric covering intervals: born and replaced by the number of the row alone.

A tree is born before each row whose number is a multiple of 2^first. With nu the exponent of 2 in
that number, at most ``last`` (and ``last`` for row 0), it lives for 2^(nu + 1) rows, until the next
tree of its kind takes its place: there is one place for each nu below ``last``, and two for
``last``. So exactly one tree is alive in each octave of age [2^k, 2^(k + 1)), k from ``first`` to
``last``, once there are rows enough, and a younger one beside (Daniely, Gonen, Shalev-Shwartz,
2015, "Strongly adaptive online learning", section 3).

A tree does not look at how it is mixed, so a block of rows is learned tree after tree. Sums for
feature scales are kept apart for each place and added up when the next tree is born: neither the
cuts between calls nor their number changes a byte.

Shapes: n rows, d features, K classes, S places, k octaves of age, l levels of credit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.intrinsics import unowned
from dmondrian._numba.jit import inline, kernel
from dmondrian.growth.range import Range
from dmondrian.losses.discounted_kt import forecast_of_class
from dmondrian.tree.address_table import tree_at
from dmondrian.tree.box_encoding import Row
from dmondrian.tree.keyed_random import mix, row_key, tree_key
from dmondrian.tree.nodes import (
    FEATURE,
    LABEL_MAX,
    LABEL_MIN,
    LEFT,
    N_HEADER_FLOATS,
    N_HEADER_INTS,
    N_NODES,
    ROOT,
    child_of,
    scratch_size_compiled,
)
from dmondrian.tree.policies import add_forecast, learn
from dmondrian.tree.prefetch import N_NOTED, Hint
from dmondrian.tree.scaled_float import stop_probability
from dmondrian.tree.simd.exp import lowest_bit

LARGEST_VALUE = float(np.finfo(np.float32).max)
_COVERING = np.uint64(0xC0FE12A6_5EED1E55)  # parts these trees' draws from those of other trees
_LEAST_SHARE = 2.0**-20  # of a node above the leaf in a forecast
_LEAST_VISITS = 50.0  # of splits before credits are believed
_PRIOR_SHARE, _PRIOR_VISITS = 0.02, 5.0  # what shrinks the credit of columns that split rarely


class Covering(NamedTuple):
    """When trees of a member are born, and what scales they begin with."""

    first: int  # a tree is born every 2^first rows
    last: int  # none lives longer than 2^(last + 1)
    power: int  # of a column's credit; 0 for no scales
    floor: float  # least scale, the mean being 1
    n_levels: int  # of credits, which forget at different rates
    pause: bool  # do not split a leaf whose rows carry one label


@inline
def exponent_at(covering, b):
    """Return nu of the tree born before row ``b``: it lives for 2^(nu + 1) rows."""
    if b == 0:
        return np.int64(covering.last)
    return min(np.int64(lowest_bit(np.uint64(b))), np.int64(covering.last))


@inline
def place_at(covering, b):
    """Return the place of the tree born before row ``b``."""
    nu = exponent_at(covering, b)
    if nu < covering.last:
        return nu - covering.first
    return covering.last - covering.first + ((b >> np.int64(covering.last)) & np.int64(1))


@inline
def born_in_octave(t, k):
    """Return the birth of the tree whose age before row ``t`` is in [2^k, 2^(k + 1)), or < 0."""
    return ((t >> k) - np.int64(1)) << k


@inline
def octave_of(age):
    """Return k of the octave [2^k, 2^(k + 1)) of ``age`` > 0."""
    k = np.int64(0)
    while age >> (k + np.int64(1)) > 0:
        k += np.int64(1)
    return k


@inline
def forecast_way(loss, tree, x, y, own, out, noted, credits, visits):
    """Write the tree's forecast of ``x`` to ``out`` [K]; return its leaf and depth. O(depth K).

    The tree must not be empty. Nodes above the leaf whose share of the mixture is below 2^-20 are
    left out: the forecast goes into logarithms less their mean, so that its sum does not matter.
    ``own`` [K] is scratch; ``noted`` int32 [N_NOTED] takes the nodes below the root. With p_i the
    forecast of node i on the way and F that of the mixture, F(y) - p_0(y) is the sum over i of W_i
    (p_{i+1}(y) - p_i(y)), W_i the posterior probability that a pruning goes on below node i: each
    term is added to ``credits`` of the column split there, W_i to its ``visits``, float64 [d]; not
    if ``y`` is -1.
    """
    n_classes = out.shape[0]
    for c in range(n_classes):
        out[c] = 0.0
    v, depth, rest, before, column = np.int64(tree.head_i[ROOT]), np.int64(0), 1.0, 0.0, np.int64(0)
    while True:
        u = np.uint64(v)
        is_leaf = tree.i[u, LEFT] < 0
        share = 1.0 if is_leaf else stop_probability(tree, u)
        matters = is_leaf or rest * share >= _LEAST_SHARE
        if matters:
            for c in range(n_classes):
                own[c] = 0.0
            add_forecast(loss, tree, u, np.float64(depth), 1.0, own)
            for c in range(n_classes):
                out[c] += rest * share * own[c]
        if y >= 0:
            forecast = own[y] if matters else forecast_of_class(loss, tree, u, y)
            if depth > 0:
                credits[column] += rest * (forecast - before)
                visits[column] += rest
            before = forecast
        if is_leaf:
            return v, depth
        rest *= 1.0 - share
        column = np.int64(tree.i[u, FEATURE])
        v = np.int64(child_of(tree, u, x))
        if depth < N_NOTED:
            noted[np.uint64(depth)] = np.int32(v)
        depth += 1


@inline
def find_way(tree, x, noted):
    """Return the leaf of ``x`` and its depth; note the way as :func:`forecast_way` does."""
    v, depth = np.int64(tree.head_i[ROOT]), np.int64(0)
    while tree.i[np.uint64(v), LEFT] >= 0:
        v = np.int64(child_of(tree, v, x))
        if depth < N_NOTED:
            noted[np.uint64(depth)] = np.int32(v)
        depth += 1
    return v, depth


@inline
def empty(tree):
    """Take all nodes out of a tree; their memory stays."""
    for k in range(N_HEADER_INTS):
        tree.head_i[k] = 0
    tree.head_i[ROOT] = -1
    for k in range(N_HEADER_FLOATS):
        tree.head_f[k] = 0.0
    tree.head_f[LABEL_MIN], tree.head_f[LABEL_MAX] = np.inf, -np.inf


@inline
def take_credits(covering, buckets, decays, levels):
    """Add the credits since the last birth, float64 [S, 2, d], to each level [l, 2, d]; clear them.

    Level l forgets half within as many rows as a tree of its exponent lives.
    """
    for part in range(2):
        for j in range(buckets.shape[2]):
            total = 0.0
            for s in range(buckets.shape[0]):
                total += buckets[s, part, j]
                buckets[s, part, j] = 0.0
            for level in range(levels.shape[0]):
                levels[level, part, j] = levels[level, part, j] * decays[level] + total


@inline
def scaled_value(x, scale):
    """Return a value times its feature scale, float32: the largest one where that is beyond it."""
    return np.float32(max(-LARGEST_VALUE, min(np.float64(x) * np.float64(scale), LARGEST_VALUE)))


@inline
def write_scales(covering, credits, visits, scales):
    """Write feature scales, float32 [d], mean 1 or so, from columns' credits and visits [d].

    A column's rate r is its credit for a visit, shrunk where visits are few; its scale is ``floor``
    and beside that in proportion to r^power.
    """
    d, whole, largest, total = scales.shape[0], 0.0, 0.0, 0.0
    for j in range(d):
        whole += visits[j]
    prior = _PRIOR_SHARE * whole / d + _PRIOR_VISITS
    for j in range(d):
        largest = max(largest, credits[j] / (visits[j] + prior))
    is_known = covering.power > 0 and whole >= _LEAST_VISITS and largest > 0.0
    for j in range(d):
        if is_known:
            total += powered(credits[j] / (visits[j] + prior) / largest, covering.power)
    for j in range(d):
        scale = 1.0
        if is_known:
            share = powered(credits[j] / (visits[j] + prior) / largest, covering.power) / total
            scale = covering.floor + (1.0 - covering.floor) * d * share
        scales[j] = np.float32(scale)


@inline
def powered(rate, power):
    """Return ``rate``^``power``, 0 of rates below 0."""
    value = max(rate, 0.0)
    result = value
    for _ in range(power - 1):
        result *= value
    return result


@inline
def full_place(covering, table, columns, scratch, caps, births, replaced, m):
    """Return the first place whose tree cannot take ``m`` rows more, or -1.

    The tree that is ``replaced`` does not count: a new one has capacity for 2^first rows.
    """
    for s in range(births.shape[0]):
        if births[s] >= 0 and s != replaced:
            tree = tree_at(table, s, columns, scratch)
            needed = min(tree.head_i[N_NODES] + 2 * m, caps[s])
            if tree.i.shape[0] < needed:
                return np.int64(s)
    return np.int64(-1)


@kernel
def learn_rows(
    covering, stat, loss, rule, table, columns, seed, number, caps, decays,
    births, scales, buckets, levels, X, y, w, t, start, forecasts, reached,
):  # fmt: skip
    """Forecast and learn rows from ``start`` on, in all trees of a member.

    Writes the forecast by the tree of each octave, just before it learned the row, to ``forecasts``
    float64 [1 + k, n, K], from 1 on; where there is no such tree what stands in the first, that of
    a permanent tree. Stops where a tree is full: ``reached`` int64 [2] takes the row, and the
    place of that tree or -1. O(trees (depth K + nodes that leave the row out * d)) for a row.

    Parameters
    ----------
    covering, stat, loss, rule
        Policies.
    table, columns
        The trees, by place; see :mod:`dmondrian.tree.address_table`.
    seed, number : uint64
        Of the forest, and of the member.
    caps : int64 [S]
        Most nodes of the tree in each place.
    decays : float64 [l]
    births : int64 [S]
        Row before which each was born; -1 for none yet.
    scales : float32 [S, d]
    buckets, levels : float64 [S, 2, d], [l, 2, d]
        Credits and visits of columns since the last birth, and before.
    X : float32 [n, d]
    y : float64 [n]
        Classes.
    w : float64 [n] or [0]
        Weights > 0; [0] for weights of one.
    t : int
        Number of the first row in the stream.
    """
    n, d, n_classes = X.shape[0], X.shape[1], forecasts.shape[2]
    lengths, scaled = np.empty(scratch_size_compiled(columns)), np.empty(d, np.float32)
    memory, notes = np.empty(n_classes), np.empty(N_NOTED, np.int32)
    no_steps, no_bits = np.empty(0, np.int16), np.empty(0, np.uint64)
    step = np.int64(1) << np.int64(covering.first)
    while start < n:
        scratch = unowned(lengths)
        at = np.int64(t) + start
        into = at & (step - 1)
        m = min(step - into, n - start)
        replaced = place_at(covering, at) if into == 0 else np.int64(-1)
        lacking = full_place(covering, table, columns, scratch, caps, births, replaced, m)
        if lacking >= 0:
            reached[0], reached[1] = start, lacking
            return
        if into == 0:
            take_credits(covering, buckets, decays, levels)
            level = min(exponent_at(covering, at) - covering.first, covering.n_levels - 1)
            write_scales(covering, levels[level, 0], levels[level, 1], scales[replaced])
            births[replaced] = at
            empty(tree_at(table, replaced, columns, scratch))
        for k in range(covering.first, covering.last + 1):
            if born_in_octave(at, np.int64(k)) < 0:
                for r in range(start, start + m):
                    for c in range(n_classes):
                        forecasts[1 + k - covering.first, r, c] = forecasts[0, r, c]
        for s in range(births.shape[0]):
            if births[s] < 0:
                continue
            own, noted, row = unowned(memory), unowned(notes), unowned(scaled)
            tree = tree_at(table, s, columns, unowned(lengths))
            age = at - births[s]
            octave = octave_of(age) - covering.first + 1 if age >= step else np.int64(-1)
            growth = Range(covering.pause, False, caps[s], np.inf)
            own_key = row_key(mix(tree_key(seed, number) ^ _COVERING), np.uint64(births[s]))
            x = Row(row, row, unowned(no_steps), unowned(no_bits))
            credits, visits = buckets[s, 0], buckets[s, 1]
            for r in range(start, start + m):
                for j in range(d):
                    row[j] = scaled_value(X[r, j], scales[s, j])
                leaf, depth = -1, 0
                if tree.head_i[ROOT] >= 0:
                    if octave > 0:
                        leaf, depth = forecast_way(
                            loss, tree, x, np.int64(y[r]) if covering.power > 0 else np.int64(-1),
                            own, forecasts[octave, r], noted, credits, visits,
                        )  # fmt: skip
                    else:
                        leaf, depth = find_way(tree, x, noted)
                hint = Hint(leaf, 0, noted, depth)
                weight = w[r] if w.shape[0] > 0 else 1.0
                learn(growth, stat, loss, rule, tree, own_key, x, y[r], weight, hint)
        start += m
    reached[0], reached[1] = start, -1


@kernel
def forecast_rows(covering, loss, table, columns, births, scales, X, t, forecasts):
    """Write what the tree of each octave forecasts to ``forecasts``; see :func:`learn_rows`.

    The trees are as they are before row number ``t``.
    """
    n, d, n_classes = X.shape[0], X.shape[1], forecasts.shape[2]
    lengths, scaled = np.empty(scratch_size_compiled(columns)), np.empty(d, np.float32)
    memory, notes, nothing = np.empty(n_classes), np.empty(N_NOTED, np.int32), np.empty(0)
    no_steps, no_bits = np.empty(0, np.int16), np.empty(0, np.uint64)
    for k in range(covering.first, covering.last + 1):
        own, noted, row, scratch = (
            unowned(memory),
            unowned(notes),
            unowned(scaled),
            unowned(lengths),
        )
        out = forecasts[1 + k - covering.first]
        b = born_in_octave(np.int64(t), np.int64(k))
        if b < 0:
            for r in range(n):
                for c in range(n_classes):
                    out[r, c] = forecasts[0, r, c]
            continue
        s = place_at(covering, b)
        tree = tree_at(table, s, columns, scratch)
        x = Row(row, row, unowned(no_steps), unowned(no_bits))
        for r in range(n):
            for j in range(d):
                row[j] = scaled_value(X[r, j], scales[s, j])
            forecast_way(
                loss, tree, x, np.int64(-1), own, out[r], noted, unowned(nothing), unowned(nothing)
            )
