"""Settings left to the stream: chosen from its first rows, which are learned anew then.

A few candidates each train a small forest on the first rows, predicting every chunk before
learning it; the one of least log loss is kept. The loss is that of the *averaged* forest: a
single tree is always better off when it pays for the rows that open its leaves, a forest
often is not (the table of ``benchmarks/ablation.py`` shows both kinds of data).

Relies on :mod:`dmondrian.progressive` and :mod:`dmondrian.scales`. Promises that the choice
is a pure function of the parameters and the rows in order, a row of whole weight w counting
as w rows.

Shapes: n rows, d features, K classes.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dmondrian.errors import CorruptError
from dmondrian.parameters import ForestParameters
from dmondrian.progressive import Rows, late_loss
from dmondrian.scales import learn_scales

# Settings that can be left to the stream, and the value of the estimator that says so.
OPEN_SETTINGS = {"alpha": "auto", "charge_opening": "auto", "feature_scales": "learned"}
FIRST, LAST = 512, 4096  # rows after which settings are chosen, and chosen for good
START_ALPHA = 0.5  # pseudo-count before the first choice, times 1 / K
# Candidates: alpha times K, opening price. More rows prefer less alpha than 4096 do, and where
# openings are charged it matters little (tables in benchmarks/README.md).
CANDIDATES = ((0.04, False), (0.2, False), (0.5, False), (0.2, True))
_MIDDLING = 1  # the candidate that scales are learned with
_N_TREES = 10
_STORED = {"X": "<f4", "y": "<f8", "w": "<f8"}


def choose(
    parameters: ForestParameters, auto: Iterable[str], rows: Rows, n_threads: int = 1
) -> ForestParameters:
    """Return ``parameters`` with the settings that do best on the first rows.

    Parameters
    ----------
    parameters : ForestParameters
        Settings not in ``auto`` are kept.
    auto : iterable of {"alpha", "charge_opening", "feature_scales"}
    rows : tuple
        X float32 [n, d], y float64 [n] (class index or label), w float64 [n] (> 0), in
        order. With fewer than 512 rows ``parameters`` are returned as they are, with fewer
        than 4096 the scales are; rows beyond are not looked at.
    n_threads : int
    """
    auto, rows = tuple(auto), repeat_rows(*rows)
    if len(rows[0]) < FIRST:
        return parameters
    n = LAST if len(rows[0]) >= LAST else FIRST
    first = rows[0][:n], rows[1][:n], rows[2][:n]
    candidates = _candidates(parameters, auto)
    if "feature_scales" in auto and n == LAST:
        scales = learn_scales(candidates[_MIDDLING % len(candidates)], first, n_threads)
        candidates = [dataclasses.replace(c, feature_scales=scales) for c in candidates]
    if len(candidates) == 1:
        return candidates[0]
    losses = [late_loss(c, range(_N_TREES), first, n_threads) for c in candidates]
    return candidates[int(np.argmin(losses))]


def repeat_rows(X: np.ndarray, y: np.ndarray, w: np.ndarray) -> Rows:
    """Return the first 4096 rows with a row of weight w >= 2 as floor(w) equal rows."""
    repeats = np.maximum(np.floor(w), 1.0)
    chosen = np.repeat(np.arange(len(X)), np.minimum(repeats, LAST).astype(np.int64))[:LAST]
    return X[chosen], y[chosen], (w / repeats)[chosen]


def _candidates(parameters: ForestParameters, auto: Sequence[str]) -> list[ForestParameters]:
    """Return the parameters to compare, each once, the preferred of equals first."""
    if parameters.n_classes == 0:
        return [parameters]
    told = [
        (
            share / parameters.n_classes if "alpha" in auto else parameters.alpha,
            charge if "charge_opening" in auto else parameters.charge_opening,
        )
        for share, charge in CANDIDATES
    ]
    return [
        dataclasses.replace(parameters, alpha=alpha, charge_opening=charge)
        for alpha, charge in dict.fromkeys(told)
    ]


class Warmup:
    """The first rows of a stream, kept until the open settings are chosen for good.

    Parameters
    ----------
    auto : iterable of {"alpha", "charge_opening", "feature_scales"}
        Settings to choose.
    n_features : int
    """

    def __init__(self, auto: Iterable[str], n_features: int) -> None:
        self.auto = tuple(sorted(auto))
        self.n_repeats = 0
        self._parts: list[Rows] = [(np.empty((0, n_features), np.float32), *np.empty((2, 0)))]

    @property
    def is_done(self) -> bool:
        """Whether no later row can change the choice."""
        return self.n_repeats >= LAST

    @property
    def rows(self) -> Rows:
        """The rows kept: X, y, w."""
        if len(self._parts) > 1:
            X, y, w = (np.concatenate(columns) for columns in zip(*self._parts, strict=True))
            self._parts = [(X, y, w)]
        return self._parts[0]

    def add(
        self,
        parameters: ForestParameters,
        X: np.ndarray,
        y: np.ndarray,
        w: np.ndarray | None,
        n_threads: int,
    ) -> ForestParameters:
        """Keep rows, and return the parameters to use from the first row on.

        Parameters
        ----------
        parameters : ForestParameters
            Those in use.
        X, y, w
            As in :meth:`dmondrian.ensemble.Ensemble.update`.
        n_threads : int
        """
        before = self.n_repeats
        self._keep(X, np.asarray(y, np.float64), np.ones(len(X)) if w is None else w)
        if any(before < stage <= self.n_repeats for stage in (FIRST, LAST)):
            return choose(parameters, self.auto, self.rows, n_threads)
        return parameters

    def _keep(self, X: np.ndarray, y: np.ndarray, w: np.ndarray) -> None:
        """Keep the rows of positive weight that may still matter."""
        counted = np.flatnonzero(w > 0)
        repeats = np.cumsum(np.clip(np.floor(w[counted]), 1.0, LAST))
        counted = counted[: np.searchsorted(repeats, LAST - self.n_repeats) + 1]
        if len(counted):
            self._parts.append((X[counted], y[counted], w[counted]))
            self.n_repeats = min(self.n_repeats + int(repeats[len(counted) - 1]), LAST)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able copy."""
        kept = {
            name: base64.b64encode(values.astype(dtype).tobytes()).decode("ascii")
            for (name, dtype), values in zip(_STORED.items(), self.rows, strict=True)
        }
        return {"auto": list(self.auto), **kept}

    @classmethod
    def from_json(cls, told: Any, parameters: ForestParameters) -> Warmup:
        """Return the warm-up of :meth:`to_json`, checked.

        Raises
        ------
        CorruptError
            If it is not one that a forest of these parameters can have.
        """
        if not isinstance(told, dict) or set(told) != {"auto", *_STORED}:
            raise CorruptError(f"a warm-up should have the keys auto, {', '.join(_STORED)}")
        auto, d = told["auto"], parameters.n_features
        if not isinstance(auto, list) or not auto or not set(auto) <= set(OPEN_SETTINGS):
            raise CorruptError(f"a warm-up chooses among {sorted(OPEN_SETTINGS)}, not {auto!r}")
        try:
            raw = {name: base64.b64decode(told[name], validate=True) for name in _STORED}
        except (TypeError, ValueError, binascii.Error) as error:
            raise CorruptError(f"the rows of a warm-up cannot be read: {error}") from None
        n = len(raw["y"]) // 8
        if n >= LAST or [len(r) for r in raw.values()] != [4 * n * d, 8 * n, 8 * n]:
            raise CorruptError(f"the rows of a warm-up do not have {d} features each")
        X, y, w = (np.frombuffer(raw[name], dtype) for name, dtype in _STORED.items())
        labels = np.isfinite(y)
        if parameters.n_classes:
            labels = (y >= 0) & (y < parameters.n_classes) & (y == np.floor(y))
        if not np.isfinite(X).all() or not labels.all() or not ((w > 0) & np.isfinite(w)).all():
            raise CorruptError("the rows of a warm-up have values that no forest learns")
        warmup = cls(auto, d)
        warmup._keep(X.reshape(n, d).astype(np.float32), y.astype(np.float64), w)
        if warmup.is_done:
            raise CorruptError(f"a warm-up ends after {LAST} rows, this one has more")
        return warmup
