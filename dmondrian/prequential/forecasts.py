"""Prequential forecasts (test, then train): each row is forecast just before it is learned.

A tree forecasts a row in the state just before it learns it, on one way through its nodes for both.
Trees that learn a batch of rows do so one after the other, so there is no moment at which the whole
forest has learned the rows before one and no other; the sum over trees of their forecasts
then is the forecast of the forest of that moment all the same.

Where that takes more than a way through a tree, rows are forecast earlier
(:mod:`dmondrian.prequential.forecast_lag`).

Relies on :meth:`dmondrian.ensemble.ensemble.Ensemble.ask_and_learn`. Promises that the trees learn
what :meth:`dmondrian.ensemble.ensemble.Ensemble.update` learns, and sums over trees that depend
neither on threads nor on the cut of trees into ensembles; of rows forecast one by one, nor on the
cuts between calls.

Shapes: n rows, a rows that are forecast, T trees, k outputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np

from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.sums import pairwise
from dmondrian.ensemble.sums.exact_sums import KNOWN, WORDS, finest_one, units, whole_shares
from dmondrian.prequential.forecast_lag import LIFETIMES, SLICES, kind_of, slices
from dmondrian.prequential.stream_sample import DENSITY, Sampled
from dmondrian.prequential.stream_sample_kernels import write_hits
from dmondrian.rules.gaussian import GaussianHierarchy
from dmondrian.tree.box_encoding import read_only

_ROWS, _NUMBERS = 16_384, 2**20  # most rows, and answers of all trees, between two looks at answers

Summed = np.ndarray | pairwise.Partial
"""Probabilities as whole numbers (int64 [n, k]), which add up exactly in any order; else floats."""


class Forecasts(NamedTuple):
    """Forecasts of rows, made before they were learned."""

    sums: Summed
    sampled: Sampled | None  # those of the sample that calibrations are fitted to


def forecast_and_learn_all(
    ensemble: Ensemble,
    X: np.ndarray | PreparedRows,
    y: np.ndarray,
    w: np.ndarray | None = None,
    n_threads: int = 1,
    *,
    position: int,
    n_trees: int,
    samples: bool = False,
    dropped: np.ndarray | None = None,
) -> Forecasts:
    """Let an ensemble learn rows in order; return the forecasts made just before.

    Rows before the first of positive weight are answered by no tree: all classes are as likely
    then, and numbers are 0.

    Parameters
    ----------
    ensemble : Ensemble
    X, y, w, n_threads
        As in :meth:`dmondrian.ensemble.ensemble.Ensemble.update`.
    position : int
        Position of the first row in the stream.
    n_trees : int
        Trees of the whole forest, whose sums will be added to these.
    samples : bool
        Also return the sample of :func:`dmondrian.prequential.stream_sample.forecast_and_learn`.
    dropped : int64 array, optional
        As in :func:`dmondrian.prequential.forecast_lag.slices`: rows that were dropped move no end
        of a slice.
    """
    ensemble.check_sizes(y, w)
    ensemble.parameters.check_labels(y)
    X, kind = ensemble.prepare(X), kind_of(ensemble.parameters)
    if kind == SLICES:
        sums = _by_slices(ensemble, X, y, w, n_threads, position, dropped)
        return Forecasts(sums, None)
    may_be_last = ensemble.may_be_last(y, w)
    collector = _Collector(ensemble, y, w, n_trees, samples)
    per_row = max(1, len(ensemble.store) * ensemble.predictor.sample_output.width)
    most = min(_ROWS, max(_NUMBERS // per_row, 1))
    cuts = [(0, len(y))]
    if kind == LIFETIMES:
        cuts = list(slices(position, len(y), dropped))
    for first, last in cuts:
        each = ensemble.tree_lifetimes() if kind == LIFETIMES else None
        for start in range(first, last, most):
            part = slice(start, min(start + most, last))
            part_weights = None if w is None else w[part]
            rows, lifetimes = collector.begin(part, each)
            ensemble.ask_and_learn(
                X[part], y[part], part_weights, n_threads, rows - start, lifetimes, collector.take
            )
            collector.end()
    if may_be_last:
        ensemble.give_back()
    return collector.forecasts()


def sum_forecasts(parts: Sequence[Summed]) -> Summed:
    """Return the sums over the trees of several ensembles of a forest, to the last bit."""
    partial = [part for part in parts if isinstance(part, dict)]
    if partial:
        return pairwise.joined(partial)
    whole = np.zeros_like(parts[0])
    for part in parts:
        whole += part
    return whole


class RunningSum:
    """Sum over the trees of ensembles of a forest that come one after the other.

    To the last bit that of :func:`sum_forecasts`. Whole numbers take the memory of one ensemble's
    sums, not of all; floats that of those that wait for their neighbours.
    """

    def __init__(self) -> None:
        self._whole: Summed | None = None

    def add(self, part: Summed) -> None:
        """Add the sums of an ensemble, which are not changed."""
        if self._whole is None:
            self._whole = part.copy()
        elif isinstance(self._whole, dict):
            assert isinstance(part, dict)  # as all sums of a forest
            pairwise.join(self._whole, part)
        else:
            self._whole += part

    @property
    def whole(self) -> Summed:
        """Sum of all that was added; there was something."""
        assert self._whole is not None  # see above
        return self._whole


def mean_over_trees(whole: Summed, n_trees: int) -> np.ndarray:
    """Return the mean forecast, float64 [n, k], of the sums over all trees of a forest."""
    if isinstance(whole, dict):
        return pairwise.total(whole) / n_trees
    return whole / (n_trees * finest_one(n_trees))


class _Collector:
    """Collects the forecasts of the rows of a call, piece by piece."""

    def __init__(
        self, ensemble: Ensemble, y: np.ndarray, w: np.ndarray | None, n_trees: int, samples: bool
    ) -> None:
        n, parameters = len(y), ensemble.parameters
        self._ensemble, self._lock = ensemble, Lock()
        self._k = k = ensemble.n_outputs
        self._before, hits = np.empty(n), np.empty(n)
        weights = read_only(np.empty(0) if w is None else w)
        write_hits(ensemble.total_weight, weights, DENSITY, self._before, hits)
        self._lives = parameters.lifetimes_at(self._before)
        self._first = int(np.searchsorted(self._before, 0.0, side="right"))  # that trees answer
        self._hits, self._found = hits, np.flatnonzero(hits if samples else np.zeros(0))
        self._samples = samples
        n_summed = WORDS if parameters.gives_label_variance else k
        self._sampled = np.zeros((len(self._found), n_summed), np.int64)
        self._known = np.zeros((len(self._found), KNOWN if parameters.gives_label_variance else 0))
        self._is_whole, self._one = parameters.gives_proba, finest_one(n_trees)
        self._whole = np.zeros((n if self._is_whole else 0, k), np.int64)
        self._whole[: self._first] = len(ensemble.store) * np.rint(self._one / k)
        self._sums = _no_sums(ensemble, 0 if self._is_whole else n)

    def begin(self, part: slice, each: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of a piece that are asked about, and their lifetimes.

        ``each`` float64 [T, 1] are those of trees that choose their own.
        """
        self._part = part
        self._rows = np.arange(max(part.start, self._first), part.stop)
        self._mine = slice(*np.searchsorted(self._found, [part.start, part.stop]))
        T = len(self._ensemble.store)
        self._answers = np.zeros((0 if self._is_whole else T, part.stop - part.start, self._k))
        if each is None:
            return self._rows, self._lives[self._rows]
        return self._rows, np.repeat(each, len(self._rows), axis=1)

    def take(self, t: int, answers: np.ndarray, known: np.ndarray) -> None:
        """Store the answers of a tree, from any thread."""
        at = self._found[self._mine] - self._rows[0]
        sampled = (
            self._ensemble.as_whole_numbers(t, answers[at], known[at]) if self._samples else None
        )
        if self._is_whole:
            whole = whole_shares(answers[:, : self._k], self._one)
        else:
            self._answers[t, self._rows[0] - self._part.start :] = answers[:, : self._k]
        with self._lock:
            if self._is_whole:
                self._whole[self._rows[0] : self._part.stop] += whole
            if sampled is not None:
                self._sampled[self._mine] += sampled
                self._known[self._mine] = known[at]  # equal in all trees

    def end(self) -> None:
        """Add up the answers of a piece."""
        if self._is_whole:
            return
        numbers = self._ensemble.tree_numbers.tolist()
        for key, sums in pairwise.partial_sums(numbers, list(self._answers)).items():
            self._sums[key][self._part] = sums

    def forecasts(self) -> Forecasts:
        """Return all forecasts."""
        summed = self._whole if self._is_whole else self._sums
        if not self._samples:
            return Forecasts(summed, None)
        origin, known = self._ensemble.store.origin, self._known
        of_sums = units(known, origin) if self._ensemble.parameters.gives_label_variance else known
        rows = self._found
        sampled = Sampled(rows, self._before[rows], self._hits[rows], self._sampled, of_sums)
        return Forecasts(summed, sampled)


def _no_sums(ensemble: Ensemble, n: int) -> pairwise.Partial:
    """Return the partial sums of an ensemble's trees for n rows, all 0.

    They are all there for no rows too: rows without a target may have been dropped from a call.
    """
    numbers = ensemble.tree_numbers.tolist()
    keys = pairwise.partial_sums(numbers, [np.empty(0)] * len(numbers))
    return {key: np.zeros((n, ensemble.n_outputs)) for key in keys}


def _by_slices(
    ensemble: Ensemble,
    X: np.ndarray | PreparedRows,
    y: np.ndarray,
    w: np.ndarray | None,
    n_threads: int,
    position: int,
    dropped: np.ndarray | None,
) -> pairwise.Partial:
    """Forecast and learn rows slice by slice; return the sums.

    The stream's first row of positive weight ends a slice: trees that know no label forecast 0.
    """
    ends = {0, *(stop for _, stop in slices(position, len(y), dropped))}
    if ensemble.total_weight == 0.0:
        known = np.flatnonzero(np.ones(len(y)) if w is None else w)
        ends.add(int(known[0]) + 1 if len(known) else len(y))
    T, k = len(ensemble.store), ensemble.n_outputs
    numbers = ensemble.tree_numbers.tolist()
    sums = _no_sums(ensemble, len(y))
    for start, stop in itertools.pairwise(sorted(ends)):
        part = slice(start, stop)
        answers = np.zeros((T, stop - start, k))
        if ensemble.total_weight > 0.0:
            life = ensemble.parameters.lifetime_at(ensemble.total_weight)
            chosen = ensemble.policies._replace(rule=GaussianHierarchy(life, False))
            tree_answers = ensemble.answers(
                X[part], chosen, np.array([life]), ensemble.predictor.width
            )
            answers = tree_answers[:, :, 0, :k]
        for key, partial_sum in pairwise.partial_sums(numbers, list(answers)).items():
            sums[key][part] = partial_sum
        ensemble.update(X[part], y[part], None if w is None else w[part], n_threads)
    return sums
