"""The invariants hold after every row, and ``check`` notices when one is broken."""

from __future__ import annotations

import numpy as np
import pytest

from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.forest.forest import Forest
from dmondrian.tree import nodes
from dmondrian.tree.invariants import InvariantError, check
from dmondrian.tree.scaled_float import LARGEST_EXPONENT, LARGEST_ODDS


def grown(n_classes: int, split_pure: bool = True, max_nodes: int | None = None) -> Forest:
    rng = np.random.default_rng(3)
    algorithm = "amf-classifier" if n_classes else "amf-regressor"
    forest = Forest(
        ForestParameters(algorithm, 3, n_classes, 5, split_pure=split_pure, max_nodes=max_nodes),
        range(2),
    )
    X = np.round(rng.random((120, 3)), 1).astype(np.float32)
    y = rng.integers(0, n_classes, 120) if n_classes else rng.normal(size=120)
    for row in range(len(X)):
        forest.update(X[row : row + 1], y[row : row + 1].astype(np.float64))
        for tree in forest.trees:
            check(tree, paused=not split_pure or max_nodes is not None)
    return forest


@pytest.mark.parametrize("n_classes", [0, 1, 2, 5])
@pytest.mark.parametrize("split_pure", [False, True])
def test_invariants_hold_after_every_row(n_classes: int, split_pure: bool) -> None:
    # Regression has no pause; with one class and a pause the tree stays a single leaf.
    forest = grown(n_classes, split_pure or n_classes == 0)
    assert forest.n_nodes == 2 or forest.n_nodes > 50


def test_a_full_tree_goes_on_learning() -> None:
    forest = grown(2, split_pure=True, max_nodes=9)
    assert [int(tree.head_i[nodes.N_NODES]) for tree in forest.trees] == [9, 9]
    assert forest.total_weight == 120


def internal(tree: nodes.Tree) -> int:
    inside = np.flatnonzero(tree.i[: tree.head_i[nodes.N_NODES], nodes.LEFT] >= 0)
    return int(inside[inside != tree.head_i[nodes.ROOT]][-1])


def shorten(tree: nodes.Tree) -> None:
    nodes.set_time(tree, internal(tree), 1e-30)


def loosen(tree: nodes.Tree) -> None:
    tree.box[internal(tree), 0] -= 1


def miscount(tree: nodes.Tree) -> None:
    tree.d[internal(tree), nodes.STAT] += 1


def relink(tree: nodes.Tree) -> None:
    v = internal(tree)
    tree.i[v, nodes.LEFT] = tree.i[v, nodes.RIGHT]


def recut(tree: nodes.Tree) -> None:
    v = internal(tree)
    tree.f[v, nodes.THRESHOLD] = tree.box[v, tree.n_features + tree.i[v, nodes.FEATURE]]


def overflow(tree: nodes.Tree) -> None:
    tree.d[internal(tree), nodes.ODDS] = np.inf


def drift(tree: nodes.Tree) -> None:
    tree.d[internal(tree), nodes.ODDS] = 2.0 * LARGEST_ODDS


def run_away(tree: nodes.Tree) -> None:
    tree.i[internal(tree), nodes.EXPONENT] = LARGEST_EXPONENT + 1


DAMAGES = [shorten, loosen, miscount, relink, recut, overflow, drift, run_away]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed(damage) -> None:
    tree = grown(2).trees[0]
    damage(tree)
    with pytest.raises(InvariantError):
        check(tree)


@pytest.mark.parametrize("sign", [-1, 1])
def test_odds_may_be_as_far_from_one_as_exponents_go(sign: int) -> None:
    tree = grown(2).trees[0]
    tree.i[internal(tree), nodes.EXPONENT] = sign * LARGEST_EXPONENT
    check(tree)


def test_several_rows_in_a_leaf_are_noticed() -> None:
    forest = grown(2, split_pure=False)
    with pytest.raises(InvariantError, match="one distinct row"):
        check(forest.trees[0], paused=False)
