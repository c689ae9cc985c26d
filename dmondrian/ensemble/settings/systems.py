"""The five systems on the common trees: one small class of settings each.

A system decides which policies its trees have, what a node stores, and what a forest of it can
do. Settings that all systems share are those of the trees
(:class:`dmondrian.ensemble.settings.tree_settings.TreeSettings`). A new system is one more class.

Relies on the policies' modules. Promises that equal settings give equal policies, and that settings
from outside are checked before a forest is built of them.

Shapes: n rows, K classes, k outputs.

References: Mourtada, Gaiffas, Scornet (2021) for AMF; Lakshminarayanan, Roy, Teh (2014, 2016) for
Mondrian forests; Balog et al. (2016) for the kernel; Denil, Matheson, de Freitas (2013) for online
random forests.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dmondrian.ensemble.settings.drift_settings import DriftSettings
from dmondrian.ensemble.settings.fringe_settings import FringeSettings
from dmondrian.ensemble.settings.kernel_settings import Joint, proba_of
from dmondrian.ensemble.settings.lifetime import Lifetime, PowerLifetime, end_of, lifetime_at
from dmondrian.ensemble.settings.loss_settings import Cost, forecasts
from dmondrian.ensemble.settings.numeric_limits import LARGEST_ALPHA, LARGEST_TARGET, LEAST_ALPHA
from dmondrian.ensemble.settings.tree_settings import TreeSettings
from dmondrian.growth.cube import Cube
from dmondrian.growth.range import Range
from dmondrian.losses.average import Average
from dmondrian.losses.kt import KT
from dmondrian.losses.proportions import Proportions
from dmondrian.losses.squared import Squared
from dmondrian.rules.aggregate import Aggregate
from dmondrian.rules.gaussian import GaussianHierarchy
from dmondrian.rules.kneser_ney import KneserNey
from dmondrian.rules.leaf import Leaf, Vote
from dmondrian.stats.counts import Counts
from dmondrian.stats.moments import MOMENTS, Moments

_LEAST_BOUND = 1e-140


class Policies(NamedTuple):
    """The four choices that make an algorithm."""

    growth: Any
    stat: Any
    loss: Any
    rule: Any

    @property
    def learning(self) -> Policies:
        """Policies under which a tree learns to the same bytes.

        A rule without weights does nothing to a tree, so one stands for all of them: a kernel is
        compiled for each.
        """
        return self if isinstance(self.rule, Aggregate) else self._replace(rule=Leaf(False))

    @property
    def at_leaves(self) -> Policies:
        """Policies whose prediction is that of a row's leaf, not expected over extensions."""
        if not isinstance(self.growth, Range):
            return self
        return self._replace(growth=self.growth._replace(expected=False))


class System:
    """Settings of one system, and what forests of it can do; base of the five.

    The first attributes are the settings of all systems: a system that lacks one has, and stores,
    the value given here. Of ``cost``, ``joint`` and ``fringe`` it has none.
    """

    alpha: float = 0.5
    learning_rate: float = 1.0
    charge_opening: bool = True
    use_aggregation: bool = True
    aggregation: str | None = None
    lifetime: Lifetime = None
    discount: float | None = None
    horizon: float | None = None
    cost: Cost
    joint: Joint
    fringe: FringeSettings
    target_range: tuple[float, ...] | None = None
    drift: DriftSettings | None = None

    # What forests of the system can do: see the properties of ForestParameters.
    has_boxes = True
    minimises_loss = False
    learns_jointly = False
    has_fringe = False

    @property
    def aggregates_prunings(self) -> bool:
        """Whether a tree predicts by a mixture over all its prunings."""
        return self.aggregation == "aggregate"

    @property
    def lifetime_grows(self) -> bool:
        """Whether predictions use more splits as rows come."""
        return isinstance(self.lifetime, PowerLifetime)

    @property
    def realised_lifetime(self) -> float:
        """The time up to which trees are split."""
        return min(end_of(self.lifetime), math.inf if self.horizon is None else self.horizon)

    def lifetime_at(self, total_weight: float) -> float:
        """Return the lifetime of a prediction after rows of this total weight."""
        return min(lifetime_at(self.lifetime, total_weight), self.realised_lifetime)

    def n_outputs(self, trees: TreeSettings) -> int:
        """Return the numbers of a prediction."""
        return max(trees.n_classes, 1)

    def n_stats(self, trees: TreeSettings) -> int:
        """Return the statistics of a node, in doubles."""
        return 1 + trees.n_classes if trees.n_classes else MOMENTS

    def policies(self, trees: TreeSettings) -> Policies:
        """Return the policies of the trees."""
        raise NotImplementedError

    def faults(self, trees: TreeSettings) -> Iterator[str]:
        """Yield the names of settings that are out of range, also together with the trees'."""
        if not end_of(self.lifetime) > 0.0:
            yield "lifetime"
        if self.horizon is not None and not 0.0 < self.horizon < math.inf:
            yield "horizon"

    def forecasts(self, mean: np.ndarray) -> np.ndarray:
        """Return what metrics compare with labels, from the mean over trees.

        Parameters
        ----------
        mean : float64 [n, k]

        Returns
        -------
        float64 array of shape (n, K) or (n, 1)
            Class probabilities (of the hinge: shares of the trees' signs), or the predicted mean
            label; of quantiles the one whose level is nearest to 1/2.
        """
        return mean

    def _growth(self, trees: TreeSettings, has_cells_of_rows: bool = False) -> Any:
        """Return how the trees grow: in the unit cube, or in the range of the data."""
        expected, end = bool(trees.expected_extension), float(self.realised_lifetime)
        if trees.domain == "cube":
            return Cube(trees.node_cap, end, has_cells_of_rows and expected)
        pause = trees.n_classes > 0 and not trees.split_pure
        return Range(pause, expected, trees.node_cap, end)


def _moments_or_counts(trees: TreeSettings) -> Any:
    return Counts(int(trees.n_classes)) if trees.n_classes else Moments(MOMENTS)


@dataclass(frozen=True)
class Amf(System):
    """Aggregated Mondrian forests: a mixture over all prunings of each tree.

    Attributes
    ----------
    alpha : float
        Dirichlet pseudo-count of a class (classification).
    learning_rate : float
        Classification: exponent of the weights. Regression: learning rate times the variance of
        the labels, or times B^2 with a ``target_range``; 0 means the theorem's 1 / (8 B^2).
    charge_opening : bool
        Whether the row that opens a leaf counts in the loss of that leaf.
    use_aggregation : bool
        Mix over all prunings; else a prediction is that of the leaf.
    target_range : tuple of two floats or None
        Between which all labels lie, where that is known before the first (regression).
    drift : DriftSettings or None
        How trees of all ages follow the stream; None where none do.
    """

    alpha: float = 0.5
    learning_rate: float = 1.0
    charge_opening: bool = True
    use_aggregation: bool = True
    target_range: tuple[float, ...] | None = None
    drift: DriftSettings | None = None

    @property
    def aggregates_prunings(self) -> bool:
        """Whether a tree predicts by a mixture over all its prunings."""
        return bool(self.use_aggregation)

    def target_bound(self, empty_prior: bool) -> float:
        """Return the largest distance of labels from what empty cells predict; 0 if unknown."""
        if self.target_range is None:
            return 0.0
        low, high = self.target_range
        return max(abs(low), abs(high)) if empty_prior else 0.5 * (high - low)

    def faults(self, trees: TreeSettings) -> Iterator[str]:
        """Yield the names of settings that are out of range."""
        if not LEAST_ALPHA <= self.alpha <= LARGEST_ALPHA:
            yield "alpha"
        if not 0.0 <= self.learning_rate <= sys.float_info.max:
            yield "learning_rate"
        if self.target_range is not None:
            is_pair = len(self.target_range) == 2 and self.target_range[0] < self.target_range[1]
            is_known = is_pair and not trees.n_classes
            bound = self.target_bound(trees.empty_prior) if is_known else math.nan
            if not _LEAST_BOUND <= bound <= LARGEST_TARGET:
                yield "target_range"
        if self.drift is not None and (trees.domain != "range" or not self.use_aggregation):
            yield "drift"
        if self.drift is not None and self.drift.boosted and trees.n_classes == 1:
            yield "drift"
        if self.drift is not None and self.drift.monotone is not None:
            is_one_output = trees.n_classes in (0, 2)
            if len(self.drift.monotone) != trees.n_features or not is_one_output:
                yield "drift"

    def policies(self, trees: TreeSettings) -> Policies:
        """Return the policies of the trees."""
        rule = Aggregate(True) if self.use_aggregation else Leaf(False)
        rate, charge = float(self.learning_rate), bool(self.charge_opening)
        if trees.n_classes:
            loss: Any = KT(float(self.alpha), int(trees.n_classes), rate, charge)
        else:
            prior = bool(trees.empty_prior)
            loss = Squared(rate, charge, prior, float(self.target_bound(prior)))
        growth = self._growth(trees, has_cells_of_rows=True)
        return Policies(growth, _moments_or_counts(trees), loss, rule)


@dataclass(frozen=True)
class Mondrian(System):
    """Mondrian forests: leaves, their votes, or a hierarchy of cells from the root to the leaf.

    Attributes
    ----------
    aggregation : {"mean", "vote", "hierarchy"}
        What a tree predicts. A hierarchy is of Kneser-Ney (classification) or Gaussian.
    lifetime : float, PowerLifetime or None
        Until when trees are split (a float), or splits count in predictions.
    discount : float or None
        Rate of the hierarchy's discounts (classification); None means 10 d.
    """

    aggregation: str | None = "mean"
    lifetime: Lifetime = None
    discount: float | None = None

    def faults(self, trees: TreeSettings) -> Iterator[str]:
        """Yield the names of settings that are out of range."""
        yield from super().faults(trees)
        ways = ("mean", "vote", "hierarchy") if trees.n_classes else ("mean", "hierarchy")
        if self.aggregation not in ways:
            yield "aggregation"
        if self.discount is not None and not 0.0 < self.discount < math.inf:
            yield "discount"

    def policies(self, trees: TreeSettings) -> Policies:
        """Return the policies of the trees."""
        loss, rule = self._loss_and_rule(trees)
        return Policies(self._growth(trees), _moments_or_counts(trees), loss, rule)

    def _loss_and_rule(self, trees: TreeSettings) -> tuple[Any, Any]:
        prior, n_classes = bool(trees.empty_prior), int(trees.n_classes)
        is_hierarchy = self.aggregation == "hierarchy"
        if n_classes == 0:
            return Average(prior), GaussianHierarchy(math.inf, False) if is_hierarchy else Leaf(
                False
            )
        loss = Proportions(n_classes, prior)
        if is_hierarchy:
            rate = 10.0 * trees.n_features if self.discount is None else float(self.discount)
            return loss, KneserNey(n_classes, rate)
        return loss, Vote(n_classes) if self.aggregation == "vote" else Leaf(False)


@dataclass(frozen=True)
class Generalized(System):
    """Generalised Mondrian forests: cells minimise a loss of the user's choice; densities too.

    Attributes
    ----------
    cost : Cost
        The loss, and how the lifetime is chosen by it.
    aggregation : {"mean", "aggregate"}
        The leaf, or a mixture over all prunings.
    lifetime : float, PowerLifetime or None
        Until when trees are split (a float), or splits count in predictions.
    horizon : float or None
        Until when trees are split where the lifetime of predictions grows or is chosen.
    """

    cost: Cost
    aggregation: str | None = "mean"
    lifetime: Lifetime = None
    horizon: float | None = None

    minimises_loss = True

    def lifetime_at(self, total_weight: float) -> float:
        """Return the lifetime that held-out rows chose, else that after rows of a weight."""
        chosen = self.cost.lifetime
        return super().lifetime_at(total_weight) if chosen is None else chosen

    def n_outputs(self, trees: TreeSettings) -> int:
        """Return the values of a cell."""
        return self.cost.n_outputs

    def n_stats(self, trees: TreeSettings) -> int:
        """Return the statistics of a node, in doubles."""
        return self.cost.n_stats

    def faults(self, trees: TreeSettings) -> Iterator[str]:
        """Yield the names of settings that are out of range."""
        yield from super().faults(trees)
        is_density = trees.algorithm == "mondrian-density"
        if self.aggregation not in (("mean",) if is_density else ("mean", "aggregate")):
            yield "aggregation"
        is_binary = trees.n_classes == 2
        if is_density != (self.cost.loss == "density") or is_binary != self.cost.is_binary:
            yield "cost"
        if is_density and trees.domain != "cube":
            yield "domain"

    def forecasts(self, mean: np.ndarray) -> np.ndarray:
        """Return the mean label or the class probabilities at values of cells float64 [n, k]."""
        return forecasts(self.cost, mean)

    def policies(self, trees: TreeSettings) -> Policies:
        """Return the policies of the trees."""
        rule = Aggregate(True) if self.aggregates_prunings else Leaf(False)
        loss = self.cost.policy(bool(trees.empty_prior))
        return Policies(self._growth(trees), self.cost.stat(), loss, rule)


@dataclass(frozen=True)
class Kernel(System):
    """The Mondrian kernel: values of the cells of all trees, fitted together.

    Attributes
    ----------
    joint : Joint
        How they are fitted.
    lifetime : float
        Until when trees are split.
    """

    joint: Joint
    lifetime: Lifetime = None

    aggregation = "mean"
    learns_jointly = True

    def n_outputs(self, trees: TreeSettings) -> int:
        """Return the values of a cell."""
        return self.joint.n_outputs

    def n_stats(self, trees: TreeSettings) -> int:
        """Return the statistics of a node, in doubles."""
        return self.joint.n_stats

    def faults(self, trees: TreeSettings) -> Iterator[str]:
        """Yield the names of settings that are out of range."""
        if not isinstance(self.lifetime, float) or not self.lifetime > 0.0:
            yield "lifetime"
        n_outputs = 0 if trees.algorithm == "mondrian-features" else max(trees.n_classes, 1)
        if self.joint.n_outputs != n_outputs:
            yield "joint"
        if trees.max_nodes is not None:
            yield "max_nodes"

    def forecasts(self, mean: np.ndarray) -> np.ndarray:
        """Return the mean label or the class probabilities at values of cells float64 [n, k]."""
        return mean if self.joint.n_outputs == 1 else proba_of(self.joint.loss, mean)

    def policies(self, trees: TreeSettings) -> Policies:
        """Return the policies of the trees."""
        return Policies(self._growth(trees), self.joint.stat, self.joint.forecast, Leaf(False))


@dataclass(frozen=True)
class Online(System):
    """Online random forests: splits are chosen by their gain among candidates of fringe leaves.

    Attributes
    ----------
    fringe : FringeSettings
        How candidates are drawn and chosen from.
    aggregation : {"mean", "vote"}
        What a tree predicts.
    """

    fringe: FringeSettings
    aggregation: str | None = "mean"

    has_boxes = False
    has_fringe = True

    def n_stats(self, trees: TreeSettings) -> int:
        """Return the statistics of a node, in doubles."""
        return trees.n_label_stats + 1  # and the gain of the split, or when the leaf began

    def faults(self, trees: TreeSettings) -> Iterator[str]:
        """Yield the names of settings that are out of range."""
        if self.aggregation not in (("mean", "vote") if trees.n_classes else ("mean",)):
            yield "aggregation"
        if not self.fringe.suits(trees.n_classes):
            yield "fringe"
        expected = {
            "feature_scales": None,
            "feature_units": None,
            "domain": "range",
            "empty_prior": True,
            "expected_extension": False,
        }
        yield from (name for name in expected if getattr(trees, name) != expected[name])

    def policies(self, trees: TreeSettings) -> Policies:
        """Return the policies of the trees."""
        n_classes = int(trees.n_classes)
        growth, stat = self.fringe.policy(trees.node_cap), _moments_or_counts(trees)
        if n_classes == 0:
            return Policies(growth, stat, Average(bool(trees.empty_prior)), Leaf(False))
        rule = Vote(n_classes) if self.aggregation == "vote" else Leaf(False)
        return Policies(growth, stat, Proportions(n_classes, bool(trees.empty_prior)), rule)


# The system of each algorithm, and whether it classifies.
SYSTEMS: dict[str, tuple[type[System], bool]] = {
    "amf-classifier": (Amf, True),
    "amf-regressor": (Amf, False),
    "mondrian-forest-classifier": (Mondrian, True),
    "mondrian-forest-regressor": (Mondrian, False),
    "generalized-mondrian-forest-classifier": (Generalized, True),
    "generalized-mondrian-forest-regressor": (Generalized, False),
    "mondrian-density": (Generalized, False),
    "mondrian-features": (Kernel, False),
    "mondrian-kernel-classifier": (Kernel, True),
    "mondrian-kernel-regressor": (Kernel, False),
    "online-forest-classifier": (Online, True),
    "online-forest-regressor": (Online, False),
}
