"""Saving of fitted estimators as checkpoints.

Relies on :mod:`dmondrian.checkpoint` for the bytes. Promises that a loaded estimator predicts, and
continues learning, exactly as the saved one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np

from dmondrian.checkpoint import save_model
from dmondrian.ensemble.settings.lifetime import PowerLifetime
from dmondrian.errors import ParameterError
from dmondrian.estimators.feature_scales import is_per_column, numbers_per_column
from dmondrian.estimators.monotone_columns import plain_constraints
from dmondrian.forest.state import encode_float
from dmondrian.uncertainty.temperature_scaling import AUTO

LABEL_KINDS = {"b": bool, "i": int, "u": int, "f": float, "U": str, "O": str}
# Defaults that are not written, as forests have none that were saved before there was one.
_LATER = {
    "class_weight": None, "missing_values": "error", "categorical_features": None,
    "monotonic_cst": None,
}  # fmt: skip
# Parameters that never change; the settings in use are stored with the trees.
_LASTING = ("algorithm", "n_features", "n_classes", "seed")


def save_estimator(estimator: Any, path: str | PathLike[str]) -> None:
    """Write a fitted estimator as a checkpoint (see ``save`` of the estimators)."""
    forest = estimator.forest_
    names = getattr(estimator, "feature_names_in_", None)
    classes = getattr(estimator, "classes_", None)
    model = {
        "algorithm": estimator.algorithm,
        "parameters": {key: getattr(forest.parameters, key) for key in _LASTING},
        "estimator": plain_params(estimator),
        "schema": None,
        "classes": None if classes is None else _label_list(classes),
        "label_dtype": None if classes is None else classes.dtype.str,
        "feature_names": None if names is None else _feature_names(estimator, names),
        "n_seen": int(forest.total_weight + forest.waiting_weight),
    }
    if estimator.__dict__.get("_is_of_run", False):
        model["takes_encoded_rows"] = True
    if (columns := estimator.__dict__.get("_columns")) is not None:
        model["categories"] = [
            None if column is None else [column.name, column.type, list(column.levels)]
            for column in columns
        ]
    if (units := estimator.__dict__.get("_time_units")) is not None:
        model["time_units"] = list(units)
    if hasattr(estimator, "interval_scores_"):
        model["interval_scores"] = [encode_float(score) for score in estimator.interval_scores_]
        model["interval_coverage"] = getattr(estimator, "interval_coverage_", None)
    if hasattr(estimator, "_held_out_path"):
        path_ = estimator._held_out_path
        model["lifetime_path"] = [
            [encode_float(x) for x in column] for column in (path_.lifetimes, path_.risks[0])
        ]
    save_model(path, forest, model)


def _feature_names(estimator: Any, names: Any) -> list[str]:
    """Return the names of features as trees see them, as a run has them."""
    plain = [str(name) for name in names]
    if not estimator._encodes_rows():
        return plain
    from dmondrian.estimators.frame_columns import names_of_features  # loads what plans are made of

    columns = estimator.__dict__.get("_columns") or (None,) * len(plain)
    return [*names_of_features(plain, columns, estimator._encodes_missing())]


def plain_params(estimator: Any) -> dict[str, Any]:
    """Return an estimator's parameters as values that JSON can hold."""
    params = estimator.get_params(deep=False)
    if not isinstance(params["random_state"], (int, np.integer, type(None))):
        params["random_state"] = None  # a generator has no JSON; the forest keeps its seed
    if not isinstance(params.get("feature_scales"), (str, type(None))):
        scales = numbers_per_column(params["feature_scales"], "feature_scales")
        params["feature_scales"] = scales.tolist()
    if not isinstance(params.get("categorical_features"), (str, type(None))):
        params["categorical_features"] = np.asarray(params["categorical_features"]).tolist()
    if params.get("monotonic_cst") is not None:
        params["monotonic_cst"] = plain_constraints(params["monotonic_cst"])
    if is_per_column(params.get("lifetime")):
        params["lifetime"] = numbers_per_column(params["lifetime"], "lifetime").tolist()
    for name, default in _LATER.items():
        value = params.get(name)
        if value is None or (isinstance(value, str) and value == default):
            params.pop(name, None)
    if isinstance(params.get("class_weight"), dict):  # JSON has no keys but texts
        weights = params["class_weight"].items()
        params["class_weight"] = [[_plain(label), float(weight)] for label, weight in weights]
    return {key: _plain(value) for key, value in params.items()}


def params_known_then(estimator: Any, stored: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return :func:`plain_params` as the version has them that ``stored`` those of an estimator.

    Without defaults that are not stored: that version had no such parameter. A calibration that is
    left to the default is False where it was, or where it is not stored.

    Parameters
    ----------
    estimator : estimator
    stored : mapping or None
        None where nothing is stored.
    """
    params = plain_params(estimator)
    if stored is None:
        return params
    defaults = plain_params(type(estimator)())
    is_left = params.get("calibrate") == defaults.get("calibrate") == AUTO
    if is_left and stored.get("calibrate", False) is False:
        params["calibrate"] = False
    off = {**defaults, "calibrate": False}
    return {k: value for k, value in params.items() if k in stored or value != off.get(k)}


def _plain(value: Any) -> Any:
    """Return a parameter or label as a value that JSON can hold."""
    if isinstance(value, PowerLifetime):
        return dataclasses.asdict(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return list(value)
    return value.item() if isinstance(value, np.generic) else value


def _label_list(classes: np.ndarray) -> list[Any]:
    """Return class labels as JSON values; refuse types that JSON does not preserve."""
    kind = classes.dtype.kind
    labels = [_plain(label) for label in classes]
    if kind not in LABEL_KINDS or any(not isinstance(label, LABEL_KINDS[kind]) for label in labels):
        raise ParameterError(
            f"labels of dtype {classes.dtype} cannot be saved: use strings, numbers or booleans"
        )
    return labels
