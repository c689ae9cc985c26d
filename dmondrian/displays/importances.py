"""Feature importances as bars.

Shapes: d features.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from dmondrian.displays.axes import axes_of
from dmondrian.errors import ParameterError


class ImportancesDisplay:
    """Bars of feature importances, the largest on top.

    Parameters
    ----------
    importances : array-like of shape (d,)
        Shares, as of ``feature_importances_``.
    feature_names : sequence of str of length d

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    bars_ : matplotlib BarContainer
    """

    def __init__(self, importances: ArrayLike, feature_names: Any) -> None:
        self.importances = np.asarray(importances, np.float64)
        self.feature_names = [str(name) for name in feature_names]
        if self.importances.shape != (len(self.feature_names),):
            raise ParameterError(
                f"importances of shape {self.importances.shape} and {len(self.feature_names)} "
                "feature_names do not belong together: expected one name for each"
            )

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, feature_names: Any = None, ax: Any = None, **options: Any
    ) -> Self:
        """Plot the importances of a fitted forest.

        Parameters
        ----------
        estimator : fitted estimator of this package
        feature_names : sequence of str, optional
            By default those that the forest learned, or x0, x1, ...
        ax : matplotlib Axes, optional
        **options
            As of :meth:`plot`.

        Returns
        -------
        ImportancesDisplay
        """
        check_is_fitted(estimator)
        shares = estimator.feature_importances_
        if feature_names is None:
            numbered = [f"x{j}" for j in range(len(shares))]
            feature_names = getattr(estimator, "feature_names_in_", numbered)
        return cls(shares, feature_names).plot(ax, **options)

    @classmethod
    def from_run(cls, run: Any, *, ax: Any = None, **options: Any) -> Self:
        """Plot the importances of a run's columns, of what its checkpoint notes.

        Parameters
        ----------
        run : str or path
            Run folder or URL.
        ax : matplotlib Axes, optional
        **options
            As of :meth:`plot`.

        Returns
        -------
        ImportancesDisplay

        Raises
        ------
        ParameterError
            The checkpoint notes none.
        CheckpointError
            There is no checkpoint.
        """
        from dmondrian.checkpoint import Run, known_trees
        from dmondrian.data import Schema
        from dmondrian.data.column_importances import importances_of_columns

        trees, stored, _ = known_trees(run)
        about = Run.open(run).run_json.get("schema")
        schema = None if about is None else Schema.from_json(about)
        importances, reason = importances_of_columns(trees, stored, schema)
        if not importances:
            raise ParameterError(f"the columns of {run} have no importances: {reason}")
        names, shares = zip(*importances, strict=True)
        return cls(shares, names).plot(ax, **options)

    def plot(self, ax: Any = None, *, max_features: int = 20, **bar: Any) -> Self:
        """Draw the bars.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        max_features : int, default=20
            Bars drawn; the rest is one sum below them.
        **bar
            Passed to ``ax.barh``.

        Returns
        -------
        ImportancesDisplay
        """
        axes = axes_of(ax)
        order = np.argsort(-self.importances, kind="stable")
        names = [self.feature_names[j] for j in order[:max_features]]
        values = self.importances[order[:max_features]].tolist()
        rest = self.importances[order[max_features:]]
        if len(rest):
            names.append(f"{len(rest)} others")
            values.append(float(rest.sum()))
        places = np.arange(len(values))
        self.bars_ = axes.barh(places, values, **bar)
        axes.set(xlabel="share of what the splits are worth")
        axes.set_yticks(places, names)
        axes.invert_yaxis()
        self.ax_, self.figure_ = axes, axes.figure
        return self
