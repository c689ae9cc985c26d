"""A convex loss of the user's own, and what cells say under it.

Cells keep labels (:mod:`dmondrian.stats.labels`), or their mean where that is enough; the trees are
those of any other loss. What each node says is found when it is asked for first after learning, by
halving intervals of z for all nodes at once.

Relies on trees that keep the statistics of every node. Promises the root of the summed derivative
to the last bits, for the labels kept: exact up to their number, within the node's certificate then.

Shapes: m nodes, k labels of a node.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from dmondrian._jit import elementwise
from dmondrian.core import nodes
from dmondrian.errors import ParameterError
from dmondrian.stats.labels import KEPT
from dmondrian.stats.moments import SUM

_HALVINGS = 2200  # of any interval of doubles to neighbours; it ends long before
_WIDEST = 2.0**200
_LOGS = 8.0
_GRID_Z, _GRID_Y = 65, 17  # where convexity is looked at
_ROUGH = 1e-9  # second differences above minus this share of the values are rounding


class ConvexLoss:
    """A loss(z, y), convex in z, for ``GeneralizedMondrianForestRegressor(loss=...)``.

    Parameters
    ----------
    price : callable
        ``price(z, y)`` of two floats: what the constant z costs at label y. A plain function that
        Numba can compile, or one that it has.
    derivative : callable, optional
        ``derivative(z, y)``, of the price by z, not falling in z; where it jumps, any value between
        will do. Cells then keep labels.
    solution : callable, optional
        ``solution(mean)``: the best z for labels of this mean, where the mean is all that matters.
        Give either this or the derivative.

    Examples
    --------
    Expectiles, which need the labels, and counts by the log of their mean, which do not:

    >>> import math
    >>> from dmondrian import ConvexLoss
    >>> def price(z, y):
    ...     return (0.9 if y > z else 0.1) * (y - z) ** 2
    >>> def derivative(z, y):
    ...     return -2.0 * (0.9 if y > z else 0.1) * (y - z)
    >>> expectile = ConvexLoss(price, derivative)
    >>> def likelihood(z, y):
    ...     return math.exp(z) - y * z
    >>> def log_mean(mean):
    ...     return math.log(max(mean, 1e-9))
    >>> counts = ConvexLoss(likelihood, solution=log_mean)
    """

    def __init__(
        self,
        price: Callable[[float, float], float],
        derivative: Callable[[float, float], float] | None = None,
        solution: Callable[[float], float] | None = None,
    ) -> None:
        if (derivative is None) == (solution is None):
            raise ParameterError(
                "a convex loss has either a derivative, and cells keep labels, or a solution for "
                "labels of a given mean: give one of the two"
            )
        self.price, self.derivative, self.solution = price, derivative, solution

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConvexLoss):
            return NotImplemented
        mine = self.price, self.derivative, self.solution
        return mine == (other.price, other.derivative, other.solution)

    def __hash__(self) -> int:
        return hash((self.price, self.derivative, self.solution))

    @property
    def keeps_labels(self) -> bool:
        """Whether the mean label is not enough."""
        return self.derivative is not None

    def prices(self, z: Any, y: Any) -> np.ndarray:
        """Return the price at each z and label, float64.

        Parameters
        ----------
        z, y : array-like
            Of shapes that broadcast together.
        """
        with np.errstate(all="ignore"):  # the answer says where it is not finite
            return np.asarray(elementwise(self.price)(np.asarray(z, np.float64), y))

    def warn_unless_convex(self, y: np.ndarray, bound: float | None) -> None:
        """Warn where the price is not convex in z, at some of the labels.

        On grids of z: the range of the labels and a bit beyond, and [-8, 8] for what is on the
        scale of a logarithm; or up to the bound. Where the price is not finite it has no say. Warn
        where the derivative falls, likewise.

        Parameters
        ----------
        y : float64 array of shape (n,)
        bound : float or None
            Limit of the size of z.
        """
        labels = np.unique(np.quantile(y, np.linspace(0.0, 1.0, _GRID_Y)))
        reach = max(float(np.ptp(labels)), 1.0)
        near = (float(labels[0]) - reach, float(labels[-1]) + reach), (-_LOGS, _LOGS)
        for ends in near if bound is None else (_ends(bound),):
            z = np.linspace(*ends, _GRID_Z)
            with np.errstate(all="ignore"):
                told = self.prices(z, labels[:, None])
                told[~np.isfinite(told)] = np.nan
                falls = np.nan_to_num(-np.diff(told, 2, axis=1), nan=-np.inf)
            worst = np.unravel_index(np.argmax(falls), falls.shape)
            if falls[worst] > _ROUGH * np.nanmax(np.abs(told), initial=0.0):
                warnings.warn(
                    f"the loss is curved downwards at z = {z[worst[1] + 1]:.4g}, y = "
                    f"{labels[worst[0]]:.4g}: what cells say may be no minimum; use a convex loss, "
                    "or a bound within which it is convex",
                    UserWarning,
                    stacklevel=2,
                )
                return
            if self.derivative is None:
                continue
            with np.errstate(all="ignore"):
                told = elementwise(self.derivative)(z, labels[:, None])
                told[~np.isfinite(told)] = np.nan
                falls = np.nan_to_num(np.fmax.accumulate(told, axis=1) - told, nan=-np.inf)
            worst = np.unravel_index(np.argmax(falls), falls.shape)
            if falls[worst] > _ROUGH * np.nanmax(np.abs(told), initial=0.0):
                warnings.warn(
                    f"the derivative falls before z = {z[worst[1]]:.4g}, y = "
                    f"{labels[worst[0]]:.4g}: what cells say may be no minimum; use a convex loss "
                    "of all z, or a bound within which the derivative does not fall",
                    UserWarning,
                    stacklevel=2,
                )
                return

    def solve(self, tree: nodes.Tree, bound: float | None) -> tuple[np.ndarray, np.ndarray]:
        """Return what each node says and what its rows lose by it, float64 [m] each; 0 if empty.

        Parameters
        ----------
        tree : Tree
            Of a fitted forest.
        bound : float or None
            Limit of the size of z.

        Raises
        ------
        ParameterError
            If no finite z is best for a cell.
        """
        m = int(tree.head_i[nodes.N_NODES])
        stat, n = tree.d[:m], tree.d[:m, nodes.STAT]
        z, seen = np.zeros(m), np.flatnonzero(n > 0.0)
        if self.solution is not None:
            mean = tree.head_f[nodes.OFFSET] + stat[seen, SUM] / n[seen]
            with np.errstate(all="ignore"):  # what is not finite is told
                z[seen] = np.clip(elementwise(self.solution)(mean), *_ends(bound))
            if len(wrong := np.flatnonzero(~np.isfinite(z[seen]))):
                raise ParameterError(
                    f"solution({mean[wrong[0]]:.6g}) is {z[seen][wrong[0]]}, expected a finite "
                    "number for the mean of any labels: give a bound where it is infinite, or a "
                    "solution for all means"
                )
            return z, np.zeros(m)
        labels, weights = _kept(tree, seen)
        z[seen] = self._root(labels, weights, bound)
        risks = np.zeros(m)
        risks[seen] = (weights * self.prices(z[seen, None], labels)).sum(axis=1)
        return z, risks

    def _root(self, labels: np.ndarray, weights: np.ndarray, bound: float | None) -> np.ndarray:
        """Return where the weighted derivative over each row of labels changes its sign.

        Where it is 0 on an interval, the middle: between where it stops to be negative and where
        it begins to be positive.
        """
        slope_at = elementwise(self.derivative)

        def slope(z: np.ndarray) -> np.ndarray:
            with np.errstate(all="ignore"):  # far from the root; ends that are nan are told
                told = slope_at(z[:, None], labels)
            found: np.ndarray = (weights * np.where(weights > 0.0, told, 0.0)).sum(axis=1)
            return found

        low, high = (np.full(len(labels), end) for end in _ends(bound))
        if bound is None:
            low, high = _widened(slope, labels.min(axis=1) - 1.0, labels.max(axis=1) + 1.0)
            first, last = slope(low), slope(high)
            if len(wrong := np.flatnonzero(~((first < 0.0) & (last > 0.0)))):
                v, y = wrong[0], labels[wrong[0]]
                raise ParameterError(
                    "expected a derivative < 0 for small z and > 0 for large z; summed over the "
                    f"labels of a cell, {y.min():.6g} to {y.max():.6g}, it is {first[v]:.3g} at "
                    f"{low[v]:.3g} and {last[v]:.3g} at {high[v]:.3g}, so no z is best: give a "
                    "bound, or another loss"
                )
        rises = _halved(lambda z: slope(z) >= 0.0, low, high)
        return 0.5 * rises + 0.5 * _halved(lambda z: slope(z) > 0.0, rises, high)


def _widened(
    slope: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return ends further out where needed: the slope is negative at one, positive at the other."""
    step = high - low
    while (is_open := (slope(low) >= 0.0) & (low > -_WIDEST)).any():
        low, step = np.where(is_open, low - step, low), 2.0 * step
    step = high - low
    while (is_open := (slope(high) <= 0.0) & (high < _WIDEST)).any():
        high, step = np.where(is_open, high + step, high), 2.0 * step
    return low, high


def _halved(
    is_above: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Return the least points between the ends from where on something holds, to the last bits."""
    for _ in range(_HALVINGS):
        middle = 0.5 * low + 0.5 * high
        if ((middle <= low) | (middle >= high)).all():
            break
        above = is_above(middle)
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return high


def _ends(bound: float | None) -> tuple[float, float]:
    return (-np.inf, np.inf) if bound is None else (-bound, bound)


def _kept(tree: nodes.Tree, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and weights of nodes, float64 [m, k]; behind those kept repeats of weight 0."""
    size = (tree.n_stats - (KEPT + 1 - nodes.STAT)) // 3
    told = tree.d[which, KEPT + 1 : nodes.STAT + tree.n_stats].reshape(len(which), 3, size)
    kept = tree.d[which, KEPT].astype(np.int64)
    place = np.minimum(np.arange(size), kept[:, None] - 1)
    labels, below, upto = (np.take_along_axis(told[:, c], place, axis=1) for c in range(3))
    after = np.concatenate([below[:, 1:], below[:, -1:]], axis=1)
    rank = 0.5 * (upto + after)  # the middle of what is known, as in stats.labels.weight_upto
    rank = np.where(np.arange(size) >= kept[:, None] - 1, tree.d[which, nodes.STAT, None], rank)
    return labels, np.diff(rank, axis=1, prepend=0.0)
