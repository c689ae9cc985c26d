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

from dmondrian.errors import CorruptError
from dmondrian.growth.range import Range
from dmondrian.losses.kt import KT
from dmondrian.losses.squared import Squared
from dmondrian.rules.aggregate import Aggregate, Leaf
from dmondrian.stats.counts import Counts
from dmondrian.stats.moments import MOMENTS, Moments

_NO_CAP = int(np.iinfo(np.int64).max)
# Pseudo-counts beyond leave the range in which prices are kept (core/weights.py).
LEAST_ALPHA, LARGEST_ALPHA = 1e-30, 1e6


@dataclass(frozen=True)
class ForestParameters:
    """All that the bytes of a forest depend on besides its rows.

    Attributes
    ----------
    algorithm : {"amf-classifier", "amf-regressor"}
    n_features : int
    n_classes : int
        0 for regression.
    seed : int
        In [0, 2^64).
    alpha : float
        Dirichlet pseudo-count of a class (classification).
    learning_rate : float
        Classification: exponent of the price factor. Regression: learning rate times
        the variance of the labels; 0 means the theorem's 1 / (8 B^2).
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
        Columns are multiplied by these, in (0, 1], before a tree sees them.
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

    @property
    def n_stats(self) -> int:
        """Statistics of a node, in doubles."""
        return 1 + self.n_classes if self.n_classes else MOMENTS

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as a JSON-able dict."""
        told = dataclasses.asdict(self)
        if self.feature_scales is not None:
            told["feature_scales"] = list(self.feature_scales)
        return told

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ForestParameters:
        """Return the parameters of :meth:`to_json`, checked.

        Raises
        ------
        CorruptError
            If a key is missing or unknown, or a value has the wrong type or range.
        """
        kinds: dict[str, tuple[type, ...]] = {
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
        }
        if not isinstance(values, dict) or set(values) != set(kinds):
            raise CorruptError(f"forest parameters should have the keys {sorted(kinds)}")
        for key, value in values.items():
            is_bool = isinstance(value, bool)
            if not isinstance(value, kinds[key]) or (is_bool and bool not in kinds[key]):
                told = f"{str(value)[:80]!r}"
                raise CorruptError(f"forest parameter {key} has an impossible value {told}")
        scales = values["feature_scales"]
        if scales is not None:
            if any(type(scale) is not float for scale in scales):
                raise CorruptError("feature scales should be numbers with a decimal point")
            values = {**values, "feature_scales": tuple(scales)}
        parameters = cls(**values)
        parameters.check()
        return parameters

    def _has_sound_scales(self) -> bool:
        scales = self.feature_scales
        if scales is None:
            return True
        smallest = float(np.finfo(np.float32).tiny)
        in_range = all(smallest <= scale <= 1.0 for scale in scales)
        return len(scales) == self.n_features and in_range

    def check(self) -> None:
        """Raise :class:`CorruptError` where values are out of range together."""
        is_classifier = self.algorithm == "amf-classifier"
        sound = (
            self.algorithm in ("amf-classifier", "amf-regressor")
            and 1 <= self.n_features < 2**24
            and (1 <= self.n_classes < 2**24 if is_classifier else self.n_classes == 0)
            and 0 <= self.seed < 2**64
            and LEAST_ALPHA <= self.alpha <= LARGEST_ALPHA
            and 0.0 <= self.learning_rate <= sys.float_info.max
            and (self.max_nodes is None or 1 <= self.max_nodes <= _NO_CAP)
            and self._has_sound_scales()
        )
        if not sound:
            raise CorruptError(f"forest parameters are out of range: {str(self)[:400]}")


class Policies(NamedTuple):
    """The four choices that make an algorithm."""

    growth: Any
    stat: Any
    loss: Any
    rule: Any


def policies(p: ForestParameters) -> Policies:
    """Return the policies of ``p``'s algorithm."""
    cap = _NO_CAP if p.max_nodes is None else int(p.max_nodes)
    rule = Aggregate(True) if p.use_aggregation else Leaf(False)
    pause = p.n_classes > 0 and not p.split_pure
    growth = Range(pause, bool(p.expected_extension), int(cap))
    rate, charge = float(p.learning_rate), bool(p.charge_opening)
    if p.n_classes > 0:
        loss = KT(float(p.alpha), int(p.n_classes), rate, charge)
        return Policies(growth, Counts(int(p.n_classes)), loss, rule)
    return Policies(growth, Moments(MOMENTS), Squared(rate, charge), rule)
