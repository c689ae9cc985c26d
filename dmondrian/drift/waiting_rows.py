"""Rows that wait for their labels: how many, and what to do where trees have learned no other.

Rows count once they have a positive weight. Those of a block of ``delay`` rows that is not full
are forecast, and not learned by trees (:mod:`dmondrian.drift.members`).

Relies on nothing that learns, so that whoever shows a run needs no compiled code.
"""

from __future__ import annotations

from collections.abc import Mapping

from dmondrian._text.wording import counted
from dmondrian.errors import ParameterError

SHARE = 4
"""Rows of a stream have at least so many blocks where the delay is to be of use."""


def learned_and_waiting(n_rows: int, delay: int) -> dict[str, int]:
    """Return "learned" and "waiting": of ``n_rows`` that came, how many trees learned or not."""
    waiting = n_rows % delay
    return {"learned": n_rows - waiting, "waiting": waiting}


def longest_delay(n_rows: int) -> int:
    """Return the longest delay that is of use where trees learn from ``n_rows``."""
    return max(1, n_rows // SHARE)


def waiting_in_words(rows: Mapping[str, int]) -> str:
    """Return how many rows of :func:`learned_and_waiting` wait; "" for none."""
    if not rows["waiting"]:
        return ""
    verb = "waits for its label" if rows["waiting"] == 1 else "wait for their labels"
    return f"{counted(rows['learned'], 'row')} learned by trees, {rows['waiting']:,} {verb}"


def nothing_learned(n_waiting: int, delay: int) -> str:
    """Return that all rows wait, and what to do, as a sentence of a warning or an error."""
    return (
        f"no row is learned yet: all {counted(n_waiting, 'row')} that came wait for their labels, "
        f"which come {delay:,} rows at a time (delay = {delay}), and nothing can be predicted; "
        f"give it {counted(delay - n_waiting, 'row')} more, or begin anew with a delay of at most "
        f"{longest_delay(n_waiting)}, a quarter of the rows"
    )


def check_learned(n_rows: int, delay: int, what: str = "") -> None:
    """Refuse a forest whose trees have learned none of the ``n_rows`` that came, if any came.

    Raises
    ------
    ParameterError
        With what to do; ``what`` names the model.
    """
    if 0 < n_rows < delay:
        raise ParameterError(what + nothing_learned(n_rows, delay))
