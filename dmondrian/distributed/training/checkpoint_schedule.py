"""When a run checkpoints.

Relies on the clock and on what saving took so far. Promises that none of it changes a forest: it
chooses among the ends of units.
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
AUTO_SECONDS = 30.0  # between two checkpoints at least, where the run chooses
AUTO_SHARE = 0.03  # of the time that saving may take, where the run chooses

_SECONDS = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0,
            "hour": 3600.0}  # fmt: skip


@dataclass(frozen=True)
class Every:
    """When to checkpoint: each `rows` rows of the stream or each `seconds` seconds.

    With a `share` the seconds between two checkpoints grow to what keeps the former below that
    share of them: a state grows with the stream, and so does the time that saving it takes.
    """

    rows: int | None = None
    seconds: float | None = None
    share: float | None = None

    def after(self, saving: float) -> float:
        """Return the seconds to wait behind a checkpoint that took `saving` seconds."""
        if self.seconds is None:
            return math.inf
        return max(self.seconds, saving / self.share) if self.share else self.seconds

    def is_due(self, unit: Unit) -> bool:
        """Say whether a multiple of `rows` lies in this unit."""
        return self.rows is not None and unit.stop // self.rows > unit.start // self.rows


class Pace:
    """When the next checkpoint is due by the clock, and how long saving takes.

    Parameters
    ----------
    every : Every
    """

    def __init__(self, every: Every) -> None:
        self.saving: float = 0.0  # seconds that committed checkpoints took, summed over shards
        self._every = every
        self._by_worker: defaultdict[str, float] = defaultdict(
            float
        )  # seconds, of the checkpoint under way
        self._wait = every.after(0.0)
        self._began = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return time.monotonic() - self._began >= self._wait

    def ask(self) -> None:
        """Note that a checkpoint is asked for: the next is not due before it is taken."""
        self._began = time.monotonic()

    def take(self, worker: str, seconds: float) -> None:
        """Note how long a worker saved one shard."""
        self._by_worker[worker] += seconds

    def commit(self) -> None:
        """Note that a checkpoint is taken; wait for as long as its slowest worker makes worth."""
        self._wait = self._every.after(max(self._by_worker.values(), default=0.0))
        self._began = time.monotonic()
        self.saving += sum(self._by_worker.values())
        self._by_worker.clear()


def parse_every(text: str | int | None) -> Every:
    """Read "auto", "100000 rows", "5 min", "30 s", a number of rows, or None (only at the end).

    Raises
    ------
    ParameterError
        For anything else, and for zero.
    """
    if text is None:
        return Every()
    if text == AUTO:
        return Every(seconds=AUTO_SECONDS, share=AUTO_SHARE)
    if isinstance(text, int) and not isinstance(text, bool):
        text = f"{text} rows"
    match = re.fullmatch(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-z]+)\s*", str(text).lower())
    if match:
        number = float(match[1].replace("_", ""))
        word = match[2] if match[2] in _SECONDS else match[2].rstrip("s")
        if word == "row" and number >= 1 and number == int(number):
            return Every(rows=int(number))
        if word in _SECONDS and number > 0:
            return Every(seconds=number * _SECONDS[word])
    raise ParameterError(
        f'checkpoint_every is {text!r}; expected "auto", or a positive number of rows '
        f'or a time, such as "100000 rows", "30 s", "5 min" or "2 h"'
    )
