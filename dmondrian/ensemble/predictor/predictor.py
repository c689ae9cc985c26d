"""When to freeze trees for predictions, and the frozen ones, kept until the trees learn.

Relies on :mod:`dmondrian.ensemble.predictor.predictor_kernels`. Promises the predictions of the
trees as they are, to the last bit: whether they are frozen shows in time and memory alone.

Shapes: n rows, m nodes of a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dmondrian._numba.mechanisms import uses
from dmondrian.ensemble.predictor.predictor_kernels import (
    FrozenTree,
    freeze,
    frozen_table,
    predict_frozen,
    take_unscaled,
)
from dmondrian.ensemble.threads import run_threads
from dmondrian.tree import nodes
from dmondrian.tree.box_encoding import Columns, Rows

_BYTES_PER_ROW = 48  # of a tree, to be brought into the cache anew: little beside a row's answer
_LEAST_ROWS = 4096
_AT_ONCE = 2**18  # answers of one call, which no Ctrl-C breaks off


class FreezingCost(NamedTuple):
    """What decides when trees are frozen, which changes no prediction.

    They are once more than ``least_rows`` rows were asked about, and what is beyond times
    ``nodes_per_row`` is the mean number of nodes of a tree.
    """

    least_rows: int
    nodes_per_row: float


_COST = FreezingCost(200, 8.0)  # of trees that rows are not looked for in ahead


class FrozenOutput(NamedTuple):
    """What frozen trees predict."""

    loss: Any
    rule: Any
    lifetimes: np.ndarray  # float64 [T], at which each tree is asked
    width: int  # numbers of a prediction

    @property
    def key(self) -> tuple[Any, ...]:
        """What is equal for equal outputs; tuples of equal numbers are."""
        return type(self.loss), self.loss, self.rule, self.lifetimes.tobytes(), self.width


class FrozenTrees(NamedTuple):
    """Frozen trees, and what they predict."""

    key: tuple[Any, ...]  # of a :class:`FrozenOutput`
    grown: Sequence[nodes.Tree]  # what they were made of; leaves are numbered by their places there
    trees: list[FrozenTree]
    table: np.ndarray  # int64 [T, 5], where they lie, for the kernels


class FrozenTreeCache:
    """Cache of the frozen trees of one forest at rest; threads may share it.

    Parameters
    ----------
    cost : FreezingCost, optional
        By default that of trees that rows are not looked for in ahead.

    Attributes
    ----------
    kept : FrozenTrees or None
        Those that were frozen last.
    n_alone : int
        Rows that came one by one while none of these answered them.
    is_begun : bool
        Whether anything was asked or frozen.
    call : tuple or None
        What was prepared to ask the trees of ``kept`` about single rows, and goes with them.
    """

    def __init__(self, cost: FreezingCost | None = None) -> None:
        self._cost, self.is_begun = cost, False
        self._n_asked = 0
        self.kept: FrozenTrees | None = None
        self.n_alone = 0
        self.call: tuple[Any, ...] | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes of memory held."""
        kept = [] if self.kept is None else self.kept.trees
        return sum(tree.groups.nbytes + tree.answers.nbytes + tree.leaves.nbytes for tree in kept)

    def expect(self, n_rows: int) -> None:
        """Count rows that will be asked about in several calls, before the first."""
        self._n_asked += n_rows
        self.is_begun = True

    def trees(
        self,
        grown: Sequence[nodes.Tree],
        output: FrozenOutput,
        n_rows: int,
        n_threads: int,
        scales: Sequence[np.ndarray] | None = None,
    ) -> FrozenTrees | None:
        """Return the trees, none of them empty, frozen; or None while it does not pay.

        Parameters
        ----------
        grown : sequence of Tree
        output : FrozenOutput
        n_rows : int
            Rows that are asked about now, beside those that were expected.
        n_threads : int
        scales : sequence of float32 [d], optional
            By which each tree takes features of rows that come without.
        """
        if not uses("flat"):
            return None
        kept = self.kept
        if kept is not None and kept.grown is grown and kept.key == output.key:
            return kept
        self.expect(n_rows)
        cost = self._cost or _COST
        n_paying = self._n_asked - cost.least_rows
        if n_paying <= 0:
            return None
        mean = sum(int(tree.head_i[nodes.N_NODES]) for tree in grown) / max(1, len(grown))
        if n_paying * cost.nodes_per_row < mean:
            return None
        return self.make(grown, output, n_threads, scales)

    def make(
        self,
        grown: Sequence[nodes.Tree],
        output: FrozenOutput,
        n_threads: int,
        scales: Sequence[np.ndarray] | None = None,
    ) -> FrozenTrees:
        """Freeze the trees, keep and return them; see :meth:`trees`."""
        self.is_begun = True
        made: dict[int, FrozenTree] = {}
        loss, rule, lifetimes, width = output

        def work(t: int) -> None:
            made[t] = freeze(loss, rule, grown[t], width, float(lifetimes[t]))

        run_threads(work, range(len(grown)), n_threads)
        frozen = [made[t] for t in range(len(grown))]
        if scales and frozen:
            take_unscaled(frozen, scales)
        kept = self.kept = FrozenTrees(output.key, grown, frozen, frozen_table(frozen))
        self._n_asked = 0  # what else is asked in turn with this has to pay for itself again
        return kept


def rows_at_a_time(frozen: Sequence[FrozenTree], n: int) -> int:
    """Return how many of ``n`` rows to ask one tree about before the next.

    Enough to bring the tree into the cache for them; more would themselves not stay there, to be
    asked of the next tree.
    """
    largest = max((tree.groups.nbytes + tree.answers.nbytes for tree in frozen), default=0)
    most = max(largest // _BYTES_PER_ROW, _LEAST_ROWS)
    return -(-n // -(-n // most))


def ask_frozen(
    kept: FrozenTrees,
    rule: Any,
    table: np.ndarray,
    columns: Columns,
    width: int,
    rows: Rows,
    total: np.ndarray,
    square: np.ndarray,
    distance: np.ndarray,
) -> None:
    """Add what all frozen trees say; see ``predictor_kernels.predict_frozen``."""
    per_answer = 1 + rows.values.shape[1] // 16 if len(distance) else 1
    step = _AT_ONCE // (len(total) * per_answer) + 1
    for start in range(0, len(table), step):
        some, at_rest = table[start : start + step], kept.table[start : start + step]
        predict_frozen(rule, some, columns, at_rest, width, rows, total, square, distance)
