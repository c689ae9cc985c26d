"""Forests that learned different rows, as one that learned them all.

On the unit cube the partition does not look at the rows and statistics add, so trees of the same
number can be merged: a cell is split where the rows of all parts together ask for it. Counts are
those of one forest that learned all rows, byte for byte where weights are whole numbers (sums of
targets up to the order of additions; ranks of labels as long as none was forgotten); node ids
follow the order in which cells were split. It holds where a prediction is made of statistics alone:
not for a mixture over prunings, whose weights depend on the predictions before each row, and not
under a cap on nodes.

Relies on the growth of :mod:`dmondrian.growth.cube`.

Shapes: c cells, d features, s statistics.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.forest.merge_kernels import absorb
from dmondrian.stats.moments import SQUARES, SUM
from dmondrian.tree import nodes
from dmondrian.tree.box_encoding import read_only
from dmondrian.tree.box_encoding_choice import alike, fitted
from dmondrian.uncertainty.temperature_scaling import Calibration

_FIRST_CAPACITY = 64  # a stored empty tree has none


def merge(forests: Sequence[Forest]) -> Forest:
    """Return the forest that learned the rows of all.

    Parameters
    ----------
    forests : sequence of Forest
        Of equal parameters (``domain="cube"``, no ``max_nodes``, not AMF) and tree numbers, not
        calibrated but by ``calibrate="auto"``: what comes out then begins to calibrate anew, and
        forecasts as it is until it learns more rows.

    Raises
    ------
    ParameterError
        If these forests cannot be merged.
    """
    if not forests:
        raise ParameterError("nothing to merge: give at least one forest")
    first = forests[0]
    parameters = first.parameters
    calibrations = [forest.calibration for forest in forests if forest.calibration is not None]
    if any(
        not isinstance(calibration, Calibration) or calibration.excess is None
        for calibration in calibrations
    ):
        raise ParameterError(
            "calibrated forests cannot be merged: each was calibrated on its own rows, by fewer "
            'than the merged one has; train the parts with calibrate=False or "auto" (in a job '
            'file: calibrate = false or "auto")'
        )
    if (why := why_not_merged(parameters)) is not None:
        raise ParameterError(why)
    for forest in forests[1:]:
        same_trees = np.array_equal(forest.tree_numbers, first.tree_numbers)
        if forest.parameters != parameters or not same_trees:
            raise ParameterError("forests of different parameters or trees cannot be merged")
    merged = Forest.from_state(*first.state())
    merged.calibration = calibrations[0].empty if calibrations else None
    for forest in forests[1:]:
        for index, tree in enumerate(forest.trees):
            if tree.head_i[nodes.N_NODES]:
                _absorb(merged, index, tree)
    if not alike(merged.store.trees):  # each was laid out for its own boxes; kernels know one way
        none = np.empty((0, parameters.n_features), np.float32)
        merged.store.assign(fitted(merged.store.trees, none)[0])
    return merged


def why_not_merged(parameters: ForestParameters) -> str | None:
    """Return why forests of these parameters cannot be merged; None if they can."""
    if parameters.selects_lifetimes and parameters.cost.selection == "prequential":
        return (
            "forests whose lifetimes are chosen by prequential loss cannot be merged: what a row "
            "cost depends on the rows before it, of all parts; train them with a lifetime, or "
            'lifetime="penalized"'
        )
    mixes = parameters.aggregation in (None, "aggregate")
    if parameters.domain != "cube" or mixes or parameters.max_nodes:
        return (
            "only Mondrian forests on the cube that do not aggregate over prunings, without "
            "max_nodes, can be merged: other trees depend on the order of their rows"
        )
    return None


def _absorb(forest: Forest, index: int, other: nodes.Tree) -> None:
    """Add the rows of ``other`` to a forest's tree."""
    tree = forest.store.trees[index]
    if not tree.head_i[nodes.N_NODES]:
        tree.head_f[:] = other.head_f
        tree.head_f[nodes.TOTAL_WEIGHT] = 0.0
    shift = float(other.head_f[nodes.OFFSET] - tree.head_f[nodes.OFFSET])
    has_moments = forest.parameters.n_classes == 0 or forest.parameters.minimises_loss
    points, statistics = _cells(other, shift, has_moments)
    (tree,), rows = fitted([tree], read_only(points))
    growth, stat, _, rule = forest.policies.learning
    seed, number = np.uint64(forest.parameters.seed), np.uint64(forest.tree_numbers[index])
    done = 0
    while True:
        done = absorb(growth, stat, rule, tree, seed, number, rows, statistics, done)
        if done == len(points):
            break
        tree = nodes.resize(tree, max(2 * len(tree.i), _FIRST_CAPACITY))
    tree.head_f[nodes.TOTAL_WEIGHT] += other.head_f[nodes.TOTAL_WEIGHT]
    forest.store.replace(index, tree)


def _cells(tree: nodes.Tree, shift: float, has_moments: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return points that stand for the leaves with rows, float32 [c, d], and their statistics.

    A leaf of several points is two corners of its box, the second without statistics:
    they lie in its cell, and two are enough to have the cells around it split.
    """
    arrays = nodes.fields(tree)
    leaves = np.flatnonzero((arrays["left"] < 0) & (arrays["stat"][:, 0] > 0.0))
    lower, upper = arrays["lower"][leaves], arrays["upper"][leaves]
    statistics = arrays["stat"][leaves]
    if has_moments and shift != 0.0:
        n, total, squares = (statistics[:, k - nodes.STAT] for k in (nodes.STAT, SUM, SQUARES))
        squares += 2.0 * shift * total + n * shift * shift
        np.maximum(squares, 0.0, out=squares)  # labels at the new origin leave but roundings
        total += n * shift
    wide = (lower != upper).any(axis=1)
    points = np.concatenate([lower, upper[wide]])
    return points, np.concatenate([statistics, np.zeros((int(wide.sum()), statistics.shape[1]))])
