"""Encoding of few rows given as Python values, as JSON has them, without a table of them.

A table of one row takes longer to be made, checked and encoded than a forest takes to answer it.
Here what can be looked up in a schema is prepared once.

Relies on `NumberBlock` for numbers, on the places of levels for categories, and on
`encode_features` for times, texts and other columns, whose Arrow arrays the caller makes. Promises
the features of a table of the same values, to the last bit, or None: values that a table might
refuse, or round, are left to it.

Shapes: n rows, d features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from dmondrian.data.arrow_values import CATEGORY, NUMBER, IntArray, text_of
from dmondrian.data.columns import has_times, was_text
from dmondrian.data.encode import Matrix, encode_features, level_places
from dmondrian.data.number_block import NumberBlock
from dmondrian.data.schema import Column, Schema

_LARGEST = 2.0**53  # up to which integers are the same as float64
_INTEGERS = range(-(2**63), 2**63)  # that Arrow holds
_NULL = type(None)


class ValueEncoder:
    """Encoder of Python values of columns into features of a schema.

    Parameters
    ----------
    schema : Schema

    Attributes
    ----------
    rest : tuple of str
        Columns that are given as Arrow arrays.
    """

    def __init__(self, schema: Schema) -> None:
        self._block = NumberBlock(schema)
        columns, starts = schema.columns, self._block.starts.tolist()
        numbers = self._block.columns.tolist()
        levels = [
            i
            for i, column in enumerate(columns)
            if column.kind == CATEGORY and not has_times(column)
        ]
        rest = sorted(set(range(len(columns))).difference(numbers, levels))
        self._n_features = schema.n_features
        self._kinds = [(column.name, *_kinds_of(column)) for column in columns]
        self._numbers = [columns[i].name for i in numbers]
        self._all_numbers: IntArray = np.arange(len(numbers))
        self._levels = [_Levels(columns[i], starts[i]) for i in levels]
        self._rest = replace(schema.without_target(), columns=tuple(columns[i] for i in rest))
        self._rest_at = np.array([at for i in rest for at in range(starts[i], starts[i + 1])], int)
        self.rest = tuple(columns[i].name for i in rest)

    def takes(self, columns: Mapping[str, Sequence[Any]]) -> bool:
        """Whether the values of each column are of one of its types, or None.

        Rows of several requests that are taken may be encoded as one.

        Parameters
        ----------
        columns : mapping of name to n values
        """
        for name, alone, together in self._kinds:
            values = columns[name]
            if len(values) == 1:
                if type(values[0]) not in alone:
                    return False
                continue
            types = {*map(type, values), _NULL}
            if not any(types <= some for some in together):
                return False
        return True

    def encode(
        self, columns: Mapping[str, Sequence[Any]], arrays: Mapping[str, pa.Array], n: int
    ) -> Matrix | None:
        """Return the features of rows, float32 [n, d]; None if only a table can say.

        Parameters
        ----------
        columns : mapping of name to n values
            That `takes` took.
        arrays : mapping of name to Arrow array of n rows
            Of the columns `rest`, of types that the schema takes.
        n : int
            Number of rows.

        Raises
        ------
        DataError
            A time is infinite.
        """
        X: Matrix = np.zeros((n, self._n_features), np.float32)
        try:
            if self._numbers:
                numbers = [columns[name] for name in self._numbers]
                values = np.array(numbers, np.float64)  # NaN for None
                if (np.abs(values) > _LARGEST).any():
                    return None
                self._block.encode(self._all_numbers, values.T, X, {})
            flat = X.reshape(-1)
            for levels in self._levels:
                at = levels.places_of(columns[levels.name], self._n_features)
                flat[at] = levels.value
        except (OverflowError, UnicodeEncodeError):  # beyond what Arrow holds
            return None
        if self.rest:
            X[:, self._rest_at] = encode_features(self._rest, arrays, n, {}, "row {}".format)
        return X


class _Levels:
    """Where the features of a category are, by value."""

    def __init__(self, column: Column, start: int) -> None:
        self.name, self.value = column.name, np.float32(column.level_value)
        self._found = {level: start + i for level, i in level_places(column).items()}
        self._others = start + len(column.levels)
        self._null = start + column.width - 1 if column.has_nulls else None

    def places_of(self, values: Sequence[Any], step: int) -> list[int]:
        """Return the places of the features that are not 0, in rows one after the other."""
        places = []
        for row, value in enumerate(values):
            place = self._found.get(value) if type(value) is str else None
            if place is None:
                place = self._place(value)
            if place is not None:
                places.append(row * step + place)
        return places

    def _place(self, value: Any) -> int | None:
        """Return the place of a value that is no level as it stands; None for no place."""
        if type(value) is int and value not in _INTEGERS:
            raise OverflowError
        text = text_of(value)
        if text is None:
            return self._null
        text.encode()  # half a pair of UTF-16 is refused
        return self._found.get(text, self._others)


def _kinds_of(column: Column) -> tuple[frozenset[type], list[frozenset[type]]]:
    """Return the types of which a value may be, and sets of those that go together."""
    kinds: list[set[type]] = [{str}]
    if column.kind == NUMBER:
        kinds = [{int, float}, {bool}]
    elif column.kind == CATEGORY and not was_text(column) and not has_times(column):
        kinds = [{str}, {int}, {float}, {bool}]
    together = [frozenset({*some, _NULL}) for some in kinds]
    return frozenset().union(*together), together
