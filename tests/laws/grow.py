"""Trees grown online in a given order, and the residuals that every grown tree must show.

Trees are dictionaries of arrays as `nodes(tree)` of the estimators returns them. Distinct tree
numbers draw independently, so that T trees of the same rows are T independent trees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.forest.forest import Forest
from tests.reference.amf import ReferenceTree

Nodes = Mapping[str, np.ndarray]


def grow_forest(
    X: np.ndarray,
    y: np.ndarray | None = None,
    n_trees: int = 1,
    n_classes: int = 2,
    w: np.ndarray | None = None,
    **parameters: object,
) -> Forest:
    """Return a forest that learned the rows in order; the exact law (`split_pure`) by default."""
    values: dict[str, object] = {
        "algorithm": "amf-classifier" if n_classes else "amf-regressor",
        "n_features": X.shape[1],
        "n_classes": n_classes,
        "seed": 0,
        "split_pure": True,
    }
    forest = Forest(
        ForestParameters(**(values | parameters)),  # type: ignore[arg-type]
        range(n_trees),
    )
    labels = np.zeros(len(X)) if y is None else y
    forest.update(np.ascontiguousarray(X, np.float32), np.asarray(labels, np.float64), w)
    return forest


def nodes_of(forest: Forest) -> list[dict[str, np.ndarray]]:
    """Return each tree as `nodes(tree)` shows it."""
    header, trees = forest.state()
    shown = []
    for entry, arrays in zip(header["trees"], trees, strict=True):
        kept = {name: arrays[name] for name in _SHOWN}
        kept["n_rows"], kept["counts"] = arrays["stat"][:, 0], arrays["stat"][:, 1:]
        shown.append(kept | {"root": np.array(entry["root"])})
    return shown


_SHOWN = ("left", "right", "parent", "feature", "threshold", "time", "lower", "upper")


def nodes_of_reference(tree: ReferenceTree) -> dict[str, np.ndarray]:
    """Return a reference tree in the same form."""
    assert tree.root is not None

    def numbers(link: str) -> np.ndarray:
        linked = [getattr(node, link) for node in tree.nodes]
        return np.array([-1 if node is None else node.number for node in linked])

    return {
        "left": numbers("left"),
        "right": numbers("right"),
        "parent": numbers("parent"),
        "feature": np.array([node.feature for node in tree.nodes]),
        "threshold": np.array(
            [0.0 if node.threshold is None else node.threshold for node in tree.nodes]
        ),
        "time": np.array([node.time for node in tree.nodes]),
        "n_rows": np.array([node.n_rows for node in tree.nodes]),
        "lower": np.array([node.lower for node in tree.nodes]),
        "upper": np.array([node.upper for node in tree.nodes]),
        "root": np.array(tree.root.number),
    }


class Residuals(NamedTuple):
    """What is left of the splits of many trees once their law is divided out."""

    waits: np.ndarray  # (tau_v - tau_parent) |B_v|: iid Exp(1)
    cuts: np.ndarray  # place of the cut on its side: iid U(0, 1)
    surprise: np.ndarray  # [d], (times a feature was cut - expected) / standard deviation


def residuals(trees: Iterable[Nodes]) -> Residuals:
    """Return the residuals of all internal nodes."""
    waits, cuts, hits, chances = [], [], [], []
    for nodes in trees:
        internal = np.flatnonzero(nodes["left"] >= 0)
        parent = nodes["parent"][internal]
        born = np.where(parent >= 0, nodes["time"][parent], 0.0)
        lower = nodes["lower"][internal].astype(np.float64)
        sides = nodes["upper"][internal].astype(np.float64) - lower
        size = sides.sum(axis=1)
        waits.append((nodes["time"][internal] - born) * size)
        feature = nodes["feature"][internal]
        rows = np.arange(len(internal))
        place = nodes["threshold"][internal].astype(np.float64) - lower[rows, feature]
        cuts.append(place / sides[rows, feature])
        hits.append(feature[:, None] == np.arange(sides.shape[1]))
        chances.append(sides / size[:, None])
    chance, hit = np.concatenate(chances), np.concatenate(hits)
    deviation = np.sqrt((chance * (1.0 - chance)).sum(axis=0))
    surprise = (hit - chance).sum(axis=0) / np.maximum(deviation, 1e-12)
    return Residuals(np.concatenate(waits), np.concatenate(cuts), surprise)


def p_values(found: Residuals) -> dict[str, float]:
    """Return the p-values of the three laws and of the waits' mean and serial independence."""
    n = len(found.waits)
    tenths = np.histogram(stats.expon.cdf(found.waits), bins=10, range=(0.0, 1.0))[0]
    return {
        "waits (KS)": stats.kstest(found.waits, "expon").pvalue,
        "waits (chi-square)": stats.chisquare(tenths).pvalue,
        "waits (mean)": 2.0 * stats.norm.sf(abs(found.waits.mean() - 1.0) * np.sqrt(n)),
        "cuts (KS)": stats.kstest(found.cuts, "uniform").pvalue,
        "features": min(
            1.0, len(found.surprise) * 2.0 * stats.norm.sf(np.abs(found.surprise).max())
        ),
    }


def time_of_parting(nodes: Nodes, X: np.ndarray) -> np.ndarray:
    """Return the split time that parts rows i and j, float64 [n, n]; inf where none does."""
    n = len(X)
    found = np.full((n, n), np.inf)
    stack: list[tuple[int, np.ndarray]] = [(int(nodes["root"]), np.arange(n))]
    while stack:
        v, rows = stack.pop()
        if nodes["left"][v] < 0:
            continue
        goes_left = X[rows, nodes["feature"][v]] <= nodes["threshold"][v]
        left, right = rows[goes_left], rows[~goes_left]
        found[np.ix_(left, right)] = found[np.ix_(right, left)] = nodes["time"][v]
        stack += [(int(nodes["left"][v]), left), (int(nodes["right"][v]), right)]
    return found


def depths(nodes: Nodes, X: np.ndarray) -> np.ndarray:
    """Return the number of splits above the leaf of each row."""
    return np.array([len(path_of(nodes, x)) - 1 for x in X])


def path_of(nodes: Nodes, x: Sequence[float] | np.ndarray) -> list[int]:
    """Return the nodes from the root to the leaf of x."""
    path = [int(nodes["root"])]
    while nodes["left"][path[-1]] >= 0:
        v = path[-1]
        side = "left" if x[nodes["feature"][v]] <= nodes["threshold"][v] else "right"
        path.append(int(nodes[side][v]))
    return path
