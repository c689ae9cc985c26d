"""The lag of forecasts behind learning: kinds of forests, in words, and slices of rows.

Each tree forecasts a row just before it learns it (:mod:`dmondrian.prequential.forecasts`). Three
kinds of forest cannot do that at the price of a way through a tree:

- the hierarchy of a regressor has to visit all nodes for the forecast of one cell. Its rows are
  forecast in slices, by the forest before the slice (:func:`slices`);
- a lifetime that is chosen from the tree is chosen from all nodes. Rows are forecast just before
  they are learned, but at lifetimes chosen before the slice;
- cells that are fitted jointly are learned in mini-batches, by the model before the batch
  (:mod:`dmondrian.joint_fit.minibatch`).

Relies on nothing that learns, so that showing a run needs no compiled code. Slices end at fixed
positions of the stream (:func:`marks`), and where calls do: callers end calls for `SLICED_KINDS` at
such positions, or where the stream itself is cut.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from dmondrian.ensemble.settings.parameters import ForestParameters

KINDS = EACH, LIFETIMES, BATCHES, SLICES = "row", "lifetime", "batch", "slice"
SLICED_KINDS = LIFETIMES, SLICES  # whose forecasts depend on where slices end
LAG = 4096  # most rows of a slice
_IN_WORDS = {
    EACH: "each row forecast just before it was learned",
    LIFETIMES: "each row forecast just before it was learned, at lifetimes that were chosen up to "
    f"{LAG:,} rows before",
    BATCHES: "each mini-batch forecast just before it was learned",
    SLICES: f"each row forecast before it was learned, by the forest of up to {LAG:,} rows before",
}
# Slices of a doubling of the stream: no row is forecast with less than 8/9 of its past, where rows
# that were dropped count too.
_OCTAVE = 8


def kind_of(parameters: ForestParameters) -> str:
    """Return how a forest's rows are forecast: "row", "lifetime", "batch" or "slice"."""
    if parameters.learns_jointly:
        return BATCHES
    if parameters.selects_lifetimes:
        return LIFETIMES
    return SLICES if parameters.has_gaussian_mixture else EACH


def delay_of(parameters: ForestParameters) -> int | str:
    """Return how far ahead a forest's rows are forecast, in rows: 1 where each label is known next.

    It is the most from the last row that the forecast of a row knows to that row. Where labels come
    by time it is text, the length of that time.
    """
    if parameters.follows_stream:
        return parameters.following.period or parameters.following.delay
    kind = kind_of(parameters)
    if kind == BATCHES:
        return parameters.joint.batch_size
    return LAG if kind == SLICES else 1


def in_words(kind: str, exact_from: int = 0, delay: int | str = 1) -> str:
    """Return in words how rows were forecast; those before ``exact_from`` were so in slices."""
    text = _IN_WORDS[kind]
    if kind == EACH and delay != 1:
        subject = (
            f"rows of {_of_time(delay)} forecast"
            if isinstance(delay, str)
            else (f"rows forecast {delay:,} at a time,")
        )
        text = f"{subject} before any of their labels was known"
    if exact_from:
        text += f" (the first {exact_from:,} rows: by the forest of up to {LAG:,} rows before)"
    return text


def delay_in_words(delay: int | str | None) -> str:
    """Return how far ahead rows are forecast: "delay up to 64 rows", "delay up to 7 days".

    None is that of a mini-batch, whose size an earlier version did not store.
    """
    if delay is None:
        return "delay up to a mini-batch"
    if delay == 0:
        return "no delay"
    if isinstance(delay, str):
        return f"delay up to {_of_time(delay)}"
    return "delay 1 row" if delay == 1 else f"delay up to {delay:,} rows"


def _of_time(length: str) -> str:
    """Return a length of time in words; one of numbers has no unit."""
    return length if " " in length else f"{length} by the column of times"


def marks(position: int, stop: int, least: int) -> Iterator[int]:
    """Yield the positions behind ``position``, up to ``stop``, at which slices end.

    They divide each doubling of the stream in eight, with at least ``least`` (a power of two) and
    at most 4096 rows between them.
    """
    while True:
        size = _slice_size(position, least)
        position = (position // size + 1) * size
        if position > stop:
            return
        yield position


def mark_from(position: int) -> int:
    """Return the first position at which a slice ends that is not before this one, > 0."""
    return next(marks(position - 1, position + LAG, 1))


def mark_up_to(position: int) -> int:
    """Return the last position at which a slice ends that is not behind this one, >= 0."""
    size = _slice_size(position, 1)
    return position // size * size


def _slice_size(position: int, least: int) -> int:
    octave = 1 << max(0, position.bit_length() - 1)
    return min(max(octave // _OCTAVE, least), LAG)


def slices(position: int, n: int, dropped: np.ndarray | None = None) -> Iterator[tuple[int, int]]:
    """Cut rows where test turns to train, if they are forecast in slices.

    Parameters
    ----------
    position : int
        Position of the first row in the stream.
    n : int
        Rows.
    dropped : int64 array, optional
        Places from ``position`` on, ascending, of rows of the stream that are not among the n.

    Yields
    ------
    (int, int)
        First row and row behind the last, from 0 to n.
    """
    start, n_all = 0, n if dropped is None else n + len(dropped)
    for mark in [*marks(position, position + n_all - 1, 1), position + n_all]:
        stop = mark - position
        if dropped is not None:
            stop -= bisect_left(dropped, stop)
        if start < stop:
            yield start, stop
            start = stop
