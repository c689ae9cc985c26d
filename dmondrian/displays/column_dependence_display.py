"""Partial dependence of a run's forecasts on a column, and where its rows lie on it.

Shapes: g values, k outputs, b bins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from dmondrian.displays.axes import axes_of
from dmondrian.errors import ParameterError


class ColumnDependenceDisplay:
    """Mean forecasts at values of a column, where the others vary as in the rows learned.

    ``sklearn.inspection.PartialDependenceDisplay`` draws fitted estimators, over rows; this one
    draws a run, at values of a column before it is encoded, from the trees alone.

    Parameters
    ----------
    column : str
    values : sequence of length g
        Numbers, times as NumPy has them, or names.
    means : array-like of shape (g, k)
    names : sequence of str of length k
        What each mean is of.
    ends : sequence of float
        Of bins of numbers, b + 1; the outermost may be infinite. None of names.
    shares : array-like or None
        Of the rows, by bin or by name; None where they are not known.

    Attributes
    ----------
    drawn_ : list of matplotlib Line2D or BarContainer, one per output
    rows_ : matplotlib BarContainer or None
        Shares of the rows.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    """

    def __init__(
        self,
        column: str,
        values: Sequence[Any],
        means: Any,
        names: Sequence[str],
        ends: Sequence[float] = (),
        shares: Any = None,
    ) -> None:
        self.column, self.values = column, list(values)
        self.means, self.names = np.asarray(means, np.float64), list(names)
        self.ends = list(ends)
        self.shares = None if shares is None else np.asarray(shares, np.float64)

    @classmethod
    def from_run(
        cls, run: Any, column: str, *, part: str | None = None, ax: Any = None, **options: Any
    ) -> Self:
        """Plot the dependence of a run's forecasts on a column.

        Parameters
        ----------
        run : str or path
            Run folder or URL, of data in files. Its trees are loaded, and some of its rows are read
            again, if they are there.
        column : str
            Of numbers, times or categories.
        part : {"date", "hour", "weekday", "month", "yearday"}, optional
            Of a time; by default the first that it has.
        ax : matplotlib Axes, optional
        **options
            As of :meth:`plot`.

        Returns
        -------
        ColumnDependenceDisplay

        Raises
        ------
        ParameterError
            The run has no such column or part, or is no sum over leaves of its forecasts.
        CheckpointError
            There is no checkpoint.
        """
        from dmondrian.checkpoint import Run
        from dmondrian.data import Schema, stored_plan
        from dmondrian.errors import CheckpointError, StoreError
        from dmondrian.estimators.load import load_estimator
        from dmondrian.export.column_dependence import (
            classes_shown,
            dependence_on,
            forecast_in_words,
            name_of_value,
        )

        opened = Run.open(run)
        if opened.run_json.get("schema") is None:
            raise ParameterError(
                f"{run} was fitted on arrays: dmondrian.export.partial_dependence takes the "
                "estimator"
            )
        schema = Schema.from_json(opened.run_json["schema"])
        known = [each.name for each in schema.columns]
        if column not in known:
            raise ParameterError(f"{run} has no column {column!r}: it has {known[:20]}")
        try:
            plan = stored_plan(opened.stream)
        except (CheckpointError, StoreError):
            plan = None  # the shares of rows are not known
        newest = opened.latest(verify=False)
        learned = 0 if newest is None else newest.position
        dependences = dependence_on(load_estimator(run), schema, plan, learned, [column])
        parts = [dependence.part for dependence in dependences.columns]
        if not parts or (part is not None and part not in parts):
            raise ParameterError(f"part is {part!r}; {column!r} has {parts or 'no value to show'}")
        dependence = dependences.columns[0 if part is None else parts.index(part)]
        classes = [str(label) for label in opened.run_json.get("classes") or []]
        places = classes_shown([dependence], classes)
        names = [classes[k] for k in places] if len(places) > 1 else []
        names = names or [forecast_in_words(classes, places)]
        values, ends = dependence.values, dependence.ends
        if dependence.part not in ("", "date"):
            values = [name_of_value(dependence.part, value) for value in values]
        elif dependence.column.kind == "time":
            values = list(np.array(values, "datetime64[us]"))
        title = f"{column}, {dependence.part}" if dependence.part else column
        self = cls(title, values, dependence.means[:, places], names, ends, dependence.shares)
        return self.plot(ax, **options)

    @property
    def _are_names(self) -> bool:
        return bool(self.values) and isinstance(self.values[0], str)

    @property
    def _are_times(self) -> bool:
        return bool(self.values) and isinstance(self.values[0], np.datetime64)

    def plot(self, ax: Any = None, *, rows: bool = True, **style: Any) -> Self:
        """Draw lines, or bars of names.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        rows : bool, default=True
            Draw the shares of the rows behind them, on an axis of their own.
        **style
            Passed to ``ax.plot`` or ``ax.bar``.

        Returns
        -------
        ColumnDependenceDisplay
        """
        axes = axes_of(ax)
        self.rows_ = self._draw_rows(axes.twinx()) if rows and self.shares is not None else None
        axes.set_zorder(2.0)  # above the rows
        axes.patch.set_visible(False)
        if self._are_names:
            width = 0.8 / len(self.names)
            places = np.arange(len(self.values)) - 0.4
            self.drawn_ = [
                axes.bar(places + k * width, means, width, align="edge", **{"label": name, **style})
                for k, (name, means) in enumerate(zip(self.names, self.means.T, strict=True))
            ]
            axes.set_xticks(range(len(self.values)), self.values)
        else:
            self.drawn_ = [
                axes.plot(self.values, means, **{"label": name, **style})[0]
                for name, means in zip(self.names, self.means.T, strict=True)
            ]
        axes.set(xlabel=self.column)
        if len(self.names) == 1:
            axes.set_ylabel(self.names[0])
        else:
            axes.set_ylabel("mean forecast")
            axes.legend()
        if self._are_times:
            axes.tick_params(axis="x", rotation=30)
        self.ax_, self.figure_ = axes, axes.figure
        return self

    def _draw_rows(self, axes: Any) -> Any:
        """Draw the shares of the rows; the outermost bins are as wide as the others."""
        assert self.shares is not None  # checked by the caller
        style = {"color": "0.88", "align": "edge"}
        axes.set_ylabel("share of the rows")
        if self._are_names:
            return axes.bar(np.arange(len(self.shares)) - 0.45, self.shares, 0.9, **style)
        ends = np.array(self.ends)
        width = float(np.diff(ends[np.isfinite(ends)]).max())
        low = [
            start if math.isfinite(start) else stop - width
            for start, stop in zip(self.ends, self.ends[1:], strict=False)
        ]
        if not self._are_times:
            return axes.bar(low, self.shares, width, **style)
        start = np.array(low).astype("datetime64[us]")
        return axes.bar(start, self.shares, np.timedelta64(int(width), "us"), **style)
