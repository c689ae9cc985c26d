"""Choice of each feature's encoding in boxes: two bits if it only took two values, steps, floats.

Relies on :mod:`dmondrian.tree.box_encoding`. Promises that what is written how follows from the
trees' boxes and the rows at hand, and changes nothing but memory and time.

Shapes: n rows, d features, m nodes, b binary features, g stepped ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dmondrian._numba.mechanisms import uses
from dmondrian.tree import nodes
from dmondrian.tree.box_encoding import (
    Columns,
    Rows,
    Stepped,
    has_boxes,
    make_columns,
    n_words,
    read_only,
    take_values,
    write_bits,
    write_steps,
)
from dmondrian.tree.quantization import LARGEST_UNIT, NO_STEP, TOO_FINE, log2_above, take_steps

_LEAST = 3  # binary features from which two words of bits are less than the bounds
_ENOUGH = 4096  # rows from which those behind are guessed, as is checked when these are written
_SOME = 1024  # rows or nodes after which, and twice as many, .. features that do not fit are left
# Steps between bounds at most, half of what 16 bits hold: values that go on growing would leave
# ever less range, and trees would be rewritten for ever fewer rows.
_WIDEST = 32_767
_MARGIN = 2  # twice as wide as now a feature may get this often, where its values allow for it
_FARTHEST = 29  # log2; steps from 0, so that float64 holds each of them exactly
_LARGEST = int(np.log2(LARGEST_UNIT))


Boxes = tuple[np.ndarray, np.ndarray, np.ndarray]  # lower and upper bounds, whether they have rows


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
        """Take values in, float32 [n, d]; only rows where ``has_rows``, bool [n]."""
        if not len(self.features):
            return
        counted = np.ones(len(X), bool) if has_rows is None else has_rows
        patterns = read_only(X).view(np.int32)
        c = take_values(patterns, read_only(counted), self.features, self._values, self._counts)
        self.features, self._counts = self.features[:c], self._counts[:c]
        self._values = self._values[:c]

    def seen(self, n_features: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the features of which values are known, int64 [c], and these, float32 [2, d]."""
        is_seen, rows = self._counts > 0, np.zeros((2, n_features), np.float32)
        features = self.features[is_seen]
        rows[:, features] = self._values[is_seen].view(np.float32).T
        return features, rows

    def binary(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the features to write as bits, int64 [b], and their values, float32 [b, 2]."""
        # In order, whichever came first: trees of equal values then write their boxes alike.
        patterns = np.sort(self._values, axis=1)
        values = patterns.view(np.float32)
        # In a range 0 and -0 are one value, of the sign that came first: bits would hold two.
        is_binary = (values[:, 0] != values[:, 1]) | (patterns[:, 0] == patterns[:, 1])
        is_binary &= (is_binary.sum() >= _LEAST) & uses("bits")
        return self.features[is_binary], values[is_binary]


class Steps:
    """Fineness and range of each feature's values."""

    def __init__(self, n_features: int) -> None:
        self._finest = np.full(n_features, NO_STEP, np.int64)  # log2
        self._ends = np.full((2, n_features), [[np.inf], [-np.inf]], np.float32)

    def add(self, X: np.ndarray, has_rows: np.ndarray | None, features: np.ndarray) -> None:
        """Take values of some ``features``, int64 [c], in; see :meth:`Values.add`."""
        counted = np.ones(len(X), bool) if has_rows is None else has_rows
        start, stop = 0, _SOME
        while start < len(X):
            features = features[self._fit(has_corner=False)[0][features]]
            if not len(features):
                return
            part = slice(start, stop)
            arrays = read_only(X[part]), read_only(counted[part]), read_only(features)
            take_steps(*arrays, self._finest, *self._ends)
            start, stop = stop, 2 * stop

    def _fit(self, has_corner: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return which features steps can hold, bool [d], in which units, from which origins."""
        ends = self._ends.astype(np.float64)
        lower, upper = np.where(ends[0] <= ends[1], ends, 0.0)
        if has_corner:  # on the cube cells without rows have the corner 0 for a box
            lower = np.where((lower >= 0.0) & (upper <= 1.0), 0.0, lower)
        least = np.where(upper > lower, log2_above((upper - lower) / _WIDEST), TOO_FINE)
        most = np.clip(self._finest, -_LARGEST, _LARGEST)
        farthest = np.maximum(np.abs(lower), np.abs(upper))
        margin = np.maximum(least + _MARGIN, log2_above(farthest) - _FARTHEST)
        units = np.exp2(np.minimum(most, margin))
        fits = (self._finest >= least) & (self._finest >= -_LARGEST)
        fits &= upper - lower <= _WIDEST * units  # units may be as large as there are
        return fits, units, np.rint((lower + upper) / 2.0 / units)

    def stepped(self, candidates: np.ndarray) -> Stepped:
        """Return those of ``candidates``, int64 [c], increasing, that are to be written as steps.

        None where it is less than half of them: there are two kinds to look at then.
        """
        fits, units, origins = self._fit()
        features = candidates[fits[candidates]]
        if 2 * len(features) < len(candidates) or not uses("int16"):
            features = features[:0]
        return Stepped(features, units[features], origins[features])


class EncodingChoice:
    """What is known of values of rows and boxes, and how boxes are best written for them."""

    def __init__(self, n_features: int) -> None:
        self._n_features = n_features
        self._values, self._steps = Values(n_features), Steps(n_features)

    def add(self, X: np.ndarray, has_rows: np.ndarray | None = None) -> None:
        """Take values in; see :meth:`Values.add`."""
        seen, two = self._values.seen(self._n_features)
        self._values.add(X, has_rows)
        is_other = self._are_other(self._values.features)
        self._steps.add(two, None, seen[is_other[seen]])
        self._steps.add(X, has_rows, np.flatnonzero(is_other))

    def _are_other(self, features: np.ndarray) -> np.ndarray:
        """Return of each feature whether it is none of these, bool [d]."""
        is_other = np.ones(self._n_features, bool)
        is_other[features] = False
        return is_other

    def add_boxes(self, boxes: Iterable[Boxes]) -> None:
        """Take the bounds of boxes in."""
        for lower, upper, has_rows in boxes:
            self.add(lower, has_rows)
            self.add(upper, has_rows)

    def columns(self) -> Columns:
        """Return the columns to write."""
        binary, values = self._values.binary()
        is_other = self._are_other(binary)
        seen, two = self._values.seen(self._n_features)
        self._steps.add(two, None, seen[is_other[seen]])
        not_binary = np.flatnonzero(is_other)
        return make_columns(self._n_features, binary, values, self._steps.stepped(not_binary))


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
    choice = EncodingChoice(n_features)
    if X is not None:
        choice.add(X)
    choice.add_boxes(boxes)
    return choice.columns()


def boxes_of(trees: Sequence[nodes.Tree]) -> Iterator[Boxes]:
    """Yield the boxes of all nodes."""
    for tree in trees:
        for part in nodes.chunks(tree):
            has_rows = tree.d[part, nodes.STAT] > 0.0
            yield *nodes.read_boxes(tree, part), has_rows


def loaded_bytes(trees: Sequence[nodes.Tree]) -> int:
    """Return the bytes that the nodes of trees take once these are read from a checkpoint.

    The trees at hand may be larger: they have capacity for more nodes. How boxes are written is
    taken from the first tree, for all of them learned the same rows.
    """
    if not trees:
        return 0
    columns = trees[0].columns
    if has_boxes(columns):
        columns = find_columns(trees[0].n_features, boxes_of(trees[:1]))
    small_tree = nodes.make_tree(columns, trees[0].n_stats, 1)
    per_node = sum(array[:1].nbytes for array in (small_tree.i, small_tree.box, small_tree.bits))
    pools = sum(8 * int(tree.head_i[nodes.POOL_LIVE]) for tree in trees)
    return per_node * sum(int(tree.head_i[nodes.N_NODES]) for tree in trees) + pools


def alike(trees: Sequence[nodes.Tree]) -> bool:
    """Return whether all trees write their boxes the same way."""
    return all(are_same(tree.columns, trees[0].columns) for tree in trees)


def are_same(a: Columns, b: Columns) -> bool:
    """Return whether two box encodings are equal, also in the signs of zeros."""
    pairs: Iterable[tuple[Any, Any]] = zip(
        a._replace(values=_patterns(a)), b._replace(values=_patterns(b)), strict=True
    )
    return a is b or all(np.array_equal(first, second) for first, second in pairs)


def extended(columns: Columns, X: np.ndarray) -> Columns | None:
    """Return columns that can write rows too, and under which boxes stay as they are written.

    That is so where no binary feature takes a third value, and each second one is, as it is stored,
    above the first: the column of a category that was not seen before. Otherwise return None.
    O(n b).
    """
    values = Values.known_to(columns)
    values.add(X)
    if len(values.features) < len(columns.binary):
        return None
    steps = Stepped(columns.stepped, columns.units, columns.origins)
    more = make_columns(len(columns.place), *values.binary(), steps)
    return more if np.array_equal(_patterns(more)[:, 0], _patterns(columns)[:, 0]) else None


def _patterns(columns: Columns) -> np.ndarray:
    return columns.values.view(np.int32)


def fitted(trees: Sequence[nodes.Tree], X: np.ndarray) -> tuple[list[nodes.Tree], Rows]:
    """Return the trees, laid out alike as is best for them and rows to come, and the rows.

    ``X`` float32 [n, d], C-contiguous and read-only; there is a tree. O(m d + n d).
    """
    choice = EncodingChoice(X.shape[1])
    choice.add(X[:_ENOUGH])
    choice.add_boxes(boxes_of(trees))
    columns = choice.columns()
    rows, *fit = rows_of(X, columns)
    if not all(fit):  # those behind are unlike the first
        choice.add(X[_ENOUGH:])
        columns = choice.columns()
        rows = rows_of(X, columns).rows
    laid_out = [
        tree if are_same(tree.columns, columns) else nodes.lay_out(tree, columns) for tree in trees
    ]
    return laid_out, rows


def suited(trees: list[nodes.Tree], X: np.ndarray) -> tuple[list[nodes.Tree], Rows]:
    """Return the trees, laid out alike so that they can hold rows, and the rows.

    As :func:`fitted`, but trees that are laid out well enough stay as they are.
    """
    rows, fit_bits, fit_steps = rows_of(X, trees[0].columns)
    if fit_bits and fit_steps:
        return trees, rows
    columns = extended(trees[0].columns, X) if fit_steps else None
    if columns is None:
        return fitted(trees, X)
    return [tree._replace(columns=columns) for tree in trees], rows_of(X, columns).rows


class WrittenRows(NamedTuple):
    """Rows as the kernels read them."""

    rows: Rows
    fit_bits: bool  # whether all values of binary features can be written so
    fit_steps: bool  # and those of stepped features


def query_rows(X: np.ndarray, columns: Columns) -> Rows:
    """Return rows to predict by trees of these columns; in floats alone where not all fit.

    ``X`` as :func:`rows_of` takes it. Trees stay as they are: what is asked once is not learned.
    """
    rows, fit_bits, fit_steps = rows_of(X, columns)
    return rows if fit_bits and fit_steps else without_boxes(X)


def rows_of(X: np.ndarray, columns: Columns) -> WrittenRows:
    """Return rows for the kernels, and whether all their values can be written so.

    Parameters
    ----------
    X : float32 [n, d], C-contiguous and read-only
    columns : Columns
    """
    if not len(columns.binary) + len(columns.stepped):
        return WrittenRows(without_boxes(X), True, True)
    bits = np.empty((len(X), n_words(columns)), np.uint64)
    has_other_values = np.zeros(len(columns.binary), bool)
    if len(columns.binary):
        write_bits(X.view(np.int32), columns.values.view(np.int32), columns, bits, has_other_values)
    steps = np.empty((len(X), len(columns.stepped)), np.int16)
    finer = np.zeros(len(columns.stepped), bool)
    if len(columns.stepped):
        write_steps(X, columns, steps, finer)
    numeric = read_only(X[:, columns.numeric])
    return WrittenRows(
        Rows(X, numeric, read_only(steps), read_only(bits)),
        not has_other_values.any(),
        not finer.any(),
    )


def without_boxes(X: np.ndarray) -> Rows:
    """Return rows for trees whose features are all numeric, or whose boxes are not asked about."""
    steps, bits = (np.empty((len(X), 0), kind) for kind in (np.int16, np.uint64))
    return Rows(X, X, read_only(steps), read_only(bits))
