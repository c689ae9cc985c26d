"""The trees of an ensemble in memory: where they lie, how much they hold, in what order nodes lie.

Nodes lie in the order of insertion, so that a node's index is its id, until a tree is large enough
for an order along heavy paths to pay (:mod:`dmondrian.tree.reorder`). Spare capacity is taken
before rows are learned that may need it, and given back after all there are.

Relies on :mod:`dmondrian.tree.nodes`. Promises that what trees learn and predict depends neither on
where their nodes lie nor on their capacity, and that the address table is that of the trees
whenever a kernel reads it.

Shapes: n rows, d features, m nodes, T trees.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np

from dmondrian._numba.mechanisms import uses
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.settings.fringe_settings import LARGEST_POOL
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.tree import nodes
from dmondrian.tree.address_table import table_of
from dmondrian.tree.box_encoding import Columns, Rows, all_numeric, boxless
from dmondrian.tree.box_encoding_choice import fitted, suited, without_boxes
from dmondrian.tree.memory import next_capacity
from dmondrian.tree.reorder import in_order_of_ids, order_along_heavy_paths

SINGLE_ROWS = 256  # rows learned one by one before the forest is asked again
FIRST_CAPACITY, _FIRST_POOL = 64, 1024  # nodes; doubles
MAX_CAPACITY = 2**31 - 2  # node ids are int32
_EARLY_CAPACITY = 1024  # nodes that a tree gets at once where as many rows are to come
_MOST_RESERVED = 2**23  # bytes
_MOST_TIMES = 64  # as many nodes as there are, for rows that may be all there are
_SPARE = 16  # the expected nodes divided by this are spare capacity; below FIRST_CAPACITY

# Nodes of a tree from which on they are moved whenever they have doubled. Rows that come one by one
# wait for each node, so that moving pays for them sooner.
_LEAST, _LEAST_ALONE = 1 << 17, 1 << 14
_DEEP = 40.0  # nodes passed by a row times rows per node, below which moving costs what it saves
_PER_ROW = 400  # nodes moved for each single row, at most: they take about two rows' time


class _InsertionOrder(Sequence[nodes.Tree]):
    """Lazy view of trees with nodes in the order of insertion; copies one tree at a time."""

    def __init__(self, trees: Sequence[nodes.Tree]) -> None:
        self._trees = trees

    def __len__(self) -> int:
        return len(self._trees)

    @overload
    def __getitem__(self, t: int) -> nodes.Tree: ...
    @overload
    def __getitem__(self, t: slice) -> Sequence[nodes.Tree]: ...
    def __getitem__(self, t: int | slice) -> nodes.Tree | Sequence[nodes.Tree]:
        if isinstance(t, slice):
            return _InsertionOrder(self._trees[t])
        return in_order_of_ids(self._trees[t])


class TreeStore:
    """Trees in memory, and their addresses.

    Parameters
    ----------
    parameters : ForestParameters
    trees : list of Tree
        Encoded alike.

    Attributes
    ----------
    trees : list of Tree
        In the order of their numbers, nodes wherever they lie: for those who follow links alone.
        To be changed by :meth:`replace` and :meth:`assign`, which keep the addresses.
    addresses : int64 [T, ..]
        Where the trees lie, for the kernels.
    is_torn : bool
        Whether the trees have learned different rows: while they learn, and for good where that
        was interrupted.
    is_encoded : bool
        Whether the encoding of boxes was chosen by rows.
    may_move : bool
        Whether nodes may be moved: nothing knows them by their places.
    """

    def __init__(self, parameters: ForestParameters, trees: list[nodes.Tree]) -> None:
        self._max_nodes = parameters.max_nodes or MAX_CAPACITY
        self._has_boxes = parameters.has_boxes
        self.may_move = parameters.reorders_nodes and uses("reorder")
        self.is_torn = self.is_encoded = self.is_reserved = False
        self._n_alone = 0  # rows that came one by one since nodes were moved for them
        self.trees = trees
        self.addresses = table_of(trees)

    @classmethod
    def of_empty_trees(cls, parameters: ForestParameters, n_trees: int) -> TreeStore:
        """Return a store of trees without rows."""
        columns = (all_numeric if parameters.has_boxes else boxless)(parameters.n_features)
        return cls(
            parameters,
            [nodes.make_tree(columns, parameters.n_stats, FIRST_CAPACITY) for _ in range(n_trees)],
        )

    def __len__(self) -> int:
        return len(self.trees)

    def assign(self, trees: list[nodes.Tree]) -> None:
        """Put other trees in place of all."""
        if trees is not self.trees:
            self.trees, self.addresses = trees, table_of(trees)

    def replace(self, t: int, tree: nodes.Tree) -> None:
        """Put another tree in place of tree ``t``: from one thread for each ``t``."""
        self.trees[t] = tree
        self.addresses[t] = table_of(self.trees[t : t + 1])[0]

    def encode_as(self, columns: Columns) -> None:
        """Write the boxes of all trees in another encoding."""
        self.assign([nodes.lay_out(tree, columns) for tree in self.trees])
        self.is_encoded = True

    def encode(self, rows: PreparedRows) -> Rows:
        """Return rows for the kernels; trees write their boxes so that they can learn them.

        An encoding of all rows that were prepared together is chosen where there is none yet, or
        where some of them do not fit the trees' own.
        """
        if not self.trees or not self._has_boxes or not len(rows):
            return without_boxes(rows.values)
        if not self.is_encoded and not self.n_nodes:
            self.encode_as(rows.first_columns(self.trees[0]))
        encoded = rows.encode(self.trees[0].columns) if self.is_encoded else None
        if encoded is None:
            trees, together = (suited if self.is_encoded else fitted)(self.trees, rows.together)
            self.assign(trees)
            self.is_encoded = True
            encoded = rows.keep(trees[0].columns, together)
        return encoded

    @property
    def in_insertion_order(self) -> Sequence[nodes.Tree]:
        """The trees with each node where it was inserted: its index is its id. Read-only.

        Trees whose nodes were moved are copied, each when it is asked for.
        """
        self.check_whole()
        return _InsertionOrder(self.trees) if any(len(t.ids) for t in self.trees) else self.trees

    @property
    def n_nodes(self) -> int:
        """Nodes in use over all trees."""
        return sum(self.used(t) for t in range(len(self.trees)))

    @property
    def n_bytes(self) -> int:
        """Bytes of memory held, spare capacity included."""
        return sum(nodes.tree_bytes(tree) for tree in self.trees)

    @property
    def total_weight(self) -> float:
        """Weight of the rows learned."""
        return float(self.trees[0].head_f[nodes.TOTAL_WEIGHT]) if self.trees else 0.0

    @property
    def origin(self) -> float:
        """Label that the trees' statistics of labels are relative to."""
        return float(self.trees[0].head_f[nodes.OFFSET]) if self.trees else 0.0

    def used(self, t: int) -> int:
        """Return the nodes in use of tree ``t``."""
        return int(self.trees[t].head_i[nodes.N_NODES])

    def check_whole(self) -> None:
        """Refuse trees whose learning was interrupted, each at another row."""
        if self.is_torn:
            raise ParameterError(
                "learning was interrupted, and the trees have learned different rows: fit anew, "
                "or load what was saved before"
            )

    def reserve(self, n_nodes: int) -> None:
        """Preallocate ``n_nodes`` per empty tree, at most 8 MiB; unused capacity is kept."""
        self.is_reserved = True
        for t, tree in enumerate(self.trees):
            width = sum(array[:1].nbytes for array in (tree.i, tree.box, tree.bits))
            wanted = min(n_nodes, _MOST_RESERVED // width, self._max_nodes)
            if not self.used(t) and len(tree.i) < wanted:
                self.replace(t, nodes.make_tree(tree.columns, tree.n_stats, wanted))

    def trim(self, span: Iterable[int]) -> None:
        """Give back the spare capacity of some trees."""
        for t in span:
            self.replace(t, nodes.give_back(self.trees[t]))

    def grow(
        self,
        span: Iterable[int],
        reached: np.ndarray,
        n: int,
        n_later: int = 0,
        weight: float = 1.0,
        may_be_all: bool = False,
    ) -> None:
        """Give capacity to those trees of a span that have not learned ``n`` rows for lack of it.

        Parameters
        ----------
        span : iterable of int
        reached : int64 [T]
            Rows that each has learned of these.
        n, n_later : int
            Rows of this call, and of later ones that are known to come.
        weight : float
            Mean weight of the rows.
        may_be_all : bool
            Whether these may be all rows there are: then spare capacity is given back.
        """
        for t in span:
            if reached[t] < n:
                self._grow(t, n - int(reached[t]) + n_later, weight, may_be_all)

    def _grow(self, t: int, n_rows: int, weight: float, may_be_all: bool) -> None:
        """Give tree ``t`` more capacity, for at most ``n_rows`` rows to come."""
        tree = self.trees[t]
        if int(tree.head_i[nodes.N_NODES]) + 2 <= len(tree.i):  # it is the candidates that lack it
            self._grow_pool(t)
            return
        # Up to this many nodes; from there on nodes may be moved again.
        end = self._move_if_deep(t) if self.may_move else MAX_CAPACITY
        tree = self.trees[t]
        capacity = len(tree.i)
        if capacity >= MAX_CAPACITY:
            raise ParameterError("a tree reached 2^31 nodes: set max_nodes")
        most = self._max_nodes
        n_learned = float(tree.head_f[nodes.TOTAL_WEIGHT]) / (weight or 1.0)
        per_row = min(capacity / max(n_learned, 1.0), 2.0)  # a row adds two nodes at most
        # Fewer nodes per row than so far: most later rows find a leaf that takes them in.
        half, whole = (min(capacity + int(per_row * m), most) for m in (n_rows / 2, n_rows))
        wanted = next_capacity((tree.i, tree.box, tree.bits))
        if may_be_all:  # what is left of it is given back
            wanted = min(max(wanted, min(half, _MOST_TIMES * capacity)), whole + whole // _SPARE)
        early = min(capacity + n_rows, _EARLY_CAPACITY, most)
        wanted = min(max(wanted, early, FIRST_CAPACITY), end, MAX_CAPACITY)
        self.replace(t, nodes.resize(tree, wanted))

    def _grow_pool(self, t: int) -> None:
        """Give tree ``t`` more capacity for candidate splits."""
        tree = self.trees[t]
        if len(tree.pool) >= LARGEST_POOL:
            raise ParameterError("candidates of a tree take 16 GiB: use a smaller max_fringe")
        wanted = max(3 * len(tree.pool) // 2, _FIRST_POOL)
        self.replace(t, nodes.widen_pool(tree, min(wanted, LARGEST_POOL)))

    def move_nodes(self) -> None:
        """Move the nodes of all trees along heavy paths, where they may be moved."""
        for t in range(len(self.trees)) if self.may_move else ():
            if self.used(t):
                self._move(t)

    def _move_if_deep(self, t: int) -> int:
        """Move the nodes of tree ``t`` if it pays; return how many it may have until it may again.

        Between rows, and while nobody else asks the tree.
        """
        used, due = self.used(t), self._due(t, _LEAST)
        if used + 2 <= due:
            return due
        if _is_deep(self.trees[t]):
            self._move(t)
        return 2 * used

    def move_for_single_rows(self, n: int) -> None:
        """Move the nodes of trees that ``n`` more rows, which came one by one, pay for."""
        self._n_alone += n
        if not self.may_move or self._n_alone * _PER_ROW < _LEAST_ALONE:
            return
        turn = [t for t in range(len(self.trees)) if self.used(t) >= self._due(t, _LEAST_ALONE)]
        for t in turn:
            if self._n_alone * _PER_ROW < self.used(t):
                return
            self._n_alone -= -(-self.used(t) // _PER_ROW)
            self._move(t)
        self._n_alone = 0  # no tree waits for its turn

    def _due(self, t: int, least: int) -> int:
        """Return from how many nodes on tree ``t`` may be moved."""
        return max(least, 2 * len(self.trees[t].ids))

    def _move(self, t: int) -> None:
        """Move the nodes of tree ``t``, unless memory is short; its arrays stay where they are."""
        with contextlib.suppress(MemoryError):
            self.trees[t] = order_along_heavy_paths(self.trees[t])


def _is_deep(tree: nodes.Tree) -> bool:
    """Return whether rows (of weight one) pass so many nodes that it pays to move these."""
    used = int(tree.head_i[nodes.N_NODES])
    weights = tree.d[:used, nodes.STAT]
    passed = weights.sum() / float(weights.max()) - 1.0  # a row is at one leaf
    return bool(passed * float(tree.head_f[nodes.TOTAL_WEIGHT]) / used >= _DEEP)
