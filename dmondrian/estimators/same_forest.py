"""Estimators of the same forest: copies, and such that compare no names of columns."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from dmondrian.estimators.one_state import one_state

_LOOKED_AT = 256  # rows of a frame that a forest of a run is asked about
_OUTSIDE = 0.5  # beyond the range that a run scales a column to


def copy_of(estimator: Any) -> Any:
    """Return an estimator of the same forest, attributes and turns."""
    copy = type(estimator)(**estimator.get_params(deep=False))
    copy.__dict__.update(estimator.__dict__, _turns=estimator._turns)
    return copy


def without_names(estimator: Any) -> Any:
    """Return an estimator of the same forest that compares no names of columns."""
    with one_state(estimator):
        plain = copy_of(estimator)
    plain.__dict__.pop("feature_names_in_", None)
    return plain


def of_features(estimator: Any) -> Any:
    """Return an estimator of the same forest that takes features as trees see them, nameless."""
    plain = without_names(estimator)
    plain.__dict__.pop("_columns", None)
    plain._begun_with = {**plain._begun_with, "missing_values": "error"}
    plain.n_features_in_ = plain.forest_.parameters.n_features
    return plain


def comparing_names(estimator: Any, X: Any) -> Any:
    """Return the estimator with which scikit-learn checks ``X``.

    That of a run knows the names of the features that rows are encoded to, and arrays of encoded
    rows are what it is asked about: they have no names, which is nothing to warn of.
    """
    is_of_run = estimator.__dict__.get("_is_of_run", False)
    if is_of_run and hasattr(X, "columns"):
        _warn_of_raw(X)
        return estimator
    return without_names(estimator) if is_of_run else estimator


def _warn_of_raw(frame: Any) -> None:
    """Warn of a frame whose numbers are not from 0 to 1, as a run encodes most of a column's."""
    rows = np.asarray(frame[:_LOOKED_AT])
    if not len(rows) or rows.dtype.kind not in "iuf":
        return
    middle = np.nanmedian(rows, axis=0)
    if (raw := (middle < -_OUTSIDE) | (middle > 1.0 + _OUTSIDE)).any():
        name = list(frame.columns)[int(np.argmax(raw))]
        warnings.warn(
            "this forest is of a run, and takes rows as the run encodes them, each number from 0 "
            f"to 1: {name!r} has a median of {middle[np.argmax(raw)]:.6g}. "
            "dmondrian.frames.FrameModel(RUN) takes frames as they are in the files",
            stacklevel=5,
        )
