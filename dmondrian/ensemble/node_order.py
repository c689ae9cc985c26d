"""Where the nodes of trees lie: as they came in, or along heavy paths.

Relies on :mod:`dmondrian.tree.reorder`. Promises that who asks for the ``trees`` finds each node
where it came in, and that what trees learn and say does not depend on where their nodes are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import overload

import numpy as np

from dmondrian.errors import ParameterError
from dmondrian.tree import nodes
from dmondrian.tree.reorder import in_order_of_ids, order_along_heavy_paths

# Nodes of a tree from which on they are moved whenever they have doubled. Rows that come one by one
# wait for each node, so that it pays for them sooner.
_LEAST, _LEAST_ALONE = 1 << 17, 1 << 14
_DEEP = 40.0  # nodes passed by a row times rows per node, below which moving costs what it saves
_PER_ROW = 400  # nodes that are moved for each row alone, at most: they take about two rows' time


class _InOrder(Sequence[nodes.Tree]):
    """Trees, each node where it came in, for memory for one of them beside the forest."""

    def __init__(self, placed: Sequence[nodes.Tree]) -> None:
        self._placed = placed

    def __len__(self) -> int:
        return len(self._placed)

    @overload
    def __getitem__(self, t: int) -> nodes.Tree: ...
    @overload
    def __getitem__(self, t: slice) -> Sequence[nodes.Tree]: ...
    def __getitem__(self, t: int | slice) -> nodes.Tree | Sequence[nodes.Tree]:
        if isinstance(t, slice):
            return _InOrder(self._placed[t])
        return in_order_of_ids(self._placed[t])


class Placed:
    """Trees whose nodes may be moved while they learn.

    Attributes
    ----------
    placed : list of Tree
        The trees, nodes wherever they are, for those who follow links alone.
    tabled : (list of Tree, int64 [T, ..])
        Trees, and where they are, for the kernels.
    """

    placed: list[nodes.Tree]
    tabled: tuple[list[nodes.Tree], np.ndarray]
    _n_alone: int  # rows that came one by one since nodes were moved for them
    _is_torn: bool

    @property
    def trees(self) -> Sequence[nodes.Tree]:
        """The trees, each node where it came in: its index is its id. To be read alone.

        Of trees whose nodes were moved these are copies, each made when it is asked for.
        """
        self._check_whole()
        return _InOrder(self.placed) if any(len(tree.ids) for tree in self.placed) else self.placed

    @trees.setter
    def trees(self, trees: list[nodes.Tree]) -> None:
        self.placed, self._n_alone = trees, 0

    def _check_whole(self) -> None:
        """Refuse trees that were interrupted, each at another row, while they learned."""
        if self._is_torn:
            raise ParameterError(
                "learning was interrupted, and the trees have learned different rows: fit anew, "
                "or load what was saved before"
            )

    def _move_nodes(self, t: int) -> int:
        """Move the nodes of tree ``t``, if it pays; return how many it may have until it may.

        Between rows, and while nobody else asks the tree.
        """
        used, due = self._used(t), self._due(t, _LEAST)
        if used + 2 <= due:
            return due
        if _is_deep(self.placed[t]):
            self._move(t)
        return 2 * used

    def _move_for_rows_alone(self, n: int) -> None:
        """Move the nodes of trees that ``n`` more rows, which came one by one, pay for."""
        self._n_alone += n
        if self._n_alone * _PER_ROW < _LEAST_ALONE:
            return
        turn = [t for t in range(len(self.placed)) if self._used(t) >= self._due(t, _LEAST_ALONE)]
        for t in turn:
            if self._n_alone * _PER_ROW < self._used(t):
                return
            self._n_alone -= -(-self._used(t) // _PER_ROW)
            self._move(t)
        self._n_alone = 0  # no tree waits for its turn

    def _used(self, t: int) -> int:
        """Return how many nodes tree ``t`` has."""
        return int(self.placed[t].head_i[nodes.N_NODES])

    def _due(self, t: int, least: int) -> int:
        """Return from how many nodes on tree ``t`` may be moved."""
        return max(least, 2 * len(self.placed[t].ids))

    def _move(self, t: int) -> None:
        """Move the nodes of tree ``t``, unless memory is short."""
        tree = self.placed[t]
        with contextlib.suppress(MemoryError):
            self.placed[t] = order_along_heavy_paths(tree)
        if self.tabled[0][t : t + 1] == [tree]:  # its arrays are where they were
            self.tabled[0][t] = self.placed[t]


def _is_deep(tree: nodes.Tree) -> bool:
    """Tell whether rows (of weight one) pass by so many nodes that it pays to move these."""
    used = int(tree.head_i[nodes.N_NODES])
    weights = tree.d[:used, nodes.STAT]
    passed = weights.sum() / float(weights.max()) - 1.0  # a row is at one leaf
    return bool(passed * float(tree.head_f[nodes.TOTAL_WEIGHT]) / used >= _DEEP)
