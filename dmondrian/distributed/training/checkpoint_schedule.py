"""Schedule of checkpoints.

Relies on the clock and on the time that saving took so far. Promises that no forest depends on it:
checkpoints are at ends of units.
"""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from dataclasses import dataclass

from dmondrian.distributed.worker.work_units import Unit
from dmondrian.errors import ParameterError

AUTO = "auto"
AUTO_SECONDS = 30.0  # least time between two checkpoints, for "auto"
AUTO_SHARE = 0.03  # largest share of the time spent on saving, for "auto"

_SECONDS = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0,
            "hour": 3600.0}  # fmt: skip


@dataclass(frozen=True)
class CheckpointInterval:
    """Interval between checkpoints: `rows` rows of the stream or `seconds` seconds.

    With a `share` the interval grows so that saving takes at most that share of it: states, and the
    time to save them, grow with the stream.
    """

    rows: int | None = None
    seconds: float | None = None
    share: float | None = None

    def seconds_after(self, saving: float) -> float:
        """Return the seconds to wait after a checkpoint that took `saving` seconds."""
        if self.seconds is None:
            return math.inf
        return max(self.seconds, saving / self.share) if self.share else self.seconds

    def is_due(self, unit: Unit) -> bool:
        """Return whether a multiple of `rows` lies in this unit."""
        return self.rows is not None and unit.stop // self.rows > unit.start // self.rows


class CheckpointSchedule:
    """Time of the next checkpoint, and time spent on saving.

    Parameters
    ----------
    interval : CheckpointInterval
    """

    def __init__(self, interval: CheckpointInterval) -> None:
        self.saving: float = 0.0  # seconds for committed checkpoints, summed over shards
        self._interval = interval
        self._by_worker: defaultdict[str, float] = defaultdict(float)  # of the next commit
        self._wait = interval.seconds_after(0.0)
        self._began = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint is due by time."""
        return time.monotonic() - self._began >= self._wait

    def note_request(self) -> None:
        """Record that a checkpoint is requested, which restarts the interval."""
        self._began = time.monotonic()

    def add_saving(self, worker: str, seconds: float) -> None:
        """Add the time that a worker took to save a shard."""
        self._by_worker[worker] += seconds

    def commit(self) -> None:
        """Record a commit; the next interval depends on the slowest worker."""
        self._wait = self._interval.seconds_after(max(self._by_worker.values(), default=0.0))
        self._began = time.monotonic()
        self.saving += sum(self._by_worker.values())
        self._by_worker.clear()


def parse_every(text: str | int | None) -> CheckpointInterval:
    """Read "auto", "100000 rows", "5 min", "30 s", a number of rows, or None (only at the end).

    Raises
    ------
    ParameterError
        For anything else, and for zero.
    """
    if text is None:
        return CheckpointInterval()
    if text == AUTO:
        return CheckpointInterval(seconds=AUTO_SECONDS, share=AUTO_SHARE)
    if isinstance(text, int) and not isinstance(text, bool):
        text = f"{text} rows"
    match = re.fullmatch(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-z]+)\s*", str(text).lower())
    if match:
        number = float(match[1].replace("_", ""))
        word = match[2] if match[2] in _SECONDS else match[2].rstrip("s")
        if word == "row" and number >= 1 and number == int(number):
            return CheckpointInterval(rows=int(number))
        if word in _SECONDS and number > 0:
            return CheckpointInterval(seconds=number * _SECONDS[word])
    raise ParameterError(
        f'checkpoint_every is {text!r}; expected "auto", or a positive number of rows '
        f'or a time, such as "100000 rows", "30 s", "5 min" or "2 h"'
    )
