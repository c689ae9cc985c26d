"""Settings left to the stream: chosen from its first rows, which are learned anew then.

A few candidates each train a small forest on the first rows, predicting every chunk before
learning it; the one of least log loss is kept. The loss is that of the *averaged* forest: a
single tree is always better off when it pays for the rows that open its leaves, a forest
often is not (the table of ``benchmarks/ablation.py`` shows both kinds of data).

Relies on :mod:`dmondrian.prequential.progressive_validation` and
:mod:`dmondrian.tuning.feature_scales`. Promises that the choice is a pure function of the
parameters and the rows in order, the same for a row of whole weight w as for w equal rows.

Shapes: n rows, d features, K classes.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dmondrian.ensemble.rows.unit_cube import scale_columns
from dmondrian.ensemble.settings.feature_units import units_of
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CorruptError
from dmondrian.prequential.progressive_validation import RowArrays, late_loss
from dmondrian.tree.box_encoding import read_only
from dmondrian.tree.quantization import round_rows
from dmondrian.tuning.feature_scales import learn_scales

# Settings that can be left to the stream, and the values of the estimator's parameters then.
OPEN_SETTINGS = {
    "alpha": ("auto",),
    "charge_opening": ("auto",),
    "feature_scales": ("auto", "learned"),
    "feature_units": ("auto",),
}
FIRST, LAST = 256, 4096  # distinct rows that settings are chosen from, and by default for good
# Features up to which scales are learned unasked. Time and memory of a search, that of ten trees of
# the rows kept, go up with them.
WIDEST_AUTO = 4096
UNIT_ROWS = 512  # of which units are taken
# Fewer cannot be cut into the chunks of a progressive loss; more make each checkpoint large.
LEAST_WARMUP, LARGEST_WARMUP = 32, 2**16
_LEAST_LOG = 64  # capacity in rows, once there are any
_REPEATS = 16  # times as many rows are kept at most: more are seen where few of them differ
START_ALPHA = 0.5  # pseudo-count before the first choice, times 1 / K
# Candidates: alpha times K, opening price. More rows prefer less alpha than 4096 do, and more
# trees free openings than the probes' ten. For two classes the last one is the paper's own
# setting, alpha = 1/2 and charged (tables in benchmarks/reports/ablation.md).
CANDIDATES = ((0.04, False), (0.2, False), (0.5, False), (0.2, True), (1.0, True))
_MIDDLE_CANDIDATE = 1  # the candidate that scales are learned with
# Trees of a probe: 10, fewer where features and classes together pass 400.
_MOST_TREES, _LEAST_TREES, _WIDTH = 10, 2, 4000
_STORED = {"X": "<f4", "y": "<f8", "w": "<f8"}


def choose(
    parameters: ForestParameters,
    auto: Iterable[str],
    rows: RowArrays,
    n_threads: int = 1,
    warmup_rows: int = LAST,
) -> ForestParameters:
    """Return ``parameters`` with the settings that do best on the first rows.

    Parameters
    ----------
    parameters : ForestParameters
        Settings not in ``auto`` are kept.
    auto : iterable of {"alpha", "charge_opening", "feature_scales", "feature_units"}
    rows : tuple
        X float32 [n, d], y float64 [n] (class index or label), w float64 [n] (> 0), in
        order. Equal rows in a row count as one of their summed weight. The first
        ``warmup_rows`` are used when more than these have come, else the first 256, 512, 1024, ...,
        as far as fewer than both; else none, and ``parameters`` are returned as they are. Units
        need 512.
    n_threads : int
    warmup_rows : int
    """
    auto, rows = tuple(auto), merge_equal(*rows)
    stages = [n for n in stages_of(warmup_rows) if n < len(rows[0])]  # the last row may go on
    if not stages:
        return parameters
    n = stages[-1]
    first = rows[0][:n], rows[1][:n], rows[2][:n]
    if "feature_units" in auto:  # those of an earlier choice
        parameters = dataclasses.replace(parameters, feature_units=None)
    candidates = _candidates(parameters, auto)
    has_units = "feature_units" in auto and n >= min(UNIT_ROWS, warmup_rows)
    if "feature_scales" in auto:
        X = _rounded(first[0]) if has_units else first[0]  # as later rows will be
        middling = candidates[_MIDDLE_CANDIDATE % len(candidates)]
        scales = learn_scales(middling, (X, *first[1:]), n_threads, n == warmup_rows)
        candidates = [dataclasses.replace(c, feature_scales=scales) for c in candidates]
    best = candidates[0]
    if len(candidates) > 1:
        numbers = range(_n_trees(parameters))
        losses = [late_loss(c, numbers, first, n_threads) for c in candidates]
        best = candidates[int(np.argmin(losses))]
    return _with_units(best, first[0][:UNIT_ROWS]) if has_units else best


def _rounded(X: np.ndarray) -> np.ndarray:
    """Return rows rounded to the units of the first, which scales multiply with the rows."""
    units = units_of(X[:UNIT_ROWS])
    if units is None:
        return X
    rounded = np.empty(X.shape, np.float32)
    round_rows(read_only(X), read_only(np.array(units)), rounded)
    return rounded


def _with_units(parameters: ForestParameters, X: np.ndarray) -> ForestParameters:
    """Return parameters with the units of these rows; they are of any later choice too."""
    scales = parameters.feature_scales
    scaled = X if scales is None else scale_columns(X, np.array(scales, np.float32))
    return dataclasses.replace(parameters, feature_units=units_of(scaled))


def rows_for(auto: Iterable[str], warmup_rows: int) -> int:
    """Return how many distinct rows it takes to choose settings for good; units take the first."""
    return min(UNIT_ROWS, warmup_rows) if set(auto) == {"feature_units"} else warmup_rows


def stages_of(warmup_rows: int) -> list[int]:
    """Return the numbers of distinct rows after which settings are chosen, the last for good.

    The first, and whenever the rows have doubled.
    """
    doubled = (FIRST << k for k in itertools.count())
    return [*itertools.takewhile(lambda n: n < warmup_rows, doubled), warmup_rows]


def merge_equal(X: np.ndarray, y: np.ndarray, w: np.ndarray) -> RowArrays:
    """Return rows with every run of equal (x, y) as one row of the summed weight."""
    if not len(X):
        return X, y, w
    first = np.flatnonzero(_is_new(X, y))
    return X[first], y[first], np.add.reduceat(w, first)


def _is_new(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return whether each row differs from the one before, bool [n]."""
    differs = (X[1:] != X[:-1]).any(axis=1) | (y[1:] != y[:-1])
    return np.concatenate([[True], differs])


def _n_trees(parameters: ForestParameters) -> int:
    """Return the trees of a probe: fewer where rows or forecasts are wide."""
    width = parameters.n_features + parameters.n_classes
    return int(np.clip(_WIDTH // width, _LEAST_TREES, _MOST_TREES))


def _candidates(parameters: ForestParameters, auto: Sequence[str]) -> list[ForestParameters]:
    """Return the parameters to compare, each once, the preferred of equals first."""
    n_classes = parameters.n_classes
    if n_classes == 0:
        return [parameters]
    settings = [
        (
            share / n_classes if "alpha" in auto else parameters.alpha,
            charge if "charge_opening" in auto else parameters.charge_opening,
        )
        for share, charge in CANDIDATES
    ]
    return [
        parameters.replace(alpha=alpha, charge_opening=charge)
        for alpha, charge in dict.fromkeys(settings)
    ]


class _RowLog:
    """Rows in the order in which they came; those that are in it never change.

    So what is known of the first ``n`` of them can share it with what is known of more.
    """

    def __init__(self, n_features: int, capacity: int = 0) -> None:
        self.X, self.y = np.empty((capacity, n_features), np.float32), np.empty(capacity)
        self.w = np.empty(capacity)
        self.n = 0

    def rows(self, n: int) -> RowArrays:
        """Return the first ``n`` rows, read-only views."""
        return read_only(self.X[:n]), read_only(self.y[:n]), read_only(self.w[:n])

    def after(
        self, n: int, X: np.ndarray, y: np.ndarray | float, w: np.ndarray | float, most: int
    ) -> _RowLog:
        """Return the log of the first ``n`` rows and of these; the same, if it ends there.

        ``most`` are the rows that may come in all, the largest capacity.
        """
        log, end = self, n + len(X)
        if self.n != n or end > len(self.y):
            log = _RowLog(self.X.shape[1], max(end, min(max(2 * n, _LEAST_LOG), most)))
            log.X[:n], log.y[:n], log.w[:n] = self.rows(n)
        log.X[n:end], log.y[n:end], log.w[n:end] = X, y, w
        log.n = end
        return log


@dataclasses.dataclass(eq=False)
class Warmup:
    """The first rows of a stream, kept until the open settings are chosen for good.

    Never changed: :meth:`after` returns another one. :meth:`without_rows` returns one without rows.
    """

    auto: tuple[str, ...]  # settings to choose
    warmup_rows: int  # distinct rows from which they are chosen for good
    n_rows: int  # kept
    n_distinct: int  # rows kept that differ from the one before
    _stages: list[int]  # distinct rows after which they are chosen
    _log: _RowLog

    @classmethod
    def without_rows(cls, auto: Iterable[str], n_features: int, warmup_rows: int = LAST) -> Warmup:
        """Return a warm-up without rows.

        Parameters
        ----------
        auto : iterable of {"alpha", "charge_opening", "feature_scales", "feature_units"}
            Settings to choose.
        n_features : int
        warmup_rows : int
            Distinct rows from which they are chosen for good.
        """
        settings = tuple(sorted(auto))
        last = rows_for(settings, warmup_rows)
        return cls(settings, last, 0, 0, stages_of(last), _RowLog(n_features))

    @property
    def is_done(self) -> bool:
        """Whether no later row can change the choice."""
        return self.n_distinct > self.warmup_rows or self.n_rows >= self._most

    @property
    def may_choose(self) -> bool:
        """Whether the next row may lead to a choice, or end the warm-up."""
        return self.n_distinct in self._stages or self.n_rows + 1 >= self._most

    @property
    def _most(self) -> int:
        """Largest number of rows that are kept."""
        return _REPEATS * self.warmup_rows

    @property
    def rows(self) -> RowArrays:
        """The rows kept: X, y, w, views that never change."""
        return self._log.rows(self.n_rows)

    def after(self, X: np.ndarray, y: np.ndarray, w: np.ndarray | None) -> Warmup:
        """Return the warm-up with more rows, as far as they may matter.

        Parameters
        ----------
        X, y, w
            As in :meth:`dmondrian.ensemble.ensemble.Ensemble.update`.
        """
        weights = np.ones(len(X)) if w is None else w
        kept = np.flatnonzero(weights > 0)[: self._most - self.n_rows]
        X, y, weights = X[kept], np.asarray(y, np.float64)[kept], weights[kept]
        before, labels, _ = self.rows
        is_new = _is_new(np.concatenate([before[-1:], X]), np.concatenate([labels[-1:], y]))
        counted = self.n_distinct + np.cumsum(is_new[len(is_new) - len(X) :])
        n = int(np.searchsorted(counted, self.warmup_rows, side="right")) + 1
        n_distinct = int(counted[:n][-1]) if len(X) else self.n_distinct
        return self._with(X[:n], y[:n], weights[:n], n_distinct)

    def after_row(self, X: np.ndarray, y: float) -> Warmup:
        """Return what :meth:`after` does of one row, float32 [1, d], of weight one, but sooner."""
        log, last = self._log, self.n_rows - 1
        is_new = last < 0 or bool(y != log.y[last]) or bool((X[0] != log.X[last]).any())
        return self._with(X, y, 1.0, self.n_distinct + is_new)

    def _with(
        self, X: np.ndarray, y: np.ndarray | float, w: np.ndarray | float, n_distinct: int
    ) -> Warmup:
        """Return a copy extended by rows (X, y, w); ``n_distinct`` is the new total."""
        end = self.n_rows + len(X)
        most = self._most if end > self.warmup_rows + 1 else self.warmup_rows + 1
        log = self._log.after(self.n_rows, X, y, w, most)
        return Warmup(self.auto, self.warmup_rows, end, n_distinct, self._stages, log)

    def chosen(
        self, parameters: ForestParameters, before: Warmup, n_threads: int
    ) -> ForestParameters:
        """Return the parameters to use from the first row on.

        Parameters
        ----------
        parameters : ForestParameters
            Those in use.
        before : Warmup
            The one that this came after.
        n_threads : int
        """
        if any(before.n_distinct <= stage < self.n_distinct for stage in self._stages):
            return choose(parameters, self.auto, self.rows, n_threads, self.warmup_rows)
        return parameters

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able copy."""
        kept = {
            name: base64.b64encode(values.astype(dtype).tobytes()).decode("ascii")
            for (name, dtype), values in zip(_STORED.items(), self.rows, strict=True)
        }
        values = {"auto": list(self.auto), **kept}
        # Left out where it is the default: the bytes are those of versions that knew no other.
        return values if self.warmup_rows == LAST else {**values, "warmup_rows": self.warmup_rows}

    @classmethod
    def from_json(cls, values: Any, parameters: ForestParameters) -> Warmup:
        """Return the warm-up of :meth:`to_json`, checked.

        Raises
        ------
        CorruptError
            If it is not one that a forest of these parameters can have.
        """
        if not isinstance(values, dict) or set(values) - {"warmup_rows"} != {"auto", *_STORED}:
            raise CorruptError(f"a warm-up should have the keys auto, {', '.join(_STORED)}")
        last = values.get("warmup_rows", LAST)
        if type(last) is not int or not LEAST_WARMUP <= last <= LARGEST_WARMUP:
            raise CorruptError(f"a warm-up cannot be of {str(last)[:80]!r} rows")
        auto, d, known = values["auto"], parameters.n_features, sorted(OPEN_SETTINGS)
        if not isinstance(auto, list) or not auto or any(name not in known for name in auto):
            shown = f"{str(auto)[:80]!r}"
            raise CorruptError(f"a warm-up chooses among {known}, not {shown}")
        try:
            raw = {name: base64.b64decode(values[name], validate=True) for name in _STORED}
        except (TypeError, ValueError, binascii.Error) as error:
            raise CorruptError(f"the rows of a warm-up cannot be read: {error}") from None
        n = len(raw["y"]) // 8
        if [len(r) for r in raw.values()] != [4 * n * d, 8 * n, 8 * n]:
            raise CorruptError(f"the rows of a warm-up do not have {d} features each")
        X, y, w = (np.frombuffer(raw[name], dtype) for name, dtype in _STORED.items())
        labels = np.isfinite(y)
        if parameters.n_classes:
            labels = (y >= 0) & (y < parameters.n_classes) & (y == np.floor(y))
        if not np.isfinite(X).all() or not labels.all() or not ((w > 0) & np.isfinite(w)).all():
            raise CorruptError("the rows of a warm-up have values that no forest learns")
        warmup = cls.without_rows(auto, d, last)
        warmup = warmup.after(X.reshape(n, d).astype(np.float32), y.astype(np.float64), w)
        if warmup.is_done:
            raise CorruptError(
                f"a warm-up ends after {warmup.warmup_rows} distinct rows, this one has more"
            )
        return warmup
