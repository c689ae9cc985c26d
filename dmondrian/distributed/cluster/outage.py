"""Outages of stores: how long work that has an end waits for one, and how following waits.

Relies on :class:`dmondrian.errors.OutageError`, which failures that waiting may mend have. Promises
that the pauses between two tries grow to `LONGEST_PAUSE`, and that an outage is logged once when it
begins and once when it is over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from dmondrian._text.wording import EACH_TIME
from dmondrian.errors import OutageError

_log = logging.getLogger("dmondrian")

PATIENCE = 90.0
"""Seconds for which a training, which has an end, waits for a store that does not answer."""

LONGEST_PAUSE = 60.0
"""Seconds between two tries of what goes on until it is asked to end."""

_FIRST_PAUSE = 1.0
_LONGEST_OF_BOUNDED = 10.0

T = TypeVar("T")


def outlast(action: Callable[[], T], seconds: float = PATIENCE) -> T:
    """Return what an action does that may be repeated, once its store answers within some seconds.

    Raises
    ------
    OutageError
        It did not.
    """
    end, waiting = time.monotonic() + seconds, Outage()
    while True:
        try:
            found = action()
        except OutageError as error:
            if time.monotonic() >= end:
                raise
            time.sleep(min(waiting.failed(error), _LONGEST_OF_BOUNDED))
        else:
            waiting.passed()
            return found


class Outage:
    """Outages that are waited for, one after the other."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._pause = _FIRST_PAUSE

    @property
    def is_on(self) -> bool:
        """Whether the last try failed."""
        return self._began is not None

    def failed(self, error: OutageError) -> float:
        """Note a try that failed; return the seconds to wait before the next one."""
        if self._began is None:
            self._began, self._pause = time.monotonic(), _FIRST_PAUSE
            _log.warning(
                "%s This is tried again, at least each %.0f s; nothing is lost",
                error, LONGEST_PAUSE, extra=EACH_TIME,
            )  # fmt: skip
        pause, self._pause = self._pause, min(2.0 * self._pause, LONGEST_PAUSE)
        return pause

    def passed(self) -> None:
        """Note a try that went well."""
        if self._began is not None:
            seconds = time.monotonic() - self._began
            _log.warning("the store answers again, after %.0f s", seconds, extra=EACH_TIME)
            self._began = None
