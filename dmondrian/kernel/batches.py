"""Mini-batches: all trees say what a batch's rows are, then their cells hear what is left.

A batch begins and ends at fixed positions of the stream, and its rows are forecast by the cells as
they were at its start (:mod:`dmondrian.stats.values`). So it can be learned in pieces, and neither
the cuts between calls nor those of a plan change anything. Batches grow with the stream, from one
row to ``batch_size``: none has more than an eighth of the rows before it.

Forecasts are summed over trees in whole multiples of a power of two, 2^-32 of the labels' range
before the batch, so that sums do not depend on the order of additions: shards may add up their own
trees, and threads come as they like.

Relies on the two loops of :mod:`dmondrian.core.loops`. Promises that what is learned depends on the
parameters, the tree numbers and the rows in order alone.

Shapes: n rows, T trees, k outputs.

References: Balog et al. (2016), sections 4.2.2 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dmondrian.core import nodes
from dmondrian.ensemble import Ensemble
from dmondrian.joint import LARGEST_BATCH, Joint, as_targets
from dmondrian.kernel.columns import leaves_of
from dmondrian.stats.values import hear_rows, write_values

_SHARE = 8  # a batch is at most one of so many parts of the rows before it
_DIGITS = 32  # binary digits of a forecast, of the labels' range
_LEAST_EXPONENT = -1000


def batch_at(position: int, batch_size: int) -> tuple[int, int]:
    """Return the positions of the first row of the batch that holds a row, and behind its last."""
    if position == 0:
        return 0, 1
    octave = 1 << (position.bit_length() - 1)
    size = min(max(octave // _SHARE, 1), batch_size)
    start = octave + (position - octave) // size * size
    return start, min(start + size, 2 * octave)


def pieces(position: int, n: int, batch_size: int) -> Iterator[tuple[int, int]]:
    """Yield the ends, within n rows from a position on, of the parts that lie in one batch."""
    start = 0
    while start < n:
        stop = min(batch_at(position + start, batch_size)[1] - position, n)
        yield start, stop
        start = stop


def learn_batches(
    ensemble: Ensemble,
    X: np.ndarray,
    y: np.ndarray,
    w: np.ndarray | None,
    n_threads: int,
    again: bool = False,
) -> None:
    """Learn rows in order, as :meth:`dmondrian.ensemble.Ensemble.update` takes them.

    Rows that were learned before can be learned ``again``: cells hear them once more.
    """
    joint = joint_of(ensemble)
    known, first = np.empty((0, 0), np.int64), 0  # cells of rows from the first of them on
    for start, stop in pieces(n_rows_of(ensemble), len(y), joint.batch_size):
        own = None if w is None else w[start:stop]
        if not again:
            piece = take_in(ensemble, X[start:stop], own, n_threads)
        else:  # no cell is split any more: one way through the trees for many batches
            if stop > first + len(known):
                known, first = _cells_of(ensemble, X[start : start + LARGEST_BATCH]), start
            piece = _said_of(ensemble, known[start - first : stop - first])
        mean = piece.sums / len(ensemble.trees)
        teach(ensemble, piece, y[start:stop], own, mean)


class Piece(NamedTuple):
    """Rows of one batch that trees have taken in, but not heard yet."""

    leaves: np.ndarray  # int64 [n, T], their cells; -1 for rows of weight 0 where no other row is
    sums: np.ndarray  # float64 [n, k], values of their cells at the start of the batch, summed


def take_in(ensemble: Ensemble, X: np.ndarray, w: np.ndarray | None, n_threads: int) -> Piece:
    """Let trees split their cells for rows of one batch; return what they say of them.

    Sums of disjoint sets of trees add up, exactly, in any order. A new cell says what the root did.
    """
    known = [int(tree.head_i[nodes.N_NODES]) for tree in ensemble.trees]
    Ensemble.update(ensemble, X, np.zeros(len(X)), w, n_threads)
    for tree, first in zip(ensemble.trees, known, strict=True):
        _forget_above(tree, first)
    return _said_of(ensemble, _cells_of(ensemble, X))


def _forget_above(tree: nodes.Tree, first: int) -> None:
    """Drop what inner nodes knew as leaves, where nodes from ``first`` on are new.

    Whether they had heard rows of the batch depends on how it was cut into calls.
    """
    links = tree.i[: tree.head_i[nodes.N_NODES]]
    near = links[first:, [nodes.PARENT, nodes.LEFT, nodes.RIGHT]].ravel()
    near = np.concatenate([np.arange(first, len(links)), near[near >= 0]])
    inside = near[(links[near, nodes.LEFT] >= 0) & (near != tree.head_i[nodes.ROOT])]
    tree.d[inside, nodes.STAT + 1 : nodes.STAT + tree.n_stats] = 0.0


def _cells_of(ensemble: Ensemble, X: np.ndarray) -> np.ndarray:
    """Return the rows' cells, int64 [n, T]; -1 where there are none yet."""
    if ensemble.total_weight == 0.0:
        return np.full((len(X), len(ensemble.trees)), -1)
    return leaves_of(ensemble, X)


def _said_of(ensemble: Ensemble, leaves: np.ndarray) -> Piece:
    """Return what trees say of rows in these cells."""
    n, k = len(leaves), joint_of(ensemble).n_outputs
    total, said = np.zeros((n, k)), np.empty((n, k))
    if ensemble.total_weight == 0.0:
        return Piece(leaves, total)
    stat = ensemble.policies.stat._replace(batch=_number(ensemble))
    unit = float(ensemble.trees[0].head_f[nodes.UNIT]) or 1.0  # 0 in the first batch
    for t, tree in enumerate(ensemble.trees):
        write_values(stat, tree, np.ascontiguousarray(leaves[:, t]), said)
        total += np.rint(said / unit)
    return Piece(leaves, total * unit)


def teach(
    ensemble: Ensemble, piece: Piece, y: np.ndarray, w: np.ndarray | None, mean: np.ndarray
) -> None:
    """Let cells hear the rows of a piece, given the mean over all trees of what they say [n, k].

    The ensemble may hold some of the trees only.
    """
    targets = as_targets(y, joint_of(ensemble).n_outputs)
    weights = np.ones(len(y)) if w is None else np.array(w, np.float64)
    stat = ensemble.policies.stat._replace(batch=_number(ensemble))
    said = np.ascontiguousarray(mean)
    for t, tree in enumerate(ensemble.trees):
        hear_rows(stat, tree, np.ascontiguousarray(piece.leaves[:, t]), targets, said, weights)
    note_rows(ensemble, len(y), targets[weights > 0.0])
    position = n_rows_of(ensemble)
    if batch_at(position, joint_of(ensemble).batch_size)[0] == position:
        set_unit(ensemble)


def joint_of(ensemble: Ensemble) -> Joint:
    """Return how the cells are fitted."""
    assert ensemble.parameters.joint is not None  # who calls knows
    return ensemble.parameters.joint


def n_rows_of(ensemble: Ensemble) -> int:
    """Return the rows learned, those of weight zero too."""
    return int(ensemble.trees[0].head_f[nodes.N_ROWS]) if ensemble.trees else 0


def set_unit(ensemble: Ensemble) -> None:
    """Set the unit of sums of the next batch from the labels before it."""
    for tree in ensemble.trees:
        low, high = tree.head_f[nodes.LABEL_MIN], tree.head_f[nodes.LABEL_MAX]
        size = max(abs(low), abs(high)) if low <= high else 1.0
        exponent = int(np.frexp(size)[1]) - _DIGITS
        tree.head_f[nodes.UNIT] = np.ldexp(1.0, max(exponent, _LEAST_EXPONENT))


def _number(ensemble: Ensemble) -> float:
    """Return the number of the batch that the next row is in, > 0."""
    return float(batch_at(n_rows_of(ensemble), joint_of(ensemble).batch_size)[0] + 1)


def note_rows(ensemble: Ensemble, n: int, targets: np.ndarray) -> None:
    """Count rows in the trees' headers, with the range of labels."""
    for tree in ensemble.trees:
        head = tree.head_f
        head[nodes.N_ROWS] += n
        if len(targets):
            head[nodes.LABEL_MIN] = min(head[nodes.LABEL_MIN], float(targets.min()))
            head[nodes.LABEL_MAX] = max(head[nodes.LABEL_MAX], float(targets.max()))
