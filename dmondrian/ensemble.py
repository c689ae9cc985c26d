"""Trees by number, fed with one stream of rows: the two operations learn and predict.

Relies on the kernels of :mod:`dmondrian.core.loops`. Promises that the trees are a pure
function of the parameters, their numbers and the rows in order: neither the cuts between
calls nor the number of threads changes a byte.

Shapes: n rows, d features, K classes, k outputs (K, or 1 for regression), T trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from dmondrian.core import nodes
from dmondrian.core.loops import predict, update
from dmondrian.errors import ParameterError
from dmondrian.losses.depth import Depth
from dmondrian.parameters import ForestParameters, policies

_FIRST_CAPACITY = 64
_MAX_CAPACITY = 2**31 - 2  # node ids are int32
_CHUNK = 4096  # rows of a prediction task: enough to keep a tree in cache
_NO_WEIGHTS = np.empty(0)
_NONE_2D, _NONE_1D = np.empty((0, 0)), np.empty(0)


class Sums(NamedTuple):
    """Predictions summed over trees in the order of their numbers."""

    total: np.ndarray  # float64 [n, k]
    square: np.ndarray | None  # float64 [n, k], squares
    distance: np.ndarray | None  # float64 [n], sum of extensions to the leaf's box
    n_trees: int


def run_threads(work: Callable[[Any], Any], items: Sequence[Any], n_threads: int) -> None:
    """Call ``work`` on every item, on up to ``n_threads`` threads."""
    if n_threads <= 1 or len(items) <= 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(min(n_threads, len(items))) as pool:
        for _ in pool.map(work, items):
            pass


class Ensemble:
    """Trees with consecutive or chosen numbers, all fed with one stream of rows.

    Parameters
    ----------
    parameters : ForestParameters
    tree_numbers : iterable of int
        Distinct, >= 0; a tree's draws depend on its number, not on its neighbours.
    """

    def __init__(self, parameters: ForestParameters, tree_numbers: Iterable[int]) -> None:
        numbers = np.array(sorted(int(t) for t in tree_numbers), np.int64)
        if len(numbers) and (numbers[0] < 0 or (np.diff(numbers) == 0).any()):
            raise ParameterError(f"tree numbers should be distinct and >= 0, got {numbers}")
        self.parameters = parameters
        self.tree_numbers = numbers
        self.policies = policies(parameters)
        scales = parameters.feature_scales
        self._scales = None if scales is None else np.array(scales, np.float32)
        self._is_torn = False
        self.trees = [
            nodes.make_tree(parameters.n_features, parameters.n_stats, _FIRST_CAPACITY)
            for _ in numbers
        ]

    @property
    def n_outputs(self) -> int:
        """Width of a prediction: classes, or 1."""
        return max(self.parameters.n_classes, 1)

    @property
    def n_nodes(self) -> int:
        """Nodes in use over all trees."""
        return int(sum(tree.head_i[nodes.N_NODES] for tree in self.trees))

    @property
    def n_bytes(self) -> int:
        """Bytes of memory held by the trees, spare room included."""
        return int(sum(tree.i.nbytes for tree in self.trees))

    @property
    def total_weight(self) -> float:
        """Weight of the rows learned."""
        return float(self.trees[0].head_f[nodes.TOTAL_WEIGHT]) if self.trees else 0.0

    def update(
        self, X: np.ndarray, y: np.ndarray, w: np.ndarray | None = None, n_threads: int = 1
    ) -> None:
        """Learn rows in order.

        Parameters
        ----------
        X : float32 [n, d], C-contiguous
        y : float64 [n]
            Class index, or label.
        w : float64 [n], optional
            Weights >= 0; rows of weight 0 are passed over.
        n_threads : int
            Threads over trees.
        """
        weights = _NO_WEIGHTS if w is None else read_only(w)
        X, y = self._scaled(X), read_only(y)

        def learn(index: int) -> None:
            self._learn(index, X, y, weights)

        self._check_whole()
        self._is_torn = True  # until all trees have learned the same rows
        run_threads(learn, range(len(self.trees)), n_threads)
        self._is_torn = False

    def _check_whole(self) -> None:
        """Refuse trees that were interrupted, each at another row, while they learned."""
        if self._is_torn:
            raise ParameterError(
                "learning was interrupted, and the trees have learned different rows: fit anew, "
                "or load what was saved before"
            )

    def _take(self, other: Ensemble) -> None:
        """Become ``other``."""
        for name in ("parameters", "tree_numbers", "policies", "trees", "_scales"):
            setattr(self, name, getattr(other, name))

    def _scaled(self, X: np.ndarray) -> np.ndarray:
        """Return rows as the kernels take them."""
        self._check_width(X)
        return read_only(X if self._scales is None else X * self._scales)

    def _check_width(self, X: np.ndarray) -> None:
        """Refuse rows of another width, which no kernel would notice."""
        if X.ndim != 2 or X.shape[1] != self.parameters.n_features:
            raise ParameterError(
                f"rows should have {self.parameters.n_features} features, got shape {X.shape}"
            )

    def _learn(self, index: int, X: np.ndarray, y: np.ndarray, w: np.ndarray) -> None:
        seed, number = np.uint64(self.parameters.seed), np.uint64(self.tree_numbers[index])
        row = 0
        while True:
            tree = self.trees[index]
            row = update(*self.policies, tree, seed, number, X, y, w, row)
            if row >= len(X):
                return
            if len(tree.i) >= _MAX_CAPACITY:
                raise ParameterError("a tree reached 2^31 nodes: set max_nodes")
            room = max(2 * len(tree.i), _FIRST_CAPACITY)  # a stored empty tree has none
            self.trees[index] = nodes.resize(tree, min(room, _MAX_CAPACITY))

    def predict_sums(
        self,
        X: np.ndarray,
        n_threads: int = 1,
        spread: bool = False,
        distance: bool = False,
        onto: Sums | None = None,
    ) -> Sums:
        """Sum the trees' predictions, in the order of their numbers.

        Trees are added one by one, so sums over trees 0 to 4 continued over trees 5 to 9 are to
        the last bit those over trees 0 to 9.

        Parameters
        ----------
        X : float32 [n, d], C-contiguous
        n_threads : int
            Threads over chunks of rows.
        spread, distance : bool
            Also sum squares, and the extensions to each leaf's box.
        onto : Sums, optional
            Sums over trees with lower numbers, of the same rows and kinds, to go on from; they
            are left as they are.
        """
        self._check_whole()
        n, k = len(X), self.n_outputs
        X = self._scaled(X)
        total = np.zeros((n, k)) if onto is None else _continued(onto.total, (n, k))
        square, far = None, None
        if spread:
            square = np.zeros((n, k)) if onto is None else _continued(onto.square, (n, k))
        if distance:
            far = np.zeros(n) if onto is None else _continued(onto.distance, (n,))

        def work(start: int) -> None:
            rows = slice(start, min(start + _CHUNK, n))
            self._predict_chunk(
                X[rows],
                total[rows],
                _NONE_2D if square is None else square[rows],
                _NONE_1D if far is None else far[rows],
            )

        run_threads(work, range(0, n, _CHUNK), n_threads)
        n_trees = len(self.trees) + (0 if onto is None else onto.n_trees)
        return Sums(total, square, far, n_trees)

    def _predict_chunk(
        self, X: np.ndarray, total: np.ndarray, square: np.ndarray, distance: np.ndarray
    ) -> None:
        scratch = np.empty((2, self.n_outputs))
        extensions = np.empty(self.parameters.n_features)
        for tree in self.trees:
            if tree.head_i[nodes.N_NODES] == 0:
                total += 1.0 / self.n_outputs if self.parameters.n_classes else 0.0
                if len(square):
                    square += 1.0 / self.n_outputs**2 if self.parameters.n_classes else 0.0
            else:
                mine = tree._replace(scratch=extensions)  # other threads read this tree too
                predict(*self.policies, mine, X, scratch, total, square, distance)

    def weighted_depth(self, X: np.ndarray) -> np.ndarray:
        """Return the posterior mean depth of each row's leaf, mean over trees, float64 [n]."""
        chosen = self.policies._replace(loss=Depth(1.0))
        total = np.zeros((len(X), 1))
        X, scratch = self._scaled(X), np.empty((2, 1))
        extensions = np.empty(self.parameters.n_features)
        for tree in self.trees:
            if tree.head_i[nodes.N_NODES] > 0:
                mine = tree._replace(scratch=extensions)
                predict(*chosen, mine, X, scratch, total, _NONE_2D, _NONE_1D)
        return total[:, 0] / max(len(self.trees), 1)


def _continued(sums: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    """Return a copy of sums that trees may be added to."""
    if sums is None or sums.shape != shape:
        found = None if sums is None else sums.shape
        raise ParameterError(f"sums to go on from should have shape {shape}, got {found}")
    return np.array(sums, np.float64, order="C")


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view: one form of argument, so one compilation."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
