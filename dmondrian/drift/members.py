"""Members of a forest that follows the stream, on one machine: permanent trees and those around.

The permanent trees are those of a forest that never forgets, to the byte. Each belongs to a member
(:mod:`dmondrian.drift.member`), which mixes it with trees of all ages. What members forecast goes
out as shares, for the guard of the whole forest (:mod:`dmondrian.drift.guard`), which they do not
need: a shard of a run is an object of this class, with some of the members.

Labels come ``delay`` rows at a time: the rows of a block [i delay, (i + 1) delay) are forecast in
the state before it, weights of mixtures included, as they come, and learned after its last row.
Until then they wait. Where all labels are known by the time of a prediction, as of a run or after
``fit``, a copy that has learned them predicts (:meth:`Members.caught_up`). In place of trees
younger than ``delay`` the permanent one is mixed. Where the delay is a time, blocks are of that
time, and end when a row of a later one comes (:mod:`dmondrian.drift.label_blocks`).

Boosted sets and scaled trees that are born with rows are found from rows alone, before trees learn
these: a birth that fails, or that Ctrl-C ends, leaves the members as they were before the rows, and
is made when the rows are learned again.

Relies on :class:`dmondrian.forest.forest.Forest`. Promises that the state is a pure function of
the parameters, the seed, the numbers of the members and the rows in order, whatever the cuts
between calls and the number of threads; and that Ctrl-C is raised between two pieces of rows, or
amid a birth, where the forest is whole (:mod:`dmondrian.ensemble.held_interrupts`).

Shapes: n rows, d features, k outputs (K classes, or mean and variance), T members, G inputs of a
member's mixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Self

import numpy as np

from dmondrian.boosting.boosted_set import BoostedSet
from dmondrian.boosting.boosted_stream import (
    AS_THEY_CAME,
    CLIPPED,
    ROUNDS_FOUND,
    BoostedStream,
)
from dmondrian.drift.age_weights import cut_at_marks, exponents_of
from dmondrian.drift.drift_state import drift_state, load_state, read_header
from dmondrian.drift.guard import Guard, Shares, concatenate_shares, shares_of
from dmondrian.drift.label_blocks import LabelBlocks
from dmondrian.drift.label_policies import label_policies_of
from dmondrian.drift.member import Ages, Member
from dmondrian.drift.scaled_trees import ScaledTrees
from dmondrian.drift.stored_rows import kept_apart, stored_apart
from dmondrian.drift.tree_forecasts import forecast, forecast_and_learn, frozen_for_forecasts
from dmondrian.drift.waiting_rows import check_learned
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.held_interrupts import interrupts_held
from dmondrian.ensemble.rows.labelled_rows import LabelledRows
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.settings.numeric_limits import check_targets, check_weights
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.sums.exact_sums import KNOWN, units
from dmondrian.ensemble.threads import Turns, run_threads
from dmondrian.errors import ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.forest.state import FieldsOfTrees
from dmondrian.joint_fit.fit import RowsToLearn
from dmondrian.tree import nodes
from dmondrian.tree.sparse_rows import SparseRows

_MOST_ROWS, _LEAST_ROWS, _MOST_NUMBERS = 1024, 32, 2**20  # of a piece: rows, inputs of a member
_NONE = np.empty(0)


class Forecast(NamedTuple):
    """What members forecast of rows."""

    shares: Shares
    of_members: np.ndarray  # float64 [T, n, K]


class _Born(NamedTuple):
    """A boosted set, and scaled trees, that replace those before once trees learned some rows."""

    boosted: BoostedStream  # with the new set
    scaled: Forest | None  # None where no scaled trees are born


class _Step(NamedTuple):
    """Rows of one block that are forecast and learned, or wait, at once."""

    rows: slice
    ends_before: bool  # whether the block before ends with the first of them
    ends_with: bool  # whether their own block ends with the last of them
    is_mark: bool  # whether weights of ages are noted after them


class Members(Forest):
    """Members that follow a stream, without the guard of their forest.

    Parameters
    ----------
    parameters : ForestParameters
        Of a forest that ``follows_stream``.
    numbers : iterable of int
        Of the members, distinct, >= 0.
    trees : list of Tree, optional
        The permanent ones, as an ensemble's.

    Attributes
    ----------
    members : list of Member
    position : int
        Rows of positive weight that trees have learned.
    waiting : LabelledRows
        Rows that came after those.
    blocks : LabelBlocks
        Of all rows that came.
    guard : Guard or None
        Of a whole forest.
    boosted : BoostedStream or None
        Boosted sets that all members mix, where the forest has such.
    scaled : ScaledTrees or None
        Of the members, where the forest has such.
    labels_are_known : bool
        Whether the labels of all rows that came are known when rows are predicted, as of a run or
        after ``fit``; see :meth:`caught_up`.
    exponents_at_marks : dict of int to float64 [T, G]
        By the number of rows learned at marks of the last call, exponents of each member's inputs.
    """

    guard: Guard | None = None

    def __init__(
        self,
        parameters: ForestParameters,
        numbers: Iterable[int],
        trees: list[nodes.Tree] | None = None,
    ) -> None:
        super().__init__(parameters, numbers, trees=trees)
        settings = parameters.following
        self.ages, self.blocks = Ages(settings.first, settings.last), LabelBlocks(settings)
        self.position = 0
        self.label_policies = label_policies_of(parameters)
        self._monotone = np.flatnonzero(parameters.monotone)
        self.members = [
            Member(parameters, number, self.ages, self.blocks.delay)
            for number in self.tree_numbers.tolist()
        ]
        self.waiting = self._no_rows()
        self.boosted: BoostedStream | None = None
        if settings.boosted:
            earlier_fitting = AS_THEY_CAME if parameters.n_classes else CLIPPED
            fitting = ROUNDS_FOUND if settings.finds_rounds else earlier_fitting
            self.boosted = self.stream_of_sets(fitting)
        self.scaled: ScaledTrees | None = None
        if settings.scaled:
            self.scaled = ScaledTrees(parameters, self.tree_numbers.tolist())
        self.exponents_at_marks: dict[int, np.ndarray] = {}
        self.labels_are_known = False
        self._predicting_copy: Any = None  # see `caught_up`

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied and pickled as the state, and whether it is complete."""
        return _made_again, (type(self), self.state(), self.labels_are_known)

    def state(self, copy: bool = True) -> tuple[dict[str, Any], list[dict[str, np.ndarray]]]:
        """Return (JSON-able header, one dict of arrays per tree): always copies."""
        return drift_state(super().state(), self)

    def stored(
        self,
    ) -> tuple[dict[str, Any], Iterable[Mapping[str, np.ndarray | SparseRows]], list[int] | None]:
        """Return the state as checkpoints hold it."""
        header, trees = stored_apart(*self.state(), self.waiting)
        if self.boosted is not None:
            header, trees = kept_apart(header, trees, self.boosted.kept_rows())
        return header, trees, None

    @classmethod
    def from_state(
        cls,
        header: dict[str, Any],
        trees: FieldsOfTrees,
        other_shard: Forest | None = None,
        with_boxes: bool = True,
    ) -> Members:
        """Return the members of a :meth:`state`, every index and value checked.

        Raises
        ------
        CorruptError
            If the state is not one that such a forest can have.
        """
        parts = read_header(header, list(trees))
        permanent = parts.permanent_header, parts.permanent
        made: Any = super().from_state(*permanent, other_shard, with_boxes)
        load_state(made, parts)
        return made

    @classmethod
    def join(cls, forests: Any) -> Members:
        """Return members of several shards, which learned the same rows, as one."""
        made: Any = super().join(forests)
        first = forests[0]
        rows = {(forest.position, len(forest.waiting.y), forest.blocks.clock) for forest in forests}
        boosted = {None if forest.boosted is None else forest.boosted.digest for forest in forests}
        if len(rows) > 1 or len(boosted) > 1:
            raise ParameterError(
                "members that learned other rows cannot be joined: expected the shards of one "
                "checkpoint"
            )
        members = [member for forest in forests for member in forest.members]
        made.members = sorted(members, key=lambda member: member.number)
        made.position, made.waiting, made.boosted = first.position, first.waiting, first.boosted
        made.blocks = first.blocks
        if made.scaled is not None:
            made.scaled.join([forest.scaled for forest in forests])
        return made

    def predict_sums(self, *args: Any, **named: Any) -> Any:
        """Refuse: what members forecast is no sum over trees."""
        raise ParameterError(
            'what a forest with drift="follow" mixes are no sums over trees: ask predict or '
            "predict_proba of the estimator"
        )

    @property
    def supports_single_row(self) -> bool:
        """False: what members learn of a row is learned together."""
        return False

    def stream_of_sets(self, fitting: int) -> BoostedStream:
        """Return boosted sets of a stream without rows, of a ``fitting`` that it knows."""
        parameters = self.parameters
        return BoostedStream(
            parameters.n_features,
            parameters.n_classes,
            parameters.seed,
            fitting,
            parameters.monotone,
        )

    def _no_rows(self) -> LabelledRows:
        return LabelledRows(np.empty((0, self.parameters.n_features), np.float32), _NONE, _NONE)

    @property
    def waiting_weight(self) -> float:
        """Weight of the rows that wait for their labels."""
        return float(self.waiting.w.sum())

    @property
    def rows_so_far(self) -> dict[str, int]:
        """Rows of positive weight that came: "learned" by trees, and "waiting" for their labels."""
        return {"learned": self.position, "waiting": len(self.waiting.y)}

    @property
    def covering_trees(self) -> list[nodes.Tree]:
        """The trees that are alive around the permanent ones."""
        return [
            tree
            for member in self.members
            for tree, birth in zip(member.trees, member.births.tolist(), strict=True)
            if birth >= 0
        ]

    @property
    def boosted_set(self) -> BoostedSet | None:
        """The boosted set that answers now, where there is one."""
        return None if self.boosted is None else self.boosted.newest

    @property
    def scaled_forest(self) -> Forest | None:
        """The scaled trees of all members, where there are some now."""
        return None if self.scaled is None else self.scaled.forest

    @property
    def scaled_trees(self) -> list[nodes.Tree]:
        """The scaled trees that are alive."""
        forest = self.scaled_forest
        return [] if forest is None else forest.store.trees

    @property
    def n_nodes(self) -> int:
        """Nodes in use over all trees."""
        covering = sum(int(tree.head_i[nodes.N_NODES]) for tree in self.covering_trees)
        scaled = sum(int(tree.head_i[nodes.N_NODES]) for tree in self.scaled_trees)
        return super().n_nodes + covering + scaled

    @property
    def n_bytes(self) -> int:
        """Bytes of memory held by all trees, those of the copy of :meth:`caught_up` included."""
        beside = sum(
            0 if part is None else part.n_bytes for part in (self.scaled, self._predicting_copy)
        )
        return super().n_bytes + sum(member.n_bytes for member in self.members) + beside

    def share(self, X: np.ndarray | PreparedRows, n_threads: int = 1) -> Shares:
        """Return what members forecast of rows float32 [n, d], by kind.

        Rows that wait for their block are not learned yet; :meth:`caught_up` has learned them.

        Raises
        ------
        ParameterError
            If no row was learned.
        """
        return self.share_each(X, n_threads).shares

    def share_each(self, X: np.ndarray | PreparedRows, n_threads: int = 1) -> Forecast:
        """Return what :meth:`share` does, and what each member forecast."""
        self.store.check_not_torn()
        check_learned(self.rows_so_far, self.parameters.following)
        self.predictor.check_learned()
        rows = self.prepare(X)
        self._expect(len(rows))
        none = np.empty((len(self.members), 0, self.label_policies.n_outputs))
        parts = [self._forecast(rows[part], n_threads) for part in self._pieces(len(rows))]
        of_members = np.concatenate([none, *(part[1] for part in parts)], axis=1)
        return Forecast(self._joined([self._shares(*part) for part in parts]), of_members)

    def share_and_learn(
        self,
        X: np.ndarray | PreparedRows,
        y: np.ndarray,
        w: np.ndarray | None = None,
        n_threads: int = 1,
        times: np.ndarray | None = None,
    ) -> Shares:
        """Learn rows in order; return the shares of the forecasts that were made of them before.

        Parameters
        ----------
        X, y, w, n_threads
            As in :meth:`dmondrian.ensemble.ensemble.Ensemble.update`. Rows of weight 0 are left out
            of the shares.
        times : float64 [n], optional
            Of the rows, in microseconds or numbers, where labels come by time.
        """
        self.check_sizes(y, w)
        self.check_times(w, times, len(y))
        return self._joined(list(self._follow((X, y, w), n_threads, nullcontext, times)))

    def update(
        self,
        X: np.ndarray | PreparedRows,
        y: np.ndarray,
        w: np.ndarray | None = None,
        n_threads: int = 1,
        turns: Turns | None = None,
        times: np.ndarray | None = None,
        of: tuple[int, int] | None = None,
    ) -> None:
        """Learn rows in order; see :meth:`dmondrian.forest.forest.Forest.update`."""
        self.check_times(w, times, len(y))
        super().update(X, y, w, n_threads, turns, times, of)

    def check_times(self, w: np.ndarray | None, times: np.ndarray | None, n: int) -> None:
        """Refuse rows without times where labels come by time, or with some where they do not."""
        if w is not None:
            kept = w > 0.0
            n, times = int(np.count_nonzero(kept)), None if times is None else times[kept]
        self.blocks.check(times, n)

    def check_sizes(self, y: np.ndarray, w: np.ndarray | None) -> None:
        """Refuse rows whose weights doubles cannot sum up, those of rows that wait included."""
        total = check_weights(w, len(y), self.total_weight + self.waiting_weight)
        if self.label_policies.is_regression:
            for known in (y, self.waiting.y):
                check_targets(known, total)

    def _update(
        self,
        rows: RowsToLearn,
        n_threads: int,
        alone: Callable[[], AbstractContextManager[None]],
        times: np.ndarray | None = None,
    ) -> None:
        for _ in self._follow(rows, n_threads, alone, times):
            pass

    def _follow(
        self,
        rows: RowsToLearn,
        n_threads: int,
        alone: Callable[[], AbstractContextManager[None]],
        times: np.ndarray | None = None,
    ) -> Iterator[Any]:
        """Learn rows X, y, w, piece by piece; yield what :meth:`_finish_shares` returns of each."""
        X, y, w = rows[0], np.asarray(rows[1], np.float64), rows[2]
        ends, self.n_done = np.arange(1, len(y) + 1), 0
        if w is not None and not (kept := w > 0.0).all():
            X, y, w, ends = X[kept], y[kept], w[kept], ends[kept]
            times = None if times is None else times[kept]
        weights, prepared = _NONE if w is None else np.asarray(w, np.float64), self.prepare(X)
        number, self.exponents_at_marks = self.position + len(self.waiting.y), {}
        for step in self._steps(number, len(y), times):
            part = step.rows
            piece = prepared[part]
            labels = y[part], weights[part] if len(weights) else weights
            own_times = None if times is None else times[part]
            born = self._birth_of(step, piece, *labels, n_threads)
            with alone(), interrupts_held():
                self.labels_are_known, self._predicting_copy = False, None
                try:
                    answer = self._take_step(step, born, piece, *labels, own_times, n_threads)
                    if step.is_mark:
                        self.exponents_at_marks[number + part.stop] = self.input_exponents()
                    self.n_done = int(ends[part.stop - 1])
                except BaseException:
                    self.store.is_torn = True
                    raise
            yield answer

    @property
    def _waits(self) -> bool:
        """Whether rows wait for the labels of a block."""
        return self.blocks.is_timed or self.blocks.delay > 1

    def _steps(self, number: int, n: int, times: np.ndarray | None) -> Iterator[_Step]:
        """Yield the steps in which ``n`` rows are learned; ``number`` is that of row 0."""
        for block, is_after_end, is_end in self.blocks.cut(number, n, times):
            for cut, is_mark in cut_at_marks(number + block.start, block.stop - block.start):
                first, n_rows = block.start + cut.start, cut.stop - cut.start
                for piece in self._pieces(n_rows, number + first):
                    part = slice(first + piece.start, first + piece.stop)
                    ends_before = is_after_end and part.start == block.start
                    ends_with = self._waits and is_end and part.stop == block.stop
                    yield _Step(part, ends_before, ends_with, is_mark and piece.stop == n_rows)

    def _birth_of(
        self, step: _Step, X: PreparedRows, y: np.ndarray, w: np.ndarray, n_threads: int
    ) -> _Born | None:
        """Return what is born with the rows that trees learn in a step; None if they learn none.

        Blocks that end before a step are of time, and these never end with one.
        """
        if step.ends_before:
            return self._born_with(self.waiting, n_threads)
        if step.ends_with:
            return self._born_with(self._waiting_with(X, y, w), n_threads)
        return None if self._waits else self._born_with(LabelledRows(X.values, y, w), n_threads)

    def _take_step(
        self,
        step: _Step,
        born: _Born | None,
        X: PreparedRows,
        y: np.ndarray,
        w: np.ndarray,
        times: np.ndarray | None,
        n_threads: int,
    ) -> Any:
        """Forecast and learn the rows of a step; return what :meth:`_finish_shares` does."""
        if not self._waits:
            return self._learn_at_once(X, y, w, born, n_threads)
        if step.ends_before:
            self._end_block(born, n_threads)
        answer = self._wait(X, y, w, n_threads, times)
        if step.ends_with:
            self._end_block(born, n_threads)
        return answer

    def input_exponents(self) -> np.ndarray:
        """Return the exponents of each member's inputs, float64 [T, G]."""
        return np.stack([exponents_of(member.mixer) for member in self.members])

    def _finish_shares(
        self, shares: Shares, y: np.ndarray, w: np.ndarray, times: np.ndarray | None = None
    ) -> Any:
        """Return what learning returns of rows: here their shares; see ``DriftForest``."""
        return shares

    def _pieces(self, n: int, number: int | None = None) -> Iterator[slice]:
        """Yield slices of ``n`` rows, short enough that a member's inputs stay in the cache.

        With ``number``, that of the first row in the stream, one boosted set answers all rows of a
        slice.
        """
        width = (1 + self.ages.n_octaves) * self.label_policies.n_outputs
        size = max(_LEAST_ROWS, min(_MOST_ROWS, _MOST_NUMBERS // width))
        first = 0
        while first < n:
            stop = min(first + size, n)
            if self.boosted is not None and number is not None:
                stop = min(stop, self.boosted.next_birth(number + first) - number)
            yield slice(first, stop)
            first = stop

    def _born_with(self, rows: LabelledRows, n_threads: int) -> _Born | None:
        """Return what is born with rows that trees are about to learn, None for nothing.

        Nothing is changed: for lack of memory this may fail, and interrupts may end it.
        """
        boosted = None if self.boosted is None else self.boosted.born_with(*rows)
        if boosted is None:  # scaled trees are born at rows where a set is born, too
            return None
        scaled: Forest | None = None
        if self.scaled is not None:
            stop = self.position + len(rows.y)

            def kept_rows() -> LabelledRows:
                kept = boosted.kept_rows()
                return kept._replace(X=self._without_monotone(kept.X))

            scaled = self.scaled.grown_after(self.position, stop, kept_rows, n_threads)
        return _Born(boosted, scaled)

    def _learn_at_once(
        self, X: PreparedRows, y: np.ndarray, w: np.ndarray, born: _Born | None, n_threads: int
    ) -> Any:
        """Forecast and learn row after row."""
        values, X = X.values, self.for_trees(X)
        permanent, unit = forecast_and_learn(self, self.label_policies, X, y, w, n_threads)
        of_members = np.empty(permanent.shape)
        boosted = None if self.boosted is None else self.boosted.answer(values)
        scaled = None
        if self.scaled is not None:
            scaled = self.scaled.forecast_and_learn(X.values, y, w, n_threads)

        def learn(i: int) -> None:
            member = self.members[i]
            inputs = np.empty((member.n_inputs, *permanent.shape[1:]))
            inputs[0] = permanent[i]
            member.learn(inputs, X.values, y, w, self.position)
            self._add_others(inputs, None if scaled is None else scaled[i], boosted)
            of_members[i] = member.mixer.mix_and_step(inputs, y, w)

        run_threads(learn, range(len(self.members)), n_threads)
        answer = self._finish_shares(self._shares(permanent, of_members, unit), y, w)
        self.position += len(y)
        self._keep_rows(values, y, w, born)
        return answer

    def for_trees(self, X: PreparedRows) -> PreparedRows:
        """Return rows as all trees see them but those of boosted sets.

        What these forecast of a row does not depend on columns with which forecasts are to rise or
        fall: a column that is 0 in all rows is never split. So the mixture rises or falls as
        boosted sets do.
        """
        if not len(self._monotone):
            return X
        return self.predictor.preparation.as_prepared(self._without_monotone(X.values))

    def _without_monotone(self, X: np.ndarray) -> np.ndarray:
        """Return rows float32 [n, d] with 0 in the columns that boosted sets alone see."""
        if not len(self._monotone):
            return X
        rows = X.copy()
        rows[:, self._monotone] = 0.0
        return rows

    def _add_others(
        self, inputs: np.ndarray, scaled: np.ndarray | None, boosted: np.ndarray | None
    ) -> None:
        """Write what scaled trees and the boosted set forecast behind a member's other inputs.

        Until the first are born the permanent tree takes their place. Of a number a set answers the
        mean; its variance is the permanent tree's.
        """
        if self.scaled is not None:
            inputs[-2] = inputs[0] if scaled is None else scaled
        if self.boosted is not None:
            inputs[-1] = inputs[0]
            if boosted is not None:
                inputs[-1, :, : boosted.shape[1]] = boosted

    def _keep_rows(self, X: np.ndarray, y: np.ndarray, w: np.ndarray, born: _Born | None) -> None:
        """Keep the rows just learned; put what was born with them in place."""
        if born is None:
            if self.boosted is not None:
                self.boosted.learn(X, y, w)
            return
        self.boosted = born.boosted
        if self.scaled is not None and born.scaled is not None:
            self.scaled.forest = born.scaled

    def _waiting_with(self, X: PreparedRows, y: np.ndarray, w: np.ndarray) -> LabelledRows:
        """Return the rows that wait, and others behind them."""
        more = LabelledRows(X.values, y, w if len(w) else np.ones(len(y)))
        return self.waiting.and_then(more)

    def _wait(
        self,
        X: PreparedRows,
        y: np.ndarray,
        w: np.ndarray,
        n_threads: int,
        times: np.ndarray | None,
    ) -> Any:
        """Forecast rows of a block, by the state before it; let them wait for its end."""
        self._expect(len(X))
        answer = self._finish_shares(
            self._shares(*self._forecast(X, n_threads, (y, w))), y, w, times
        )
        self.blocks.count(times)
        self.waiting = self._waiting_with(X, y, w)
        return answer

    def caught_up(self, n_threads: int = 1) -> Self:
        """Return the members that predict: a copy that has learned the rows that wait, or these.

        A copy where ``labels_are_known`` and some rows were learned before.
        """
        self.store.check_not_torn()
        if not (self.labels_are_known and self.position and len(self.waiting.y)):
            return self
        if self._predicting_copy is None:
            copy: Any = type(self).from_state(*self.state())
            copy.learn_waiting(n_threads)
            self._predicting_copy = copy
        copied: Self = self._predicting_copy
        return copied

    def learn_waiting(self, n_threads: int = 1) -> None:
        """Let trees learn the rows that wait; use the weights of mixtures that know them.

        Amid a block this is for members that will predict, and learn no more. Members that have
        learned nothing stay as they are.
        """
        if self.position:
            self._learn_block(self._born_with(self.waiting, n_threads), n_threads)

    def _end_block(self, born: _Born | None, n_threads: int) -> None:
        """Let trees learn the rows of a block; use the weights of mixtures that know them."""
        self._learn_block(born, n_threads)
        self.blocks.end_block()
        if self.blocks.is_timed:
            for member in self.members:
                member.mixer.set_delay(self.blocks.delay)

    def _learn_block(self, born: _Born | None, n_threads: int) -> None:
        rows, self.waiting = self.waiting, self._no_rows()
        whole = self.predictor.preparation.as_prepared(rows.X)
        for part in self._pieces(len(rows.y)):
            self._learn_trees(whole[part], rows.y[part], rows.w[part], n_threads)
        # All at once: of the sets born in a block the last answers.
        self._keep_rows(whole.values, rows.y, rows.w, born)
        for member in self.members:
            member.mixer.end_block()

    def _learn_trees(self, X: PreparedRows, y: np.ndarray, w: np.ndarray, n_threads: int) -> None:
        """Let trees learn rows, and no mixture."""
        X = self.for_trees(X)
        Ensemble.update(self, X, y, w, n_threads)

        def learn(i: int) -> None:
            member = self.members[i]
            inputs = np.empty((member.n_inputs, len(y), self.label_policies.n_outputs))
            inputs[0] = 0.0
            member.learn(inputs, X.values, y, w, self.position)

        run_threads(learn, range(len(self.members)), n_threads)
        if self.scaled is not None:
            self.scaled.learn(X.values, y, w, n_threads)
        self.position += len(y)

    def freeze(self, n_threads: int = 1) -> None:
        """Freeze the trees that predict now, for few forecasts; many do so by themselves."""
        forest = self.caught_up(n_threads)
        if forest.position:
            for ensemble in (forest, forest.scaled_forest):
                if ensemble is not None:
                    frozen_for_forecasts(ensemble)
            run_threads(
                lambda i: forest.members[i].frozen_answering_trees(forest.position),
                range(len(forest.members)),
                n_threads,
            )

    def _expect(self, n_rows: int) -> None:
        """Count rows that trees will be asked about, so that they are frozen where it pays."""
        for ensemble in (self, self.scaled_forest):
            if ensemble is not None:
                ensemble.predictor.frozen_cache.expect(n_rows)
        for member in self.members:
            member.expect(n_rows)

    def _forecast(
        self,
        X: PreparedRows,
        n_threads: int,
        labels: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return what permanent trees and members forecast, float64 [T, n, k] each, and units.

        Mixers then take steps to the labels and weights, where these are given.
        """
        shape = len(self.members), len(X), self.label_policies.n_outputs
        permanent, of_members = np.full(shape, self.label_policies.unknown), np.empty(shape)
        unit = np.zeros((len(X), 2)) if self.label_policies.is_regression else None
        boosted = None if self.boosted is None else self.boosted.answer(X.values)
        X = self.for_trees(X)
        if self.position:
            permanent[:] = forecast(self, self.label_policies, X)
            if unit is not None:
                tree = self.store.trees[0]
                root = tree.d[tree.head_i[nodes.ROOT], nodes.STAT : nodes.STAT + KNOWN]
                unit[:] = units(root[None], self.store.origin)

        scaled = None if self.scaled is None else self.scaled.forecast(X.values)

        def ask(i: int) -> None:
            member = self.members[i]
            inputs = np.empty((member.n_inputs, *shape[1:]))
            inputs[0] = permanent[i]
            member.forecast(inputs, X.values, self.position)
            inputs[1 : 1 + self.ages.n_younger_than(self.blocks.delay)] = inputs[0]
            self._add_others(inputs, None if scaled is None else scaled[i], boosted)
            mixer = member.mixer
            of_members[i] = (
                mixer.mix(inputs) if labels is None else mixer.mix_and_step(inputs, *labels)
            )

        run_threads(ask, range(len(self.members)), n_threads)
        return permanent, of_members, unit

    def _shares(
        self, permanent: np.ndarray, of_members: np.ndarray, unit: np.ndarray | None
    ) -> Shares:
        return shares_of(self.tree_numbers.tolist(), permanent, of_members, unit)

    def _joined(self, parts: list[Shares]) -> Shares:
        """Return shares of rows that follow each other as one; of none where there is none."""
        none = np.empty((len(self.members), 0, self.label_policies.n_outputs))
        unit = np.empty((0, 2)) if self.label_policies.is_regression else None
        return concatenate_shares([self._shares(none, none, unit), *parts])


def _made_again(kind: type[Members], state: tuple[Any, Any], labels_are_known: bool) -> Members:
    """Return members of a state."""
    made = kind.from_state(*state)
    made.labels_are_known = labels_are_known
    return made
