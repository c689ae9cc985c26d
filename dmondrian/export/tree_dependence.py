"""Partial dependence of a forest on some features, from its trees alone.

Relies on plain trees (:mod:`dmondrian.export.plain_trees`). Promises the definition below, up to
the rounding of sums.

**Definition** (Friedman, 2001, "Greedy function approximation", Annals of Statistics 29, section
8.2; the "recursion" of scikit-learn). At a value v of the features S, a tree is walked from its
root: at a split on a feature of S to the side of v alone, at another split to both sides, weighted
by the rows that were learned there. The partial dependence is the weighted mean of the values of
the leaves that are reached, and the mean of that over trees. Of a regressor that follows the stream
trees count by their weights in its mixtures, each with the rows that it has learned itself.

It is the mean forecast over rows with S set to v, where S is independent of the other features in
every cell: exactly so, for rows that are a product of values of S and values of the others. It
needs no rows, which a run does not keep, and whose files may be gone. Where S depends on others,
scikit-learn's ``partial_dependence(..., method="brute")`` averages over rows at hand instead, with
S set to values that may not occur beside theirs. Neither is what a change of S would cause.

Shapes: T trees, m nodes of a tree, g values, s features, k outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from dmondrian.errors import ParameterError
from dmondrian.export.plain_trees import plain_trees
from dmondrian.export.tree_arrays import PlainTree


def partial_dependence(estimator: Any, features: Sequence[int], values: ArrayLike) -> np.ndarray:
    """Return the mean forecast of a forest at values of some features, over rows it has learned.

    Parameters
    ----------
    estimator : fitted estimator of this package
        A forest that is a sum over leaves; of a run, of its encoded rows.
    features : sequence of int
        Columns of X, each once.
    values : array-like of shape (g, s)
        Values of these features, at which the others vary as in the rows learned.

    Returns
    -------
    float64 array of shape (g, k)
        Class probabilities before calibration, the mean label, or z on the scale of a generalised
        forest's loss.

    Raises
    ------
    ParameterError
        The forest is no tree ensemble; there is no such feature; or values are of another shape.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmondrian import AMFClassifier
    >>> from dmondrian.export import partial_dependence
    >>> X, y = load_iris(return_X_y=True)
    >>> forest = AMFClassifier(random_state=0).fit(X, y)
    >>> partial_dependence(forest, [2], [[1.0], [4.0], [6.0]]).argmax(axis=1)
    array([0, 1, 2])
    """
    check_is_fitted(estimator)
    if estimator._encodes_rows():
        raise ParameterError(
            'a forest with categories or missing_values="encode" splits on features that it makes '
            "of columns: sklearn.inspection.partial_dependence averages its predictions over rows"
        )
    d = estimator.n_features_in_
    try:
        which = np.asarray(list(features))
        with np.errstate(over="ignore"):  # beyond float32: infinity is found below
            points = np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise ParameterError(
            f"features are {features!r}, of which values are given: expected a list of numbers of "
            f"columns, and as many columns of numbers ({error})"
        ) from error
    are_places = which.ndim == 1 and which.size > 0 and which.dtype.kind in "iu"
    if (
        not are_places
        or len(np.unique(which)) < len(which)
        or not ((which >= 0) & (which < d)).all()
    ):
        raise ParameterError(f"features are {features!r}; expected some of 0 to {d - 1}")
    features = which.tolist()
    if points.ndim != 2 or points.shape[1] != len(features) or not np.isfinite(points).all():
        raise ParameterError(
            f"values have the shape {points.shape}; expected finite numbers (g, {len(features)}), "
            "a column for each of the features"
        )
    return dependence_of(plain_trees(estimator), features, points)


class Factor(NamedTuple):
    """Features that vary together, such as those of a column, and what they may be."""

    features: Sequence[int]  # [s]
    values: np.ndarray  # float32 [g, s]
    weights: np.ndarray  # float64 [g], above 0


def dependence_of(
    trees: Sequence[PlainTree], features: Sequence[int], values: np.ndarray
) -> np.ndarray:
    """Return the partial dependence of plain trees, float64 [g, k].

    Parameters
    ----------
    trees : sequence of PlainTree
    features : sequence of int
    values : float32 [g, s]
    """
    most = max((int(tree.feature.max()) for tree in trees), default=-1)
    place = np.full(max(most, *features) + 1, -1)
    place[list(features)] = np.arange(len(features))
    total = np.zeros((len(values), trees[0].value.shape[1]))
    for tree in trees:
        _add(tree, place, values, total)
    return total / len(trees)


def interaction_of(
    trees: Sequence[PlainTree], first: Factor, second: Factor
) -> tuple[float, float]:
    """Return how much two factors act together: a share, and a size in units of the forecast.

    Of the partial dependence on both, over all pairs of their values, the part that is no sum of a
    function of each: its variance as a share of the whole variance, 0 where the effects add up, and
    the root of its variance. Both count all outputs together. (Friedman, Popescu, 2008, "Predictive
    learning via rule ensembles", Annals of Applied Statistics 2, section 8.1, whose H^2 it is where
    the dependence on one factor is the mean over the other.)

    Parameters
    ----------
    trees : sequence of PlainTree
    first, second : Factor
        Of different features.
    """
    pairs = [(i, j) for i in range(len(first.values)) for j in range(len(second.values))]
    values = np.array([[*first.values[i], *second.values[j]] for i, j in pairs], np.float32)
    joint = dependence_of(trees, [*first.features, *second.features], values)
    joint = joint.reshape(len(first.values), len(second.values), -1)
    a, b = (each.weights / each.weights.sum() for each in (first, second))
    of_first, of_second = np.tensordot(joint, b, (1, 0)), np.tensordot(a, joint, (0, 0))
    mean = a @ of_first
    rest = joint - of_first[:, None] - of_second[None] + mean
    whole, of_both = (float(np.einsum("i,j,ijk->", a, b, each**2)) for each in (joint - mean, rest))
    return (of_both / whole if whole > 0.0 else 0.0), of_both**0.5


def _add(tree: PlainTree, place: np.ndarray, values: np.ndarray, total: np.ndarray) -> None:
    """Add the weighted mean of a tree's leaves to ``total`` [g, k], level by level."""
    here, share = np.zeros(1, np.int64), np.ones((1, len(values)))  # nodes, and their shares [., g]
    while len(here):
        is_leaf = tree.left[here] < 0
        total += share[is_leaf].T @ tree.value[here[is_leaf]]
        here, share = here[~is_leaf], share[~is_leaf]
        left, right = tree.left[here], tree.right[here]
        of_left = _of_left(tree.weight[left], tree.weight[right])[:, None]
        at = place[tree.feature[here]]
        is_asked = at >= 0
        to_left = np.repeat(of_left, len(values), axis=1)
        to_left[is_asked] = values.T[at[is_asked]] <= tree.threshold[here[is_asked], None]
        here = np.concatenate([left, right])
        share = np.concatenate([share * to_left, share * (1.0 - to_left)])
        is_reached = share.any(axis=1)
        here, share = here[is_reached], share[is_reached]


def _of_left(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the share of the left sides; a half where neither has rows of any weight."""
    both = left + right
    return np.divide(left, both, out=np.full(len(both), 0.5), where=both > 0.0)
