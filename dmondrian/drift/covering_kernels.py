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

from typing import Any, NamedTuple

import numpy as np

from dmondrian._numba.intrinsics import unowned
from dmondrian._numba.jit import inline, kernel
from dmondrian.growth.range import Range
from dmondrian.rules.large_shares import add_share
from dmondrian.tree.address_table import tree_at
from dmondrian.tree.box_encoding import Columns, Rows, row_of
from dmondrian.tree.keyed_random import mix, row_key, tree_key
from dmondrian.tree.nodes import (
    FEATURE,
    LABEL_MAX,
    LABEL_MIN,
    LEFT,
    N_HEADER_FLOATS,
    N_HEADER_INTS,
    N_NODES,
    PARENT,
    ROOT,
    child_of,
    scratch_size,
)
from dmondrian.tree.policies import (
    complete_forecast,
    learn,
    note_forecast,
    worth,
)
from dmondrian.tree.prefetch import N_AHEAD, N_NOTED, PrefetchedPath, RowsInTree, prefetch_for
from dmondrian.tree.scaled_float import stop_probability
from dmondrian.tree.simd.exp import lowest_bit

LARGEST_VALUE = np.float64(np.finfo(np.float32).max)
_COVERING = np.uint64(0xC0FE12A6_5EED1E55)  # parts these trees' draws from those of other trees
_AT_ONCE = min(32, N_AHEAD)  # rows that are looked for ahead together
_FEW = 256  # nodes of a tree up to which its rows are not looked for ahead
_LEAST_VISITS = 50.0  # of splits before credits are believed
_PRIOR_SHARE, _PRIOR_VISITS = 0.02, 5.0  # visits added to all: rare splits count for less


class Covering(NamedTuple):
    """When trees of a member are born, and what they begin with."""

    first: int  # a tree is born every 2^first rows
    last: int  # none lives longer than 2^(last + 1)
    power: int  # of a column's credit; 0 for no scales
    floor: float  # least scale, the mean being 1
    n_levels: int  # of credits, which forget at different rates
    pause: bool  # do not split a leaf whose rows carry one label
    seed: np.uint64  # of the forest
    number: np.uint64  # of the member


class Policies(NamedTuple):
    """What nodes keep, how they forecast, and how a path of them is mixed."""

    stat: Any
    loss: Any
    rule: Any


class Places(NamedTuple):
    """Trees of a member, by place."""

    table: np.ndarray  # see :mod:`dmondrian.tree.address_table`
    caps: np.ndarray  # int64 [S], most nodes
    births: np.ndarray  # int64 [S], row before which each was born; -1 for none yet
    scales: np.ndarray  # float32 [S, d]


class Credits(NamedTuple):
    """What splits on each column were worth, and how often they were met."""

    buckets: np.ndarray  # float64 [S, 2, d], since the last birth
    levels: np.ndarray  # float64 [l, 2, d], before
    decays: np.ndarray  # float64 [l], of levels from birth to birth


class Work(NamedTuple):
    """Scratch for rows that are taken at once."""

    lengths: np.ndarray  # float64, a tree's scratch
    scaled: Rows  # times a tree's scales
    at: np.ndarray  # int64 [4 N_AHEAD], see :func:`dmondrian.tree.prefetch.prefetch_for`
    noted: np.ndarray  # int32 [N_AHEAD, N_NOTED]


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
def step_down(tree, v, x, prefetched, depth):
    """Return the child of ``v``, at this depth, to which ``x`` goes; note it.

    The noted one, if it is below ``v`` still: ``x`` went there, and thresholds stay.
    """
    u = np.uint64(depth)
    if depth < min(prefetched.depth, N_NOTED):
        child = np.int64(prefetched.nodes[u])
        if np.int64(tree.i[np.uint64(child), PARENT]) == v:
            return child
    child = np.int64(child_of(tree, v, x))
    if depth < N_NOTED:
        prefetched.nodes[u] = np.int32(child)
    return child


@inline
def forecast_way(loss, tree, x, y, is_credited, out, prefetched, credits, visits):
    """Write the tree's forecast of ``x`` to ``out`` [k]; return its leaf and depth. O(depth k).

    The tree must not be empty. Nodes above the leaf whose share of the mixture is below 2^-20 are
    left out; the loss knows how much is left. The nodes of ``prefetched`` become those of the path.
    With p_i what the forecast of node i on the path is worth at label ``y``, the mean over prunings
    is p_0 and the sum over i of W_i (p_{i+1} - p_i), W_i the posterior probability that a pruning
    goes on below node i: each term is added to ``credits`` of the column split there, W_i to its
    ``visits``, float64 [d], where the path ``is_credited``.
    """
    for c in range(out.shape[0]):
        out[c] = 0.0
    v, depth, column = np.int64(tree.head_i[ROOT]), np.int64(0), np.int64(0)
    rest, total, before = 1.0, 0.0, 0.0
    while True:
        u = np.uint64(v)
        is_leaf = tree.i[u, LEFT] < 0
        share = 1.0 if is_leaf else stop_probability(tree, u)
        total += add_share(loss, tree, u, np.float64(depth), rest * share, is_leaf, out)
        if is_credited:
            worth_here = worth(loss, tree, u, y)
            if depth > 0:
                credits[np.uint64(column)] += rest * (worth_here - before)
                visits[np.uint64(column)] += rest
            before = worth_here
        if is_leaf:
            complete_forecast(loss, tree, total, out)
            return v, depth
        rest *= 1.0 - share
        column = np.int64(tree.i[u, FEATURE])
        v = step_down(tree, v, x, prefetched, depth)
        depth += 1


def make_work(columns: Columns) -> Work:
    """Return scratch for rows of these columns."""
    scaled = np.empty((_AT_ONCE, len(columns.place)), np.float32)
    no_steps, no_bits = np.empty((_AT_ONCE, 0), np.int16), np.empty((_AT_ONCE, 0), np.uint64)
    return Work(
        np.empty(scratch_size(columns)),
        Rows(scaled, scaled, no_steps, no_bits),
        np.empty(4 * N_AHEAD, np.int64),
        np.empty((N_AHEAD, N_NOTED), np.int32),
    )


@inline
def unowned_work(work):
    """Return the scratch borrowed, for one pass of a loop: slices of it are not counted then.

    See :func:`dmondrian._numba.intrinsics.unowned`.
    """
    values, scaled = unowned(work.scaled.values), work.scaled
    rows = Rows(values, values, unowned(scaled.steps), unowned(scaled.bits))
    return Work(unowned(work.lengths), rows, unowned(work.at), unowned(work.noted))


@inline
def look_for(tree, work, i, m, is_small):
    """Return where row ``i`` of ``m`` that are taken at once was found; the first looks for all.

    A tree that ``is_small`` is not searched ahead: its nodes are in the nearest cache as it is.
    """
    if is_small:
        nowhere: Any = np.int64(-1)
        return PrefetchedPath(nowhere, i, work.noted[i], nowhere + 1)
    prefetch_for(RowsInTree(tree, work.scaled, 0), i, m, work.at, work.noted, True, False)
    return PrefetchedPath(work.at[i], i, work.noted[i], work.at[N_AHEAD + i])


@inline
def clear_nodes(tree):
    """Take all nodes out of a tree, and keep their memory."""
    for k in range(N_HEADER_INTS):
        tree.head_i[k] = 0
    tree.head_i[ROOT] = -1
    for k in range(N_HEADER_FLOATS):
        tree.head_f[k] = 0.0
    tree.head_f[LABEL_MIN], tree.head_f[LABEL_MAX] = np.inf, -np.inf


@inline
def take_credits(credits):
    """Add the credits since the last birth to each level; clear them.

    Level l forgets half within as many rows as a tree of its exponent lives.
    """
    buckets, levels, decays = credits.buckets, credits.levels, credits.decays
    for part in range(2):
        for j in range(buckets.shape[2]):
            total = 0.0
            for s in range(buckets.shape[0]):
                total += buckets[s, part, j]
                buckets[s, part, j] = 0.0
            for level in range(levels.shape[0]):
                levels[level, part, j] = levels[level, part, j] * decays[level] + total


@inline
def scale_rows(X, first, m, scales, scaled):
    """Write rows times feature scales to ``scaled``: the largest value where that is beyond it."""
    for i in range(m):
        for j in range(X.shape[1]):
            value = np.float64(X[first + i, j]) * np.float64(scales[j])
            value = value if value < LARGEST_VALUE else LARGEST_VALUE
            value = value if value > -LARGEST_VALUE else -LARGEST_VALUE
            scaled[i, j] = np.float32(value)


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
            total += rate_to_power(credits[j] / (visits[j] + prior) / largest, covering.power)
    for j in range(d):
        scale = 1.0
        if is_known:
            share = (
                rate_to_power(credits[j] / (visits[j] + prior) / largest, covering.power) / total
            )
            scale = covering.floor + (1.0 - covering.floor) * d * share
        scales[j] = np.float32(scale)


@inline
def rate_to_power(rate, power):
    """Return ``rate``^``power``, 0 of rates below 0."""
    value = max(rate, 0.0)
    result = value
    for _ in range(power - 1):
        result *= value
    return result


@inline
def full_place(places, columns, scratch, replaced, m):
    """Return the first place whose tree cannot take ``m`` rows more, or -1.

    The tree that is ``replaced`` does not count: a new one has capacity for 2^first rows.
    """
    for s in range(places.births.shape[0]):
        if places.births[s] >= 0 and s != replaced:
            tree = tree_at(places.table, s, columns, scratch)
            needed = min(tree.head_i[N_NODES] + 2 * m, places.caps[s])
            if tree.i.shape[0] < needed:
                return np.int64(s)
    return np.int64(-1)


@inline
def give_birth(covering, places, credits, columns, scratch, place, at):
    """Begin a tree without nodes before row ``at``, with feature scales made of the credits."""
    take_credits(credits)
    level = min(exponent_at(covering, at) - covering.first, covering.n_levels - 1)
    known = credits.levels[level]
    write_scales(covering, known[0], known[1], places.scales[place])
    places.births[place] = at
    clear_nodes(tree_at(places.table, place, columns, scratch))


@kernel
def learn_rows(
    covering, policies, columns, places, credits, work, rows, t, start, forecasts, reached
):
    """Forecast and learn rows from ``start`` on, in all trees of a member.

    Writes the forecast by the tree of each octave, just before it learned the row, to ``forecasts``
    float64 [1 + k, n, K], from 1 on; where there is no such tree, a copy of the first, by a
    permanent tree. Stops where a tree is full: ``reached`` int64 [2] takes the row, and the place
    of that tree or -1. Row number ``t`` of the stream is the first.

    O(trees (depth K + nodes that leave the row out * d)) for a row. Rows are looked for ahead, some
    at a time, in one tree after the other.
    """
    X, y, w = rows.X, rows.y, rows.w
    n, n_classes = X.shape[0], forecasts.shape[2]
    own_key = tree_key(covering.seed, covering.number) ^ _COVERING
    step = np.int64(1) << np.int64(covering.first)
    while start < n:
        scratch = unowned(work.lengths)
        at = np.int64(t) + start
        into = at & (step - 1)
        m = min(step - into, n - start)
        replaced = place_at(covering, at) if into == 0 else np.int64(-1)
        lacking = full_place(places, columns, scratch, replaced, m)
        if lacking >= 0:
            reached[0], reached[1] = start, lacking
            return
        if into == 0:
            give_birth(covering, places, credits, columns, scratch, replaced, at)
        for k in range(covering.first, covering.last + 1):
            if born_in_octave(at, np.int64(k)) < 0:
                for r in range(start, start + m):
                    for c in range(n_classes):
                        forecasts[1 + k - covering.first, r, c] = forecasts[0, r, c]
        for s in range(places.births.shape[0]):
            if places.births[s] < 0:
                continue
            borrowed = unowned_work(work)
            tree = tree_at(places.table, s, columns, borrowed.lengths)
            age = at - places.births[s]
            octave = octave_of(age) - covering.first + 1 if age >= step else np.int64(-1)
            growth = Range(covering.pause, False, places.caps[s], np.inf)
            key = row_key(mix(own_key), np.uint64(places.births[s]))
            worths, visits = credits.buckets[s, 0], credits.buckets[s, 1]
            for first in range(start, start + m, _AT_ONCE):
                n_rows = min(_AT_ONCE, start + m - first)
                is_small = octave > 0 and tree.head_i[N_NODES] < _FEW
                scale_rows(X, first, n_rows, places.scales[s], borrowed.scaled.values)
                for i in range(n_rows):
                    r, x = first + i, row_of(borrowed.scaled, i)
                    prefetched = look_for(tree, borrowed, i, n_rows, is_small)
                    if octave > 0 and tree.head_i[ROOT] >= 0:
                        leaf, depth = forecast_way(
                            policies.loss, tree, x, y[r], covering.power > 0,
                            forecasts[octave, r], prefetched, worths, visits,
                        )  # fmt: skip
                        note_forecast(policies.loss, tree, forecasts[octave, r], y[r])
                        prefetched = PrefetchedPath(leaf, 0, prefetched.nodes, depth)
                    weight = w[r] if w.shape[0] > 0 else 1.0
                    learn(
                        growth, policies.stat, policies.loss, policies.rule, tree, key, x, y[r],
                        weight, prefetched,
                    )  # fmt: skip
        start += m
    reached[0], reached[1] = start, -1


@kernel
def forecast_rows(covering, loss, columns, places, work, X, t, forecasts):
    """Write what the tree of each octave forecasts to ``forecasts``; see :func:`learn_rows`.

    The trees are as they are before row number ``t``.
    """
    n, n_classes = X.shape[0], forecasts.shape[2]
    for k in range(covering.first, covering.last + 1):
        borrowed = unowned_work(work)
        none = borrowed.lengths[:0]
        out = forecasts[1 + k - covering.first]
        b = born_in_octave(np.int64(t), np.int64(k))
        if b < 0:
            for r in range(n):
                for c in range(n_classes):
                    out[r, c] = forecasts[0, r, c]
            continue
        s = place_at(covering, b)
        tree = tree_at(places.table, s, columns, borrowed.lengths)
        for first in range(0, n, _AT_ONCE):
            n_rows, is_small = min(_AT_ONCE, n - first), tree.head_i[N_NODES] < _FEW
            scale_rows(X, first, n_rows, places.scales[s], borrowed.scaled.values)
            for i in range(n_rows):
                x, prefetched = (
                    row_of(borrowed.scaled, i),
                    look_for(tree, borrowed, i, n_rows, is_small),
                )
                forecast_way(loss, tree, x, 0.0, False, out[first + i], prefetched, none, none)
