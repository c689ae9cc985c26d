"""Capacity of trees as they grow."""

import copy
import hashlib
import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest

from dmondrian import AMFRegressor
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.tree import nodes
from tests.tree.test_nodes import two_valued


def test_capacity_is_not_made_for_more_nodes_than_a_tree_may_have():
    rng = np.random.default_rng(0)
    X = rng.random((40_000, 16), np.float32)
    capped = AMFRegressor(1, max_nodes=12_000, random_state=0, feature_scales=None)
    assert len(capped.fit(X, X[:, 0]).forest_.trees[0].i) < 2 * 12_000


def _learned(cuts, n_jobs=1, n=60_000):
    X = np.random.default_rng(0).random((60_000, 3), np.float32)[:n]
    forest = AMFRegressor(n_estimators=2, random_state=0, feature_scales=None, n_jobs=n_jobs)
    for first, last in itertools.pairwise([0, *cuts, len(X)]):
        forest.partial_fit(X[first:last], X[first:last, 0])
    return forest.forest_


def _digest(forest):
    arrays = [tree[name] for tree in forest.state()[1] for name in sorted(tree)]
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


@pytest.mark.parametrize("weight", [None, 0.5, 4.0])
def test_rows_as_many_as_half_of_all_before_may_be_the_last(weight):
    X = np.random.default_rng(0).random((2000, 3), np.float32)
    forest = Ensemble(ForestParameters("amf-regressor", 3, 0, seed=0), range(2))
    w = None if weight is None else np.full(2000, weight)
    assert forest.may_be_last(X[:1, 0], w if w is None else w[:1])
    forest.update(X, X[:, 0].astype(float), w)
    for n in (999, 1000):
        assert forest.may_be_last(X[:n, 0], w if w is None else w[:n]) == (n == 1000)
        assert forest.may_be_last(X[:n, 0], np.full(n, weight or 1.0)) == (n == 1000)


@pytest.mark.parametrize(
    "cuts",
    [
        [30_000],  # given back twice
        [20_000, 40_001, 40_002],  # then by one row
        [20_000, *range(21_000, 60_000, 1000)],
        [1, 1000, 3000, 7000, 15_000, 31_000],
    ],
)
def test_capacity_that_was_given_back_changes_no_byte(cuts):
    assert _digest(_learned(cuts)) == _digest(_learned([]))


@pytest.mark.parametrize("cuts", [[], range(5000, 60_000, 500)])
def test_trees_that_have_grown_take_at_most_twice_what_their_nodes_do(cuts):
    """As the README has it of the moment at which they grow."""
    forest = _learned(cuts)
    for tree in forest.store.trees:
        arrays = tree.i, tree.box, tree.bits
        per_node = sum(array[:1].nbytes for array in arrays)
        used = int(tree.head_i[nodes.N_NODES])
        assert used * per_node <= nodes.tree_bytes(tree) <= 2 * used * per_node
    assert forest.n_bytes == sum(map(nodes.tree_bytes, forest.store.trees))


LIMITED = """
import resource
from tests.ensemble.test_tree_memory import _digest, _learned
_learned(range(100, 15_000, 500), n=15_000)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
_, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (size + 23 * 2**20, hard))
forest = _learned(range(100, 22_000, 500), n=22_000)
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
print(_digest(forest))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="others do not limit addresses")
def test_trees_grow_where_addresses_for_spare_capacity_are_limited():
    command = [sys.executable, "-W", "ignore", "-c", LIMITED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == _digest(_learned([], n=22_000))


def test_all_arrays_of_a_tree_give_back():
    tree = nodes.resize(nodes.make_tree(two_valued(), 1, 64), 500)
    tree.head_i[nodes.N_NODES] = used = 100
    for array in (tree.i, tree.box, tree.bits):
        array[:used] = 1
    fewer = nodes.give_back(tree)
    assert nodes.give_back(fewer) is fewer
    for array in (fewer.i, fewer.box, fewer.bits):
        assert len(array) == used
        assert (array == 1).all()
    assert np.shares_memory(fewer.i, fewer.d)


def test_capacity_that_was_reserved_is_kept():
    X = np.random.default_rng(0).random((1000, 3), np.float32)
    forest = Ensemble(ForestParameters("amf-regressor", 3, 0, seed=0), range(2))
    forest.reserve(50_000)
    forest.update(X, X[:, 0].astype(float))
    assert [len(tree.i) for tree in forest.store.trees] == [50_000] * 2


def _grown_forest():
    rng = np.random.default_rng(0)
    X = rng.random((12_000, 3), np.float32)
    forest = AMFRegressor(n_estimators=1, random_state=0, feature_scales=None)
    return forest.partial_fit(X[:9000], X[:9000, 0]), X


@pytest.mark.parametrize("same", [copy.deepcopy, lambda forest: pickle.loads(pickle.dumps(forest))])
def test_a_copy_grows_apart(same):
    forest, X = _grown_forest()
    other = same(forest)
    before = forest.predict(X)
    other.partial_fit(X[9000:], X[9000:, 1])
    assert np.array_equal(forest.predict(X), before)
    assert int(forest.forest_.trees[0].head_i[nodes.N_NODES]) == 2 * 9000 - 1
    forest.partial_fit(X[9000:], X[9000:, 0])
    assert not np.array_equal(forest.predict(X), other.predict(X))
