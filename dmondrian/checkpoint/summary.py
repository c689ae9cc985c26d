"""Summary of a forest: the few numbers of its trees that people ask for, kept in the manifest.

Whoever shows a run reads these and no tree, so that it takes as little memory and time for a large
forest as for a small one. Relies on :mod:`dmondrian.ensemble.feature_importances`, and on
:mod:`dmondrian.tree.box_encoding_choice` where a summary is made of trees: to read one loads no
kernels. Promises that the summary of a whole forest does not depend on how its trees were cut into
shards: sums over trees are exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from dmondrian.ensemble.feature_importances import shares_of, tree_gains, why_none

if TYPE_CHECKING:
    from dmondrian.forest.forest import Forest

_COVERING = "trees", "nodes", "memory_bytes"
_ROWS = "learned", "waiting"
Exact = tuple[float, ...]  # a sum that no rounding has changed: floats, each rounding the rest


@dataclass(frozen=True)
class Summary:
    """Summary of the trees that a manifest names; covering trees are counted among all."""

    nodes: int
    memory_bytes: int  # of the nodes, once they are loaded
    gains: tuple[Exact, ...] | None  # worth of the splits on each feature; None where splits have
    # no worth, or one that float64 does not hold
    parameters: Mapping[str, Any] | None = None  # in use, where run.json does not have them
    # Trees, nodes and bytes of those that are replaced: covering trees, and scaled ones.
    covering: Mapping[str, int] | None = None
    rows: Mapping[str, int] | None = None  # learned and waiting, of a forest that follows a stream

    @classmethod
    def of(cls, forest: Forest) -> Summary:
        """Return the summary of a forest that nobody changes meanwhile. O(nodes x features)."""
        from dmondrian.tree.box_encoding_choice import loaded_bytes

        gains: tuple[Exact, ...] | None = None
        if why_none(forest.parameters.to_json()) is None:
            gains = _sums(
                zip(*(gains_of_tree.tolist() for gains_of_tree in tree_gains(forest)), strict=True)
            )
        n_bytes, covering = loaded_bytes(forest.store.trees), None
        if forest.covering_trees is not None:
            groups = [trees for trees in (forest.covering_trees, forest.scaled_trees) if trees]
            covering_bytes = sum(map(loaded_bytes, groups))
            n_nodes = int(forest.n_nodes) - forest.store.n_nodes
            counts = sum(map(len, groups)), n_nodes, covering_bytes
            covering = dict(zip(_COVERING, counts, strict=True))
            n_bytes += covering_bytes
        rows = getattr(forest, "rows_so_far", None)
        return cls(int(forest.n_nodes), n_bytes, gains, covering=covering, rows=rows)

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values; floats go through JSON exactly."""
        values: dict[str, Any] = {"nodes": self.nodes, "memory_bytes": self.memory_bytes}
        values["gains"] = None if self.gains is None else [list(gain) for gain in self.gains]
        if self.parameters is not None:
            values["parameters"] = dict(self.parameters)
        if self.covering is not None:
            values["covering"] = dict(self.covering)
        if self.rows is not None:
            values["rows"] = dict(self.rows)
        return values

    @classmethod
    def from_json(cls, values: Any) -> Summary:
        """Return the summary of :meth:`to_json`, checked.

        Raises
        ------
        ValueError
            A value is missing, or has another type or range.
        """
        if not isinstance(values, dict):
            raise ValueError("it is no object")
        counts = values.get("nodes"), values.get("memory_bytes")
        if not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError("nodes and memory_bytes should be counts")
        gains, parameters = values.get("gains"), values.get("parameters")
        if gains is not None and not (isinstance(gains, list) and all(map(_is_gain, gains))):
            raise ValueError("gains should be lists of numbers, or null")
        if parameters is not None and not isinstance(parameters, dict):
            raise ValueError("parameters should be an object")
        for name, names in (("covering", _COVERING), ("rows", _ROWS)):
            counts_there = values.get(name, None)
            if counts_there is not None:
                is_object = isinstance(counts_there, dict) and set(counts_there) == set(names)
                if not is_object or not all(
                    type(n) is int and n >= 0 for n in counts_there.values()
                ):
                    raise ValueError(f"{name} should be counts of {', '.join(names)}, or null")
        covering, rows = values.get("covering"), values.get("rows")
        gain_tuples = None if gains is None else tuple(tuple(map(float, gain)) for gain in gains)
        return cls(values["nodes"], values["memory_bytes"], gain_tuples, parameters, covering, rows)

    def importances(self) -> list[float] | None:
        """Return the share of each feature in the gains of all splits; zeros if none pays."""
        if self.gains is None:
            return None
        return shares_of([math.fsum(gain) for gain in self.gains])


def total(parts: Sequence[Summary | None]) -> Summary | None:
    """Return the summary of the trees of all parts, or None where one of them has none."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    widths = {None if part.gains is None else len(part.gains) for part in known}
    gains: tuple[Exact, ...] | None = None
    if len(widths) == 1 and None not in widths:
        columns = zip(*(part.gains or () for part in known), strict=True)
        gains = _sums(chain.from_iterable(column) for column in columns)
    nodes, memory = sum(p.nodes for p in known), sum(p.memory_bytes for p in known)
    covering = [part.covering for part in known if part.covering is not None]
    counts = (
        {name: sum(counts_of_part[name] for counts_of_part in covering) for name in _COVERING}
        if covering
        else None
    )
    return Summary(nodes, memory, gains, known[0].parameters, counts, known[0].rows)


def _sums(columns: Iterable[Iterable[float]]) -> tuple[Exact, ...] | None:
    """Return the sum of each column, or None where float64 does not hold one of them."""
    values_of_columns = [list(column) for column in columns]
    if not all(math.isfinite(value) for column in values_of_columns for value in column):
        return None
    try:
        return tuple(map(exact_sum, values_of_columns))
    except OverflowError:
        return None


def exact_sum(values: Iterable[float]) -> Exact:
    """Return the sum of finite numbers without rounding: the same for any order of additions.

    The first float is the sum rounded, the next one what that leaves, and so on.
    """
    rest = list(values)
    rounded_once: list[float] = []
    while (rounded := math.fsum(rest)) != 0.0:
        rounded_once.append(rounded)
        rest.append(-rounded)
    return tuple(rounded_once)


def _is_gain(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(number) in (int, float) and math.isfinite(number) for number in value
    )
