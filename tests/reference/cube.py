"""The Mondrian process on the unit cube, cell by cell from its path, and what forests say on it.

Batch and recursive: all rows are at hand and every cell looks at those within. Nothing is lazy,
so that equal answers show that the kernel's laziness changes none. Shares no code with the
package; thresholds are float32, as the rows are.

References
----------
Mourtada, Gaiffas, Scornet (2017), Algorithms 1, 2 and 4; Lakshminarayanan, Roy, Teh (2014).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .amf import choose_feature, cut_between
from .draws import GOLDEN, MODULUS, mix64, tree_key

SIDES = (0xA0761D6478BD642F, 0xE7037ED1A0B428DB)


@dataclass(frozen=True)
class Cell:
    """A cell of the partition: its bounds, its birth, and the rows in it (indices)."""

    key: int
    lower: tuple[np.float32, ...]
    upper: tuple[np.float32, ...]
    born: float
    rows: tuple[int, ...]

    def uniform(self, k: int) -> float:
        bits = mix64((self.key + k * GOLDEN) % MODULUS)
        return ((bits >> 11) + 0.5) * 2.0**-53

    def split(self) -> tuple[float, int, np.float32]:
        """Return when, on which feature and where the cell is split."""
        sides = [float(b) - float(a) for a, b in zip(self.lower, self.upper, strict=True)]
        for j, (low, high) in enumerate(zip(self.lower, self.upper, strict=True)):
            if low > 0.0 and np.nextafter(low, high) == high:
                sides[j] = 0.0  # one number: whatever is cut off is empty
        size = sum(sides)
        if size == 0.0:
            return math.inf, -1, self.upper[0]  # a single point
        time = self.born - math.log(self.uniform(1)) / size
        j = choose_feature(sides, self.uniform(2) * size)
        return time, j, cut_between(self.lower[j], self.upper[j], self.uniform(3))

    def child(self, X: np.ndarray, goes_left: bool) -> Cell:
        time, j, cut = self.split()
        lower, upper = list(self.lower), list(self.upper)
        (upper if goes_left else lower)[j] = cut
        rows = tuple(r for r in self.rows if (X[r, j] <= cut) == goes_left)
        key = mix64(self.key ^ SIDES[0 if goes_left else 1])
        return Cell(key, tuple(lower), tuple(upper), time, rows)

    def child_of(self, X: np.ndarray, x: np.ndarray) -> Cell:
        _, j, cut = self.split()
        return self.child(X, bool(x[j] <= cut))


@dataclass
class CubeTree:
    """One tree of rows X float32 [n, d], labels y and weights w; `n_classes` 0 for targets."""

    X: np.ndarray
    y: np.ndarray
    w: np.ndarray
    seed: int
    tree: int
    n_classes: int
    lifetime: float = math.inf

    def root(self) -> Cell:
        d = self.X.shape[1]
        seen = tuple(np.flatnonzero(self.w > 0.0).tolist())
        zero, one = (np.float32(0.0),) * d, (np.float32(1.0),) * d
        return Cell(tree_key(self.seed, self.tree), zero, one, 0.0, seen)

    def n_points(self, cell: Cell) -> int:
        return len(np.unique(self.X[list(cell.rows)], axis=0))

    def is_split(self, cell: Cell, lifetime: float) -> bool:
        """Return whether a cell has two distinct rows to part before its end."""
        return self.n_points(cell) > 1 and cell.split()[0] <= min(lifetime, self.lifetime)

    def counts(self, cell: Cell) -> list[float]:
        counts = [0.0] * self.n_classes
        for r in cell.rows:
            counts[int(self.y[r])] += self.w[r]
        return counts

    def preorder(self, cell: Cell | None = None) -> Iterator[Cell]:
        """Yield realised cells, parents before children, left before right."""
        cell = self.root() if cell is None else cell
        yield cell
        if self.is_split(cell, math.inf):
            yield from self.preorder(cell.child(self.X, True))
            yield from self.preorder(cell.child(self.X, False))

    def forecast(self, cell: Cell) -> list[float]:
        weights = [self.w[r] for r in cell.rows]
        if self.n_classes:
            return [c / sum(weights) for c in self.counts(cell)]
        return [math.fsum(self.w[r] * self.y[r] for r in cell.rows) / sum(weights)]

    def predict(self, x: np.ndarray, lifetime: float, prior: bool) -> list[float]:
        """Return what the cell of x predicts, in the partition of all of the cube."""
        cell = self.root()
        above = cell
        point = next((r for r in cell.rows if (self.X[r] == x).all()), None)
        while cell.rows and cell.split()[0] <= min(lifetime, self.lifetime):
            if self.n_points(cell) == 1 and point is not None:
                break  # nothing parts x from itself
            above, cell = cell, cell.child_of(self.X, x)
        if cell.rows:
            return self.forecast(cell)
        k = max(self.n_classes, 1)
        empty = [1.0 / k if self.n_classes else 0.0] * k
        return empty if prior else self.forecast(above)

    def smoothed(self, x: np.ndarray, lifetime: float, gamma: float) -> list[float]:
        """Return interpolated Kneser-Ney; a cell with one point is not split, but ended."""
        lifetime = min(lifetime, self.lifetime)
        cell, predicted = self.root(), [1.0 / self.n_classes] * self.n_classes
        while self.is_split(cell, lifetime):
            predicted = self._smooth(cell, cell.split()[0], predicted, gamma, is_leaf=False)
            cell = cell.child_of(self.X, x)
        if not cell.rows:
            return predicted
        end, is_apart = self._parting(cell, x, lifetime)
        if is_apart:
            return self._smooth(cell, end, predicted, gamma, is_leaf=False)
        return self._smooth(cell, lifetime, predicted, gamma, is_leaf=True)

    def _parting(self, cell: Cell, x: np.ndarray, lifetime: float) -> tuple[float, bool]:
        """Return when x is parted from a cell's only point, if it is before the lifetime."""
        point = self.X[cell.rows[0]]
        if self.n_points(cell) > 1 or (point == x).all():
            return lifetime, False
        while (time := cell.split()[0]) <= lifetime:
            cell = cell.child_of(self.X, x)
            if not cell.rows:
                return time, True
        return lifetime, False

    def _smooth(
        self, cell: Cell, end: float, above: list[float], gamma: float, is_leaf: bool
    ) -> list[float]:
        counts = self.counts(cell)
        tab = [min(c, 1.0) for c in counts]
        if not is_leaf and self.n_points(cell) > 1:
            sides = [self.counts(cell.child(self.X, side)) for side in (True, False)]
            counts = [min(a, 1.0) + min(b, 1.0) for a, b in zip(*sides, strict=True)]
        elif not is_leaf:
            counts = tab
        d = math.exp(-gamma * (end - cell.born))
        kept = zip(counts, tab, above, strict=True)
        return [(n - d * t + d * sum(tab) * g) / sum(counts) for n, t, g in kept]
