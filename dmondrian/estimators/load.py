"""Loading of fitted estimators from checkpoints, those of training runs included.

Relies on :mod:`dmondrian.checkpoint` for the bytes and their checks. Promises that a loaded
estimator predicts, and continues learning, exactly as the saved one.
"""

from __future__ import annotations

import re
from inspect import signature
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from dmondrian.checkpoint import load_model
from dmondrian.ensemble.lifetime_selection import LifetimePath
from dmondrian.ensemble.settings.lifetime import lifetime_from_json
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.estimators import ALGORITHMS
from dmondrian.estimators.intervals import Intervals
from dmondrian.estimators.label_intervals import LabelIntervals
from dmondrian.estimators.save import LABEL_KINDS
from dmondrian.forest.state import decode_float
from dmondrian.uncertainty.temperature_scaling import new_calibration

if TYPE_CHECKING:
    from dmondrian.estimators.frame_columns import Columns

# other strings may be parsed as structured dtypes
_DTYPE = re.compile(r"[<>|=]?[biufUO][0-9]{0,9}")
_MOST_LABEL_BYTES = 2**28


def estimator_of(algorithm: str, params: dict[str, Any]) -> Any:
    """Return the unfitted estimator of stored parameters."""
    kind = ALGORITHMS[algorithm]
    if isinstance(params.get("lifetime"), dict):
        params["lifetime"] = lifetime_from_json(params["lifetime"])
    if isinstance(params.get("experts"), list):  # JSON has no tuples
        params["experts"] = tuple(params["experts"])
    if isinstance(params.get("class_weight"), list):  # pairs: JSON has no keys but texts
        params["class_weight"] = dict(params["class_weight"])
    if "feature_units" in signature(kind).parameters:
        params.setdefault("feature_units", None)  # a model saved before the parameter existed
    if "calibrate" in signature(kind).parameters:
        params.setdefault("calibrate", False)  # as does this
    return kind(**params)


def load_estimator(path: str | PathLike[str]) -> Any:
    """Return the fitted estimator of a checkpoint (see :func:`dmondrian.load`)."""
    forest, model, _ = load_model(path)
    algorithm = forest.parameters.algorithm
    if model.get("algorithm") != algorithm or algorithm not in ALGORITHMS:
        raise CorruptError(
            f"{path}: the run is of algorithm {model.get('algorithm')!r}, its forest of "
            f"{algorithm!r}; expected one of {sorted(ALGORITHMS)} in both"
        )
    names = model.get("feature_names")
    classes = _labels(model.get("classes"), model.get("label_dtype"), path)
    n_classes = 0 if classes is None else len(classes)
    n_names = forest.parameters.n_features if names is None else len(names)
    if n_classes != forest.parameters.n_classes or n_names != forest.parameters.n_features:
        raise CorruptError(
            f"{path}: run.json names {n_classes} classes and {n_names} features, the forest has "
            f"{forest.parameters.n_classes} and {forest.parameters.n_features}"
        )
    try:
        unfitted = estimator_of(algorithm, dict(model["estimator"]))
        unfitted._validate_params()
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(
            f"{path}: run.json's estimator parameters are unusable: {str(error)[:400]}"
        ) from error
    if forest.calibration is None:  # parts of a merged run had none
        parameters = forest.parameters
        calibrate = getattr(unfitted, "calibrate", False)
        forest.calibration = new_calibration(
            calibrate, parameters.gives_label_variance, parameters.follows_stream
        )
    if (stored := model.get("categories")) is not None:
        unfitted._columns, names = _categories(stored, unfitted, names, path)
    elif unfitted._encodes_missing():
        if forest.parameters.n_features % 2:
            raise CorruptError(
                f'{path}: run.json has missing_values="encode", of two features a column, and '
                f"the forest {forest.parameters.n_features} features"
            )
        names = None if names is None else names[::2]  # each column, and whether it is missing
    fitted = unfitted._adopt(forest, classes, names)
    fitted._is_of_run = model.get("schema") is not None or bool(model.get("takes_encoded_rows"))
    if (units := model.get("time_units")) is not None:  # earlier versions kept none
        if len(units) != fitted.n_features_in_ or not all(isinstance(unit, str) for unit in units):
            raise CorruptError(
                f"{path}: run.json's time_units should be texts, one of each of "
                f"{fitted.n_features_in_} columns; found {str(units)[:80]}"
            )
        fitted._time_units = units
    if model.get("interval_scores") is not None:
        coverage = model.get("interval_coverage")
        is_signed = isinstance(fitted, LabelIntervals) and type(coverage) is float
        scores = _interval_scores(model["interval_scores"], algorithm, is_signed, path)
        fitted.interval_scores_ = scores
        if is_signed:
            fitted.interval_coverage_ = coverage
    if model.get("lifetime_path") is not None:
        fitted._held_out_path = _held_out_path(model["lifetime_path"], forest.parameters, path)
    return fitted


def _categories(
    stored: Any, unfitted: Any, features: list[str] | None, path: Any
) -> tuple[Columns, list[str]]:
    """Return which columns are categories, and the names of all columns, checked."""
    from dmondrian.estimators.frame_columns import category, names_of_features, widths_of

    has_nulls = unfitted._encodes_missing()
    try:
        columns = tuple(
            None if each is None else category(each[0], each[1], each[2], has_nulls)
            for each in stored
        )
        texts = [text for c in columns if c is not None for text in (c.name, c.type, *c.levels)]
        if any(columns) and all(isinstance(text, str) for text in texts) and features is not None:
            starts = np.cumsum([0, *widths_of(columns, has_nulls)])
            pairs = zip(columns, starts[:-1], strict=True)
            names = [features[at] if column is None else column.name for column, at in pairs]
            if [*names_of_features(names, columns, has_nulls)] == features:
                return columns, names
    except (TypeError, LookupError, ParameterError):
        pass  # raised below
    raise CorruptError(
        f"{path}: run.json's categories should be names, types and levels of columns, as many as "
        f"there are features; found {str(stored)[:80]}"
    )


def _interval_scores(stored: Any, algorithm: str, is_signed: bool, path: Any) -> np.ndarray:
    """Return the scores of calibrated intervals, checked."""
    has_any = is_signed or issubclass(ALGORITHMS[algorithm], Intervals)
    is_list = isinstance(stored, list) and has_any
    scores = np.array([decode_float(score) for score in stored] if is_list else [np.nan])
    least = -np.inf if is_signed else 0.0
    if not (scores >= least).all() or not (scores[1:] >= scores[:-1]).all():
        raise CorruptError(
            f"{path}: run.json's interval scores should be numbers in order, >= 0 unless they are "
            f"of a coverage, of a regressor that has them; found {str(stored)[:80]} of {algorithm}"
        )
    return scores


def _held_out_path(stored: Any, parameters: ForestParameters, path: Any) -> LifetimePath:
    """Return the lifetimes that held-out rows chose from, checked."""
    chosen = parameters.cost.lifetime if parameters.minimises_loss else None
    try:
        lifetimes, risks = (np.array([decode_float(x) for x in column]) for column in stored)
        is_sound = len(lifetimes) == len(risks) and chosen in lifetimes
        is_sound = is_sound and bool((np.diff(lifetimes, prepend=0.0) > 0.0).all())
    except (TypeError, ValueError):
        is_sound = False
    if not is_sound:
        raise CorruptError(
            f"{path}: run.json's lifetime_path should be increasing lifetimes, with the {chosen} "
            f"in use, and as many risks; found {str(stored)[:80]}"
        )
    return LifetimePath(lifetimes, risks[None], np.zeros(1), np.array([chosen]))


def _labels(classes: list[Any] | None, dtype: str | None, path: Any) -> np.ndarray | None:
    """Return class labels in their original dtype; a run's schema has none."""
    if classes is None:
        return None
    try:
        if dtype is not None and not _DTYPE.fullmatch(dtype):
            raise TypeError(dtype)
        kind = np.array(classes).dtype if dtype is None else np.dtype(dtype)
        # The text width in a forged dtype could need any amount of memory.
        is_known = kind.kind in LABEL_KINDS and kind.itemsize * len(classes) <= _MOST_LABEL_BYTES
        labels = np.array(classes, kind) if is_known else np.empty(0)
        is_sound = labels.shape == (len(classes),) and labels.tolist() == classes
        if is_sound and bool((labels[1:] > labels[:-1]).all()):
            return labels
    except (TypeError, ValueError, OverflowError):
        pass  # raised below
    raise CorruptError(
        f"{path}: run.json's class labels should be distinct and in order, all texts, numbers or "
        f"booleans; found {str(classes)[:80]} of dtype {str(dtype)[:40]}"
    )
