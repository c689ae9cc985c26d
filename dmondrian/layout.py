"""Which features the boxes of trees write as two bits: those that only took two values.

Relies on :mod:`dmondrian.core.columns`. Promises that what is written how follows from the trees'
boxes and the rows at hand, and changes nothing but memory and time.

Shapes: n rows, d features, m nodes, b binary features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from dmondrian.core import nodes
from dmondrian.core.columns import Columns, Rows, make_columns, n_words, write_bits

_LEAST = 3  # binary features from which two words of bits are less than the bounds
_FEW = 64  # rows that tell most numeric features
_CHUNK = 65_536  # nodes looked at together


class Values:
    """Up to two values of each feature, compared as they are stored.

    Attributes
    ----------
    features : int64 [c]
        Those that took no more than two values so far.
    """

    def __init__(self, n_features: int) -> None:
        self.features = np.arange(n_features)
        self._values = np.zeros((n_features, 2), np.int32)
        self._counts = np.zeros(n_features, np.int64)

    def add(self, X: np.ndarray) -> None:
        """Take values in, float32 [n, d]."""
        if not len(X) or not len(self.features):
            return
        found = np.ascontiguousarray(X[:, self.features]).view(np.int32)
        which = np.arange(found.shape[1])
        for k in range(2):
            is_new = (found != self._values[:, 0]) | (self._counts == 0)
            is_new &= (found != self._values[:, 1]) | (self._counts < 2)
            first = is_new.argmax(axis=0)
            adds = is_new[first, which] & (self._counts == k)
            self._values[adds, k] = found[first, which][adds]
            self._counts[adds] = k + 1
        second = np.where(self._counts == 2, self._values[:, 1], self._values[:, 0])
        fits = ((found == self._values[:, 0]) | (found == second)).all(axis=0)
        self.features, self._counts = self.features[fits], self._counts[fits]
        self._values = self._values[fits]

    def columns(self, n_features: int) -> Columns:
        """Return the columns that say so."""
        if len(self.features) < _LEAST:
            return make_columns(n_features, np.empty(0), np.empty((0, 2)))
        second = np.where(self._counts == 2, self._values[:, 1], self._values[:, 0])
        values = np.stack([self._values[:, 0], second], axis=1).view(np.float32)
        return make_columns(n_features, self.features, values)


def find_columns(
    n_features: int, boxes: Iterable[tuple[np.ndarray, np.ndarray]], X: np.ndarray | None = None
) -> Columns:
    """Return how to write the boxes, pairs of bounds float32 [m, d], and those of rows [n, d]."""
    X = np.empty((0, n_features), np.float32) if X is None else X
    values = Values(n_features)
    values.add(X[:_FEW])
    for bounds in boxes:
        for end in bounds:
            values.add(end[:_FEW])
            values.add(end[_FEW:])
    values.add(X[_FEW:])
    return values.columns(n_features)


def boxes_of(trees: Sequence[nodes.Tree]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield lower and upper bounds of the nodes that have rows."""
    for tree in trees:
        used = int(tree.head_i[nodes.N_NODES])
        for start in range(0, used, _CHUNK):
            part = slice(start, min(start + _CHUNK, used))
            has_rows = tree.d[part, nodes.STAT] > 0.0
            lower, upper = nodes.read_boxes(tree, part)
            yield lower[has_rows], upper[has_rows]


def alike(trees: Sequence[nodes.Tree]) -> bool:
    """Tell whether all trees write their boxes the same way."""
    return all(_same(tree.columns, trees[0].columns) for tree in trees)


def _same(a: Columns, b: Columns) -> bool:
    return a is b or (np.array_equal(a.binary, b.binary) and np.array_equal(a.values, b.values))


def fitted(trees: Sequence[nodes.Tree], X: np.ndarray) -> tuple[list[nodes.Tree], Rows]:
    """Return the trees, laid out alike as is best for them and rows to come, and the rows.

    ``X`` float32 [n, d], C-contiguous and read-only; there is a tree. O(m d + n d).
    """
    columns = find_columns(X.shape[1], boxes_of(trees), X)
    laid_out = [
        tree if _same(tree.columns, columns) else nodes.lay_out(tree, columns) for tree in trees
    ]
    return laid_out, rows_of(X, laid_out[0].columns)[0]


def rows_of(X: np.ndarray, columns: Columns) -> tuple[Rows, bool]:
    """Return rows for the kernels, and whether all their values can be written so.

    Parameters
    ----------
    X : float32 [n, d], C-contiguous and read-only
    columns : Columns
    """
    if not len(columns.binary):
        return without_boxes(X), True
    bits = np.empty((len(X), n_words(columns)), np.uint64)
    others = np.zeros(len(columns.binary), bool)
    write_bits(X.view(np.int32), columns.values.view(np.int32), columns, bits, others)
    return Rows(X, read_only(X[:, columns.numeric]), read_only(bits)), not others.any()


def without_boxes(X: np.ndarray) -> Rows:
    """Return rows for trees without binary features, or whose boxes are not asked about."""
    return Rows(X, X, read_only(np.empty((len(X), 0), np.uint64)))


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view: one form of argument, so one compilation."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
