"""Baselines: forecasts that know labels alone, scored on the same rows as a forest's.

Of classes:

``class_frequencies``
    the share of each class in the rows before, with half a row more for each (Krichevsky,
    Trofimov, 1981); it predicts the class that was the most frequent one first;
``last_label``
    the label of the row before, as likely as labels were repeated so far; other classes share the
    rest by their frequencies. A stream on which it is hard to beat repeats its labels (Bifet,
    Read, Zliobaite, Pfahringer, Holmes, 2013, "Pitfalls in benchmarking data stream
    classification", section 3);
``last_label_by_delay``
    the same with the last label that is known when the row is forecast, where that is not the one
    before;
``last_label_of_key``
    the same with the last label of the same key, of a run whose rows have it as a lag; where the
    least lag is k > 1, label_k_back_of_key. Where each key repeats its own labels, the last
    label of any key is easily beaten, and shows little.

Of numbers the first is ``mean``, the mean label of the rows before; the others forecast that label.

Frequencies, means and shares of repeats are of all rows before, known or not: they do not look
worse for a delay. Rows of weight 0 are scored and not remembered. A row before the first of
positive weight is forecast as the forest does: all classes alike, or its own number. Later rows for
which no label is known yet are forecast by the frequencies, or as the first label; those without
an earlier row of their key by the frequencies, or as the mean.

Relies on NumPy alone. Promises that neither the cuts between calls nor JSON between them change a
bit.

Shapes: n rows, K classes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from dmondrian.distributed.metrics.error_histogram import running

FREQUENCIES, MEAN, LAST, BY_DELAY = "class_frequencies", "mean", "last_label", "last_label_by_delay"
LAST_OF_KEY = "last_label_of_key"

_WORDS = {
    FREQUENCIES: "class frequencies",
    MEAN: "mean so far",
    LAST: "last label",
    BY_DELAY: "last label known",
    LAST_OF_KEY: "last label of the same key",
}
_OF_KEY = re.compile(r"label_(\d{1,18})_back_of_key")
_PRIOR = 0.5  # rows of each class before the first


def baseline_in_words(name: str) -> str:
    """Return a baseline's name for people."""
    if match := _OF_KEY.fullmatch(name):
        return f"label {int(match[1]):,} rows of the same key back"
    return _WORDS.get(name, name.replace("_", " "))


def is_of_key(name: str) -> bool:
    """Return whether a baseline forecasts a label of the same key."""
    return name == LAST_OF_KEY or _OF_KEY.fullmatch(name) is not None


class Baselines:
    """Forecasts of labels by labels.

    Parameters
    ----------
    task : {"classification", "regression"}
    has_delay : bool
        Whether rows are forecast before the label of the row before them is known.
    lag_of_key : int or None
        How many rows of the same key back the labels are that are given with rows; None for none.

    Raises
    ------
    ValueError
        The lag is no whole number above 0.
    """

    def __init__(self, task: str, has_delay: bool = False, lag_of_key: int | None = None) -> None:
        if lag_of_key is not None and (type(lag_of_key) is not int or lag_of_key < 1):
            raise ValueError("lag_of_key")
        self.task, self.has_delay, self.lag_of_key = task, has_delay, lag_of_key
        self.weight = 0.0
        self.counts = np.zeros(0)  # weight of each class
        self.leader = 0  # the most frequent class
        self.mean = [0.0, 0.0]  # first label, and sum of weighted deviations from it
        self.last: list[float | None] = [None, None]  # label of the row before; the last known one
        # Of both, and of labels of the same key: weight of rows, and of those that agree.
        self.repeats = [[0.0, 0.0] for _ in range(2 if lag_of_key is None else 3)]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the forecasts."""
        first = FREQUENCIES if self.task == "classification" else MEAN
        lag = self.lag_of_key
        of_key = LAST_OF_KEY if lag == 1 else f"label_{lag}_back_of_key"
        delayed = (BY_DELAY,) if self.has_delay else ()
        return (first, LAST, *delayed, *(() if lag is None else (of_key,)))

    def terms(
        self,
        y: np.ndarray,
        w: np.ndarray,
        n_classes: int,
        after_learning: np.ndarray,
        earlier: np.ndarray | None = None,
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return two terms of each forecast, float64 [n] each, and remember the rows.

        They are log loss and hits, or squared and absolute errors.

        Parameters
        ----------
        y, w : float64 [n]
            Labels and weights.
        n_classes : int
        after_learning : bool [n]
            Whether a row is the first that is forecast after the one before it was learned.
        earlier : float64 [n] or None
            Labels of earlier rows of the same key, nan for none; None for none at all.
        """
        before, known = self._labels_before(y, w, after_learning)
        labels = {0: before, 1: known} if self.has_delay else {0: before}  # as in `repeats`
        if self.lag_of_key is not None:
            labels[2] = np.full(len(y), np.nan) if earlier is None else earlier
        if self.task == "classification":
            return self._class_terms(y.astype(np.int64), w, n_classes, labels)
        return self._number_terms(y, w, labels)

    def _labels_before(
        self, y: np.ndarray, w: np.ndarray, after_learning: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the label before each row, and the last known one; nan where there is none."""
        n, is_weighted = len(y), w > 0.0
        start, known = (np.nan if label is None else label for label in self.last)
        labels = np.concatenate([[start], y])
        newest = np.maximum.accumulate(
            np.concatenate([[0], np.where(is_weighted, np.arange(1, n + 1), 0)])
        )
        after = labels[newest]  # float64 [1 + n], the newest label before and after each row
        before = after[:-1]
        at = np.maximum.accumulate(np.where(after_learning, np.arange(n), -1))
        of_turns = np.where(at >= 0, before[np.maximum(at, 0)], known)
        if n:
            ends = float(after[-1]), float(of_turns[-1])
            self.last = [None if np.isnan(label) else label for label in ends]
        return before, of_turns

    def _number_terms(
        self, y: np.ndarray, w: np.ndarray, labels: Mapping[int, np.ndarray]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        if self.weight == 0.0 and (w > 0.0).any():
            self.mean[0] = float(y[np.argmax(w > 0.0)])
        weights = running(self.weight, w)
        sums = running(self.mean[1], w * (y - self.mean[0]))
        share = np.divide(sums[:-1], weights[:-1], out=np.zeros(len(y)), where=weights[:-1] > 0.0)
        is_first = weights[:-1] == 0.0
        self.weight, self.mean[1] = float(weights[-1]), float(sums[-1])
        terms, mean = [], self.mean[0] + share
        for i, forecast in {-1: mean, **labels}.items():
            known = np.where(np.isnan(forecast), mean if i == 2 else self.mean[0], forecast)
            error = np.where(is_first, 0.0, known - y)
            terms.append((error * error, np.abs(error)))
        return terms

    def _class_terms(
        self, y: np.ndarray, w: np.ndarray, n_classes: int, labels: Mapping[int, np.ndarray]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        n, k = len(y), n_classes
        if len(self.counts) < k:
            self.counts = np.concatenate([self.counts, np.zeros(k - len(self.counts))])
        counts = _Counts(self.counts, y, w)
        weights = running(self.weight, w)
        self.weight, before = float(weights[-1]), weights[:-1]
        frequencies = (counts.own + _PRIOR) / (before + _PRIOR * k)
        leaders = self._leaders(y, counts.after, float(self.counts.max()))
        terms = [(-np.log(frequencies), (leaders == y).astype(np.float64))]
        for i, label in labels.items():
            code = np.where(np.isnan(label), -1, label).astype(np.int64)
            is_known, is_same = code >= 0, code == y
            known_weights = running(self.repeats[i][0], np.where(is_known, w, 0.0))
            agreed = running(self.repeats[i][1], np.where(is_same, w, 0.0))
            self.repeats[i] = [float(known_weights[-1]), float(agreed[-1])]
            repeat = (agreed[:-1] + _PRIOR) / (known_weights[:-1] + 2.0 * _PRIOR)
            weight_of_others = before - counts.of(code) + _PRIOR * (k - 1)
            rest = np.divide(
                counts.own + _PRIOR, weight_of_others, out=np.ones(n), where=weight_of_others > 0.0
            )
            share = np.where(is_same, repeat if k > 1 else 1.0, (1.0 - repeat) * rest)
            share = np.where(is_known, share, frequencies)
            terms.append((-np.log(share), np.where(is_known, is_same, leaders == y) * 1.0))
        self.counts = counts.after_all
        return terms

    def _leaders(self, y: np.ndarray, after: np.ndarray, most: float) -> np.ndarray:
        """Return the most frequent class before each row, int64 [n]; remember the one after all.

        ``after`` float64 [n] is the weight of each row's class with it; ``most`` that of the leader
        before the first.
        """
        n = len(y)
        highest = np.maximum.accumulate(np.concatenate([[most], after]))
        takes = after > highest[:-1]
        at = np.maximum.accumulate(np.concatenate([[0], np.where(takes, np.arange(1, n + 1), 0)]))
        leaders = np.concatenate([[self.leader], y])[at]
        self.leader = int(leaders[-1])
        return leaders[:-1]

    def to_json(self) -> dict[str, Any]:
        """Return what is remembered; floats go through JSON exactly."""
        if self.task == "classification":
            stored: dict[str, Any] = {"counts": self.counts.tolist(), "leader": self.leader,
                                   "repeats": [list(pair) for pair in self.repeats]}  # fmt: skip
        else:
            stored = {"mean": list(self.mean)}
        if self.lag_of_key is not None:
            stored["lag_of_key"] = self.lag_of_key
        return {"weight": self.weight, "last": list(self.last), **stored}

    def load_json(self, stored: Any) -> None:
        """Take over what :meth:`to_json` returned.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is malformed.
        """
        self.weight = number_of(stored["weight"])
        self.last = [None if label is None else number_of(label) for label in stored["last"]]
        is_sound = len(self.last) == 2 and self.weight >= 0.0
        is_sound = is_sound and stored.get("lag_of_key") == self.lag_of_key
        if self.task == "classification":
            self.counts = np.array([number_of(value) for value in stored["counts"]], np.float64)
            self.leader = stored["leader"]
            self.repeats = [[number_of(value) for value in pair] for pair in stored["repeats"]]
            labels = [label for label in self.last if label is not None]
            n_pairs = 2 if self.lag_of_key is None else 3
            is_sound = is_sound and [len(pair) for pair in self.repeats] == [2] * n_pairs
            is_sound = is_sound and len(self.counts) <= 2**24 and bool((self.counts >= 0.0).all())
            is_sound = is_sound and type(self.leader) is int and self.leader >= 0
            is_sound = is_sound and all(0 <= label < len(self.counts) for label in labels)
            is_sound = is_sound and all(0.0 <= b <= a for a, b in self.repeats)
        else:
            self.mean = [number_of(value) for value in stored["mean"]]
            is_sound = is_sound and len(self.mean) == 2
        if not is_sound:
            raise ValueError("baselines")


class _Counts:
    """Weight of classes before each of some rows, added up row by row.

    Parameters
    ----------
    start : float64 [K]
        Before the first row.
    y : int64 [n]
    w : float64 [n]

    Attributes
    ----------
    own, after : float64 [n]
        Of the row's own class, before and after it.
    after_all : float64 [K]
    """

    def __init__(self, start: np.ndarray, y: np.ndarray, w: np.ndarray) -> None:
        self._n, self._start, self.after_all = len(y), start, start.copy()
        order = np.argsort(y, kind="stable")
        self._classes, first, sizes = np.unique(y[order], return_index=True, return_counts=True)
        # Behind each other: of each class the weight before its first row and after each.
        self._weights = np.empty(len(y) + len(self._classes))
        for j, (c, begin, size) in enumerate(
            zip(self._classes.tolist(), first.tolist(), sizes.tolist(), strict=True)
        ):
            sums = running(float(start[c]), w[order[begin : begin + size]])
            self._weights[begin + j : begin + j + size + 1] = sums
            self.after_all[c] = sums[-1]
        self._keys = y[order] * (self._n + 1) + order  # increasing
        places = np.empty(len(y), np.int64)
        places[order] = np.arange(len(y)) + np.repeat(np.arange(len(self._classes)), sizes)
        self.own, self.after = self._weights[places], self._weights[places + 1]

    def of(self, codes: np.ndarray) -> np.ndarray:
        """Return the weight of a class before each row, float64 [n]; ``codes`` int64 [n], or -1."""
        if not self._n:
            return np.empty(0)
        j = np.minimum(np.searchsorted(self._classes, codes), len(self._classes) - 1)
        rows_before = np.searchsorted(self._keys, codes * (self._n + 1) + np.arange(self._n))
        places = np.minimum(rows_before + j, len(self._weights) - 1)
        weights = np.where(self._classes[j] == codes, self._weights[places], self._start[codes])
        return np.where(codes >= 0, weights, 0.0)


def number_of(stored: Any) -> float:
    """Return a stored number; manifests store non-finite ones as null.

    Raises
    ------
    TypeError
        It is no number.
    """
    if stored is None:
        return math.nan
    if isinstance(stored, bool) or not isinstance(stored, (int, float)):
        raise TypeError(f"{str(stored)[:80]!r} is no number")
    return float(stored)
