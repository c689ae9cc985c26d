"""Earlier values of a series as columns of its later rows: lags and differences, by key.

A lag needs rows that came before, and blocks of a plan are read on their own, by any worker and in
any order. So lags are made where rows come one after the other, before they are written to the
files that a run learns (:mod:`dmondrian.data.batch_files`, :mod:`dmondrian.data.lagged_files`), and
are columns like others from there on. A run of batches that goes on has its source begin at the
first row again, which makes the same lags, and compares what comes with what it has; so a source is
no function of a position, behind which the values before it would be missing.

Promises the same columns however the rows are cut into batches, and after any restart: a lag
depends on the rows alone. Memory holds the last rows of each key, and none that is more than
``n_rows`` rows old: a value is forgotten by its age in rows, which no cut changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dmondrian._text.wording import counted
from dmondrian.data.arrow_values import NUMBER, as_numbers, flatten, kind_of
from dmondrian.errors import DataError, ParameterError, SchemaError

N_ROWS = 1_000_000
"""Age in rows at which a value is forgotten, by default."""

_ABOUT = b"dmondrian.lags"
_KEY, _ROW = "key", "row"


class KeyedLags:
    """Adds earlier values of the same key to rows that come in their order.

    Parameters
    ----------
    columns : str or iterable of str
        Columns whose earlier values are wanted.
    lags : int or iterable of int
        How many rows of the key to go back, each at least 1.
    key : str, optional
        Column of whole numbers, texts or times that names the series of a row; without it all rows
        are one series. A row whose key is null has no earlier values and is none.
    differences : bool or iterable of str
        Whether numbers also get their difference from each lag; or of which of the columns.
    n_rows : int
        A value that is more than this many rows of the stream old is forgotten: it is null.

    Notes
    -----
    Columns ``lag_1(price)``, of the type of the column, and ``price-lag_1(price)``, float64, are
    added behind the others, for each column and lag; values are null where there is no earlier
    row. Time for a batch grows with the rows that are held, so batches should have ten thousand
    rows or more where there are many keys.

    Raises
    ------
    ParameterError
    """

    def __init__(
        self,
        columns: str | Iterable[str],
        lags: int | Iterable[int] = 1,
        *,
        key: str | None = None,
        differences: bool | Iterable[str] = True,
        n_rows: int = N_ROWS,
    ) -> None:
        self.columns = (columns,) if isinstance(columns, str) else tuple(columns)
        self.lags = (lags,) if isinstance(lags, int) else tuple(lags)
        self.key, self.n_rows = key, n_rows
        self.differences = differences if isinstance(differences, bool) else tuple(differences)
        names = (*self.columns, *(() if key is None else (key,)))
        if not self.columns or not all(isinstance(name, str) for name in names):
            raise ParameterError(f"columns and key must be names of columns, got {names!r}")
        if len(set(names)) < len(names):
            raise ParameterError(f"columns and key name a column twice: {names!r}")
        if not self.lags or not all(map(_is_count, (*self.lags, n_rows))):
            raise ParameterError(
                f"lags and n_rows must be integers of at least 1, got {self.lags!r} and {n_rows!r}"
            )
        if len(set(self.lags)) < len(self.lags):
            raise ParameterError(f"lags names a lag twice: {self.lags!r}")
        of = () if isinstance(self.differences, bool) else self.differences
        if unknown := [name for name in of if name not in self.columns]:
            raise ParameterError(f"differences names {unknown[0]!r}, which is none of the columns")
        self._came = 0  # rows
        self._held: pa.Table | None = None  # key, number of the row, and columns

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns that may be added: only numbers have differences."""
        pairs = [(name, lag) for name in self.columns for lag in self.lags]
        lagged = [lag_name(*pair) for pair in pairs]
        return (*lagged, *(_difference_name(*p) for p in pairs if self._has_differences(p[0])))

    def pass_over(self, n_rows: int) -> None:
        """Count rows that came before and are too old for any lag, in place of adding them."""
        self._came += n_rows

    def add(self, rows: pa.RecordBatch | pa.Table) -> pa.Table:
        """Return the next rows of the stream with columns of lags and differences.

        Raises
        ------
        SchemaError
            A column is missing, is there twice, or has values that its type before has not.
        """
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        new_rows = self._series(table)
        if self._held is not None:  # a column without any value has no type yet
            self._held, new_rows = _typed(self._held, new_rows), _cast_as(new_rows, self._held)
        series = new_rows if self._held is None else pa.concat_tables([self._held, new_rows])
        series = series.combine_chunks()
        n_held = len(series) - len(new_rows)
        numbers = series[_ROW].to_numpy()
        order, codes = _by_key(series[_KEY])
        for name in self.columns:
            values = series[_named(name)]
            for lag in self.lags:
                places = _earlier(order, codes, numbers, lag, self.n_rows)[n_held:]
                earlier = values.take(pa.array(places, pa.int64(), mask=places < 0))
                table = _with_column(table, lag_name(name, lag), earlier)
                if self._has_differences(name) and kind_of(values.type)[0] == NUMBER:
                    difference = _difference(values.slice(n_held), earlier)
                    table = _with_column(table, _difference_name(name, lag), difference)
        self._came += len(new_rows)
        is_held = _is_last(order, codes, max(self.lags), len(series))
        is_held &= numbers > self._came - 1 - self.n_rows
        self._held = series.filter(pa.array(is_held))
        return table

    def state(self) -> pa.Table:
        """Return what is needed to go on behind the rows that came, for a Parquet file, say."""
        about = {
            "columns": self.columns,
            "lags": self.lags,
            "key": self.key,
            "differences": self.differences,
            "n_rows": self.n_rows,
            "came": self._came,
        }
        held = pa.table({}) if self._held is None else self._held
        return held.replace_schema_metadata({_ABOUT: json.dumps(about).encode()})

    @classmethod
    def restored(cls, state: pa.Table) -> KeyedLags:
        """Return what goes on where `state` was taken.

        Raises
        ------
        DataError
            The table is no state.
        """
        try:
            about = json.loads((state.schema.metadata or {})[_ABOUT])
            came = int(about.pop("came"))
            lags = cls(**about)
        except (LookupError, TypeError, ValueError) as error:
            raise DataError(f"the table is no state of lags: {error!r}") from error
        lags._came = came
        lags._held = state.replace_schema_metadata() if state.num_columns else None
        return lags

    def _has_differences(self, name: str) -> bool:
        of = self.differences
        return of if isinstance(of, bool) else name in of

    def _series(self, table: pa.Table) -> pa.Table:
        """Return keys, numbers in the stream, and columns of rows."""
        wanted = [*self.columns, *(() if self.key is None else (self.key,))]
        for name in wanted:
            if (n := table.column_names.count(name)) != 1:
                how_many = counted(n, "column") if n else "no column"
                present = ", ".join(map(repr, table.column_names[:20]))
                raise SchemaError(
                    f"rows have {how_many} {name!r}, of which lags are made; expected one: there "
                    f"are {present}"
                )
        plain = {name: _decoded(table[name]) for name in wanted}
        same_key = pa.repeat(pa.scalar(0, pa.int8()), len(table))
        key = same_key if self.key is None else plain[self.key]
        if pa.types.is_floating(key.type) or pa.types.is_nested(key.type):
            raise SchemaError(
                f"the key {self.key!r} is {key.type}: expected whole numbers, texts or times"
            )
        numbers = pa.array(np.arange(self._came, self._came + len(table)))
        columns = [plain[name] for name in self.columns]
        names = [_KEY, _ROW, *map(_named, self.columns)]
        return pa.table([key, numbers, *columns], names=names)


class LaggedBatches:
    """An iterable of batches, each with columns of lags and differences.

    Parameters
    ----------
    source : iterable
        Of Arrow record batches or tables, of (partition, offset, batch), or of None, as
        :func:`dmondrian.distributed.train` takes it. It begins with its first row each time.
    columns, lags, key, differences, n_rows
        Of :class:`KeyedLags`.

    Raises
    ------
    ParameterError
        The source is a function: it would begin behind the rows that a run has, and lags need
        those before.
    """

    def __init__(
        self,
        source: Iterable[Any],
        columns: str | Iterable[str],
        lags: int | Iterable[int] = 1,
        *,
        key: str | None = None,
        differences: bool | Iterable[str] = True,
        n_rows: int = N_ROWS,
    ) -> None:
        if callable(source) or not isinstance(source, Iterable):
            raise ParameterError(
                f"the source of lags is a {type(source).__name__}; expected an iterable of batches "
                "that begins with its first row: a function of a position begins behind the rows "
                "that a run has, and lags need the values before"
            )
        self._source = source
        asked = KeyedLags(columns, lags, key=key, differences=differences, n_rows=n_rows)
        self._begin = partial(
            KeyedLags,
            asked.columns,
            asked.lags,
            key=key,
            differences=asked.differences,
            n_rows=n_rows,
        )

    def __iter__(self) -> Iterator[Any]:
        lags = self._begin()
        for item in self._source:
            if isinstance(item, tuple) and len(item) == 3:
                yield (*item[:2], lags.add(item[2]))
            else:
                yield item if item is None else lags.add(item)


def _by_key(keys: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows by key and, within one, in their order; and the keys there, -1 for null."""
    encoded = flatten(keys).dictionary_encode()
    codes = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    return order, codes[order]


def _earlier(
    order: np.ndarray, codes: np.ndarray, numbers: np.ndarray, lag: int, n_rows: int
) -> np.ndarray:
    """Return the place of each row's ``lag``-th row of its key before, -1 for none."""
    places = np.full(len(order), -1, np.int64)
    now, then = order[lag:], order[:-lag]
    is_one = (codes[lag:] == codes[:-lag]) & (codes[lag:] >= 0)
    is_one &= numbers[now] - numbers[then] <= n_rows
    places[now[is_one]] = then[is_one]
    return places


def _is_last(order: np.ndarray, codes: np.ndarray, n: int, n_rows: int) -> np.ndarray:
    """Return which rows are among the last n of their key."""
    is_last = np.zeros(n_rows, np.bool_)
    has_more = np.zeros(n_rows, np.bool_)
    has_more[:-n] = codes[n:] == codes[:-n]
    is_last[order[~has_more & (codes >= 0)]] = True
    return is_last


def lag_name(name: str, lag: int) -> str:
    """Return the column that has the lag of a column."""
    return f"lag_{lag}({name})"


def _difference_name(name: str, lag: int) -> str:
    return f"{name}-lag_{lag}({name})"


def _typed(table: pa.Table, typed_rows: pa.Table) -> pa.Table:
    """Return rows whose columns without a type have those of others."""
    for place, (field, wanted) in enumerate(zip(table.schema, typed_rows.schema, strict=True)):
        if pa.types.is_null(field.type) and not pa.types.is_null(wanted.type):
            nulls = pa.chunked_array([pa.nulls(len(table), wanted.type)])
            table = table.set_column(place, wanted, nulls)
    return table


def _cast_as(rows: pa.Table, before: pa.Table) -> pa.Table:
    """Return rows with the types of those before them, NaN as null where these are no floats.

    Raises
    ------
    SchemaError
        A column is of another kind, or has a value that the type does not have.
    """
    rows = _typed(rows, before)
    for place, (field, wanted) in enumerate(zip(rows.schema, before.schema, strict=True)):
        if field.type == wanted.type or pa.types.is_null(wanted.type):
            continue
        column, why = rows[place], ""
        if kind_of(field.type)[0] != kind_of(wanted.type)[0]:
            why = "another kind of values"
        elif pa.types.is_floating(field.type) and not pa.types.is_floating(wanted.type):
            column = pc.if_else(pc.is_nan(column), None, column)
        try:
            column = column if why else column.cast(wanted.type)
        except pa.ArrowException as error:
            why = str(error).splitlines()[0]
        if why:
            raise SchemaError(
                f"the {field.name}, of which lags are made, is {field.type}, and was "
                f"{wanted.type} in the rows before ({why}): cast it to that, in pandas such as "
                ".astype('Int64')"
            )
        rows = rows.set_column(place, wanted, column)
    return rows


def _with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    if name in table.column_names:
        raise SchemaError(f"rows have a column {name!r} already: rename it, or leave out its lag")
    return table.append_column(name, values)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def _difference(now: pa.ChunkedArray, then: pa.ChunkedArray) -> pa.Array:
    """Return differences of numbers as float64, null where one is null or NaN."""
    (values, null), (earlier, unknown) = as_numbers(now), as_numbers(then)
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are no errors here
        values = values - earlier
    masks = [mask for mask in (null, unknown) if mask is not None]
    return pa.array(values, mask=np.logical_or.reduce(masks) if masks else None)


def _named(name: str) -> str:
    """Return the name of a column beside key and number."""
    return f"column {name}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
