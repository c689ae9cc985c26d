"""Factors of symmetric positive definite matrices that gain and lose columns, and solutions.

A factor is the upper triangle U of A = U' U, the first c rows and columns of a larger array. Loops
run along rows, so that they vectorise without reordering a sum: results are the same to the last
bit on every machine, which no BLAS promises.

Shapes: c columns, k right-hand sides.

References: Seeger (2004), "Low rank updates for the Cholesky decomposition"; Balog et al. (2016),
section 4.2.1 and Supplement C.
"""

from __future__ import annotations

import numpy as np

from dmondrian._jit import inner, kernel


@kernel
def factorize(U, c):
    """Replace the upper triangle of A, in ``c`` columns of ``U``, by its factor. O(c^3)."""
    for i in range(c):
        row = U[i]
        for j in range(i):
            above = U[j]
            scale = above[i]
            if scale != 0.0:
                for s in range(i, c):
                    row[s] -= scale * above[s]
        pivot = np.sqrt(row[i])
        row[i] = pivot
        for s in range(i + 1, c):
            row[s] /= pivot


@inner
def rotate(U, c, first, x):
    """Make ``U`` the factor of A + x x', x [c] zero before ``first``; x is used up. O(c^2)."""
    for i in range(first, c):
        at = x[i]
        if at != 0.0:
            row = U[i]
            pivot = row[i]
            radius = np.sqrt(pivot * pivot + at * at)
            cosine, sine, inverse = radius / pivot, at / pivot, pivot / radius
            row[i] = radius
            for s in range(i + 1, c):
                row[s] = (row[s] + sine * x[s]) * inverse
                x[s] = cosine * x[s] - sine * row[s]


@kernel
def add_rank_one(U, c, x):
    """Make ``U`` the factor of A + x x'; ``x`` [c] is used up. O(c^2)."""
    rotate(U, c, 0, x)


@inner
def append_column(U, c, a, diagonal):
    """Give the factor a last column with entries ``a`` [c] and a diagonal entry. O(c^2)."""
    rest = diagonal
    for i in range(c):
        row = U[i]
        z = a[i] / row[i]
        if z != 0.0:
            for s in range(i + 1, c):
                a[s] -= row[s] * z
        row[c] = z
        rest -= z * z
    U[c, c] = np.sqrt(rest)


@inner
def remove_column(U, c, at, x):
    """Take column ``at`` out of the factor; the columns behind it move up. ``x`` [c] is scratch.

    O((c - at)^2): what the rows behind it lose is given back by one rotation.
    """
    for s in range(at + 1, c):
        x[s - 1] = U[at, s]
    for i in range(at):
        row = U[i]
        for s in range(at, c - 1):
            row[s] = row[s + 1]
    for i in range(at, c - 1):
        row, below = U[i], U[i + 1]
        for s in range(i, c - 1):
            row[s] = below[s + 1]
    rotate(U, c - 1, at, x)


@inner
def solve_into(U, c, b, z):
    """Write the solution of A z = b, both [c]; return b' A^{-1} b. O(c^2)."""
    for i in range(c):
        z[i] = b[i]
    explained = 0.0
    for i in range(c):
        row = U[i]
        at = z[i] / row[i]
        z[i] = at
        explained += at * at
        for s in range(i + 1, c):
            z[s] -= row[s] * at
    for j in range(c):
        i = c - 1 - j
        row = U[i]
        # Four sums side by side: one would wait for each addition.
        first = second = third = fourth = 0.0
        s = i + 1
        while s + 3 < c:
            first += row[s] * z[s]
            second += row[s + 1] * z[s + 1]
            third += row[s + 2] * z[s + 2]
            fourth += row[s + 3] * z[s + 3]
            s += 4
        while s < c:
            first += row[s] * z[s]
            s += 1
        z[i] = (z[i] - ((first + second) + (third + fourth))) / row[i]
    return explained


@kernel
def solve(U, c, B, Z):
    """Write the solutions of A Z = B, float64 [k, c] each. O(k c^2)."""
    for j in range(B.shape[0]):
        solve_into(U, c, B[j], Z[j])


@kernel
def add_pairs(G, B, moments, columns, targets, weights):
    """Add rows to the sums, in order: G [c, c] on and above the diagonal, B [k, c]. O(n T^2).

    ``moments`` [1 + k] takes the weight of all rows and the sums of their targets.
    """
    for r in range(columns.shape[0]):
        mine, w = columns[r], weights[r]
        moments[0] += w
        for j in range(B.shape[0]):
            moments[1 + j] += w * targets[r, j]
        for s in range(mine.shape[0]):
            first = mine[s]
            for t in range(s, mine.shape[0]):
                second = mine[t]
                G[min(first, second), max(first, second)] += w
            for j in range(B.shape[0]):
                B[j, first] += w * targets[r, j]
