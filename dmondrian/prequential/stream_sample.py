"""Test-then-train on a sample of the stream: forecasts made just before their rows are learned.

Relies on the marks of :mod:`dmondrian.prequential.stream_sample_kernels` and on whole sums.
Promises that the trees learn what :meth:`dmondrian.ensemble.ensemble.Ensemble.update` learns; that
which rows are forecast, and their forecasts, depend on the stream and the trees alone: not on
the cuts between calls, the threads, or the cut of trees into ensembles whose sums are added; and a
price that grows with the logarithm of the rows.

Shapes: n rows, a rows of the sample, k outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:  # whoever shows what was fitted needs no kernels
    from dmondrian.ensemble.ensemble import Ensemble
    from dmondrian.ensemble.rows.prepared_rows import PreparedRows

DENSITY = 1024.0  # rows forecast of each doubling of the stream
# Deeper forests average differently: what is fitted to samples may change with the rows.
FADING = 0.25  # what a row counts after the total weight has doubled
PRIOR_ROWS = 8.0  # rows that a calibration counts which is none
# Rows forecast between two looks at the answers, and numbers of a tree's answers, if these are
# more rows: bounds the memory for them.
_AT_ONCE, _NUMBERS = 256, 2**16


class Sampled(NamedTuple):
    """Forecasts of the rows of a sample."""

    rows: np.ndarray  # int64 [a], row numbers
    before: np.ndarray  # float64 [a], total weight of the rows before
    hits: np.ndarray  # float64 [a], how often the row counts
    sums: (
        np.ndarray
    )  # int64 [a, k], summed over trees, see :mod:`dmondrian.ensemble.sums.exact_sums`
    units: np.ndarray  # float64 [a, 2] of the moments of labels; [a, 0] of probabilities


def by_octave(sampled: Sampled) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the doublings of the total weight so far, and which rows (bool [a]) were forecast then.

    In the order of the stream. A total below one has not doubled yet.
    """
    octaves = np.maximum(np.frexp(sampled.before)[1] - 1, 0)
    for now in np.unique(octaves).tolist():
        yield now, octaves == now


def octave_of(before: float) -> int:
    """Return the doublings of a total weight so far, as :func:`by_octave` counts them."""
    return max(math.frexp(before)[1] - 1, 0)


def rows_until_sampled(before: float) -> int:
    """Return how many rows of weight one, after rows of this total weight, are not in the sample.

    The first row of a stream counts as one that is.
    """
    if before < DENSITY:
        return 0
    step = math.ldexp(1.0, math.frexp(before)[1] - 1) / DENSITY
    return int(math.ceil(before / step) * step - before)


def sum_samples(parts: Sequence[Sampled]) -> Sampled:
    """Return the sample of all trees from those of disjoint sets of them, in any order."""
    total = parts[0].sums.copy()
    for part in parts[1:]:
        total += part.sums
    return parts[0]._replace(sums=total)


def forecast_and_learn(
    ensemble: Ensemble,
    X: np.ndarray | PreparedRows,
    y: np.ndarray,
    w: np.ndarray | None = None,
    n_threads: int = 1,
) -> Sampled:
    """Let an ensemble learn rows in order; return forecasts of a sample, made just before.

    Parameters
    ----------
    ensemble : Ensemble
    X, y, w, n_threads
        As in :meth:`dmondrian.ensemble.ensemble.Ensemble.update`.
    """
    from dmondrian.prequential.stream_sample_kernels import write_hits
    from dmondrian.tree.box_encoding import read_only

    ensemble.check_sizes(y, w)
    X, may_be_last = ensemble.prepare(X), ensemble.may_be_last(y, w)
    before, hits = np.empty(len(X)), np.empty(len(X))
    weights = read_only(np.empty(0) if w is None else w)
    write_hits(ensemble.total_weight, weights, DENSITY, before, hits)
    sampled_rows = np.flatnonzero(hits)
    lifetimes = ensemble.parameters.lifetimes_at(before[sampled_rows])
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    start = 0
    at_once = max(_AT_ONCE, _NUMBERS // ensemble.predictor.sample_output.width)
    for first in range(0, max(len(sampled_rows), 1), at_once):
        chunk = slice(first, first + at_once)
        stop = int(sampled_rows[chunk.stop]) if chunk.stop < len(sampled_rows) else len(X)
        chunk_weights = None if w is None else w[start:stop]
        kept.append(
            ensemble.answer_and_learn(
                X[start:stop],
                y[start:stop],
                chunk_weights,
                n_threads,
                sampled_rows[chunk] - start,
                lifetimes[chunk],
            )
        )
        start = stop
    if may_be_last:
        ensemble.give_back()
    sums, units = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    return Sampled(sampled_rows, before[sampled_rows], hits[sampled_rows], sums, units)
