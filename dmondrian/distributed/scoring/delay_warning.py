"""A warning about forests that follow the stream, asked for more rows than they wait for labels.

Relies on nothing that learns. Promises to warn only where a delay that is clearly longer is
advised: which of two near ones forecasts later files better depends on the stream.
"""

from __future__ import annotations

import logging

from dmondrian._text.wording import counted
from dmondrian.drift.waiting_rows import delay_for_later
from dmondrian.ensemble.settings.parameters import ForestParameters

_log = logging.getLogger("dmondrian")
_CLEARLY = 4  # times the delay


def warn_of_delay(
    parameters: ForestParameters, n_rows: int, n_trained: int, delay: int | None = None
) -> None:
    """Warn if a delay that is clearly longer than a forest's is advised for such rows.

    Parameters
    ----------
    parameters : ForestParameters
    n_rows : int
        Rows to forecast, none of whose labels is known to the forest.
    n_trained : int
        Rows that it was trained on, which a longer delay would cut into fewer blocks.
    delay : int, optional
        Rows whose labels came together of late, where they come by time.
    """
    if not parameters.follows_stream:
        return
    period, delay = parameters.following.period, delay or parameters.following.delay
    better = delay_for_later(n_trained, n_rows)
    if better <= _CLEARLY * delay:
        return
    advice = f"with delay = {better}, or without drift, whichever forecasts such a file better"
    known = "at once" if delay == 1 else f"{delay:,} rows later"
    if period is not None:
        known = f"{period} later, which was {counted(delay, 'row')} at last"
        advice = "with a longer delay, or without drift"
    _log.warning(
        "this forest learned to mix its trees for labels that are known %s, and forecasts %s "
        "before any of their labels: young trees may have too much weight. For such files train it "
        "%s",
        known,
        f"{n_rows:,} rows",
        advice,
    )
