"""Log loss of the Krichevsky-Trofimov forecaster (M21, Equation 5).

p_v(c) = (n_vc + alpha) / (n_v + K alpha), taken before the row is counted; the price is
-log p_v(y), so with learning rate 1 the price factor is p_v(y) itself and no logarithm
is needed. A row of weight w costs what w repeats cost (a ratio of gamma functions).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline, noinline
from dmondrian.losses.repeats import all_at_once
from dmondrian.tree.backward import node_by_node
from dmondrian.tree.keyed_random import log, log_gamma, log_gamma_rise
from dmondrian.tree.nodes import STAT
from dmondrian.tree.policies import (
    add_empty_forecast,
    add_forecast,
    at_once,
    forecast_at,
    forecast_loss,
    learn_above,
    opening_price,
    prepare,
    price,
)
from dmondrian.tree.scaled_float import from_log

_MANY = 2.0**20


class KT(NamedTuple):
    """Dirichlet pseudo-count forecasts under log loss."""

    alpha: float  # pseudo-count of each class
    n_classes: int
    rate: float  # learning rate, 1 for the exact Bayesian mixture
    charge: bool  # whether the row that opens a leaf pays log K there


@inline
def log_repeats(n_c, n, alpha, n_classes, w):
    """Return the log probability of ``w`` repeats of a class after ``n_c`` of ``n``."""
    a = n_c + alpha
    b = n + n_classes * alpha
    if b + w > _MANY:  # logarithms of gamma functions lose what they differ in
        rest = n - n_c + (n_classes - 1) * alpha  # b - a, which may be lost beside a
        if w <= rest:
            return log_gamma_rise(a, w) - log_gamma_rise(b, w)
        return log_gamma_rise(a, rest) - log_gamma_rise(a + w, rest) if rest > 0.0 else 0.0
    return log_gamma(a + w) - log_gamma(a) - log_gamma(b + w) + log_gamma(b)


@implements(prepare, KT)
def prepare_kt(loss, rule, tree, y):
    pass


implements(at_once, KT)(all_at_once)


class UnitWeightKT(NamedTuple):
    """:class:`KT` for rows of weight one at learning rate 1, by far the commonest case."""

    alpha: float
    all_alpha: float  # of all classes


@implements(price, UnitWeightKT)
def price_unit_weight(loss, tree, v, y, w):
    of_class, of_all = tree.d[v, STAT + 1 + int(y)] + loss.alpha, tree.d[v, STAT] + loss.all_alpha
    return of_class, of_all, np.int64(0)


@noinline
def learn_any_row(loss, stat, rule, tree, leaf, q, kq, shift, y, w, cached_path):
    """Learn any row; apart, as its logarithms would take registers from the loop of most rows."""
    node_by_node_compiled(loss, stat, rule, tree, leaf, q, kq, shift, y, w, cached_path)


@implements(learn_above, KT)
def learn_above_kt(loss, stat, rule, tree, leaf, q, kq, shift, y, w, cached_path):
    if w == 1.0 and loss.rate == 1.0:
        unit_weight = UnitWeightKT(loss.alpha, loss.n_classes * loss.alpha)
        node_by_node_compiled(
            unit_weight, stat, rule, tree, leaf, q, kq, shift, y, 1.0, cached_path
        )
    else:
        learn_any_row(loss, stat, rule, tree, leaf, q, kq, shift, y, w, cached_path)


node_by_node_compiled = inline(node_by_node)


@implements(price, KT)
def price_kt(loss, tree, v, y, w):
    n = tree.d[v, STAT]
    n_c = tree.d[v, STAT + 1 + int(y)]
    if w == 1.0:
        of_class, of_all = n_c + loss.alpha, n + loss.n_classes * loss.alpha
        if loss.rate == 1.0:
            return of_class, of_all, np.int64(0)
        m, k = from_log(loss.rate * log(of_class / of_all))
        return m, 1.0, k
    m, k = from_log(loss.rate * log_repeats(n_c, n, loss.alpha, loss.n_classes, w))
    return m, 1.0, k


@implements(opening_price, KT)
def opening_price_kt(loss, tree, v, y, w):
    if loss.charge:
        n, d, k = price(loss, tree, v, y, w)
        return n / d, k
    if w <= 1.0:
        return 1.0, np.int64(0)
    return from_log(loss.rate * log_repeats(1.0, 1.0, loss.alpha, loss.n_classes, w - 1.0))


@implements(add_forecast, KT)
def add_forecast_kt(loss, tree, v, depth, weight, out):
    scale = weight / (tree.d[v, STAT] + loss.n_classes * loss.alpha)
    for c in range(loss.n_classes):
        out[c] += (tree.d[v, STAT + 1 + c] + loss.alpha) * scale


@implements(forecast_at, KT)
def forecast_of_class_kt(loss, tree, v, y):
    of_class, of_all = tree.d[v, STAT + 1 + int(y)], tree.d[v, STAT]
    return (of_class + loss.alpha) / (of_all + loss.n_classes * loss.alpha)


@implements(add_empty_forecast, KT)
def add_empty_forecast_kt(loss, tree, v, depth, weight, out):
    for c in range(loss.n_classes):
        out[c] += weight / loss.n_classes


@implements(forecast_loss, KT)
def forecast_loss_kt(loss, total, n_trees, y):
    return -log(total[int(y)] / n_trees)
