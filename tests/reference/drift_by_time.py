"""A forest whose labels come by time, written from its rule for the eye, not for speed.

Rows wait in a dictionary by the number of their block, whole times the delay since the first row.
Before a row is forecast all rows of smaller numbers are learned, block by block: trees learn them
in order, and mixers go through them, as if each label were known at once, with what was forecast of
them when they came; the mean of these weights is what mixes from then on. Forests are those of
:mod:`drift` and :mod:`drift_numbers` of this folder.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

X = Sequence[np.float32]
Answer = Callable[[int, X], list[float] | None]


@dataclass
class Row:
    """A row that waits, and what was forecast of it."""

    x: X
    y: Any
    weight: float
    of_members: list[list[list[float]]]  # inputs of each mixer
    of_guard: list[list[float]]


@dataclass
class TimedForest:
    """A reference forest, asked and fed by time.

    ``answer`` is that of boosted sets, by the number of rows learned and the row; ``scaled`` that
    of scaled trees, by these and between them the number of the member. With ``delay`` blocks are
    of so many rows: those of time where times are numbers of rows, but that the size of the first
    is known before, and its weights of the guard are kept.
    """

    forest: Any
    length: float
    answer: Answer | None = None
    scaled: Callable[[int, int, Any], list[float] | None] | None = None
    first: float | None = None
    newest: int = 0
    n_before: int = 1
    n_late: int = 0
    rows: dict[int, list[Row]] = field(default_factory=dict)
    delay: int | None = None

    def __post_init__(self) -> None:
        if self.delay is not None:
            self.n_before, self.forest.guard = self.delay, self.forest.new_guard(self.delay)

    def forecast(self, x: X, y: Any, weight: float, time: float) -> list[float]:
        """Return the forecast of a row, and let it wait."""
        self.first = time if self.first is None else self.first
        own = math.floor((Fraction(time) - Fraction(self.first)) / Fraction(self.length))
        self.n_late += own < self.newest
        self.newest = max(own, self.newest)
        for number in [number for number in sorted(self.rows) if number < self.newest]:
            self.learn(self.rows.pop(number))
        of_members = [self._inputs(member, x) for member in self.forest.members]
        mixed = [
            member.mixer.mix(inputs)
            for member, inputs in zip(self.forest.members, of_members, strict=True)
        ]
        of_guard = self.forest.guard_inputs([inputs[0] for inputs in of_members], mixed)
        row = Row(x, y, weight, of_members, of_guard)
        self.rows.setdefault(self.newest, []).append(row)
        return self.forest.guard.mix(of_guard)  # type: ignore[no-any-return]  # of any kind

    def _inputs(self, member: Any, x: X) -> list[list[float]]:
        """Return what a member mixes: in place of trees younger than a block the permanent one."""
        found = member.inputs(x, None)
        for i, k in enumerate(range(member.first, member.last + 1)):
            if 1 << k < self.n_before:
                found[1 + i] = found[0]
        if self.scaled is not None:
            scaled = self.scaled(member.t, member.number, x)
            found.append(found[0] if scaled is None else scaled)
        if self.answer is not None:
            answer = self.answer(member.t, x) or []
            found.append([*answer, *found[0][len(answer) :]])  # the variance is not a set's
        return found  # type: ignore[no-any-return]  # of any kind

    def learn(self, rows: list[Row]) -> None:
        """Learn the rows of a block whose labels have come."""
        members = self.forest.members
        is_first = members[0].t == 0
        for row in rows:
            for member in members:
                if member.t % (1 << member.first) == 0:
                    member.give_birth()
                member.inputs(row.x, row.y)  # takes credits
                member.permanent.learn(row.x, row.y, row.weight)
                for tree in member.trees:
                    tree.learn(tree.scaled(row.x), row.y, row.weight)
                member.t += 1
        for i, member in enumerate(members):
            self._go_through(member.mixer, rows, [row.of_members[i] for row in rows])
        self._go_through(self.forest.guard, rows, [row.of_guard for row in rows])
        self.n_before = len(rows)
        fresh = self.forest.new_guard(len(rows))
        if is_first and self.delay is None:
            self.forest.guard = fresh
        self.forest.guard.rates, self.forest.guard.start = fresh.rates, getattr(fresh, "start", 0)

    def _go_through(self, mixer: Any, rows: list[Row], inputs: list[list[list[float]]]) -> None:
        """Give a mixer the mean of the weights that went through a block."""
        ahead, n = copy.deepcopy(mixer), 0.0
        ahead.power = 1.0 / math.sqrt(self.n_before)
        outer, weights = [0.0] * len(mixer.outer), [[0.0] * len(one) for one in mixer.weights]
        for row, own in zip(rows, inputs, strict=True):
            for size in ahead.steps(own, row.y, row.weight):
                n += size
                outer = [t + size * v for t, v in zip(outer, ahead.outer, strict=True)]
                weights = [
                    [t + size * w for t, w in zip(sums, one, strict=True)]
                    for sums, one in zip(weights, ahead.weights, strict=True)
                ]
        mixer.outer = [t / n for t in outer]
        mixer.weights = [[t / n for t in sums] for sums in weights]
        for name in ("square", "n", "factor"):
            if hasattr(ahead, name):
                setattr(mixer, name, getattr(ahead, name))
