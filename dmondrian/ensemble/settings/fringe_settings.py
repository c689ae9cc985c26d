"""Settings of the splits of online random forests, as checked data, and their stored fringe.

Relies on :mod:`dmondrian.growth.fringe`. Promises that equal settings give equal policies; that a
stored fringe is that of the tree, whatever memory it took; and that what comes from outside
is checked before a kernel may see it.

Shapes: m nodes, d features, c candidate features, P points.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmondrian.errors import CorruptError
from dmondrian.growth.candidates import (
    FIRST,
    HEADER,
    N_FEATURES,
    N_POINTS,
    NODE,
    NONE,
    OPEN,
    SIZE,
    section_size,
)
from dmondrian.growth.fringe import Fringe
from dmondrian.stats.impurity import CRITERIA, HELLINGER
from dmondrian.tree import nodes

NO_CAP = int(np.iinfo(np.int64).max)
MOST_POINTS = 2**16
LARGEST_POOL = 2**31 - 3  # doubles: places are int32
_VARIANCE = "squared_error"
LARGEST_RATE = 1e6  # one draw per candidate feature: as many as any forest has


@dataclass(frozen=True)
class FringeSettings:
    """Settings of growth by a fringe.

    Attributes
    ----------
    candidate_rate : float
        lambda: a leaf has min(1 + Poisson(lambda), d) candidate features.
    n_thresholds : int
        m: thresholds of each.
    min_gain : float
        tau.
    min_samples_leaf, min_samples_growth, must_split_ratio : float
        alpha(d) = min_samples_leaf * min_samples_growth^d, beta(d) = must_split_ratio * alpha(d).
    max_fringe : int or None
        Leaves that have candidates.
    criterion : {"entropy", "gini", "hellinger", "squared_error"}
    structure_share, ignore_share : float
        Probabilities that a row is in these streams of a tree.
    """

    candidate_rate: float
    n_thresholds: int
    min_gain: float
    min_samples_leaf: float
    min_samples_growth: float
    must_split_ratio: float
    max_fringe: int | None
    criterion: str
    structure_share: float
    ignore_share: float

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a JSON-able dict."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> FringeSettings:
        """Return the settings of :meth:`to_json`, checked.

        Raises
        ------
        CorruptError
            If they are none.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, dict) or set(values) != names:
            raise CorruptError(f"settings of a fringe should have the keys {sorted(names)}")
        counts = values["n_thresholds"], values["max_fringe"]
        numbers = [values[name] for name in names - {"n_thresholds", "max_fringe", "criterion"}]
        sound = (
            all(type(value) is float and 0.0 <= value < math.inf for value in numbers)
            and type(counts[0]) is int
            and 1 <= counts[0] <= MOST_POINTS
            and (counts[1] is None or (type(counts[1]) is int and 1 <= counts[1] <= NO_CAP))
            and values["candidate_rate"] <= LARGEST_RATE
            and values["min_samples_leaf"] > 0.0
            and min(values["min_samples_growth"], values["must_split_ratio"]) >= 1.0
            and max(values["min_samples_growth"], values["must_split_ratio"]) <= sys.float_info.max
            and values["structure_share"] > 0.0
            and values["structure_share"] + values["ignore_share"] < 1.0
            and values["criterion"] in (*CRITERIA, _VARIANCE)
        )
        if not sound:
            raise CorruptError(f"impossible settings of a fringe: {str(values)[:400]}")
        return cls(**values)

    def suits(self, n_classes: int) -> bool:
        """Return whether the criterion is one of labels of ``n_classes``, 0 for regression."""
        if n_classes == 0 or self.criterion == _VARIANCE:
            return n_classes == 0 and self.criterion == _VARIANCE
        return n_classes <= 2 or CRITERIA[self.criterion] != HELLINGER

    def policy(self, max_nodes: int) -> Fringe:
        """Return the policy of growth."""
        return Fringe(
            int(max_nodes),
            NO_CAP if self.max_fringe is None else int(self.max_fringe),
            float(self.candidate_rate),
            int(self.n_thresholds),
            float(self.min_gain),
            CRITERIA.get(self.criterion, 0),
            float(self.min_samples_leaf),
            float(self.min_samples_growth),
            float(self.must_split_ratio),
            float(self.structure_share),
            float(self.ignore_share),
        )

    def section(self, n_classes: int) -> int:
        """Return the doubles of a section of a block (:mod:`dmondrian.growth.candidates`)."""
        size, beside = (1 + n_classes, 2) if n_classes else (3, 0)
        return section_size(int(self.n_thresholds), size, beside)


def fields(tree: nodes.Tree) -> dict[str, np.ndarray]:
    """Return the fringe as arrays, in the order of nodes, beside :func:`nodes.fields`.

    ``fringe`` int32 [m] is 1 at its leaves, ``candidates_size`` int32 [m] the numbers of each block
    without size and node, ``candidates`` float64 these numbers.
    """
    used = int(tree.head_i[nodes.N_NODES])
    marks = tree.i[:used, nodes.CANDIDATES]
    blocks, sizes = [np.empty(0)], np.zeros(used, np.int32)
    for v in np.flatnonzero(marks >= FIRST):
        place = int(marks[v]) - FIRST
        block = tree.pool[place + N_FEATURES : place + int(tree.pool[place + SIZE])]
        sizes[v] = len(block)
        blocks.append(block)
    active = (marks > NONE).astype(np.int32)
    return {"fringe": active, "candidates_size": sizes, "candidates": np.concatenate(blocks)}


def with_fringe(tree: nodes.Tree, arrays: dict[str, np.ndarray]) -> nodes.Tree:
    """Return the tree with the fringe of :func:`fields` (trusted)."""
    sizes = arrays["candidates_size"].astype(np.int64)
    active, held = np.flatnonzero(arrays["fringe"]), np.flatnonzero(sizes)
    pool = np.zeros(int(sizes.sum()) + 2 * len(held))
    tree.i[active, nodes.CANDIDATES] = OPEN
    at = start = 0
    for v in held:
        size = int(sizes[v])
        pool[at + SIZE], pool[at + NODE] = size + N_FEATURES, v
        pool[at + N_FEATURES : at + N_FEATURES + size] = arrays["candidates"][start : start + size]
        tree.i[v, nodes.CANDIDATES] = at + FIRST
        at += size + N_FEATURES
        start += size
    tree.head_i[nodes.N_ACTIVE] = len(active)
    tree.head_i[nodes.POOL_END] = tree.head_i[nodes.POOL_LIVE] = at
    return tree._replace(pool=pool)


def check_fringe(
    where: str,
    arrays: dict[str, np.ndarray],
    n_features: int,
    n_classes: int,
    estimated: float,
    settings: FringeSettings,
) -> None:
    """Raise :class:`CorruptError` unless the arrays are those of a fringe.

    Parameters
    ----------
    where : str
        Name of the tree in messages.
    arrays : dict
        Of a tree whose links are sound.
    n_features, n_classes : int
    estimated : float
        Weight of the tree's estimation rows.
    settings : FringeSettings
    """
    active, sizes = arrays["fringe"], arrays["candidates_size"].astype(np.int64)
    is_leaf, limit = arrays["left"] < 0, settings.max_fringe
    sound = (
        ((active == 0) | (active == 1)).all()
        and not (active[~is_leaf] != 0).any()
        and (sizes >= 0).all()
        and not (sizes[active == 0] != 0).any()
        and (limit is None or active.sum() <= limit)
        and len(arrays["candidates"]) == sizes.sum() <= LARGEST_POOL - 2 * len(sizes)
        and np.isfinite(arrays["candidates"]).all()
    )
    if not sound:
        raise CorruptError(where + "its fringe should be leaves, with finite candidates")
    starts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes > 0]).tolist():
        first = starts[sizes == size]
        blocks = arrays["candidates"][first[:, None] + np.arange(size)]
        if not _are_blocks(blocks, n_features, n_classes, estimated, settings):
            raise CorruptError(where + "its candidates are not those of a leaf")


def _are_blocks(
    blocks: np.ndarray,
    n_features: int,
    n_classes: int,
    estimated: float,
    settings: FringeSettings,
) -> bool:
    """Return whether blocks of one size, float64 [b, size] without size and node, are sound."""
    n_points, section = int(settings.n_thresholds), settings.section(n_classes)
    header = HEADER - N_FEATURES
    n_sections, rest = divmod(blocks.shape[1] - header, section)
    n_candidates, points = blocks[:, 0], blocks[:, N_POINTS - N_FEATURES]
    if rest or not 2 <= n_sections <= n_features + 1 or (n_candidates != n_sections - 1).any():
        return False
    sections = blocks[:, header:].reshape(len(blocks), n_sections, section)
    which, rows = sections[:, 1:, 0], sections[:, :, 1:].reshape(*sections.shape[:2], -1, n_points)
    size = 1 + n_classes if n_classes else 3
    begun, of_rows = rows[:, 0, 0], rows[:, :, 1 : 1 + size]
    of_structure = rows[:, :, 1 + size : 1 + 2 * size]
    at_least_0 = of_rows if n_classes else of_rows[:, :, ::2]  # sums have any sign
    return bool(
        ((points >= 1) & (points <= n_points) & (points == np.floor(points))).all()
        and ((which >= 0) & (which < n_features) & (which == np.floor(which))).all()
        and (np.diff(which, axis=1) > 0).all()
        and ((begun >= 0) & (begun <= estimated)).all()
        and (at_least_0 >= 0).all()
        and (of_structure[:, :, 0] >= 0).all()
        and (np.abs(rows[:, 1:, 0]) <= np.finfo(np.float32).max).all()
        and (of_rows[:, 1:, 0] <= of_rows[:, :1, 0]).all()
    )
