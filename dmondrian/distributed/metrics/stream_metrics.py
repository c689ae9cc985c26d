"""Metrics of a stream: of its last rows and of rows that fade, beside baselines, and its drift.

Relies on :mod:`dmondrian.distributed.metrics.windows`, of baselines and of the test for drift.
Promises a pure function of the rows and forecasts in order, by row number: neither the cuts between
calls nor JSON between them change a bit. A run of an earlier version, which kept none of this, has
it from the row on at which it is resumed.

Shapes: n rows, F forecasters: the forest, then the baselines; C = 1 + 2 F columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dmondrian.distributed.metrics.baselines import Baselines, number_of
from dmondrian.distributed.metrics.drift_test import FALSE_ALARMS, DriftTest, Rise, drift_in_words
from dmondrian.distributed.metrics.windows import HALF_LIFE, PANE, Sums, Windows

Terms = tuple[np.ndarray, np.ndarray]


class StreamMetrics:
    """Sums over forecasts of one stream.

    Parameters
    ----------
    task : {"classification", "regression"}
    delay : int, str or None
        How far ahead rows are forecast, in rows or, as text, in time; None if that is not known.
    start : int, default=0
        Position of the stream's first row.
    since : int, default=0
        Rows that came before the first one counted.
    lag_of_key : int or None
        As of :class:`dmondrian.distributed.metrics.baselines.Baselines`.
    """

    def __init__(
        self,
        task: str,
        delay: int | str | None,
        start: int = 0,
        since: int = 0,
        lag_of_key: int | None = None,
    ) -> None:
        self.task, self.delay, self.since = task, delay, since
        self.baselines = Baselines(task, has_delay=delay != 1, lag_of_key=lag_of_key)
        self.windows = Windows(1 + len(self.baselines.names))
        self.test = DriftTest(PANE, start + since)
        self.numbered = 0  # rows of positive weight
        # At points of the learning curve: rows, sums since the point before, faded metrics of the
        # forest. Differences of sums so far would lose what is small beside all rows before.
        self.points: list[list[float]] = []
        self.dropped = np.zeros(len(self.windows.total))  # sums up to a last point that was dropped
        self.newest_rise: Rise | None = None  # found by the last call of `add`

    def add(
        self,
        terms: Terms,
        y: np.ndarray,
        w: np.ndarray,
        n_classes: int,
        marks: Mapping[int, set[int] | None],
        after_learning: Sequence[int] | None = None,
        earlier: np.ndarray | None = None,
    ) -> None:
        """Add forecasts and labels of rows to the metrics of the stream.

        Parameters
        ----------
        terms : two float64 [n]
            Log loss and hits of the forest, or squared and absolute errors.
        y, w : float64 [n]
        n_classes : int
        marks : mapping of int to set of int or None
            How many of these rows are learned at points of the curve, and the rows of the points
            that are kept from there on, None for all. Sums of others go to the next point.
        after_learning : sequence of int, optional
            Rows that are forecast after the one before was learned; by default by a delay in rows.
        earlier : float64 [n], optional
            Labels of earlier rows of the same key, nan for none.
        """
        baseline_terms = self.baselines.terms(
            y, w, n_classes, self._turns(w, after_learning), earlier
        )
        self.newest_rise, before = None, self.windows.rows + self.since
        columns = np.stack([term for pair in (terms, *baseline_terms) for term in pair], axis=1)
        for stop in self.windows.add(y, w, columns, list(marks)):
            if self.windows.rows % PANE == 0:
                self._test_pane()
            if stop in marks:
                faded = self._metrics(self.windows.fade())[0]
                kept = [faded.get(name, math.nan) for name in self._names[:2]]
                sums = self.dropped + self.windows.since
                self.points.append([before + stop, *sums.tolist(), *kept])
                self.dropped = np.zeros_like(sums)
                if (rows := marks[stop]) is not None:
                    self._keep(rows)

    def _test_pane(self) -> None:
        """Let the test for drift see the newest pane: its mean log loss or absolute error."""
        columns = self.windows.panes[-1][0]
        mean = columns[1 if self.task == "classification" else 2] / (columns[0] or math.nan)
        if math.isfinite(mean):
            self.newest_rise = self.test.add(float(mean)) or self.newest_rise

    def _turns(self, w: np.ndarray, after_learning_given: Sequence[int] | None) -> np.ndarray:
        """Return which rows are forecast after the one before was learned, bool [n]."""
        is_weighted = w > 0.0
        numbers = self.numbered + np.cumsum(is_weighted) - is_weighted
        self.numbered += int(np.count_nonzero(is_weighted))
        if after_learning_given is None:
            assert not isinstance(self.delay, str)  # as documented
            return numbers % (self.delay or 1) == 0
        after_learning = np.zeros(len(w), np.bool_)
        after_learning[list(after_learning_given)] = True
        return after_learning

    def _keep(self, rows: set[int]) -> None:
        """Keep the points at these numbers of rows alone; sums of others go to the next point."""
        width = len(self.dropped)
        points, carried = [], np.zeros(width)
        for point in self.points:
            sums = carried + np.array(point[1 : 1 + width])
            if int(point[0]) in rows:
                points.append([point[0], *sums.tolist(), *point[1 + width :]])
                sums = np.zeros(width)
            carried = sums
        self.points, self.dropped = points, carried + self.dropped

    @property
    def _names(self) -> tuple[str, ...]:
        if self.task == "classification":
            return "log_loss", "accuracy"
        return "rmse", "mae", "r2"

    def _metrics(self, sums: Sums) -> list[dict[str, float]]:
        """Return the metrics of each forecaster; empty where rows have no weight."""
        columns, n = sums.columns.tolist(), self.windows.n_forecasters
        weight = columns[0]
        if not weight > 0.0:
            return [{} for _ in range(n)]
        pairs = [(columns[1 + 2 * f] / weight, columns[2 + 2 * f] / weight) for f in range(n)]
        if self.task == "classification":
            return [dict(zip(self._names, pair, strict=True)) for pair in pairs]
        # Those who learn the weights of sums once more would divide by it again.
        variance = sums.spread[2] / weight
        explained = [1.0 - first / variance if variance > 0.0 else 0.0 for first, _ in pairs]
        return [
            dict(zip(self._names, (first**0.5, second, r2), strict=True))
            for (first, second), r2 in zip(pairs, explained, strict=True)
        ]

    def _by_name(self, metrics: list[dict[str, float]]) -> dict[str, dict[str, float]]:
        """Return the metrics of the baselines by their names."""
        return dict(zip(self.baselines.names, metrics[1:], strict=True))

    def report(self, squares: float, *, with_curve: bool = True) -> dict[str, Any]:
        """Return "window", "faded", "baselines", "drift" and "windows" (the curve).

        ``squares`` are the squared deviations of all labels from their mean.
        """
        if not self.windows.rows:
            return {}
        report: dict[str, Any] = {}
        for name, sums in (("window", self.windows.last()), ("faded", self.windows.fade())):
            metrics = self._metrics(sums)
            if metrics[0]:
                about = {"rows": sums.rows} if name == "window" else {"half_life": HALF_LIFE}
                report[name] = {**about, **metrics[0], "baselines": self._by_name(metrics)}
        if self.since == 0:
            weight = float(self.windows.total[0])
            whole = Sums(self.windows.rows, self.windows.total, (weight, 0.0, squares))
            report["baselines"] = self._by_name(self._metrics(whole))
        report["drift"] = {
            "found": self.test.n_found,
            "rises": [rise._asdict() for rise in self.test.rises],
            "false_alarms": FALSE_ALARMS,
            "text": drift_in_words(self.test, self.task),
        }
        if with_curve:
            report["windows"] = self.between_points()
        return report

    def between_points(self) -> list[dict[str, Any]]:
        """Return the metrics of the rows between neighbouring points of the curve.

        Each has "start" (rows before the first), "rows" (rows before the next), "weight" (of the
        rows between), those of the forest, "faded" at its end, and "baselines". There is no R2.
        """
        width, windows, start = len(self.windows.total), [], self.since
        for point in self.points:
            sums, stop = np.array(point[1 : 1 + width]), int(point[0])
            metrics = self._metrics(Sums(stop - start, sums, (0.0, 0.0, 0.0)))
            if metrics[0]:
                for each in metrics:
                    each.pop("r2", None)
                faded = dict(zip(self._names[:2], point[1 + width :], strict=True))
                entry = {"start": start, "rows": stop, "weight": float(sums[0]), **metrics[0]}
                windows.append({**entry, "faded": faded, "baselines": self._by_name(metrics)})
            start = stop
        return windows

    def to_json(self) -> dict[str, Any]:
        """Return all sums; floats go through JSON exactly."""
        return {
            "since": self.since,
            "numbered": self.numbered,
            "baselines": self.baselines.to_json(),
            "windows": self.windows.to_json(),
            "test": self.test.to_json(),
            "points": [list(point) for point in self.points],
            "dropped": self.dropped.tolist(),
        }

    def load_json(self, stored: Mapping[str, Any], rows: int) -> None:
        """Take over what :meth:`to_json` returned, of ``rows`` rows and those before.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is malformed.
        """
        self.since, self.numbered = stored["since"], stored["numbered"]
        if type(self.since) is not int or type(self.numbered) is not int:
            raise ValueError("numbers of rows")
        self.baselines.load_json(stored["baselines"])
        self.windows.load_json(stored["windows"])
        self.test.load_json(stored["test"])
        self.points = [[number_of(value) for value in point] for point in stored["points"]]
        n_columns = 3 + len(self.windows.total)
        is_sound = self.since >= 0 and 0 <= self.numbered <= self.windows.rows
        is_sound = is_sound and self.since + self.windows.rows == rows
        if not is_sound or any(len(point) != n_columns for point in self.points):
            raise ValueError("metrics of a stream")
        for point in self.points:
            point[0] = int(point[0])
        if "dropped" in stored:
            self.dropped = np.array([number_of(value) for value in stored["dropped"]])
            if self.dropped.shape != self.windows.total.shape:
                raise ValueError("sums since a point of the curve")
        else:
            self._take_sums_so_far()

    def _take_sums_so_far(self) -> None:
        """Take the differences of points of an earlier version, which had sums over all rows."""
        width, before = len(self.windows.total), np.zeros(len(self.windows.total))
        for point in self.points:
            sums = np.array(point[1 : 1 + width])
            point[1 : 1 + width] = (sums - before).tolist()
            before = sums
        self.windows.since = self.windows.total - before
