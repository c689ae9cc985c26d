"""Cells of one tree, and the decision function of its forest, in the plane.

Relies on the node arrays of fitted estimators. Promises cells that partition the frame
drawn, each of which is one leaf of the tree.

Shapes: c cells, r points a side.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dmondrian.displays.axes import axes_of
from dmondrian.errors import ParameterError
from dmondrian.estimators.one_state import one_state
from dmondrian.estimators.same_forest import without_names


class PartitionDisplay:
    """Cells of one tree over the decision function of the forest, of two features.

    Parameters
    ----------
    cells : float64 array of shape (c, 4)
        Left, right, bottom and top of each cell.
    xx0, xx1 : float64 arrays of shape (r, r)
        Points of the grid.
    response : float64 array of shape (r, r)
        Of the forest at the points: the probability of the second class of two, the index of the
        most probable of more, or the predicted number.
    feature_names : pair of str

    Attributes
    ----------
    surface_ : matplotlib QuadMesh
    cells_ : matplotlib PatchCollection or None
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    """

    def __init__(
        self,
        cells: np.ndarray,
        xx0: np.ndarray,
        xx1: np.ndarray,
        response: np.ndarray,
        feature_names: Any = ("x0", "x1"),
    ) -> None:
        self.cells, self.xx0, self.xx1, self.response = cells, xx0, xx1, response
        self.feature_names = [str(name) for name in feature_names]

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        *,
        tree: int = 0,
        resolution: int = 150,
        margin: float = 0.05,
        ax: Any = None,
        **options: Any,
    ) -> Self:
        """Plot a fitted forest of two features.

        Parameters
        ----------
        estimator : fitted estimator of this package, of two features
        X : array-like of shape (n, 2)
            Rows that the frame is drawn around.
        tree : int, default=0
            Index of the tree whose cells are drawn.
        resolution : int, default=150
            Points a side of the grid that the forest is asked at.
        margin : float, default=0.05
            Margin around the rows, as a share of the features' ranges.
        ax : matplotlib Axes, optional
        **options
            As of :meth:`plot`.

        Returns
        -------
        PartitionDisplay

        Raises
        ------
        ParameterError
            The forest has more or fewer than two features.
        """
        check_is_fitted(estimator)
        if estimator.n_features_in_ != 2:
            raise ParameterError(
                f"a partition is drawn of two features, this forest has {estimator.n_features_in_}:"
                " fit one on two columns"
            )
        if estimator._encodes_rows():
            raise ParameterError(
                'a forest with categories or missing_values="encode" parts features that it makes '
                "of columns, as whether one is missing: fit one on plain numbers to draw its cells"
            )
        rows = np.asarray(X, np.float64)
        low, high = rows.min(axis=0), rows.max(axis=0)
        border = margin * (high - low)
        if estimator.domain == "cube":
            border = np.zeros(2)
        frame = np.column_stack([low - border, high + border]).ravel()
        sides = [np.linspace(frame[2 * j], frame[2 * j + 1], resolution) for j in range(2)]
        xx0, xx1 = np.meshgrid(*sides)
        names = getattr(estimator, "feature_names_in_", ("x0", "x1"))
        points = np.column_stack([xx0.ravel(), xx1.ravel()]).astype(np.float32)
        with one_state(estimator):
            response = _response(without_names(estimator), points).reshape(xx0.shape)
            cells = cells_of(estimator, tree, frame)
        made = cls(cells, xx0, xx1, response, names)
        return made.plot(ax, **options)

    def plot(self, ax: Any = None, *, draw_cells: bool = True, **mesh: Any) -> Self:
        """Draw the decision function, and the cells over it.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        draw_cells : bool, default=True
        **mesh
            Passed to ``ax.pcolormesh``.

        Returns
        -------
        PartitionDisplay
        """
        axes = axes_of(ax)
        from matplotlib.collections import PatchCollection
        from matplotlib.patches import Rectangle

        style = {"cmap": "RdBu", "alpha": 0.8, "shading": "nearest", "rasterized": True, **mesh}
        self.surface_ = axes.pcolormesh(self.xx0, self.xx1, self.response, **style)
        self.cells_ = None
        if draw_cells:
            boxes = [Rectangle((a, c), b - a, d - c) for a, b, c, d in self.cells]
            self.cells_ = PatchCollection(boxes, facecolor="none", edgecolor="black", lw=0.3)
            axes.add_collection(self.cells_)
        axes.set(xlabel=self.feature_names[0], ylabel=self.feature_names[1])
        axes.set_xlim(self.xx0.min(), self.xx0.max())
        axes.set_ylim(self.xx1.min(), self.xx1.max())
        self.ax_, self.figure_ = axes, axes.figure
        return self


def cells_of(estimator: Any, tree: int, frame: np.ndarray) -> np.ndarray:
    """Return the cells of a tree within a frame, at the lifetime that it predicts at now.

    Parameters
    ----------
    estimator : fitted estimator of two features
    tree : int
    frame : float64 array of shape (4,)
        Left, right, bottom and top.

    Returns
    -------
    float64 array of shape (c, 4)
    """
    with one_state(estimator):
        arrays = estimator.nodes(tree)
        end = float(estimator.forest_.tree_lifetimes()[tree, 0])
    cells = []
    waiting = [(arrays["root"], np.array(frame, np.float64))]
    while waiting:
        v, cell = waiting.pop()
        j, at = arrays["feature"][v], float(arrays["threshold"][v])
        if j < 0 or arrays["time"][v] > end:
            cells.append(cell)
            continue
        for child, side in ((arrays["left"][v], 1), (arrays["right"][v], 0)):
            below = cell.copy()
            below[2 * j + side] = np.clip(at, *cell[2 * j : 2 * j + 2])
            if below[2 * j] < below[2 * j + 1]:
                waiting.append((child, below))
    return np.array(cells)


def _response(estimator: Any, points: np.ndarray) -> np.ndarray:
    if not hasattr(estimator, "classes_"):
        predict = (
            estimator.score_samples if hasattr(estimator, "score_samples") else estimator.predict
        )
        return predict(points) if np.ndim(predict(points[:1])) == 1 else predict(points)[:, 0]
    if len(estimator.classes_) > 2 or not hasattr(estimator, "predict_proba"):
        return np.searchsorted(estimator.classes_, estimator.predict(points)).astype(np.float64)
    return estimator.predict_proba(points)[:, -1]
