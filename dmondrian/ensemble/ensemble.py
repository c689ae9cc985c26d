"""Trees by number, learning one stream of rows.

An :class:`Ensemble` has a store of trees (:mod:`dmondrian.ensemble.tree_store`) and a predictor of
what they predict (:mod:`dmondrian.ensemble.predict`); here they learn.

Relies on the kernels of :mod:`dmondrian.tree.loops`. Promises that the trees are a pure
function of the parameters, their numbers and the rows in order: neither the cuts between
calls nor the number of threads changes a byte.

Shapes: n rows, d features, K classes, k outputs (K, or 1 for regression), T trees, L lifetimes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock

import numpy as np

from dmondrian.ensemble.lifetime_selection import LifetimePath
from dmondrian.ensemble.predict import Predictor
from dmondrian.ensemble.predictor.predictor_kernels import FrozenTree
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.settings.numeric_limits import check_range, check_targets, check_weights
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.settings.systems import Policies
from dmondrian.ensemble.sums.exact_sums import KNOWN, WORDS, units, whole_moments, whole_shares
from dmondrian.ensemble.sums.prediction_sums import Sums
from dmondrian.ensemble.threads import run_threads
from dmondrian.ensemble.tree_store import TreeStore
from dmondrian.errors import ParameterError
from dmondrian.tree import nodes
from dmondrian.tree.box_encoding import Rows, all_numeric, read_only
from dmondrian.tree.loops import ForecastRequest, NoForecasts, update

FEW = 64  # rows that all trees learn in one call, which no interrupt breaks off
# Rows times trees that one thread learns in one call, too: tens of milliseconds at most. Small
# forests that choose settings would spend some of their time on entering a kernel for each tree.
_MOST_AT_ONCE = 2**16
_NO_ROWS, _NONE_1D = np.empty(0, np.int64), np.empty(0)


class Ensemble:
    """Trees with consecutive or chosen numbers that learn one stream of rows.

    Threads may ask it at the same time, but not while it learns: estimators see to that
    (:class:`dmondrian.ensemble.threads.Turns`).

    Parameters
    ----------
    parameters : ForestParameters
    tree_numbers : iterable of int
        Distinct, >= 0; a tree's draws depend on its number, not on its neighbours.
    trees : list of Tree, optional
        In the order of their numbers, encoded alike; by default trees without rows.

    Attributes
    ----------
    predictor : Predictor
        Parameters, tree numbers and trees, and what they predict.
    n_calls : int
        Calls that learned rows; single rows that a kernel learns directly are not counted.
    n_clipped : int
        Rows that this object learned and that ``clip`` moved; not part of the state.
    """

    def __init__(
        self,
        parameters: ForestParameters,
        tree_numbers: Iterable[int],
        trees: list[nodes.Tree] | None = None,
    ) -> None:
        numbers = np.array(sorted(int(t) for t in tree_numbers), np.int64)
        if len(numbers) and (numbers[0] < 0 or (np.diff(numbers) == 0).any()):
            raise ParameterError(f"tree numbers should be distinct and >= 0, got {numbers}")
        if trees is None:
            store = TreeStore.of_empty_trees(parameters, len(numbers))
        else:
            store = TreeStore(parameters, trees)
        self.predictor = Predictor(parameters, numbers, store)
        self.n_clipped = self.n_calls = 0
        # Of a call that is cut into parts: the rows of later parts, and whether the last row of the
        # call may be the last there is, which only all its rows show.
        self._n_later = 0
        self._may_be_last: bool | None = None

    @property
    def store(self) -> TreeStore:
        """The trees in memory."""
        return self.predictor.store

    @property
    def parameters(self) -> ForestParameters:
        """Parameters of the trees. A later lifetime or selection may be set."""
        return self.predictor.parameters

    @parameters.setter
    def parameters(self, parameters: ForestParameters) -> None:
        self.predictor.parameters = parameters

    @property
    def tree_numbers(self) -> np.ndarray:
        """Numbers of the trees, int64 [T], increasing."""
        return self.predictor.tree_numbers

    @property
    def policies(self) -> Policies:
        """Growth, statistics, loss and rule of the parameters."""
        return self.predictor.policies

    @property
    def trees(self) -> Sequence[nodes.Tree]:
        """The trees, read-only; a node's index is its id.

        Raises
        ------
        ParameterError
            If they have learned different rows.
        """
        self.store.check_not_torn()
        return self.store.trees

    @property
    def n_nodes(self) -> int:
        """Nodes in use over all trees."""
        return self.store.n_nodes

    @property
    def n_bytes(self) -> int:
        """Bytes of memory held by the trees, spare capacity and frozen copies included."""
        return self.store.n_bytes + self.predictor.frozen_cache.n_bytes

    @property
    def total_weight(self) -> float:
        """Weight of the rows learned."""
        return self.store.total_weight

    @property
    def n_outputs(self) -> int:
        """Width of a prediction: classes, or outputs of a cell."""
        return self.parameters.n_outputs

    def update(
        self,
        X: np.ndarray | PreparedRows,
        y: np.ndarray,
        w: np.ndarray | None = None,
        n_threads: int = 1,
    ) -> None:
        """Learn rows in order.

        Parameters
        ----------
        X : float32 [n, d], C-contiguous, or PreparedRows
        y : float64 [n]
            Class index, or label.
        w : float64 [n], optional
            Weights >= 0; rows of weight 0 are passed over.
        n_threads : int
            Threads over trees.
        """
        self.ask_and_learn(X, y, w, n_threads, _NO_ROWS, _NONE_1D, None)

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Mark the trees as torn until the block ends, for good if it fails; drop what was cached.

        What the predictor found out from all nodes is forgotten.
        """
        self.predictor.forget()
        self.store.is_torn = True
        yield
        self.store.is_torn = False

    def prepare(self, X: np.ndarray | PreparedRows) -> PreparedRows:
        """Return rows as trees see them; see :meth:`Preparation.prepare`."""
        return self.predictor.preparation.prepare(X)

    def check_domain(self, X: np.ndarray, names: Sequence[str] | None = None) -> None:
        """Refuse rows outside the cube, where they are not moved to it; name the column."""
        self.predictor.preparation.check_domain(X, names)

    def answer_and_learn(
        self,
        X: np.ndarray | PreparedRows,
        y: np.ndarray,
        w: np.ndarray | None,
        n_threads: int,
        rows: np.ndarray,
        lifetimes: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Learn rows as :meth:`update` does; return the trees' forecasts of some of them.

        Each of ``rows`` (int64 [a], increasing, not the forest's first) is forecast by trees
        that have learned the rows before it and no other, at its lifetime (float64 [a]).

        Returns
        -------
        sums : int64 array of shape (a, k)
            Forecasts summed over trees, as :mod:`dmondrian.ensemble.sums.exact_sums` defines them.
        units : float64 array of shape (a, 2), or (a, 0) of probabilities
            Units of the moments of labels.
        """
        has_moments = self.parameters.gives_label_variance
        n_sums = self.predictor.sample_output.n_sums
        sums = np.zeros((len(rows), WORDS if has_moments else n_sums), np.int64)
        roots, lock = np.zeros((len(rows), KNOWN if has_moments else 0)), Lock()

        def add(t: int, answers: np.ndarray, known: np.ndarray) -> None:
            whole = self.as_whole_numbers(t, answers, known)
            with lock:  # in whatever order: whole numbers add up exactly
                sums[:] += whole
                roots[:] = known  # equal in all trees

        self.ask_and_learn(X, y, w, n_threads, rows, lifetimes, add)
        return sums, units(roots, self.store.origin) if has_moments else roots

    def ask_and_learn(
        self,
        X: np.ndarray | PreparedRows,
        y: np.ndarray,
        w: np.ndarray | None,
        n_threads: int,
        rows: np.ndarray,
        lifetimes: np.ndarray,
        take: Callable[[int, np.ndarray, np.ndarray], None] | None,
    ) -> None:
        """Learn rows as :meth:`update` does; hand over each tree's forecasts of some of them.

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
            ``Predictor.sample_output``) and the statistics of its root then (float64 [a, 3], or
            [a, 0] of forests that forecast no moments of labels): for each tree once, in any
            order, from any thread. None where no row is forecast.
        """
        self.check_sizes(y, w)
        weights = read_only(_NONE_1D if w is None else w)
        # Labels of another type would be kernels of their own.
        prepared, y = self.prepare(X), read_only(np.asarray(y, np.float64))
        output = self.predictor.sample_output
        n_known = KNOWN if self.parameters.gives_label_variance else 0
        may_be_last = self.may_be_last(y, w)
        reached = np.zeros(len(self.store), np.int64)

        def learn(first: int, last: int) -> None:
            span = first, last
            if take is None or not len(rows):
                self._learn(span, encoded, y, weights, reached, NoForecasts(), may_be_last)
                return
            answers, known = np.empty((len(rows), output.width)), np.empty((len(rows), n_known))
            work, n_answered = np.empty((3, output.width)), np.zeros(1, np.int64)
            lifetimes_of_tree = lifetimes if lifetimes.ndim == 1 else lifetimes[first]
            request = ForecastRequest(
                rows, lifetimes_of_tree, output.loss, work, answers, known, n_answered
            )
            self._learn(span, encoded, y, weights, reached, request, may_be_last)
            take(first, answers, known)

        self.store.check_not_torn()
        encoded = self.store.encode(prepared)
        self.n_calls += 1
        with self.changing():  # until all trees have learned the same rows
            is_one_call = n_threads <= 1 and len(y) * len(self.store) <= _MOST_AT_ONCE
            if not len(rows) and (is_one_call or len(y) <= FEW):
                learn(0, len(self.store))
            else:
                run_threads(lambda t: learn(t, t + 1), range(len(self.store)), n_threads)
        self.n_clipped += prepared.n_clipped

    def as_whole_numbers(self, t: int, answers: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Return what tree ``t`` answered, as whole numbers; other trees may be behind."""
        if not self.parameters.gives_label_variance:
            return whole_shares(answers[:, : self.n_outputs])
        origin = float(self.store.trees[t].head_f[nodes.OFFSET])
        return whole_moments(answers, origin, known)

    def may_be_last(self, y: np.ndarray, w: np.ndarray | None) -> bool:
        """Return whether rows may be the last: many beside those before, and no memory reserved."""
        if self._may_be_last is not None:
            return self._may_be_last
        weight = float(len(y) if w is None else w.sum())
        return 2.0 * weight >= self.total_weight and not self.store.is_reserved

    def give_back(self) -> None:
        """Give back the spare capacity of the trees, unless more rows of the call follow."""
        self._trim(range(len(self.store)))

    def _trim(self, span: Iterable[int]) -> None:
        if not self._n_later:
            self.store.trim(span)

    def check_sizes(self, y: np.ndarray, w: np.ndarray | None) -> None:
        """Refuse rows whose weights or labels doubles cannot sum up: see ``numeric_limits``."""
        total = check_weights(w, len(y), self.total_weight)
        if not self.parameters.n_classes:
            check_targets(y, total)
            check_range(y, self.parameters.target_range)
            for tree in self.store.trees[:1]:  # the first label, and their range, if it is kept
                known = tree.head_f[nodes.OFFSET :]
                check_targets(known[np.isfinite(known)], total)

    def _adopt(self, other: Ensemble) -> None:
        """Become another ensemble of the same tree numbers."""
        # No call in between, so no signal handler sees one half.
        self.n_clipped = other.n_clipped
        self.predictor = other.predictor

    def _learn(
        self,
        span: tuple[int, int],
        rows: Rows,
        y: np.ndarray,
        w: np.ndarray,
        reached: np.ndarray,
        request: ForecastRequest | NoForecasts,
        may_be_last: bool,
    ) -> None:
        """Let the trees of a span learn rows, with more capacity where they need it."""
        numbers, seed = self.tree_numbers.astype(np.uint64), np.uint64(self.parameters.seed)
        chosen = self.policies.learning if isinstance(request, NoForecasts) else self.policies
        store = self.store
        columns = store.trees[0].columns if store.trees else all_numeric(self.parameters.n_features)
        while update(
            *chosen, store.addresses, columns, seed, numbers, *span, rows, y, w, reached, request
        ):  # fmt: skip
            weight = float(w.mean()) if len(w) else 1.0
            store.grow(range(*span), reached, len(y), self._n_later, weight, may_be_last)
        if may_be_last:
            self._trim(range(*span))

    def check_learned(self) -> None:
        """Refuse a forest without rows, which has no cell that could answer."""
        self.predictor.check_learned()

    def predict_sums(
        self,
        X: np.ndarray | PreparedRows,
        n_threads: int = 1,
        spread: bool = False,
        distance: bool = False,
        onto: Sums | None = None,
        lifetimes: np.ndarray | None = None,
        labels: bool = False,
    ) -> Sums:
        """Sum the trees' predictions; see :meth:`Predictor.predict_sums`."""
        return self.predictor.predict_sums(X, n_threads, spread, distance, onto, lifetimes, labels)

    def answers(
        self, X: np.ndarray | PreparedRows, chosen: Policies, lifetimes: np.ndarray, width: int
    ) -> np.ndarray:
        """Return each tree's answers, float64 [T, n, L, width]; see :meth:`Predictor.answers`."""
        return self.predictor.answers(X, chosen, lifetimes, width)

    def weighted_depth(self, X: np.ndarray | PreparedRows) -> np.ndarray:
        """Return the mean depth of each row, float64 [n]; see :meth:`Predictor.weighted_depth`."""
        return self.predictor.weighted_depth(X)

    def tree_lifetimes(self) -> np.ndarray:
        """Return the lifetime that each tree predicts at by default, float64 [T, 1]."""
        return self.predictor.tree_lifetimes()

    def lifetime_path(self) -> LifetimePath:
        """Return the risks of trees that choose their lifetimes, and what each chose."""
        return self.predictor.lifetime_path()

    def freeze(self, n_threads: int = 1) -> None:
        """Freeze the trees now, for few predictions; many do so by themselves."""
        self.predictor.freeze(n_threads)

    def frozen_trees(self, n_threads: int = 1) -> list[FrozenTree]:
        """Return the trees frozen at the lifetime that they predict at now."""
        return self.predictor.frozen_trees(n_threads)

    def reserve(self, n_nodes: int) -> None:
        """Preallocate ``n_nodes`` per empty tree, at most 8 MiB; unused capacity is kept."""
        self.store.reserve(n_nodes)
