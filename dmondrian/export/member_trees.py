"""The trees of a forest that follows the stream, by what its mixtures take of them.

A member mixes inputs: its permanent tree, a tree of each octave of age, the mean of its scaled
trees, and the boosted set (:mod:`dmondrian.drift.member`); the guard mixes means of members
(:mod:`dmondrian.drift.guard`). Of numbers both mixtures are sums of their inputs times weights, so
that the forest is one sum over trees; of classes they are sums of logarithms.

Relies on the forest that predicts: after ``fit`` with a delay that has learned the rows that wait.
Promises the trees' own forecasts, to the last bit.

Shapes: M members, G inputs of a member's mixture, S slots, T trees, k outputs: K classes, or 1 for
the mean.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dmondrian.boosting.boosted_set import BoostedSet
from dmondrian.drift.drift_forest import DriftForest
from dmondrian.drift.member import Member
from dmondrian.drift.mixer import Mixer
from dmondrian.drift.tree_forecasts import frozen_for_forecasts
from dmondrian.drift.waiting_rows import check_learned
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.rows.labelled_rows import LabelledRows
from dmondrian.ensemble.settings.row_thresholds import thresholds_of_rows
from dmondrian.estimators.feature_scales import thresholds_of_given
from dmondrian.export.tree_arrays import AsGiven, PlainTree, plain_tree

BOOSTED = -1  # slot of an input that the boosted set answers
_MOST_WEIGHING = 4096  # rows that go down a set's trees, to weigh the nodes


class Slot(NamedTuple):
    """Trees of a member whose mean is one input of its mixture."""

    member: int  # its place
    number: int  # of the slot in the member
    trees: list[PlainTree]


class MemberTrees(NamedTuple):
    """The trees of all members."""

    slots: list[Slot]  # as many of each member, in the same order
    of_inputs: list[int]  # [G], the number of the slot that answers an input, or BOOSTED
    boosted: list[PlainTree]  # of the set, whose values are added to its first scores

    @property
    def n_slots(self) -> int:
        """Slots of a member."""
        return 1 + max(self.of_inputs)


def forest_to_export(forest: Any) -> DriftForest:
    """Return the forest that predicts, which may be a copy; refuse one that has learned no row.

    Raises
    ------
    ParameterError
        If trees have learned none.
    """
    predicting: DriftForest = forest.caught_up()
    check_learned(predicting.rows_so_far, predicting.parameters.following)
    predicting.check_learned()
    return predicting


def exported_weight(forest: Any) -> float:
    """Return the weight of the rows that a forest's exported trees have learned."""
    predicting = forest.caught_up() if forest.parameters.follows_stream else forest
    weight: float = predicting.total_weight
    return weight


def member_trees(forest: DriftForest) -> MemberTrees:
    """Return the trees of a forest of :func:`forest_to_export`."""
    permanent, n = frozen_for_forecasts(forest), len(forest.members)
    k = 1 if forest.label_policies.is_regression else forest.label_policies.n_outputs
    as_given = _given(forest)
    n_young = forest.ages.n_younger_than(forest.blocks.delay)
    octaves = forest.members[0].answering_trees(forest.position).octaves
    mixed = [octave for octave in octaves if octave - forest.ages.first >= n_young]
    of_inputs = [0] * forest.members[0].n_inputs
    for number, octave in enumerate(mixed, start=1):
        of_inputs[1 + octave - forest.ages.first] = number
    slots = []
    for i, (member, tree) in enumerate(zip(forest.members, forest.store.trees, strict=True)):
        slots.append(Slot(i, 0, [plain_tree(tree, permanent[i], k, [as_given])]))
        covering = dict(zip(octaves, _covering(member, forest.position, k, as_given), strict=True))
        slots += [Slot(i, 1 + j, [covering[octave]]) for j, octave in enumerate(mixed)]
    scaled, newest = forest.scaled_forest, forest.boosted_set
    if scaled is not None:
        of_inputs[-2] = 1 + len(mixed)
        steps = [_given(scaled), as_given]
        pairs = zip(scaled.store.trees, frozen_for_forecasts(scaled), strict=True)
        trees = [plain_tree(tree, frozen, k, steps) for tree, frozen in pairs]
        each = len(trees) // n
        slots += [Slot(i, of_inputs[-2], trees[i * each : (i + 1) * each]) for i in range(n)]
    boosted = []
    if newest is not None and forest.boosted:
        of_inputs[-1] = BOOSTED
        boosted = _of_set(newest, forest.boosted.kept_rows(), as_given)
    return MemberTrees(slots, of_inputs, boosted)


def summed_trees(forest: DriftForest) -> list[PlainTree]:
    """Return trees whose mean is what a forest of numbers forecasts, up to rounding."""
    members, weight_of_set = member_trees(forest), 0.0
    of_guard = _weights_of_means(forest.guard.mixer)
    of_members, of_permanent = (of_guard @ share for share in forest.guard.input_shares())
    factors = np.zeros((len(forest.members), members.n_slots))
    factors[:, 0] = of_permanent
    for member, row, share in zip(forest.members, factors, of_members.tolist(), strict=True):
        weights = share * _weights_of_means(member.mixer)
        for number, weight in zip(members.of_inputs, weights.tolist(), strict=True):
            if number == BOOSTED:
                weight_of_set += weight
            else:
                row[number] += weight
    weighted = [(tree, weight_of_set) for tree in members.boosted]
    for slot in members.slots:
        factor = factors[slot.member, slot.number] / len(slot.trees)
        weighted += [(tree, factor) for tree in slot.trees]
    n = len(weighted)
    return [tree._replace(value=n * factor * tree.value) for tree, factor in weighted]


def _weights_of_means(mixer: Mixer) -> np.ndarray:
    """Return the weight of each input in the mean that a linear mixture forecasts, float64 [G]."""
    n = mixer.weights.inputs.shape[1]
    laws = np.zeros((n, n, 2))
    laws[:, :, 0] = np.eye(n)  # each row: one input forecasts 1, the others 0
    weights: np.ndarray = mixer.mix(laws)[:, 0]
    return weights


def _given(ensemble: Ensemble) -> AsGiven:
    """Return the step from thresholds as an ensemble's trees have them to those of given rows."""
    return partial(thresholds_of_given, parameters=ensemble.parameters)


def _covering(member: Member, position: int, k: int, as_given: AsGiven) -> list[PlainTree]:
    """Return the member's tree of each octave."""
    answering, plain = member.answering_trees(position), []
    pairs = zip(answering.trees, member.frozen_answering_trees(position), strict=True)
    for i, (tree, frozen) in enumerate(pairs):
        steps = [as_given]
        if answering.scales is not None:
            steps = [partial(_unscaled, scales=answering.scales[i]), as_given]
        plain.append(plain_tree(tree, frozen, k, steps))
    return plain


def _unscaled(thresholds: np.ndarray, features: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return thresholds of features before they are multiplied by scales, float32 [d]."""
    return thresholds_of_rows(thresholds, scales[features])


def _of_set(boosted: BoostedSet, kept: LabelledRows, as_given: AsGiven) -> list[PlainTree]:
    """Return the trees of a boosted set; those of a number have its center among them.

    Nodes are weighed by the newest rows that are kept.
    """
    trees, k = boosted.trees, len(boosted.first_scores)
    kept = kept.taken(slice(-_MOST_WEIGHING, None))
    unit = boosted.scale or 1.0
    plain = []
    pairs = zip(trees.n_splits.tolist(), trees.outputs.tolist(), strict=True)
    for t, (n, output) in enumerate(pairs):
        # The children of split i are nodes 1 + 2 i and 2 + 2 i.
        children, below = trees.children[t, :n].ravel(), 1 + np.arange(2 * n)
        is_split, place = children >= 0, np.zeros(n, np.int64)
        place[children[is_split]] = below[is_split]
        leaves, numbers = below[~is_split], -1 - children[~is_split]
        if not n:
            leaves, numbers = np.zeros(1, np.int64), np.zeros(1, np.int64)
        m = 2 * n + 1
        left, right, feature = (np.full(m, -1, np.int32) for _ in range(3))
        left[place], right[place], feature[place] = below[::2], below[1::2], trees.columns[t, :n]
        threshold, value = np.zeros(m, np.float32), np.zeros((m, k))
        threshold[place] = trees.thresholds[t, :n]
        value[leaves, output] = unit * trees.answers[t, numbers]
        reached = _reached(left, right, feature, threshold, kept)
        threshold[place] = as_given(trees.thresholds[t, :n], trees.columns[t, :n])
        plain.append(PlainTree(left, right, feature, threshold, value, reached))
    if boosted.scale:
        none, zero, total = np.full(1, -1, np.int32), np.zeros(1, np.float32), kept.w.sum()
        center = boosted.first_scores[None]
        plain.append(PlainTree(none, none, none, zero, center, np.full(1, total)))
    return plain


def _reached(
    left: np.ndarray,
    right: np.ndarray,
    feature: np.ndarray,
    thresholds: np.ndarray,
    kept: LabelledRows,
) -> np.ndarray:
    """Return the weight of the kept rows that come to each node, float64 [m]."""
    weight, at = np.zeros(len(left)), np.zeros(len(kept.y), np.int64)
    rows = np.arange(len(at))
    while len(rows):
        weight += np.bincount(at[rows], kept.w[rows], len(left))
        rows = rows[left[at[rows]] >= 0]
        here = at[rows]
        goes_left = kept.X[rows, feature[here]] <= thresholds[here]
        at[rows] = np.where(goes_left, left[here], right[here])
    return weight
