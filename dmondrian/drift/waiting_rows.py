"""Rows that wait for their labels: how many, and what to do where trees have learned no other.

Rows count once they have a positive weight. Those of a block that is not full, of ``delay`` rows or
of a time, are forecast, and not learned by trees (:mod:`dmondrian.drift.members`).

Relies on nothing that learns, so that showing a run needs no compiled code.
"""

from __future__ import annotations

from collections.abc import Mapping

from dmondrian._text.wording import counted
from dmondrian.ensemble.settings.drift_settings import DriftSettings
from dmondrian.errors import ParameterError

SHARE = 4
"""Blocks that the rows of a stream should have at least, for the delay to be of use."""

MOST_LATE = 0.01
"""Share of rows that may come late without a warning."""


LONGEST_ADVISED = 256
"""Delay that is advised at most: with longer ones later files are forecast worse on most streams,
as weights that few blocks taught are hardly better than none (`benchmarks/drift/later.py`)."""


def longest_delay(n_rows: int) -> int:
    """Return the longest delay that is of use where trees learn from ``n_rows``."""
    return max(1, n_rows // SHARE)


def delay_for_later(n_trained: int, n_later: int | None = None) -> int:
    """Return the delay, in rows, to train with for a file that is scored later.

    Of ``n_trained`` rows few wait for a block that is not full.

    Parameters
    ----------
    n_trained : int
    n_later : int, optional
        Rows of the file, >= 1, where they are known.
    """
    longest = min(longest_delay(n_trained), LONGEST_ADVISED, n_later or LONGEST_ADVISED)
    few = longest // 32
    return min(range(longest, longest // 2, -1), key=lambda delay: max(n_trained % delay, few))


def waiting_in_words(rows: Mapping[str, int]) -> str:
    """Return how many rows that came, "learned" or "waiting", wait; "" for none."""
    if not rows["waiting"]:
        return ""
    verb = "waits for its label" if rows["waiting"] == 1 else "wait for their labels"
    return f"{counted(rows['learned'], 'row')} learned by trees, {rows['waiting']:,} {verb}"


def nothing_learned(n_waiting: int, drift: DriftSettings) -> str:
    """Return that all rows wait, and what to do, as a sentence of a warning or an error."""
    delay = drift.delay
    if drift.period is not None:
        return (
            f"no row is learned yet: all {counted(n_waiting, 'row')} that came wait for their "
            f'labels, which come together with those of {drift.period} (delay = "{drift.period}"), '
            "and nothing can be predicted; give it rows of a later time, or begin anew with a "
            "shorter delay"
        )
    return (
        f"no row is learned yet: all {counted(n_waiting, 'row')} that came wait for their labels, "
        f"which come {delay:,} rows at a time (delay = {delay}), and nothing can be predicted; "
        f"give it {counted(delay - n_waiting, 'row')} more, or begin anew with a delay of at most "
        f"{longest_delay(n_waiting)}, a quarter of the rows"
    )


def known_at_once(n_trained: int) -> str:
    """Return what metrics of labels that are known at once leave out, and what to do."""
    return (
        "each of these forecasts knew the label of the row before: rows of a file that is scored "
        "before its labels are known are forecast worse, maybe worse than without drift; for such "
        f"files train with [forest] delay = {delay_for_later(n_trained)}, and the metrics are of "
        "such forecasts; which delay is best depends on the stream: try shorter ones, too"
    )


def late_in_words(n_late: int, n_rows: int) -> str | None:
    """Return, as a sentence of a warning, that rows do not come by time; None where they do."""
    if n_late <= MOST_LATE * n_rows:
        return None
    return (
        f"the stream is not sorted by time: {n_late:,} of {counted(n_rows, 'row')} came when the "
        "rows of their time had their labels already, and count as rows of the time that it was "
        "then; sort the rows by time, or give a delay in rows"
    )


def check_learned(rows: Mapping[str, int], drift: DriftSettings, what: str = "") -> None:
    """Refuse a forest whose trees have learned none of the rows that came, if any came.

    Raises
    ------
    ParameterError
        With what to do; ``what`` names the model.
    """
    if rows["waiting"] and not rows["learned"]:
        raise ParameterError(what + nothing_learned(rows["waiting"], drift))
