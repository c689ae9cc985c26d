"""What a node of the reference remembers of the labels, and what it charges for a row.

Two memories with the same verbs: `forecast`, `price`, `count`, `copy`, `empty`, `agrees`. A
forecast is always taken before the row is counted.

References
----------
Mourtada, Gaiffas, Scornet (2021), section 2.1 and Appendix A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from scipy.special import polygamma


@dataclass
class Counts:
    """Weights of the classes seen; the Krichevsky-Trofimov forecaster and the log loss."""

    n_classes: int
    alpha: float
    charge_opening: bool
    counts: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = self.counts or [0.0] * self.n_classes

    @property
    def weight(self) -> float:
        return sum(self.counts)

    def forecast(self) -> list[float]:
        """Return (n_c + alpha) / (n + K alpha); an empty node predicts 1/K."""
        total = self.weight + self.n_classes * self.alpha
        return [(n + self.alpha) / total for n in self.counts]

    def price(self, label: float, weight: float, opens: bool) -> float:
        """Return -log of the probability of `weight` repeats of a label, not yet counted."""
        n, n_c = self.weight, self.counts[int(label)]
        if weight == 1.0 and opens:
            return math.log(self.n_classes) if self.charge_opening else 0.0
        if weight == 1.0:
            return -math.log(self.forecast()[int(label)])
        if opens and not self.charge_opening:
            # Free is the first unit of weight, as it is for repeats; all of a weight below one.
            return self._repeats(1.0, 1.0, weight - 1.0) if weight > 1.0 else 0.0
        return self._repeats(n_c, n, weight)

    def _repeats(self, n_c: float, n: float, weight: float) -> float:
        a, b = n_c + self.alpha, n + self.n_classes * self.alpha
        return math.lgamma(a) - math.lgamma(a + weight) + math.lgamma(b + weight) - math.lgamma(b)

    def count(self, label: float, weight: float) -> None:
        self.counts[int(label)] += weight

    def copy(self) -> Counts:
        return Counts(self.n_classes, self.alpha, self.charge_opening, list(self.counts))

    def empty(self, parent: Counts | None) -> Counts:
        """Return the memory of a leaf that no row has reached."""
        return Counts(self.n_classes, self.alpha, self.charge_opening)

    def agrees(self, label: float) -> bool:
        """Return whether every row seen carries this label."""
        return self.counts[int(label)] == self.weight

    @property
    def is_pure(self) -> bool:
        return sum(count > 0.0 for count in self.counts) <= 1


@dataclass
class Moments:
    """Weight and mean of the labels seen; the squared loss.

    Repeats of a label pull the mean towards it: after i of them it is n / (n + i) as far away, and
    the price of a weight w that is no whole number is the integral form of that sum (trigamma).
    """

    charge_opening: bool
    weight: float = 0.0
    total: float = 0.0
    inherited: float | None = None

    @property
    def mean(self) -> float:
        if self.weight > 0.0:
            return self.total / self.weight
        return 0.0 if self.inherited is None else self.inherited

    def forecast(self) -> list[float]:
        """Return the mean; an empty node predicts what its parent did when it was created."""
        return [self.mean]

    def price(self, label: float, weight: float, opens: bool) -> float:
        """Return (y - mean)^2, the mean taken before each of `weight` repeats is counted.

        The first row of the stream, of which no parent could forecast anything, is free.
        """
        squared = (label - self.mean) ** 2
        if opens:
            free = self.inherited is None or not self.charge_opening
            return 0.0 if free else min(weight, 1.0) * squared
        if weight == 1.0:
            return squared
        n = self.weight
        return float(n * n * (polygamma(1, n) - polygamma(1, n + weight))) * squared

    def count(self, label: float, weight: float) -> None:
        self.weight += weight
        self.total += weight * label

    def copy(self) -> Moments:
        return Moments(self.charge_opening, self.weight, self.total, self.inherited)

    def empty(self, parent: Moments | None) -> Moments:
        """Return the memory of a leaf that no row has reached."""
        return Moments(self.charge_opening, inherited=None if parent is None else parent.mean)

    def agrees(self, label: float) -> bool:
        """Return False: labels are continuous, and no leaf pauses because they coincide."""
        return False

    @property
    def is_pure(self) -> bool:
        return False
