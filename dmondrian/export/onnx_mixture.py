"""The mixture of a classifier that follows the stream, as operators of ONNX.

Relies on :mod:`dmondrian.export.member_trees`. Promises the steps of
:mod:`dmondrian.drift.mixing_kernels`, in double precision, of what trees forecast rounded to
float32.

Shapes: n rows, M members, S slots of a member, E experts, G inputs of the guard, K classes.
"""

from __future__ import annotations

import numpy as np

from dmondrian.drift.drift_forest import DriftForest
from dmondrian.drift.mixer import Mixer
from dmondrian.drift.mixing_kernels import FLOOR
from dmondrian.export.graph import Graph
from dmondrian.export.member_trees import BOOSTED, member_trees
from dmondrian.export.onnx_trees import add_trees


def add_mixture(graph: Graph, X: str, forest: DriftForest) -> str:
    """Add trees, members and guard; return the name of the probabilities, float32 [n, K]."""
    of_members, n_members = member_trees(forest), len(forest.members)
    n_slots, k = of_members.n_slots, forest.label_policies.n_outputs
    trees, targets = [], []
    for slot in of_members.slots:
        share = 1.0 / len(slot.trees)
        trees += [tree._replace(value=share * tree.value) for tree in slot.trees]
        targets += [(slot.member * n_slots + slot.number) * k] * len(slot.trees)
    n_outputs = n_members * n_slots * k
    boosted = of_members.boosted
    trees, targets = trees + boosted, targets + [n_outputs] * len(boosted)
    answers = graph.add("Cast", add_trees(graph, X, trees, targets), to=np.float64)
    of_slots = _reshaped(graph, _part(graph, answers, 0, n_outputs, 1), n_members, n_slots, k)
    weights, of_set = _weights_of_slots(forest, of_members.of_inputs, n_slots)
    scores = graph.add("MatMul", graph.constant(weights), _logs(graph, of_slots, 3))
    if (newest := forest.boosted_set) is not None:
        whole = graph.constant(newest.first_scores[None])
        if boosted:
            whole = graph.add("Add", _part(graph, answers, n_outputs, n_outputs + k, 1), whole)
        proba = _reshaped(graph, graph.add("Softmax", whole, axis=1), 1, 1, k)
        beside = graph.add("MatMul", graph.constant(of_set), _logs(graph, proba, 3))
        scores = graph.add("Add", scores, beside)
    shares = np.stack([member.mixer.weights.experts for member in forest.members])[:, None]
    mixed = graph.add("MatMul", graph.constant(shares), graph.add("Softmax", scores, axis=3))
    permanent = _part(graph, of_slots, 0, 1, 2)
    means = [
        graph.add("MatMul", graph.constant(share), _reshaped(graph, forecasts, n_members, k))
        for share, forecasts in zip(forest.guard.input_shares(), (mixed, permanent), strict=True)
    ]
    guarded = _mixed(graph, graph.add("Add", *means), forest.guard.mixer)
    return graph.add("Cast", _reshaped(graph, guarded, k), to=np.float32)


def _weights_of_slots(
    forest: DriftForest, of_inputs: list[int], n_slots: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of the members' experts, float64 [M, E, S] and, of the set, [M, E, 1]."""
    each = np.stack([member.mixer.weights.inputs for member in forest.members])
    weights, of_set = np.zeros((*each.shape[:2], n_slots)), np.zeros((*each.shape[:2], 1))
    for number, of_input in zip(of_inputs, np.moveaxis(each, 2, 0), strict=True):
        if number == BOOSTED:
            of_set[:, :, 0] = of_input
        else:
            weights[:, :, number] += of_input
    return weights, of_set


def _mixed(graph: Graph, inputs: str, mixer: Mixer) -> str:
    """Add a mixture of inputs [n, G, K]; return its name, [n, 1, K]."""
    logs = _logs(graph, inputs, 2)
    scores = graph.add("MatMul", graph.constant(mixer.weights.inputs), logs)
    shares = graph.constant(mixer.weights.experts[None])
    return graph.add("MatMul", shares, graph.add("Softmax", scores, axis=2))


def _logs(graph: Graph, inputs: str, axis: int) -> str:
    """Add logarithms of probabilities, less their means over classes; return their name."""
    logs = graph.add("Log", graph.add("Max", inputs, graph.constant(FLOOR)))
    return graph.add("Sub", logs, graph.add("ReduceMean", logs, axes=[axis], keepdims=1))


def _part(graph: Graph, value: str, start: int, stop: int, axis: int) -> str:
    """Add the slice [start, stop) of an axis; return its name."""
    return graph.add("Slice", value, *(graph.constant(np.array([i])) for i in (start, stop, axis)))


def _reshaped(graph: Graph, value: str, *shape: int) -> str:
    """Add a reshape to [n, ...]; return its name."""
    return graph.add("Reshape", value, graph.constant(np.array([-1, *shape])))
