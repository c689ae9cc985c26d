"""Models that take data frames, and return frames of the same kind.

Relies on a stored model, and on its schema for the encoding of columns where it has one. Promises
that columns are found by name, whatever their order, that missing ones and those of other types
are refused by name, and that predictions are those of the estimator. pandas and polars are loaded
by the code that made the frames, never here.

Kinds of frames are distinguished here and not by narwhals: it refuses record batches, and frames
with a name twice among columns that the model does not read; it makes of an index a column; numbers
are read in a way of their own from each kind; and for one row its wrappers take several times as
long.

Shapes: n rows, d features, K classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa

from dmondrian import load
from dmondrian.checkpoint import Run
from dmondrian.data import Schema
from dmondrian.data.columns import check_types
from dmondrian.data.encode import encode_features
from dmondrian.data.frame_index import index_names
from dmondrian.data.number_block import NumberBlock
from dmondrian.ensemble.settings.loss_settings import quantile_names
from dmondrian.errors import DataError, ParameterError, SchemaError
from dmondrian.estimators.same_forest import of_features

_ARROW_NUMBERS = frozenset(
    type_.id
    for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
                  pa.uint32(), pa.uint64(), pa.float32(), pa.float64())
)  # fmt: skip
_POLARS_NUMBERS = frozenset(
    [*(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)), "Float32", "Float64"]
)
# Polars types whose values Python holds, whatever they are.
_POLARS_HELD = _POLARS_NUMBERS | {"String", "Utf8", "Boolean", "Null"}
FEW_ROWS = 16
"""Rows of a polars frame that are taken as Python numbers, which costs less than its columns."""

_METHODS = ("predict", "predict_proba", "decision_function", "score_samples")


class FrameModel:
    """A stored model that predicts data frames.

    Parameters
    ----------
    path : str or path
        Run folder or URL, or what ``save`` wrote; ``@position`` picks a checkpoint.

    Attributes
    ----------
    estimator : fitted estimator
    schema : Schema or None
        How columns are encoded; None for a model that was fitted on arrays, whose columns are
        those of the rows learned: by name if they had names, else all, in their order.

    Raises
    ------
    SchemaError
        The model is the forest of a run that was saved again, without how the run encodes columns.

    Examples
    --------
    >>> import pandas as pd
    >>> from sklearn.datasets import load_iris
    >>> from dmondrian import AMFClassifier
    >>> from dmondrian.frames import FrameModel
    >>> X, y = load_iris(return_X_y=True, as_frame=True)
    >>> AMFClassifier(random_state=0).fit(X, y).save("iris")  # doctest: +SKIP
    >>> FrameModel("iris").predict(X.iloc[:, ::-1])  # doctest: +SKIP
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        stored = Run.open(path).run_json.get("schema")
        self.schema = None if stored is None else Schema.from_json(stored)
        self.estimator = load(path)
        if self.schema is None and self.estimator.__dict__.get("_is_of_run", False):
            raise SchemaError(
                f"{path} is the forest of a run, saved without how the run encodes columns: "
                "expected the folder of that run. To have its calibrated intervals, calibrate "
                "FrameModel(RUN).estimator in the process that asks for them"
            )
        self._asked = of_features(self.estimator)  # columns were found by name before
        self._block: NumberBlock | None = None
        self._names: list[str] | None = None
        if self.schema is not None:
            self._block = NumberBlock(self.schema)
            self._names = [column.name for column in self.schema.columns]

    def predict(self, frame: Any) -> Any:
        """Return the estimator's predictions.

        Parameters
        ----------
        frame : pandas or polars DataFrame, or Arrow Table, of n rows
            Other columns than the model's are passed over.

        Returns
        -------
        Series or Arrow array "prediction" of n entries, with the frame's index if it has one
            A frame with a column ``q_<level>`` for each, where several quantiles are predicted.

        Raises
        ------
        SchemaError
            Columns are missing or of another type.
        DataError
            Values that the model cannot take.
        """
        names = answer_names(self.estimator.get_params(deep=False), None)
        return self._answer(frame, "predict", names)

    def predict_proba(self, frame: Any) -> Any:
        """Return class probabilities, as a frame with a column ``proba_<class>`` for each.

        Parameters
        ----------
        frame : as of :meth:`predict`
        """
        classes = getattr(self._asked, "classes_", ())
        return self._answer(frame, "predict_proba", answer_names({}, classes))

    def _answer(self, frame: Any, method: str, names: list[str]) -> Any:
        if not hasattr(self.estimator, method):
            raise ParameterError(
                f"{type(self.estimator).__name__} has no {method} here: it has "
                f"{[name for name in _METHODS if hasattr(self.estimator, name)]}"
            )
        answers = self.answer_rows(self.features(frame), method)
        columns = answers[:, None] if answers.ndim == 1 else answers
        return _like(frame, {name: columns[:, k] for k, name in enumerate(names)})

    def answer_rows(self, X: np.ndarray, method: str) -> np.ndarray:
        """Return ``predict`` or ``predict_proba`` of the estimator for encoded rows.

        Parameters
        ----------
        X : array of shape (n, d)
        method : {"predict", "predict_proba"}
        """
        if len(X):
            return np.asarray(getattr(self._asked, method)(X))
        classes = getattr(self._asked, "classes_", None)
        named = classes if method == "predict_proba" else None
        names = answer_names(self.estimator.get_params(deep=False), named)
        columns = empty_answers(classes, names)
        return columns[names[0]] if names == ["prediction"] else np.empty((0, len(names)))

    def features(self, frame: Any) -> np.ndarray:
        """Return the rows as the forest takes them, float32 [n, d].

        Parameters
        ----------
        frame : as of :meth:`predict`
        """
        frame, kind, there, at = self._found(frame)
        if self.schema is None and self.estimator._encodes_rows():
            return self._own_features(frame, kind, there, at)
        if self.schema is None or self._block is None:
            return _plain_features(frame, kind, at)
        return _encode(self.schema, self._block, frame, kind, at)

    def numbers(self, frame: Any) -> np.ndarray:
        """Return the rows of columns that are numbers, as they are, float32 [n, d].

        Missing values are NaN. The estimator of a model that was fitted on arrays learns them.

        Parameters
        ----------
        frame : as of :meth:`predict`
        """
        frame, kind, _, at = self._found(frame)
        return _plain_features(frame, kind, at)

    def _found(self, frame: Any) -> tuple[Any, str, list[str], np.ndarray]:
        """Return a frame, its kind, its columns, and where those of the model are among them."""
        kind = _kind(frame)
        if isinstance(frame, pa.RecordBatch):
            frame = pa.Table.from_batches([frame])
        present = _names(frame, kind)
        names = self._wanted(frame, present)
        places = dict(zip(present, range(len(present)), strict=True))
        if kind == "pandas" and (levels := _levels(frame, set(names).difference(places))):
            frame = frame.reset_index(level=levels)
            present = _names(frame, kind)
            places = dict(zip(present, range(len(present)), strict=True))
        if len(places) < len(present):
            _refuse_repeated(names, present)
        missing = [name for name in names if name not in places]
        if missing and self.schema is None:
            raise SchemaError(
                f"the frame lacks the columns {missing[:8]}: expected the {len(names)} that the "
                "forest was fitted on, by name; rename or add them"
            )
        if missing and self.schema is not None:
            _check(self.schema, frame, kind, [name for name in names if name in places], places)
        at = np.array([places[name] for name in names], dtype=np.int64)
        return frame, kind, present, at

    def _own_features(
        self, frame: Any, kind: str, present: list[str], at: np.ndarray
    ) -> np.ndarray:
        """Return rows as an estimator encodes them that was fitted on rows with such columns."""
        if "_columns" not in self.estimator.__dict__:
            return self.estimator._features(_plain_features(frame, kind, at))
        if kind == "pyarrow":
            frame, kind = frame.select([present[place] for place in at]).to_pandas(), "pandas"
            at = np.arange(len(at))
        names = self.estimator.feature_names_in_.tolist()
        part = frame.iloc[:, at] if kind == "pandas" else frame.select([present[i] for i in at])
        part = part.set_axis(names, axis=1) if kind == "pandas" else part
        features: np.ndarray = self.estimator._check_rows(part)
        return features

    def _wanted(self, frame: Any, present: list[str]) -> list[str]:
        """Return the model's columns; for a model without names all, or all but an index."""
        if self._names is not None:
            return self._names
        names = getattr(self.estimator, "feature_names_in_", None)
        if names is not None:
            return [str(name) for name in names]
        if len(present) != self.estimator.n_features_in_:
            metadata = getattr(getattr(frame, "schema", None), "metadata", None)
            index = index_names(present, metadata)
            present = [name for name in present if name not in index]
        if len(present) != self.estimator.n_features_in_:
            raise SchemaError(
                f"the frame has {len(present)} columns; expected the "
                f"{self.estimator.n_features_in_} that the forest was fitted on, in their order: "
                "it knows no names"
            )
        return present


def answer_names(params: Mapping[str, Any], classes: Any) -> list[str]:
    """Return the names of predicted columns: one a class, one a quantile, or "prediction"."""
    if classes is not None:
        return [f"proba_{label}" for label in classes]
    levels = params.get("quantile") if params.get("loss") == "quantile" else None
    if levels is None or np.ndim(levels) == 0:
        return ["prediction"]
    return quantile_names(np.ravel(levels))


def empty_answers(classes: Any, names: list[str]) -> dict[str, np.ndarray]:
    """Return the columns of predictions for no rows."""
    is_label = names == ["prediction"] and classes is not None
    none = np.asarray(classes)[:0] if is_label else np.empty(0)
    return dict.fromkeys(names, none)


def _kind(frame: Any) -> str:
    kind = type(frame).__module__.partition(".")[0]
    if type(frame).__name__ == "LazyFrame":
        raise ParameterError("a LazyFrame is not computed yet: call collect() first")
    if kind not in ("pandas", "polars", "pyarrow") or not hasattr(type(frame), "columns"):
        raise ParameterError(
            f"expected a pandas or polars DataFrame or an Arrow Table, got {type(frame).__name__}"
        )
    return kind


def _names(frame: Any, kind: str) -> list[str]:
    if kind == "pandas":
        return [str(name) for name in frame.columns.tolist()]
    # The schema of an Arrow table lists its names at once, and the table one by one.
    return list(frame.schema.names if kind == "pyarrow" else frame.columns)


def _levels(frame: Any, missing: Collection[str]) -> list[Any]:
    """Return the levels of a pandas frame's index that have the names of missing columns."""
    named = [name for name in frame.index.names if name is not None and str(name) in missing]
    return named if len(set(named)) == len(named) else []


def _check(schema: Schema, frame: Any, kind: str, names: list[str], there: Iterable[str]) -> None:
    """Refuse a frame that lacks columns, or has them in other types."""
    table = _known_table(frame, kind, names)
    types = {**dict.fromkeys(there, pa.null()),
             **dict(zip(names, table.schema.types, strict=True))}  # fmt: skip
    check_types(schema.without_target(), types, "the frame")


def _encode(
    schema: Schema, block: NumberBlock, frame: Any, kind: str, at: np.ndarray
) -> np.ndarray:
    """Encode columns at these places of a frame: plain numbers at once, others one by one."""
    columns = schema.columns
    X = np.zeros((len(frame), int(block.starts[-1])), dtype=np.float32)
    alone = np.ones(len(columns), dtype=np.bool_)
    for part, values in _numbers(frame, kind, at[block.columns]):
        is_finite = ~np.isinf(values).any(axis=0)
        if not is_finite.all():  # the others are refused or clipped
            part, values = part[is_finite], values[:, is_finite]
        block.encode(part, values, X, {})
        alone[block.columns[part]] = False
    numbers = np.flatnonzero(alone)
    if not len(numbers):
        return X
    rest = replace(schema.without_target(), columns=tuple(columns[i] for i in numbers))
    names = [column.name for column in rest.columns]
    table = _known_table(frame, kind, names)
    check_types(rest, dict(zip(names, table.schema.types, strict=True)), "the frame")
    arrays = dict(zip(names, table.columns, strict=True))
    try:
        encoded = encode_features(rest, arrays, table.num_rows, {}, "row {}".format)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"the frame cannot be converted: {str(error)[:400]}") from error
    starts = block.starts
    X[:, np.concatenate([np.arange(starts[i], starts[i + 1]) for i in numbers])] = encoded
    return X


def _refuse_repeated(names: list[str], there: list[str]) -> None:
    """Refuse columns of the model that a frame has more than once."""
    times = Counter(there)
    if repeated := sorted({name for name in names if times[name] > 1}):
        raise SchemaError(
            f"the frame has several columns of the names {repeated[:8]}: expected one of each; "
            "drop or rename the others"
        )


def _numbers(frame: Any, kind: str, at: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the columns among those at these places that are plain numbers, by their type.

    Yields
    ------
    part : ndarray of int64
        Which of the places; types that are no plain numbers are in none.
    values : ndarray of float64, shape (n, len(part))
        NaN where a value is missing.
    """
    types = _types(frame, kind)
    by_type: dict[Any, list[int]] = {}
    for number, place in enumerate(at.tolist()):
        by_type.setdefault(types[place], []).append(number)
    for type_, numbers in by_type.items():
        if _is_plain(type_, kind):
            part = np.array(numbers, dtype=np.int64)
            yield part, _array(frame, kind, types, at[part], np.float64)


def _types(frame: Any, kind: str) -> list[Any]:
    """Return a type for each column: columns of equal types are read together."""
    if kind == "pyarrow":
        return [type_.id for type_ in frame.schema.types]
    if kind == "polars":  # their instances take long to compare, and plain ones have no parameters
        return [type_ if isinstance(type_, type) else type(type_) for type_ in frame.dtypes]
    return list(frame.dtypes)


def _is_plain(type_: Any, kind: str) -> bool:
    """Whether columns of a type become an array at once, without a check of each column."""
    if kind == "pandas":
        return isinstance(type_, np.dtype) and type_.kind in "iuf" and type_.itemsize <= 8
    if kind == "polars":
        return type_.__name__ in _POLARS_NUMBERS
    return type_ in _ARROW_NUMBERS


def _array(frame: Any, kind: str, types: list[Any], at: np.ndarray, dtype: Any) -> np.ndarray:
    """Return columns of one plain type, at these places of a frame, as an array [n, len(at)]."""
    if kind == "pandas":
        return frame.iloc[:, at].to_numpy().astype(dtype, copy=False)
    if kind == "polars":
        if _are_taken_by_rows(frame, types, types[at[0]], dtype):
            places = at.tolist()
            rows = [[row[place] for place in places] for row in frame.rows()]
            return np.array(rows, dtype=dtype).reshape(len(frame), len(at))
        columns = frame.get_columns()
        chosen = columns if len(at) == len(columns) else [columns[place] for place in at.tolist()]
        return type(frame)(chosen).to_numpy().astype(dtype, copy=False)
    batches = frame.select(at.tolist()).to_batches()
    arrays = [batch.to_tensor(null_to_nan=True).to_numpy() for batch in batches]
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.empty((0, len(at)))


def _are_taken_by_rows(frame: Any, types: list[Any], type_: Any, dtype: Any) -> bool:
    """Whether columns of a type have the same values as Python numbers, which are faster here."""
    is_exact = dtype == np.float64 or type_.__name__ not in ("Int64", "UInt64")
    are_few = len(frame) <= FEW_ROWS
    return (
        is_exact
        and are_few
        and all(column_type.__name__ in _POLARS_HELD for column_type in set(types))
    )


def _known_table(frame: Any, kind: str, names: list[str]) -> pa.Table:
    """Return columns of a frame; pandas has no type for those where every value is missing."""
    table = _table(frame, kind, names)
    if kind != "pandas" or not len(table):
        return table
    arrays = [
        pa.nulls(len(table)) if column.null_count == len(table) else column
        for column in table.columns
    ]
    return pa.Table.from_arrays(arrays, names=names)


def _table(frame: Any, kind: str, names: list[str]) -> pa.Table:
    """Return columns of a frame, in the order of the names, all of which it has."""
    if kind == "pandas":
        names_in_frame = {str(name): name for name in frame.columns}
        part = frame[[names_in_frame[name] for name in names]]
        try:
            return pa.Table.from_pandas(part, preserve_index=False).rename_columns(names)
        except pa.ArrowException as error:  # it names the column
            words = ", ".join(str(part) for part in error.args)
            raise SchemaError(
                "the frame has a column that is not of numbers, texts, times or truth values: "
                f"{words}"
            ) from error
    return frame.select(names).to_arrow() if kind == "polars" else frame.select(names)


def _is_number(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    known = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_decimal,
        pa.types.is_null,
    )
    return any(is_known(kind) for is_known in known)


def _plain_features(frame: Any, kind: str, at: np.ndarray) -> np.ndarray:
    """Return the columns at these places of a frame, as they are, float32 [n, len(at)].

    What is beyond float32 is infinite, which the forest refuses in words.
    """
    types = _types(frame, kind)
    types_there = {types[place] for place in at.tolist()}
    if len(types_there) == 1 and _is_plain(types_there.pop(), kind):
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(_array(frame, kind, types, at, np.float32))
    names = _names(frame, kind)
    table = _table(frame, kind, [names[place] for place in at])
    not_numbers = [
        f"{part.name!r} ({part.type})" for part in table.schema if not _is_number(part.type)
    ]
    if not_numbers:
        raise SchemaError(
            f"the forest was fitted on numbers, and the frame has something else in "
            f"{', '.join(not_numbers[:5])}: encode them as then"
        )
    columns = [column.to_numpy() for column in table.columns]
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(np.stack(columns, axis=1), np.float32)


def _like(frame: Any, columns: dict[str, np.ndarray]) -> Any:
    """Return columns as a frame of the same kind, or the one column as a series."""
    kind, names = _kind(frame), list(columns)
    if kind == "pandas":
        import pandas as pd

        made = pd.DataFrame(columns, index=frame.index)
        return made[names[0]] if names == ["prediction"] else made
    if kind == "polars":
        import polars as pl

        made = pl.DataFrame({name: _flat(values) for name, values in columns.items()})
        return made[names[0]] if names == ["prediction"] else made
    made = pa.table({name: pa.array(_flat(values)) for name, values in columns.items()})
    return made[names[0]] if names == ["prediction"] else made


def _flat(values: np.ndarray) -> Any:
    if values.dtype.kind == "U":
        return pa.array(values.tolist(), pa.string())  # of no rows too
    return np.ascontiguousarray(values)
