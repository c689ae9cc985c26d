"""Columns that only take two values: two bits of a node's box instead of two floats.

A one-hot column of a box is told by which of its two values have been seen. That is another way
to write the same box, to the last bit: which columns are written so changes no result. A column
that comes to take a third value is written as a range from then on (:mod:`dmondrian.layout`).

Shapes: n rows, d features, p of them numeric, b binary, q = ceil(b / 64) words.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._jit import inner, kernel
from dmondrian._memory import borrow


class Columns(NamedTuple):
    """How the boxes of a tree hold each feature."""

    place: np.ndarray  # int32 [d], place among the numeric ones, or ~place among the binary
    numeric: np.ndarray  # int32 [p], features, increasing
    binary: np.ndarray  # int32 [b], features, increasing
    values: np.ndarray  # float32 [b, 2], what each binary feature takes; the first may be alone


class Rows(NamedTuple):
    """Rows as kernels take them."""

    values: np.ndarray  # float32 [n, d]
    numeric: np.ndarray  # float32 [n, p], the numeric features
    bits: np.ndarray  # uint64 [n, 2 q], a bit where a binary feature has its first, second value


class Row(NamedTuple):
    """One of them."""

    values: np.ndarray  # float32 [d]
    numeric: np.ndarray  # float32 [p]
    bits: np.ndarray  # uint64 [2 q]


def make_columns(n_features: int, binary: np.ndarray, values: np.ndarray) -> Columns:
    """Return columns of which ``binary`` (int [b], increasing) take ``values`` [b, 2] only."""
    binary = np.ascontiguousarray(binary, np.int32)
    numeric = np.setdiff1d(np.arange(n_features, dtype=np.int32), binary)
    place = np.empty(n_features, np.int32)
    place[numeric] = np.arange(len(numeric))
    place[binary] = ~np.arange(len(binary))
    return Columns(place, numeric, binary, np.ascontiguousarray(values, np.float32))


def all_numeric(n_features: int) -> Columns:
    """Return columns none of which is binary."""
    return make_columns(n_features, np.empty(0), np.empty((0, 2)))


def boxless(n_features: int) -> Columns:
    """Return columns that boxes hold nothing of, for growth that needs no boxes."""
    none = np.empty(0, np.int32)
    return Columns(np.zeros(n_features, np.int32), none, none, np.empty((0, 2), np.float32))


def has_boxes(columns: Columns) -> bool:
    """Tell whether boxes are written at all."""
    return len(columns.numeric) + len(columns.binary) > 0


def n_words(columns: Columns) -> int:
    """Return 2 q, the words of a box that hold bits."""
    return 2 * -(-len(columns.binary) // 64)


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view: one form of argument, so one compilation."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@inner
def row_of(rows, r):
    """Return row ``r``."""
    return Row(rows.values[r], rows.numeric[r], rows.bits[r])


@inner
def borrow_rows(rows):
    """Return the rows without reference counts (see ``borrow``)."""
    return Rows(borrow(rows.values), borrow(rows.numeric), borrow(rows.bits))


@inner
def borrow_columns(columns):
    """Return the columns without reference counts (see ``borrow``)."""
    return Columns(
        borrow(columns.place),
        borrow(columns.numeric),
        borrow(columns.binary),
        borrow(columns.values),
    )


@inner
def write_bits_of_row(patterns, wanted, columns, bits, others):
    """Write ``bits`` uint64 [2 q] of one row; see :func:`write_bits`."""
    half = bits.shape[0] // 2
    one = np.uint64(1)
    for k in range(bits.shape[0]):
        bits[k] = np.uint64(0)
    for k in range(wanted.shape[0]):
        found = patterns[columns.binary[k]]
        bit = one << np.uint64(k & 63)
        if found == wanted[k, 0]:
            bits[k >> 6] |= bit
        elif found == wanted[k, 1]:
            bits[half + (k >> 6)] |= bit
        else:
            others[k] = True


@kernel
def write_bits(patterns, wanted, columns, bits, others):
    """Write ``bits`` of each row; mark in ``others`` bool [b] the features with other values.

    ``patterns`` int32 [n, d] and ``wanted`` [b, 2] are the float32 of rows and of the columns'
    values, compared as they are stored: 0 and -0 are two values.
    """
    patterns, wanted, bits, others = borrow(patterns), borrow(wanted), borrow(bits), borrow(others)
    columns = borrow_columns(columns)
    for r in range(patterns.shape[0]):
        write_bits_of_row(patterns[r], wanted, columns, bits[r], others)


@inner
def _take_values(row, features, values, counts, c):
    """Take one row's values of the first ``c`` features; return how many still fit."""
    kept = 0
    for k in range(c):
        j, n = features[k], counts[k]
        found, first, second = row[j], values[k, 0], values[k, 1]
        if n == 0:
            first, second, n = found, found, 1
        elif found != first and found != second:
            if n == 2:
                continue  # a third: those behind move up
            second, n = found, 2
        features[kept], counts[kept] = j, n
        values[kept, 0], values[kept, 1] = first, second
        kept += 1
    return kept


@kernel
def take_values(patterns, has_rows, features, values, counts):
    """Take the values of rows into ``values``; return how many features still fit. O(n c).

    ``patterns`` int32 [n, d] are float32 as they are stored; rows that are not in ``has_rows``
    bool [n] are left out. ``features`` int64 [c], with up to two ``values`` int32 [c, 2] each (one
    stands twice) and their ``counts`` int64 [c], lose those that take a third: the first ones stay.
    """
    patterns, has_rows, features = borrow(patterns), borrow(has_rows), borrow(features)
    values, counts, c, is_first = borrow(values), borrow(counts), features.shape[0], True
    for r in range(patterns.shape[0]):
        if not has_rows[r]:
            continue
        differs = np.int32(0)
        for k in range(c):
            found = patterns[r, features[k]]
            differs |= np.int32(found != values[k, 0]) & np.int32(found != values[k, 1])
        if differs != 0 or is_first:  # nothing may be known before the first row
            c, is_first = _take_values(patterns[r], features, values, counts, c), False
        if c == 0:
            break
    return c


@kernel
def write_bounds(lower, upper, wanted, columns, box, bits):
    """Write boxes from their bounds. O(m d).

    ``lower`` and ``upper`` int32 [m, d], ``wanted`` [b, 2] and ``box`` [m, 2 p or more] are
    float32 as they are stored; ``bits`` uint64 [m, 2 q].
    """
    lower, upper, wanted = borrow(lower), borrow(upper), borrow(wanted)
    columns, box, bits = borrow_columns(columns), borrow(box), borrow(bits)
    p, half, one = columns.numeric.shape[0], bits.shape[1] // 2, np.uint64(1)
    for v in range(lower.shape[0]):
        for k in range(p):
            j = columns.numeric[k]
            box[v, k], box[v, p + k] = lower[v, j], upper[v, j]
        for w in range(bits.shape[1]):
            bits[v, w] = np.uint64(0)
        for k in range(wanted.shape[0]):
            j, first, second = columns.binary[k], wanted[k, 0], wanted[k, 1]
            low, high, bit = lower[v, j], upper[v, j], one << np.uint64(k & 63)
            if low == first or high == first:
                bits[v, k >> 6] |= bit
            if first != second and (low == second or high == second):  # else it is not known yet
                bits[v, half + (k >> 6)] |= bit


@kernel
def read_bounds(told, columns, box, bits, bounds):
    """Write the bounds of boxes to ``bounds`` [m, 2 d], lower ones first. O(m d).

    The others as :func:`write_bounds` takes them; ``told`` int32 [b, 4, 2] are the bounds of a
    feature that took neither value, the first, the second, both.
    """
    told, columns, box, bits = borrow(told), borrow_columns(columns), borrow(box), borrow(bits)
    bounds, d = borrow(bounds), bounds.shape[1] // 2
    p, half, one = columns.numeric.shape[0], bits.shape[1] // 2, np.uint64(1)
    for v in range(bounds.shape[0]):
        for k in range(p):
            j = columns.numeric[k]
            bounds[v, j], bounds[v, d + j] = box[v, k], box[v, p + k]
        for k in range(told.shape[0]):
            w, place, j = k >> 6, np.uint64(k & 63), columns.binary[k]
            seen = (bits[v, w] >> place & one) | (bits[v, half + w] >> place & one) << one
            bounds[v, j], bounds[v, d + j] = told[k, seen, 0], told[k, seen, 1]
