"""Progressive loss of small forests: each chunk of rows is predicted, then learned.

Relies on :class:`dmondrian.ensemble.ensemble.Ensemble`. Promises a pure function of the parameters,
the tree numbers and the rows: sums are exact and logarithms this package's own, so that no
machine's libraries can tip a choice that is made by these losses.

Shapes: n rows, d features, k outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.rows.encoded_rows import EncodedRows
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.sums.prediction_sums import Sums
from dmondrian.prequential.progressive_validation_kernels import write_losses
from dmondrian.tree.box_encoding import read_only

RowArrays = tuple[np.ndarray, np.ndarray, np.ndarray]  # X float32 [n, d], y and w float64 [n]

TrialRows = tuple[np.ndarray | EncodedRows, np.ndarray, np.ndarray]  # X may be encoded, not scaled

_CHUNKS = 16  # of the rows that are predicted, by default


class Trial:
    """A small forest that forecast rows before it learned them.

    Parameters
    ----------
    parameters : ForestParameters
    numbers : sequence of int
        Numbers of the trees.
    rows : tuple
        X, y, w; where X is encoded once, the parameters' feature scales are powers of two.
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
        rows: TrialRows,
        start: int,
        n_threads: int = 1,
        n_chunks: int = _CHUNKS,
    ) -> None:
        self.parameters, self._n_threads = parameters, n_threads
        self._rows, n = rows, len(rows[1])
        self._forest = Ensemble(parameters, numbers)
        X = self._prepared(slice(0, n))
        self._forest.reserve(2 * n)
        self.losses = np.empty(n - start)
        self._rest = slice(0, start)  # what is learned next
        for chunk in np.array_split(np.arange(start, n), n_chunks):
            self._learn_rest(X[self._rest])
            self._rest = slice(int(chunk[0]), int(chunk[-1]) + 1)
            self._forecast(X[self._rest], self.losses[self._rest.start - start :][: len(chunk)])

    def _prepared(self, part: slice) -> PreparedRows:
        """Return rows as the trees see them; they are not kept, as trials are."""
        X = self._rows[0][part]
        if not isinstance(X, EncodedRows):
            return self._forest.prepare(X)
        scaled = X.times(np.array(self.parameters.feature_scales, np.float32))
        if not self._forest.store.is_encoded:
            self._forest.store.encode_as(scaled.columns)
        return self._forest.predictor.preparation.encoded(scaled.columns, scaled.rows)

    def _forecast(self, X: PreparedRows, out: np.ndarray) -> Sums:
        """Write the losses of rows that are learned next; return what was forecast of them."""
        y = read_only(self._rows[1][self._rest])
        sums = self._forest.predict_sums(X, self._n_threads)
        write_losses(self._forest.policies.loss, sums.total, sums.n_trees, y, out)
        return sums

    def _learn_rest(self, X: PreparedRows) -> None:
        y, w = (read_only(column[self._rest]) for column in self._rows[1:])
        self._forest.update(X, y, w, self._n_threads)
        self._rest = slice(0, 0)


def late_loss(
    parameters: ForestParameters,
    numbers: Sequence[int],
    rows: TrialRows,
    n_threads: int = 1,
    n_chunks: int = _CHUNKS,
) -> float:
    """Return the weighted mean progressive loss over the second half of the rows."""
    half = len(rows[1]) // 2
    weights = rows[2][half:]
    losses = Trial(parameters, numbers, rows, half, n_threads, n_chunks).losses
    return math.fsum(losses * weights) / math.fsum(weights)
