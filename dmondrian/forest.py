"""A forest: parameters, trees by number, and the two operations learn and predict.

Relies on the kernels of :mod:`dmondrian.core.loops`. Promises that its state is a pure
function of the parameters, the tree numbers and the rows in order: neither the cuts
between calls nor the number of threads changes a byte.

Shapes: n rows, d features, K classes, k outputs (K, or 1 for regression), T trees.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dmondrian import state
from dmondrian.core import nodes
from dmondrian.core.loops import predict, update
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.growth.range import Range
from dmondrian.losses.depth import Depth
from dmondrian.losses.kt import KT
from dmondrian.losses.squared import Squared
from dmondrian.rules.aggregate import Aggregate, Leaf
from dmondrian.stats.counts import Counts
from dmondrian.stats.moments import MOMENTS, Moments

_FIRST_CAPACITY = 64
_MAX_CAPACITY = 2**31 - 2  # node ids are int32
_CHUNK = 4096  # rows of a prediction task: enough to keep a tree in cache
_NO_WEIGHTS = np.empty(0)
_NONE_2D, _NONE_1D = np.empty((0, 0)), np.empty(0)
_NO_CAP = np.iinfo(np.int64).max


@dataclass(frozen=True)
class ForestParameters:
    """All that the bytes of a forest depend on besides its rows.

    Attributes
    ----------
    algorithm : {"amf-classifier", "amf-regressor"}
    n_features : int
    n_classes : int
        0 for regression.
    seed : int
        In [0, 2^64).
    alpha : float
        Dirichlet pseudo-count of a class (classification).
    learning_rate : float
        Classification: exponent of the price factor. Regression: learning rate times
        the variance of the labels; 0 means the theorem's 1 / (8 B^2).
    charge_opening : bool
        Whether the row that opens a leaf is priced there.
    use_aggregation : bool
        Mix over all prunings; else the leaf alone speaks.
    split_pure : bool
        Split leaves whose rows carry one label (classification).
    expected_extension : bool
        Predict the expectation over extensions of the tree by the point.
    max_nodes : int or None
        Cap on the nodes of a tree.
    """

    algorithm: str
    n_features: int
    n_classes: int
    seed: int
    alpha: float = 0.5
    learning_rate: float = 1.0
    charge_opening: bool = True
    use_aggregation: bool = True
    split_pure: bool = False
    expected_extension: bool = False
    max_nodes: int | None = None

    @property
    def n_stats(self) -> int:
        """Statistics of a node, in doubles."""
        return 1 + self.n_classes if self.n_classes else MOMENTS

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as a JSON-able dict."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ForestParameters:
        """Return the parameters of :meth:`to_json`, checked.

        Raises
        ------
        CorruptError
            If a key is missing or unknown, or a value has the wrong type or range.
        """
        kinds: dict[str, tuple[type, ...]] = {
            "algorithm": (str,),
            "n_features": (int,),
            "n_classes": (int,),
            "seed": (int,),
            "alpha": (float, int),
            "learning_rate": (float, int),
            "charge_opening": (bool,),
            "use_aggregation": (bool,),
            "split_pure": (bool,),
            "expected_extension": (bool,),
            "max_nodes": (int, type(None)),
        }
        if not isinstance(values, dict) or set(values) != set(kinds):
            raise CorruptError(f"forest parameters should have the keys {sorted(kinds)}")
        for key, value in values.items():
            is_bool = isinstance(value, bool)
            if not isinstance(value, kinds[key]) or (is_bool and bool not in kinds[key]):
                raise CorruptError(f"forest parameter {key} has an impossible value {value!r}")
        parameters = cls(**values)
        parameters.check()
        return parameters

    def check(self) -> None:
        """Raise :class:`CorruptError` where values are out of range together."""
        is_classifier = self.algorithm == "amf-classifier"
        sound = (
            self.algorithm in ("amf-classifier", "amf-regressor")
            and 1 <= self.n_features < 2**24
            and (1 <= self.n_classes < 2**24 if is_classifier else self.n_classes == 0)
            and 0 <= self.seed < 2**64
            and 0.0 < self.alpha < np.inf
            and 0.0 <= self.learning_rate < np.inf
            and (self.max_nodes is None or self.max_nodes >= 1)
        )
        if not sound:
            raise CorruptError(f"forest parameters are out of range: {self}")


class Policies(NamedTuple):
    """The four choices that make an algorithm."""

    growth: Any
    stat: Any
    loss: Any
    rule: Any


def policies(p: ForestParameters) -> Policies:
    """Return the policies of ``p``'s algorithm."""
    cap = _NO_CAP if p.max_nodes is None else int(p.max_nodes)
    rule = Aggregate(True) if p.use_aggregation else Leaf(False)
    pause = p.n_classes > 0 and not p.split_pure
    growth = Range(pause, bool(p.expected_extension), int(cap))
    rate, charge = float(p.learning_rate), bool(p.charge_opening)
    if p.n_classes > 0:
        loss = KT(float(p.alpha), int(p.n_classes), rate, charge)
        return Policies(growth, Counts(int(p.n_classes)), loss, rule)
    return Policies(growth, Moments(MOMENTS), Squared(rate, charge), rule)


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


class Forest:
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
        weights = _NO_WEIGHTS if w is None else _read_only(w)
        X, y = _read_only(X), _read_only(y)

        def learn(index: int) -> None:
            self._learn(index, X, y, weights)

        run_threads(learn, range(len(self.trees)), n_threads)

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
            self.trees[index] = nodes.resize(tree, min(2 * len(tree.i), _MAX_CAPACITY))

    def predict_sums(
        self, X: np.ndarray, n_threads: int = 1, spread: bool = False, distance: bool = False
    ) -> Sums:
        """Sum the trees' predictions, in the order of their numbers.

        Parameters
        ----------
        X : float32 [n, d], C-contiguous
        n_threads : int
            Threads over chunks of rows.
        spread, distance : bool
            Also sum squares, and the extensions to each leaf's box.
        """
        n, k = len(X), self.n_outputs
        X = _read_only(X)
        total = np.zeros((n, k))
        square = np.zeros((n, k)) if spread else None
        far = np.zeros(n) if distance else None

        def work(start: int) -> None:
            rows = slice(start, min(start + _CHUNK, n))
            self._predict_chunk(
                X[rows],
                total[rows],
                _NONE_2D if square is None else square[rows],
                _NONE_1D if far is None else far[rows],
            )

        run_threads(work, range(0, n, _CHUNK), n_threads)
        return Sums(total, square, far, len(self.trees))

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
        X, scratch = _read_only(X), np.empty((2, 1))
        extensions = np.empty(self.parameters.n_features)
        for tree in self.trees:
            if tree.head_i[nodes.N_NODES] > 0:
                mine = tree._replace(scratch=extensions)
                predict(*chosen, mine, X, scratch, total, _NONE_2D, _NONE_1D)
        return total[:, 0] / max(len(self.trees), 1)

    def state(self) -> tuple[dict[str, Any], list[dict[str, np.ndarray]]]:
        """Return (JSON-able header, one dict of arrays per tree), independent copies."""
        scalars = [
            {
                "number": int(number),
                "root": int(tree.head_i[nodes.ROOT]),
                "floats": [state.encode_float(value) for value in tree.head_f],
            }
            for number, tree in zip(self.tree_numbers, self.trees, strict=True)
        ]
        header = {"format": 1, "parameters": self.parameters.to_json(), "trees": scalars}
        return header, [nodes.fields(tree) for tree in self.trees]

    @classmethod
    def from_state(cls, header: dict[str, Any], trees: Sequence[dict[str, np.ndarray]]) -> Forest:
        """Return the forest of a :meth:`state`, every index and value checked.

        Raises
        ------
        CorruptError
            If the state is not one that a forest can have.
        """
        scalars = state.check_header(header, len(trees))
        parameters = ForestParameters.from_json(header["parameters"])
        numbers = [entry["number"] for entry in scalars]
        if any(later <= former for former, later in pairwise(numbers)):
            raise CorruptError("trees should come in the order of their distinct numbers")
        for entry, arrays in zip(scalars, trees, strict=True):
            state.check_arrays(entry, arrays, parameters.n_features, parameters.n_stats)
        built = [nodes.from_fields(a, e) for e, a in zip(scalars, trees, strict=True)]
        return cls._of(parameters, numbers, built)

    @classmethod
    def _of(
        cls, parameters: ForestParameters, numbers: Sequence[int], trees: list[nodes.Tree]
    ) -> Forest:
        """Return the forest of these trees, given in the order of their numbers."""
        forest = cls(parameters, [])
        forest.tree_numbers = np.array(numbers, np.int64)
        forest.trees = trees
        return forest

    @classmethod
    def join(cls, forests: Sequence[Forest]) -> Forest:
        """Return one forest of all trees, by number; parameters must be equal."""
        if not forests:
            raise ParameterError("nothing to join: give at least one forest")
        first = forests[0].parameters
        if any(forest.parameters != first for forest in forests):
            raise ParameterError("forests of different parameters cannot be joined")
        pairs = [
            pair for f in forests for pair in zip(f.tree_numbers.tolist(), f.trees, strict=True)
        ]
        pairs.sort(key=lambda pair: pair[0])
        numbers = [number for number, _ in pairs]
        if any(later == former for former, later in pairwise(numbers)):
            raise ParameterError(f"forests that share trees cannot be joined: {numbers}")
        return cls._of(first, numbers, [tree for _, tree in pairs])


def _read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view: one form of argument, so one compilation."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
