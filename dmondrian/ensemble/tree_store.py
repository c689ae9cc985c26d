"""The trees of an ensemble in memory: where they lie, and how much they hold.

Spare capacity is taken before rows are learned that may need it, and given back after all there
are.

Relies on :mod:`dmondrian.tree.nodes`. Promises that what trees learn and predict does not depend on
their capacity, and that the address table is that of the trees whenever a kernel reads it.

Shapes: n rows, d features, m nodes, T trees.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.settings.fringe_settings import LARGEST_POOL
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.tree import nodes
from dmondrian.tree.address_table import table_of
from dmondrian.tree.box_encoding import Columns, Rows, all_numeric, boxless, has_boxes
from dmondrian.tree.box_encoding_choice import fitted, suited, without_boxes
from dmondrian.tree.memory import next_capacity

FIRST_CAPACITY, _FIRST_POOL = 64, 1024  # nodes; doubles
MAX_CAPACITY = 2**31 - 2  # node ids are int32
_EARLY_CAPACITY = 1024  # nodes that a tree gets at once where no fewer rows are to come
_MOST_RESERVED = 2**23  # bytes
_MOST_TIMES = 64  # as many nodes as there are, for rows that may be all there are
_SPARE = 16  # the expected nodes divided by this are spare capacity; below FIRST_CAPACITY


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
        In the order of their numbers, to be changed by :meth:`replace` and :meth:`assign`, which
        keep the addresses.
    addresses : int64 [T, ..]
        Where the trees lie, for the kernels.
    is_torn : bool
        Whether the trees have learned different rows: while they learn, and for good where that
        was interrupted.
    is_encoded : bool
        Whether the encoding of boxes was chosen by rows.
    """

    def __init__(self, parameters: ForestParameters, trees: list[nodes.Tree]) -> None:
        self._max_nodes = parameters.max_nodes or MAX_CAPACITY
        self._has_boxes = parameters.has_boxes
        self.is_torn = self.is_encoded = self.is_reserved = False
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

    def check_boxes(self) -> None:
        """Refuse trees that should have boxes, and were read without."""
        if self._has_boxes and self.trees and not has_boxes(self.trees[0].columns):
            raise ParameterError(
                "these trees were read without their boxes, to be asked for predictions alone: "
                "load the forest anew to learn rows, to measure distances or to save it"
            )

    def encode(self, rows: PreparedRows) -> Rows:
        """Return rows for the kernels; trees write their boxes so that they can learn them.

        An encoding of all rows that were prepared together is chosen where there is none yet, or
        where some of them do not fit the trees' own.
        """
        if not self.trees or not self._has_boxes or not len(rows):
            return without_boxes(rows.values)
        self.check_boxes()
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

    def check_not_torn(self) -> None:
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
        capacity = len(tree.i)
        if capacity >= MAX_CAPACITY:
            raise ParameterError("a tree reached 2^31 nodes: set max_nodes")
        most = self._max_nodes
        n_learned = float(tree.head_f[nodes.TOTAL_WEIGHT]) / (weight or 1.0)
        per_row = min(capacity / max(n_learned, 1.0), 2.0)  # a row adds two nodes at most
        # Fewer nodes per row than so far: most later rows find a leaf that takes them in.
        half, whole = (min(capacity + int(per_row * m), most) for m in (n_rows / 2, n_rows))
        wanted, soon = next_capacity((tree.i, tree.box, tree.bits)), 0
        if may_be_all:  # what is left of it is given back
            soon = min(half, _MOST_TIMES * capacity)
            wanted = min(max(wanted, _MOST_TIMES * capacity), whole + whole // _SPARE)
        early = min(capacity + n_rows, _EARLY_CAPACITY, most)
        wanted = min(max(wanted, early, FIRST_CAPACITY), MAX_CAPACITY)
        self.replace(t, nodes.resize(tree, wanted, soon))

    def _grow_pool(self, t: int) -> None:
        """Give tree ``t`` more capacity for candidate splits."""
        tree = self.trees[t]
        if len(tree.pool) >= LARGEST_POOL:
            raise ParameterError("candidates of a tree take 16 GiB: use a smaller max_fringe")
        wanted = max(3 * len(tree.pool) // 2, _FIRST_POOL)
        self.replace(t, nodes.widen_pool(tree, min(wanted, LARGEST_POOL)))
