"""Policies of a forest that follows a stream, by its labels: classes, or numbers.

Of classes trees forecast probabilities, mixed geometrically under log loss
(:mod:`dmondrian.drift.mixing_kernels`). Of a label that is a number they forecast its law, by mean
and variance, and the same loops go with other policies:

Node
    Three memories of labels, discounted per visit; its forecast is the mean of their means, by
    weights of fixed share under squared loss (:mod:`dmondrian.stats.discounted_moments`).
Prunings
    Weighted by exp(-rate x sum of errors^2 / scale), each error in units of what the tree itself
    missed by of late, known before the row (:mod:`dmondrian.losses.discounted_squared`). Weights
    are those of losses multiplied by known numbers, so the bound of exponential weights for squared
    loss holds of these: for forecasts within B of the labels and rate <= scale / (8 B^2) it is the
    theory's (M21, Lemma 1). The rates here are larger, as are those of forests that never forget.
Credits
    With l_i the loss of node i on the way, in the same units, E l - l_0 = -sum_i W_i
    (l_i - l_{i+1}) exactly, E over prunings: term i is the credit of the column split there.
Member
    Exponentiated gradient over trees of all ages, at three rates, and fixed share over these and
    the permanent tree alone (:mod:`dmondrian.drift.linear_mixing_kernels`). On every interval the
    loss in units of the scale is at most ln(G / share) / rate + rate / 8 x (sum of squared ranges
    of slopes) + length x share / rate above that of any fixed mean of the trees (Cesa-Bianchi,
    Gaillard, Lugosi, Stoltz, 2012, theorem 2). Tried beside it, by the mean of members: weights
    of recursive least squares with forgetting (as good, but its forecasts leave the range of the
    trees'), gradient descent (worse where forecasts are heavy-tailed), exponential weights of each
    tree's own loss (much worse: they pick one tree where the mean of many is better).
Guard
    The same, over means of members by kind, of all, and of permanent trees, the last of which is
    an expert that never moves: far from it the forest never is for long.
Variance
    Of the mixture of laws, times a factor that the guard learns. A label that is far off stays in
    the variance of the cells that hold it, until their trees have no weight left or are replaced;
    so the deviation is too large meanwhile. Variances are not bounded by the errors made of late:
    where noise is large in few places, these are seldom met, and the forest would be too sure
    there.

Relies on the statistics and losses of covering trees.

Shapes: T trees, n rows, k outputs (K classes, or mean and variance).

References: Kivinen, Warmuth (1997), Information and Computation 132; Herbster, Warmuth (1998),
Machine Learning 32; Cesa-Bianchi, Gaillard, Lugosi, Stoltz (2012), "Mirror descent meets fixed
share (and feels no regret)", NIPS.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dmondrian.drift.mixer import LinearSettings
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.losses.discounted_kt import DiscountedKT
from dmondrian.losses.discounted_squared import DiscountedSquared
from dmondrian.stats.discounted_counts import DiscountedCounts
from dmondrian.stats.discounted_counts import n_stats_of as n_counts_of
from dmondrian.stats.discounted_moments import N_STATS, SIZE, DiscountedMoments

SLOW, FAST, NODE_SHARE = 0.9, 0.6, 0.01  # discounts by a visit of a node; share of its memories
RATES = (0.002, 0.006, 0.02)  # of a member's experts
MOMENT_SLOW, MOMENT_FAST = 0.9, 0.6
LINEAR_RATES = (0.005, 0.02, 0.08)
RATE, MEMORY_RATE = 0.5, 0.5  # of prunings, and of memories, of errors in units of the scale
MOST, SCALE_ROWS = 32.0, 256.0  # squared error that counts, rows over which the scale is averaged


class LabelPolicies(NamedTuple):
    """Policies of covering trees and of the mixtures over them, and the width of forecasts."""

    n_outputs: int
    n_stats: int  # doubles of a node's statistics
    stat: Any
    loss: Any
    mixing: LinearSettings | None  # None for mixtures of logarithms
    rates: tuple[float, ...]  # of a member's experts

    @property
    def is_regression(self) -> bool:
        """Whether labels are numbers."""
        return self.mixing is not None

    @property
    def n_known(self) -> int:
        """Doubles of a node's statistics that are those of a permanent tree's."""
        return SIZE if self.is_regression else 1 + self.n_outputs

    @property
    def unknown(self) -> float:
        """Each output before any label is known: all classes are as likely, numbers are 0."""
        return 0.0 if self.is_regression else 1.0 / self.n_outputs

    def forecasts(self, answers: np.ndarray, origin: float) -> np.ndarray:
        """Return outputs, float64 [.., k], of permanent trees' answers about the first label."""
        if not self.is_regression:
            return answers[..., : self.n_outputs]
        center = answers[..., 0] - origin
        variance = np.maximum(answers[..., 1] - center * center, 0.0)
        return np.stack([answers[..., 0], variance], axis=-1)


def label_policies_of(parameters: ForestParameters) -> LabelPolicies:
    """Return the policies of a forest of these parameters."""
    n_classes = parameters.n_classes
    if n_classes:
        alpha = float(parameters.alpha)
        stat = DiscountedCounts(n_classes, alpha, SLOW, FAST, NODE_SHARE)
        loss = DiscountedKT(alpha, n_classes)
        return LabelPolicies(n_classes, n_counts_of(n_classes), stat, loss, None, RATES)
    return LabelPolicies(
        2,
        N_STATS,
        DiscountedMoments(MOMENT_SLOW, MOMENT_FAST, NODE_SHARE, MEMORY_RATE, MOST),
        DiscountedSquared(RATE, MOST, SCALE_ROWS),
        LinearSettings(),
        LINEAR_RATES,
    )
