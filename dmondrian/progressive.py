"""Progressive loss of small forests: each chunk of rows is predicted, then learned.

Relies on :class:`dmondrian.ensemble.Ensemble`. Promises a pure function of the parameters, the
tree numbers and the rows: sums are exact and logarithms this package's own, so that no
machine's libraries can tip a choice that is made by these losses.

Shapes: n rows, d features, k outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dmondrian.arranged import Arranged
from dmondrian.core import nodes
from dmondrian.core.columns import Columns, read_only
from dmondrian.core.columns import Rows as Written
from dmondrian.core.score import write_losses
from dmondrian.ensemble import Ensemble
from dmondrian.parameters import ForestParameters

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # X float32 [n, d], y and w float64 [n]

Given = tuple[np.ndarray | Arranged, np.ndarray, np.ndarray]  # the same, or X not yet scaled

_CHUNKS = 16  # of the rows that are predicted, unless told otherwise


class _OfArranged(Ensemble):
    """A forest of rows that are arranged, and that all its boxes can write.

    Parameters
    ----------
    parameters, tree_numbers
        As an ensemble's.
    columns : Columns
        How the rows are written.
    """

    def __init__(
        self, parameters: ForestParameters, tree_numbers: Sequence[int], columns: Columns
    ) -> None:
        super().__init__(parameters, tree_numbers)
        self.trees = [nodes.lay_out(tree, columns) for tree in self.trees]

    def _as_learned(self, X: Any) -> tuple[Any, int]:
        return X, 0

    def _arrange(self, X: Any) -> Written:
        return X.rows

    def _asked(self, X: Any, any_box: bool) -> Written:
        return X.rows


class Trial:
    """A small forest that forecast rows before it learned them.

    Parameters
    ----------
    parameters : ForestParameters
    numbers : sequence of int
        Numbers of the trees.
    rows : tuple
        X, y, w; where X is arranged, the parameters' feature scales are powers of two.
    start : int
        Rows before are learned only.
    n_threads : int
    n_chunks : int
        Parts of the rows from there on, each predicted before it is learned: fewer look further
        ahead.

    Attributes
    ----------
    parameters : ForestParameters
    losses : float64 array of shape (n - start,)
        Of each row from ``start`` on, unweighted; in nats (classification) or squared units of
        the target.
    """

    def __init__(
        self,
        parameters: ForestParameters,
        numbers: Sequence[int],
        rows: Given,
        start: int,
        n_threads: int = 1,
        n_chunks: int = _CHUNKS,
    ) -> None:
        self.parameters, self._n_threads = parameters, n_threads
        X, y, w = rows
        n = len(y)
        if isinstance(X, Arranged):
            X = X.times(np.array(parameters.feature_scales, np.float32))
            self._forest: Ensemble = _OfArranged(parameters, numbers, X.columns)
        else:
            X = read_only(X)
            self._forest = Ensemble(parameters, numbers)
        self._rows: tuple[Any, ...] = X, read_only(y), read_only(w)
        self.losses = np.empty(n - start)
        self._forest.reserve(2 * n)
        self._rest = slice(0, start)  # what is learned next
        for chunk in np.array_split(np.arange(start, n), n_chunks):
            self._learn_rest()
            self._rest = slice(int(chunk[0]), int(chunk[-1]) + 1)
            self._forecast(self._rest, self.losses[self._rest.start - start :][: len(chunk)])

    def forest(self) -> Ensemble:
        """Return the forest after all rows; it learns the last of them when it is asked for."""
        self._learn_rest()
        return self._forest

    def _forecast(self, at: slice, out: np.ndarray) -> None:
        X, y, _ = self._rows
        sums = self._forest.predict_sums(X[at], self._n_threads)
        write_losses(self._forest.policies.loss, sums.total, sums.n_trees, y[at], out)

    def _learn_rest(self) -> None:
        X, y, w = (column[self._rest] for column in self._rows)
        self._forest.update(X, y, w, self._n_threads)
        self._rest = slice(0, 0)


def late_loss(
    parameters: ForestParameters,
    numbers: Sequence[int],
    rows: Given,
    n_threads: int = 1,
    n_chunks: int = _CHUNKS,
) -> float:
    """Return the weighted mean progressive loss over the second half of the rows."""
    half = len(rows[1]) // 2
    weights = rows[2][half:]
    losses = Trial(parameters, numbers, rows, half, n_threads, n_chunks).losses
    return math.fsum(losses * weights) / math.fsum(weights)
