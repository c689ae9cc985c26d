"""A set of boosted trees: fitted to labelled rows at once, and never changed.

The Newton step of a leaf is bounded, as XGBoost does it where "max_delta_step" is set: rows of
large weights that are forecast almost surely, and wrongly, would else be answered by thousands.

Relies on :mod:`dmondrian.boosting.boosting_kernels`. Promises a pure function of the settings and
the rows in order, to the last bit on every machine, and probabilities above 0.

Shapes: n rows, d columns, K classes, L leaves at most, T trees.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dmondrian.boosting.boosting_kernels import (
    SUM_BITS,
    Binned,
    Growing,
    Space,
    Trees,
    answer_rows,
    fit_rounds,
)
from dmondrian.boosting.column_bins import column_bins
from dmondrian.errors import CorruptError
from dmondrian.forest.packed_arrays import packed, unpacked
from dmondrian.tree.box_encoding import read_only
from dmondrian.tree.keyed_random import log

_PRIOR = 0.5  # weight of each class beside its rows
_LARGEST_EXPONENT = 1000  # of what gradients are multiplied by
_LARGEST_SCORE = 1e6  # of a state from outside


class BoostedSet:
    """Trees whose answers add up to log odds of classes.

    Parameters
    ----------
    trees : Trees
    first_scores : float64 [K]
        Log odds without trees.
    """

    def __init__(self, trees: Trees, first_scores: np.ndarray) -> None:
        self.trees, self.first_scores = trees, first_scores

    @classmethod
    def fit(
        cls, X: np.ndarray, y: np.ndarray, w: np.ndarray, n_classes: int, growing: Growing
    ) -> BoostedSet:
        """Return a set fitted to rows.

        Parameters
        ----------
        X : float32 [n, d], 0 < n <= MOST_ROWS
        y : float64 [n]
            Classes.
        w : float64 [n]
            Weights > 0.
        n_classes : int
            K > 1.
        growing : Growing
        """
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
        bins, n = column_bins(X), len(X)
        exponent = SUM_BITS - math.frexp(float(np.add.accumulate(w)[-1]))[1]
        exponent = min(exponent, _LARGEST_EXPONENT)
        binned = Binned(
            *bins, labels, read_only(w), math.ldexp(1.0, -exponent), math.ldexp(1.0, exponent)
        )
        trees = _empty_trees(np.tile(outputs, growing.n_rounds), growing.n_leaves)
        scores = np.tile(first, (n, 1))
        space = _space(n, growing.n_leaves, len(bins.ends))
        n_rounds = fit_rounds(growing, binned, outputs, scores, trees, space)
        n_trees = n_rounds * len(outputs)
        return cls(Trees(*(np.ascontiguousarray(part[:n_trees]) for part in trees)), first)

    @property
    def n_bytes(self) -> int:
        """Bytes of memory held by the trees."""
        return sum(part.nbytes for part in self.trees) + self.first_scores.nbytes

    def answer(self, X: np.ndarray) -> np.ndarray:
        """Return the probabilities of classes, float64 [n, K], of rows float32 [n, d]."""
        out = np.empty((len(X), len(self.first_scores)))
        answer_rows(self.trees, self.first_scores, read_only(X), out)
        return out

    def to_json(self) -> dict[str, Any]:
        """Return the set as text."""
        found: dict[str, Any] = {name: packed(part) for name, part in self.trees._asdict().items()}
        return found | {"n": len(self.trees.outputs), "first_scores": packed(self.first_scores)}

    @classmethod
    def from_json(cls, stored: Any, d: int, n_classes: int, growing: Growing) -> BoostedSet:
        """Return the set of :meth:`to_json`, every number checked.

        Raises
        ------
        CorruptError
            If it is not one of rows of ``d`` columns.
        """
        names = {*Trees._fields, "n", "first_scores"}
        n = stored.get("n") if isinstance(stored, dict) and set(stored) == names else None
        most = growing.n_rounds * n_classes
        if type(n) is not int or not 0 <= n <= most:
            raise CorruptError(f"a boosted set should have 0 to {most} trees: {str(stored)[:80]}")
        shapes = _empty_trees(np.zeros(n, np.int64), growing.n_leaves)
        trees = Trees(
            *(
                unpacked(stored[name], part.shape, part.dtype)
                for name, part in shapes._asdict().items()
            )
        )
        first = unpacked(stored["first_scores"], (n_classes,), np.float64)
        if not _are_sound(trees, d, n_classes) or not (np.abs(first) <= _LARGEST_SCORE).all():
            raise CorruptError("a boosted set has splits or leaves that no rows could make")
        return cls(trees, first)


def _are_sound(trees: Trees, d: int, n_classes: int) -> bool:
    """Return whether kernels may walk down trees: children are later splits, or leaves."""
    n_splits, least = trees.n_splits[:, None], 1 if n_classes == 2 else 0
    if not ((n_splits >= 0) & (n_splits <= trees.columns.shape[1])).all():
        return False
    number = np.arange(trees.columns.shape[1])[None, :]
    is_used, children = number < n_splits, trees.children
    later = (children > number[:, :, None]) & (children < n_splits[:, :, None])
    leaf = (children < 0) & (children >= -1 - n_splits[:, :, None])
    return bool(
        ((trees.outputs >= least) & (trees.outputs < n_classes)).all()
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


def _space(n: int, n_leaves: int, n_bins: int) -> Space:
    """Return scratch of a fit."""

    def numbers(*shape: int) -> np.ndarray:
        return np.empty(shape, np.int64)

    return Space(
        rows=numbers(n),
        aside=numbers(n),
        gradients=numbers(n),
        curvatures=numbers(n),
        histograms=numbers(n_leaves, n_bins, 2),
        starts=numbers(n_leaves),
        counts=numbers(n_leaves),
        sums=numbers(n_leaves, 2),
        gains=np.empty(n_leaves),
        splits=numbers(n_leaves, 2),
        parents=numbers(n_leaves, 2),
        tops=np.empty(n),
        totals=np.empty(n),
    )
