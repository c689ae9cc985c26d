"""Models that take data frames, and answer in frames of the same kind.

Relies on a stored model, and on its schema for the encoding of columns where it has one. Promises
that columns are found by name, whatever their order, that missing ones and those of other types
are refused by name, and that the answers are those of the estimator. pandas and polars are loaded
by whoever made the frames, never here.

Shapes: n rows, d features, K classes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa

from dmondrian import load
from dmondrian.checkpoint import Run
from dmondrian.cost import quantile_names
from dmondrian.data import Schema
from dmondrian.data.columns import check_types
from dmondrian.data.encode import encode_features
from dmondrian.data.frame_index import index_names
from dmondrian.errors import DataError, ParameterError, SchemaError
from dmondrian.estimators.plain import without_names

_METHODS = ("predict", "predict_proba", "decision_function", "score_samples")


class FrameModel:
    """A stored model, asked with data frames.

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
        self._asked = without_names(self.estimator)  # columns were found by name before

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
        classes = getattr(self.estimator, "classes_", ())
        return self._answer(frame, "predict_proba", answer_names({}, classes))

    def _answer(self, frame: Any, method: str, names: list[str]) -> Any:
        if not hasattr(self.estimator, method):
            raise ParameterError(
                f"{type(self.estimator).__name__} has no {method} here: it has "
                f"{[name for name in _METHODS if hasattr(self.estimator, name)]}"
            )
        told = self.answer_rows(self.features(frame), method)
        columns = told[:, None] if told.ndim == 1 else told
        return _like(frame, {name: columns[:, k] for k, name in enumerate(names)})

    def answer_rows(self, X: np.ndarray, method: str) -> np.ndarray:
        """Return what ``predict`` or ``predict_proba`` of the estimator say of encoded rows.

        Parameters
        ----------
        X : array of shape (n, d)
        method : {"predict", "predict_proba"}
        """
        if len(X):
            return np.asarray(getattr(self._asked, method)(X))
        classes = getattr(self.estimator, "classes_", None)
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
        kind = _kind(frame)
        there = _names(frame, kind)
        metadata = frame.schema.metadata if kind == "pyarrow" else None
        names = self._wanted(there, index_names(there, metadata))
        if kind == "pandas" and (levels := _levels(frame, set(names).difference(there))):
            frame = frame.reset_index(level=levels)
            there = _names(frame, kind)
        missing = [name for name in names if name not in there]
        if missing and self.schema is None:
            raise SchemaError(
                f"the frame lacks the columns {missing[:8]}: expected the {len(names)} that the "
                "forest was fitted on, by name; rename or add them"
            )
        if repeated := sorted({name for name in names if there.count(name) > 1}):
            raise SchemaError(
                f"the frame has several columns of the names {repeated[:8]}: expected one of each; "
                "drop or rename the others"
            )
        table = _table(frame, kind, [name for name in names if name in there])
        if self.schema is None:
            return _plain_features(table)
        types = {**{name: pa.null() for name in there if name not in names},
                 **{part.name: part.type for part in table.schema}}  # fmt: skip
        check_types(self.schema.without_target(), types, "the frame")
        columns = dict(zip(table.column_names, table.columns, strict=True))
        try:
            return encode_features(self.schema, columns, table.num_rows, {}, "row {}".format)
        except (pa.ArrowException, ValueError, OverflowError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"the frame cannot be converted: {str(error)[:400]}") from error

    def _wanted(self, there: list[str], index: Collection[str]) -> list[str]:
        """Return the model's columns; of a model without names all, or all but an index."""
        if self.schema is not None:
            return [column.name for column in self.schema.columns]
        names = getattr(self.estimator, "feature_names_in_", None)
        if names is not None:
            return [str(name) for name in names]
        if len(there) != self.estimator.n_features_in_:
            there = [name for name in there if name not in index]
        if len(there) != self.estimator.n_features_in_:
            raise SchemaError(
                f"the frame has {len(there)} columns; expected the "
                f"{self.estimator.n_features_in_} that the forest was fitted on, in their order: "
                "it knows no names"
            )
        return there


def answer_names(params: Mapping[str, Any], classes: Any) -> list[str]:
    """Return the columns of an answer: probabilities of the classes, quantiles, or "prediction"."""
    if classes is not None:
        return [f"proba_{label}" for label in classes]
    levels = params.get("quantile") if params.get("loss") == "quantile" else None
    if levels is None or np.ndim(levels) == 0:
        return ["prediction"]
    return quantile_names(np.ravel(levels))


def empty_answers(classes: Any, names: list[str]) -> dict[str, np.ndarray]:
    """Return the columns of an answer to no rows."""
    is_label = names == ["prediction"] and classes is not None
    none = np.asarray(classes)[:0] if is_label else np.empty(0)
    return dict.fromkeys(names, none)


def _kind(frame: Any) -> str:
    kind = type(frame).__module__.partition(".")[0]
    if type(frame).__name__ == "LazyFrame":
        raise ParameterError("a LazyFrame is not computed yet: call collect() first")
    if kind not in ("pandas", "polars", "pyarrow") or not hasattr(frame, "columns"):
        raise ParameterError(
            f"expected a pandas or polars DataFrame or an Arrow Table, got {type(frame).__name__}"
        )
    return kind


def _names(frame: Any, kind: str) -> list[str]:
    return [str(name) for name in (frame.column_names if kind == "pyarrow" else frame.columns)]


def _levels(frame: Any, missing: Collection[str]) -> list[Any]:
    """Return the levels of a pandas frame's index that have the names of missing columns."""
    named = [name for name in frame.index.names if name is not None and str(name) in missing]
    return named if len(set(named)) == len(named) else []


def _table(frame: Any, kind: str, names: list[str]) -> pa.Table:
    """Return columns of a frame, in the order of the names, which are there."""
    if kind == "pandas":
        own = {str(name): name for name in frame.columns}
        part = frame[[own[name] for name in names]]
        try:
            return pa.Table.from_pandas(part, preserve_index=False).rename_columns(names)
        except pa.ArrowException as error:  # it names the column
            words = ", ".join(str(told) for told in error.args)
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


def _plain_features(table: pa.Table) -> np.ndarray:
    others = [f"{part.name!r} ({part.type})" for part in table.schema if not _is_number(part.type)]
    if others:
        raise SchemaError(
            f"the forest was fitted on numbers, and the frame has something else in "
            f"{', '.join(others[:5])}: encode them as then"
        )
    columns = [column.to_numpy() for column in table.columns]
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
