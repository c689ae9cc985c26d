"""Rows that are mostly zero: a bit for each of their numbers, and those that are not zero.

Numbers are compared and kept as they are stored, so any come back, to the last bit: -0 is none of
the zeros. Those that are kept stand by column, 1024 rows after the other, and in bytes of equal
significance: first the lowest byte of each, last the highest. Neighbours are then alike, which
takes less time and bytes to compress than numbers in the order of their rows.

Shapes: m rows, w columns, n numbers that are not zero, of b bytes each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dmondrian._numba.jit import inline, kernel
from dmondrian.errors import CorruptError
from dmondrian.tree.box_encoding import read_only

BITS = 32  # of a word of marks
BLOCK = 1024  # rows whose numbers stand by column
_AT_ONCE = 4096  # numbers that are split into bytes, or made of them, while they are in the cache
_UNSIGNED = {4: np.uint32, 8: np.uint64}


class SparseRows(NamedTuple):
    """An array [m, w] of which only numbers that are not zero are kept."""

    marks: np.ndarray  # int32 [m, ceil(w / 32)]; bit j of word k: is column 32 k + j not zero
    words: np.ndarray  # int32 [b n / 4], the bytes of these, see above
    dtype: np.dtype[Any]
    width: int  # w


class RowBuffer(NamedTuple):
    """Buffer of the numbers of rows that are not zero, which kernels fill row by row."""

    marks: np.ndarray  # uint32 [m, ceil(w / 32)], see SparseRows
    numbers: np.ndarray  # unsigned [m w], those of earlier blocks
    n_numbers: np.ndarray  # uint64 [1], how many these are
    block: np.ndarray  # unsigned [w, 1024], those of a column of this block
    counts: np.ndarray  # uint64 [w], how many these are


def n_mark_words(width: int) -> int:
    """Return how many words of marks a row of ``width`` numbers has."""
    return -(-width // BITS)


@inline
def lowest_bit(word):
    """Return the place of the lowest bit of a word, uint64, that is not zero."""
    alone = np.float64(word & (~word + np.uint64(1)))  # a power of two: exact
    return (alone.view(np.uint64) >> np.uint64(52)) - np.uint64(1023)


@inline
def without_lowest(word):
    """Return the word, uint64 and not zero, without its lowest bit."""
    return word & (word - np.uint64(1))


@inline
def begin_row(buffer, v):
    """Begin with row ``v``, of which nothing was found."""
    marks = buffer.marks
    for k in range(marks.shape[1]):
        marks[v, k] = np.uint32(0)


@inline
def take(buffer, v, j, number):
    """Take a number, in column ``j``, uint64, of row ``v``, unless it is zero."""
    if number != 0:
        marks, counts = buffer.marks, buffer.counts
        marks[v, j >> np.uint64(5)] |= np.uint32(np.uint64(1) << (j & np.uint64(BITS - 1)))
        buffer.block[j, counts[j]] = number
        counts[j] += np.uint64(1)


@inline
def end_row(buffer, v):
    """Write the numbers of a block where row ``v`` is its last one, or the last of all."""
    if (v + np.uint64(1)) % np.uint64(BLOCK) != 0 and v + np.uint64(1) != buffer.marks.shape[0]:
        return
    at = buffer.n_numbers[0]
    for j in range(np.uint64(buffer.counts.shape[0])):
        for i in range(buffer.counts[j]):
            buffer.numbers[at + i] = buffer.block[j, i]
        at += buffer.counts[j]
        buffer.counts[j] = np.uint64(0)
    buffer.n_numbers[0] = at


@kernel
def _take_rows(rows, buffer):
    """Take the numbers of rows, unsigned [m, w]. O(m w)."""
    for v in range(np.uint64(rows.shape[0])):
        begin_row(buffer, v)
        for j in range(np.uint64(rows.shape[1])):
            take(buffer, v, j, rows[v, j])
        end_row(buffer, v)


@kernel
def _count(marks, width):
    """Return how many numbers are marked; -1 if some are beyond the columns. O(m w / 32)."""
    n, last = np.uint64(0), np.uint64(marks.shape[1] - 1)
    beyond = np.uint64(0) if width % BITS == 0 else np.uint64(2**BITS - 2 ** (width % BITS))
    outside = np.uint64(0)
    for v in range(np.uint64(marks.shape[0])):
        outside |= np.uint64(marks[v, last]) & beyond
        for k in range(np.uint64(marks.shape[1])):
            x = np.uint64(marks[v, k])
            x -= x >> np.uint64(1) & np.uint64(0x55555555)
            x = (x & np.uint64(0x33333333)) + (x >> np.uint64(2) & np.uint64(0x33333333))
            x = x + (x >> np.uint64(4)) & np.uint64(0x0F0F0F0F)
            n += x * np.uint64(0x01010101) >> np.uint64(24) & np.uint64(0xFF)
    return np.int64(n) if outside == 0 else np.int64(-1)


@kernel
def _put(marks, numbers, places, rows):
    """Write rows, unsigned [m, w], of zeros and of the numbers that are marked. O(m w).

    As many are marked as there are; ``places``, uint64 [32 ceil(w / 32)], are its own.
    """
    begin, m = np.uint64(0), marks.shape[0]
    for start in range(0, m, BLOCK):
        block = range(np.uint64(start), np.uint64(min(start + BLOCK, m)))
        places[:] = np.uint64(0)
        for v in block:
            for k in range(np.uint64(marks.shape[1])):
                word = np.uint64(marks[v, k])
                while word != 0:
                    places[np.uint64(BITS) * k + lowest_bit(word)] += np.uint64(1)
                    word = without_lowest(word)
        for j in range(places.shape[0]):
            n = places[j]
            places[j] = begin
            begin += n
        for v in block:
            for j in range(np.uint64(rows.shape[1])):
                rows[v, j] = 0
            for k in range(np.uint64(marks.shape[1])):
                word = np.uint64(marks[v, k])
                while word != 0:
                    j = np.uint64(BITS) * k + lowest_bit(word)
                    rows[v, j] = numbers[places[j]]
                    places[j] += np.uint64(1)
                    word = without_lowest(word)


@kernel
def _split(numbers, planes):
    """Write the bytes of numbers, unsigned [n], to planes, uint8 [b, n]."""
    for start in range(0, numbers.shape[0], _AT_ONCE):
        part = numbers[start : start + _AT_ONCE]
        for plane in range(planes.shape[0]):
            shift, out = np.uint64(8 * plane), planes[plane, start : start + _AT_ONCE]
            for i in range(part.shape[0]):
                out[i] = np.uint8(np.uint64(part[i]) >> shift & np.uint64(255))


@kernel
def _join(planes, numbers):
    """Write numbers, unsigned [n], of their bytes: the inverse of :func:`_split`."""
    for start in range(0, numbers.shape[0], _AT_ONCE):
        out = numbers[start : start + _AT_ONCE]
        for i in range(out.shape[0]):
            out[i] = planes[0, start + i]
        for plane in range(1, planes.shape[0]):
            shift, plane_bytes = np.uint64(8 * plane), planes[plane, start : start + _AT_ONCE]
            for i in range(out.shape[0]):
                out[i] |= np.uint64(plane_bytes[i]) << shift


def empty_buffer(n_rows: int, width: int, dtype: Any) -> RowBuffer:
    """Return a buffer without rows, for so many; its memory is used as it is written."""
    return RowBuffer(
        np.empty((n_rows, n_mark_words(width)), np.uint32),
        np.empty(n_rows * width, dtype),
        np.zeros(1, np.uint64),
        np.empty((width, min(BLOCK, n_rows)), dtype),
        np.zeros(width, np.uint64),
    )


def packed_rows(buffer: RowBuffer, dtype: np.dtype[Any]) -> SparseRows:
    """Return the rows whose numbers were found."""
    numbers = buffer.numbers[: int(buffer.n_numbers[0])]
    planes = np.empty((dtype.itemsize, len(numbers)), np.uint8)
    _split(numbers, planes)
    words = planes.reshape(-1).view(np.int32)
    return SparseRows(buffer.marks.view(np.int32), words, dtype, len(buffer.counts))


def sparse_rows(rows: np.ndarray) -> SparseRows:
    """Return an array, of 4 or 8 bytes a number, [m, w], without its zeros. O(m w)."""
    m, width = rows.shape
    unsigned = read_only(rows).view(_UNSIGNED[rows.itemsize])
    buffer = empty_buffer(m, width, unsigned.dtype)
    _take_rows(unsigned, buffer)
    return packed_rows(buffer, rows.dtype)


def dense_rows(sparse: SparseRows) -> np.ndarray:
    """Return the array [m, w] that was made sparse, C-contiguous. O(m w).

    Marks and words come from outside: they are checked first.

    Raises
    ------
    CorruptError
        The marks are of other columns, or of more or fewer numbers than there are.
    """
    words, dtype, width = sparse.words, sparse.dtype, sparse.width
    marks = read_only(sparse.marks).view(np.uint32)
    n = int(_count(marks, width)) if marks.shape[1] == n_mark_words(width) else -1
    if n < 0:
        raise CorruptError(f"Numbers beyond its {width} columns are marked.")
    if words.nbytes != n * dtype.itemsize:
        raise CorruptError(
            f"{n} numbers that are not zero are marked, and there are {words.nbytes} bytes of "
            f"them: expected {dtype.itemsize} bytes each."
        )
    rows = np.empty((len(marks), width), dtype)  # not zeros: these come in small pages
    unsigned = rows.view(_UNSIGNED[dtype.itemsize])
    numbers = np.empty(n, unsigned.dtype)
    planes = read_only(words).view(np.uint8).reshape(dtype.itemsize, n)
    _join(planes, numbers)
    _put(marks, numbers, np.empty(BITS * marks.shape[1], np.uint64), unsigned)
    return rows
