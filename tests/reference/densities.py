"""Densities that are constant on the cells of a tree of the cube, slowly, from Z24, section 6.6.

Every cell is a Python object, all are looked at again at every lifetime, and the least of the
empirical risk is SciPy's. Shares no code with the package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from .cube import Cell, CubeTree


def partition(tree: CubeTree, lifetime: float) -> list[Cell]:
    """Return every cell at a lifetime, empty ones as they were when they became empty."""
    found, ahead = [], [tree.root()]
    while ahead:
        cell = ahead.pop()
        if cell.rows and cell.split()[0] <= lifetime:
            ahead += [cell.child(tree.X, True), cell.child(tree.X, False)]
        else:
            found.append(cell)
    return found


def split_times(tree: CubeTree, end: float) -> list[float]:
    """Return 0 and the times up to the end at which a cell with rows is split, in order."""
    found, ahead = [0.0], [tree.root()]
    while ahead:
        cell = ahead.pop()
        if cell.rows and cell.split()[0] <= end:
            found.append(cell.split()[0])
            ahead += [cell.child(tree.X, True), cell.child(tree.X, False)]
    return sorted(found)


def shares_and_volumes(tree: CubeTree, cells: Sequence[Cell]) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of the rows and the volume of each cell."""
    total = math.fsum(tree.w)
    shares = [math.fsum(tree.w[r] for r in cell.rows) / total for cell in cells]
    sides = [np.array(cell.upper, float) - np.array(cell.lower, float) for cell in cells]
    return np.array(shares), np.array([side.prod() for side in sides])


def risk(values: np.ndarray, shares: np.ndarray, volumes: np.ndarray) -> float:
    """Return the empirical risk: -(1/n) sum_i h(X_i) + ln of the integral of exp(h)."""
    return float(logsumexp(values, b=volumes) - shares @ values)


def log_frequencies(shares: np.ndarray, volumes: np.ndarray, beta: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.clip(np.log(shares / volumes), -beta, beta)


def slopes(values: np.ndarray, shares: np.ndarray, volumes: np.ndarray) -> np.ndarray:
    """Return the derivative of the risk by each value."""
    return volumes * np.exp(values - logsumexp(values, b=volumes)) - shares


def least(shares: np.ndarray, volumes: np.ndarray, beta: float) -> tuple[float, float]:
    """Return numbers between which the least risk within the limits is.

    SciPy's search may stop early. The risk is convex, so that it is nowhere below its tangent at
    the place where the search stopped, which is least at a corner of the limits.
    """
    found = minimize(
        lambda c: risk(c, shares, volumes),
        log_frequencies(shares, volumes, beta),
        jac=lambda c: slopes(c, shares, volumes),
        bounds=[(-beta, beta)] * len(shares),
        method="L-BFGS-B",
        options={"maxiter": 20_000, "maxfun": 50_000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 40},
    ).x
    slope = slopes(found, shares, volumes)
    gap = np.minimum(slope * (beta - found), slope * (-beta - found)).sum()
    above = risk(found, shares, volumes)
    return above + float(gap), above


def risks(
    shares: np.ndarray, volumes: np.ndarray, beta: float, cell_value: str
) -> tuple[float, float]:
    """Return numbers between which the risk is."""
    if cell_value == "minimizer":
        return least(shares, volumes, beta)
    found = risk(log_frequencies(shares, volumes, beta), shares, volumes)
    return found, found
