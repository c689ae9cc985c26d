"""Weights of an AMF tree from its class counts alone.

The Krichevsky-Trofimov price of a sequence does not depend on its order, so a node's cumulated
price is a function of its counts, and the whole aggregation of a finished tree can be computed
without having watched it learn. `tree_of` makes a reference tree of the public `nodes(tree)`
dictionary with weights found that way: an oracle of the kernel's running odds.

References
----------
Krichevsky, Trofimov (1981); Mourtada, Gaiffas, Scornet (2021), section 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from .amf import Node, ReferenceTree
from .statistics import Counts


def log_kt(counts: Sequence[float], alpha: float) -> float:
    """Return log[ Gamma(K a) / Gamma(n + K a) prod Gamma(n_c + a) / Gamma(a) ]."""
    k, n = len(counts), math.fsum(counts)
    gained = math.fsum(math.lgamma(c + alpha) - math.lgamma(alpha) for c in counts)
    return gained + math.lgamma(k * alpha) - math.lgamma(n + k * alpha)


def tree_of(
    arrays: Mapping[str, np.ndarray], alpha: float, charge_opening: bool, split_pure: bool = True
) -> ReferenceTree:
    """Return a reference tree that stands where the classifier's `nodes(tree)` are.

    A row that opens a leaf is free or costs log K; every node inherits exactly one such row, so
    without the charge every log weight is larger by log K (not those of the cube's cells without
    rows). Rows must have integer weights.
    """
    n_classes = arrays["counts"].shape[1]
    tree = ReferenceTree(Counts(n_classes, alpha, charge_opening), seed=0, split_pure=split_pure)
    for v, counts in enumerate(arrays["counts"].tolist()):
        node = tree._new_node(Counts(n_classes, alpha, charge_opening, counts), [])
        node.lower, node.upper = list(arrays["lower"][v]), list(arrays["upper"][v])
        node.feature, node.threshold = int(arrays["feature"][v]), arrays["threshold"][v]
        node.time = float(arrays["time"][v]) if arrays["left"][v] >= 0 else math.inf
        node.n_rows = float(arrays["n_rows"][v])
        is_free = not charge_opening and node.n_rows > 0.0
        node.price = -log_kt(counts, alpha) - (math.log(n_classes) if is_free else 0.0)
        node.log_w = -node.price
    for v, node in enumerate(tree.nodes):
        if arrays["left"][v] >= 0:
            node.left = tree.nodes[arrays["left"][v]]
            node.right = tree.nodes[arrays["right"][v]]
            node.left.parent = node.right.parent = node
    tree.root = tree.nodes[int(arrays["root"])]
    tree.reweigh_all()
    return tree


def depth_of(node: Node) -> int:
    """Return the number of splits above a node."""
    return 0 if node.parent is None else 1 + depth_of(node.parent)
