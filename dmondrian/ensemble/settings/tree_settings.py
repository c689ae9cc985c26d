"""Settings that the trees of every system have.

Promises that settings from outside are checked before a forest is built of them.

Shapes: d features, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dmondrian.ensemble.settings.feature_units import are_units
from dmondrian.ensemble.settings.fringe_settings import NO_CAP
from dmondrian.ensemble.settings.numeric_limits import LARGEST_SCALE, LEAST_SCALE

MOST_FEATURES = MOST_CLASSES = 2**24 - 1


@dataclass(frozen=True)
class TreeSettings:
    """Settings that trees have in every system.

    Attributes
    ----------
    algorithm : str
        A name of :data:`dmondrian.ensemble.settings.systems.SYSTEMS`.
    n_features : int
        d.
    n_classes : int
        K; 0 for regression.
    seed : int
        In [0, 2^64).
    split_pure : bool
        Split leaves whose rows carry one label (classification).
    expected_extension : bool
        Predict the expectation over extensions of the tree by the point.
    max_nodes : int or None
        Cap on the nodes of a tree.
    feature_scales : tuple of float or None
        Columns are multiplied by these float32 numbers, > 0, before a tree gets them.
    feature_units : tuple of float or None
        Then values are rounded to multiples of these powers of two; 0 for no rounding.
    empty_prior : bool
        Whether an empty cell predicts 1/K or 0, not what its parent does.
    domain : {"range", "cube"}
        What a Mondrian process splits: the range of the data, or the unit cube.
    clip : bool
        Whether rows outside the cube are moved to its surface, or refused.
    """

    algorithm: str
    n_features: int
    n_classes: int
    seed: int
    split_pure: bool = False
    expected_extension: bool = False
    max_nodes: int | None = None
    feature_scales: tuple[float, ...] | None = None
    feature_units: tuple[float, ...] | None = None
    empty_prior: bool = False
    domain: str = "range"
    clip: bool = False

    @property
    def node_cap(self) -> int:
        """Most nodes of a tree, as growth policies take it."""
        return NO_CAP if self.max_nodes is None else int(self.max_nodes)

    @property
    def n_label_stats(self) -> int:
        """Numbers that sum up the labels of rows: weight and counts, or three moments."""
        return 1 + self.n_classes if self.n_classes else 3

    def faults(self) -> Iterator[str]:
        """Yield the names of settings that are out of range."""
        if not 1 <= self.n_features <= MOST_FEATURES:
            yield "n_features"
        if not 0 <= self.n_classes <= MOST_CLASSES:
            yield "n_classes"
        if not 0 <= self.seed < 2**64:
            yield "seed"
        if self.max_nodes is not None and not 1 <= self.max_nodes <= NO_CAP:
            yield "max_nodes"
        if self.domain not in ("range", "cube"):
            yield "domain"
        scales, units = self.feature_scales, self.feature_units
        is_on_range = self.domain == "range"
        if scales is not None:
            are_scales = all(LEAST_SCALE <= scale <= LARGEST_SCALE for scale in scales)
            if len(scales) != self.n_features or not are_scales or not is_on_range:
                yield "feature_scales"
        if units is not None and not (are_units(units, self.n_features) and is_on_range):
            yield "feature_units"
