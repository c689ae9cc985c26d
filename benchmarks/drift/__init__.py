"""How good forecasts are where the world changes, beside online peers, and when labels are late.

Every learner forecasts each row of a stream before it learns it, with the labels of the rows that
are at least `delay` rows before it: at delay 1 of all rows before it, at 4,096 of all but a file of
rows. Learners get the same rows in the same order, one at a time, each in a process of its own.
What they learn is in `streams`, who they are in `learners`, how they are compared in `blocks`, and
what is published in `page`.

    python -m benchmarks.drift --data <folder> --peers <cache folder>
"""

from __future__ import annotations

from benchmarks.drift.page import PAGE

__all__ = ["PAGE"]
