"""Trees by number, fed with one stream of rows: the two operations learn and predict.

Relies on the kernels of :mod:`dmondrian.core.loops`. Promises that the trees are a pure
function of the parameters, their numbers and the rows in order: neither the cuts between
calls nor the number of threads changes a byte.

Shapes: n rows, d features, K classes, k outputs (K, or 1 for regression), T trees, L lifetimes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Any

import numpy as np

from dmondrian.core import nodes
from dmondrian.core.loops import Asked, Silent, collect, gather_all, predict, update
from dmondrian.domain import check_cube, clip_to_cube, scale_columns
from dmondrian.errors import ParameterError
from dmondrian.lifetime import check_lifetimes
from dmondrian.losses.depth import Depth
from dmondrian.parameters import ForestParameters, Policies, policies
from dmondrian.rules.aggregate import Aggregate
from dmondrian.rules.gaussian import GaussianHierarchy
from dmondrian.selection import chosen_lifetime
from dmondrian.sums import Sums, begun, stacked
from dmondrian.threads import run_threads

_FIRST_CAPACITY = 64
_MAX_CAPACITY = 2**31 - 2  # node ids are int32
_CHUNK = 4096  # rows of a prediction task: enough to keep a tree in cache
# Sums of probabilities in units of 1 / FIXED_ONE are whole, so that they do not depend on the
# order of additions: on how trees are cut into shards. A million trees fit.
FIXED_ONE = 2.0**40
_NO_ROWS = np.empty(0, np.int64)
_NONE_3D, _NONE_1D = np.empty((0, 0, 0)), np.empty(0)


class Ensemble:
    """Trees with consecutive or chosen numbers, all fed with one stream of rows.

    Parameters
    ----------
    parameters : ForestParameters
    tree_numbers : iterable of int
        Distinct, >= 0; a tree's draws depend on its number, not on its neighbours.

    Attributes
    ----------
    n_clipped : int
        Rows that this object learned and that ``clip`` moved; not part of the state.
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
        self._gathered: tuple[float, list[nodes.Tree]] | None = None
        self._chosen: list[np.ndarray] | None = None  # lifetimes of trees that choose their own
        self.n_clipped = 0
        self.trees = [
            nodes.make_tree(parameters.n_features, parameters.n_stats, _FIRST_CAPACITY)
            for _ in numbers
        ]

    @property
    def n_outputs(self) -> int:
        """Width of a prediction: classes, or what a cell says."""
        return self.parameters.n_outputs

    @property
    def _width(self) -> int:
        """Numbers of a tree's answer: a Gaussian's two moments, else the outputs."""
        return self.n_outputs + int(isinstance(self.policies.rule, GaussianHierarchy))

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
        self.answer_and_learn(X, y, w, n_threads, _NO_ROWS, _NONE_1D)

    def answer_and_learn(
        self,
        X: np.ndarray,
        y: np.ndarray,
        w: np.ndarray | None,
        n_threads: int,
        rows: np.ndarray,
        lifetimes: np.ndarray,
    ) -> np.ndarray:
        """Learn rows as :meth:`update` does; return what the trees said of some of them.

        Each of ``rows`` (int64 [a], increasing, not the forest's first) is forecast by trees
        that have learned the rows before it and no other, at its lifetime (float64 [a]).

        Returns
        -------
        int64 array of shape (a, k)
            Forecasts summed over trees, in units of 1 / FIXED_ONE.
        """
        weights = read_only(_NONE_1D if w is None else w)
        X, n_clipped = self._as_learned(X)
        y = read_only(y)
        sums = np.zeros((len(rows), self.n_outputs), np.int64)
        lock = Lock()

        def learn(index: int) -> None:
            answers = np.empty((len(rows), self._width))
            asked = Asked(rows, lifetimes, np.empty((3, self._width)), answers)
            self._learn(index, X, y, weights, asked if len(rows) else Silent())
            whole = np.rint(answers[:, : self.n_outputs] * FIXED_ONE).astype(np.int64)
            with lock:  # in whatever order: whole numbers add up exactly
                sums[:] += whole

        self._check_whole()
        self._gathered = self._chosen = None
        self._is_torn = True  # until all trees have learned the same rows
        run_threads(learn, range(len(self.trees)), n_threads)
        self._is_torn = False
        self.n_clipped += n_clipped
        return sums

    def _check_whole(self) -> None:
        """Refuse trees that were interrupted, each at another row, while they learned."""
        if self._is_torn:
            raise ParameterError(
                "learning was interrupted, and the trees have learned different rows: fit anew, "
                "or load what was saved before"
            )

    def check_learned(self) -> None:
        """Refuse a forest without rows, which has no cell that could answer."""
        if self.total_weight == 0.0:
            raise ParameterError("the forest has learned no row of positive weight: fit it first")

    def _take(self, other: Ensemble) -> None:
        """Become ``other``."""
        vars(self).update(vars(other))

    def _as_learned(self, X: np.ndarray) -> tuple[np.ndarray, int]:
        """Return rows as the kernels take them, and how many were moved to the cube."""
        self._check_width(X)
        n_clipped = 0
        if self.parameters.domain == "cube" and self.parameters.clip:
            X, n_clipped = clip_to_cube(X)
        self.check_domain(X)
        return read_only(X if self._scales is None else scale_columns(X, self._scales)), n_clipped

    def check_domain(self, X: np.ndarray, names: Sequence[str] | None = None) -> None:
        """Refuse rows outside the cube, where they are not moved to it; name the column."""
        if self.parameters.domain == "cube" and not self.parameters.clip:
            check_cube(X, names)

    def _check_width(self, X: np.ndarray) -> None:
        """Refuse rows of another width, which no kernel would notice."""
        if X.ndim != 2 or X.shape[1] != self.parameters.n_features:
            raise ParameterError(
                f"rows should have {self.parameters.n_features} features, got shape {X.shape}"
            )

    def _learn(
        self, index: int, X: np.ndarray, y: np.ndarray, w: np.ndarray, asked: Asked | Silent
    ) -> None:
        seed, number = np.uint64(self.parameters.seed), np.uint64(self.tree_numbers[index])
        chosen = self.policies.learning if isinstance(asked, Silent) else self.policies
        row = 0
        while True:
            tree = self.trees[index]
            row = update(*chosen, tree, seed, number, X, y, w, row, asked)
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
        lifetimes: np.ndarray | None = None,
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
            Also sum second moments, and the extensions to each leaf's box.
        onto : Sums, optional
            Sums over trees with lower numbers, of the same rows and kinds, to go on from; they
            are left as they are. At the default lifetime only.
        lifetimes : float64 [L], optional
            Increasing lifetimes to predict at, up to the one that trees are realised to; by
            default the one of the rows learned so far.
        """
        self._check_whole()
        if onto is not None and lifetimes is not None:
            raise ParameterError("sums go on at the default lifetime only")
        n, k = len(X), self.n_outputs
        lives = self._lifetimes(lifetimes)
        if len(lives) > 1 and isinstance(self.policies.rule, GaussianHierarchy):
            each = [lives[i : i + 1] for i in range(len(lives))]
            return stacked(
                [self.predict_sums(X, n_threads, spread, distance, lifetimes=at) for at in each]
            )
        X, shape = self._as_learned(X)[0], (n, len(lives), k)
        total = begun(onto and onto.total, shape, onto is None)
        square = begun(onto and onto.square, shape, onto is None) if spread else None
        far = begun(onto and onto.distance, (n,), onto is None) if distance else None
        rule, trees = self._ready(float(lives[-1]))
        each = [lives] * len(trees) if lifetimes is not None else self.tree_lifetimes()

        def work(start: int) -> None:
            rows = slice(start, min(start + _CHUNK, n))
            self._predict_chunk(
                rule,
                trees,
                X[rows],
                each,
                total[rows],
                _NONE_3D if square is None else square[rows],
                _NONE_1D if far is None else far[rows],
            )

        run_threads(work, range(0, n, _CHUNK), n_threads)
        n_trees = len(self.trees) + (0 if onto is None else onto.n_trees)
        origin = float(self.trees[0].head_f[nodes.OFFSET]) if self.trees else 0.0
        if lifetimes is None:
            return Sums(total[:, 0], None if square is None else square[:, 0], far, n_trees, origin)
        square = None if square is None else square.transpose(1, 0, 2)
        return Sums(total.transpose(1, 0, 2), square, far, n_trees, origin)

    def _lifetimes(self, lifetimes: np.ndarray | None) -> np.ndarray:
        """Return lifetimes for the kernels; by default the forest's own."""
        if lifetimes is None:
            return read_only(np.array([self.parameters.lifetime_at(self.total_weight)]))
        if isinstance(self.policies.rule, Aggregate):
            raise ParameterError("a mixture over all prunings has the trees' own lifetime only")
        return read_only(check_lifetimes(lifetimes, self.parameters.realised_lifetime))

    def _ready(self, lifetime: float) -> tuple[Any, list[nodes.Tree]]:
        """Return rule and trees, with what the rule must know of all nodes.

        A Gaussian hierarchy's messages are those of one lifetime; they are kept until rows are
        learned or another lifetime is asked for.
        """
        if not isinstance(self.policies.rule, GaussianHierarchy):
            return self.policies.rule, self.trees
        rule, gathered = GaussianHierarchy(lifetime, False), self._gathered
        if gathered is None or gathered[0] != lifetime:
            gathered = lifetime, [self._with_messages(rule, tree) for tree in self.trees]
            self._gathered = gathered  # other threads may have put theirs there meanwhile
        return rule, gathered[1]

    @staticmethod
    def _with_messages(rule: Any, tree: nodes.Tree) -> nodes.Tree:
        """Return the tree with what the rule gathers from all its nodes."""
        used = int(tree.head_i[nodes.N_NODES])
        if used:
            tree = tree._replace(messages=np.zeros((used + 2, 2)))
            gather_all(rule, tree)
        return tree

    def _predict_chunk(
        self,
        rule: Any,
        trees: list[nodes.Tree],
        X: np.ndarray,
        lives: list[np.ndarray],
        total: np.ndarray,
        square: np.ndarray,
        distance: np.ndarray,
    ) -> None:
        work = np.empty((2 + total.shape[1], self._width))
        chosen = self.policies._replace(rule=rule)
        scratch = np.empty(3 * self.parameters.n_features)
        seed = np.uint64(self.parameters.seed)
        for number, tree, at in zip(self.tree_numbers.astype(np.uint64), trees, lives, strict=True):
            if tree.head_i[nodes.N_NODES] == 0:
                total += 1.0 / self.n_outputs if self.parameters.tells_proba else 0.0
                if len(square):
                    square += 1.0 / self.n_outputs**2 if self.parameters.tells_proba else 0.0
            else:
                mine = tree._replace(scratch=scratch)  # other threads read this tree too
                predict(*chosen, mine, seed, number, X, at, work, total, square, distance)

    def tree_lifetimes(self) -> list[np.ndarray]:
        """Return the lifetime that each tree predicts at by default, float64 [1] each."""
        cost, loss = self.parameters.cost, self.policies.loss
        if cost is None or cost.selection is None:
            return [self._lifetimes(None)] * len(self.trees)
        if self._chosen is None:  # since the last row
            best = [chosen_lifetime(tree, loss, cost) for tree in self.trees]
            self._chosen = [read_only(np.array([lifetime])) for lifetime in best]
        return self._chosen

    def answers(
        self, X: np.ndarray, chosen: Policies, lifetimes: np.ndarray, width: int
    ) -> np.ndarray:
        """Return what each tree answers by itself, to what is asked by other policies.

        Parameters
        ----------
        X : float32 [n, d], C-contiguous
        chosen : Policies
            The forest's own, with another loss or rule; a Gaussian hierarchy's are of one lifetime.
        lifetimes : float64 [L]
            Increasing, up to the one that trees are realised to.
        width : int
            Numbers of an answer.

        Returns
        -------
        float64 [T, n, L, width]

        Raises
        ------
        ParameterError
            If no row was learned.
        """
        self._check_whole()
        self.check_learned()
        X, lives = self._as_learned(X)[0], read_only(lifetimes)
        found = np.empty((len(self.trees), len(X), len(lives), width))
        work, scratch = np.empty((2, width)), np.empty(3 * self.parameters.n_features)
        seed, trees = np.uint64(self.parameters.seed), self._ready(float(lives[-1]))[1]
        for number, tree, out in zip(
            self.tree_numbers.astype(np.uint64), trees, found, strict=True
        ):
            mine = tree._replace(scratch=scratch)  # other threads read this tree too
            collect(*chosen, mine, seed, number, X, lives, work, out)
        return found

    def weighted_depth(self, X: np.ndarray) -> np.ndarray:
        """Return the posterior mean depth of each row's leaf, mean over trees, float64 [n].

        Where trees do not mix over prunings that is the depth of the cell that speaks.
        """
        chosen = self.policies.learning._replace(loss=Depth(1.0))
        total = np.zeros((len(X), 1, 1))
        X, work, numbers = self._as_learned(X)[0], np.empty((3, 1)), self.tree_numbers
        seed, scratch = np.uint64(self.parameters.seed), np.empty(3 * self.parameters.n_features)
        each = self.tree_lifetimes()
        for number, tree, lives in zip(numbers.astype(np.uint64), self.trees, each, strict=True):
            if tree.head_i[nodes.N_NODES] > 0:
                mine = tree._replace(scratch=scratch)
                predict(*chosen, mine, seed, number, X, lives, work, total, _NONE_3D, _NONE_1D)
        return total[:, 0, 0] / max(len(self.trees), 1)


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view: one form of argument, so one compilation."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
