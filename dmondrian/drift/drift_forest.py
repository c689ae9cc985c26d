"""A forest that follows the stream: permanent trees, members around them, and a guard over all.

The permanent trees are those of a forest that never forgets, to the byte. Each belongs to a member
(:mod:`dmondrian.drift.member`), which mixes it with trees of all ages. The guard mixes the means of
the members' forecasts by kind, the mean of all and that of the permanent trees, and raises them to
powers: where nothing changes it is not behind the forest without members, by more than the price
of its weights.

Labels come ``delay`` rows at a time: the rows of a block [i delay, (i + 1) delay) are forecast in
the state before it, weights of mixtures included, and learned after its last row. Rows of a block
that is not full wait. In place of trees younger than ``delay`` the permanent one is mixed.

Relies on :class:`dmondrian.forest.forest.Forest`. Promises that the state is a pure function of
the parameters, the seed, the numbers of the members and the rows in order, whatever the cuts
between calls and the number of threads.

Shapes: n rows, d features, K classes, T members, G inputs of a member's mixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from dmondrian.drift.age_weights import age_shares, exponents_of
from dmondrian.drift.drift_state import FOLLOWING, Waiting, drift_state, read_header, take_state
from dmondrian.drift.member import KINDS, Ages, Member
from dmondrian.drift.mixer import Expert, Mixer
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.settings.numeric_limits import check_weights
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.sums.exact_sums import ONE, whole_shares
from dmondrian.ensemble.threads import run_threads
from dmondrian.errors import ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.joint_fit.fit import Rows

_POWER_RATE, _KIND_RATES = 0.003, (0.001, 0.004)  # of the guard's experts
_MOST_ROWS, _LEAST_ROWS, _MOST_NUMBERS = 1024, 32, 2**20  # of a piece: rows, inputs of a member
_NONE = np.empty(0)


class DriftForest(Forest):
    """Members that follow a stream, and their guard.

    Parameters
    ----------
    parameters : ForestParameters
        Of the permanent trees.
    numbers : iterable of int
        Of the members, distinct, >= 0.
    ages : Ages
        Octaves of age that trees cover.
    delay : int
        Rows whose labels come together.

    Attributes
    ----------
    members : list of Member
    guard : Mixer
    position : int
        Rows of positive weight that were learned.
    waiting : Waiting
        Rows that came after those.
    """

    def __init__(
        self,
        parameters: ForestParameters,
        numbers: Iterable[int],
        ages: Ages | None = None,
        delay: int = 1,
    ) -> None:
        super().__init__(parameters, numbers)
        self.begin(ages or Ages(), delay)

    def begin(self, ages: Ages, delay: int) -> None:
        """Have new members and a new guard."""
        self.ages, self.delay, self.position = ages, int(delay), 0
        numbers = self.tree_numbers.tolist()
        self.members = [Member(self.parameters, number, ages) for number in numbers]
        self.kinds = sorted({number % len(KINDS) for number in numbers})
        self.guard = make_guard(max(len(self.kinds), 1))
        self.waiting = self._no_rows()

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied and pickled as the state."""
        return forest_from_state, self.state()

    def state(self, copy: bool = True) -> tuple[dict[str, Any], list[dict[str, np.ndarray]]]:
        """Return (JSON-able header, one dict of arrays per tree): always copies."""
        return drift_state(super().state(), self)

    def stored(
        self,
    ) -> tuple[dict[str, Any], Iterable[dict[str, np.ndarray]], list[int] | None]:
        """Return the state as checkpoints hold it."""
        return *self.state(), None

    @classmethod
    def from_state(
        cls, header: dict[str, Any], trees: Sequence[dict[str, np.ndarray]]
    ) -> DriftForest:
        """Return the forest of a :meth:`state`, every index and value checked.

        Raises
        ------
        CorruptError
            If the state is not one that such a forest can have.
        """
        found = read_header(header, trees)
        base = Forest.from_state(found.permanent_header, found.permanent)
        made = cls(base.parameters, [])
        made.predictor = base.predictor
        made.begin(found.ages, found.delay)
        take_state(made, found)
        return made

    @classmethod
    def join(cls, forests: Any) -> Forest:
        """Refuse: members of other forests learned other weights beside theirs."""
        raise ParameterError(
            "forests that follow a stream cannot be joined: their guards learned from the "
            "forecasts of their own members alone. Fit one forest of more members."
        )

    def predict_sums(self, *args: Any, **named: Any) -> Any:
        """Refuse: what members forecast is no sum over trees."""
        raise ParameterError(
            'a forest with drift="follow" mixes logarithms of the forecasts of trees, which are no '
            "sums over trees: ask predict or predict_proba of the estimator"
        )

    @property
    def takes_single_rows(self) -> bool:
        """False: what members learn of a row is learned together."""
        return False

    def _no_rows(self) -> Waiting:
        return Waiting(np.empty((0, self.parameters.n_features), np.float32), _NONE, _NONE)

    @property
    def n_bytes(self) -> int:
        """Bytes of memory held by all trees."""
        return super().n_bytes + sum(member.n_bytes for member in self.members)

    def predict_proba(self, X: np.ndarray, n_threads: int = 1) -> np.ndarray:
        """Return class probabilities, float64 [n, K], of rows X float32 [n, d].

        Rows that wait for their block are not known yet.

        Raises
        ------
        ParameterError
            If no row was learned.
        """
        self.store.check_whole()
        if not self.position and len(self.waiting.y):
            raise ParameterError(
                f"no row is learned yet: {len(self.waiting.y)} wait until their block of delay="
                f"{self.delay} rows is full; fit more rows, or choose a smaller delay"
            )
        self.predictor.check_learned()
        self.predictor.preparation.check_width(X)
        parts = [self._forecast(X[part], n_threads) for part in self._pieces(len(X))]
        mixed = [self.guard.mix(self._guard_inputs(*part)) for part in parts]
        return np.concatenate(mixed) if mixed else np.empty((0, self.parameters.n_classes))

    def age_shares(self) -> np.ndarray:
        """Return the share of each age in the forecasts, float64 [1 + k], sum 1.

        The first is of the trees that never forget, the next of the youngest octave.
        """
        found = np.stack([exponents_of(member.mixer) for member in self.members])
        numbers = self.tree_numbers.tolist()
        return age_shares(found, numbers, self.guard, self.ages, self.position, self.delay)

    def forecast_and_learn(
        self, X: np.ndarray, y: np.ndarray, w: np.ndarray | None = None, n_threads: int = 1
    ) -> np.ndarray:
        """Learn rows in order; return the forecasts that were made of them before.

        Parameters
        ----------
        X, y, w, n_threads
            As in :meth:`dmondrian.ensemble.ensemble.Ensemble.update`.

        Returns
        -------
        float64 [n', K]
            Of the rows whose block is full by now, those that waited before this call first; rows
            of weight 0 are left out.
        """
        self.check_sizes(y, w)
        self.predictor.preparation.check_width(X)
        found = list(self._follow((X, y, w), n_threads, nullcontext))
        return np.concatenate(found) if found else np.empty((0, self.parameters.n_classes))

    def check_sizes(self, y: np.ndarray, w: np.ndarray | None) -> None:
        """Refuse rows whose weights doubles cannot sum up, those of rows that wait included."""
        check_weights(w, len(y), self.total_weight + float(self.waiting.w.sum()))

    def _update(
        self, rows: Rows, n_threads: int, alone: Callable[[], AbstractContextManager[None]]
    ) -> None:
        for _ in self._follow(rows, n_threads, alone):
            pass

    def _follow(
        self, rows: Rows, n_threads: int, alone: Callable[[], AbstractContextManager[None]]
    ) -> Iterator[np.ndarray]:
        """Learn rows X, y, w, block by block; yield the forecasts of each piece."""
        X, y, w = rows[0], np.asarray(rows[1], np.float64), rows[2]
        if isinstance(X, PreparedRows):
            raise ParameterError(
                "trees of all ages scale rows anew: give rows that are not prepared"
            )
        if w is not None:
            kept = w > 0.0
            X, y, w = X[kept], y[kept], np.asarray(w[kept], np.float64)
        if self.delay == 1:
            for part in self._pieces(len(y)):
                with alone():
                    own = _NONE if w is None else w[part]
                    forecasts = self._learn_at_once(X[part], y[part], own, n_threads)
                yield forecasts
            return
        w = np.ones(len(y)) if w is None else w
        if not len(y):
            return
        first = 0
        while len(y) - first >= self.delay - len(self.waiting.y):
            last = first + self.delay - len(self.waiting.y)
            block = self._with_waiting(X[first:last], y[first:last], w[first:last])
            with alone():
                self.waiting = self._no_rows()
                forecasts = self._learn_block(block, n_threads)
            yield forecasts
            first = last
        with alone():
            self.waiting = self._with_waiting(X[first:], y[first:], w[first:])

    def _with_waiting(self, X: np.ndarray, y: np.ndarray, w: np.ndarray) -> Waiting:
        """Return the rows that wait and these."""
        both = zip(self.waiting, (X, y, w), strict=True)
        return Waiting(*(np.concatenate(pair) for pair in both))

    def _pieces(self, n: int) -> Iterator[slice]:
        """Yield slices of n rows, of which a member's inputs stay in the cache."""
        width = (1 + self.ages.n_octaves) * self.parameters.n_classes
        size = max(_LEAST_ROWS, min(_MOST_ROWS, _MOST_NUMBERS // width))
        for first in range(0, n, size):
            yield slice(first, min(first + size, n))

    def _learn_at_once(
        self, X: np.ndarray, y: np.ndarray, w: np.ndarray, n_threads: int
    ) -> np.ndarray:
        """Forecast and learn row after row; return the forecasts."""
        try:
            permanent = self._learn_permanent(X, y, w, n_threads)
            of_members, scaled = np.empty(permanent.shape), self.prepare(X).values

            def learn(i: int) -> None:
                member = self.members[i]
                inputs = np.empty((member.n_inputs, *permanent.shape[1:]))
                inputs[0] = permanent[i]
                member.learn(inputs, scaled, y, w, self.position)
                of_members[i] = member.mixer.mix_and_step(inputs, y, w)

            run_threads(learn, range(len(self.members)), n_threads)
            forecasts = self.guard.mix_and_step(self._guard_inputs(permanent, of_members), y, w)
            self.position += len(y)
        except BaseException:
            self.store.is_torn = True
            raise
        return forecasts

    def _learn_permanent(
        self, X: np.ndarray, y: np.ndarray, w: np.ndarray, n_threads: int
    ) -> np.ndarray:
        """Let the permanent trees learn; return the forecast of each before, float64 [T, n, K]."""
        n_classes = self.parameters.n_classes
        answers = np.empty((len(self.members), len(y), n_classes))
        first = 0 if self.position else 1  # no tree could answer
        answers[:, :first] = 1.0 / n_classes
        rows = np.arange(first, len(y))

        def take(t: int, found: np.ndarray, known: np.ndarray) -> None:
            answers[t, first:] = found[:, :n_classes]

        weights = w if len(w) else None
        self.ask_and_learn(X, y, weights, n_threads, rows, np.full(len(rows), np.inf), take)
        return answers

    def _learn_block(self, block: Waiting, n_threads: int) -> np.ndarray:
        """Forecast all rows of a block, then learn them; return the forecasts."""
        found = []
        try:
            ahead = [member.mixer.copy() for member in self.members]
            guard = self.guard.copy()
            for part in self._pieces(len(block.y)):
                y, w = block.y[part], block.w[part]
                permanent, of_members = self._forecast(block.X[part], n_threads, (ahead, y, w))
                inputs = self._guard_inputs(permanent, of_members)
                found.append(self.guard.mix(inputs))
                guard.mix_and_step(inputs, y, w)
            for member, mixer in zip(self.members, ahead, strict=True):
                member.mixer = mixer
            self.guard = guard
            for part in self._pieces(len(block.y)):
                self._learn_trees(Waiting(*(array[part] for array in block)), n_threads)
        except BaseException:
            self.store.is_torn = True
            raise
        return np.concatenate(found)

    def _learn_trees(self, rows: Waiting, n_threads: int) -> None:
        """Let trees learn rows, and no mixture."""
        Ensemble.update(self, rows.X, rows.y, rows.w, n_threads)
        scaled = self.prepare(rows.X).values

        def learn(i: int) -> None:
            member = self.members[i]
            inputs = np.empty((member.n_inputs, len(rows.y), self.parameters.n_classes))
            inputs[0] = 0.0
            member.learn(inputs, scaled, rows.y, rows.w, self.position)

        run_threads(learn, range(len(self.members)), n_threads)
        self.position += len(rows.y)

    def _forecast(
        self,
        X: np.ndarray,
        n_threads: int,
        ahead: tuple[list[Mixer], np.ndarray, np.ndarray] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what permanent trees and members forecast, float64 [T, n, K] each.

        The mixers in ``ahead``, one for each member, then take steps to the labels beside them.
        """
        shape = len(self.members), len(X), self.parameters.n_classes
        permanent, of_members = np.full(shape, 1.0 / shape[2]), np.empty(shape)
        if self.position:
            lives = np.array([np.inf])
            found = self.predictor.answers(X, self.policies, lives, self.predictor.width)
            permanent[:] = found[:, :, 0, : shape[2]]
        scaled = self.prepare(X).values

        def forecast(i: int) -> None:
            member = self.members[i]
            inputs = np.empty((member.n_inputs, *shape[1:]))
            inputs[0] = permanent[i]
            member.forecast(inputs, scaled, self.position)
            inputs[1 : 1 + self.ages.n_younger_than(self.delay)] = inputs[0]
            of_members[i] = member.mixer.mix(inputs)
            if ahead is not None:
                ahead[0][i].mix_and_step(inputs, *ahead[1:])

        run_threads(forecast, range(len(self.members)), n_threads)
        return permanent, of_members

    def _guard_inputs(self, permanent: np.ndarray, of_members: np.ndarray) -> np.ndarray:
        """Return means, float64 [G, n, K], of members by kind, of permanent trees, of members.

        They are of whole numbers, whose sums do not depend on how members are cut into shards.
        """
        kind_of = self.tree_numbers % len(KINDS)
        groups = [of_members[kind_of == kind] for kind in self.kinds]
        return np.stack([_mean(group) for group in (*groups, permanent, of_members)])


def _mean(forecasts: np.ndarray) -> np.ndarray:
    """Return the mean, float64 [n, K], of forecasts [T, n, K]."""
    whole = np.zeros(forecasts.shape[1:], np.int64)
    for each in forecasts:
        whole += whole_shares(each)
    return whole / (len(forecasts) * ONE)


def make_guard(n_kinds: int) -> Mixer:
    """Return the guard of a forest with so many kinds of members."""
    permanent, everyone = n_kinds, n_kinds + 1
    some = (*range(n_kinds), permanent)
    equal = (*(1.0 / n_kinds,) * n_kinds, 0.0)
    return Mixer(
        n_kinds + 2,
        [
            Expert((everyone,), (1.0,), _POWER_RATE),
            *(Expert(some, equal, rate) for rate in _KIND_RATES),
            Expert((permanent,), (1.0,), _POWER_RATE),
            Expert((permanent,), (1.0,), 0.0),
        ],
    )


def forest_from_state(header: dict[str, Any], trees: Sequence[dict[str, np.ndarray]]) -> Forest:
    """Return the forest of a state, one that follows a stream or another, checked.

    Raises
    ------
    CorruptError
        If the state is not one that a forest can have.
    """
    is_following = isinstance(header, dict) and header.get("format") == FOLLOWING
    return (DriftForest if is_following else Forest).from_state(header, trees)
