"""Memory of trees as they grow."""

import copy
import hashlib
import itertools
import mmap
import os
import pickle
import resource
import subprocess
import sys

import numpy as np
import pytest

from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.tree_store import TreeStore
from dmondrian.tree import nodes
from dmondrian.tree.memory import LARGE_PAGE, LEAST, bytes_held, trimmed
from tests.tree.pages import (
    large,
    needs_collapse,
    needs_large_pages,
    needs_population,
    needs_ranges,
    resident,
)
from tests.tree.test_nodes import two_valued


def test_room_is_not_made_for_more_nodes_than_a_tree_may_have():
    rng = np.random.default_rng(0)
    X = rng.random((40_000, 16), np.float32)
    capped = AMFRegressor(1, max_nodes=12_000, random_state=0, feature_scales=None)
    assert len(capped.fit(X, X[:, 0]).forest_.trees[0].i) < 2 * 12_000


@needs_ranges
@needs_large_pages
@needs_collapse
@pytest.mark.parametrize("batch", [10_000, 25_000])
def test_trees_of_many_batches_lie_in_large_pages(batch):
    X = np.random.default_rng(0).random((100_000, 3), np.float32)
    forest = AMFRegressor(n_estimators=1, random_state=0, feature_scales=None)
    for first in range(0, len(X), batch):
        forest.partial_fit(X[first : first + batch], X[first : first + batch, 0])
    used = 200_000 * 64
    # A system that is short of large pages gives fewer.
    assert large(forest.forest_.trees[0].i) > used / 2


def _bytes_per_node(n, batch, w=None):
    X = np.random.default_rng(0).random((n, 3), np.float32)
    forest = AMFRegressor(n_estimators=2, random_state=0, feature_scales=None)
    for first in range(0, n, batch):
        forest.partial_fit(X[first : first + batch], X[first : first + batch, 0], sample_weight=w)
    return forest.forest_.n_bytes / forest.forest_.n_nodes


@needs_ranges
@pytest.mark.parametrize("n", [1000, 3000, 7000, 12_000, 18_000, 30_000, 50_000])
def test_rows_that_come_at_once_leave_little_room_to_spare(n):
    """Of 88 bytes: 64 of words, 24 of boxes (3 features)."""
    assert _bytes_per_node(n, n) < 1.13 * 88


def _learned(cuts, n_jobs=1):
    X = np.random.default_rng(0).random((60_000, 3), np.float32)
    forest = AMFRegressor(n_estimators=2, random_state=0, feature_scales=None, n_jobs=n_jobs)
    for first, last in itertools.pairwise([0, *cuts, len(X)]):
        forest.partial_fit(X[first:last], X[first:last, 0])
    return forest.forest_


def _digest(forest):
    arrays = [tree[name] for tree in forest.state()[1] for name in sorted(tree)]
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


@needs_ranges
@needs_large_pages
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_trees_tell_what_memory_they_take_once_rows_that_came_at_once_are_learned(n_jobs):
    forest = _learned([], n_jobs)
    for tree in forest.store.trees:
        for array in (tree.i, tree.box):
            used = 2 * 60_000 - 1
            # A system that is short of large pages gives fewer.
            assert resident(array) <= bytes_held(array, used)
            assert bytes_held(array, used) < used * array[:1].nbytes * 13 / 12 + mmap.PAGESIZE
            assert large(array) > used * array[:1].nbytes / 2


@needs_ranges
@needs_large_pages
def test_all_arrays_of_a_tree_give_back():
    tree = nodes.resize(nodes.make_tree(two_valued(), 1, 64), 200_000, 200_000)
    arrays = tree.i, tree.box, tree.bits
    tree.head_i[nodes.N_NODES] = used = 100
    for array in arrays:
        array[:used] = 1
    assert [bytes_held(array, used) for array in arrays] == [LARGE_PAGE] * 3
    fewer = nodes.give_back(tree)
    for array, left in zip(arrays, (fewer.i, fewer.box, fewer.bits), strict=True):
        assert len(left) == used
        assert resident(array) == -(-left.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        assert (left == 1).all()


@pytest.mark.parametrize("weight", [None, 0.5, 4.0])
def test_rows_are_much_from_half_of_all_before_on(weight):
    X = np.random.default_rng(0).random((2000, 3), np.float32)
    forest = Ensemble(ForestParameters("amf-regressor", 3, 0, seed=0), range(2))
    w = None if weight is None else np.full(2000, weight)
    assert forest.are_much(X[:1, 0], w if w is None else w[:1])
    forest.update(X, X[:, 0].astype(float), w)
    for n in (999, 1000):
        assert forest.are_much(X[:n, 0], w if w is None else w[:n]) == (n == 1000)
        assert forest.are_much(X[:n, 0], np.full(n, weight or 1.0)) == (n == 1000)


@needs_ranges
@needs_large_pages
def test_room_that_was_reserved_is_kept():
    X = np.random.default_rng(0).random((1000, 3), np.float32)
    forest = Ensemble(ForestParameters("amf-regressor", 3, 0, seed=0), range(2))
    forest.reserve(2 * LARGE_PAGE // 64)
    forest.update(X, X[:, 0].astype(float))
    for tree in forest.store.trees:
        assert bytes_held(tree.i, 2 * len(X) - 1) == LARGE_PAGE


def test_small_trees_with_room_reserved_lie_in_memory_that_others_left():
    """They come and go by hundreds, and fresh memory would take as long as they learn."""
    forest = Ensemble(ForestParameters("amf-regressor", 3, 0, seed=0), range(1))
    forest.reserve(LEAST // 64)
    (tree,) = forest.store.trees
    assert len(tree.i) == LEAST // 64
    assert trimmed(tree.i, 1) is tree.i  # no range


@needs_ranges
@pytest.mark.parametrize(
    "cuts",
    [
        [30_000],  # given back twice
        [20_000, 40_001, 40_002],  # in small pages, then by one row
        [20_000, *range(21_000, 60_000, 1000)],  # by a few, into large ones again
        [1, 1000, 3000, 7000, 15_000, 31_000],
    ],
)
def test_memory_that_was_given_back_changes_no_byte(cuts):
    assert _digest(_learned(cuts)) == _digest(_learned([]))


@needs_ranges
def test_so_they_do_where_some_are_forecast_before():
    X = np.random.default_rng(0).random((18_000, 3), np.float32)
    forest = AMFRegressor(2, random_state=0, feature_scales=None, calibrate=True).fit(X, X[:, 0])
    assert forest.forest_.n_bytes / forest.forest_.n_nodes < 1.13 * 96


@needs_ranges
@pytest.mark.parametrize("weight", [0.001, 50.0, 1e9])
def test_so_they_do_whatever_they_weigh(weight):
    assert _bytes_per_node(20_000, 20_000, np.full(20_000, weight)) < 1.13 * 88


def _noisy_classes():
    """Return a classifier of one tree, and rows of 20 features that add 1.2 nodes each."""
    rng = np.random.default_rng(0)
    X = rng.random((300_000, 20), np.float32)
    y = X[:, 0] + X[:, 1] > 2.0 * rng.random(len(X))
    forest = AMFClassifier(1, random_state=0, feature_scales=None, alpha=0.5)
    return forest.partial_fit(X[:1], y[:1], classes=[0, 1]), X, y


def _labels():
    """Return a regressor of one tree, and rows of 20 features that add two nodes each."""
    X = np.random.default_rng(0).random((180_000, 20), np.float32)
    forest = AMFRegressor(1, random_state=0, feature_scales=None)
    return forest.partial_fit(X[:1], X[:1, 0]), X, X[:, 0] + X[:, 1]


def _two_valued():
    """As :func:`_labels` does, where four features are bits beside the box."""
    forest, X, y = _labels()
    X[:, 16:] = X[:, 16:] > 0.5
    forest = AMFRegressor(1, random_state=0, feature_scales=None)
    return forest.partial_fit(X[:1], y[:1]), X, y


@needs_ranges
@pytest.mark.parametrize("rows", [_noisy_classes, _labels, _two_valued])
@pytest.mark.parametrize("batch", [1, 50, 5000])
def test_streams_leave_little_room(rows, batch):
    """Of 144 bytes: 64 of words, 80 of boxes (20 features, rounded), from arrays of 64 KiB on.

    Labels have their time beside the box, which takes 8 more, and nodes that were moved 4.
    """
    forest, X, y = rows()
    most, n_nodes = 0.0, 0
    for k, first in enumerate(range(1, len(X), batch)):
        forest.partial_fit(X[first : first + batch], y[first : first + batch])
        if k % max(50 // batch, 1) == 0:
            n_nodes = forest.forest_.n_nodes
            if n_nodes > 1.5 * 1024:  # what was copied before has half of itself to spare
                most = max(most, forest.forest_.n_bytes / n_nodes)
    assert n_nodes > 6 * LARGE_PAGE // 80
    assert 144 < most < 170


@needs_ranges
@needs_population
@pytest.mark.parametrize("batch", [29_999, 500])
def test_rows_that_come_alone_find_the_memory_of_their_nodes_taken(batch):
    forest, X, y = _noisy_classes()
    n = 1 + 29_999 // batch * batch
    for first in range(1, n, batch):
        forest.partial_fit(X[first : first + batch], y[first : first + batch])
    for first in range(n, n + 3 * 256, 256):
        forest.partial_fit(X[first : first + 1], y[first : first + 1])  # asks for those of 256 rows
        (tree,) = forest.forest_.store.trees
        used = int(tree.head_i[nodes.N_NODES])
        for array in (tree.i, tree.box):
            room = min(used + 500, len(array)) * array[:1].nbytes
            assert room <= bytes_held(array, used) <= resident(array)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for r in range(first + 1, first + 256):
            forest.partial_fit(X[r : r + 1], y[r : r + 1])
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 5
        assert forest.forest_.n_nodes - used > 250  # of 9 pages


def _counted(forest, X, y, monkeypatch):
    """Return for how many nodes memory is asked for as the forest learns rows alone, each time."""
    asked = []

    def count(store, n_rows):
        asked.append(n_rows)
        take_ahead(store, n_rows)

    take_ahead = TreeStore.take_ahead
    with monkeypatch.context() as patch:
        patch.setattr(TreeStore, "take_ahead", count)
        for r in range(len(X)):
            forest.partial_fit(X[r : r + 1], y[r : r + 1])
    return asked


def test_memory_for_rows_alone_is_not_asked_for_row_by_row_while_settings_are_chosen(monkeypatch):
    X = np.random.default_rng(0).random((3000, 3), np.float32)
    forest = AMFRegressor(1, warmup_rows=60_000, random_state=0).partial_fit(X, X[:, 0])
    asked = _counted(forest, X[:1000], X[:1000, 0], monkeypatch)
    assert set(asked) == {256}
    assert len(asked) % 4 == 0  # four times of each forest that learns
    forest.partial_fit(X[:300], X[:300, 0])  # into memory that was taken for other rows
    assert len(_counted(forest, X[:1], X[:1, 0], monkeypatch)) == len(asked) / 4


@needs_ranges
@needs_population
def test_no_memory_is_taken_for_nodes_that_a_tree_may_not_have():
    X = np.random.default_rng(0).random((8000, 20), np.float32)
    capped = AMFRegressor(1, max_nodes=9000, random_state=0, feature_scales=None)
    for r in range(len(X)):
        capped.partial_fit(X[r : r + 1], X[r : r + 1, 0])
    (tree,) = capped.forest_.store.trees
    for array in (tree.i, tree.box):
        assert resident(array) <= 9000 * array[:1].nbytes + mmap.PAGESIZE


_LOCKED = """
import ctypes, resource, sys
import numpy as np
from dmondrian import AMFRegressor
from tests.tree.pages import peak_from_here
X = np.random.default_rng(0).random((8000, 3), np.float32)
forest = AMFRegressor(n_estimators=2, random_state=0, feature_scales=None)
forest.partial_fit(X[:1000], X[:1000, 0])
if ctypes.CDLL(None).mlockall(2):  # MCL_FUTURE
    sys.exit(77)
told = peak_from_here()
for first in range(1000, len(X), 1000):
    forest.partial_fit(X[first : first + 1000], X[first : first + 1000, 0])
print(told() / forest.forest_.n_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux locks memory")
def test_a_program_that_locks_its_memory_is_not_filled_with_addresses():
    run = subprocess.run([sys.executable, "-c", _LOCKED], capture_output=True, text=True)
    if run.returncode == 77:
        pytest.skip("memory may not be locked here")
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 5


@needs_ranges
@needs_large_pages
def test_boxes_that_are_written_another_way_take_no_more_room():
    rng = np.random.default_rng(0)
    X = rng.random((30_000, 16), np.float32)
    y = X[:, 0] + X[:, 1] > 2.0 * rng.random(len(X))
    forest = AMFClassifier(1, random_state=0, feature_scales=None, alpha=0.5)
    for first in range(0, 28_000, 50):
        forest.partial_fit(X[first : first + 50], y[first : first + 50], classes=[0, 1])
    width = forest.forest_.store.trees[0].box.shape[1]
    X[28_000, 0] = 300.0
    for first in range(28_000, len(X), 50):
        forest.partial_fit(X[first : first + 50], y[first : first + 50])
        (tree,) = forest.forest_.store.trees
        assert forest.forest_.n_bytes / forest.forest_.n_nodes < 140  # of 128, then 132
    assert tree.box.shape[1] != width


def _grown_forest():
    rng = np.random.default_rng(0)
    X = rng.random((12_000, 3), np.float32)
    forest = AMFRegressor(n_estimators=1, random_state=0, feature_scales=None)
    return forest.partial_fit(X[:9000], X[:9000, 0]), X


@pytest.mark.parametrize("same", [copy.deepcopy, lambda forest: pickle.loads(pickle.dumps(forest))])
def test_a_copy_grows_apart(same):
    forest, X = _grown_forest()
    assert forest.forest_.trees[0].i.nbytes > LEAST
    other = same(forest)
    before = forest.predict(X)
    other.partial_fit(X[9000:], X[9000:, 1])
    assert np.array_equal(forest.predict(X), before)
    assert int(forest.forest_.trees[0].head_i[nodes.N_NODES]) == 2 * 9000 - 1
    forest.partial_fit(X[9000:], X[9000:, 0])
    assert not np.array_equal(forest.predict(X), other.predict(X))


_RUN = """
import hashlib, resource, sys
import numpy as np
from dmondrian import AMFRegressor
from tests.tree.pages import peak_from_here
if sys.argv[1] == "limited":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
X = np.random.default_rng(0).random((150_000, 3), np.float32)
forest = AMFRegressor(n_estimators=1, random_state=0, feature_scales=None)
forest.partial_fit(X[:1000], X[:1000, 0])
forest.predict(X[:10])
told = peak_from_here()
forest.partial_fit(X[:20_000], X[:20_000, 0])
for first in range(20_000, len(X), 1000):
    forest.partial_fit(X[first : first + 1000], X[first : first + 1000, 0])
grown = told()
state = forest.forest_.state()[1][0]
digest = hashlib.sha256(b"".join(state[name].tobytes() for name in sorted(state))).hexdigest()
print(digest, grown / forest.forest_.n_bytes)
"""


@needs_ranges
def test_growth_takes_little_more_memory_than_the_tree_and_leaves_its_bytes():
    """A single tree, the worst case: what is copied is the whole forest."""
    told = {}
    for how in ("free", "limited"):
        run = subprocess.run(
            [sys.executable, "-c", _RUN, how], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )  # fmt: skip
        told[how] = run.stdout.split()
    assert told["free"][0] == told["limited"][0]
    assert float(told["free"][1]) < 1.3 < float(told["limited"][1])


_AT_ONCE = """
import sys
import numpy as np
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.settings.parameters import ForestParameters
from tests.tree.pages import peak_from_here
X = np.random.default_rng(0).random((int(sys.argv[1]), 3), np.float32)
y = X[:, 0].astype(float)
forest = Ensemble(ForestParameters("amf-regressor", 3, 0, seed=0, learning_rate=8.0), range(1))
forest.update(X[:100], y[:100])
grown = peak_from_here()
forest.update(X, y)
print(grown() / forest.n_bytes)
"""


@needs_ranges
@pytest.mark.parametrize("n", [5000, 17_000, 30_000, 100_000])
def test_so_it_does_where_rows_come_at_once(n):
    """With what rebuilds the weights of a regressor whose learning rate changed."""
    run = subprocess.run(
        [sys.executable, "-c", _AT_ONCE, str(n)], capture_output=True, text=True, check=True
    )
    assert float(run.stdout) < 1.3
