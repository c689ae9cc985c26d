"""How far back a forest that follows a stream looks, as the stream goes on.

Shapes: p points, k octaves of age, n rows, d features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.utils import column_or_1d

from dmondrian.displays.axes import axes_of
from dmondrian.distributed.metrics.age_curve import BOOSTED, SCALED, age_names, others_of
from dmondrian.drift.age_weights import cut_at_marks
from dmondrian.errors import ParameterError

_COLOURS = {SCALED: "tab:red", BOOSTED: "tab:orange"}


class AgeWeightsDisplay:
    """Shares of trees of each age in a forest's forecasts, against the rows learned.

    Where the stream changes, weight moves to young trees, which know nothing of what was before;
    where it stays as it is, back to old ones and to the trees that never forget.

    Parameters
    ----------
    rows : array-like of shape (p,)
        Numbers of rows learned.
    shares : array-like of shape (p, 1 + k)
        Shares of the trees that never forget, then of each octave of age, the youngest first; last
        of scaled trees and boosted sets, if there are any.
    names : sequence of str
        Of the 1 + k inputs.

    Attributes
    ----------
    areas_ : list of matplotlib PolyCollection, the youngest age first
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    """

    def __init__(self, rows: Any, shares: Any, names: Sequence[str]) -> None:
        self.rows, self.shares = np.asarray(rows, np.float64), np.asarray(shares, np.float64)
        self.names = list(names)

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any, *, ax: Any = None) -> Self:
        """Plot an estimator that learns rows in order; it is not changed.

        Parameters
        ----------
        estimator : estimator with ``drift="follow"``
            Its parameters are used, a fitted forest is not.
        X : array-like of shape (n, d)
        y : array-like of shape (n,)
        ax : matplotlib Axes, optional

        Returns
        -------
        AgeWeightsDisplay

        Raises
        ------
        ParameterError
            The estimator does not follow the stream.
        """
        if getattr(estimator, "drift", None) is None:
            raise ParameterError(
                f"{type(estimator).__name__} has no trees of other ages than its own: choose "
                'drift="follow", where it has that'
            )
        forest, rows, shares = clone(estimator), [], []
        known: dict[str, Any] = {}
        if is_classifier(estimator):
            known["classes"] = np.unique(column_or_1d(y))
        for part, _ in cut_at_marks(0, len(X)):
            forest.partial_fit(X[part], y[part], **known)
            rows.append(part.stop)
            shares.append(forest.age_weights_)
        other_names = others_of(forest.forest_.parameters.to_json())
        return cls(rows, shares, _names(len(shares[0]), other_names)).plot(ax)

    @classmethod
    def from_run(cls, run: Any, *, ax: Any = None) -> Self:
        """Plot a run, finished or in progress.

        Parameters
        ----------
        run : str or path
            Run folder or URL.
        ax : matplotlib Axes, optional

        Returns
        -------
        AgeWeightsDisplay

        Raises
        ------
        ParameterError
            The run did not record ages.
        """
        from dmondrian.checkpoint import Run
        from dmondrian.distributed.metrics.progressive import Progressive

        opened = Run.open(run)
        newest = opened.latest(verify=False)
        stored = {} if newest is None else newest.metrics.get("progressive") or {}
        points = Progressive.from_json(stored).ages.points if stored else []
        if not points:
            raise ParameterError(
                f'{run} has no weights of ages: it has no checkpoint yet, or no drift="follow"'
            )
        table = np.array(points)
        other_names = others_of(opened.run_json["parameters"])
        return cls(table[:, 0], table[:, 1:], _names(table.shape[1] - 1, other_names)).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw areas upon each other: the youngest trees on top, those that never forget below.

        Parameters
        ----------
        ax : matplotlib Axes, optional

        Returns
        -------
        AgeWeightsDisplay
        """
        axes = axes_of(ax)
        from matplotlib import colormaps

        ageless = [i for i, name in enumerate(self.names) if name in _COLOURS]
        n = len(self.names) - len(ageless)
        colours = ["0.75", *colormaps["viridis"](np.linspace(0.95, 0.05, n - 1))]
        colours += [_COLOURS[self.names[i]] for i in ageless]
        # From below: what has no age, what never forgets, then the oldest trees, and so on.
        order = [*ageless[::-1], 0, *range(n - 1, 0, -1)]
        areas = axes.stackplot(
            self.rows,
            [self.shares[:, i] for i in order],
            colors=[colours[i] for i in order],
            labels=[self.names[i] for i in order],
            lw=0.0,
        )
        self.areas_ = list(areas)[::-1]
        axes.set(xlabel="rows learned", ylabel="share in the forecasts", ylim=(0.0, 1.0))
        axes.margins(x=0.0)
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(
            handles[::-1],
            labels[::-1],
            title="trees of the last",
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            fontsize="small",
        )
        self.ax_, self.figure_ = axes, axes.figure
        return self


def _names(n_shares: int, other_names: list[str]) -> list[str]:
    """Return whose the shares of a point are."""
    return age_names(n_shares - 1 - len(other_names), other_names)
