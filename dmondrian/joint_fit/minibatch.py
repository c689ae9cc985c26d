"""Mini-batches: all trees forecast a batch's rows, then cells are moved by the residuals.

A batch begins and ends at fixed positions of the stream, and its rows are forecast by the cells as
they were at its start (:mod:`dmondrian.stats.cell_values`). So it can be learned in pieces, and
neither the cuts between calls nor those of a plan change anything. Batches grow with the stream,
from one row to ``batch_size``: none has more than an eighth of the rows before it.

Forecasts are summed over trees in whole multiples of a power of two, 2^-32 of the labels' range
before the batch, so that sums do not depend on the order of additions: shards may add up their own
trees, and threads come as they like.

Relies on the two loops of :mod:`dmondrian.tree.loops`. Promises that what is learned depends on the
parameters, the tree numbers and the rows in order alone.

Shapes: n rows, T trees, k outputs.

References: Balog et al. (2016), sections 4.2.2 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.settings.kernel_settings import LARGEST_BATCH, Joint, as_targets
from dmondrian.joint_fit.cell_columns import leaves_of
from dmondrian.stats.cell_values import add_values, apply_residuals, begin_at_roots
from dmondrian.tree import nodes

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
    X: np.ndarray | PreparedRows,
    y: np.ndarray,
    w: np.ndarray | None,
    n_threads: int,
    again: bool = False,
) -> None:
    """Learn rows in order, as :meth:`dmondrian.ensemble.ensemble.Ensemble.update` takes them.

    Rows that were learned before can be learned ``again``: their residuals are applied once more.
    """
    X = ensemble.prepare(X)
    if again:  # no cell is split any more: one way through the trees for many batches
        for start in range(0, len(y), LARGEST_BATCH):
            part = slice(start, start + LARGEST_BATCH)
            cells = _cells_of(ensemble, X[part])
            weights = None if w is None else w[part]
            apply_in_batches(ensemble, cells, np.arange(cells.shape[1]), y[part], weights)
        return
    for start, stop in pieces(n_rows_of(ensemble), len(y), joint_of(ensemble).batch_size):
        weights = None if w is None else w[start:stop]
        piece = add_rows(ensemble, X[start:stop], weights, n_threads)
        apply_targets(ensemble, piece, y[start:stop], weights, piece.sums / len(ensemble.store))


def apply_in_batches(
    ensemble: Ensemble, cells: np.ndarray, rows: np.ndarray, y: np.ndarray, w: np.ndarray | None
) -> None:
    """Apply targets, batch by batch, of rows that the trees have been split for.

    ``cells`` int64 [T, .], ``rows`` int64 [n], places in it; ``y``, ``w`` [n].
    """
    for start, stop in pieces(n_rows_of(ensemble), len(y), joint_of(ensemble).batch_size):
        weights = None if w is None else w[start:stop]
        piece = predictions_of(ensemble, cells, rows[start:stop])
        apply_targets(ensemble, piece, y[start:stop], weights, piece.sums / len(ensemble.store))


class Piece(NamedTuple):
    """Rows of one batch that trees were split for, whose targets are not applied yet."""

    cells: np.ndarray  # int64 [T, .]; -1 for rows of weight 0 where no other row is
    rows: np.ndarray  # int64 [n], their places in the cells
    sums: np.ndarray  # float64 [n, k], values of their cells at the start of the batch, summed


def add_rows(
    ensemble: Ensemble, X: np.ndarray | PreparedRows, w: np.ndarray | None, n_threads: int
) -> Piece:
    """Split cells for rows of one batch; return the sums of their predictions.

    Sums of disjoint sets of trees add up, exactly, in any order. A new cell predicts what the root
    did. There may be no rows: those without a target may have been dropped.
    """
    if not len(X):
        cells = np.empty((len(ensemble.store), 0), np.int64)
        return Piece(cells, np.arange(0), np.zeros((0, joint_of(ensemble).n_outputs)))
    X, done = ensemble.prepare(X), 0
    if ensemble.total_weight == 0.0:  # the row that opens the roots, which begin as leaves
        done = 1 + (int(np.argmax(w > 0.0)) if w is not None else 0)
        Ensemble.update(ensemble, X[:done], np.zeros(done), None if w is None else w[:done], 1)
    if ensemble.store.trees:
        stat, trees = ensemble.policies.stat._replace(batch=_number(ensemble)), ensemble.store.trees
        n_outputs = joint_of(ensemble).n_outputs
        begin_at_roots(stat, ensemble.store.addresses, trees[0].columns, n_outputs)
    known = [int(tree.head_i[nodes.N_NODES]) for tree in ensemble.store.trees]
    weights = None if w is None else w[done:]
    Ensemble.update(ensemble, X[done:], np.zeros(len(X) - done), weights, n_threads)
    for tree, first in zip(ensemble.store.trees, known, strict=True):
        _forget_above(tree, first)
    return predictions_of(ensemble, _cells_of(ensemble, X), np.arange(len(X)))


def _forget_above(tree: nodes.Tree, first: int) -> None:
    """Drop what inner nodes knew as leaves, where nodes from ``first`` on are new.

    Whether they had residuals of the batch depends on how it was cut into calls.
    """
    links = tree.i[: tree.head_i[nodes.N_NODES]]
    near = links[first:, [nodes.PARENT, nodes.LEFT, nodes.RIGHT]].ravel()
    near = np.concatenate([np.arange(first, len(links)), near[near >= 0]])
    inside = near[(links[near, nodes.LEFT] >= 0) & (near != tree.head_i[nodes.ROOT])]
    tree.d[inside, nodes.STAT + 1 : nodes.STAT + tree.n_stats] = 0.0


def _cells_of(ensemble: Ensemble, X: np.ndarray | PreparedRows) -> np.ndarray:
    """Return the rows' cells, int64 [T, n]; -1 where there are none yet."""
    if ensemble.total_weight == 0.0:
        return np.full((len(ensemble.store), len(X)), -1)
    return np.ascontiguousarray(leaves_of(ensemble, X).T)


def predictions_of(
    ensemble: Ensemble, cells: np.ndarray, rows: np.ndarray, is_under_way: bool = True
) -> Piece:
    """Return the predictions for ``rows`` int64 [n], places in ``cells`` int64 [T, .].

    As they were at the start of the batch that is under way, or as they are now.
    """
    sums = np.zeros((len(rows), joint_of(ensemble).n_outputs))
    if ensemble.total_weight == 0.0:
        return Piece(cells, rows, sums)
    trees = ensemble.store.trees
    stat = ensemble.policies.stat
    if is_under_way:
        stat = stat._replace(batch=_number(ensemble))
    unit = float(trees[0].head_f[nodes.UNIT]) or 1.0  # 0 in the first batch
    add_values(stat, ensemble.store.addresses, trees[0].columns, cells, rows, unit, sums)
    return Piece(cells, rows, sums * unit)


def apply_targets(
    ensemble: Ensemble, piece: Piece, y: np.ndarray, w: np.ndarray | None, mean: np.ndarray
) -> None:
    """Apply the residuals of a piece; ``mean`` [n, k] are the predictions of all trees, averaged.

    The ensemble may hold some of the trees only.
    """
    if not len(y):
        return
    targets = as_targets(y, joint_of(ensemble).n_outputs)
    weights = np.ones(len(y)) if w is None else np.array(w, np.float64)
    stat = ensemble.policies.stat._replace(batch=_number(ensemble))
    forecasts = np.ascontiguousarray(mean)
    trees = ensemble.store.trees
    apply_residuals(
        stat, ensemble.store.addresses, trees[0].columns, piece.cells, piece.rows, targets,
        forecasts, weights,
    )  # fmt: skip
    note_rows(ensemble, len(y), targets[weights > 0.0])
    position = n_rows_of(ensemble)
    if batch_at(position, joint_of(ensemble).batch_size)[0] == position:
        set_unit(ensemble)


def joint_of(ensemble: Ensemble) -> Joint:
    """Return how the cells are fitted."""
    return ensemble.parameters.joint


def n_rows_of(ensemble: Ensemble) -> int:
    """Return the rows learned, those of weight zero too."""
    return int(ensemble.store.trees[0].head_f[nodes.N_ROWS]) if ensemble.store.trees else 0


def set_unit(ensemble: Ensemble) -> None:
    """Set the unit of sums of the next batch from the labels before it."""
    head = ensemble.store.trees[0].head_f.copy()
    low, high = head[nodes.LABEL_MIN], head[nodes.LABEL_MAX]
    size = max(abs(low), abs(high)) if low <= high else 1.0
    exponent = int(np.frexp(size)[1]) - _DIGITS
    head[nodes.UNIT] = np.ldexp(1.0, max(exponent, _LEAST_EXPONENT))
    _share(ensemble, head)


def _number(ensemble: Ensemble) -> float:
    """Return the number of the batch that the next row is in, > 0."""
    return float(batch_at(n_rows_of(ensemble), joint_of(ensemble).batch_size)[0] + 1)


def note_rows(ensemble: Ensemble, n: int, targets: np.ndarray) -> None:
    """Count rows in the trees' headers, with the range of labels."""
    if not ensemble.store.trees:
        return
    head = ensemble.store.trees[0].head_f.copy()
    head[nodes.N_ROWS] += n
    head[nodes.LABEL_MIN] = targets.min(initial=head[nodes.LABEL_MIN])
    head[nodes.LABEL_MAX] = targets.max(initial=head[nodes.LABEL_MAX])
    _share(ensemble, head)


def _share(ensemble: Ensemble, head: np.ndarray) -> None:
    """Write what all trees' headers have in common."""
    common = head[nodes.UNIT :]
    for tree in ensemble.store.trees:
        tree.head_f[nodes.UNIT :] = common
