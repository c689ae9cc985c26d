"""A set of boosted trees: fitted to labelled rows at once, and never changed.

The Newton step of a leaf is bounded, as XGBoost does it where "max_delta_step" is set: rows of
large weights that are forecast almost surely, and wrongly, would else be answered by thousands.

Relies on :mod:`dmondrian.boosting.boosting_kernels`. Promises a pure function of the settings and
the rows in order, to the last bit on every machine, and probabilities above 0.

Shapes: n rows, d columns, K classes, L leaves at most, T trees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dmondrian.boosting.boosting_kernels import (
    SUM_BITS,
    BinnedRows,
    BoostingSettings,
    FitBuffers,
    LogLoss,
    SquaredLoss,
    Trees,
    answer_numbers,
    answer_rows,
    fit_rounds,
    make_path_buffers,
    sum_losses,
)
from dmondrian.boosting.column_bins import column_bins
from dmondrian.ensemble.rows.labelled_rows import LabelledRows
from dmondrian.ensemble.settings.numeric_limits import LARGEST_TARGET
from dmondrian.errors import CorruptError
from dmondrian.forest.packed_arrays import packed, unpacked
from dmondrian.tree.box_encoding import read_only
from dmondrian.tree.keyed_random import log

_PRIOR = 0.5  # weight of each class beside its rows
_LARGEST_EXPONENT = 1000  # of what gradients are multiplied by
_LARGEST_SCORE = 1e6  # of a state from outside
_LARGEST_ERROR = 4.0  # that counts, of numbers in [-1, 1]: then sums are bounded
_FARTHEST = 2.0**20  # units of a label that judges rounds: sums of losses stay exact enough
_ROWS_JUDGED = 64  # at once
_LEAST_EXPONENT = -1000  # of the unit of numbers


class BoostedSet:
    """Trees whose answers add up to log odds of classes, or to a number.

    Parameters
    ----------
    trees : Trees
    first_scores : float64 [K] or [1]
        Log odds, or number, without trees.
    scale : float
        Of numbers, unit of what trees answer; 0 for classes.
    """

    def __init__(self, trees: Trees, first_scores: np.ndarray, scale: float = 0.0) -> None:
        self.trees, self.first_scores, self.scale = trees, first_scores, scale

    @property
    def is_regression(self) -> bool:
        """Whether what is answered is a number."""
        return self.scale > 0.0

    @classmethod
    def fit(
        cls,
        X: np.ndarray,
        y: np.ndarray,
        w: np.ndarray,
        n_classes: int,
        settings: BoostingSettings,
        monotone: Sequence[int] = (),
    ) -> BoostedSet:
        """Return a set fitted to rows.

        Parameters
        ----------
        X : float32 [n, d], 0 < n <= MOST_ROWS
        y : float64 [n]
            Classes, or numbers.
        w : float64 [n]
            Weights > 0.
        n_classes : int
            K > 1; 0 for numbers.
        settings : BoostingSettings
        monotone : sequence of int
            1 or -1 for each column with which answers rise or fall (of two classes, the log odds of
            the second), 0 for others; none of more classes.
        """
        if not n_classes:
            return cls._of_numbers(X, y, w, settings, monotone)
        labels = y.astype(np.int64)
        totals = np.zeros(n_classes)
        np.add.at(totals, labels, w)  # in the order of rows
        shares = (totals + _PRIOR) / (np.add.accumulate(totals)[-1] + _PRIOR * n_classes)
        first = np.array([log(share) for share in shares.tolist()])
        present = np.flatnonzero(np.bincount(labels, minlength=n_classes)).astype(np.int64)
        outputs = present if len(present) > 1 else present[:0]  # one class: nothing to learn
        if n_classes == 2:
            first = np.array([0.0, first[1] - first[0]])
            outputs = outputs[1:]
        trees = _grown(X, labels, w, outputs, first, LogLoss(n_classes), 1.0, settings, monotone)
        return cls(trees, first)

    @classmethod
    def _of_numbers(
        cls,
        X: np.ndarray,
        y: np.ndarray,
        w: np.ndarray,
        settings: BoostingSettings,
        monotone: Sequence[int],
    ) -> BoostedSet:
        """Return a set fitted to numbers, whose trees answer them in units of a power of two."""
        weight, total = (np.add.accumulate(part)[-1] for part in (w, w * (y - y[0])))
        center = float(y[0] + total / weight)
        apart = y - center
        farthest = float(np.abs(apart).max())
        scale = math.ldexp(1.0, max(math.frexp(farthest)[1], _LEAST_EXPONENT))
        outputs = np.zeros(int(farthest > 0.0), np.int64)
        start, loss = np.zeros(1), SquaredLoss(_LARGEST_ERROR)
        trees = _grown(
            X, apart / scale, w, outputs, start, loss, _LARGEST_ERROR, settings, monotone
        )
        return cls(trees, np.array([center]), scale)

    @property
    def n_bytes(self) -> int:
        """Bytes of memory held by the trees."""
        return sum(part.nbytes for part in self.trees) + self.first_scores.nbytes

    @property
    def n_rounds(self) -> int:
        """Rounds that grew trees."""
        return len(self.trees.outputs) // max(1, len(np.unique(self.trees.outputs)))

    def losses_after(
        self, rounds: list[int], X: np.ndarray, y: np.ndarray, w: np.ndarray
    ) -> np.ndarray:
        """Return the losses of rows, times their weights, by the trees of the first rounds alone.

        Log loss of classes; of numbers half the squared error in the set's unit, linear in an error
        beyond the largest that counts in a fit.

        Parameters
        ----------
        rounds : list of int
            Numbers of rounds, ascending.
        X, y, w
            As in :meth:`fit`.

        Returns
        -------
        float64 [len(rounds)]
        """
        a_round = len(self.trees.outputs) // max(1, self.n_rounds)
        marks, losses = np.array(rounds, np.int64) * a_round, np.empty(len(rounds))
        loss: LogLoss | SquaredLoss = LogLoss(len(self.first_scores))
        first = self.first_scores
        if self.is_regression:
            with np.errstate(over="ignore"):
                labels = (y - first[0]) / self.scale
            labels = np.clip(labels, -_FARTHEST, _FARTHEST)
            loss, first = SquaredLoss(_LARGEST_ERROR), np.zeros(1)
        else:
            labels = y.astype(np.int64)
        judging = LabelledRows(read_only(X), labels, read_only(w))
        scores = np.empty((_ROWS_JUDGED, len(first)))
        path_buffers = make_path_buffers(self.trees)
        sum_losses(loss, self.trees, marks, first, judging, path_buffers, scores, losses)
        return losses

    def answer(self, X: np.ndarray) -> np.ndarray:
        """Return what it answers rows float32 [n, d].

        Probabilities of classes, float64 [n, K], or means of numbers, float64 [n, 1].
        """
        out, path_buffers = (
            np.empty((len(X), len(self.first_scores))),
            make_path_buffers(self.trees),
        )
        if self.is_regression:
            center = float(self.first_scores[0])
            answer_numbers(self.trees, center, self.scale, read_only(X), path_buffers, out)
            return out
        answer_rows(self.trees, self.first_scores, read_only(X), path_buffers, out)
        return out

    def to_json(self) -> dict[str, Any]:
        """Return the set as text."""
        parts: dict[str, Any] = {name: packed(part) for name, part in self.trees._asdict().items()}
        parts |= {"n": len(self.trees.outputs), "first_scores": packed(self.first_scores)}
        return parts | ({"scale": self.scale} if self.is_regression else {})

    @classmethod
    def from_json(
        cls, stored: Any, d: int, n_classes: int, settings: BoostingSettings
    ) -> BoostedSet:
        """Return the set of :meth:`to_json`, every number checked.

        Raises
        ------
        CorruptError
            If it is not one of rows of ``d`` columns.
        """
        names = {*Trees._fields, "n", "first_scores"} | ({"scale"} if not n_classes else set())
        n = stored.get("n") if isinstance(stored, dict) and set(stored) == names else None
        most = settings.n_rounds * max(n_classes, 1)
        if type(n) is not int or not 0 <= n <= most:
            raise CorruptError(f"a boosted set should have 0 to {most} trees: {str(stored)[:80]}")
        shapes = _empty_trees(np.zeros(n, np.int64), settings.n_leaves)
        trees = Trees(
            *(
                unpacked(stored[name], part.shape, part.dtype)
                for name, part in shapes._asdict().items()
            )
        )
        first = unpacked(stored["first_scores"], (max(n_classes, 1),), np.float64)
        largest = _LARGEST_SCORE if n_classes else LARGEST_TARGET
        if not _are_sound(trees, d, n_classes) or not (np.abs(first) <= largest).all():
            raise CorruptError("a boosted set has splits or leaves that no rows could make")
        return cls(trees, first, 0.0 if n_classes else _scale_of(stored["scale"]))


def _scale_of(stored: Any) -> float:
    """Return the unit of numbers of a state, checked."""
    is_in_range = type(stored) is float and 0.0 < stored <= 4.0 * LARGEST_TARGET
    if is_in_range and math.frexp(stored)[0] == 0.5:
        return float(stored)
    raise CorruptError(f"a boosted set's unit should be a power of two, found {stored!r:.40}")


def _grown(
    X: np.ndarray,
    y: np.ndarray,
    w: np.ndarray,
    outputs: np.ndarray,
    first: np.ndarray,
    loss: LogLoss | SquaredLoss,
    largest: float,
    settings: BoostingSettings,
    monotone: Sequence[int],
) -> Trees:
    """Return trees fitted to rows, round by round, until one has no split.

    Parameters
    ----------
    X, w, settings, monotone
        As in :meth:`BoostedSet.fit`.
    y : int64 [n] or float64 [n]
        Classes, or numbers in [-1, 1].
    outputs : int64 [m]
        What each round grows trees for.
    first : float64 [K]
        Scores before.
    loss : LogLoss or SquaredLoss
    largest : float
        Gradient that there can be, of a row of weight 1.
    """
    bins, n = column_bins(X), len(X)
    total = float(np.add.accumulate(w)[-1]) * largest
    exponent = min(SUM_BITS - math.frexp(total)[1], _LARGEST_EXPONENT)
    directions = read_only(np.array(monotone, np.int8))
    unit, per_unit = math.ldexp(1.0, -exponent), math.ldexp(1.0, exponent)
    binned = BinnedRows(*bins, directions, y, read_only(w), unit, per_unit)
    trees = _empty_trees(np.tile(outputs, settings.n_rounds), settings.n_leaves)
    buffers = _fit_buffers(n, settings.n_leaves, len(bins.ends))
    scores = np.tile(first, (n, 1))
    n_trees = fit_rounds(settings, loss, binned, outputs, scores, trees, buffers) * len(outputs)
    return Trees(*(np.ascontiguousarray(part[:n_trees]) for part in trees))


def _are_sound(trees: Trees, d: int, n_classes: int) -> bool:
    """Return whether kernels may walk down trees: children are later splits, or leaves."""
    n_splits, least = trees.n_splits[:, None], 1 if n_classes == 2 else 0
    most = max(n_classes, 1)
    if not ((n_splits >= 0) & (n_splits <= trees.columns.shape[1])).all():
        return False
    number = np.arange(trees.columns.shape[1])[None, :]
    is_used, children = number < n_splits, trees.children
    later = (children > number[:, :, None]) & (children < n_splits[:, :, None])
    leaf = (children < 0) & (children >= -1 - n_splits[:, :, None])
    return bool(
        ((trees.outputs >= least) & (trees.outputs < most)).all()
        and ((trees.columns >= 0) & (trees.columns < d))[is_used].all()
        and (later | leaf)[is_used].all()
        and (np.abs(trees.answers) <= _LARGEST_SCORE).all()
    )


def _empty_trees(outputs: np.ndarray, n_leaves: int) -> Trees:
    """Return trees of ``outputs`` without splits."""
    n, m = len(outputs), n_leaves - 1
    return Trees(
        outputs,
        np.zeros(n, np.int64),
        np.zeros((n, m), np.int32),
        np.zeros((n, m), np.float32),
        np.zeros((n, m, 2), np.int32),
        np.zeros((n, n_leaves)),
    )


def _fit_buffers(n: int, n_leaves: int, n_bins: int) -> FitBuffers:
    """Return scratch of a fit."""

    def numbers(*shape: int) -> np.ndarray:
        return np.empty(shape, np.int64)

    return FitBuffers(
        rows=numbers(n),
        aside=numbers(n),
        gradients=numbers(n),
        curvatures=numbers(n),
        histograms=numbers(n_leaves, n_bins, 2),
        starts=numbers(n_leaves),
        counts=numbers(n_leaves),
        sums=numbers(n_leaves, 2),
        bounds=np.empty((n_leaves, 2)),
        gains=np.empty(n_leaves),
        splits=numbers(n_leaves, 2),
        parents=numbers(n_leaves, 2),
        tops=np.empty(n),
        totals=np.empty(n),
    )
