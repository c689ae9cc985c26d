r"""Convex losses whose solution in a cell is a function of the mean label there (Z24, section 6).

A cell forecasts c = argmin over z in its limits of the sum of loss(z, y) over its rows. With n rows
of mean m (of labels 0, 1 in the binary costs, y = 2 label - 1 = +-1 and v = -y z):

=================  ==================================================  ====================
loss               loss(z, y)                                          argmin
=================  ==================================================  ====================
squared            (y - z)^2                                           m
gaussian           (y - z)^2 / 2                                       m
poisson            e^z - y z                                           ln m
geometric          -ln(1 - e^z) - y z, z < 0                           ln(m / (1 + m))
bernoulli          ln(1 + e^z) - y z, y = 0, 1                         ln(m / (1 - m))
square             (1 + v)^2                                           2 m - 1
hinge              max(1 + v, 0)                                       sign(2 m - 1)
smoothed_hinge     1/2 + v; (1 + v)^2 / 2 where -1 < v < 0; 0 below    (2 m - 1) / max(m, 1 - m)
modified_square    max(1 + v, 0)^2                                     2 m - 1
logistic           log2(1 + e^v)                                       ln(m / (1 - m))
exponential        e^v                                                 ln(m / (1 - m)) / 2
=================  ==================================================  ====================

The Gaussian family's z^2 / 2 - y z is given with the y^2 / 2 that no z changes, which keeps its
digits where labels are far from 0. All are convex in z, so the best z within limits is the best z
moved to them. One policy holds them all, chosen by a number: the kernels are compiled
once for eleven losses.

**Limits.** beta_n = max(1, ln(1 + n)) for n rows in all, unless a bound is given: the conditions of
Z24 ask that it grow like ln n. |z| <= beta_n for binary costs; for counts |z - ln M| <= beta_n, M
the mean of all rows (else a forest of large counts would be clipped when it has few rows), and
as for the geometric family, whose z stays below 0. A mean of real labels lies among them: no
limit but a given one.

An empty cell has the forecast of the smallest cell above it with rows, or (``prior``) 0, as in Z24.

Relies on :mod:`dmondrian.stats.moments`. ``priced`` adds to a node's cumulated price the loss of
its forecast of each row before the row is counted; ``rate`` > 0 makes the price factor of it.

References: Zhan, Wang, Xia, "Non-asymptotic Properties of Generalized Mondrian Forests in
Statistical Learning" (Z24), sections 3 and 6.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.losses.constant import add_empty_solution, add_solution, solution
from dmondrian.losses.repeats import in_parts
from dmondrian.stats.moments import PRICE, SQUARES, SUM
from dmondrian.tree.backward import node_by_node
from dmondrian.tree.keyed_random import exp, log, log_of_sum
from dmondrian.tree.nodes import OFFSET, PARENT, ROOT, STAT, TOTAL_WEIGHT
from dmondrian.tree.policies import (
    add_empty_forecast,
    add_forecast,
    at_once,
    forecast_loss,
    learn_above,
    opening_price,
    prepare,
    price,
    risk,
)
from dmondrian.tree.scaled_float import from_log

LOSSES = (
    "squared",
    "gaussian",
    "poisson",
    "geometric",
    "bernoulli",
    "square",
    "hinge",
    "smoothed_hinge",
    "modified_square",
    "logistic",
    "exponential",
)
# Real labels, then counts, then labels 0 and 1: below, comparisons rely on this order.
(
    SQUARED,
    GAUSSIAN,
    POISSON,
    GEOMETRIC,
    BERNOULLI,
    SQUARE,
    HINGE,
    SMOOTHED_HINGE,
    MODIFIED_SQUARE,
    LOGISTIC,
    EXPONENTIAL,
) = range(len(LOSSES))
_LN_2 = 0.6931471805599453


class OfMean(NamedTuple):
    """The best constant under a loss that needs no more than the mean of the labels."""

    kind: int  # index into LOSSES
    bound: float  # of |z|; 0 for the limits that grow with the rows
    prior: bool  # an empty cell forecasts 0, not what its parent forecasts
    priced: bool  # whether nodes add up what their forecasts cost
    rate: float  # learning rate of the mixture over prunings; 0 without one


@inline
def mean_label(loss, tree, v):
    """Return the mean label at ``v``, no further than labels can be from rounding."""
    mean = tree.head_f[OFFSET] + tree.d[v, SUM] / tree.d[v, STAT]
    return min(mean, 1.0) if loss.kind >= BERNOULLI else mean


@inline
def log_ratio(a, b):
    """Return ln(``a`` / ``b``) of numbers >= 0, one of them positive."""
    if a <= 0.0:
        return -np.inf
    return log(a / b) if b > 0.0 else np.inf


@inline
def best_constant(kind, mean):
    """Return the z of least total loss over labels of this mean, without limits."""
    if kind == POISSON:
        return log_ratio(mean, 1.0)
    if kind == GEOMETRIC:
        return -log_of_sum(1.0 / mean) if mean > 1.0 else log_ratio(mean, 1.0 + mean)
    if kind in (BERNOULLI, LOGISTIC):
        return log_ratio(mean, 1.0 - mean)
    if kind == EXPONENTIAL:
        return 0.5 * log_ratio(mean, 1.0 - mean)
    if kind in (SQUARE, MODIFIED_SQUARE):
        return 2.0 * mean - 1.0
    if kind == HINGE:
        return np.sign(2.0 * mean - 1.0)  # 0, the middle of all minima, where classes are even
    if kind == SMOOTHED_HINGE:
        return (2.0 * mean - 1.0) / max(mean, 1.0 - mean)
    return mean


@inline
def limits(loss, tree):
    """Return the least and the largest z that a cell may forecast."""
    kind = loss.kind
    if loss.bound > 0.0:
        return -loss.bound, (-1.0 / loss.bound if kind == GEOMETRIC else loss.bound)
    if kind <= GAUSSIAN:
        return -np.inf, np.inf
    beta = max(1.0, log(1.0 + tree.head_f[TOTAL_WEIGHT]))
    if kind >= BERNOULLI:
        return -beta, beta
    mean = mean_label(loss, tree, tree.head_i[ROOT])
    middle = best_constant(kind, mean) if mean > 0.0 else -beta
    return middle - beta, (middle * exp(-beta) if kind == GEOMETRIC else middle + beta)


@implements(solution, OfMean)
def best_within_limits(loss, tree, v):
    low, high = limits(loss, tree)
    return min(max(best_constant(loss.kind, mean_label(loss, tree, v)), low), high)


@inline
def log_one_minus_exp(z):
    """Return ln(1 - e^``z``) for z < 0."""
    if z > -1e-5:
        return log(-z * (1.0 + 0.5 * z * (1.0 + z / 3.0)))
    return log(1.0 - exp(z))


@inline
def softplus(z):
    """Return ln(1 + e^``z``)."""
    return max(z, 0.0) + log(1.0 + exp(-abs(z)))


@inline
def cost_of_margin(kind, v):
    """Return the binary cost of v = -y z."""
    if kind == SQUARE:
        return (1.0 + v) * (1.0 + v)
    if kind == HINGE:
        return max(1.0 + v, 0.0)
    if kind == SMOOTHED_HINGE:
        if v >= 0.0:
            return 0.5 + v
        return 0.5 * (1.0 + v) * (1.0 + v) if v > -1.0 else 0.0
    if kind == MODIFIED_SQUARE:
        return max(1.0 + v, 0.0) * max(1.0 + v, 0.0)
    if kind == LOGISTIC:
        return softplus(v) / _LN_2
    return exp(v)


@inline
def cost(kind, z, y):
    """Return loss(``z``, ``y``)."""
    if kind == SQUARED:
        return (y - z) * (y - z)
    if kind == GAUSSIAN:
        return 0.5 * (y - z) * (y - z)
    if kind == POISSON:
        return exp(z) - y * z
    if kind == GEOMETRIC:
        return -log_one_minus_exp(z) - y * z
    if kind == BERNOULLI:
        return softplus(z) - y * z
    return cost_of_margin(kind, (1.0 - 2.0 * y) * z)


@implements(prepare, OfMean)
def prepare_of_mean(loss, rule, tree, y):
    if tree.head_f[TOTAL_WEIGHT] == 0.0 and loss.kind < POISSON:  # z is no label beyond
        tree.head_f[OFFSET] = y


@inline
def charge(loss, tree, v, z, y, w):
    """Add to ``v`` what a row that finds ``z`` costs; return its price factor."""
    paid = w * cost(loss.kind, z, y)
    tree.d[v, PRICE] += paid
    if loss.rate == 0.0:
        return 1.0, np.int64(0)
    return from_log(-loss.rate * paid)


@implements(price, OfMean)
def price_of_mean(loss, tree, v, y, w):
    if not loss.priced:
        return 1.0, 1.0, np.int64(0)
    m, k = charge(loss, tree, v, solution(loss, tree, v), y, w)
    return m, 1.0, k


@implements(opening_price, OfMean)
def opening_price_of_mean(loss, tree, v, y, w):
    parent = tree.i[v, PARENT]
    if parent < 0 or not loss.priced:
        return 1.0, np.int64(0)
    return charge(loss, tree, v, 0.0 if loss.prior else solution(loss, tree, parent), y, w)


implements(add_forecast, OfMean)(add_solution)
implements(add_empty_forecast, OfMean)(add_empty_solution)
implements(at_once, OfMean)(in_parts)
implements(learn_above, OfMean)(node_by_node)


@inline
def least_cost(kind, y):
    """Return the least loss of any z at label ``y``: what a likelihood costs that knows the label.

    The losses that compare forests are above it, so that they are not negative.
    """
    if kind == POISSON:
        return y - y * log(y) if y > 0.0 else 0.0
    if kind == GEOMETRIC:
        return (1.0 + y) * log(1.0 + y) - (y * log(y) if y > 0.0 else 0.0)
    return 0.0


@implements(forecast_loss, OfMean)
def forecast_loss_of_mean(loss, total, n_trees, y):
    return cost(loss.kind, total[0] / n_trees, y) - least_cost(loss.kind, y)


@implements(risk, OfMean)
def risk_of_mean(loss, tree, v):
    n = tree.d[v, STAT]
    if n == 0.0:
        return 0.0
    kind, mean, z = loss.kind, mean_label(loss, tree, v), solution(loss, tree, v)
    if kind <= GAUSSIAN:
        scatter = max(tree.d[v, SQUARES] - tree.d[v, SUM] * tree.d[v, SUM] / n, 0.0)
        return (1.0 if kind == SQUARED else 0.5) * (scatter + n * (mean - z) * (mean - z))
    if kind <= BERNOULLI:  # linear in the label
        return n * cost(kind, z, mean)
    return n * (mean * cost(kind, z, 1.0) + (1.0 - mean) * cost(kind, z, 0.0))
