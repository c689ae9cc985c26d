"""What the bytes of a forest depend on besides its rows, and the policies these stand for.

Relies on the policies' modules. Promises that equal parameters give equal policies, and
that parameters from outside are checked before a forest is built of them.

Shapes: K classes.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dmondrian.ensemble.settings.feature_units import are_units
from dmondrian.ensemble.settings.fringe_settings import NO_CAP, FringeSettings
from dmondrian.ensemble.settings.kernel_settings import Joint
from dmondrian.ensemble.settings.lifetime import (
    Lifetime,
    PowerLifetime,
    end_of,
    lifetime_at,
    lifetime_from_json,
)
from dmondrian.ensemble.settings.loss_settings import Cost
from dmondrian.ensemble.settings.numeric_limits import LARGEST_TARGET
from dmondrian.errors import CorruptError
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

# Pseudo-counts beyond leave the range in which prices are kept (tree/scaled_float.py).
LEAST_ALPHA, LARGEST_ALPHA = 1e-30, 1e6
# A column is multiplied by its scale in float32.
LEAST_SCALE, LARGEST_SCALE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
# Whether an algorithm classifies, and the ways in which its trees may speak.
_ALGORITHMS = {
    "amf-classifier": (True, (None,)),
    "amf-regressor": (False, (None,)),
    "mondrian-forest-classifier": (True, ("mean", "vote", "hierarchy")),
    "mondrian-forest-regressor": (False, ("mean", "hierarchy")),
    "generalized-mondrian-forest-classifier": (True, ("mean", "aggregate")),
    "generalized-mondrian-forest-regressor": (False, ("mean", "aggregate")),
    "mondrian-density": (False, ("mean",)),
    "mondrian-features": (False, ("mean",)),
    "mondrian-kernel-classifier": (True, ("mean",)),
    "mondrian-kernel-regressor": (False, ("mean",)),
    "online-forest-classifier": (True, ("mean", "vote")),
    "online-forest-regressor": (False, ("mean",)),
}
_KINDS: dict[str, tuple[type, ...]] = {
    "algorithm": (str,),
    "n_features": (int,),
    "n_classes": (int,),
    "seed": (int,),
    "alpha": (float, int),
    "learning_rate": (float, int),
    "charge_opening": (bool,),
    "use_aggregation": (bool,),
    "split_pure": (bool,),
    "expected_extension": (bool,),
    "max_nodes": (int, type(None)),
    "feature_scales": (list, type(None)),
    "feature_units": (list, type(None)),
    "target_range": (list, type(None)),
    "aggregation": (str, type(None)),
    "lifetime": (float, dict, type(None)),
    "discount": (float, type(None)),
    "empty_prior": (bool,),
    "domain": (str,),
    "clip": (bool,),
    "horizon": (float, type(None)),
    "cost": (dict, type(None)),
    "fringe": (dict, type(None)),
    "joint": (dict, type(None)),
}
# Left out where they are the default: the bytes are those of versions that knew none of them.
_OF_FEATURES = ("feature_scales", "feature_units")
_LISTS = (*_OF_FEATURES, "target_range")
_LATER_KEYS = ("horizon", "cost", "fringe", "joint", "feature_units", "target_range")


@dataclass(frozen=True)
class ForestParameters:
    """All that the bytes of a forest depend on besides its rows.

    Attributes
    ----------
    algorithm : str
        "amf-", "mondrian-forest-" or "generalized-mondrian-forest-", and "classifier" or
        "regressor".
    n_features : int
    n_classes : int
        0 for regression.
    seed : int
        In [0, 2^64).
    alpha : float
        Dirichlet pseudo-count of a class (classification).
    learning_rate : float
        Classification: exponent of the price factor. Regression: learning rate times the
        variance of the labels, or times B^2 with a ``target_range``; 0 means the theorem's
        1 / (8 B^2).
    charge_opening : bool
        Whether the row that opens a leaf is priced there.
    use_aggregation : bool
        Mix over all prunings; else the leaf alone speaks.
    split_pure : bool
        Split leaves whose rows carry one label (classification).
    expected_extension : bool
        Predict the expectation over extensions of the tree by the point.
    max_nodes : int or None
        Cap on the nodes of a tree.
    feature_scales : tuple of float or None
        Columns are multiplied by these float32 numbers, > 0, before a tree sees them.
    feature_units : tuple of float or None
        Then values are rounded to multiples of these powers of two; 0 for no rounding.
    aggregation : {"mean", "vote", "hierarchy", "aggregate"} or None
        How the trees of a Mondrian forest speak; None for AMF.
    lifetime : float, PowerLifetime or None
        Until when trees are split (a float), or until when predictions listen to them.
    discount : float or None
        Rate of the hierarchy's discounts (classification); None means 10 d.
    empty_prior : bool
        Whether an empty cell says 1/K or 0, not what its parent says.
    domain : {"range", "cube"}
        What a Mondrian process splits: the range of the data, or the unit cube.
    clip : bool
        Whether rows outside the cube are moved to its surface, or refused.
    horizon : float or None
        Until when trees are split where the lifetime of predictions grows or is chosen.
    cost : Cost or None
        What a generalised Mondrian forest minimises; None for other forests.
    joint : Joint or None
        How the cells of all trees are fitted together; None for forests.
    fringe : FringeSettings or None
        How an online random forest chooses splits; None for other forests.
    target_range : tuple of two floats or None
        Between which all labels lie, where that is known before the first (AMF, regression).
    """

    algorithm: str
    n_features: int
    n_classes: int
    seed: int
    alpha: float = 0.5
    learning_rate: float = 1.0
    charge_opening: bool = True
    use_aggregation: bool = True
    split_pure: bool = False
    expected_extension: bool = False
    max_nodes: int | None = None
    feature_scales: tuple[float, ...] | None = None
    aggregation: str | None = None
    lifetime: Lifetime = None
    discount: float | None = None
    empty_prior: bool = False
    domain: str = "range"
    clip: bool = False
    horizon: float | None = None
    cost: Cost | None = None
    joint: Joint | None = None
    fringe: FringeSettings | None = None
    feature_units: tuple[float, ...] | None = None
    target_range: tuple[float, ...] | None = None

    @property
    def has_boxes(self) -> bool:
        """Whether nodes know the range of their rows."""
        return self.fringe is None

    @property
    def tells_proba(self) -> bool:
        """Whether predictions are class probabilities."""
        return self.n_classes > 0 and self.cost is None and self.joint is None

    @property
    def tells_labels(self) -> bool:
        """Whether cells can tell mean and second moment of a label."""
        return self.algorithm == "amf-regressor"

    @property
    def target_bound(self) -> float:
        """How far labels may be from what empty cells forecast; 0 where that is not known."""
        if self.target_range is None:
            return 0.0
        low, high = self.target_range
        return max(abs(low), abs(high)) if self.empty_prior else 0.5 * (high - low)

    @property
    def n_outputs(self) -> int:
        """Numbers of a prediction: classes, or what a cell says."""
        if self.joint is not None:
            return self.joint.n_outputs
        return max(self.n_classes, 1) if self.cost is None else self.cost.n_outputs

    @property
    def n_stats(self) -> int:
        """Statistics of a node, in doubles."""
        if self.joint is not None:
            return self.joint.n_stats
        if self.cost is not None:
            return self.cost.n_stats
        if self.fringe is not None:
            return self.n_counted + 1
        return 1 + self.n_classes if self.n_classes else MOMENTS

    @property
    def n_counted(self) -> int:
        """Statistics of the labels of a node's rows; trees with a fringe keep one more."""
        return 1 + self.n_classes if self.n_classes else 3

    @property
    def realised_lifetime(self) -> float:
        """The time up to which trees are split."""
        return min(end_of(self.lifetime), np.inf if self.horizon is None else self.horizon)

    def lifetime_at(self, total_weight: float) -> float:
        """Return the lifetime of a prediction after rows of this total weight."""
        if self.cost is not None and self.cost.lifetime is not None:
            return self.cost.lifetime
        return min(lifetime_at(self.lifetime, total_weight), self.realised_lifetime)

    def lifetimes_at(self, total_weights: np.ndarray) -> np.ndarray:
        """Return the lifetimes of predictions after rows of these total weights, float64 [n]."""
        if not isinstance(self.lifetime, PowerLifetime):
            return np.full(len(total_weights), self.lifetime_at(1.0))
        return np.array([self.lifetime_at(weight) for weight in total_weights.tolist()], np.float64)

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as a JSON-able dict."""
        told = dataclasses.asdict(self)
        for name in _LISTS:
            told[name] = None if told[name] is None else list(told[name])
        told["cost"] = None if self.cost is None else self.cost.to_json()
        told["joint"] = None if self.joint is None else self.joint.to_json()
        told["fringe"] = None if self.fringe is None else self.fringe.to_json()
        absent = [name for name in _LATER_KEYS if told[name] is None]
        return {name: value for name, value in told.items() if name not in absent}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ForestParameters:
        """Return the parameters of :meth:`to_json`, checked.

        Raises
        ------
        CorruptError
            If a key is missing or unknown, or a value has the wrong type or range.
        """
        if not isinstance(values, dict) or not _FIRST_KEYS <= set(values) <= set(_KINDS):
            raise CorruptError(f"forest parameters should have the keys {sorted(_KINDS)}")
        for key, value in values.items():
            is_bool = isinstance(value, bool)
            if not isinstance(value, _KINDS[key]) or (is_bool and bool not in _KINDS[key]):
                told = f"{str(value)[:80]!r}"
                raise CorruptError(f"forest parameter {key} has an impossible value {told}")
        values = {**values, "lifetime": lifetime_from_json(values.get("lifetime"))}
        for name in _LISTS:
            if values.get(name) is not None:
                if any(type(value) is not float for value in values[name]):
                    raise CorruptError(f"{name} should be numbers with a decimal point")
                values = {**values, name: tuple(values[name])}
        if values.get("cost") is not None:
            values = {**values, "cost": Cost.from_json(values["cost"])}
        if values.get("joint") is not None:
            values = {**values, "joint": Joint.from_json(values["joint"])}
        if values.get("fringe") is not None:
            values = {**values, "fringe": FringeSettings.from_json(values["fringe"])}
        parameters = cls(**values)
        parameters.check()
        return parameters

    def _has_sound_scales(self) -> bool:
        scales, units = self.feature_scales, self.feature_units
        if units is not None and not are_units(units, self.n_features):
            return False
        if scales is None:
            return True
        in_range = all(LEAST_SCALE <= scale <= LARGEST_SCALE for scale in scales)
        return len(scales) == self.n_features and in_range

    def _has_sound_range(self) -> bool:
        if self.target_range is None:
            return True
        is_range = len(self.target_range) == 2 and 1e-140 <= self.target_bound <= LARGEST_TARGET
        return self.tells_labels and is_range and self.target_range[0] < self.target_range[1]

    def _has_sound_lifetime(self) -> bool:
        has_end = isinstance(self.lifetime, PowerLifetime) or end_of(self.lifetime) > 0.0
        sound_discount = self.discount is None or 0.0 < self.discount < np.inf
        sound_horizon = self.horizon is None or 0.0 < self.horizon < np.inf
        is_plain = bool(self.aggregation) or self.lifetime is None
        return has_end and sound_discount and sound_horizon and is_plain

    def _has_sound_cost(self) -> bool:
        is_density = self.algorithm == "mondrian-density"
        if self.cost is None:
            return not self.algorithm.startswith("generalized") and not is_density
        if is_density or self.cost.loss == "density":
            return is_density and self.cost.loss == "density" and self.domain == "cube"
        is_generalized = self.algorithm.startswith("generalized")
        return is_generalized and self.cost.is_binary == (self.n_classes == 2)

    def _has_sound_joint(self) -> bool:
        if self.joint is None:
            return not self.algorithm.startswith(("mondrian-kernel", "mondrian-features"))
        n = 0 if self.algorithm == "mondrian-features" else max(self.n_classes, 1)
        is_kernel = self.algorithm.startswith(("mondrian-kernel", "mondrian-features"))
        ends = isinstance(self.lifetime, float)
        return is_kernel and ends and self.joint.n_outputs == n and self.max_nodes is None

    def _has_sound_fringe(self) -> bool:
        if self.fringe is None:
            return not self.algorithm.startswith("online-forest")
        return self.algorithm.startswith("online-forest") and (
            self.fringe.suits(self.n_classes)
            and (self.lifetime, self.horizon, self.cost) == (None,) * 3
            and (self.feature_scales, self.feature_units) == (None,) * 2
            and (self.domain, self.empty_prior, self.expected_extension) == ("range", True, False)
        )

    def check(self) -> None:
        """Raise :class:`CorruptError` where values are out of range together."""
        is_classifier, aggregations = _ALGORITHMS.get(self.algorithm, (False, ()))
        sound = (
            self.aggregation in aggregations
            and 1 <= self.n_features < 2**24
            and (1 <= self.n_classes < 2**24 if is_classifier else self.n_classes == 0)
            and 0 <= self.seed < 2**64
            and LEAST_ALPHA <= self.alpha <= LARGEST_ALPHA
            and 0.0 <= self.learning_rate <= sys.float_info.max
            and (self.max_nodes is None or 1 <= self.max_nodes <= NO_CAP)
            and self._has_sound_scales()
            and self._has_sound_range()
            and self._has_sound_lifetime()
            and self._has_sound_cost()
            and self._has_sound_joint()
            and self._has_sound_fringe()
            and self.domain in ("range", "cube")
            and (self.domain == "range" or (self.feature_scales, self.feature_units) == (None,) * 2)
        )
        if not sound:
            raise CorruptError(f"forest parameters are out of range: {str(self)[:400]}")
        if self.algorithm == "mondrian-density" and self.lifetime_at(1.0) == np.inf:
            # Cells without an end are points, and all rows would lie in empty ones.
            raise CorruptError(
                "forest parameters of a density have no lifetime: neither a lifetime, nor a "
                "horizon, nor one that held-out rows chose; restore the model from a copy, or "
                "train it anew"
            )


# Keys of the first parameters ever stored: all others may be missing.
_FIRST_KEYS = (
    set(_KINDS)
    - {"aggregation", "lifetime", "discount", "empty_prior", "domain", "clip"}
    - set(_LATER_KEYS)
)


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


def policies(p: ForestParameters) -> Policies:
    """Return the policies of ``p``'s algorithm."""
    if p.joint is not None:
        return Policies(_growth(p), p.joint.stat, p.joint.forecast, Leaf(False))
    if p.cost is not None:
        rule = Aggregate(True) if p.aggregation == "aggregate" else Leaf(False)
        return Policies(_growth(p), p.cost.stat(), p.cost.policy(bool(p.empty_prior)), rule)
    stat = Counts(int(p.n_classes)) if p.n_classes else Moments(MOMENTS)
    loss, rule = _weighing(p) if p.aggregation is None else _smoothing(p)
    return Policies(_growth(p), stat, loss, rule)


def _growth(p: ForestParameters) -> Any:
    cap = NO_CAP if p.max_nodes is None else int(p.max_nodes)
    if p.fringe is not None:
        return p.fringe.policy(cap)
    if p.domain == "cube":
        parts = p.aggregation is None and bool(p.expected_extension)
        return Cube(int(cap), float(p.realised_lifetime), parts)
    pause = p.n_classes > 0 and not p.split_pure
    return Range(pause, bool(p.expected_extension), int(cap), float(p.realised_lifetime))


def _weighing(p: ForestParameters) -> tuple[Any, Any]:
    """Return loss and rule of AMF."""
    rule = Aggregate(True) if p.use_aggregation else Leaf(False)
    rate, charge = float(p.learning_rate), bool(p.charge_opening)
    if p.n_classes > 0:
        return KT(float(p.alpha), int(p.n_classes), rate, charge), rule
    return Squared(rate, charge, bool(p.empty_prior), float(p.target_bound)), rule


def _smoothing(p: ForestParameters) -> tuple[Any, Any]:
    """Return loss and rule of a Mondrian forest."""
    prior, n_classes = bool(p.empty_prior), int(p.n_classes)
    if n_classes == 0:
        smoothed = p.aggregation == "hierarchy"
        return Average(prior), GaussianHierarchy(np.inf, False) if smoothed else Leaf(False)
    loss = Proportions(n_classes, prior)
    if p.aggregation == "mean":
        return loss, Leaf(False)
    if p.aggregation == "vote":
        return loss, Vote(n_classes)
    gamma = 10.0 * p.n_features if p.discount is None else float(p.discount)
    return loss, KneserNey(n_classes, gamma)
