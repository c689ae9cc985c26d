"""Lazy predictions of Dask collections.

Relies on a stored model that every worker can read. Promises that a graph contains only the model's
address and digests; that a process reads the model once, however many partitions it predicts; that
a model which changed since the call is refused; and the bytes of the estimator's own predictions.

A worker holds the whole model: use :func:`dmondrian.distributed.score` for larger ones, and to
write Parquet.

Shapes: n rows, d features, K classes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmondrian.checkpoint import Run, look_at_model, peek_blobs
from dmondrian.data.single_flight_cache import SingleFlightCache
from dmondrian.distributed.scoring.model_info import READ_SECONDS
from dmondrian.errors import FencedError, ParameterError

_models: SingleFlightCache[Any] = SingleFlightCache(1, seconds=READ_SECONDS)


def predict(model_url: str | os.PathLike[str], data: Any) -> Any:
    """Predict a Dask collection, lazily.

    Parameters
    ----------
    model_url : str or path
        Run folder or URL, or what ``save`` wrote, that every worker can read; ``@position`` picks a
        checkpoint, by default the newest one at the time of the call.
    data : Dask DataFrame, or Dask Array of shape (n, d)
        A frame with the model's columns by name (of a run those of its training data, encoded as
        they were), or an array of the features that the forest learned.

    Returns
    -------
    Dask Series or Array of n entries
        Partitioned as the data. A frame or an array [n, q] if several quantiles are predicted.

    Raises
    ------
    ParameterError
        The data are no Dask collection, or have another number of columns.
    SchemaError
        Columns are missing (at the call), or of another type (when it is computed).
    CheckpointError
        There is no model, or (when it is computed) it has changed since the call.
    """
    return _predict_lazily(model_url, data, "predict")


def predict_proba(model_url: str | os.PathLike[str], data: Any) -> Any:
    """Predict class probabilities of a Dask collection, lazily.

    Parameters
    ----------
    model_url, data
        As of :func:`predict`.

    Returns
    -------
    Dask DataFrame with a column ``proba_<class>`` for each, or Dask Array of shape (n, K)

    Raises
    ------
    ParameterError
        As of :func:`predict`, or the model has no probabilities.
    """
    return _predict_lazily(model_url, data, "predict_proba")


@dataclass(frozen=True)
class ModelAddress:
    """URL and digests of a model."""

    url: str  # with @position
    digests: tuple[str, ...]  # of the blobs of its trees


def _predict_lazily(model_url: Any, data: Any, method: str) -> Any:
    if not isinstance(model_url, (str, os.PathLike)):
        raise ParameterError(
            f"expected the folder or URL of a model, got {type(model_url).__name__}: a graph holds "
            "no forest; save it first, where every worker can read it"
        )
    blobs, about, manifest = look_at_model(model_url)
    address = ModelAddress(
        f"{Run.open(model_url).url}@{manifest.position}", tuple(blob.digest for blob in blobs)
    )
    if about["algorithm"] == "mondrian-density":
        raise ParameterError(
            "a density predicts nothing: dmondrian.distributed.score writes its log"
        )
    if about["estimator"].get("missing_values") == "encode" or about.get("categories"):
        raise ParameterError(
            'a model with categories or missing_values="encode" encodes the rows itself: '
            "load it, and call its predict on the parts of the data, as map_partitions does"
        )
    classes = about.get("classes")
    if method == "predict_proba" and (classes is None or about["estimator"].get("loss") == "hinge"):
        raise ParameterError(f"{about['algorithm']} has no probabilities here: use predict")
    if classes is not None:
        classes = np.array(classes, about.get("label_dtype"))
    from dmondrian.frames import answer_names, empty_answers

    names = answer_names(about["estimator"], classes if method == "predict_proba" else None)
    empty = empty_answers(classes, names)
    if hasattr(data, "map_partitions") and hasattr(data, "columns"):
        return _frame(data, address, method, about, empty)
    if hasattr(data, "map_blocks") and getattr(data, "ndim", None) == 2:
        width = peek_blobs(blobs[:1])[0].parameters["n_features"]
        return _array(data, address, method, width, empty)
    raise ParameterError(
        f"data is {type(data).__name__}; expected a Dask DataFrame or a two-dimensional Dask "
        "Array: dmondrian.frames.FrameModel answers frames in memory, and "
        "dmondrian.distributed.score files"
    )


def _frame(data: Any, address: ModelAddress, method: str, about: dict[str, Any], empty: Any) -> Any:
    import pandas as pd

    schema, known = about.get("schema"), about.get("feature_names")
    wanted = known if schema is None else [column["name"] for column in schema["columns"]]
    if wanted is not None:
        there = {str(name) for name in (*data.columns, *data._meta.index.names)}
        missing = [name for name in wanted if name not in there]
        if missing:
            from dmondrian.errors import SchemaError

            raise SchemaError(
                f"the data lack the columns {missing[:8]}: expected the {len(wanted)} of the model "
                "by name; rename or add them"
            )
    meta: Any = pd.DataFrame(empty, index=data._meta.index)
    if list(empty) == ["prediction"]:
        meta = meta["prediction"]
    return data.map_partitions(predict_frame, address, method, meta=meta, token=_name(method))


def _array(data: Any, address: ModelAddress, method: str, width: int, empty: Any) -> Any:
    if data.shape[1] != width:
        raise ParameterError(f"the data have {data.shape[1]} columns, the model {width} features")
    rows = data.rechunk({1: -1})
    kind = next(iter(empty.values())).dtype
    shape: dict[str, Any] = {"drop_axis": 1}
    if list(empty) != ["prediction"]:
        shape = {"chunks": (rows.chunks[0], (len(empty),))}
    return rows.map_blocks(
        predict_array,
        address,
        method,
        token=_name(method),
        dtype=kind,
        meta=np.empty((0,) * (1 + len(shape)), kind),
        **shape,
    )


def _name(method: str) -> str:
    """Return the name of the tasks in the dashboard."""
    return f"dmondrian-{method.replace('_', '-')}"


def predict_frame(part: Any, address: ModelAddress, method: str) -> Any:
    """Task: predict one partition of a frame."""
    return getattr(_model(address), method)(part)


def predict_array(rows: np.ndarray, address: ModelAddress, method: str) -> np.ndarray:
    """Task: predict one block of an array."""
    return _model(address).answer_rows(rows, method)


def _model(address: ModelAddress) -> Any:
    """Return the model of an address, read once in a process."""

    def read() -> Any:
        from dmondrian.frames import FrameModel

        blobs, _, _ = look_at_model(address.url)
        if tuple(blob.digest for blob in blobs) != address.digests:
            raise FencedError(
                f"{address.url} is another model now than when the prediction was asked for: ask "
                "again"
            )
        return FrameModel(address.url)

    return _models.get(address, read)
