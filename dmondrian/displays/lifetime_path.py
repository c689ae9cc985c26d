"""What a generalised forest chose its lifetimes by: risk against lifetime.

Shapes: T trees, L lifetimes.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dmondrian.displays.axes import axes_of
from dmondrian.errors import ParameterError


class LifetimePathDisplay:
    """Objective of each tree at many lifetimes, their mean, and what was chosen.

    Parameters
    ----------
    path : LifetimePath
        As of ``lifetime_path_``.

    Attributes
    ----------
    lines_ : list of matplotlib Line2D
        One per tree, and the mean last.
    points_ : matplotlib PathCollection
        Where each tree, or the forest, stands.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    References
    ----------
    Zhan, Wang, Xia (2024), "Generalized Mondrian forests", section on the choice of lambda.
    """

    def __init__(self, path: Any) -> None:
        self.path = path

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, **options: Any) -> Self:
        """Plot the lifetime path of a fitted generalised forest.

        Parameters
        ----------
        estimator : fitted estimator with ``lifetime_path_``
        ax : matplotlib Axes, optional
        **options
            As of :meth:`plot`.

        Returns
        -------
        LifetimePathDisplay

        Raises
        ------
        ParameterError
            The estimator chooses no lifetimes.
        """
        check_is_fitted(estimator)
        path = getattr(estimator, "lifetime_path_", None)
        if path is None:
            raise ParameterError(
                f"{type(estimator).__name__} with lifetime={estimator.get_params().get('lifetime')}"
                " has no lifetime_path_: expected a generalised Mondrian forest with lifetime="
                '"penalized", "prequential" or "validation", or after choose_lifetime'
            )
        return cls(path).plot(ax, **options)

    def plot(self, ax: Any = None, *, penalized: bool = True, **line: Any) -> Self:
        """Draw objectives against lifetimes, on a logarithmic axis.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        penalized : bool, default=True
            Draw what the choice minimises; else the risk alone.
        **line
            Passed to ``ax.plot`` for the mean.

        Returns
        -------
        LifetimePathDisplay
        """
        axes = axes_of(ax)
        lifetimes, chosen = self.path.lifetimes, self.path.chosen
        values = self.path.objective if penalized else self.path.risks
        self.lines_ = []
        if len(values) > 1:
            for own in values:
                self.lines_ += axes.plot(lifetimes, own, color="tab:blue", alpha=0.25, lw=0.8)
        style = {"color": "tab:blue", "lw": 2.0, "label": "mean over trees", **line}
        self.lines_ += axes.plot(lifetimes, values.mean(axis=0), **style)
        heights = [
            float(np.interp(c, lifetimes, own)) for c, own in zip(chosen, values, strict=True)
        ]
        self.points_ = axes.scatter(chosen, heights, color="tab:orange", zorder=3, label="chosen")
        axes.set(xscale="log", xlabel="lifetime", ylabel="loss per row")
        axes.legend()
        self.ax_, self.figure_ = axes, axes.figure
        return self
