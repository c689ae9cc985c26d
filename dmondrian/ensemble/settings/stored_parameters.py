"""What the JSON of a forest's parameters shows of the forest, for those who load no kernels.

Relies on nothing else. Promises the answers of the properties of
:class:`dmondrian.ensemble.settings.parameters.ForestParameters` of these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def learns_jointly(parameters: Mapping[str, Any]) -> bool:
    """Return whether values of the cells of all trees are fitted together."""
    return parameters.get("joint") is not None


def follows_stream(parameters: Mapping[str, Any]) -> bool:
    """Return whether trees of all ages follow the stream, mixed by what they forecast."""
    return parameters.get("drift") is not None


def mixes_boosted_sets(parameters: Mapping[str, Any]) -> bool:
    """Return whether trees that follow the stream are mixed with sets of boosted trees."""
    return (parameters.get("drift") or {}).get("boosted") is True


def mixes_scaled_trees(parameters: Mapping[str, Any]) -> bool:
    """Return whether scaled trees, whose feature scales are found on kept rows, are mixed too."""
    return (parameters.get("drift") or {}).get("scaled") is True


def is_density(parameters: Mapping[str, Any]) -> bool:
    """Return whether rows have no labels, and predictions are densities."""
    return (parameters.get("cost") or {}).get("loss") == "density"
