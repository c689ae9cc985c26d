"""Trees as an operator of ONNX.

The operator is TreeEnsembleRegressor of ai.onnx.ml 3, whose leaves may hold several numbers; its
successor TreeEnsemble (ai.onnx.ml 5) holds one, and fewer runtimes know it. It compares columns and
adds leaves in double precision, and answers float32.

Shapes: n rows, k outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dmondrian.errors import ParameterError
from dmondrian.export.graph import Graph
from dmondrian.export.tree_arrays import PlainTree

LARGEST_FILE = 2**31 - 1  # bytes of a protocol buffer
_BYTES_OF_NODE, _BYTES_OF_VALUE = 36, 22  # at most, for nodes and trees with up to seven digits


def add_trees(
    graph: Graph, X: str, trees: Sequence[PlainTree], targets: Sequence[int] | None = None
) -> str:
    """Add the ensemble; return the name of its mean over trees, float32 [n, k].

    With ``targets``, the first output of each tree, it is the sum over the trees of an output.

    Raises
    ------
    ParameterError
        If a file of ONNX could not hold them.
    """
    _check_size(trees)
    sizes = [len(tree.left) for tree in trees]
    tree_ids = np.repeat(np.arange(len(trees)), sizes)
    node_ids = np.concatenate([np.arange(size) for size in sizes])
    joined = PlainTree(*(np.concatenate(column) for column in zip(*trees, strict=True)))
    is_leaf, k = joined.left < 0, joined.value.shape[1]
    firsts = np.zeros(len(trees), np.int64) if targets is None else np.array(targets)
    target_ids = (firsts[tree_ids[is_leaf], None] + np.arange(k)).ravel()
    inner = {
        "nodes_truenodeids": joined.left,
        "nodes_falsenodeids": joined.right,
        "nodes_featureids": joined.feature,
    }
    return graph.add(
        "TreeEnsembleRegressor",
        graph.add("Cast", X, to=np.float64),
        domain="ai.onnx.ml",
        n_targets=k + int(firsts.max()),
        aggregate_function="AVERAGE" if targets is None else "SUM",
        post_transform="NONE",
        nodes_treeids=tree_ids.tolist(),
        nodes_nodeids=node_ids.tolist(),
        nodes_modes=np.where(is_leaf, "LEAF", "BRANCH_LEQ").tolist(),
        nodes_values_as_tensor=joined.threshold.astype(np.float64),
        target_treeids=np.repeat(tree_ids[is_leaf], k).tolist(),
        target_nodeids=np.repeat(node_ids[is_leaf], k).tolist(),
        target_ids=target_ids.tolist(),
        target_weights_as_tensor=joined.value[is_leaf].ravel(),
        **{name: np.maximum(ids, 0).tolist() for name, ids in inner.items()},
    )


def _check_size(trees: Sequence[PlainTree]) -> None:
    n_values = sum(tree.value.shape[1] * int((tree.left < 0).sum()) for tree in trees)
    n_nodes = sum(len(tree.left) for tree in trees)
    n_bytes = _BYTES_OF_NODE * n_nodes + _BYTES_OF_VALUE * n_values
    if n_bytes > LARGEST_FILE:
        raise ParameterError(
            f"{n_nodes:,} nodes and {n_values:,} numbers in leaves take up to {n_bytes / 1e9:.1f} "
            "GB, and a file of ONNX holds 2.1 GB: export a forest of fewer trees or of a shorter "
            "lifetime, or one with max_nodes"
        )
