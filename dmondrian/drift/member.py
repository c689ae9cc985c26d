"""A member of a forest that follows the stream: covering trees, and how it mixes them.

A member is a pure function of the parameters, the seed, its number and the rows in order. It mixes
several inputs: the forecasts of one permanent tree, which it is given, then those of a tree in each
octave of age, and last, where the forest has them, what its scaled trees forecast and what boosted
sets answer, which it is given too. Members never look at each other.

Relies on :mod:`dmondrian.drift.covering_kernels`. Promises bounded memory: a tree that is born
takes the place, and the memory, of one that dies, and none has more nodes than its rows allow or
than ``MOST_BYTES`` hold.

Shapes: n rows, d features, k outputs (K classes, or mean and variance), S places, G inputs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dmondrian.drift.covering_kernels import (
    Covering,
    Credits,
    Places,
    Policies,
    forecast_rows,
    learn_rows,
    make_work,
)
from dmondrian.drift.label_policies import label_policies_of
from dmondrian.drift.mixer import Expert, Mixer
from dmondrian.ensemble.predictor.predictor import FreezingCost, FrozenOutput, FrozenTreeCache
from dmondrian.ensemble.predictor.predictor_kernels import FrozenTree, collect_frozen
from dmondrian.ensemble.rows.labelled_rows import LabelledRows
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.rules.aggregate import Aggregate
from dmondrian.rules.large_shares import LargeShares
from dmondrian.tree import nodes
from dmondrian.tree.address_table import table_of
from dmondrian.tree.box_encoding import all_numeric, read_only

# How feature scales of covering trees follow credits: power and floor, of each kind of member.
# Member number i is of kind i modulo their number.
MEMBER_KINDS = ((0, 1.0), (1, 0.1), (2, 0.05), (3, 0.03))
LARGEST_LEVEL = 12  # exponent of the births beyond which credits are remembered alike
MOST_BYTES = 2**24  # of a covering tree's nodes
# When to freeze covering trees: later than others, as these look for many rows ahead, and are many.
_COST = FreezingCost(1500, 2.0)
BOOSTED_RATE = 0.003  # of the expert that raises what a boosted set answers to a power


class Ages(NamedTuple):
    """Octaves of age that trees cover."""

    first: int = 5
    last: int = 15

    @property
    def n_octaves(self) -> int:
        """How many."""
        return self.last - self.first + 1

    @property
    def n_places(self) -> int:
        """Trees that are alive at most."""
        return self.n_octaves + 1

    @property
    def n_levels(self) -> int:
        """Rates at which credits are forgotten."""
        return min(self.last, LARGEST_LEVEL) - self.first + 1

    def n_younger_than(self, n_rows: int) -> int:
        """Return how many octaves begin below an age of ``n_rows``."""
        return sum(1 << k < n_rows for k in range(self.first, self.last + 1))

    def births_before(self, position: int) -> np.ndarray:
        """Return the row before which the tree in each place was born, int64 [S]; -1 for none.

        ``position`` is the number of rows learned.
        """
        births = np.full(self.n_places, -1, np.int64)
        if not position:
            return births
        newest = position - 1
        for exponent in range(self.first, self.last):  # odd multiples of 2^exponent
            odd = newest >> exponent
            odd -= 1 - odd % 2
            births[exponent - self.first] = odd << exponent if odd > 0 else -1
        whole = newest >> self.last
        for number in (whole, whole - 1):
            if number >= 0:
                births[self.last - self.first + number % 2] = number << self.last
        return births


class AnsweringTrees(NamedTuple):
    """The covering trees that answer until rows are learned: one of each octave of age."""

    octaves: list[int]  # of age, of each tree
    trees: list[nodes.Tree]
    scales: list[np.ndarray] | None  # float32 [d] each, by which they take features


class Member:
    """Covering trees that learn one stream, and the mixture of their forecasts.

    Parameters
    ----------
    parameters : ForestParameters
        Of the forest; rows come as its trees take them.
    number : int
        Of the member and of its permanent tree.
    ages : Ages
    delay : int
        Rows whose labels come together.
    """

    def __init__(
        self, parameters: ForestParameters, number: int, ages: Ages, delay: int = 1
    ) -> None:
        d = parameters.n_features
        self.number, self.ages = number, ages
        self._answering: AnsweringTrees | None = None
        self._has_boosted = parameters.mixes_boosted_sets
        self._has_scaled = parameters.mixes_scaled_trees
        power, floor = MEMBER_KINDS[number % len(MEMBER_KINDS)]
        self._covering = Covering(
            ages.first, ages.last, power, floor, ages.n_levels, not parameters.split_pure,
            np.uint64(parameters.seed), np.uint64(number),
        )  # fmt: skip
        label_policies = label_policies_of(parameters)
        self._n_outputs = label_policies.n_outputs
        self._policies = Policies(label_policies.stat, label_policies.loss, Aggregate(True))
        self._columns = all_numeric(d)
        n_places = ages.n_places
        self.trees = [
            nodes.make_tree(self._columns, label_policies.n_stats, 2 << ages.first)
            for _ in range(n_places)
        ]
        self.caps = read_only(_caps(self.trees[0], ages, parameters.max_nodes))
        self.births = np.full(n_places, -1, np.int64)
        self.scales = np.ones((n_places, d), np.float32)
        # They halve within as many rows as a tree lives: 2^(level + 1) births.
        halves = [0.5]
        for _ in range(ages.n_levels):
            halves.append(math.sqrt(halves[-1]))  # a root is rounded alike everywhere
        self.buckets = np.zeros((n_places, 2, d))
        self.levels = np.zeros((ages.n_levels, 2, d))
        self._credits = Credits(self.buckets, self.levels, read_only(np.array(halves[1:])))
        self.set_trees(self.trees)
        everything = tuple(range(self.n_inputs))
        equal = (1.0 / len(everything),) * len(everything)
        experts = [Expert(everything, equal, rate) for rate in label_policies.rates]
        experts.append(Expert((0,), (1.0,), 0.0))
        if self._has_boosted:
            rate = 0.0 if label_policies.is_regression else BOOSTED_RATE  # means have no powers
            experts.append(Expert(everything[-1:], (1.0,), rate))
        is_timed = parameters.following.period is not None
        positive = everything[-1:] if parameters.monotone else ()  # what boosted sets answer
        self.mixer = Mixer(
            len(everything), experts, delay, linear=label_policies.mixing, is_timed=is_timed,
            positive=positive,
        )  # fmt: skip

    @property
    def n_inputs(self) -> int:
        """Inputs of the mixture."""
        return 1 + self.ages.n_octaves + self._has_scaled + self._has_boosted

    @property
    def n_bytes(self) -> int:
        """Bytes of memory held by the trees."""
        return sum(nodes.tree_bytes(tree) for tree in self.trees) + self._frozen_cache.n_bytes

    def forecast(self, inputs: np.ndarray, X: np.ndarray, position: int) -> None:
        """Write what each octave's tree forecasts to ``inputs``, behind the permanent tree's.

        Parameters
        ----------
        inputs : float64 [G, n, k]
            The first is the forecast of the permanent tree; what scaled trees and boosted sets
            forecast stays.
        X : float32 [n, d]
        position : int
            Rows learned so far.
        """
        if self._forecast_frozen(inputs, X, position):
            return
        forecast_rows(
            self._covering, self._policies.loss, self._columns, self._places,
            make_work(self._columns), read_only(X), position, inputs,
        )  # fmt: skip

    def expect(self, n_rows: int) -> None:
        """Count rows that will be forecast before others are learned."""
        self._frozen_cache.expect(n_rows)

    def answering_trees(self, position: int) -> AnsweringTrees:
        """Return the trees that answer after ``position`` rows, until others are learned."""
        if self._answering is None:
            places = {int(birth): place for place, birth in enumerate(self.births)}
            octaves = range(self.ages.first, self.ages.last + 1)
            births = {k: ((position >> k) - 1) << k for k in octaves}
            place_of_octave = {k: places[birth] for k, birth in births.items() if birth >= 0}
            scales = (
                [self.scales[s] for s in place_of_octave.values()] if self._covering.power else None
            )
            trees = [self.trees[s] for s in place_of_octave.values()]
            self._answering = AnsweringTrees([*place_of_octave], trees, scales)
        return self._answering

    def frozen_answering_trees(self, position: int) -> list[FrozenTree]:
        """Return :meth:`answering_trees` frozen; their answers begin with the outputs."""
        answering = self.answering_trees(position)
        output = self._output_of(answering)
        return self._frozen_cache.make(answering.trees, output, 1, answering.scales).trees

    def _output_of(self, answering: AnsweringTrees) -> FrozenOutput:
        """Return what frozen trees predict: the outputs, and the sum of their shares."""
        k, lifetimes = self._n_outputs, np.full(len(answering.trees), np.inf)
        return FrozenOutput(self._policies.loss, LargeShares(k), lifetimes, k + 1)

    def _forecast_frozen(self, inputs: np.ndarray, X: np.ndarray, position: int) -> bool:
        """Do what :meth:`forecast` does, by frozen trees; return False while that does not pay."""
        answering, k = self.answering_trees(position), self._n_outputs
        output = self._output_of(answering)
        frozen = self._frozen_cache.trees(answering.trees, output, 0, 1, answering.scales)
        if frozen is None:
            return False
        answers = np.empty((len(answering.trees), len(X), k + 1))
        collect_frozen(frozen.table, k + 1, read_only(X), answers)
        inputs[1 : 1 + self.ages.n_octaves] = inputs[0]
        for octave, answer in zip(answering.octaves, answers, strict=True):
            inputs[1 + octave - self.ages.first] = answer[:, :k]
        return True

    def learn(
        self, inputs: np.ndarray, X: np.ndarray, y: np.ndarray, w: np.ndarray, position: int
    ) -> None:
        """Learn rows in order; do what :meth:`forecast` does, of each row just before it.

        Parameters
        ----------
        inputs, X, position
            As in :meth:`forecast`.
        y : float64 [n]
            Classes, or labels.
        w : float64 [n] or [0]
            Weights > 0, or none for weights of one.
        """
        self._forget()
        rows = LabelledRows(read_only(X), read_only(y), read_only(w))
        reached = np.zeros(2, np.int64)
        work = make_work(self._columns)
        while True:
            learn_rows(
                self._covering, self._policies, self._columns, self._places, self._credits, work,
                rows, position, int(reached[0]), inputs, reached,
            )  # fmt: skip
            place = int(reached[1])
            if place < 0:
                return
            tree = self.trees[place]
            capacity = min(int(self.caps[place]), 4 * len(tree.i))
            self.trees[place] = nodes.resize(tree, capacity, soon=capacity)
            self._places.table[place] = table_of(self.trees[place : place + 1])[0]

    def set_trees(self, trees: list[nodes.Tree]) -> None:
        """Put trees in the places, each with capacity for the rows between two births."""
        self.trees = [nodes.resize(tree, max(len(tree.i), 2 << self.ages.first)) for tree in trees]
        self._places = Places(table_of(self.trees), self.caps, self.births, self.scales)
        self._forget()

    def _forget(self) -> None:
        """Drop frozen copies and which trees answer, as trees are about to change."""
        self._frozen_cache, self._answering = FrozenTreeCache(_COST), None


def _caps(tree: nodes.Tree, ages: Ages, max_nodes: int | None) -> np.ndarray:
    """Return how many nodes the tree in each place may have, int64 [S]."""
    width = sum(array[:1].nbytes for array in (tree.i, tree.box, tree.bits))
    most = MOST_BYTES // width if max_nodes is None else min(max_nodes, MOST_BYTES // width)
    exponents = [*range(ages.first, ages.last), ages.last, ages.last]
    return np.array([max(min(2 ** (e + 2), most), 2) for e in exponents], np.int64)
