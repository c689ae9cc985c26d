"""Impurity of classes, and what a split gains, from numbers that are kept as rows come.

With n_c rows of class c among n, entropy and Gini impurity are of the form (F(n) - sum_c f(n_c)) /
n and (n - sum_c f(n_c) / n) / n. A row changes one n_c, so that sum_c f(n_c) is kept at the price
of two values of f, whatever the number of classes. Values of f are whole: those of the entropy are
rounded to 2^-20 bits, so that sums are exact and do not depend on the order of rows.

Entropy is in bits, as scikit-learn's; n log2 n in units of 2^-20 is whole in a double up to n =
2^28 or so, beyond which sums round. The Hellinger distance between the two classes' shares of the
children does not look at how rare a class is (Cieslak, Hoens, Chawla, Kegelmeyer, 2012).
"""

from __future__ import annotations

import math

import numpy as np

from dmondrian._numba.jit import inline
from dmondrian.tree.keyed_random import log

ENTROPY, GINI, HELLINGER = 0, 1, 2
CRITERIA = {"entropy": ENTROPY, "gini": GINI, "hellinger": HELLINGER}
_UNITS = 2.0**20  # of a bit
_SCALE = _UNITS / math.log(2.0)


# Most cells of a fringe hold few rows: a look at a table takes less than a logarithm. Whichever
# library differs from NumPy's, none of these is so near to a half that its last bit could matter.
_COUNTS = np.arange(2048.0)
_BITS = np.rint(_COUNTS * np.log(np.maximum(_COUNTS, 1.0)) * _SCALE)
_STEPS = np.diff(_BITS)


@inline
def concave(criterion, n):
    """Return f(``n``)."""
    if criterion != ENTROPY:
        return n * n
    if 0.0 <= n < _BITS.shape[0] and n == np.floor(n):
        return _BITS[np.uint64(n)]
    return np.rint(n * log(n) * _SCALE) if n > 0.0 else 0.0


@inline
def rise(criterion, n, w):
    """Return f(``n + w``) - f(``n``)."""
    if criterion == ENTROPY and w == 1.0 and 0.0 <= n < _STEPS.shape[0] and n == np.floor(n):
        return _STEPS[np.uint64(n)]
    return concave(criterion, n + w) - concave(criterion, n)


@inline
def impurity(criterion, n, summed):
    """Return the impurity of rows of weight ``n`` > 0, times n."""
    if criterion == ENTROPY:
        return (concave(criterion, n) - summed) / _UNITS
    return n - summed / n


@inline
def hellinger(first, second, first_left, second_left):
    """Return the distance between two classes' shares left and right, 0 if one has no rows."""
    if first <= 0.0 or second <= 0.0:
        return 0.0
    p, q = first_left / first, second_left / second
    left = np.sqrt(p) - np.sqrt(q)
    right = np.sqrt(max(1.0 - p, 0.0)) - np.sqrt(max(1.0 - q, 0.0))
    return np.sqrt(left * left + right * right)
