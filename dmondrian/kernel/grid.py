"""Lifetimes on a grid, by mini-batches that are warm-started: each cell goes on from its parent's.

Relies on :mod:`dmondrian.kernel.batches`. Promises that going on to a longer lifetime changes no
forecast of a row before it is heard again.

Shapes: n rows, T trees, k outputs, L lifetimes.

References: Balog et al. (2016), section 4.2.2.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from dmondrian.core import nodes
from dmondrian.forest import Forest
from dmondrian.joint import as_targets
from dmondrian.kernel.batches import joint_of, learn_batches, set_unit
from dmondrian.kernel.columns import leaves_of
from dmondrian.stats.values import VALUE, WEIGHT, write_values

_STEP = 1.4142135623730951  # from one lifetime of the grid to the next
_PATIENCE = 6  # so many lifetimes in a row much worse than the best: longer ones are not tried
_WORSE = 1.1  # times the best error: before cells tell anything errors only waver


def held_out_errors(
    forest: Forest,
    X: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray,
    held: np.ndarray,
    n_threads: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lifetimes [L], their numbers of columns [L], and errors of held-out rows [L].

    From before the first cut of the forest's trees to their end, or where errors have long risen.
    """
    is_learned = weights > 0.0
    is_learned[held] = False
    mine = X[is_learned], y[is_learned], weights[is_learned]
    targets = as_targets(y[held], joint_of(forest).n_outputs)
    times, columns, errors = [], [], []
    model: Forest | None = None
    for lifetime in grid_of(forest):
        model = lengthened(model, forest, lifetime, mine[0], mine[2], n_threads)
        learn_batches(model, *mine, n_threads, again=True)
        said = model.predict_sums(X[held], n_threads).mean
        times.append(lifetime)
        columns.append(sum(int(_has_rows(tree).sum()) for tree in model.trees))
        errors.append(float(((said - targets) ** 2).sum() / len(held)))
        if len(errors) > _PATIENCE and min(errors[-_PATIENCE:]) > _WORSE * min(errors):
            break
    return np.array(times), np.array(columns), np.array(errors)


def grid_of(forest: Forest) -> np.ndarray:
    """Return increasing lifetimes from the first cut to the end, float64 [L]."""
    end = forest.parameters.realised_lifetime
    times = [tree.d[: tree.head_i[nodes.N_NODES], nodes.TIME].min() for tree in forest.trees]
    first = min(float(min(times)), end)
    found = [end]
    while found[-1] > first:
        found.append(found[-1] / _STEP)  # a quotient: no processor's power has a say
    return np.array(found[::-1])


def lengthened(
    model: Forest | None,
    like: Forest,
    lifetime: float,
    X: np.ndarray,
    w: np.ndarray,
    n_threads: int,
) -> Forest:
    """Return the model of a longer lifetime, which says the same of rows until it hears them.

    ``model`` None: a new one, of trees like those of ``like``.
    """
    joint = dataclasses.replace(joint_of(like), solver="sgd")
    parameters = dataclasses.replace(like.parameters, lifetime=float(lifetime), joint=joint)
    longer = Forest(parameters, like.tree_numbers)
    k = joint.n_outputs
    super(Forest, longer).update(X, np.zeros(len(X)), w, n_threads)
    if model is None:
        return longer
    mine, its = leaves_of(longer, X), leaves_of(model, X)
    said = np.empty((len(X), k))
    for t, (tree, before) in enumerate(zip(longer.trees, model.trees, strict=True)):
        tree.head_f[:] = before.head_f
        write_values(model.policies.stat, before, np.ascontiguousarray(its[:, t]), said)
        new, old = mine[:, t], its[:, t]
        tree.d[new, WEIGHT] = np.minimum(before.d[old, WEIGHT], _heard(tree, new, before, old))
        root, top = int(tree.head_i[nodes.ROOT]), int(before.head_i[nodes.ROOT])
        top_said = np.empty((1, k))
        write_values(model.policies.stat, before, np.array([top]), top_said)
        for c in range(k):
            tree.d[root, VALUE + 2 * c] = top_said[0, c]
            tree.d[new, VALUE + 2 * c] = said[:, c]
        if tree.i[root, nodes.LEFT] >= 0:
            tree.d[root, WEIGHT] = before.d[top, WEIGHT]
    set_unit(longer)
    return longer


def _heard(tree: nodes.Tree, new: np.ndarray, before: nodes.Tree, old: np.ndarray) -> np.ndarray:
    """Return the weight that cells have heard: their share of that of the cells before."""
    share = tree.d[new, nodes.STAT] / before.d[old, nodes.STAT]
    told: np.ndarray = share * before.d[old, WEIGHT]
    return told


def _has_rows(tree: nodes.Tree) -> np.ndarray:
    used = int(tree.head_i[nodes.N_NODES])
    told: np.ndarray = (tree.i[:used, nodes.LEFT] < 0) & (tree.d[:used, nodes.STAT] > 0.0)
    return told
