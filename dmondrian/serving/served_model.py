"""A model that a server holds in memory: the columns that it takes, its answers, its position.

Relies on :class:`dmondrian.frames.FrameModel` for rows. Promises the columns and values of scores,
and the estimator's own predictions to the last bit, however rows are put together.

Shapes: n rows, d features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dmondrian.checkpoint import Run, look_at_model
from dmondrian.data.score_columns import (
    Summing,
    detail_names,
    has_label_std,
    score_arrays,
    score_names,
    summing,
)
from dmondrian.errors import ParameterError
from dmondrian.estimators.plain_rows import plain_rows
from dmondrian.estimators.same_forest import of_features
from dmondrian.frames import FrameModel
from dmondrian.serving.request_rows import ColumnReader
from dmondrian.uncertainty.temperature_scaling import calibrates_std


@dataclass(frozen=True)
class Address:
    """Where a checkpoint is, and what its bytes are.

    Attributes
    ----------
    url : str
        Of the run or model, without a position.
    position : int
        Weight it had learned: number of rows, unless a saved estimator's rows had weights.
    digests : tuple of str
        Of the blobs of its trees.
    is_saved_estimator : bool
        Whether ``save`` of an estimator wrote it, not a training.
    """

    url: str
    position: int
    digests: tuple[str, ...]
    is_saved_estimator: bool

    @classmethod
    def find(cls, model: str) -> Address:
        """Return the checkpoint that an address names now.

        Raises
        ------
        CheckpointError
            There is none.
        """
        blobs, about, manifest = look_at_model(model)
        digests = tuple(blob.digest for blob in blobs)
        return cls(Run.open(model).url, manifest.position, digests, about.get("schema") is None)


class ServedModel:
    """A model in memory.

    Parameters
    ----------
    address : Address

    Attributes
    ----------
    address : Address
        Where it was read from.
    frames : FrameModel
    estimator : fitted estimator
        Of `frames`; others may have it learn, and call `learned` then.
    position : int
        Weight learned, as in `Address`.
    classes : list or None
    reader : ColumnReader
        Of rows of requests.
    names : tuple of str or None
        Columns that rows need; None for a model that knows no names.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.frames = FrameModel(f"{address.url}@{address.position}")
        self.estimator = self.frames.estimator
        if not hasattr(self.estimator, "predict") and not hasattr(self.estimator, "score_samples"):
            raise ParameterError(
                f"{type(self.estimator).__name__} forecasts nothing: serve a classifier, a "
                "regressor or a density"
            )
        schema = self.frames.schema
        self.reader = ColumnReader(schema)
        known = getattr(self.estimator, "feature_names_in_", None)
        self.names: tuple[str, ...] | None = None if known is None else tuple(map(str, known))
        if schema is not None:
            self.names = tuple(column.name for column in schema.columns)
        classes = getattr(self.estimator, "classes_", None) if schema is None else schema.classes
        self.classes: list[Any] | None = None
        if classes is not None:
            self.classes = classes.tolist() if hasattr(classes, "tolist") else list(classes)
        self.position = address.position
        self._forest: Any = None
        self.learned()

    @property
    def n_columns(self) -> int:
        """Number of columns that rows need."""
        return int(self.estimator.n_features_in_) if self.names is None else len(self.names)

    @property
    def takes_numbers(self) -> bool:
        """Whether trees see the columns as they are: all of them numbers, none of them missing."""
        return self.frames.schema is None and not self.estimator._encodes_rows()

    @property
    def takes_nulls(self) -> bool:
        """Whether rows of a model without a schema may have missing values."""
        return bool(self.estimator._encodes_missing())

    @property
    def parameters(self) -> Any:
        """The forest's parameters."""
        return self.estimator.forest_.parameters

    def learned(self) -> None:
        """Take what the estimator has learned meanwhile into account."""
        forest = self.estimator.forest_
        parameters = forest.parameters
        if forest is not self._forest:
            n_draws = None
            if parameters.is_density:
                n_draws = self.estimator.get_params(deep=False)["n_draws"]
            # The estimator of features, which takes encoded rows.
            self._forest, self._of_features = forest, of_features(self.estimator)
            self._summing: Summing = summing(forest, n_draws)
        self._guard = forest.caught_up().guard if parameters.follows_stream else None
        self._calibration = forest.calibration
        is_of_label = has_label_std(parameters, self._calibration, self._guard)
        self._details = detail_names(parameters, is_of_label)

    def score_names(self, details: bool) -> list[str]:
        """Return the names of the columns of answers."""
        return score_names(self.classes, self.parameters, self._details if details else ())

    def rows(self, table: pa.Table) -> np.ndarray:
        """Return rows as the forest takes them, float32 [n, d].

        Raises
        ------
        SchemaError, DataError, ParameterError
            As :meth:`dmondrian.frames.FrameModel.predict` does.
        """
        return self.checked(self.frames.features(table))

    def checked(self, X: np.ndarray) -> np.ndarray:
        """Return encoded rows, float32 [n, d], if they are finite and within the domain."""
        rows = plain_rows(self._of_features, X)
        features: np.ndarray = (
            self._of_features._check_rows(X) if rows is None else self._of_features._features(X)
        )
        return features

    def answer(self, X: np.ndarray, details: bool) -> dict[str, pa.Array]:
        """Return the columns of scores of rows, as `dmondrian score` writes them.

        Parameters
        ----------
        X : float32 array of shape (n, d)
            As :meth:`rows` returns them; n is at least 1.
        details : bool
            Whether to say how sure the forest is.
        """
        calibration, columns = self._calibration, self._details if details else ()
        sums = self._summing.predict_sums(
            X,
            spread=bool(columns),
            distance=bool(columns),
            onto=None,
            labels=bool(columns) and calibrates_std(calibration),
        )
        arrays = score_arrays(sums, self.classes, calibration, self.parameters, self._guard)
        columns_by_name = dict(zip(self.score_names(details), arrays, strict=True))
        if self.parameters.has_decision and self.address.is_saved_estimator:
            # The estimator finds both shares from z, scores the first as 1 minus the second.
            shares = (
                self._of_features.predict_proba(X)
                if hasattr(self._of_features, "predict_proba")
                else ()
            )
            for label, share in zip(self.classes or (), np.transpose(shares), strict=False):
                columns_by_name[f"proba_{label}"] = pa.array(np.ascontiguousarray(share))
        return columns_by_name

    def describe(self) -> Mapping[str, Any]:
        """Return what the model is, as JSON values."""
        return {
            "model": self.address.url,
            "algorithm": self.estimator.algorithm,
            "position": self.position,
            "columns": self.n_columns if self.names is None else list(self.names),
            "classes": self.classes,
        }
