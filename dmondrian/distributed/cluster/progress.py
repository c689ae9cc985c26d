"""Progress of a run: a record for programs, a line of text for people.

Relies on frequent calls; promises to report at most once a second, and at the end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

from dmondrian._text.progress_bar import ProgressBar
from dmondrian.distributed.cluster.events import counted
from dmondrian.distributed.metrics.baselines import baseline_in_words, is_of_key


@dataclass(frozen=True)
class Progress:
    """Progress of a run.

    Attributes
    ----------
    rows : int
        Rows that were learned, the mean over the shards.
    n_rows : int
        Rows of the stream.
    rows_per_second : float
        Of the last minute.
    durable : int
        Position of the last committed checkpoint.
    seconds_left : float or None
        At the rate of the last minute; None if no row was learned in it.
    workers : int
        Living workers.
    recoveries : int
        Shards restored after a loss.
    metrics : dict of str to float
        Progressive metrics so far.
    tree_groups : int
        Groups that the trees are cut into to fit the workers' memory; 1 is the whole model.
    is_stopping : bool
        A stop was requested: the run saves and stops at the end of the running step.
    stopping_at : int or None
        Position at which it stops; None without a request, and in records of earlier versions.
    stops_at_once : bool
        The next Ctrl-C in this process stops it at once.
    window : dict of str to float
        Progressive metrics of the last rows, and "rows", how many these are.
    faded : dict of str to float
        The same of rows that fade, and "half_life", after how many rows one counts half.
    baselines, window_baselines : dict of str to float
        Metrics of forecasts that know labels alone, of the rows so far and of the last ones, by the
        name of the baseline and of the metric.
    delay : int, str or None
        How far ahead rows are forecast, in rows or, as text, in time; None if that is not known.
    has_drifted : bool
        The loss of some rows was clearly above that of those before.
    waiting : int
        Rows among those learned that wait for their labels, with ``drift="follow"``.
    memory : int
        Bytes that the workers used when they were looked at last, up to half a minute ago.
    held_out : dict of str to float
        Metrics of the newest checkpoint that was evaluated on held-out data, its loss first, and
        its "position"; "best", the least loss so far, at "best_position".
    """

    rows: int
    n_rows: int
    rows_per_second: float
    durable: int
    seconds_left: float | None
    workers: int
    recoveries: int
    metrics: dict[str, float] = field(default_factory=dict)
    tree_groups: int = 1
    is_stopping: bool = False
    stopping_at: int | None = None
    stops_at_once: bool = False
    window: dict[str, float] = field(default_factory=dict)
    faded: dict[str, float] = field(default_factory=dict)
    baselines: dict[str, float] = field(default_factory=dict)
    window_baselines: dict[str, float] = field(default_factory=dict)
    delay: int | str | None = None
    has_drifted: bool = False
    waiting: int = 0
    memory: int = 0
    held_out: dict[str, float] = field(default_factory=dict)

    def line(self) -> str:
        """Return the record as one line."""
        return f"{self._rows} ({self._percent}%), {', '.join([*self._pace, *self._others])}"

    def show_on(self, bar: ProgressBar) -> None:
        """Show the record as a bar; in the text behind it rate and time left come first.

        Parameters
        ----------
        bar : ProgressBar
        """
        text = ", ".join([*self._pace, self._rows, *self._others])
        done, total = (self.rows, self.n_rows) if self.n_rows else (1, 1)
        bar.show(text, done, total, line=self.line(), state=self.state, now=done >= total)

    @property
    def _rows(self) -> str:
        return f"{self.rows:,} of {self.n_rows:,} rows"

    @property
    def _percent(self) -> int:
        return 100 * self.rows // self.n_rows if self.n_rows else 100

    @property
    def _pace(self) -> list[str]:
        """Return whether it stops, the pace and the time left."""
        parts = []
        if self.is_stopping:
            where = "soon" if self.stopping_at is None else f"at row {self.stopping_at:,}"
            how = " (Ctrl-C again: at once)" if self.stops_at_once else ""
            parts.append(f"stopping {where}{how}")
        if self.rows_per_second > 0:
            parts.append(f"{self.rows_per_second:,.0f} rows/s")
        if self.seconds_left is not None and not self.is_stopping:
            parts.append(f"{clock(self.seconds_left)} left")
        return parts

    @property
    def _others(self) -> list[str]:
        parts = [f"saved at {self.durable:,}"]
        parts += self._measured
        if self.held_out:
            name = next(iter(self.held_out))
            where = f"held-out {name} {self.held_out[name]:.4g}"
            parts.append(f"{where} at row {int(self.held_out.get('position', 0)):,}")
        if self.tree_groups > 1:
            parts.append(f"trees in {self.tree_groups} groups")
        if self.recoveries:
            parts.append(f"{counted(self.recoveries, 'shard')} recovered")
        return parts

    @property
    def _measured(self) -> list[str]:
        """Return metrics so far, of the last rows and of a baseline.

        That is the first one, or of rows with lags the one that knows the label of the same key.
        """
        parts, n = [], int(self.window.get("rows", 0))
        for name, value in self.metrics.items():
            text = f"{name} {value:.4g}"
            if name in self.window and n < self.rows:
                text += f" ({self.window[name]:.4g} of the last {n:,} rows)"
            parts.append(text)
        name = next(iter(self.metrics), "")
        end = f"_{name}"
        known = [key.removesuffix(end) for key in self.baselines if name and key.endswith(end)]
        of_key = [baseline for baseline in known if is_of_key(baseline)]
        for baseline in [*of_key, *known][:1]:
            value = self.baselines[baseline + end]
            parts.append(f"{baseline_in_words(baseline)}: {name} {value:.4g}")
        if self.metrics and self.delay is not None:
            text = self.delay if isinstance(self.delay, str) else f"{self.delay:,}"
            parts.append(f"delay {text}")
        if self.waiting:
            parts.append(f"{counted(self.waiting, 'row')} waiting for labels")
        return parts

    @property
    def state(self) -> tuple[object, ...]:
        """Values whose change warrants a new line, where lines are not overwritten."""
        evaluated = self.held_out.get("position")
        return (
            self.rows, self.durable, self.workers, self.recoveries, self.is_stopping, evaluated
        )  # fmt: skip


class Speed:
    """Rows a second over the last minute.

    Parameters
    ----------
    rows : int
        Rows at the start.
    clock : callable
        Returns seconds.
    """

    window = 60.0
    """Seconds over which the rate is measured."""

    def __init__(self, rows: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._points = deque([(clock(), rows)])  # at most two per second, of the last minute

    def after(self, rows: int) -> float:
        """Record the current number of rows; return the rows per second."""
        now = self._clock()
        if len(self._points) > 1 and now - self._points[-2][0] < 1.0:
            self._points.pop()
        self._points.append((now, rows))
        while len(self._points) > 2 and self._points[1][0] <= now - self.window:
            self._points.popleft()
        then, before = self._points[0]
        return (rows - before) / (now - then) if now > then else 0.0


class Timeline:
    """Progress of an attempt over time; thinned by dropping every second point.

    Attributes
    ----------
    points : list of [seconds, rows, workers, recoveries, position saved]
    """

    most = 128

    def __init__(self) -> None:
        self.points: list[list[float]] = []
        self._began = time.monotonic()
        self._step = 0.0  # least seconds between two points
        self._last: list[float] = []

    def add(self, progress: Progress) -> None:
        """Add a record unless one was added just before; `all_points` always ends with the last."""
        seconds = round(time.monotonic() - self._began, 1)
        self._last = [seconds, progress.rows, progress.workers, progress.recoveries,
                      progress.durable]  # fmt: skip
        if not self.points or seconds - self.points[-1][0] >= self._step:
            self.points.append(self._last)
        if len(self.points) > self.most:
            self.points = self.points[::2]
            self._step = max(1.0, 2.0 * self._step)

    def all_points(self) -> list[list[float]]:
        """Return the points, up to now."""
        is_newer = bool(self._last) and self._last is not self.points[-1]
        return [*self.points, self._last] if is_newer else list(self.points)


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    whole = max(0, int(seconds + 0.5))
    hours, minutes = divmod(whole // 60, 60)
    tail = f"{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
    return f"{hours}:{tail}" if hours else tail


Listener = Callable[[Progress], None]


class BarWriter:
    """Shows progress on a stream; see :class:`dmondrian._text.progress_bar.ProgressBar`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._bar = ProgressBar(stream)

    def __call__(self, progress: Progress) -> None:
        """Show a record."""
        progress.show_on(self._bar)
        if progress.rows >= progress.n_rows:
            self._bar.close()


def listener(progress: Listener | bool | None) -> Listener | None:
    """Return a callback from what a caller passes; True: a bar, or lines in a log."""
    if progress is True:
        return BarWriter()
    return progress if callable(progress) else None


def _end_of(progress: Progress) -> tuple[object, ...]:
    """Return what may change after the last row was learned."""
    return progress.rows, progress.durable, progress.held_out.get("position")


class ProgressReporter:
    """Calls a listener at most once each `interval` seconds, or at once when asked to."""

    interval = 1.0

    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener
        self._last = -float("inf")  # time of the last report
        self._reported: Progress | None = None

    def report(self, make: Callable[[], Progress], now: bool = False) -> None:
        """Pass the listener a record, made by `make`, if the interval has passed or `now`."""
        if self._listener is None:
            return
        moment = time.monotonic()
        if now or moment - self._last >= self.interval:
            self._last = moment
            progress, last = make(), self._reported
            is_end = progress.rows == progress.n_rows
            if is_end and last and _end_of(last) == _end_of(progress):
                return  # the end is reported once
            self._reported = progress
            self._listener(progress)
