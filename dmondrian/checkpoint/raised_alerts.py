"""Alerts of a run: which were raised, and which conditions still hold.

::

    alerts.json    the conditions that hold now, and the alerts raised last

Relies on the run's lease: who trains a run writes them. Promises that a condition which holds when
a run stops is known when it goes on, so that it is not raised anew.
"""

from __future__ import annotations

from typing import Any

from dmondrian.checkpoint import document
from dmondrian.errors import CorruptError, NotFoundError
from dmondrian.store import Store

NAME = "alerts.json"
MOST = 100
"""Alerts that are kept, the newest."""


def read_alerts(store: Store) -> dict[str, Any]:
    """Return "on", the conditions that hold, and "raised", the alerts raised last, oldest first.

    Each has "when", the condition as text, "value", "row" and "at", seconds since the epoch. What
    is damaged is as if nothing was raised.
    """
    nothing: dict[str, Any] = {"on": [], "raised": []}
    try:
        content = document.unseal(store.get(NAME, document.MAX_BYTES), NAME)
    except (NotFoundError, CorruptError):
        return nothing
    lists = {name: content.get(name) for name in nothing}
    is_sound = all(isinstance(some, list) and all(map(_is_alert, some)) for some in lists.values())
    return lists if is_sound else nothing


def write_alerts(store: Store, on: list[dict[str, Any]], raised: list[dict[str, Any]]) -> None:
    """Write alerts to a run's folder, in the form in which `read_alerts` returns them."""
    store.put(NAME, document.seal({"on": on, "raised": raised[-MOST:]}))


def _is_alert(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("when"), str):
        return False
    numbers = [entry.get(name) for name in ("value", "row", "at")]
    return all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in numbers)
