"""Importances of features: what the splits on each are worth, by the statistics of their nodes.

The worth of a split, its gain, is that of the forecaster that is the field's standard for the
labels: KT for classes, the running mean for numbers (:mod:`dmondrian.stats`). A split that does
not pay counts as 0, one beyond the lifetime of predictions not at all.

Relies on :mod:`dmondrian.ensemble.feature_importances_kernels`. Promises numbers >= 0; shares sum
to one, or are zeros where no split pays.

Shapes: d features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dmondrian.ensemble.settings.stored_parameters import is_density, learns_jointly

if TYPE_CHECKING:  # whoever only asks why there are none needs no kernels
    from dmondrian.ensemble.ensemble import Ensemble


def importances(ensemble: Ensemble) -> np.ndarray:
    """Return the share of each feature in the gains of all splits, float64 [d].

    Sums over trees are rounded once, so that the cut of a forest into shards has no say.
    """
    columns = zip(*(gains.tolist() for gains in tree_gains(ensemble)), strict=True)
    return np.array(shares_of([_sum(column) for column in columns]))


def _sum(gains: Sequence[float]) -> float:
    try:
        return math.fsum(gains)
    except OverflowError:
        return math.inf


def shares_of(gains: Sequence[float]) -> list[float]:
    """Return the shares of gains in their sum; zeros where it is 0."""
    exponent = math.frexp(max(gains, default=0.0))[1]  # their sum may be beyond float64
    scaled = [math.ldexp(gain, -exponent) for gain in gains]
    whole = math.fsum(scaled)
    return [gain / whole if whole > 0.0 else 0.0 for gain in scaled]


def tree_gains(ensemble: Ensemble) -> Iterator[np.ndarray]:
    """Yield the gains of the splits on each feature, float64 [d], tree by tree."""
    from dmondrian.ensemble.feature_importances_kernels import add_gains

    for tree, lifetime in zip(ensemble.trees, ensemble.tree_lifetimes(), strict=True):
        gains = np.zeros(ensemble.parameters.n_features)
        add_gains(ensemble.policies.stat, tree, float(lifetime[0]), gains)
        yield gains


def why_none(parameters: Mapping[str, Any]) -> str | None:
    """Return why no split of a forest of such parameters, as JSON, has a worth; None if each has.

    Relies on nothing else: no kernels are loaded.
    """
    if learns_jointly(parameters):
        return "the cells of a Mondrian kernel are fitted together, so no split has its own worth"
    if is_density(parameters):
        return "a density has no labels by which a split could be worth something"
    return None
