"""Weighted depth of a forest along a feature (M21, Figure 8).

Shapes: n rows, d features.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from dmondrian.displays.axes import axes_of
from dmondrian.errors import ParameterError


class WeightedDepthDisplay:
    """Weighted depth of rows against one of their features.

    Parameters
    ----------
    x : array-like of shape (n,)
        The feature.
    depth : array-like of shape (n,)
        Posterior mean depth, in levels.
    feature_name : str

    Attributes
    ----------
    line_ : matplotlib Line2D
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    References
    ----------
    Mourtada, Gaiffas, Scornet (2021), section 5.1, Equation 33 and Figure 8.
    """

    def __init__(self, x: ArrayLike, depth: ArrayLike, feature_name: str = "x0") -> None:
        self.x, self.depth = np.asarray(x, np.float64), np.asarray(depth, np.float64)
        self.feature_name = feature_name

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, *, feature: int = 0, ax: Any = None, **options: Any
    ) -> Self:
        """Plot the weighted depth of rows.

        Parameters
        ----------
        estimator : fitted estimator of this package
        X : array-like of shape (n, d)
        feature : int, default=0
            Index of the feature along the axis.
        ax : matplotlib Axes, optional
        **options
            As of :meth:`plot`.

        Returns
        -------
        WeightedDepthDisplay
        """
        check_is_fitted(estimator)
        depth = estimator.weighted_depth(X)
        d = estimator.n_features_in_
        if not 0 <= feature < d:
            raise ParameterError(f"feature should be 0 to {d - 1}, got {feature!r}")
        names = getattr(estimator, "feature_names_in_", [f"x{j}" for j in range(d)])
        return cls(np.asarray(X)[:, feature], depth, str(names[feature])).plot(ax, **options)

    def plot(self, ax: Any = None, **line: Any) -> Self:
        """Draw depth against the feature, from the least value to the largest.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        **line
            Passed to ``ax.plot``.

        Returns
        -------
        WeightedDepthDisplay
        """
        axes = axes_of(ax)
        order = np.argsort(self.x, kind="stable")
        (self.line_,) = axes.plot(self.x[order], self.depth[order], **line)
        axes.set(xlabel=self.feature_name, ylabel="weighted depth (levels)")
        self.ax_, self.figure_ = axes, axes.figure
        return self
