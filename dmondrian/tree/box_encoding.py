"""Three ways to write a feature of a box: two floats, two numbers of steps, two bits.

A feature whose values are whole multiples of a unit, a power of two, is stored in 16 bits each for
its bounds; one that only takes two values as which of them have been seen. These are other ways to
write the same box, to the last bit: which features are written how changes no result. A feature
that comes to take a value that does not fit is written another way from then on
(:mod:`dmondrian.tree.box_encoding_choice`).

Shapes: n rows, d features, p of them numeric, g stepped, b binary, q = ceil(b / 64) words.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import inline, kernel

_MOST_IN_ALL = 65_536  # stepped features whose steps are summed up in 32 bits


class Columns(NamedTuple):
    """Encoding of each feature in the boxes of a tree."""

    place: np.ndarray  # int32 [d], place among numeric and then stepped, or ~place among binary
    numeric: np.ndarray  # int32 [p], features, increasing
    stepped: np.ndarray  # int32 [g], features, increasing
    binary: np.ndarray  # int32 [b], features, increasing
    values: np.ndarray  # float32 [b, 2], what each binary feature takes; the first may be alone
    units: np.ndarray  # float32 [g], powers of two; k steps are (k + origin) units
    origins: np.ndarray  # float64 [g], whole numbers
    unit: float  # of all of them, where they are equal and not too many, else 0


class Rows(NamedTuple):
    """Rows as kernels take them."""

    values: np.ndarray  # float32 [n, d]
    numeric: np.ndarray  # float32 [n, p], the numeric features
    steps: np.ndarray  # int16 [n, g], the stepped ones
    bits: np.ndarray  # uint64 [n, 2 q], a bit where a binary feature has its first, second value


class Row(NamedTuple):
    """One row as kernels take it."""

    values: np.ndarray  # float32 [d]
    numeric: np.ndarray  # float32 [p]
    steps: np.ndarray  # int16 [g]
    bits: np.ndarray  # uint64 [2 q]


class Stepped(NamedTuple):
    """Features to be written as steps."""

    features: np.ndarray  # int [g], increasing
    units: np.ndarray  # [g]
    origins: np.ndarray  # [g]


NO_STEPS = Stepped(*np.empty((3, 0)))


def make_columns(
    n_features: int, binary: np.ndarray, values: np.ndarray, steps: Stepped = NO_STEPS
) -> Columns:
    """Return columns of which ``binary`` (int [b], increasing) take ``values`` [b, 2] only."""
    binary = np.ascontiguousarray(binary, np.int32)
    stepped = np.ascontiguousarray(steps.features, np.int32)
    is_numeric = np.ones(n_features, bool)
    is_numeric[binary] = is_numeric[stepped] = False
    numeric = np.flatnonzero(is_numeric).astype(np.int32)
    place = np.empty(n_features, np.int32)
    place[numeric] = np.arange(len(numeric))
    place[stepped] = len(numeric) + np.arange(len(stepped))
    place[binary] = ~np.arange(len(binary))
    units, origins = (np.ascontiguousarray(steps.units, np.float32), np.array(steps.origins, float))
    values = np.ascontiguousarray(values, np.float32)
    is_one = 0 < len(units) <= _MOST_IN_ALL and bool((units == units[0]).all())
    unit = float(units[0]) if is_one else 0.0
    return Columns(place, numeric, stepped, binary, values, units, origins, unit)


def all_numeric(n_features: int) -> Columns:
    """Return columns that are all written in floats."""
    return make_columns(n_features, np.empty(0), np.empty((0, 2)))


def boxless(n_features: int) -> Columns:
    """Return columns that boxes hold nothing of, for growth that needs no boxes."""
    none, values = np.empty(0, np.int32), np.empty((0, 2), np.float32)
    return Columns(
        np.zeros(n_features, np.int32),
        none,
        none,
        none,
        values,
        values[:, 0].copy(),
        np.empty(0),
        0.0,
    )


def has_boxes(columns: Columns) -> bool:
    """Return whether boxes are written at all."""
    return len(columns.numeric) + len(columns.stepped) + len(columns.binary) > 0


def n_words(columns: Columns) -> int:
    """Return 2 q, the words of a box that hold bits."""
    return 2 * -(-len(columns.binary) // 64)


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view: one form of argument, so one compilation."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@inline
def row_of(rows, r):
    """Return row ``r``."""
    return Row(rows.values[r], rows.numeric[r], rows.steps[r], rows.bits[r])


@inline
def value_of(columns, k, steps):
    """Return the value, float32, that ``steps`` are of stepped feature ``k``."""
    return np.float32((np.float64(steps) + columns.origins[k]) * np.float64(columns.units[k]))


@inline
def steps_to(columns, k, value):
    """Return how many steps ``value``, float32, is in stepped feature ``k``, float64.

    It can be written so if that is within 16 bits; nan for parts of a unit, and for -0, which steps
    cannot hold.
    """
    units = np.float64(value) * (1.0 / np.float64(columns.units[k]))
    if units != np.floor(units) or (units == 0.0 and np.signbit(value)):
        return np.nan
    return units - columns.origins[k]


@inline
def fits_int16(steps):
    """Return whether a number of steps can be written in 16 bits; nan cannot."""
    return -32768.0 <= steps <= 32767.0


@inline
def whole_steps(value, per_unit, origin):
    """Return a number of steps, int32 within 16 bits, and whether ``value`` is another number."""
    units = np.float64(value) * per_unit
    whole = np.int32(min(max(units - origin, -32768.0), 32767.0))
    is_negative_zero = np.float32(value).view(np.int32) == np.int32(-(2**31))
    return whole, (np.float64(whole) + origin != units) | is_negative_zero


@kernel
def write_steps(X, columns, steps, has_other_values):
    """Write ``steps`` of each row of ``X`` float32 [n, d]; mark features with other values.

    ``has_other_values`` bool [g] are those with a value that steps cannot hold, for which any is
    written.
    """
    g, features = columns.stepped.shape[0], columns.stepped
    per_unit, values = np.empty(g), np.empty(g, np.float32)
    for k in range(g):
        per_unit[k] = 1.0 / np.float64(columns.units[k])  # exact, of a power of two
    for r in range(X.shape[0]):
        row, out = X[r], steps[r]
        for k in range(g):
            values[k] = row[np.uint64(features[k])]
        for k in range(g):  # without a jump, several at a time
            whole, is_other = whole_steps(values[k], per_unit[k], columns.origins[k])
            out[k] = np.int16(whole)
            has_other_values[k] |= is_other


@inline
def write_bits_of_row(patterns, wanted, columns, bits, has_other_values):
    """Write ``bits`` uint64 [2 q] of one row; see :func:`write_bits`."""
    half = bits.shape[0] // 2
    one = np.uint64(1)
    for k in range(bits.shape[0]):
        bits[k] = np.uint64(0)
    for k in range(wanted.shape[0]):
        value = patterns[columns.binary[k]]
        bit = one << np.uint64(k & 63)
        if value == wanted[k, 0]:
            bits[k >> 6] |= bit
        elif value == wanted[k, 1]:
            bits[half + (k >> 6)] |= bit
        else:
            has_other_values[k] = True


@kernel
def write_bits(patterns, wanted, columns, bits, has_other_values):
    """Write ``bits`` of each row; mark features with other values in ``has_other_values`` bool [b].

    ``patterns`` int32 [n, d] and ``wanted`` [b, 2] are the float32 of rows and of the columns'
    values, compared as they are stored: 0 and -0 are two values.
    """
    for r in range(patterns.shape[0]):
        write_bits_of_row(patterns[r], wanted, columns, bits[r], has_other_values)


@inline
def _take_values(row, features, values, counts, c):
    """Take one row's values of the first ``c`` features; return how many still fit."""
    kept = 0
    for k in range(c):
        j, n = features[k], counts[k]
        value, first, second = row[j], values[k, 0], values[k, 1]
        if n == 0:
            first, second, n = value, value, 1
        elif value != first and value != second:
            if n == 2:
                continue  # a third: those behind move up
            second, n = value, 2
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
    c, is_first = features.shape[0], True
    for r in range(patterns.shape[0]):
        if not has_rows[r]:
            continue
        differs = np.int32(0)
        for k in range(c):
            pattern = patterns[r, features[k]]
            differs |= np.int32(pattern != values[k, 0]) & np.int32(pattern != values[k, 1])
        if differs != 0 or is_first:  # nothing may be known before the first row
            c, is_first = _take_values(patterns[r], features, values, counts, c), False
        if c == 0:
            break
    return c


@inline
def packed(words, w):
    """Return 64 bits that stand in a byte each, eight in each of ``words`` uint64, from 8 w on."""
    bits = np.uint64(0)
    for i in range(np.uint64(8)):
        eight = words[np.uint64(8 * w) + i]
        eight |= eight >> np.uint64(7)  # two of them side by side, then four, then all
        eight |= eight >> np.uint64(14)
        eight |= eight >> np.uint64(28)
        bits |= (eight & np.uint64(255)) << np.uint64(8) * i
    return bits


@kernel
def write_bounds(lower, upper, has_rows, wanted, columns, box, steps, bits):
    """Write boxes from their bounds; return whether those that have rows can be so. O(m d).

    ``lower`` and ``upper`` int32 [m, d], ``wanted`` [b, 2] and ``box`` [m, 2 p or more] are
    float32 as they are stored; ``steps`` int16 [m, 4 p + 2 g or more] are the box, and ``bits``
    uint64 [m, 2 q]. ``has_rows`` is bool [m].
    """
    p, g, b = columns.numeric.shape[0], columns.stepped.shape[0], wanted.shape[0]
    per_unit, values = np.empty(g), np.empty((2, g), np.float32)
    kinds, ends = np.empty((2, b), np.int32), np.empty((2, b), np.int32)
    seen = np.zeros((2, 32 * bits.shape[1]), np.uint8)  # 1 for a bit
    words = seen.view(np.uint64).reshape(-1)
    for k in range(b):
        kinds[0, k], kinds[1, k] = wanted[k, 0], wanted[k, 1]
    for k in range(g):
        per_unit[k] = 1.0 / np.float64(columns.units[k])  # exact, of a power of two
    fit = True
    for v in range(lower.shape[0]):
        low, high, has_others = lower[v], upper[v], np.int32(0)
        for k in range(p):
            j = np.uint64(columns.numeric[k])
            box[v, k], box[v, p + k] = low[j], high[j]
        for k in range(g):
            j = np.uint64(columns.stepped[k])
            values[0, k] = np.int32(low[j]).view(np.float32)
            values[1, k] = np.int32(high[j]).view(np.float32)
        for end in range(2):
            out = steps[v, 4 * p + end * g : 4 * p + end * g + g]
            for k in range(g):  # without a jump, several at a time
                whole, is_other = whole_steps(values[end, k], per_unit[k], columns.origins[k])
                out[k] = np.int16(whole)
                has_others |= np.int32(is_other)
        for k in range(b):
            j = np.uint64(columns.binary[k])
            ends[0, k], ends[1, k] = low[j], high[j]
        for k in range(b):  # without a jump, too
            lowest, highest, first, second = ends[0, k], ends[1, k], kinds[0, k], kinds[1, k]
            is_first, is_second = lowest == first, lowest == second
            seen[0, k] = is_first | (highest == first)
            seen[1, k] = (is_second | (highest == second)) & (first != second)  # else not known yet
            has_others |= np.int32(
                not (is_first | is_second) & ((highest == first) | (highest == second))
            )
        for w in range(bits.shape[1]):
            bits[v, w] = packed(words, w)
        fit &= has_others == 0 or not has_rows[v]
    return fit


def bounds_by_values_of(columns: Columns) -> np.ndarray:
    """Return the bounds of binary features by the values that were seen, float32 [b, 4, 2].

    Lower and upper ones of a feature that took neither value, the first, the second, both.
    """
    bounds = np.zeros((len(columns.binary), 4, 2), np.float32)
    bounds[:, 1], bounds[:, 2] = columns.values[:, :1], columns.values[:, 1:]
    bounds[:, 3, 0], bounds[:, 3, 1] = columns.values.min(axis=1), columns.values.max(axis=1)
    return bounds


@kernel
def read_bounds(bounds_by_values, columns, box, steps, bits, bounds):
    """Write the bounds of boxes to ``bounds`` [m, 2 d], lower ones first. O(m d).

    The others as :func:`write_bounds` takes them; ``bounds_by_values`` int32 [b, 4, 2] are those
    of :func:`bounds_by_values_of` as they are stored.
    """
    d = bounds.shape[1] // 2
    p, half, one = columns.numeric.shape[0], bits.shape[1] // 2, np.uint64(1)
    g = columns.stepped.shape[0]
    for v in range(bounds.shape[0]):
        for k in range(p):
            j = columns.numeric[k]
            bounds[v, j], bounds[v, d + j] = box[v, k], box[v, p + k]
        for k in range(g):
            j, at = columns.stepped[k], 4 * p + k
            bounds[v, j] = np.float32(value_of(columns, k, steps[v, at])).view(np.int32)
            bounds[v, d + j] = np.float32(value_of(columns, k, steps[v, at + g])).view(np.int32)
        for k in range(bounds_by_values.shape[0]):
            w, place, j = k >> 6, np.uint64(k & 63), columns.binary[k]
            seen = (bits[v, w] >> place & one) | (bits[v, half + w] >> place & one) << one
            bounds[v, j], bounds[v, d + j] = (
                bounds_by_values[k, seen, 0],
                bounds_by_values[k, seen, 1],
            )
