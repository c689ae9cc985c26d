"""A convex loss of the user's own, and the values of cells under it.

Cells keep labels (:mod:`dmondrian.stats.labels`), or their mean where that is enough, as it is for
two classes; the trees are those of any other loss. The value of each node is found when it is first
needed after learning, by halving intervals of z for all nodes at once.

The labels of two classes are -1 and 1, and z is limited as under the built-in binary costs. Where
rows of a cell are of class 1 with probability p, the best z satisfies p l'(z, 1) +
(1 - p) l'(z, -1) = 0. If each p has a z of its own, that is solved for p: the loss is a proper
composite one (Reid, Williamson 2010, section 3), and z has probabilities.

Relies on trees that keep the statistics of every node. Promises the root of the summed derivative
to the last bits, for the labels kept: exact up to their number, within the node's certificate then.

References: Zhan, Wang, Xia (Z24), section 6.5. Reid, Williamson (2010), "Composite Binary Losses",
JMLR 11.

Shapes: m nodes, k labels of a node.
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from dmondrian._numba.jit import elementwise
from dmondrian.errors import ParameterError
from dmondrian.stats.moments import SUM
from dmondrian.tree import nodes
from dmondrian.uncertainty.label_mixture import kept_labels

_HALVINGS = 2200  # of any interval of doubles to neighbours; it ends long before
_WIDEST = 2.0**200
_LOGS = 8.0
_GRID_Z, _GRID_Y = 65, 17  # where convexity is looked at
_ROUGH = 1e-9  # differences that are smaller shares of the values are rounding
_CLOSE = 1e-6  # such shares of sums and derivatives are rounding too
_SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)  # of the largest label, where a solution is looked at
CLASSES = np.array([-1.0, 1.0])  # labels of two classes
_PROBABILITIES = np.arange(1, 128) / 128.0  # where a loss is asked for probabilities
_LEAST_INSIDE = 3  # of them, with a z within the limits
_BESIDE_0 = 1e-3  # where the price of each class is looked at


class ConvexLoss:
    """A loss(z, y), convex in z, for the ``loss`` of generalised Mondrian forests.

    For a regressor y is the label. For a classifier of two classes it is -1 or 1, the second of
    ``classes_``: a cost phi of Z24, section 6.5, is ``price(z, y)`` = phi(-y z). The prices of the
    two classes may differ.

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
        Of two classes it always is. Give either this or the derivative.

    Raises
    ------
    ParameterError
        Here if both or neither of the two are given, or something is no function; by estimators if
        a function cannot be compiled or fails. Where functions contradict each other on a grid,
        ``fit`` warns.

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

    A cost of two classes, by which a missed row of the second is five times as bad:

    >>> def cost(z, y):
    ...     return (5.0 if y > 0.0 else 1.0) * math.log1p(math.exp(-y * z))
    >>> def slope(z, y):
    ...     return -y * (5.0 if y > 0.0 else 1.0) / (1.0 + math.exp(y * z))
    >>> weighted = ConvexLoss(cost, slope)
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
        _check_function("price", price, 2)
        if derivative is not None:
            _check_function("derivative", derivative, 2)
        if solution is not None:
            _check_function("solution", solution, 1)
        self.price, self.derivative, self.solution = price, derivative, solution

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConvexLoss):
            return NotImplemented
        functions = self.price, self.derivative, self.solution
        return functions == (other.price, other.derivative, other.solution)

    def __hash__(self) -> int:
        return hash((self.price, self.derivative, self.solution))

    @property
    def keeps_labels(self) -> bool:
        """Whether the mean of labels that are numbers is not enough."""
        return self.derivative is not None

    def __repr__(self) -> str:
        names = {"price": self.price, "derivative": self.derivative, "solution": self.solution}
        arguments = (f"{name}={f!r}" for name, f in names.items() if f is not None)
        return f"ConvexLoss({', '.join(arguments)})"

    def prices(self, z: Any, y: Any) -> np.ndarray:
        """Return the price at each z and label, float64.

        Parameters
        ----------
        z, y : array-like
            Of shapes that broadcast together.
        """
        return _values(self.price, np.asarray(z, np.float64), np.asarray(y, np.float64))

    def warn_unless_sound(self, y: np.ndarray, bound: float | None) -> None:
        """Warn where price, derivative and solution contradict each other at some of the labels.

        Where the price is not convex in z, the derivative falls or is not that of the price, or the
        solution is no minimum. On grids of z: the range of the labels and a bit beyond, and [-8, 8]
        for what is on the scale of a logarithm; or up to the bound. Where the price is not finite
        it is not used.

        Parameters
        ----------
        y : float64 array of shape (n,)
        bound : float or None
            Limit of the size of z.

        Raises
        ------
        ParameterError
            If the price is nowhere finite.
        """
        labels = np.unique(y)
        if len(labels) > _GRID_Y:
            labels = np.unique(np.quantile(y, np.linspace(0.0, 1.0, _GRID_Y)))
        reach = max(float(np.ptp(labels)), 1.0)
        near = (float(labels[0]) - reach, float(labels[-1]) + reach), (-_LOGS, _LOGS)
        is_priced = False
        for ends in near if bound is None else (_ends(bound),):
            z = np.linspace(*ends, _GRID_Z)
            prices = _finite(self.prices(z, labels[:, None]))
            is_priced |= bool((~np.isnan(prices)).any())
            fault = _fault_of_prices(z, labels, prices)
            if fault is None and self.derivative is not None:
                slopes = _finite(_values(self.derivative, z, labels[:, None]))
                fault = _fault_of_slopes(z, labels, prices, slopes)
            elif fault is None:
                fault = self._fault_of_solution(z, labels, bound)
            if fault is not None:
                warnings.warn(fault, UserWarning, stacklevel=2)
                return
        if not is_priced:
            raise ParameterError(
                f"the price is not a finite number for any z tried at the labels {labels[0]:.4g} "
                f"to {labels[-1]:.4g}: give a loss of these labels"
            )

    def _fault_of_solution(
        self, z: np.ndarray, labels: np.ndarray, bound: float | None
    ) -> str | None:
        """Return what is wrong with the solutions for mixtures of the least and largest label."""
        ends = labels[[0, -1]]
        for share in _SHARES:
            mean = float((1.0 - share) * ends[0] + share * ends[1])
            best = float(np.clip(_values(self.solution, np.array([mean]))[0], *_ends(bound)))
            if not np.isfinite(best):
                continue  # an error where a cell needs it
            shares = np.array([1.0 - share, share])[shown := np.array([share < 1.0, share > 0.0])]
            costs = _finite(shares @ _finite(self.prices(z, ends[shown, None])))
            cost = float(shares @ self.prices(best, ends[shown]))
            least = float(np.nanmin(costs, initial=np.inf))
            if least < np.inf and not cost <= least + _CLOSE * max(abs(cost), abs(least)):
                return (
                    f"solution({mean:.4g}) is {best:.4g}, where labels {ends[0]:.4g} and "
                    f"{ends[1]:.4g} of this mean cost {cost:.6g}, at z = "
                    f"{z[np.nanargmin(costs)]:.4g} they cost {least:.6g}: values of "
                    "cells are no minimum; correct it, or give a derivative where the mean label "
                    "is not enough"
                )
        return None

    def warn_unless_of_classes(self) -> None:
        """Warn where a larger z is not cheaper for y = 1, or a smaller one for y = -1, near 0."""
        at = np.array([-_BESIDE_0, _BESIDE_0])
        rises = np.diff(self.prices(at, CLASSES[:, None]), axis=1)[:, 0]
        if rises[0] > 0.0 > rises[1]:
            return
        warnings.warn(
            "the sign of z is the class, so at z = 0 the price of y = 1 should fall with z, and "
            f"that of y = -1 should rise; from z = {at[0]:g} to {at[1]:g} they change by "
            f"{rises[1]:.4g} and {rises[0]:.4g}: give a price(z, y) of labels y = -1 and y = 1, "
            "such as phi(-y z) of a rising phi",
            UserWarning,
            stacklevel=2,
        )

    def why_no_probabilities(self, bound: float | None) -> str | None:
        """Return why z has no probability of two classes; None where it has.

        It has if the best z of each probability, within the bound, is the best of no other:
        looked at for 127 of them.

        Parameters
        ----------
        bound : float or None
            Limit of the size of z.
        """
        return _why_no_probabilities(self, bound)

    def probabilities(self, z: np.ndarray) -> np.ndarray:
        """Return the probability of y = 1 at which each z is the best constant, float64.

        Parameters
        ----------
        z : float64 array
        """
        if self.solution is not None:

            def best(p: np.ndarray) -> np.ndarray:
                return _values(self.solution, 2.0 * p - 1.0)

            ends = np.zeros_like(z), np.ones_like(z)
            least = _halved(lambda p: best(p) >= z, *ends)
            return 0.5 * least + 0.5 * _halved(lambda p: best(p) > z, least, ends[1])
        rise, fall = (_values(self.derivative, z, np.full_like(z, y)) for y in CLASSES)
        with np.errstate(all="ignore"):
            return np.clip(rise / (rise - fall), 0.0, 1.0)

    def solve(
        self, tree: nodes.Tree, bound: float | None, is_binary: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the value of each node and the loss of its rows, float64 [m] each; 0 if empty.

        Of a loss with a ``solution``, where labels are no classes, nodes know the number and the
        mean of labels. Where for all labels of one mean the same z is best,
        price(z, y) = a(z) + b(z) y + c(y), and what rows lose by z more than by the root's z0 is
        n (price(z, mean) - price(z0, mean)): that is returned. Summed over the cells of any
        lifetime it is their loss less one constant.

        Parameters
        ----------
        tree : Tree
            Of a fitted forest.
        bound : float or None
            Limit of the size of z; for two classes None is that of
            :mod:`dmondrian.losses.convex`, which grows with the rows.
        is_binary : bool
            Whether labels are two classes.

        Raises
        ------
        ParameterError
            If no finite z is best for a cell, or its price is not finite where it is needed.
        """
        m = int(tree.head_i[nodes.N_NODES])
        stat, n = tree.d[:m], tree.d[:m, nodes.STAT]
        z, risks, seen = np.zeros(m), np.zeros(m), np.flatnonzero(n > 0.0)
        mean = tree.head_f[nodes.OFFSET] + stat[seen, SUM] / n[seen]
        if is_binary:
            share = np.clip(mean, 0.0, 1.0)  # of class 1
            mean = 2.0 * share - 1.0
            labels = np.broadcast_to(CLASSES, (len(seen), 2))
            weights = n[seen, None] * np.stack([1.0 - share, share], axis=1)
            if bound is None:
                bound = max(1.0, math.log1p(float(tree.head_f[nodes.TOTAL_WEIGHT])))
        elif self.derivative is not None:
            labels, weights = kept_labels(tree, seen)
        if self.solution is not None:
            z[seen] = np.clip(_values(self.solution, mean), *_ends(bound))
            if len(wrong := np.flatnonzero(~np.isfinite(z[seen]))):
                raise ParameterError(
                    f"solution({mean[wrong[0]]:.6g}) is {z[seen][wrong[0]]}, expected a finite "
                    "number for the mean of any labels: give a bound where it is infinite, or a "
                    "solution for all means"
                )
            if not is_binary:
                middle = z[int(tree.head_i[nodes.ROOT])]
                risks[seen] = n[seen] * (self.prices(z[seen], mean) - self.prices(middle, mean))
                return z, risks
        else:
            z[seen] = self._best(labels, weights, bound, is_binary)
        prices = np.where(weights > 0.0, self.prices(z[seen, None], labels), 0.0)
        risks[seen] = (weights * prices).sum(axis=1)
        return z, risks

    def _best(
        self, labels: np.ndarray, weights: np.ndarray, bound: float | None, is_binary: bool
    ) -> np.ndarray:
        """Return where the weighted derivative over each row of labels changes its sign.

        Where it is 0 on an interval, between where it stops to be negative and where it begins to
        be positive, the middle; of classes, whose interval has no end where rows are of one class,
        the point nearest to 0, as under the built-in binary costs.
        """

        def slope(z: np.ndarray) -> np.ndarray:
            slopes = _values(self.derivative, z[:, None], labels)
            sums: np.ndarray = (weights * np.where(weights > 0.0, slopes, 0.0)).sum(axis=1)
            return sums

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
        ends = _halved(lambda z: slope(z) > 0.0, rises, high)
        return np.clip(0.0, rises, ends) if is_binary else 0.5 * rises + 0.5 * ends


@functools.lru_cache(maxsize=64)
def _why_no_probabilities(loss: ConvexLoss, bound: float | None) -> str | None:
    p = _PROBABILITIES
    try:
        if loss.solution is not None:
            z = _values(loss.solution, 2.0 * p - 1.0)
        else:
            labels = np.broadcast_to(CLASSES, (len(p), 2))
            z = loss._best(labels, np.stack([1.0 - p, p], axis=1), bound, is_binary=True)
    except ParameterError as error:
        return str(error)
    is_inside = np.isfinite(z) if bound is None else np.abs(z) < bound * (1.0 - _ROUGH)
    z, p = z[is_inside], p[is_inside]
    back = loss.probabilities(z)
    off = np.flatnonzero(~(np.abs(back - p) <= _CLOSE))
    if not len(off) and len(p) >= _LEAST_INSIDE:
        return None
    if len(off):
        return (
            f"where class 1 has probability {p[off[0]]:.4g} the best z is {z[off[0]]:.4g}, which "
            "is the best z of other probabilities too, as with the hinge: it is no proper "
            "composite loss, and z gives the class alone"
        )
    return f"hardly any probability has its best z within the bound {bound:g}: give a larger one"


def _check_function(name: str, function: Any, n_numbers: int) -> None:
    try:
        inspect.signature(function).bind(*[0.0] * n_numbers)
    except ValueError:
        return  # some built-in functions have no signature
    except TypeError as error:
        expected = "a number" if n_numbers == 1 else "two numbers, z and y"
        raise ParameterError(f"{name} should be a function of {expected}: {error}") from error


def _values(function: Any, *at: np.ndarray) -> np.ndarray:
    """Return the values of a function, which need not be finite."""
    with np.errstate(all="ignore"):
        return elementwise(function)(*at)


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)


def _fault_of_prices(z: np.ndarray, labels: np.ndarray, prices: np.ndarray) -> str | None:
    """Return where prices [labels, z] are curved downwards, in words."""
    falls = np.nan_to_num(-np.diff(prices, 2, axis=1), nan=-np.inf)
    worst = np.unravel_index(np.argmax(falls), falls.shape)
    if not falls[worst] > _ROUGH * np.nanmax(np.abs(prices), initial=0.0):
        return None
    return (
        f"the loss is curved downwards at z = {z[worst[1] + 1]:.4g}, y = {labels[worst[0]]:.4g}: "
        "values of cells may be no minimum; use a convex loss, or a bound within which it is convex"
    )


def _fault_of_slopes(
    z: np.ndarray, labels: np.ndarray, prices: np.ndarray, slopes: np.ndarray
) -> str | None:
    """Return where slopes [labels, z] fall, or are not those of the prices, in words.

    The chord of a convex function is between its derivatives at the ends.
    """
    falls = np.nan_to_num(np.fmax.accumulate(slopes, axis=1) - slopes, nan=-np.inf)
    worst = np.unravel_index(np.argmax(falls), falls.shape)
    if falls[worst] > _ROUGH * np.nanmax(np.abs(slopes), initial=0.0):
        return (
            f"the derivative falls before z = {z[worst[1]]:.4g}, y = {labels[worst[0]]:.4g}: "
            "values of cells may be no minimum; use a convex loss of all z, or a bound where "
            "the derivative does not fall"
        )
    step = np.diff(z)
    chords = np.diff(prices, axis=1) / step
    rounding = _ROUGH * (np.abs(prices[:, 1:]) + np.abs(prices[:, :-1])) / step
    rounding += _CLOSE * np.maximum(np.abs(slopes[:, 1:]), np.abs(slopes[:, :-1]))
    off = np.maximum(slopes[:, :-1] - chords, chords - slopes[:, 1:]) - rounding
    worst = np.unravel_index(np.argmax(np.nan_to_num(off, nan=-np.inf)), off.shape)
    if not off[worst] > 0.0:
        return None
    return (
        f"the derivative is not that of the price: at y = {labels[worst[0]]:.4g} the price rises "
        f"by {chords[worst]:.4g} per unit from z = {z[worst[1]]:.4g} to {z[worst[1] + 1]:.4g}, "
        f"the derivative is {slopes[worst]:.4g} and {slopes[worst[0], worst[1] + 1]:.4g}; values "
        "of cells may be no minimum: correct one of the two"
    )


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
