"""Which features the boxes of trees write as two bits: those that only took two values.

Relies on :mod:`dmondrian.core.columns`. Promises that what is written how follows from the trees'
boxes and the rows at hand, and changes nothing but memory and time.

Shapes: n rows, d features, m nodes, b binary features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from dmondrian.core import nodes
from dmondrian.core.columns import (
    Columns,
    Rows,
    make_columns,
    n_words,
    read_only,
    take_values,
    write_bits,
)

_LEAST = 3  # binary features from which two words of bits are less than the bounds
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

    @classmethod
    def known_to(cls, columns: Columns) -> Values:
        """Return the values that columns write as bits."""
        self = cls(0)
        self.features, self._values = columns.binary.astype(np.int64), _patterns(columns).copy()
        self._counts = 1 + (self._values[:, 0] != self._values[:, 1])
        return self

    def add(self, X: np.ndarray, has_rows: np.ndarray | None = None) -> None:
        """Take values in, float32 [n, d]; of those alone that ``has_rows``, bool [n], tells of."""
        if not len(self.features):
            return
        told = np.ones(len(X), bool) if has_rows is None else has_rows
        patterns = read_only(X).view(np.int32)
        c = take_values(patterns, read_only(told), self.features, self._values, self._counts)
        self.features, self._counts = self.features[:c], self._counts[:c]
        self._values = self._values[:c]

    def columns(self, n_features: int) -> Columns:
        """Return the columns that say so."""
        # In order, whichever came first: trees of equal values then write their boxes alike.
        patterns = np.sort(self._values, axis=1)
        values = patterns.view(np.float32)
        # In a range 0 and -0 are one value, of the sign that came first: bits would tell of two.
        is_told = (values[:, 0] != values[:, 1]) | (patterns[:, 0] == patterns[:, 1])
        if is_told.sum() < _LEAST:
            return make_columns(n_features, np.empty(0), np.empty((0, 2)))
        return make_columns(n_features, self.features[is_told], values[is_told])


Boxes = tuple[np.ndarray, np.ndarray, np.ndarray]  # lower and upper bounds, whether they have rows


def find_columns(n_features: int, boxes: Iterable[Boxes], X: np.ndarray | None = None) -> Columns:
    """Return how to write boxes.

    Parameters
    ----------
    n_features : int
    boxes : iterable of (float32 [m, d], float32 [m, d], bool [m])
        Lower and upper bounds, and which boxes have rows; the others are of no account.
    X : float32 [n, d], optional
        Rows that are to be written too.
    """
    values = Values(n_features)
    if X is not None:
        values.add(X)
    for lower, upper, has_rows in boxes:
        values.add(lower, has_rows)
        values.add(upper, has_rows)
        if not len(values.features):
            break
    return values.columns(n_features)


def boxes_of(trees: Sequence[nodes.Tree]) -> Iterator[Boxes]:
    """Yield the boxes of all nodes."""
    for tree in trees:
        used = int(tree.head_i[nodes.N_NODES])
        for start in range(0, used, _CHUNK):
            part = slice(start, min(start + _CHUNK, used))
            has_rows = tree.d[part, nodes.STAT] > 0.0
            yield *nodes.read_boxes(tree, part), has_rows


def alike(trees: Sequence[nodes.Tree]) -> bool:
    """Tell whether all trees write their boxes the same way."""
    return all(_same(tree.columns, trees[0].columns) for tree in trees)


def _same(a: Columns, b: Columns) -> bool:
    is_same = np.array_equal(a.binary, b.binary) and np.array_equal(_patterns(a), _patterns(b))
    return a is b or is_same


def extended(columns: Columns, X: np.ndarray) -> Columns | None:
    """Return columns that can write rows too, and under which boxes stay as they are written.

    That is so where no feature takes a third value, and each second one is, as it is stored, above
    the first: the column of a category that was not seen before. Otherwise return None. O(n b).
    """
    values = Values.known_to(columns)
    values.add(X)
    if len(values.features) < len(columns.binary):
        return None
    more = values.columns(len(columns.place))
    return more if np.array_equal(_patterns(more)[:, 0], _patterns(columns)[:, 0]) else None


def _patterns(columns: Columns) -> np.ndarray:
    return columns.values.view(np.int32)


def fitted(trees: Sequence[nodes.Tree], X: np.ndarray) -> tuple[list[nodes.Tree], Rows]:
    """Return the trees, laid out alike as is best for them and rows to come, and the rows.

    ``X`` float32 [n, d], C-contiguous and read-only; there is a tree. O(m d + n d).
    """
    columns = find_columns(X.shape[1], boxes_of(trees), X)
    laid_out = [
        tree if _same(tree.columns, columns) else nodes.lay_out(tree, columns) for tree in trees
    ]
    return laid_out, rows_of(X, laid_out[0].columns)[0]


def suited(trees: list[nodes.Tree], X: np.ndarray) -> tuple[list[nodes.Tree], Rows]:
    """Return the trees, laid out alike so that they can hold rows, and the rows.

    As :func:`fitted`, but trees that are laid out well enough stay as they are.
    """
    rows, fits = rows_of(X, trees[0].columns)
    if fits:
        return trees, rows
    columns = extended(trees[0].columns, X)
    if columns is None:
        return fitted(trees, X)
    return [tree._replace(columns=columns) for tree in trees], rows_of(X, columns)[0]


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
