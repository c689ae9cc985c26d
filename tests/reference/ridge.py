"""Ridge regression on cells, slowly: dense matrices, straight from B16 section 4.2.1.

Shapes: n rows, T trees, c columns, k outputs.
"""

from __future__ import annotations

import numpy as np


def features(cells: np.ndarray) -> np.ndarray:
    """Return Phi [n, c] of cells [n, T], numbers of any kind that are distinct between trees."""
    phi = np.zeros((len(cells), cells.max() + 1))
    np.put_along_axis(phi, cells, 1.0 / np.sqrt(cells.shape[1]), axis=1)
    return phi[:, phi.any(axis=0)]


def weights_of(
    phi: np.ndarray, y: np.ndarray, w: np.ndarray, ridge: float
) -> tuple[np.ndarray, float, float]:
    """Return the weights [c], ln det A, and the log marginal likelihood up to a constant."""
    A = phi.T @ (w[:, None] * phi) + ridge * np.eye(phi.shape[1])
    found = np.linalg.solve(A, phi.T @ (w * y))
    # Rows of weight w are w repeats.
    many = np.repeat(np.arange(len(y)), w.astype(int))
    M = phi[many] @ phi[many].T + ridge * np.eye(len(many))
    squares = y[many] @ np.linalg.solve(M, y[many])
    likelihood = -0.5 * np.linalg.slogdet(M)[1] - 0.5 * len(many) * np.log(squares)
    return found, float(np.linalg.slogdet(A)[1]), float(likelihood)


class SlowSweep:
    """Values of cells that are warm-started, lifetime by lifetime (B16, section 4.2.2).

    A batch is at most an eighth of the rows applied before it, does not cross a power of two, and
    changes what cells say at its end: by the sum of its residuals in the cell over
    max(weight + ridge, sqrt(weight applied + ridge)). Cells without rows predict the mean label.
    """

    def __init__(self, y: np.ndarray, weights: np.ndarray, ridge: float, batch_size: int) -> None:
        self.y, self.weights, self.ridge, self.batch_size = y, weights, ridge, batch_size
        self.learned = np.flatnonzero(weights > 0.0)
        self.cells, self.position = np.zeros((0, 0), np.int64), 0
        self.known: list[dict[int, tuple[float, float]]] = []  # by tree: value, weight applied
        self.means: dict[int, tuple[float, float]] = {}  # of trees that are cut: value, weight

    def at(self, cells: np.ndarray, is_cut: list[bool]) -> np.ndarray:
        """Go on to cells int64 [n, T], apply the rows once; return what they predict, [n].

        ``is_cut`` tells of which trees the whole is no cell any more.
        """
        before, known, n_trees = self.cells, self.known, cells.shape[1]
        self.cells, self.known = cells, [{} for _ in range(n_trees)]
        for t in range(n_trees):
            for r in self.learned.tolist():
                value, applied = 0.0, 0.0
                if known:
                    value, applied = known[t][before[r, t]]
                    applied *= self._weight(cells, r, t) / self._weight(before, r, t)
                    if is_cut[t] and t not in self.means:
                        self.means[t] = known[t][before[r, t]]
                self.known[t][cells[r, t]] = value, applied
            if is_cut[t] and not known:
                self.means[t] = 0.0, 0.0
        start = 0
        while start < len(self.learned):
            size = self._batch()
            assert start + size <= len(self.learned)  # no batch goes over the end of a pass
            self._apply(self.learned[start : start + size].tolist())
            start += size
        return np.array([np.mean(self._predicted(r)) for r in range(len(self.y))])

    @property
    def n_columns(self) -> int:
        """Cells with rows that are learned."""
        return sum(len(known) for known in self.known)

    def _weight(self, cells: np.ndarray, r: int, t: int) -> float:
        return float(self.weights[cells[:, t] == cells[r, t]].sum())

    def _batch(self) -> int:
        octave = 1
        while 2 * octave <= self.position:
            octave *= 2
        return min(max(octave // 8, 1), self.batch_size)

    def _predicted(self, r: int) -> list[float]:
        reported = []
        for t, known in enumerate(self.known):
            value, applied = known.get(self.cells[r, t], (0.0, 0.0))
            reported.append(value if applied > 0.0 or t not in self.means else self.means[t][0])
        return reported

    def _apply(self, rows: list[int]) -> None:
        predicted = {r: self._predicted(r) for r in rows}
        for t, known in enumerate(self.known):
            for cell in {self.cells[r, t] for r in rows}:
                mine = [r for r in rows if self.cells[r, t] == cell]
                weight = sum(self.weights[r] for r in mine)
                left = sum(self.weights[r] * (self.y[r] - np.mean(predicted[r])) for r in mine)
                applied = known[cell][1] + weight
                rate = 1.0 / max(weight + self.ridge, np.sqrt(applied + self.ridge))
                known[cell] = predicted[mine[0]][t] + rate * left, applied
            if t in self.means:
                mean, applied = self.means[t]
                left = sum(self.weights[r] * (self.y[r] - mean) for r in rows)
                applied += sum(self.weights[r] for r in rows)
                self.means[t] = mean + left / (applied + self.ridge), applied
        self.position += len(rows)
