"""Trees by number, fed with one stream of rows.

Relies on the kernels of :mod:`dmondrian.tree.loops`. Promises that the trees are a pure
function of the parameters, their numbers and the rows in order: neither the cuts between
calls nor the number of threads changes a byte.

Shapes: n rows, d features, K classes, k outputs (K, or 1 for regression), T trees, L lifetimes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import Any

import numpy as np

from dmondrian._numba.mode import uses
from dmondrian.ensemble.predict import Predicting
from dmondrian.ensemble.predictor.predictor import Frozen
from dmondrian.ensemble.settings.fringe_settings import LARGEST_POOL
from dmondrian.ensemble.settings.numeric_limits import check_range, check_targets, check_weights
from dmondrian.ensemble.settings.parameters import ForestParameters, policies
from dmondrian.ensemble.single_row import ROWS_UNASKED, Answers, Lesson, Place
from dmondrian.ensemble.sums.exact_sums import KNOWN, WORDS, units, whole_moments, whole_shares
from dmondrian.ensemble.threads import run_threads
from dmondrian.errors import ParameterError
from dmondrian.tree import nodes
from dmondrian.tree.address_table import table_of
from dmondrian.tree.box_encoding import Rows, all_numeric, boxless, read_only
from dmondrian.tree.box_encoding_choice import fitted, suited, without_boxes
from dmondrian.tree.loops import Asked, Silent, update
from dmondrian.tree.memory import next_capacity

_FIRST_CAPACITY, _FIRST_POOL = 64, 1024  # nodes; doubles
_EARLY_ROOM = 1024  # nodes that a tree gets room for at once where as many rows are to come
_MOST_RESERVED = 2**23  # bytes
_MOST_TIMES = 64  # as many nodes as there are, for rows that may be all there are
_SPARE = 16  # part of the nodes expected that is room to spare; below _FIRST_CAPACITY
FEW = 64  # rows that all trees learn in one call, which no interrupt breaks off
_FEW_ROWS, _SMALL = 1e15, 1e100  # weight of rows, and a label, that need no closer look
_MAX_CAPACITY = 2**31 - 2  # node ids are int32
_NO_ROWS, _NONE_1D = np.empty(0, np.int64), np.empty(0)


class Ensemble(Predicting):
    """Trees with consecutive or chosen numbers, all fed with one stream of rows.

    Threads may ask it at the same time, except for :meth:`mean_of_row`, but not while it learns:
    estimators see to that (:class:`dmondrian.ensemble.threads.Turns`).

    Parameters
    ----------
    parameters : ForestParameters
    tree_numbers : iterable of int
        Distinct, >= 0; a tree's draws depend on its number, not on its neighbours.

    Attributes
    ----------
    n_clipped : int
        Rows that this object learned and that ``clip`` moved; not part of the state.
    """

    _to_follow = 0  # rows of the same call that are learned after those that are learned now
    _are_much: bool | None = None  # what :meth:`are_much` says of all rows of the call

    def __init__(self, parameters: ForestParameters, tree_numbers: Iterable[int]) -> None:
        numbers = np.array(sorted(int(t) for t in tree_numbers), np.int64)
        if len(numbers) and (numbers[0] < 0 or (np.diff(numbers) == 0).any()):
            raise ParameterError(f"tree numbers should be distinct and >= 0, got {numbers}")
        self.parameters = parameters
        self.tree_numbers = numbers
        self.policies = policies(parameters)
        scales = parameters.feature_scales
        self._scales = None if scales is None else np.array(scales, np.float32)
        units = parameters.feature_units
        self._units = None if units is None else read_only(np.array(units, np.float64))
        self._is_torn = self._is_reserved = False
        self._is_arranged = False  # whether the boxes' columns were chosen
        self._gathered, self.frozen = None, Frozen()
        self._chosen: np.ndarray | None = None
        self.tabled: tuple[list[nodes.Tree], np.ndarray] = [], table_of([])
        self._answers: Answers | None = None
        self._lesson: Lesson | None = None
        self.n_clipped = 0
        columns = (all_numeric if parameters.has_boxes else boxless)(parameters.n_features)
        self.trees = [
            nodes.make_tree(columns, parameters.n_stats, _FIRST_CAPACITY) for _ in numbers
        ]

    def reserve(self, n_nodes: int) -> None:
        """Give empty trees room for so many nodes, or for 8 MiB of them, kept if they stay out."""
        self._is_reserved = True
        for t, tree in enumerate(self.placed):
            width = sum(array[:1].nbytes for array in (tree.i, tree.box, tree.bits))
            most = min(_MOST_RESERVED // width, self.parameters.max_nodes or _MAX_CAPACITY)
            if not self._used(t) and len(tree.i) < min(n_nodes, most):
                self.placed[t] = nodes.make_tree(tree.columns, tree.n_stats, min(n_nodes, most))

    def update(
        self, X: np.ndarray, y: np.ndarray, w: np.ndarray | None = None, n_threads: int = 1
    ) -> None:
        """Learn rows in order.

        Parameters
        ----------
        X : float32 [n, d], C-contiguous
        y : float64 [n]
            Class index, or label.
        w : float64 [n], optional
            Weights >= 0; rows of weight 0 are passed over.
        n_threads : int
            Threads over trees.
        """
        self.ask_and_learn(X, y, w, n_threads, _NO_ROWS, _NONE_1D, None)

    def mean_of_row(self, X: np.ndarray) -> np.ndarray | None:
        """Return the mean prediction of one row; None where :meth:`predict_sums` has to be asked.

        One thread at a time: the row is copied to a place that calls share.

        Parameters
        ----------
        X : [1, d]
            Of any type; rows that are not finite float32 or float64 are left to others.

        Returns
        -------
        float64 [1, k], to the last bit that of :meth:`predict_sums`, or None
        """
        answers = self._answers
        if answers is None or not answers.holds(self):
            answers = self._answers = Answers(self) if Answers.can_be_of(self) else None
        return None if answers is None or self._is_torn else answers.mean(self, X)

    def learn_row(self, X: np.ndarray, y: float) -> bool:
        """Learn one row of weight one, or return False where :meth:`update` has to.

        Parameters
        ----------
        X : [1, d]
            As in :meth:`mean_of_row`.
        y : float
            Class index, or label.
        """
        if abs(y) > _SMALL:
            return False
        lesson = self._lesson
        if lesson is None or not lesson.n_free or not lesson.holds(self):
            lesson = self._new_lesson()
        if lesson is None or self._is_torn or not lesson.begin(X, y):
            return False
        later = self._after_row(lesson.place, y) if lesson.n_given == 1 else None
        self._forget()
        self._is_torn = True
        while lesson.go_on():
            self._make_rooms(range(len(self.placed)), lesson.reached, 1, lesson.table)
        lesson.n_free -= 1
        if later is not None:
            vars(self).update(later)
        self._is_torn = False
        return True

    def _new_lesson(self) -> Lesson | None:
        """Return how the next rows are learned one by one, if they can be."""
        n_free, lesson = self._rows_free(), self._lesson
        if not n_free or self._is_torn:
            return None
        if lesson is not None and self._may_move:
            with self._tearing():
                self._move_for_rows_alone(lesson.n_given - lesson.n_free)
        if lesson is None or not lesson.holds(self):
            lesson = self._lesson = Lesson(self)
        lesson.go_on_for(n_free)
        return lesson

    def _after_row(self, place: Place, y: float) -> dict[str, Any] | None:
        """Return what else will be of this object after one row, by name.

        Where it is anything :meth:`_rows_free` is 1 at most.
        """
        return None

    def move_nodes(self) -> None:
        """Move the nodes of trees along heavy paths now; large trees see to it themselves.

        Nothing but time changes by it; see :mod:`dmondrian.ensemble.node_order`.
        """
        self._check_whole()
        if self._may_move:
            with self._tearing():
                for t in range(len(self.placed)):
                    if self._used(t):
                        self._move(t)

    @contextlib.contextmanager
    def _tearing(self) -> Iterator[None]:
        """Be torn until all is done, and for good if it is not; forget what nodes told."""
        self._forget()
        self._is_torn = True
        yield
        self._is_torn = False

    def answer_and_learn(
        self,
        X: np.ndarray,
        y: np.ndarray,
        w: np.ndarray | None,
        n_threads: int,
        rows: np.ndarray,
        lifetimes: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Learn rows as :meth:`update` does; return what the trees said of some of them.

        Each of ``rows`` (int64 [a], increasing, not the forest's first) is forecast by trees
        that have learned the rows before it and no other, at its lifetime (float64 [a]).

        Returns
        -------
        sums : int64 array of shape (a, k)
            Forecasts summed over trees, as :mod:`dmondrian.ensemble.sums.exact_sums` tells them.
        units : float64 array of shape (a, 2), or (a, 0) of probabilities
            What moments of labels are told in.
        """
        said, tells_labels = self.told_of_samples, self.parameters.gives_label_variance
        sums = np.zeros((len(rows), WORDS if tells_labels else said.n_sums), np.int64)
        told, lock = np.zeros((len(rows), KNOWN if tells_labels else 0)), Lock()

        def add(t: int, answers: np.ndarray, known: np.ndarray) -> None:
            whole = self.whole(t, answers, known)
            with lock:  # in whatever order: whole numbers add up exactly
                sums[:] += whole
                told[:] = known  # equal in all trees

        self.ask_and_learn(X, y, w, n_threads, rows, lifetimes, add)
        return sums, units(told, self.origin) if tells_labels else told

    def ask_and_learn(
        self,
        X: np.ndarray,
        y: np.ndarray,
        w: np.ndarray | None,
        n_threads: int,
        rows: np.ndarray,
        lifetimes: np.ndarray,
        take: Callable[[int, np.ndarray, np.ndarray], None] | None,
    ) -> None:
        """Learn rows as :meth:`update` does; hand over what each tree said of some of them.

        Parameters
        ----------
        X, y, w, n_threads
            As in :meth:`update`.
        rows : int64 [a]
            Rows to forecast, as in :meth:`answer_and_learn`.
        lifetimes : float64 [a] or [T, a]
            At which each is forecast, by all trees alike or by each tree.
        take : callable or None
            Called with the place of a tree, its answers (float64 [a, width], see
            ``told_of_samples``) and the statistics of its root then (float64 [a, 3], or [a, 0] of
            forests that forecast no moments of labels): for each tree once, in any order, from
            any thread. None where no row is asked about.
        """
        self.check_sizes(y, w)
        weights = read_only(_NONE_1D if w is None else w)
        X, n_clipped = self._as_learned(X)
        y = read_only(y)
        said, n_known = self.told_of_samples, KNOWN if self.parameters.gives_label_variance else 0
        is_much = self.are_much(y, w)
        reached = np.zeros(len(self.placed), np.int64)

        def learn(first: int, last: int) -> None:
            if take is None or not len(rows):
                self._learn((first, last), learned, y, weights, reached, Silent(), is_much)
                return
            answers, known = np.empty((len(rows), said.width)), np.empty((len(rows), n_known))
            work, n_answered = np.empty((3, said.width)), np.zeros(1, np.int64)
            own = lifetimes if lifetimes.ndim == 1 else lifetimes[first]
            asked = Asked(rows, own, said.loss, work, answers, known, n_answered)
            self._learn((first, last), learned, y, weights, reached, asked, is_much)
            take(first, answers, known)

        self._check_whole()
        learned = self._arrange(X)
        if self._lesson is not None:
            self._lesson.stop()
        with self._tearing():  # until all trees have learned the same rows
            if len(y) <= FEW and not len(rows):
                learn(0, len(self.placed))
            else:
                run_threads(lambda t: learn(t, t + 1), range(len(self.placed)), n_threads)
        self.n_clipped += n_clipped

    def whole(self, t: int, answers: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Return what tree ``t`` answered, as whole numbers; other trees may be behind."""
        if not self.parameters.gives_label_variance:
            return whole_shares(answers[:, : self.n_outputs])
        return whole_moments(answers, float(self.placed[t].head_f[nodes.OFFSET]), known)

    def are_much(self, y: np.ndarray, w: np.ndarray | None) -> bool:
        """Tell whether rows may be all there are: a few will be followed by others."""
        if self._are_much is not None:
            return self._are_much
        weight = float(len(y) if w is None else w.sum())
        return 2.0 * weight >= self.total_weight and not self._is_reserved

    def give_back(self) -> None:
        """Give back the memory that trees took for nodes to come."""
        self._give_back(range(len(self.placed)), self.table(self.placed))

    def check_sizes(self, y: np.ndarray, w: np.ndarray | None) -> None:
        """Refuse rows whose weights or labels doubles cannot sum up: see ``numeric_limits``."""
        total = check_weights(w, len(y), self.total_weight)
        if not self.parameters.n_classes:
            check_targets(y, total)
            check_range(y, self.parameters.target_range)
            for tree in self.placed[:1]:  # the first label, and the range of labels, if it is kept
                known = tree.head_f[nodes.OFFSET :]
                check_targets(known[np.isfinite(known)], total)

    def _arrange(self, X: np.ndarray) -> Rows:
        """Return rows for the kernels; trees write their boxes so that they can learn them."""
        if not self.placed or not self.parameters.has_boxes or not len(X):
            return without_boxes(X)
        self.placed, rows = (suited if self._is_arranged else fitted)(self.placed, X)
        self._is_arranged = True
        return rows

    def _rows_free(self) -> int:
        """Return how many rows more, with none in between, can be learned one by one.

        None if :meth:`_arrange` has not looked at trees, or labels are too large.
        """
        if not self.placed or not (self._is_arranged or not self.parameters.has_boxes):
            return 0
        known = () if self.parameters.n_classes else self.placed[0].head_f[nodes.OFFSET :].tolist()
        if any(_SMALL < abs(label) < np.inf for label in known):
            return 0
        return int(max(0.0, min(_FEW_ROWS + 1.0 - self.total_weight, ROWS_UNASKED)))

    def _forget(self) -> None:
        """Forget what was found out from all nodes, before they change."""
        self._gathered = self._chosen = None
        if self.frozen.is_begun:
            self.frozen = Frozen()
            if self._answers is not None:
                self._answers.forget()

    def _take(self, other: Ensemble) -> None:
        """Become ``other``."""
        vars(self).update(vars(other))

    def _learn(
        self,
        span: tuple[int, int],
        rows: Rows,
        y: np.ndarray,
        w: np.ndarray,
        reached: np.ndarray,
        asked: Asked | Silent,
        is_much: bool,
    ) -> None:
        """Let the trees of a span learn rows, with more room where they need it."""
        numbers, seed = self.tree_numbers.astype(np.uint64), np.uint64(self.parameters.seed)
        chosen = self.policies.learning if isinstance(asked, Silent) else self.policies
        table = self.table(self.placed)
        columns = self.placed[0].columns if self.placed else all_numeric(self.parameters.n_features)
        while update(
            *chosen, table, columns, seed, numbers, *span, rows, y, w, reached, asked
        ):  # fmt: skip
            weight = float(w.mean()) if len(w) else 1.0
            self._make_rooms(range(*span), reached, len(y), table, weight, is_much)
        if is_much:
            self._give_back(range(*span), table)

    def _give_back(self, span: Iterable[int], table: np.ndarray) -> None:
        for t in span if not self._to_follow else ():
            self.placed[t] = nodes.give_back(self.placed[t])
            self._tell_place(t, table)

    def _tell_place(self, t: int, table: np.ndarray) -> None:
        """Write to the table where tree ``t`` is by now."""
        table[t] = table_of(self.placed[t : t + 1])[0]
        if self.tabled[1] is table:  # else the tree that was outgrown stays in memory
            self.tabled[0][t] = self.placed[t]

    def _make_rooms(
        self,
        span: Iterable[int],
        reached: np.ndarray,
        n: int,
        table: np.ndarray,
        weight: float = 1.0,
        is_much: bool = False,
    ) -> None:
        """Give more room to the trees of a span that have not learned ``n`` rows.

        The mean weight of these is ``weight``; ``is_much`` tells that they may be all there are.
        """
        for t in span:
            if reached[t] < n:
                self._make_room(t, n - int(reached[t]) + self._to_follow, weight, is_much)
                self._tell_place(t, table)

    @property
    def _may_move(self) -> bool:
        """Whether nodes may be moved: nobody knows them by their places."""
        return self.parameters.reorders_nodes and uses("reorder")

    def _make_room(self, t: int, to_come: int, weight: float, is_much: bool) -> None:
        """Give tree ``t`` more room, for ``to_come`` rows or fewer; see :meth:`_make_rooms`."""
        tree = self.placed[t]
        if int(tree.head_i[nodes.N_NODES]) + 2 <= len(tree.i):  # it is the candidates that lack it
            if len(tree.pool) >= LARGEST_POOL:
                raise ParameterError("candidates of a tree take 16 GiB: use a smaller max_fringe")
            room = max(3 * len(tree.pool) // 2, _FIRST_POOL)
            self.placed[t] = nodes.widen_pool(tree, min(room, LARGEST_POOL))
            return
        end = self._move_nodes(t) if self._may_move else _MAX_CAPACITY
        tree = self.placed[t]
        if len(tree.i) >= _MAX_CAPACITY:
            raise ParameterError("a tree reached 2^31 nodes: set max_nodes")
        most = self.parameters.max_nodes or _MAX_CAPACITY
        early = min(len(tree.i) + to_come, _EARLY_ROOM, most)
        n_learned = float(tree.head_f[nodes.TOTAL_WEIGHT]) / (weight or 1.0)
        per_row = min(len(tree.i) / max(n_learned, 1.0), 2.0)
        # Room for fewer nodes per row than so far: most later rows find a leaf that takes them in.
        half, whole = (min(len(tree.i) + int(per_row * m), most) for m in (to_come / 2, to_come))
        room = next_capacity((tree.i, tree.box, tree.bits))
        if is_much:  # what is left of it is given back
            room = min(max(room, min(half, _MOST_TIMES * len(tree.i))), whole + whole // _SPARE)
        room = min(max(room, early, _FIRST_CAPACITY), end, _MAX_CAPACITY)  # an empty tree has none
        self.placed[t] = nodes.resize(tree, room)
