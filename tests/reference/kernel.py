"""One tree of the kernel beside one tree of the reference, fed with the same rows.

The only file of this folder that touches the package: it drives `Forest`, whose trees are the
compiled ones, and compares what both know of every node.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.estimators import AMFClassifier, AMFRegressor
from dmondrian.forest.forest import Forest

from .amf import ReferenceTree
from .cases import Case
from .statistics import Counts, Moments


def parameters_of(case: Case, regression: bool = False, **changes: object) -> ForestParameters:
    """Return the forest parameters of a case."""
    values: dict[str, object] = {
        "algorithm": "amf-regressor" if regression else "amf-classifier",
        "n_features": case.X.shape[1],
        "n_classes": 0 if regression else case.n_classes,
        "seed": case.seed,
        "split_pure": case.split_pure,
        "max_nodes": case.max_nodes,
    } | changes
    if str(values["algorithm"]).startswith("amf"):
        of_amf = {
            "alpha": case.alpha,
            "learning_rate": case.rate if regression else 1.0,
            "charge_opening": case.charge_opening,
        }
        values = of_amf | values
    return ForestParameters(**values)  # type: ignore[arg-type]


def kernel_forest(
    case: Case, regression: bool = False, chunk: int | None = None, **changes: object
) -> Forest:
    """Return a forest of the case's one tree that learned its rows, `chunk` at a time."""
    forest = Forest(parameters_of(case, regression, **changes), [case.tree])
    n = len(case.X)
    for start in range(0, n, chunk or n):
        rows = slice(start, start + (chunk or n))
        forest.update(case.X[rows], case.y[rows], None if case.w is None else case.w[rows])
    return forest


def reference_tree(
    case: Case, regression: bool = False, rate: float = 1.0, repeats_up_to: float = 256.0
) -> ReferenceTree:
    """Return the reference tree that learned the rows of a case (`rate`: for class labels)."""
    memory = (
        Moments(case.charge_opening)
        if regression
        else Counts(case.n_classes, case.alpha, case.charge_opening)
    )
    tree = ReferenceTree(
        memory,
        case.seed,
        case.tree,
        case.split_pure,
        case.max_nodes,
        rate=case.rate if regression else rate,
        rate_per_variance=regression,
        repeats_up_to=repeats_up_to,
    )
    weights = np.ones(len(case.X)) if case.w is None else case.w
    for x, y, w in zip(case.X, case.y.tolist(), weights.tolist(), strict=True):
        tree.learn(list(x), y, w)
    return tree


def arrays_of(forest: Forest) -> tuple[dict[str, np.ndarray], int]:
    """Return the stored arrays of a forest's only tree, and its root."""
    header, (arrays,) = forest.state()
    return arrays, header["trees"][0]["root"]


def assert_same_structure(forest: Forest, tree: ReferenceTree) -> None:
    """Compare links, features, thresholds and boxes to the bit, times to an ulp of the log."""
    arrays, root = arrays_of(forest)
    if tree.root is None:
        assert root == -1
        return
    assert root == tree.root.number
    assert forest.total_weight == tree.total_weight

    def number(node: object) -> int:
        return -1 if node is None else node.number  # type: ignore[attr-defined]

    assert len(arrays["left"]) == len(tree.nodes)
    for name in ("left", "right", "parent"):
        expected = [number(getattr(node, name)) for node in tree.nodes]
        assert arrays[name].tolist() == expected, name
    assert arrays["feature"].tolist() == [node.feature for node in tree.nodes]
    for v, node in enumerate(tree.nodes):
        if not node.is_leaf:
            assert arrays["threshold"][v] == node.threshold
        assert arrays["lower"][v].tolist() == [float(a) for a in node.lower]
        assert arrays["upper"][v].tolist() == [float(a) for a in node.upper]
    np.testing.assert_allclose(arrays["time"], [node.time for node in tree.nodes], rtol=1e-12)


def log_odds(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Return log of the stored odds of stopping, from mantissa and exponent."""
    return np.log(arrays["odds"]) + arrays["odds_exponent"] * (256.0 * math.log(2.0))


def tolerance_of(tree: ReferenceTree) -> float:
    """Return the relative error allowed to weights and predictions.

    The price of a weight is a difference of log gamma functions as large as n log n: both sides
    lose the digits by which the difference is smaller than they are.
    """
    return 1e-9 + 2e-15 * tree.total_weight * math.log1p(tree.total_weight)


def assert_same_weights(forest: Forest, tree: ReferenceTree) -> None:
    """Compare the odds s / (1 - s) = w / (W_left W_right) of every internal node."""
    arrays, _ = arrays_of(forest)
    found = log_odds(arrays)
    for v, node in enumerate(tree.nodes):
        if node.left is not None and node.right is not None:
            below = node.left.log_subtree + node.right.log_subtree
            scale = max(1.0, abs(node.log_w), abs(below))
            assert abs(found[v] - (node.log_w - below)) <= tolerance_of(tree) * scale, f"node {v}"


def public_nodes(forest: Forest, index: int = 0) -> dict[str, Any]:
    """Return a tree as a user sees it, through the estimator's `nodes`."""
    kind = AMFClassifier if forest.parameters.n_classes else AMFRegressor
    return kind()._adopt(forest).nodes(index)


def assert_same_statistics(forest: Forest, tree: ReferenceTree) -> None:
    """Compare weights and counts to the bit, means closely."""
    nodes = public_nodes(forest)
    assert nodes["n_rows"].tolist() == [node.n_rows for node in tree.nodes]
    for v, node in enumerate(tree.nodes):
        if isinstance(node.memory, Counts):
            assert nodes["counts"][v].tolist() == node.memory.counts
        else:
            assert nodes["mean"][v] == pytest.approx(node.memory.mean, rel=1e-9, abs=1e-12)
