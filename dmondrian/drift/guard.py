"""The guard of a forest that follows a stream: a mixture over what kinds of members forecast.

It mixes the means of the members' forecasts by kind, the mean of all and that of the permanent
trees, and raises probabilities to powers. So where nothing changes, its loss is above that of the
permanent trees alone by no more than what it takes to learn the weights.

Members do not depend on it: their forecasts are added up in any order, as whole numbers, on as many
machines as hold them (:data:`Shares`), and the guard takes its steps later, row by row.

Relies on :mod:`dmondrian.drift.mixer`. Promises that its weights are a pure function of the
shares, labels and weights of rows in order, whatever the cuts between calls.

Shapes: n rows, k outputs (K classes, or mean and variance), G inputs, s whole numbers of outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from dmondrian.boosting.boosted_stream import FIRST_SET
from dmondrian.drift.age_weights import exponents_of, shares_of_ages
from dmondrian.drift.label_blocks import LabelBlocks
from dmondrian.drift.label_policies import LabelPolicies, label_policies_of
from dmondrian.drift.member import MEMBER_KINDS, Ages
from dmondrian.drift.mixer import Expert, Mixer
from dmondrian.drift.scaled_trees import has_scaled_trees
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.sums.exact_sums import ONE, WORDS, label_moments, whole_laws, whole_shares
from dmondrian.errors import CorruptError

Shares = dict[int, np.ndarray]
"""Forecasts summed as whole numbers, int64 [n, s], by kind of member, and of permanent trees.

Those of numbers are in units of the labels before the row, float64 [n, 2], which all members know.
"""

PERMANENT, UNIT = -1, -2  # keys of the permanent trees' shares, and of units
_LEAST_WIDTH = 5  # of a share: that of a number takes four, and a part of its unit
_POWER_RATE, _KIND_RATES = 0.003, (0.001, 0.004)  # of the guard's experts, at a delay of 1
_MOVING_SHARE = 0.6  # of the experts with members at first, at a delay of 1
_LINEAR_RATES = 0.02, 0.08  # for numbers


def shares_of(
    numbers: Iterable[int],
    permanent: np.ndarray,
    of_members: np.ndarray,
    unit: np.ndarray | None = None,
) -> Shares:
    """Return the shares of members of these numbers; forecasts are float64 [T, n, k].

    ``unit`` is that of labels that are numbers, float64 [n, 2]; None for classes.
    """

    def whole(forecasts: np.ndarray) -> np.ndarray:
        return whole_shares(forecasts) if unit is None else whole_laws(forecasts, unit)

    size = permanent.shape[1:] if unit is None else (permanent.shape[1], WORDS)
    shares = {PERMANENT: np.zeros(size, np.int64)}
    if unit is not None:
        shares[UNIT] = unit
    for number, first, mixed in zip(numbers, permanent, of_members, strict=True):
        kind = number % len(MEMBER_KINDS)
        shares.setdefault(kind, np.zeros(size, np.int64))
        shares[kind] += whole(mixed)
        shares[PERMANENT] += whole(first)
    return shares


def share_width(parameters: ForestParameters) -> int:
    """Return how many numbers the shares of a row have at most."""
    return (1 + len(MEMBER_KINDS)) * max(parameters.n_classes, _LEAST_WIDTH)


def sum_shares(parts: Iterable[Shares]) -> Shares:
    """Return the sum of shares of the same rows, in any order."""
    total: Shares = {}
    for part in parts:
        for key, whole in part.items():
            total[key] = total[key] + whole if key in total and key != UNIT else whole
    return total


def concatenate_shares(parts: list[Shares]) -> Shares:
    """Return shares of rows that follow each other, by the same members, as one."""
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


class Guard:
    """Weights of kinds of members and of permanent trees.

    Parameters
    ----------
    parameters : ForestParameters
        Of a forest that ``follows_stream``.
    numbers : iterable of int
        Of all members.

    Attributes
    ----------
    position : int
        Rows that it has mixed and whose labels it has taken.
    blocks : LabelBlocks
        Of these rows.
    mixer : Mixer
        Of the members' means by kind, then of the mean of permanent trees, and that of all members.
    """

    def __init__(self, parameters: ForestParameters, numbers: Iterable[int]) -> None:
        self._parameters, self._numbers = parameters, tuple(numbers)
        self.blocks, self.position = LabelBlocks(parameters.following), 0
        kinds = [number % len(MEMBER_KINDS) for number in self._numbers]
        self._counts = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
        self._label_policies = label_policies_of(parameters)
        self.mixer = self._new_mixer()

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied and pickled as JSON: kernels take arrays of a new one alone."""
        return guard_of, (self._parameters, self._numbers, self.to_json())

    def _new_mixer(self) -> Mixer:
        """Return a mixer that has learned nothing, for blocks of as many rows as now."""
        n_kinds, blocks = max(len(self._counts), 1), self.blocks
        is_monotone = bool(self._parameters.monotone)
        return _mixer(n_kinds, blocks.delay, self._label_policies, blocks.is_timed, is_monotone)

    @property
    def rows_so_far(self) -> dict[str, int]:
        """Rows that came: "learned" by trees, and "waiting" for their labels."""
        waiting = self.blocks.n_waiting(self.position)
        return {"learned": self.position - waiting, "waiting": waiting}

    def mix(self, shares: Shares) -> np.ndarray:
        """Return the forecasts of the forest, float64 [n, k]."""
        return self.mixer.mix(self._inputs(shares))

    def mix_and_step(
        self, shares: Shares, y: np.ndarray, w: np.ndarray, times: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the forecasts of the rows that come next, and learn their labels.

        Parameters
        ----------
        shares : Shares
        y : float64 [n]
            Classes, or labels.
        w : float64 [n] or [0]
            Weights > 0, or none for weights of one.
        times : float64 [n], optional
            Where labels come by time.
        """
        inputs = self._inputs(shares)
        mixed = np.empty(inputs.shape[1:])
        for part, is_after_end, is_end in self.blocks.cut(self.position, len(y), times):
            if is_after_end:
                self._end_block()
            weights = w[part] if len(w) else w
            mixed[part] = self.mixer.mix_and_step(inputs[:, part], y[part], weights)
            self.blocks.count(None if times is None else times[part])
            self.position += part.stop - part.start
            if is_end:
                self._end_block()
        return mixed

    def _end_block(self) -> None:
        """Let the weights that learned the labels of the block mix the next rows."""
        is_first, before = not self.rows_so_far["learned"], self.blocks.delay
        self.blocks.end_block()
        self.mixer.end_block()
        if self.blocks.is_timed and (is_first or self.blocks.delay != before):
            fresh = self._new_mixer()
            if is_first:  # all inputs forecast its rows alike: no weight knows more than a new one
                self.mixer = fresh
            self.mixer.use_rates_of(fresh)

    def learn_waiting(self) -> None:
        """Let the weights that learned the rows that wait mix from now on, if others were learned.

        Amid a block this is for a guard that learns no more.
        """
        if self.rows_so_far["learned"]:
            self.mixer.end_block()

    def age_shares(self, of_members: np.ndarray, n_learned: int | None = None) -> np.ndarray:
        """Return the share of each age in the forecasts, float64 [G], sum 1.

        The first is of the trees that never forget, the next of the youngest octave; the last of
        scaled trees, and of boosted sets, where there are such.

        Parameters
        ----------
        of_members : float64 [T, G]
            Exponents of the inputs of all members, by their numbers, after as many rows; see
            :func:`dmondrian.drift.age_weights.exponents_of`.
        n_learned : int, optional
            Rows that trees have learned, if they were those amid a block as well.
        """
        parameters = self._parameters
        ages = Ages(parameters.following.first, parameters.following.last)
        kinds, of_guard = np.array(self._numbers) % len(MEMBER_KINDS), exponents_of(self.mixer)
        is_mixed = np.zeros(of_members.shape[1], np.bool_)
        is_mixed[0] = True
        known = ages.n_younger_than(self.blocks.delay), ages.n_younger_than(self.position + 1)
        is_mixed[1 + known[0] : 1 + known[1]] = True
        n_learned = self.rows_so_far["learned"] if n_learned is None else n_learned
        if parameters.mixes_boosted_sets:
            is_mixed[-1] = n_learned >= FIRST_SET
        if parameters.mixes_scaled_trees:
            is_mixed[-2] = has_scaled_trees(parameters, n_learned)
        return shares_of_ages(of_members, kinds, of_guard, is_mixed)

    def _inputs(self, shares: Shares) -> np.ndarray:
        """Return means, float64 [G, n, k], of members by kind, of permanent trees, of members."""
        n_all, unit = sum(self._counts.values()), shares.get(UNIT)

        def mean(whole: np.ndarray, count: int) -> np.ndarray:
            if unit is None:
                return whole / (count * ONE)
            return np.stack(label_moments(whole, count, unit), axis=1)

        means = [mean(shares[kind], count) for kind, count in self._counts.items()]
        everyone: np.ndarray = sum(shares[kind] for kind in self._counts)  # type: ignore[assignment]
        return np.stack([*means, mean(shares[PERMANENT], n_all), mean(everyone, n_all)])

    def input_shares(self) -> tuple[np.ndarray, np.ndarray]:
        """Return what the inputs are means of, by number: members, and permanent trees.

        Float64 [G, T] each: an input is the sum of both, times what these forecast.
        """
        kinds = np.array(self._numbers) % len(MEMBER_KINDS)
        of_kinds = [(kinds == kind) / count for kind, count in self._counts.items()]
        none, all_ = np.zeros(len(kinds)), np.full(len(kinds), 1.0 / len(kinds))
        of_permanent = [*(none for _ in of_kinds), all_, none]
        return np.stack([*of_kinds, none, all_]), np.stack(of_permanent)

    def to_json(self) -> dict[str, Any]:
        """Return what it has learned."""
        return {"position": self.position, **self.blocks.to_json(), **self.mixer.to_json()}

    def load_json(self, stored: Any, position: int | None = None) -> None:
        """Take over what :meth:`to_json` wrote, after ``position`` rows if that is known.

        Raises
        ------
        CorruptError
            If it is not that of such a guard.
        """
        stored_position = stored.get("position") if isinstance(stored, dict) else None
        is_count = isinstance(stored_position, int) and 0 <= stored_position <= 2**53
        if not is_count or stored_position != (stored_position if position is None else position):
            expected = "some" if position is None else f"{position}"
            raise CorruptError(
                f"a guard should have the weights after {expected} rows, found {str(stored)[:80]}"
            )
        self.blocks.load_json(stored, int(stored_position or 0))
        self.mixer = self._new_mixer()
        self.mixer.load_json(stored)
        self.position = int(stored_position or 0)


def guard_of(parameters: ForestParameters, numbers: Iterable[int], stored: Any) -> Guard:
    """Return the guard of a forest of members of these numbers, from its JSON.

    Raises
    ------
    CorruptError
        If it is not that of such a guard.
    """
    guard = Guard(parameters, numbers)
    guard.load_json(stored)
    return guard


def _mixer(
    n_kinds: int, delay: int, label_policies: LabelPolicies, is_timed: bool, is_monotone: bool
) -> Mixer:
    """Return the mixer of a guard of so many kinds of members.

    Where forecasts are monotone in some columns, no weight falls below 0. The longer the delay, the
    slower its steps, and the more it begins with permanent trees alone.
    """
    permanent, everyone = n_kinds, n_kinds + 1
    some = (*range(n_kinds), permanent)
    slower = math.sqrt(delay)
    if label_policies.mixing is not None:
        # Means have no powers; the guard learns how sure the forest is.
        start = (1.0 / len(some),) * len(some)
        experts = [
            Expert((everyone,), (1.0,), 0.0),
            *(Expert(some, start, rate / slower) for rate in _LINEAR_RATES),
            Expert((permanent,), (1.0,), 0.0),
        ]
        linear = label_policies.mixing._replace(is_scaled=True)
        return Mixer(n_kinds + 2, experts, delay, linear=linear, is_timed=is_timed)
    equal = (*(1.0 / n_kinds,) * n_kinds, 0.0)
    experts = [
        Expert((everyone,), (1.0,), _POWER_RATE / slower),
        *(Expert(some, equal, rate / slower) for rate in _KIND_RATES),
        Expert((permanent,), (1.0,), _POWER_RATE / slower),
        Expert((permanent,), (1.0,), 0.0),
    ]
    moving = _MOVING_SHARE / math.sqrt(slower)
    shares = [moving / 3.0] * 3 + [(1.0 - moving) / 2.0] * 2
    positive = range(n_kinds + 2) if is_monotone else ()
    return Mixer(n_kinds + 2, experts, delay, shares, is_timed=is_timed, positive=positive)
