"""Numbers too small or too large for a float: m * 2^(256 k), and the odds kept so.

After 10^8 rows a node's weight is of the order of exp(-10^7). Only ratios of weights
matter, and the odds o = s / (1 - s) of stopping at a node are such a ratio; they can
still leave the range of a float64, so their exponent is kept apart.

One row turns o into o P_v / q_child and hands q_v = s P_v + (1 - s) q_child to the
parent, P_v being the node's own price factor exp(-eta price) and q the factor of the
mixture over all prunings below (M21, section 2.2, in terms of ratios).
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.jit import inline, noinline
from dmondrian.tree.keyed_random import exp
from dmondrian.tree.nodes import EXPONENT, ODDS
from dmondrian.tree.simd.exp import quotients

_UP = 2.0**256
_DOWN = 2.0**-256
_BIG = LARGEST_ODDS = 2.0**128
_SMALL = SMALLEST_ODDS = 2.0**-128
_FIRST_BITS = np.int64(np.float64(_SMALL).view(np.int64) + 1)  # of a number above 2^-128
_N_BITS = np.uint64(np.float64(_BIG).view(np.int64) - _FIRST_BITS)
_LN_UP = 177.445678223346  # 256 ln 2
_NEAR = 88.0  # below 128 ln 2
# A label 10^9 spreads off can price a row at 10^18: exponents stop at e^(+-9.5e10) for one
# row and twice that in all. A node so far behind has no share in double precision anyway,
# and the next rebuild from the stored prices (losses/squared.py) restores the exact odds.
_ROW_LIMIT = 2**29
_LIMIT = LARGEST_EXPONENT = 2**30


@inline
def normalise(m, k):
    """Return the same number with ``m`` in [2^-128, 2^128]; 0, inf and nan as they are."""
    while _BIG < m < np.inf:
        m *= _DOWN
        k += 1
    while 0.0 < m < _SMALL:
        m *= _UP
        k -= 1
    return m, k


@inline
def is_near(value):
    """Return whether e^``value`` is (e^``value``, 0)."""
    return -_NEAR < value < _NEAR


@inline
def from_log(value):
    """Return e^``value`` as (m, k)."""
    if is_near(value):  # as below, in fewer steps
        return exp(value), np.int64(0)
    if value < -_ROW_LIMIT * _LN_UP:
        return 1.0, np.int64(-_ROW_LIMIT)
    if value > _ROW_LIMIT * _LN_UP:
        return 1.0, np.int64(_ROW_LIMIT)
    k = np.int64(np.floor(value / _LN_UP + 0.5))
    return exp(value - k * _LN_UP), k


@inline
def add(m, k, n, j):
    """Return m 2^(256 k) + n 2^(256 j) as (m, k); m and n in [2^-400, 2^400]."""
    if k == j:
        return normalise(m + n, k)
    if k < j:
        m, k, n, j = n, j, m, k
    if k - j == 1:
        return normalise(m + n * _DOWN, k)
    return normalise(m, k)


@inline
def _as_held(m, k):
    """Return odds as they are held."""
    m, k = normalise(m, k)
    return m, max(min(k, _LIMIT), -_LIMIT)


@inline
def set_odds(tree, v, m, k):
    """Write the odds of node ``v``."""
    m, k = _as_held(m, k)
    tree.d[v, ODDS] = m
    tree.i[v, EXPONENT] = np.int32(k)


@inline
def stop_probability(tree, v):
    """Return s, the posterior probability of stopping at internal node ``v``."""
    k = tree.i[v, EXPONENT]
    if k == 0:
        odds = tree.d[v, ODDS]
        return odds / (1.0 + odds)
    return 1.0 if k > 0 else 0.0


@inline
def is_held(m):
    """Return whether 2^-128 < ``m`` < 2^128; ``m`` not below +0, or nan."""
    return np.uint64(np.float64(m).view(np.int64) - _FIRST_BITS) < _N_BITS


@inline
def mix_near(tree, v, n, d, q):
    """Mix and shift factors whose exponents are 0, as :func:`mix_and_shift`; do nothing to others.

    Returns whether it was done, and q_v. It calls nothing, which would cost a loop its registers.
    """
    odds, k = tree.d[v, ODDS], tree.i[v, EXPONENT]
    p, go_on = quotients(n, 1.0, d, 1.0 + odds)
    shifted = odds * p / q
    # odds p / q beyond 2^128 or below 2^-128: one of the two is lost in rounding.
    handed = q if k < 0 else p
    if not is_held(shifted) or (k != 0 and not is_held(handed)):
        return False, q
    tree.d[v, ODDS] = shifted
    return True, odds * go_on * p + go_on * q if k == 0 else handed


@inline
def mix_and_shift(tree, v, n, d, kp, q, kq):
    """Learn one row at internal node ``v``: shift its odds, return q_v as (m, k).

    Its price factor is ``n`` / ``d`` 2^(256 ``kp``).
    """
    odds, k = tree.d[v, ODDS], np.int64(tree.i[v, EXPONENT])
    m, e, handed, kh = _mixed(odds, k, n / d, kp, q, kq)
    tree.d[v, ODDS], tree.i[v, EXPONENT] = m, np.int32(e)
    return handed, kh


@noinline
def _mixed(odds, k, p, kp, q, kq):
    """Return odds after a row as (m, k), and what the parent gets, as (m, k)."""
    go_on = 1.0 / (1.0 + odds)
    shifted = odds * p / q
    if kp == 0 and kq == 0 and is_held(shifted):
        if k == 0:
            return shifted, k, odds * go_on * p + go_on * q, k
        handed, kh = normalise(q if k < 0 else p, np.int64(0))
        return shifted, k, handed, kh
    if k > 0:
        handed, kh = add(p, kp, q / odds, kq - k)
    elif k < 0:
        handed, kh = add(odds * p, k + kp, q, kq)
    else:
        handed, kh = add(odds * go_on * p, kp, go_on * q, kq)
    m, e = _as_held(shifted, k + kp - kq)
    return m, e, handed, kh


@inline
def inherit_odds(tree, new, v, v_is_leaf):
    """Give parent ``new``, inserted above ``v``, the odds w_v / W_v.

    That is 1 above a leaf, 2 s_v above an internal node (w and W as in M21, Table 1).
    """
    odds = tree.d[v, ODDS]
    k = tree.i[v, EXPONENT]
    if v_is_leaf:
        set_odds(tree, new, 1.0, np.int64(0))
    elif k == 0:
        set_odds(tree, new, 2.0 * odds / (1.0 + odds), np.int64(0))
    elif k > 0:
        set_odds(tree, new, 2.0, np.int64(0))
    else:
        set_odds(tree, new, 2.0 * odds, np.int64(k))
