"""Factors of symmetric positive definite matrices that gain and lose columns, and solutions.

A factor is the upper triangle U of A = U' U, the first c rows and columns of a larger array. Loops
run along rows, so that they vectorise without reordering a sum: results are the same to the last
bit on every machine, which no BLAS promises.

Solutions z of U' z = a can follow the factor: z [c, r], a column for each of r right-hand sides.
They are what further columns of the factor would be, so the same rotations keep them.

Shapes: c columns, k right-hand sides.

References: Seeger (2004), "Low rank updates for the Cholesky decomposition"; Balog et al. (2016),
section 4.2.1 and Supplement C.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.jit import inline, kernel


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


@inline
def rotate(U, Z, c, first, x, y):
    """Make ``U`` the factor of A + x x', x [c] zero before ``first``; x is used up. O(c (c + r)).

    ``Z`` [c, r] follows, for right-hand sides a + x y', ``y`` [r], which is used up too.
    """
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
            beside = Z[i]
            for r in range(y.shape[0]):
                beside[r] = (beside[r] + sine * y[r]) * inverse
                y[r] = cosine * y[r] - sine * beside[r]


@kernel
def add_rank_one(U, c, x):
    """Make ``U`` the factor of A + x x'; ``x`` [c] is used up. O(c^2)."""
    none = np.empty(0)
    rotate(U, U[:, :0], c, 0, x, none)


@inline
def append_column(U, Z, c, a, diagonal):
    """Give the factor a last column with entries ``a`` [c] and a diagonal entry. O(c (c + r)).

    Row ``c`` of ``Z`` [., r] has the entries of the right-hand sides, and becomes the solutions'.
    """
    rest, beside = diagonal, Z[c]
    for i in range(c):
        row = U[i]
        z = a[i] / row[i]
        if z != 0.0:
            for s in range(i + 1, c):
                a[s] -= row[s] * z
            for r in range(beside.shape[0]):
                beside[r] -= Z[i, r] * z
        row[c] = z
        rest -= z * z
    pivot = np.sqrt(rest)
    U[c, c] = pivot
    for r in range(beside.shape[0]):
        beside[r] /= pivot


@inline
def remove_column(U, Z, c, at, x, y):
    """Take column ``at`` out of the factor; the columns behind it move up.

    ``x`` [c] and ``y`` [r] are scratch. O((c - at) (c - at + r)): what the rows behind it lose is
    given back by one rotation. The entry of right-hand sides goes with the column.
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
    for r in range(y.shape[0]):
        y[r] = Z[at, r]
    for i in range(at, c - 1):
        for r in range(y.shape[0]):
            Z[i, r] = Z[i + 1, r]
    rotate(U, Z, c - 1, at, x, y)


@inline
def take_entry(U, Z, c, at, z, which):
    """Let right-hand sides lose a one in entry ``at``: those marked in ``which`` [r]. O(c (c + r)).

    ``z`` [c] is scratch.
    """
    for i in range(at, c):
        z[i] = 1.0 if i == at else 0.0
    for i in range(at, c):
        row = U[i]
        z[i] /= row[i]
        for s in range(i + 1, c):
            z[s] -= row[s] * z[i]
        for r in range(which.shape[0]):
            if which[r] != 0.0:
                Z[i, r] -= z[i]


@inline
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


@kernel
def add_quadratics(inverse, columns, present, quadratic, absent):
    """Add to ``quadratic`` [n] the mean of b' A^{-1} b over random b, and to ``absent`` [n] zeros.

    Entry t of b, in the column ``columns`` [n, T] of a row, is one with the probability ``present``
    [n, T], independently of the others, else zero; so are entries without a column (-1), which
    ``absent`` counts with the others that are expected to be zero. O(n T^2).
    """
    for r in range(columns.shape[0]):
        mine, p = columns[r], present[r]
        total, lacking = 0.0, 0.0
        for t in range(mine.shape[0]):
            first = mine[t]
            if first < 0:
                lacking += 1.0
                continue
            lacking += 1.0 - p[t]
            row = inverse[first]
            total += p[t] * row[first]
            beside = 0.0
            for s in range(t):
                if mine[s] >= 0:
                    beside += p[s] * row[mine[s]]
            total += 2.0 * p[t] * beside
        quadratic[r] += total
        absent[r] += lacking
