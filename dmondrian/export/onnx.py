"""Export of a fitted forest as an ONNX model: a tree ensemble with its inputs and outputs.

Relies on :func:`dmondrian.export.plain_trees.plain_trees`, and on the package onnx (the extra
`onnx`) for the file. Promises the forest's predictions, rounded to float32: the graph compares
columns and adds leaves in double precision. (Trees are added in another order, which can change the
rounding of sums half-way between two float32 numbers.)
Of forests that follow the stream to some units of that: each tree's forecasts are rounded before
they are mixed.

Shapes: n rows, d features, K classes, k outputs of a tree, T trees.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dmondrian import __version__
from dmondrian._atomic_write import check_whole, write_whole
from dmondrian._optional import require
from dmondrian.ensemble.settings.loss_settings import OF_THE_LABEL
from dmondrian.errors import ParameterError
from dmondrian.estimators.one_state import one_state
from dmondrian.export.graph import Graph
from dmondrian.export.member_trees import exported_weight, forest_to_export
from dmondrian.export.onnx_mixture import add_mixture
from dmondrian.export.onnx_trees import add_trees
from dmondrian.export.opened_model import opened
from dmondrian.export.plain_trees import plain_trees
from dmondrian.uncertainty.temperature_scaling import Calibration
from dmondrian.uncertainty.temperature_scaling_kernels import FLOOR

if TYPE_CHECKING:
    from dmondrian.data import Schema

NO_RESPONSE = "loss={!r}: this export does not know the response of that loss"
_KIND = "an ONNX model", b"\x08"  # files begin with the tag of ir_version, their first field


def to_onnx(
    model: Any, out: str | PathLike[str] | None = None, *, columns: bool | None = None
) -> Any:
    """Return a fitted forest as an ONNX model, and write it to a file.

    Parameters
    ----------
    model : fitted estimator, str or path
        An estimator of this package, or the run folder or URL of one; a run also knows how its
        columns are encoded.
    out : str or path, optional
        File to write.
    columns : bool, optional
        Whether the model takes the columns of the training data, an input [n, 1] for each by its
        name, and encodes them as the run did; otherwise it takes one matrix "X", float32 [n, d], of
        the features that the forest learned. By default True for runs. A missing number is NaN, a
        missing text the empty string (unless that is a category), a missing time the least int64.

    Returns
    -------
    onnx.ModelProto
        Outputs: "label" [n] and "probabilities" float32 [n, K] of classifiers ("decision" [n, 1]
        too of generalised ones, without probabilities for the hinge), "prediction" float32 [n, k]
        of regressors. Its metadata describe the inputs. A forest with ``drift="follow"`` is written
        as it mixes its trees now. Numbers are NaN for rows that the forest refuses, those with an
        infinite number, or NaN in "X" if it does not encode these; the label of such a row means
        nothing.

    Raises
    ------
    ParameterError
        The forest is no tree ensemble (``predict_extension="expected"``, ``domain="cube"``, a loss
        of your own), is larger than a file of ONNX may be, or has no columns that ONNX could
        encode; or `out` cannot be written, or is a file of another kind. The message has the
        reason.
    MissingPackageError
        The package onnx is not installed.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmondrian import AMFClassifier
    >>> from dmondrian.export import to_onnx
    >>> forest = AMFClassifier(random_state=0).fit(*load_iris(return_X_y=True))
    >>> [output.name for output in to_onnx(forest).graph.output]
    ['label', 'probabilities']
    """
    check_onnx_files([] if out is None else [out])
    estimator, schema = opened(model)
    if columns and schema is None:
        raise ParameterError(
            "columns=True: this model was fitted on arrays and holds no encoding; expected the run "
            "folder of a model that was trained from Parquet, or columns=False"
        )
    check_is_fitted(estimator)
    with one_state(estimator):
        made = _model(estimator, schema if columns is not False else None, schema)
    if out is not None:
        write_whole(out, made.SerializeToString(), *_KIND)
    return made


def check_onnx_files(files: Iterable[str | PathLike[str]]) -> None:
    """Find out whether `to_onnx` could write to these files, before there is a model.

    Raises
    ------
    ParameterError, MissingPackageError
        As :func:`to_onnx`.
    """
    require("onnx", "onnx", "export to ONNX")
    for file in files:
        check_whole(file, *_KIND)


def _model(estimator: Any, encoded: Schema | None, schema: Schema | None) -> Any:
    """Return the model; ``encoded`` is the encoding of columns done inside of it, if any."""
    parameters = estimator.forest_.parameters
    mixes = parameters.follows_stream and parameters.n_classes > 0
    trees = [] if mixes else plain_trees(estimator)
    graph = Graph()
    if encoded is not None:
        from dmondrian.export.onnx_encoding import add_columns

        X = add_columns(graph, encoded)
        takes = "the columns of the training data, encoded inside"
    else:
        if "_columns" in estimator.__dict__:
            raise ParameterError(
                "a forest that was fitted on frames with categories encodes them itself, which "
                "this export does not: train a run, whose encoding is part of its ONNX model"
            )
        X = graph.input("X", np.float32, estimator.n_features_in_)
        if estimator._encodes_missing():
            X = _with_indicators(graph, X, estimator)
        graph.refuse_infinite(X)
        takes = "encoded features: the encoding of columns is not part of this model"
    if mixes:
        proba = add_mixture(graph, X, forest_to_export(estimator.forest_))
        _add_classes(graph, estimator.classes_, proba)
    else:
        _add_outputs(graph, estimator, add_trees(graph, X, trees))
    return graph.model(_about(estimator, schema, takes))


def _with_indicators(graph: Graph, X: str, estimator: Any) -> str:
    """Add the encoding of missing values; return the name of the features, float32 [n, 2 d]."""
    from dmondrian.estimators.missing_values import filling

    last = graph.constant(np.array([2], np.int64))
    is_missing = graph.add("IsNaN", X)
    filled = graph.add("Where", is_missing, graph.constant(filling(estimator.domain)), X)
    columns = filled, graph.add("Cast", is_missing, to=np.float32)
    pairs = graph.add("Concat", *(graph.add("Unsqueeze", each, last) for each in columns), axis=2)
    shape = graph.constant(np.array([-1, 2 * estimator.n_features_in_], np.int64))
    return graph.add("Reshape", pairs, shape)


def _about(estimator: Any, schema: Schema | None, takes: str) -> dict[str, str]:
    """Return the metadata of the model."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None and schema is not None:
        names = schema.feature_names
    metadata = {
        "algorithm": estimator.algorithm,
        "dmondrian": __version__,
        "inputs": takes,
        "rows_learned": f"{exported_weight(estimator.forest_):g}",
    }
    if names is not None:
        metadata["feature_names"] = json.dumps([str(name) for name in names])
    return metadata


def _add_outputs(graph: Graph, estimator: Any, mean: str) -> None:
    """Add the operators between the mean over trees and the outputs of the estimator."""
    forest = estimator.forest_
    parameters, classes = forest.parameters, getattr(estimator, "classes_", None)
    if classes is None:
        _add_prediction(graph, estimator, mean)
    elif not parameters.minimises_loss:
        proba = mean
        if forest.calibration is not None:
            proba = _calibrated(graph, mean, forest.calibration)
        _add_classes(graph, classes, proba)
    else:
        above = graph.add("Greater", mean, graph.constant(np.float32(0.0)))
        flat = graph.add("Reshape", above, graph.constant(np.array([-1])))
        _add_label(graph, classes, graph.add("Cast", flat, to=np.int64))
        graph.output(mean, "decision", np.float32, 1)
        if parameters.cost.loss != "hinge":
            sides = [
                _response(graph, parameters.cost.loss, z) for z in (graph.add("Neg", mean), mean)
            ]
            proba = graph.add("Concat", *sides, axis=1)
            graph.output(proba, "probabilities", np.float32, 2)


def _add_classes(graph: Graph, classes: np.ndarray, proba: str) -> None:
    """Add the outputs of a classifier that has probabilities, float32 [n, K]."""
    _add_label(graph, classes, graph.add("ArgMax", proba, axis=1, keepdims=0))
    graph.output(proba, "probabilities", np.float32, len(classes))


def _add_label(graph: Graph, classes: np.ndarray, index: str) -> None:
    kind = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64}.get(classes.dtype.kind)
    labels: np.ndarray = classes.astype(np.str_ if kind is None else kind)
    label = graph.add("Gather", graph.constant(labels), index, axis=0)
    graph.output(label, "label", labels.dtype.type)


def _add_prediction(graph: Graph, estimator: Any, mean: str) -> None:
    parameters, k = estimator.forest_.parameters, estimator.forest_.n_outputs
    if parameters.minimises_loss:
        mean = _response(graph, parameters.cost.loss, mean)
        if k > 1:  # quantiles, in the order asked for
            order = np.ravel(estimator._in_order(np.arange(k)[None]))
            mean = graph.add("Gather", mean, graph.constant(order), axis=1)
    graph.output(mean, "prediction", np.float32, k)


def _calibrated(graph: Graph, mean: str, calibration: Calibration) -> str:
    """Add p^b / sum(p^b), computed relative to the largest p, as powers of small ones underflow.

    Mixed with p, where the calibration is.
    """
    axis = graph.constant(np.array([1]))
    mean = graph.add("Cast", mean, to=np.float64)
    mean = graph.add("Max", mean, graph.constant(FLOOR))
    share = graph.add("Div", mean, graph.add("ReduceMax", mean, axes=[1], keepdims=1))
    power = graph.add("Pow", share, graph.constant(calibration.exponent))
    proba = graph.add("Div", power, graph.add("ReduceSum", power, axis, keepdims=1))
    weight, rest = calibration.weights
    if rest > 0.0:
        parts = ((proba, weight), (mean, rest))
        proba = graph.add("Add", *(graph.add("Mul", p, graph.constant(w)) for p, w in parts))
    return graph.add("Cast", proba, to=np.float32)


def _response(graph: Graph, loss: str, z: str) -> str:
    """Add the function of ``loss_settings.responses``, in double precision."""
    response = _function(graph, loss, graph.add("Cast", z, to=np.float64))
    return graph.add("Cast", response, to=np.float32)


def _function(graph: Graph, loss: str, z: str) -> str:
    number = graph.constant
    if loss == "poisson":
        return graph.add("Exp", z)
    if loss == "geometric":
        power = graph.add("Exp", z)
        return graph.add("Div", power, graph.add("Sub", number(1.0), power))
    if loss in ("bernoulli", "logistic"):
        return graph.add("Sigmoid", z)
    if loss == "exponential":
        return graph.add("Sigmoid", graph.add("Mul", z, number(2.0)))
    if loss in ("square", "modified_square"):
        half = graph.add("Mul", graph.add("Add", z, number(1.0)), number(0.5))
        return graph.add("Clip", half, number(0.0), number(1.0))
    if loss == "smoothed_hinge":
        held = graph.add("Clip", z, number(-1.0), number(1.0))
        size = graph.add("Abs", held)
        share = graph.add("Div", number(1.0), graph.add("Sub", number(2.0), size))
        is_above = graph.add("GreaterOrEqual", held, number(0.0))
        return graph.add("Where", is_above, share, graph.add("Sub", number(1.0), share))
    if loss in OF_THE_LABEL:
        return z
    raise ParameterError(NO_RESPONSE.format(loss))
