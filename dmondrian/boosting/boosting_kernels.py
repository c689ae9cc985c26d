"""Gradient boosting: small trees that are grown on histograms, and the sum of what they answer.

A round grows a tree for the log odds of two classes, one for each of more that have rows, or one
for a number, to the gradients of the log loss, or of half the squared error, at the scores of the
rounds before (Friedman, 2001, "Greedy function approximation", Annals of Statistics 29; second
order as in Chen, Guestrin, 2016, "XGBoost", KDD).
A tree grows leaf by leaf: the next split is that of most gain over all leaves,

    G_l^2 / (H_l + l2) + G_r^2 / (H_r + l2) - G^2 / (H + l2),

G and H the sums of gradients and second derivatives times weights; of equals the one of the first
leaf, column and bin. A leaf answers -rate G / (H + l2).

Where columns are monotone, what leaves answer rises, or falls, with these. A split on such a column
whose sides would answer in the other order is left out. The mean of what its sides answer is a
bound of all that is grown beneath them, from above on the lower side and from below on the other;
splits are worth then what bounded answers gain (as the "basic" method of XGBoost and LightGBM).

Gradients are whole numbers of a unit, so that their sums are exact in any order, the histogram of
a leaf is that of its parent less its sibling's, and no machine differs. A second derivative has the
count of its rows in its lowest bits, so that both are one sum. Exponentials and logarithms are the
library's own.

Shapes: n rows, d columns, B bins of all columns, K classes, L leaves at most, T trees.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import hook, implements, inline, kernel
from dmondrian.tree.keyed_random import exp, log, mix

SUM_BITS, _ROW_BITS = 46, 17  # of sums of gradients in units, of counts; of second derivatives 45
_ROWS = np.int64((1 << _ROW_BITS) - 1)
_FARTHEST = 700.0  # log odds of answers, with which no probability is 0
_AT_ONCE, _LANES = 64, 8  # rows that a tree answers before the next, and that go down it together
MOST_ROWS = int(_ROWS)
"""Rows that a set can be fitted to."""


class BoostingSettings(NamedTuple):
    """Settings of the trees of a boosted set."""

    n_rounds: int
    n_leaves: int
    rate: float  # of a leaf's best answer that it gives
    l2: float
    least_rows: int  # of a leaf
    least_curvature: float  # sum of second derivatives in a leaf
    largest_step: float  # of a leaf's best answer


class BinnedRows(NamedTuple):
    """Rows in bins, with labels; see :class:`dmondrian.boosting.column_bins.ColumnBins`."""

    of_rows: np.ndarray  # uint8 [d, n]
    starts: np.ndarray  # int64 [d + 1]
    ends: np.ndarray  # float32 [B]
    usual: np.ndarray  # int64 [d]
    entries: np.ndarray  # int32
    rows_at: np.ndarray  # int64 [n + 1]
    monotone: np.ndarray  # int8 [d], 1 or -1 for columns with which answers rise or fall; or [0]
    y: np.ndarray  # int64 [n], classes, or float64 [n], numbers in [-1, 1]
    w: np.ndarray  # float64 [n], > 0
    unit: float  # a power of two that gradients are multiples of
    per_unit: float  # 1 / unit


class Trees(NamedTuple):
    """Trees in the order in which their answers are added up.

    A tree's splits are numbered as they were made; a child is the number of a split, or -1 less the
    number of a leaf.
    """

    outputs: np.ndarray  # int64 [T], what each is added to: a class, of two the second
    n_splits: np.ndarray  # int64 [T]
    columns: np.ndarray  # int32 [T, L - 1]
    thresholds: np.ndarray  # float32 [T, L - 1]: rows at or below go left
    children: np.ndarray  # int32 [T, L - 1, 2]
    answers: np.ndarray  # float64 [T, L]


class LogLoss(NamedTuple):
    """Of classes."""

    n_classes: int


class SquaredLoss(NamedTuple):
    """Half of the squared error, of numbers in [-1, 1]."""

    largest: float  # error that counts


class FitBuffers(NamedTuple):
    """Memory that a fit computes in."""

    rows: np.ndarray  # int64 [n], by leaf
    aside: np.ndarray  # int64 [n]
    gradients: np.ndarray  # int64 [n]
    curvatures: np.ndarray  # int64 [n], with a row's count
    histograms: np.ndarray  # int64 [L, B, 2]: gradients, curvatures with counts
    starts: np.ndarray  # int64 [L], of a leaf's rows
    counts: np.ndarray  # int64 [L]
    sums: np.ndarray  # int64 [L, 2], as of a histogram
    bounds: np.ndarray  # float64 [L, 2], of what a leaf answers, before its rate
    gains: np.ndarray  # float64 [L], of each leaf's best split
    splits: np.ndarray  # int64 [L, 2], its column and bin
    parents: np.ndarray  # int64 [L, 2], split and side that lead to a leaf
    tops: np.ndarray  # float64 [n], largest score of a row
    totals: np.ndarray  # float64 [n], sum of exponentials of scores less that


@inline
def whole(value, per_unit):
    """Return a number as the nearest whole number of units."""
    return np.int64(np.floor(value * per_unit + 0.5))


@hook
def begin_round(loss, scores, buffers):
    """Write what all outputs of a round need of the scores."""


@hook
def write_gradients(loss, binned, scores, output, buffers):
    """Write gradients and second derivatives of the loss by the score of one output. O(n)."""


@hook
def loss_of_row(loss, scores, label):
    """Return what scores [K] lose at a label."""


@implements(loss_of_row, LogLoss)
def log_loss_of_row(loss, scores, label):
    """Return the negative logarithm of the probability of the class."""
    if loss.n_classes == 2:
        towards = scores[1] if label == 1 else -scores[1]
        return max(-towards, 0.0) + log(1.0 + exp(-abs(towards)))
    top, total = scores[0], 0.0
    for c in range(1, scores.shape[0]):
        top = max(top, scores[c])
    for c in range(scores.shape[0]):
        total += exp(scores[c] - top)
    return top + log(total) - scores[label]


@implements(loss_of_row, SquaredLoss)
def squared_loss_of_row(loss, scores, label):
    """Return half the squared error; what exceeds the largest that counts is linear in it."""
    error = abs(label - scores[0])
    near = min(error, loss.largest)
    return near * (error - 0.5 * near)


@implements(begin_round, LogLoss)
def write_totals(loss, scores, buffers):
    """Write the largest score of each row, and the sum of exponentials of scores less it."""
    if loss.n_classes == 2:
        return
    for r in range(scores.shape[0]):
        top, total = scores[r, 0], 0.0
        for c in range(1, scores.shape[1]):
            top = max(top, scores[r, c])
        for c in range(scores.shape[1]):
            total += exp(scores[r, c] - top)
        buffers.tops[r], buffers.totals[r] = top, total


@implements(write_gradients, LogLoss)
def write_log_loss(loss, binned, scores, output, buffers):
    """Write those of a class."""
    factor = loss.n_classes / (loss.n_classes - 1.0)  # the scores of K classes have one too many
    for r in range(binned.y.shape[0]):
        w = binned.w[r]
        if loss.n_classes == 2:
            p = 1.0 / (1.0 + exp(-scores[r, 1]))
            curvature = p * (1.0 - p)
        else:
            p = exp(scores[r, output] - buffers.tops[r]) / buffers.totals[r]
            curvature = p * (1.0 - p) * factor
        gradient = p - 1.0 if binned.y[r] == output else p
        buffers.gradients[r] = whole(w * gradient, binned.per_unit)
        buffers.curvatures[r] = (whole(w * curvature, binned.per_unit) << _ROW_BITS) + 1


@implements(begin_round, SquaredLoss)
def write_nothing(loss, scores, buffers):
    """Do nothing: numbers have one output."""


@implements(write_gradients, SquaredLoss)
def write_errors(loss, binned, scores, output, buffers):
    """Write errors, bounded, and weights."""
    for r in range(binned.y.shape[0]):
        w, error = binned.w[r], scores[r, output] - binned.y[r]
        error = max(-loss.largest, min(loss.largest, error))
        buffers.gradients[r] = whole(w * error, binned.per_unit)
        buffers.curvatures[r] = (whole(w, binned.per_unit) << _ROW_BITS) + 1


@inline
def write_histogram(binned, buffers, leaf):
    """Write what the rows of a leaf add up to in each bin. O(entries of rows + B)."""
    histograms, start = buffers.histograms, buffers.starts[leaf]
    for b in range(histograms.shape[1]):
        histograms[leaf, b, 0] = 0
        histograms[leaf, b, 1] = 0
    for i in range(buffers.counts[leaf]):
        r = buffers.rows[start + i]
        g, h = buffers.gradients[r], buffers.curvatures[r]
        for k in range(binned.rows_at[r], binned.rows_at[r + 1]):
            b = binned.entries[k]
            histograms[leaf, b, 0] += g
            histograms[leaf, b, 1] += h
    for j in range(binned.usual.shape[0]):
        usual = binned.usual[j]
        if usual < 0:
            continue
        g, h = buffers.sums[leaf, 0], buffers.sums[leaf, 1]
        for b in range(binned.starts[j], binned.starts[j + 1]):
            g -= histograms[leaf, b, 0]
            h -= histograms[leaf, b, 1]
        histograms[leaf, usual, 0], histograms[leaf, usual, 1] = g, h


@inline
def take_histogram(histograms, whole_leaf, part):
    """Take the histogram of one leaf out of that of another."""
    for b in range(histograms.shape[1]):
        histograms[whole_leaf, b, 0] -= histograms[part, b, 0]
        histograms[whole_leaf, b, 1] -= histograms[part, b, 1]


@inline
def swap_histograms(histograms, leaf_a, leaf_b):
    """Let two leaves change their histograms."""
    for b in range(histograms.shape[1]):
        for k in range(2):
            kept = histograms[leaf_a, b, k]
            histograms[leaf_a, b, k] = histograms[leaf_b, b, k]
            histograms[leaf_b, b, k] = kept


@inline
def bounded_answer(settings, g, h, bounds):
    """Return what a leaf of these sums answers best within bounds, before its rate."""
    return max(bounds[0], min(bounds[1], -g / (h + settings.l2)))


@inline
def gain_of(settings, g, h, answer):
    """Return what an answer gains, twice the loss that it takes from a leaf of these sums."""
    return -answer * (2.0 * g + (h + settings.l2) * answer)


@inline
def find_split(settings, binned, buffers, leaf):
    """Write the best split of a leaf, and its gain, 0 for none. O(B)."""
    histograms, unit, l2 = buffers.histograms, binned.unit, settings.l2
    n, all_g, all_h = buffers.counts[leaf], buffers.sums[leaf, 0], buffers.sums[leaf, 1]
    g, h = all_g * unit, (all_h >> _ROW_BITS) * unit
    gain_unsplit, bounds, is_bounded = (
        g * g / (h + l2),
        buffers.bounds[leaf],
        binned.monotone.shape[0] > 0,
    )
    if is_bounded:
        gain_unsplit = gain_of(settings, g, h, bounded_answer(settings, g, h, bounds))
    best, column, bin_ = 0.0, np.int64(0), np.int64(0)
    for j in range(binned.of_rows.shape[0]):
        first, last = binned.starts[j], binned.starts[j + 1] - 1
        left_g, left_h = np.int64(0), np.int64(0)
        for b in range(first, last):
            here = histograms[leaf, b, 1]
            if here == 0:
                continue
            left_g += histograms[leaf, b, 0]
            left_h += here
            left_n = left_h & _ROWS
            if n - left_n < settings.least_rows:
                break
            low = (left_h >> _ROW_BITS) * unit
            high = ((all_h - left_h) >> _ROW_BITS) * unit
            is_small = left_n < settings.least_rows or low < settings.least_curvature
            if is_small or high < settings.least_curvature:
                continue
            a, c = left_g * unit, (all_g - left_g) * unit
            gain = a * a / (low + l2) + c * c / (high + l2) - gain_unsplit
            if is_bounded:
                left = bounded_answer(settings, a, low, bounds)
                right = bounded_answer(settings, c, high, bounds)
                if binned.monotone[j] * (right - left) < 0.0:
                    continue
                gain = (
                    gain_of(settings, a, low, left)
                    + gain_of(settings, c, high, right)
                    - gain_unsplit
                )
            if gain > best:
                best, column, bin_ = gain, np.int64(j), b - first
    buffers.gains[leaf], buffers.splits[leaf, 0], buffers.splits[leaf, 1] = best, column, bin_


@inline
def part_rows(binned, buffers, leaf, new):
    """Move the rows of a leaf that go right to a new leaf, both in their order. O(rows)."""
    start, n = buffers.starts[leaf], buffers.counts[leaf]
    column, last = buffers.splits[leaf, 0], buffers.splits[leaf, 1]
    n_left, n_right = 0, 0
    g, h = np.int64(0), np.int64(0)
    for i in range(n):
        r = buffers.rows[start + i]
        if np.int64(binned.of_rows[column, r]) <= last:
            buffers.rows[start + n_left] = r
            n_left += 1
            g += buffers.gradients[r]
            h += buffers.curvatures[r]
        else:
            buffers.aside[n_right] = r
            n_right += 1
    for i in range(n_right):
        buffers.rows[start + n_left + i] = buffers.aside[i]
    buffers.counts[leaf], buffers.starts[new], buffers.counts[new] = n_left, start + n_left, n_right
    buffers.sums[new, 0], buffers.sums[new, 1] = (
        buffers.sums[leaf, 0] - g,
        buffers.sums[leaf, 1] - h,
    )
    buffers.sums[leaf, 0], buffers.sums[leaf, 1] = g, h


@inline
def answer_of(settings, binned, buffers, leaf):
    """Return what a leaf answers within its bounds, before its rate."""
    g, h = buffers.sums[leaf, 0] * binned.unit, (buffers.sums[leaf, 1] >> _ROW_BITS) * binned.unit
    return bounded_answer(settings, g, h, buffers.bounds[leaf])


@inline
def bound_sides(settings, binned, buffers, leaf, new, direction):
    """Write the bounds of both sides of a split of ``leaf``, on a column of this direction."""
    low, high = buffers.bounds[leaf, 0], buffers.bounds[leaf, 1]
    buffers.bounds[new, 0], buffers.bounds[new, 1] = low, high
    if direction == 0:
        return
    left = answer_of(settings, binned, buffers, leaf)
    right = answer_of(settings, binned, buffers, new)
    middle, lower = 0.5 * left + 0.5 * right, leaf if direction > 0 else new
    buffers.bounds[lower, 1] = middle
    buffers.bounds[leaf + new - lower, 0] = middle


@inline
def grow_tree(settings, binned, trees, t, buffers):
    """Grow tree number ``t`` to the gradients; return its splits. O(L (d n / 2 + B)) at most."""
    n = binned.y.shape[0]
    buffers.starts[0], buffers.counts[0] = 0, n
    buffers.sums[0, 0], buffers.sums[0, 1] = 0, 0
    for r in range(n):
        buffers.rows[r] = r
        buffers.sums[0, 0] += buffers.gradients[r]
        buffers.sums[0, 1] += buffers.curvatures[r]
    buffers.parents[0, 0], buffers.parents[0, 1] = -1, 0
    buffers.bounds[0, 0], buffers.bounds[0, 1] = -np.inf, np.inf
    write_histogram(binned, buffers, np.int64(0))
    find_split(settings, binned, buffers, np.int64(0))
    n_leaves = 1
    while n_leaves < settings.n_leaves:
        leaf = np.int64(0)
        for k in range(1, n_leaves):
            if buffers.gains[k] > buffers.gains[leaf]:
                leaf = np.int64(k)
        if not buffers.gains[leaf] > 0.0:
            break
        split, new = n_leaves - 1, np.int64(n_leaves)
        column = buffers.splits[leaf, 0]
        trees.columns[t, split] = column
        trees.thresholds[t, split] = binned.ends[binned.starts[column] + buffers.splits[leaf, 1]]
        if buffers.parents[leaf, 0] >= 0:
            trees.children[t, buffers.parents[leaf, 0], buffers.parents[leaf, 1]] = split
        trees.children[t, split, 0], trees.children[t, split, 1] = -1 - leaf, -1 - new
        part_rows(binned, buffers, leaf, new)
        direction = binned.monotone[column] if binned.monotone.shape[0] > 0 else 0
        bound_sides(settings, binned, buffers, leaf, new, direction)
        buffers.parents[leaf, 0], buffers.parents[leaf, 1] = split, 0
        buffers.parents[new, 0], buffers.parents[new, 1] = split, 1
        n_leaves += 1
        if n_leaves == settings.n_leaves:
            break
        if buffers.counts[new] <= buffers.counts[leaf]:
            write_histogram(binned, buffers, new)
            take_histogram(buffers.histograms, leaf, new)
        else:  # the sibling's place takes the parent's, less what is counted anew
            swap_histograms(buffers.histograms, leaf, new)
            write_histogram(binned, buffers, leaf)
            take_histogram(buffers.histograms, new, leaf)
        find_split(settings, binned, buffers, leaf)
        find_split(settings, binned, buffers, new)
    trees.n_splits[t] = n_leaves - 1
    for k in range(n_leaves):
        step = answer_of(settings, binned, buffers, k)
        step = max(-settings.largest_step, min(settings.largest_step, step))
        trees.answers[t, k] = settings.rate * step
    return n_leaves


@kernel
def fit_rounds(settings, loss, binned, outputs, scores, trees, buffers):
    """Grow trees, round by round; return how many rounds had a split.

    Parameters
    ----------
    settings : BoostingSettings
    loss : LogLoss or SquaredLoss
    binned : BinnedRows
    outputs : int64 [m]
        What a round grows trees for: class 1 of two, classes that have rows, or 0 of numbers.
    scores : float64 [n, K]
        Of each row before the first round; of two classes the second counts. Written to.
    trees : Trees
        Of capacity for all rounds; ``outputs`` is given.
    buffers : FitBuffers
    """
    for turn in range(settings.n_rounds):
        begin_round(loss, scores, buffers)
        has_split = False
        for k in range(outputs.shape[0]):
            output, t = outputs[k], turn * outputs.shape[0] + k
            write_gradients(loss, binned, scores, output, buffers)
            n_leaves = grow_tree(settings, binned, trees, t, buffers)
            has_split = has_split or n_leaves > 1
            for leaf in range(n_leaves):
                start, answer = buffers.starts[leaf], trees.answers[t, leaf]
                for i in range(buffers.counts[leaf]):
                    scores[buffers.rows[start + i], output] += answer
        if not has_split:
            return turn
    return settings.n_rounds


class PathBuffers(NamedTuple):
    """Memory for the paths of rows down trees."""

    at: np.ndarray  # int64 [lanes], split that a row has come to, or -1 less its leaf
    depths: np.ndarray  # int64 [L - 1], splits down to one, itself included


def make_path_buffers(trees: Trees) -> PathBuffers:
    """Return scratch for trees."""
    return PathBuffers(np.zeros(_LANES, np.int64), np.zeros(trees.columns.shape[1], np.int64))


@inline
def depth_of(trees, t, depths):
    """Return the most splits on a way down tree ``t``. O(L)."""
    n, deepest = trees.n_splits[t], np.int64(0)
    for k in range(n):
        depths[k] = 1
    for k in range(n):
        deepest = max(deepest, depths[k])
        for side in range(2):
            child = np.int64(trees.children[t, k, side])
            if child >= 0:
                depths[child] = max(depths[child], depths[k] + 1)
    return deepest


@inline
def add_trees(trees, first, stop, X, start, n, path_buffers, scores):
    """Add what trees [first, stop) answer rows [start, start + n) to scores [n, K] of these.

    Some rows go down a tree together, none of which waits for the memory of another, and a row that
    has come to its leaf stays there: where it turns is no branch that a processor has to guess.
    """
    at = path_buffers.at
    for tree in range(first, stop):
        t = np.uint64(tree)
        depth, output = depth_of(trees, t, path_buffers.depths), np.uint64(trees.outputs[t])
        for first_lane in range(0, n, _LANES):
            m = min(n - first_lane, _LANES)
            for b in range(m):
                at[b] = 0 if depth > 0 else -1
            for _ in range(depth):
                for b in range(m):
                    here, r = at[b], np.uint64(start + first_lane + b)
                    k = np.uint64(max(here, 0))
                    x = X[r, np.uint64(trees.columns[t, k])]
                    side = np.uint64(0 if x <= trees.thresholds[t, k] else 1)
                    child = np.int64(trees.children[t, k, side])
                    at[b] = here if here < 0 else child
            for b in range(m):
                scores[first_lane + b, output] += trees.answers[t, np.uint64(-1 - at[b])]


@kernel
def sum_losses(loss, trees, marks, first_scores, rows, path_buffers, scores, out):
    """Write what rows lose by the first trees, float64 [m]. O(n trees depth).

    Parameters
    ----------
    loss : LogLoss or SquaredLoss
    trees : Trees
    marks : int64 [m]
        How many trees, ascending.
    first_scores : float64 [K]
    rows : LabelledRows
    path_buffers : PathBuffers
    scores : float64 [rows at once, K]
        Scratch.
    out : float64 [m]
    """
    out[:] = 0.0
    n = rows.y.shape[0]
    for start in range(0, n, scores.shape[0]):
        n_rows, first = min(n - start, scores.shape[0]), np.int64(0)
        for i in range(n_rows):
            for c in range(scores.shape[1]):
                scores[i, c] = first_scores[c]
        for k in range(marks.shape[0]):
            add_trees(trees, first, marks[k], rows.X, start, n_rows, path_buffers, scores)
            first = marks[k]
            for i in range(n_rows):
                r = start + i
                out[k] += rows.w[r] * loss_of_row(loss, scores[i], rows.y[r])


@inline
def write_probabilities(out):
    """Write the probabilities of classes, of which ``out`` [K] has the scores, in their place."""
    n_classes = out.shape[0]
    if n_classes == 2:
        odds = exp(-min(abs(out[1]), _FARTHEST))
        likely = 1.0 / (1.0 + odds)
        first = 1 if out[1] >= 0.0 else 0
        out[first], out[1 - first] = likely, odds * likely
        return
    top, total = out[0], 0.0
    for c in range(1, n_classes):
        top = max(top, out[c])
    for c in range(n_classes):
        out[c] = exp(max(out[c] - top, -_FARTHEST))
        total += out[c]
    for c in range(n_classes):
        out[c] /= total


@kernel
def answer_numbers(trees, center, scale, X, path_buffers, out):
    """Write ``center`` and ``scale`` times the scores of rows float32 [n, d] to float64 [n, 1]."""
    n = X.shape[0]
    for start in range(0, n, _AT_ONCE):
        stop = min(n, start + _AT_ONCE)
        for r in range(start, stop):
            out[r, 0] = 0.0
        add_trees(
            trees, 0, trees.outputs.shape[0], X, start, stop - start, path_buffers, out[start:stop]
        )
        for r in range(start, stop):
            out[r, 0] = center + scale * out[r, 0]


@kernel
def answer_rows(trees, first_scores, X, path_buffers, out):
    """Write the probabilities of classes of rows float32 [n, d] to ``out`` float64 [n, K].

    Scores begin as ``first_scores`` float64 [K]. O(trees depth) for a row.
    """
    n, n_trees = X.shape[0], trees.outputs.shape[0]
    for start in range(0, n, _AT_ONCE):
        stop = min(n, start + _AT_ONCE)
        for r in range(start, stop):
            for c in range(out.shape[1]):
                out[r, c] = first_scores[c]
        add_trees(trees, 0, n_trees, X, start, stop - start, path_buffers, out[start:stop])
        for r in range(start, stop):
            write_probabilities(out[r])


@kernel
def write_keys(key, numbers, out):
    """Write the keys of rows of these numbers, int64 [n], all distinct, to ``out`` uint64 [n]."""
    for i in range(out.shape[0]):
        out[i] = mix(mix(np.uint64(numbers[i])) ^ key)
