"""A test for drift: whether the loss of a stream's last rows is clearly above that before.

Losses are averaged over panes of rows. Windows of 8, 16, 32, ... panes follow each other; each is
compared with the one but before it, so that a drift within the one between blurs neither, by
Welch's t-test, one-sided: a loss that falls, as while a forest learns, is no alarm. Windows of
several lengths, as in ADWIN (Bifet, Gavalda, 2007, "Learning from time-changing data with adaptive
windowing", SDM), find sudden drifts soon and slow ones at all.

False alarms: of a stream whose losses are independent and do not rise, at most ``FALSE_ALARMS`` of
all runs give one, however long they are. Test j of windows of the i-th length, from 1, is at the
level FALSE_ALARMS / (2^i j (j + 1)), and these add up to it (means of panes are taken as normal).

Relies on SciPy for the t-distribution. Promises that what is found depends on the panes' means
alone, in a state of a few numbers for each doubling of the stream.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dmondrian.distributed.metrics.baselines import number_of

FALSE_ALARMS = 0.01
"""Most of a stationary stream's runs that give an alarm, over all of their rows."""

LEAST_PANES = 8
"""Panes of the shortest window."""

FOLLOWING = ("amf-classifier", "amf-regressor")
"""Algorithms that can follow a stream that drifts."""

_LOSSES = {"classification": "log loss", "regression": "absolute error"}
_RISE = 0.02  # least part by which the loss rises: what is less is not clearly worse
_LEVELS = 40  # doublings of a window
_KEPT = 8  # newest rises that are kept


class Rise(NamedTuple):
    """A loss that was clearly higher in a window of rows than in the one but before."""

    before_start: int  # rows before the first window
    before_stop: int  # rows before its end
    start: int  # the same of the second
    stop: int
    before: float  # mean loss
    after: float


class _Window(NamedTuple):
    """Means of panes."""

    n: int
    mean: float
    squares: float  # deviations from it


class DriftTest:
    """Test for a rise of the loss along one stream, over windows.

    Parameters
    ----------
    pane : int
        Rows of a pane.
    start : int
        Number of the first row.

    Attributes
    ----------
    rises : list of Rise
        The newest ones, each as it was found first.
    n_found : int
        Rises; one counts where its first window is behind the start of the second of the one found
        before.
    """

    def __init__(self, pane: int, start: int = 0) -> None:
        self.pane, self.start = pane, start
        self.n_panes = 0
        self.rises: list[Rise] = []
        self.n_found = 0
        self._open: list[float] = []  # means since the last window
        # Windows so far, the last one, and the one before it once there is one.
        self._levels: list[tuple[int, _Window, _Window]] = []

    def add(self, mean: float) -> Rise | None:
        """Add the mean loss of the next pane; return the rise that is found by it."""
        self.n_panes += 1
        self._open.append(mean)
        if len(self._open) < LEAST_PANES:
            return None
        window, rise, level = _window(self._open), None, 0
        self._open = []
        while True:
            if level == len(self._levels):
                self._levels.append((1, window, window))
                break
            count, last, earlier = self._levels[level]
            if count > 1 and _is_rise(earlier, window, _level_of(level + 1, count - 1)):
                rise = self._note(earlier, window) or rise
            self._levels[level] = count + 1, window, last
            if count % 2 == 0 or level + 1 == _LEVELS:
                break
            window, level = _joined(last, window), level + 1
        return rise

    def _note(self, before: _Window, after: _Window) -> Rise | None:
        """Return the rise if it is new."""
        stop = self.start + self.n_panes * self.pane
        start = stop - after.n * self.pane
        before_stop = start - after.n * self.pane
        before_start = before_stop - before.n * self.pane
        if self.rises and before_start < self.rises[-1].start:
            return None
        rise = Rise(before_start, before_stop, start, stop, before.mean, after.mean)
        self.n_found += 1
        self.rises = [*self.rises, rise][-_KEPT:]
        return rise

    def to_json(self) -> dict[str, Any]:
        """Return the state; floats go through JSON exactly."""
        return {
            "n_panes": self.n_panes,
            "start": self.start,
            "open": list(self._open),
            "levels": [[count, *last, *before] for count, last, before in self._levels],
            "rises": [list(rise) for rise in self.rises],
            "n_found": self.n_found,
        }

    def load_json(self, stored: Any) -> None:
        """Take over what :meth:`to_json` returned.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is malformed.
        """
        self.n_panes, self.start = _count(stored["n_panes"]), _count(stored["start"])
        self.n_found = _count(stored["n_found"])
        self._open = [number_of(mean) for mean in stored["open"]]
        self._levels = [
            (_count(count), _stored_window(numbers[:3]), _stored_window(numbers[3:]))
            for count, *numbers in stored["levels"]
        ]
        self.rises = [
            Rise(*map(_count, rise[:4]), *map(number_of, rise[4:])) for rise in stored["rises"]
        ]
        is_sound = len(self._open) < LEAST_PANES and len(self._levels) <= _LEVELS
        is_sound = is_sound and len(self.rises) == min(self.n_found, _KEPT)
        sizes = [LEAST_PANES << level for level in range(len(self._levels))]
        is_sound = is_sound and [last.n for _, last, _ in self._levels] == sizes
        is_sound = is_sound and [before.n for _, _, before in self._levels] == sizes
        if not is_sound or any(level[0] < 1 for level in self._levels):
            raise ValueError("windows of a test for drift")


def drift_in_words(test: DriftTest, task: str) -> str:
    """Return that a stream drifts, and where; "" if no rise was found."""
    if not test.rises:
        return ""
    rise = test.rises[-1]
    text = (
        f"the stream drifts: the mean {_LOSSES[task]} of rows {rise.start + 1:,} to "
        f"{rise.stop:,} is {rise.after:.4g}, that of rows {rise.before_start + 1:,} to "
        f"{rise.before_stop:,} was {rise.before:.4g}"
    )
    return text if test.n_found == 1 else f"{text} (the last of {test.n_found:,} such rises)"


def drift_advice(algorithm: str | None, is_following: bool) -> str:
    """Return what to do about a drift, behind its description; "" if nothing can be done."""
    if is_following or algorithm not in FOLLOWING:
        return ""
    return (
        '; a forest with drift="follow" forgets what does not hold any more; give it a delay where '
        "rows are scored before the labels of those before them are known"
    )


def _level_of(length: int, number: int) -> float:
    """Return the level of the test of this number, of windows of this length; both from 1."""
    return FALSE_ALARMS / (2.0**length * number * (number + 1))


def _window(means: list[float]) -> _Window:
    mean = math.fsum(means) / len(means)
    return _Window(len(means), mean, math.fsum((value - mean) ** 2 for value in means))


def _joined(a: _Window, b: _Window) -> _Window:
    n, step = a.n + b.n, b.mean - a.mean
    squares = a.squares + b.squares + step * step * a.n * b.n / n
    return _Window(n, a.mean + step * b.n / n, squares)


def _is_rise(a: _Window, b: _Window, level: float) -> bool:
    """Whether the mean of ``b`` is clearly above that of ``a``, by a test of this level."""
    step = b.mean - a.mean
    if not step > _RISE * abs(a.mean):
        return False
    errors = [window.squares / (window.n - 1) / window.n for window in (a, b)]
    variance = sum(errors)
    if not 0.0 < variance < math.inf:
        return False
    from scipy.special import stdtr

    shares = (error / variance for error in errors)
    freedom = 1.0 / sum(share**2 / (w.n - 1) for share, w in zip(shares, (a, b), strict=True))
    return bool(stdtr(freedom, -step / math.sqrt(variance)) < level)


def _stored_window(stored: Any) -> _Window:
    n, mean, squares = stored
    return _Window(_count(n), number_of(mean), number_of(squares))


def _count(stored: Any) -> int:
    if type(stored) is not int or not 0 <= stored <= 2**62:
        raise ValueError(f"{str(stored)[:80]!r} is no count")
    return stored
