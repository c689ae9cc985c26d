"""Arrow arrays and NumPy's, made of each other without pandas: the arrays that pyarrow makes."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmondrian.data.arrow_arrays import array_of, column_of, dtype_of, numpy_of, texts_of

DTYPES = ["?", "i1", "u1", "i2", "i4", "i8", "u8", "f2", "f4", "f8"]


@given(st.data())
def test_numbers_are_those_of_pyarrow_there_and_back(data: st.DataObject) -> None:
    dtype, step = data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(1, 3))
    n = data.draw(st.integers(0, 40))
    drawn = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 120, n)
    values = drawn.astype(dtype)[::step]
    column, wanted = array_of(values), pa.array(values)
    assert column.equals(wanted)
    assert column.type == wanted.type
    assert dtype_of(column.type) == values.dtype
    column.validate(full=True)
    first = data.draw(st.integers(0, len(values)))
    back = numpy_of(column.slice(first))
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values[first:])


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.uint8()])
def test_nulls_become_the_value_that_is_given(kind: pa.DataType) -> None:
    column = pa.array([None, 3, None, 5], kind)
    assert numpy_of(column, 7).tolist() == [7, 3, 7, 5]
    assert numpy_of(column.slice(2), 0).tolist() == [0, 5]
    assert numpy_of(column.slice(3), 0).tolist() == [5]


@given(st.lists(st.text(), max_size=20), st.sampled_from([pa.string(), pa.large_string()]))
def test_texts_are_those_of_pyarrow(values: list[str], kind: pa.DataType) -> None:
    column = texts_of(values, kind)
    column.validate(full=True)
    assert column.equals(pa.array(values, kind))
    assert column_of(values, kind).equals(column)


@pytest.mark.parametrize("values", [["a", "", "ü"], [1, -2], [0.5, 2.0], [True, False]])
def test_columns_of_values_have_the_types_of_pyarrow(values: list) -> None:
    assert column_of(values).equals(pa.array(values))


PROGRAM = """
import sys
import numpy as np, pyarrow as pa
from dmondrian.data.arrow_arrays import array_of, column_of, dtype_of, numpy_of
column = array_of(np.arange(3.0)).take(array_of(np.array([2, 0])))
table = pa.table({"x": column, "y": column_of(["a", "b"])})
table = table.filter(array_of(np.array([True, False])))
numpy_of(table.column("x").chunk(0)), numpy_of(table.column("y").chunk(0).is_null())
sys.exit("pandas" in sys.modules)
"""


def test_pandas_is_not_imported() -> None:
    pytest.importorskip("pandas")
    assert subprocess.run([sys.executable, "-c", PROGRAM], check=False).returncode == 0
