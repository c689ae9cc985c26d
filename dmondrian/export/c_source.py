"""Export of a fitted forest as one file of C: constant arrays, and a function that answers a row.

Relies on :func:`dmondrian.export.plain_trees.plain_trees`. Promises plain C99 that allocates
nothing, keeps no state and needs nothing but ``math.h`` and ``stdint.h``, and the forest's
predictions: a row reaches the same leaves, whose values are written out to the last bit and added
in the same order. Class probabilities and means of labels are equal to the last bit, but for
those of forests that follow the stream, weighed beforehand: to some 1e-14 of their size.
Functions of them (a calibration, the response of a loss) are computed by the C library, to some
1e-12. Not with ``-ffast-math``, which gives up the order of additions and the refusal of NaN.

Shapes: d columns, K classes, k outputs of a tree, T trees.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from os import PathLike
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dmondrian import __version__
from dmondrian._atomic_write import check_whole, write_whole
from dmondrian._text.wording import on_one_line
from dmondrian.ensemble.settings.loss_settings import OF_THE_LABEL
from dmondrian.errors import ParameterError
from dmondrian.estimators.one_state import one_state
from dmondrian.export.member_trees import exported_weight
from dmondrian.export.onnx import NO_RESPONSE
from dmondrian.export.opened_model import opened
from dmondrian.export.plain_trees import plain_trees
from dmondrian.export.tree_arrays import PlainTree
from dmondrian.uncertainty.temperature_scaling import Calibration
from dmondrian.uncertainty.temperature_scaling_kernels import FLOOR

_BEGINS = "/* A forest of dmondrian"
_KIND = "a forest as C source", _BEGINS.encode()
LARGEST_FILE = 2**28  # bytes; a compiler takes several times as much memory
_BYTES_OF_NODE, _BYTES_OF_VALUE = 32, 24  # at most, as text
_PER_LINE = 8  # nodes or numbers
_RESPONSES = {
    **dict.fromkeys(OF_THE_LABEL, "z"),
    "poisson": "exp(z)",
    "geometric": "-exp(z) / expm1(z)",
    "bernoulli": "0.5 + 0.5 * tanh(0.5 * z)",
    "logistic": "0.5 + 0.5 * tanh(0.5 * z)",
    "exponential": "0.5 + 0.5 * tanh(z)",
    "square": "fmin(fmax(0.5 + 0.5 * z, 0.0), 1.0)",
    "modified_square": "fmin(fmax(0.5 + 0.5 * z, 0.0), 1.0)",
    "smoothed_hinge": "z >= 0.0 ? 1.0 / (2.0 - fmin(z, 1.0)) : 1.0 - 1.0 / (2.0 + fmax(z, -1.0))",
}
"""``loss_settings.responses`` in C."""


def to_c(model: Any, out: str | PathLike[str] | None = None, *, name: str = "forest") -> str:
    """Return a fitted forest as C99 source, and write it to a file.

    Parameters
    ----------
    model : fitted estimator, str or path
        An estimator of this package, or the run folder or URL of one.
    out : str or path, optional
        File to write.
    name : str
        What the names in the source begin with, so that several forests fit in a program.

    Returns
    -------
    str
        Source of ``int NAME_predict(const float x[NAME_FEATURES], double out[NAME_OUTPUTS])``. It
        writes class probabilities (for the hinge, the decision alone), or the predicted numbers,
        and returns the number of the class, by which ``NAME_classes`` has its label; 0 of a
        regressor; -1, and ``out`` is as it was, if a number of x is not finite. The features of a
        run are those that it encoded, in the order of `dmondrian schema`, which a comment repeats.
        Numbers are those of the forest to the last bit (of regressors with ``drift="follow"``,
        as they mix their trees now, to some 1e-14 of the size of labels); calibrated
        probabilities, and responses of a loss, are as near as the C library's functions are.

    Raises
    ------
    ParameterError
        The forest is no tree ensemble (see :func:`dmondrian.export.to_onnx`; classifiers with
        ``drift="follow"`` are none here), encodes categories of frames, or is too large for a
        compiler; `name` is no identifier of C; or `out` cannot be
        written, or is a file of another kind.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmondrian import AMFClassifier
    >>> from dmondrian.export import to_c
    >>> forest = AMFClassifier(random_state=0).fit(*load_iris(return_X_y=True))
    >>> "int iris_predict(const float x[iris_FEATURES]" in to_c(forest, name="iris")
    True
    """
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", str(name)):
        raise ParameterError(
            f"name is {name!r}: expected letters, digits and _ after a letter, as names in C are"
        )
    if out is not None:
        check_whole(out, *_KIND)
    estimator, schema = opened(model)
    check_is_fitted(estimator)
    with one_state(estimator):
        if "_columns" in estimator.__dict__:
            raise ParameterError(
                "a forest that was fitted on frames with categories encodes them itself, which C "
                "source does not: fit on rows that you encode yourself"
            )
        trees = plain_trees(estimator)
        _check_size(trees)
        about = _about(estimator, schema)
        body = [*_arrays(trees), *_labels(estimator), *_functions(estimator, trees)]
        d, n_out = estimator.n_features_in_, _n_outputs(estimator)
        weight = exported_weight(estimator.forest_)
    comment = [
        f"{_BEGINS} {__version__}: {estimator.algorithm}, {weight:.17g} rows, {len(trees)} trees.",
        *(f"   {on_one_line(line)}".replace("*/", "* /").replace("/*", "/ *") for line in about),
        "*/",
        "#include <math.h>\n#include <stdint.h>\n",
    ]
    code = "\n".join([f"enum {{ NAME_FEATURES = {d}, NAME_OUTPUTS = {n_out} }};\n", *body])
    source = "\n".join(
        [*comment, code.replace("NAME_", f"{name}_")]
    )  # no label has a _, see _quoted
    if out is not None:
        write_whole(out, source.encode(), *_KIND)
    return source


def _check_size(trees: list[PlainTree]) -> None:
    n_nodes = sum(len(tree.left) for tree in trees)
    n_values = sum(tree.value.shape[1] * int((tree.left < 0).sum()) for tree in trees)
    n_bytes = _BYTES_OF_NODE * n_nodes + _BYTES_OF_VALUE * n_values
    if n_bytes > LARGEST_FILE:
        raise ParameterError(
            f"{n_nodes:,} nodes and {n_values:,} numbers in leaves are up to {n_bytes / 1e6:,.0f} "
            f"MB of C, and compilers need many times that: {LARGEST_FILE / 1e6:.0f} MB are the "
            "most; export to ONNX, or a forest of fewer trees, of a shorter lifetime, or one with "
            "max_nodes"
        )


def _about(estimator: Any, schema: Any) -> list[str]:
    """Return lines that say what the features are."""
    if schema is not None:
        table = schema.without_target().describe().splitlines()
        return ["x are the features that the run made of its columns, in this order:", *table]
    names = getattr(estimator, "feature_names_in_", None)
    return [] if names is None else ["x are: " + ", ".join(map(str, names))]


def _arrays(trees: list[PlainTree]) -> Iterator[str]:
    """Yield the nodes and the values of leaves; children stand side by side in their tree."""
    k, starts = trees[0].value.shape[1], np.cumsum([0, *(len(tree.left) for tree in trees)])
    is_leaf = np.concatenate([tree.left < 0 for tree in trees])
    below = np.concatenate([tree.left + start for tree, start in zip(trees, starts, strict=False)])
    below[is_leaf] = np.arange(int(is_leaf.sum())) * k
    columns = (np.concatenate([tree.feature for tree in trees]), below)
    thresholds = np.concatenate([tree.threshold for tree in trees]).astype(np.float64)
    yield "/* The feature, or -1 at a leaf; the left child, with the right one behind it, or where"
    yield "   the values of the leaf begin; rows with x <= threshold go left. */"
    yield "static const struct { int32_t feature, below; float threshold; } NAME_nodes[] = {"
    pairs = zip(*(column.tolist() for column in columns), thresholds.tolist(), strict=True)
    yield from _lines(f"{{{j},{at},{t.hex() if j >= 0 else '0.0'}f}}" for j, at, t in pairs)
    yield "};"
    yield "static const double NAME_values[] = {"
    values = np.concatenate([tree.value[tree.left < 0].ravel() for tree in trees])
    yield from _lines(map(float.hex, values.tolist()))
    yield "};"
    yield "static const int32_t NAME_roots[] = {"
    yield from _lines(map(str, starts[:-1].tolist()))
    yield "};"


def _lines(items: Any) -> Iterator[str]:
    """Yield items with commas, some in a line."""
    line: list[str] = []
    for item in items:
        line.append(item)
        if len(line) == _PER_LINE:
            yield ",".join(line) + ","
            line = []
    if line:
        yield ",".join(line)


def _labels(estimator: Any) -> Iterator[str]:
    if hasattr(estimator, "classes_"):
        texts = ", ".join(_quoted(str(label)) for label in estimator.classes_)
        yield f"const char *const NAME_classes[] = {{{texts}}};"


def _quoted(text: str) -> str:
    """Return a text as a string of C, UTF-8 byte by byte but for letters, digits and spaces."""
    try:
        whole = text.encode()
    except UnicodeEncodeError:
        whole = b"\0"
    if b"\0" in whole:
        raise ParameterError(
            f"the class {text!r} is no text of C, which is UTF-8 and ends at a zero byte: rename it"
        )
    plain = re.compile(rb"[A-Za-z0-9 .+-]")
    parts = (bytes([byte]) for byte in whole)
    return '"' + "".join(p.decode() if plain.match(p) else f"\\{p[0]:03o}" for p in parts) + '"'


def _n_outputs(estimator: Any) -> int:
    forest = estimator.forest_
    if hasattr(estimator, "classes_") and forest.parameters.minimises_loss:
        return 1 if forest.parameters.cost.loss == "hinge" else 2
    return int(forest.n_outputs)


def _functions(estimator: Any, trees: list[PlainTree]) -> Iterator[str]:
    """Yield the functions: a feature of a row, the response of a loss, the answer."""
    forest = estimator.forest_
    parameters, k = forest.parameters, trees[0].value.shape[1]
    loss = parameters.cost.loss if parameters.minimises_loss else ""
    encodes = estimator._encodes_missing()
    if encodes:
        from dmondrian.estimators.missing_values import filling

        fill = float(filling(estimator.domain)).hex()
        yield "static float NAME_feature(const float *x, int32_t j) {"
        yield "  if (j & 1) return isnan(x[j >> 1]) ? 1.0f : 0.0f;"
        yield f"  return isnan(x[j >> 1]) ? {fill}f : x[j >> 1];\n}}"
    if loss and loss != "hinge":
        if loss not in _RESPONSES:
            raise ParameterError(NO_RESPONSE.format(loss))
        yield f"static double NAME_response(double z) {{ return {_RESPONSES[loss]}; }}"
    yield "int NAME_predict(const float x[NAME_FEATURES], double out[NAME_OUTPUTS]) {"
    refused = "isinf(x[j])" if encodes else "!isfinite(x[j])"
    yield f"  for (int j = 0; j < NAME_FEATURES; j++) if ({refused}) return -1;"
    yield f"  double mean[{k}] = {{0.0}};"
    yield f"  for (int t = 0; t < {len(trees)}; t++) {{"
    yield "    int32_t at = NAME_roots[t];"
    yield "    while (NAME_nodes[at].feature >= 0) {"
    value = "NAME_feature(x, NAME_nodes[at].feature)" if encodes else "x[NAME_nodes[at].feature]"
    yield f"      const float value = {value};"
    yield "      at = NAME_nodes[at].below + !(value <= NAME_nodes[at].threshold);\n    }"
    yield f"    for (int c = 0; c < {k}; c++) mean[c] += NAME_values[NAME_nodes[at].below + c];"
    yield "  }"
    yield f"  for (int c = 0; c < {k}; c++) mean[c] /= {len(trees)}.0;"
    yield from _answers(estimator, loss, k)
    yield "}\n"


def _answers(estimator: Any, loss: str, k: int) -> Iterator[str]:
    """Yield the statements from the mean over trees to outputs."""
    forest = estimator.forest_
    if not hasattr(estimator, "classes_"):
        order = np.ravel(estimator._in_order(np.arange(k)[None])) if loss else range(k)
        for c, place in enumerate(order):
            yield f"  out[{c}] = " + (f"NAME_response(mean[{place}]);" if loss else f"mean[{c}];")
        yield "  return 0;"
        return
    if loss:
        if loss == "hinge":
            yield "  out[0] = mean[0];"
        else:
            yield "  out[0] = NAME_response(-mean[0]);"
            yield "  out[1] = NAME_response(mean[0]);"
        yield "  return mean[0] > 0.0;"
        return
    if forest.calibration is not None:
        yield from _calibrated(forest.calibration, k)
    yield "  int best = 0;"
    yield f"  for (int c = 0; c < {k}; c++) {{"
    yield "    out[c] = mean[c];"
    yield "    if (mean[c] > mean[best]) best = c;\n  }"
    yield "  return best;"


def _calibrated(calibration: Calibration, k: int) -> Iterator[str]:
    """Yield the statements that calibrate the mean: its power, mixed with it where that is."""
    weight, rest = calibration.weights
    each = f"  for (int c = 0; c < {k}; c++)"
    yield f"  double largest = log({FLOOR.hex()}), total = 0.0;"
    if rest > 0.0:
        yield f"  double plain[{k}];"
        yield f"{each} plain[c] = fmax(mean[c], {FLOOR.hex()});"
    yield f"{each} largest = fmax(largest, mean[c] = log(fmax(mean[c], {FLOOR.hex()})));"
    yield each
    yield f"    total += mean[c] = exp({float(calibration.exponent).hex()} * (mean[c] - largest));"
    yield f"{each} mean[c] /= total;"
    if rest > 0.0:
        yield f"{each} mean[c] = {weight.hex()} * mean[c] + {rest.hex()} * plain[c];"
