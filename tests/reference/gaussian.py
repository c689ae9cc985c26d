"""The Gaussian hierarchy as a Gaussian process: dense linear algebra, no messages.

Means of nodes have the covariance c(t) - c(0), t the time at which their paths part and c the
clock g1 sigmoid(g2 t): the posterior of the mean at a point is that of a Gaussian process
observed at every row. A branch-off is a path of its own, its place averaged by fine quadrature.

References
----------
Lakshminarayanan, Roy, Teh (2016), sections 4 and 5 and Appendix A.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.polynomial.legendre import leggauss

from .amf import Node, ReferenceTree, extensions, sum_in_lanes


class LabelProcess:
    """Labels y of weight w > 0 of rows whose paths part at `parting` [n, n]; `lifetime` ends all.

    `d` is the number of features.
    """

    def __init__(
        self, parting: np.ndarray, y: np.ndarray, w: np.ndarray, d: int, lifetime: float
    ) -> None:
        n = float(w.sum())
        self.y, self.w, self.lifetime = y, w, lifetime
        self.mean = float((w * y).sum() / n)
        self.variance = float((w * (y - self.mean) ** 2).sum() / n)
        k = min(2.0 * n, 500.0)
        self.noise = self.variance / k
        self.g1 = 2.0 * self.variance * k / (k + 2.0)
        self.g2 = d / (2.0 * math.log2(max(n, 2.0)))
        self.prior = np.array([[self.clock(t) for t in row] for row in parting])

    def clock(self, time: float) -> float:
        return self.g1 * (1.0 / (1.0 + math.exp(-self.g2 * time)) - 0.5)

    def gaussian(self, parted: np.ndarray) -> tuple[float, float]:
        """Return mean and variance of a label whose path parts from each row's then."""
        own = np.array([self.clock(t) for t in parted])
        gain = np.linalg.solve(self.prior + np.diag(self.noise / self.w), own)
        mean = self.mean + float(gain @ (self.y - self.mean))
        return mean, self.clock(self.lifetime) - float(gain @ own) + self.noise

    def moments(self, parted: np.ndarray) -> np.ndarray:
        """Return mean and second moment of that label."""
        mean, variance = self.gaussian(parted)
        return np.array([mean, variance + mean * mean])


class TreeProcess:
    """The labels of a reference tree's rows, at a lifetime."""

    def __init__(
        self, tree: ReferenceTree, X: np.ndarray, y: np.ndarray, w: np.ndarray, lifetime: float
    ) -> None:
        self.tree, self.lifetime = tree, lifetime
        self.paths = [self.path(list(x)) for x in X]
        parting = np.array([self.parted(path) for path in self.paths])
        self.labels = LabelProcess(parting, y, w, X.shape[1], lifetime)

    def path(self, x: Sequence[np.float32]) -> list[Node]:
        assert self.tree.root is not None
        path = [self.tree.root]
        while not path[-1].is_leaf and path[-1].time <= self.lifetime:
            path.append(path[-1].child(x))
        return path

    def parted(self, path: list[Node]) -> np.ndarray:
        """Return the times until which a path and those of the rows are one."""
        times = []
        for other in self.paths:
            common = [u for u, v in zip(path, other, strict=False) if u is v]
            times.append(self.lifetime if path[-1] is other[-1] else common[-1].time)
        return np.array(times)

    def moments(self, x: Sequence[np.float32], expected: bool) -> np.ndarray:
        """Return mean and second moment of the label at x."""
        places = fine_places() if expected else []
        return sum(
            (p * np.array([m, v + m * m]) for p, m, v in self.components(x, places)), np.zeros(2)
        )

    def components(
        self, x: Sequence[np.float32], places: list[tuple[float, float]]
    ) -> Iterator[tuple[float, float, float]]:
        """Yield (weight, mean, variance) of the label at x: branches at `places`, and the cell.

        A place is (quantile of the branch's time, share); without places nothing branches off.
        """
        path = self.path(x)
        parted, alive = self.parted(path), 1.0
        for node in path if places else []:
            rate = sum_in_lanes(extensions(node, x))
            if rate > 0.0:
                off = -math.expm1(-rate * (min(node.time, self.lifetime) - node.time_above))
                for quantile, share in places:
                    wait = -math.log1p(-quantile * off) / rate
                    there = np.minimum(parted, node.time_above + wait)
                    yield alive * off * share, *self.labels.gaussian(there)
                alive *= 1.0 - off
        yield alive, *self.labels.gaussian(parted)


def fine_places() -> list[tuple[float, float]]:
    """Return 60 quantiles of a branch's time and their shares; a quantile is a sine squared."""
    angles = [(math.pi * (z + 1.0) / 4.0, share) for z, share in zip(*leggauss(60), strict=True)]
    return [(math.sin(a) ** 2, share * math.pi / 4.0 * math.sin(2.0 * a)) for a, share in angles]


def kernel_places() -> list[tuple[float, float]]:
    """Return the 16 places that the package has to take: quantiles z^2 (3 - 2 z)."""
    points = [((z + 1.0) / 2.0, share) for z, share in zip(*leggauss(16), strict=True)]
    return [(z * z * (3.0 - 2.0 * z), 3.0 * z * (1.0 - z) * share) for z, share in points]
