"""The two loops: learn rows, predict rows. No algorithm has its own.

Shapes: n rows, d features, k outputs (classes, or one), a rows to forecast, L lifetimes.

A row is learned in this order: it is routed to its leaf (growth), then from the leaf up
each node on the path first prices it, then counts it, then shifts its weight. Kernels
allocate nothing per row: :func:`update` returns at the row for which there is no capacity.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dmondrian._numba.intrinsics import unowned
from dmondrian._numba.jit import hook, implements, inline, kernel, noinline
from dmondrian.tree.address_table import tree_at
from dmondrian.tree.box import measure
from dmondrian.tree.box_encoding import row_of
from dmondrian.tree.keyed_random import tree_key
from dmondrian.tree.nodes import (
    LEFT,
    N_NODES,
    PARENT,
    ROOT,
    STAT,
    TOTAL_WEIGHT,
    child_of,
    leaf_of,
    scratch_size_compiled,
    splits_after,
)
from dmondrian.tree.policies import (
    Branch,
    Visit,
    add_branch,
    add_leaf,
    at_once,
    begin,
    branch_off,
    count,
    gather,
    grow,
    ignores_above,
    inserted_factor,
    learn,
    learn_above,
    opening_price,
    parting,
    pass_node,
    prepare,
    price,
    reads_boxes,
    reads_siblings,
    second_moment,
)
from dmondrian.tree.prefetch import (
    N_AHEAD,
    N_NOTED,
    CachedPath,
    PrefetchedPath,
    RowInTrees,
    RowsInTree,
    prefetch_for,
)

MAX_REPEATS = 256  # integer weights up to this are learned as repeats, byte for byte


@inline
def learn_path(stat, loss, rule, tree, leaf, opens, inserted, y, w, cached_path):
    """Price, count and weigh one row from its leaf to the root. O(depth)."""
    v = np.uint64(leaf)  # uint64 like every node index: callees are compiled for one type
    if opens:
        q, kq = opening_price(loss, tree, v, y, w)
    else:
        n, d, kq = price(loss, tree, v, y, w)
        q = n / d
    count(stat, tree, v, y, w)
    shift = inserted_factor(rule, tree, inserted) if inserted >= 0 else 1.0
    learn_above(loss, stat, rule, tree, leaf, q, kq, shift, y, w, cached_path)


@noinline
def learn_in_parts(stat, loss, rule, tree, leaf, opens, inserted, y, w, cached_path):
    """Learn a row of another weight than one: a whole number as repeats, else part by part."""
    repeats, done = w <= MAX_REPEATS and w == np.floor(w), 0.0
    while done < w:
        if done > 0.0:
            prepare(loss, rule, tree, y)
        part = 1.0 if repeats else min(at_once(loss, done), w - done)
        learn_path(stat, loss, rule, tree, leaf, opens, inserted, y, part, cached_path)
        tree.head_f[TOTAL_WEIGHT] += part
        done += part
        opens, inserted = False, -1


def learn_along_path(growth, stat, loss, rule, tree, key, x, y, w, prefetched):
    """Learn a row as most growths do: taken in once, then known to all nodes on its path."""
    prepare(loss, rule, tree, y)
    leaf, opens, inserted, n_noted = grow(growth, stat, rule, tree, x, y, key, prefetched)
    if leaf < 0:
        return False
    cached_path = CachedPath(prefetched.nodes, n_noted)
    if w == 1.0:
        learn_path(stat, loss, rule, tree, leaf, opens, inserted, y, 1.0, cached_path)
        tree.head_f[TOTAL_WEIGHT] += 1.0
    else:
        learn_in_parts(stat, loss, rule, tree, leaf, opens, inserted, y, w, cached_path)
    return True


@inline
def branch_of(growth, stat, tree, key, at, x, is_apart):
    """Return the branch off the node of a visit; none where ``x`` is not apart from its rows."""
    return branch_off(growth, stat, tree, key, at, x) if is_apart else Branch(0.0, 0.0, 1)


@inline
def first_needed(rule, tree, noted, parts_at, lifetime):
    """Return the number of the noted node, from 1 on, at which a walk may begin; 0: the root.

    That is the lowest node that ignores those above it. Branches are computed from ``parts_at``
    on, if it is not -1, and what a branch predicts depends on nodes above: then only nodes above
    ``parts_at`` are taken. O(depth).
    """
    level, is_above = np.uint64(noted.shape[0]), parts_at < 0
    while level > np.uint64(0):
        v = noted[level - np.uint64(1)]
        if is_above and ignores_above(rule, tree, np.uint64(v), lifetime):
            break
        is_above = is_above or v == parts_at
        level -= np.uint64(1)
    return level


@inline
def predict_row(
    growth, stat, loss, rule, tree, key, x, leaf, noted, lifetimes, path, branched, answers
):
    """Write one tree's prediction at each lifetime; return the last cell. O(depth).

    A node whose split comes after a lifetime is a leaf at that lifetime, so one walk, to
    ``leaf``, serves all of them; ``noted`` int32 [a] are its first nodes below the root, and those
    that do not matter are passed over. ``path`` gathers the tree as it is; where growth may branch
    off above a node, ``branched`` gathers what the tree extended there forecasts.
    """
    begin(rule, path)
    branched[:] = 0.0
    rest = 1.0
    alive = 1.0  # probability of no branch above v
    stage = 0
    parts_at, is_apart = parting(growth, tree, leaf, x), False
    n_noted = np.uint64(noted.shape[0])
    level = first_needed(rule, tree, noted, parts_at, lifetimes[0])
    v = np.uint64(noted[level - np.uint64(1)] if level > np.uint64(0) else tree.head_i[ROOT])
    depth = np.float64(level)
    while True:
        is_apart = is_apart or np.int64(v) == parts_at
        is_leaf = tree.i[v, LEFT] < 0
        while is_leaf or splits_after(tree, v, lifetimes[stage]):
            at = Visit(v, True, lifetimes[stage], depth, rest)
            out = answers[stage]
            for c in range(out.shape[0]):
                out[c] = branched[c]
            branch = branch_of(growth, stat, tree, key, at, x, is_apart)
            off = branch.probability
            stays = alive
            if off > 0.0:
                add_branch(rule, growth, loss, tree, at, branch, alive * off, path, out)
                stays *= 1.0 - off
            add_leaf(rule, loss, tree, at, stays, path, out)
            stage += 1
            if stage == lifetimes.shape[0]:
                return v
        at = Visit(v, False, lifetimes[stage], depth, rest)
        branch = branch_of(growth, stat, tree, key, at, x, is_apart)
        off = branch.probability
        if off > 0.0:
            add_branch(rule, growth, loss, tree, at, branch, alive * off, path, branched)
            alive *= 1.0 - off
        rest = pass_node(rule, loss, tree, at, path)
        depth += 1.0
        v = np.uint64(noted[level] if level < n_noted else child_of(tree, v, x))
        level += np.uint64(1)


class NoForecasts(NamedTuple):
    """The request where no row is to be forecast before it is learned."""

    is_empty: bool = True  # a tuple without fields has no type for Numba


class ForecastRequest(NamedTuple):
    """Rows that one tree is to forecast before it learns them, each at a lifetime of its own."""

    rows: np.ndarray  # int64 [a], increasing; never the tree's first
    lifetimes: np.ndarray  # float64 [a]
    loss: Any  # policy that holds what a cell forecasts
    work: np.ndarray  # float64 [3, k], scratch
    forecasts: np.ndarray  # float64 [a, k], output: what the tree forecasts
    root_stats: np.ndarray  # float64 [a, s], output: the first statistics of the root then
    # int64 [1], rows forecast so far: none is again where learning goes on with more capacity
    n_forecast: np.ndarray


@hook
def forecast_if_requested(request, growth, stat, loss, rule, tree, key, x, row, prefetched):
    """Write what the tree forecasts of row number ``row``, if ``request`` names it.

    ``prefetched`` is the path on which ``x`` went some rows ago
    (:class:`dmondrian.tree.prefetch.PrefetchedPath`).
    """


@implements(forecast_if_requested, NoForecasts)
def skip_forecast(request, growth, stat, loss, rule, tree, key, x, row, prefetched):
    """Do nothing: no forecast is requested."""


@hook
def forecast_reads_siblings(request, rule):
    """Return whether forecasts look at both children of the nodes on a path."""


@implements(forecast_reads_siblings, NoForecasts)
def reads_no_siblings(request, rule):
    """Return False: there are no forecasts."""
    return False


@implements(forecast_reads_siblings, ForecastRequest)
def reads_siblings_as_rule(request, rule):
    """Return whether forecasts by this rule do."""
    return reads_siblings(rule)


@inline
def n_still_on_path(tree, prefetched):
    """Return how many of the nodes noted on a row's path are on it still. O(depth)."""
    v, n = np.int32(tree.head_i[ROOT]), np.uint64(min(prefetched.depth, N_NOTED))
    level = np.uint64(0)
    while level < n:
        u = prefetched.nodes[level]
        if tree.i[np.uint64(u), PARENT] != v:  # a node has come in between
            break
        v = u
        level += np.uint64(1)
    return np.int64(level)


@implements(forecast_if_requested, ForecastRequest)
def forecast_requested_row(request, growth, stat, loss, rule, tree, key, x, row, prefetched):
    """Write the forecast, if the row is the next one requested. O(depth)."""
    i = request.n_forecast[0]
    if i < request.rows.shape[0] and request.rows[i] == row:
        work, lifetime = unowned(request.work), unowned(request.lifetimes)[i : i + 1]
        noted, leaf = prefetched.nodes[: n_still_on_path(tree, prefetched)], np.int64(-1)
        if reads_boxes(growth):  # else no leaf is looked at
            n = noted.shape[0]
            leaf = leaf_of(tree, np.int64(noted[n - 1] if n > 0 else tree.head_i[ROOT]), x)
        predict_row(
            growth, stat, request.loss, rule, tree, key, x, leaf, noted, lifetime, work[0], work[1],
            work[2:],
        )  # fmt: skip
        for k in range(work.shape[1]):  # slices might overlap, and would be copied first
            request.forecasts[i, k] = work[2, k]
        root = tree.head_i[ROOT]
        for k in range(request.root_stats.shape[1]):
            request.root_stats[i, k] = tree.d[root, STAT + k]
        request.n_forecast[0] = i + 1


@inline
def learn_block(growth, stat, loss, rule, tree, key, rows, y, w, start, request, at, noted):
    """Learn rows ``start``.. in one tree; return the row reached.

    ``at`` and ``noted`` are scratch, as :func:`prefetch_for` takes them; of a row that comes alone
    they hold its path already.
    """
    capacity = tree.i.shape[0]
    n = y.shape[0]
    for r in range(start, n):
        age = (r - start) % N_AHEAD
        if n > 1:
            paths, n_paths = RowsInTree(tree, rows, r - age), min(n - r + age, N_AHEAD)
            prefetch_for(
                paths, age, n_paths, at, noted, True, forecast_reads_siblings(request, rule)
            )
        if tree.head_i[N_NODES] + 2 > capacity:
            return r
        x = row_of(rows, r)
        prefetched = PrefetchedPath(at[age], age, noted[age], at[N_AHEAD + age])
        forecast_if_requested(request, growth, stat, loss, rule, tree, key, x, r, prefetched)
        weight = w[r] if w.shape[0] > 0 else 1.0
        if weight > 0.0 and not learn(
            growth, stat, loss, rule, tree, key, x, y[r], weight, prefetched
        ):
            return r
    return n


@kernel
def update(
    growth,
    stat,
    loss,
    rule,
    table,
    columns,
    seed,
    numbers,
    first,
    last,
    rows,
    y,
    w,
    reached,
    request,
):
    """Learn rows in order, in trees ``first`` to ``last``; return how many lack capacity for them.

    Writes the trees, and to ``reached`` int64 [T] the row at which each stopped: n, or one before
    which two more nodes would not fit. ``y`` float64 [n], ``w`` float64 [n] or [0] for weights of
    one; rows of weight zero are passed over. O(depth + nodes that leave the row out * d) per row
    and tree.

    Rows of ``request`` are forecast by the tree that has learned all before them.
    """
    lengths, places = np.empty(scratch_size_compiled(columns)), np.empty(4 * N_AHEAD, np.int64)
    notes = np.empty((N_AHEAD, N_NOTED), np.int32)
    n, waiting = y.shape[0], 0
    for t in range(first, last):
        scratch, at, noted = unowned(lengths), unowned(places), unowned(notes)
        k = (t - first) % N_AHEAD if n == 1 else 0
        if n == 1:
            across = RowInTrees(table, columns, row_of(rows, 0), t - k, scratch)
            prefetch_for(across, k, min(last - t + k, N_AHEAD), at, noted, True, False)
        if reached[t] < n:
            tree, key = tree_at(table, t, columns, scratch), tree_key(seed, numbers[t])
            reached[t] = learn_block(
                growth, stat, loss, rule, tree, key, rows, y, w, reached[t], request,
                at[k:], noted[k:],
            )  # fmt: skip
            waiting += reached[t] < n
    return waiting


@kernel
def predict(
    growth,
    stat,
    loss,
    rule,
    table,
    columns,
    seed,
    numbers,
    rows,
    lifetimes,
    width,
    total,
    square,
    distance,
):
    """Add the trees' predictions to ``total`` [n, L, k], and what else is requested.

    ``lifetimes`` float64 [T, L], each tree's, increase; ``square`` [n, L, k] takes second moments
    about ``OFFSET`` where it has rows, ``distance`` [n] the sum of extensions to the box of the
    last cell; ``width`` numbers are an answer. The trees must not be empty.
    """
    lengths, places = np.empty(scratch_size_compiled(columns)), np.empty(4 * N_AHEAD, np.int64)
    memory = np.empty((2 + lifetimes.shape[1], width))
    notes = np.empty((N_AHEAD, N_NOTED), np.int32)
    n, n_trees, with_siblings = total.shape[0], numbers.shape[0], reads_siblings(rule)
    with_boxes = n > 1 and (reads_boxes(growth) or distance.shape[0] > 0)
    for t in range(n_trees):
        scratch, work, at, noted = (
            unowned(lengths),
            unowned(memory),
            unowned(places),
            unowned(notes),
        )
        answers = work[2:]
        k = t % N_AHEAD if n == 1 else 0
        if n == 1:
            across = RowInTrees(table, columns, row_of(rows, 0), t - k, scratch)
            prefetch_for(
                across, k, min(n_trees - t + k, N_AHEAD), at, noted, with_boxes, with_siblings
            )
        tree, key = tree_at(table, t, columns, scratch), tree_key(seed, numbers[t])
        for r in range(n):
            b = k if n == 1 else r % N_AHEAD
            if n > 1:
                paths, n_paths = RowsInTree(tree, rows, r - b), min(n - r + b, N_AHEAD)
                prefetch_for(paths, b, n_paths, at, noted, with_boxes, with_siblings)
            x, end, n_noted = row_of(rows, r), at[b], min(at[N_AHEAD + b], N_NOTED)
            leaf = predict_row(
                growth,
                stat,
                loss,
                rule,
                tree,
                key,
                x,
                end,
                noted[b, :n_noted],
                lifetimes[t],
                work[0],
                work[1],
                answers,
            )
            for stage in range(total.shape[1]):
                out = answers[stage]
                for c in range(total.shape[2]):
                    total[r, stage, c] += out[c]
                    if square.shape[0] > 0:
                        square[r, stage, c] += second_moment(rule, tree, out, c)
            if distance.shape[0] > 0:
                distance[r] += measure(tree, leaf, x, tree.scratch)


@kernel
def collect(growth, stat, loss, rule, table, columns, seed, numbers, rows, lifetimes, answers):
    """Write each tree's answers as they are to ``answers`` [T, n, L, width].

    ``lifetimes`` float64 [T, L] increase for each tree. The trees must not be empty.
    """
    lengths, memory = np.empty(scratch_size_compiled(columns)), np.empty((2, answers.shape[3]))
    places, notes = np.empty(4 * N_AHEAD, np.int64), np.empty((N_AHEAD, N_NOTED), np.int32)
    n, with_boxes, with_siblings = answers.shape[1], reads_boxes(growth), reads_siblings(rule)
    for t in range(numbers.shape[0]):
        scratch, work, at, noted = (
            unowned(lengths),
            unowned(memory),
            unowned(places),
            unowned(notes),
        )
        tree, key = tree_at(table, t, columns, scratch), tree_key(seed, numbers[t])
        for r in range(n):
            b = r % N_AHEAD
            paths, n_paths = RowsInTree(tree, rows, r - b), min(n - r + b, N_AHEAD)
            prefetch_for(paths, b, n_paths, at, noted, with_boxes, with_siblings)
            path = noted[b, : min(at[N_AHEAD + b], N_NOTED)]
            predict_row(
                growth, stat, loss, rule, tree, key, row_of(rows, r), at[b], path, lifetimes[t],
                work[0], work[1], answers[t, r],
            )  # fmt: skip


@kernel
def gather_all(rule, tree):
    """Get ready to predict: write ``tree.messages``. O(m) for m nodes."""
    gather(rule, tree)
