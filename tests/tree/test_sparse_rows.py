"""Sparse rows: any numbers come back to the last bit, and what does not add up is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmondrian.errors import CorruptError
from dmondrian.tree.sparse_rows import BLOCK, SparseRows, dense_rows, sparse_rows

ODD = [0.0, 0.0, 0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, 3e38, -1.5]


def drawn(m: int, width: int, seed: int, dtype: str = "f4", share: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.choice(np.array(ODD, dtype), (m, width))
    rows[rng.random((m, width)) > share] = 0.0
    return rows


def reference(rows: np.ndarray) -> tuple[np.ndarray, bytes]:
    """Marks and bytes of numbers, slowly and as the module's docstring has them."""
    m, width = rows.shape
    kept = rows.view(f"u{rows.itemsize}")
    marks = np.zeros((m, -(-width // 32)), np.uint32)
    numbers = []
    for start in range(0, m, 1024):
        for j in range(width):
            for v in range(start, min(start + 1024, m)):
                if kept[v, j]:
                    marks[v, j // 32] |= np.uint32(1 << j % 32)
                    numbers.append(int(kept[v, j]))
    planes = [bytes(number >> 8 * b & 255 for number in numbers) for b in range(rows.itemsize)]
    return marks.view(np.int32), b"".join(planes)


@settings(max_examples=80)
@given(
    st.integers(0, 40), st.integers(1, 130), st.integers(0, 2**32), st.sampled_from(["f4", "f8"]),
    st.floats(0, 1),
)  # fmt: skip
def test_any_numbers_come_back(m: int, width: int, seed: int, dtype: str, share: float) -> None:
    rows = drawn(m, width, seed, dtype, share)
    sparse = sparse_rows(rows)
    marks, kept = reference(rows)
    assert np.array_equal(sparse.marks, marks)
    assert sparse.words.tobytes() == kept
    back = dense_rows(sparse)
    assert (back.dtype, back.shape, back.tobytes()) == (rows.dtype, rows.shape, rows.tobytes())


@pytest.mark.parametrize("m", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_more_rows_than_a_block(m: int) -> None:
    rows = drawn(m, 5, m)
    sparse = sparse_rows(rows)
    marks, kept = reference(rows)
    assert np.array_equal(sparse.marks, marks)
    assert sparse.words.tobytes() == kept
    assert dense_rows(sparse).tobytes() == rows.tobytes()


def test_strided_rows() -> None:
    rows = drawn(3000, 40, 1, "f8")
    for part in (rows[:, 3:11], rows[::3], rows[::-1, ::-2], rows[:, ::40]):
        assert dense_rows(sparse_rows(part)).tobytes() == np.ascontiguousarray(part).tobytes()


@pytest.mark.parametrize("width", [31, 32, 33, 70])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_each_changed_mark_is_refused(width: int, dtype: str) -> None:
    """One number more or less than there are, or one beyond the columns."""
    sparse = sparse_rows(drawn(6, width, 2, dtype))
    for v in range(6):
        for bit in range(32 * sparse.marks.shape[1]):
            marks = sparse.marks.copy()
            marks.view(np.uint32)[v, bit // 32] ^= np.uint32(1 << bit % 32)
            message = "beyond its" if bit >= width else "are marked, and there are"
            with pytest.raises(CorruptError, match=message):
                dense_rows(sparse._replace(marks=marks))


def test_marks_that_are_moved_beyond_the_columns_are_refused() -> None:
    """As many as there are numbers, in a place that rows do not have."""
    rows = np.zeros((2, 33), np.float32)
    rows[1, 32] = 1.0
    sparse = sparse_rows(rows)
    sparse.marks[1, 1] = 2
    with pytest.raises(CorruptError, match="beyond its 33 columns"):
        dense_rows(sparse)


@pytest.mark.parametrize("words", [0, 5, 7, 1000])
def test_other_numbers_than_are_marked_are_refused(words: int) -> None:
    sparse = sparse_rows(np.ones((2, 3), np.float32))
    with pytest.raises(CorruptError, match=f"6 numbers .* {4 * words} bytes"):
        dense_rows(sparse._replace(words=np.zeros(words, np.int32)))
    with pytest.raises(CorruptError, match=f"6 numbers .* {4 * words} bytes"):
        dense_rows(sparse._replace(words=np.zeros(words, np.int32), dtype=np.dtype("f8")))


def test_marks_of_another_width_are_refused() -> None:
    sparse = sparse_rows(np.ones((2, 33), np.float32))
    for width in (1, 32, 65):
        with pytest.raises(CorruptError, match="beyond its"):
            dense_rows(sparse._replace(width=width))


def test_read_only_memory_will_do() -> None:
    sparse = sparse_rows(drawn(50, 9, 3))
    wanted = dense_rows(sparse).tobytes()
    parts = []
    for array in (sparse.marks, sparse.words):
        held = np.frombuffer(array.tobytes(), np.int32)
        parts.append(held.reshape(array.shape))
    assert dense_rows(SparseRows(parts[0], parts[1], sparse.dtype, 9)).tobytes() == wanted
