"""Lifetime path of a generalised forest or a kernel machine: risk against lifetime.

Shapes: T trees, L lifetimes.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dmondrian.displays.axes import axes_of
from dmondrian.errors import ParameterError
from dmondrian.joint_fit.lifetime_sweep import KernelPath


class LifetimePathDisplay:
    """Objective at many lifetimes, of each tree and their mean or of all together, and the choice.

    Parameters
    ----------
    path : LifetimePath or KernelPath
        As of ``lifetime_path_``. The trees of a kernel machine have one objective: the squared
        error of held-out rows, the log likelihood, or of an average the posterior probability.

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
    Balog et al. (2016), "The Mondrian kernel", section 4.
    """

    def __init__(self, path: Any) -> None:
        self.path = path

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, **options: Any) -> Self:
        """Plot the lifetime path of a fitted generalised forest or kernel machine.

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
                '"penalized", "prequential" or "validation", or after choose_lifetime, or a '
                'Mondrian kernel with lifetime="validation", "marginal_likelihood" or "average"'
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
        kernel = _of_kernel(self.path) if isinstance(self.path, KernelPath) else None
        if kernel is None:
            lifetimes, chosen, name = self.path.lifetimes, self.path.chosen, "loss per row"
            values = self.path.objective if penalized else self.path.risks
        else:
            lifetimes, values, chosen, name = kernel
        self.lines_ = []
        if len(values) > 1:
            for of_tree in values:
                self.lines_ += axes.plot(lifetimes, of_tree, color="tab:blue", alpha=0.25, lw=0.8)
        label = "mean over trees" if kernel is None else "all trees"
        style = {"color": "tab:blue", "lw": 2.0, "label": label, **line}
        self.lines_ += axes.plot(lifetimes, values.mean(axis=0), **style)
        heights = [
            float(np.interp(c, lifetimes, of_tree))
            for c, of_tree in zip(chosen, values, strict=True)
        ]
        self.points_ = axes.scatter(chosen, heights, color="tab:orange", zorder=3, label="chosen")
        axes.set(xscale="log", xlabel="lifetime", ylabel=name)
        axes.legend()
        self.ax_, self.figure_ = axes, axes.figure
        return self


def _of_kernel(path: KernelPath) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Return lifetimes above 0, their objective [1, L], the choice, and the objective's name."""
    known = (
        (path.shares, "posterior probability"),
        (path.validation_errors, "squared error of held-out rows"),
        (path.log_likelihoods, "log likelihood, up to a constant"),
    )
    values, name = next((values, name) for values, name in known if values is not None)
    is_positive = path.lifetimes > 0.0  # the axis is logarithmic
    return path.lifetimes[is_positive], values[None, is_positive], np.array([path.chosen]), name
