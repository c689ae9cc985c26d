r"""Densities of cells, their empirical risk, and that risk at all lifetimes (Z24, section 6.6).

A tree's function has the value c_A on cell A, |c_A| <= beta, and its density is exp(c_A) / Z with
Z = sum over cells of vol A exp(c_A). Z24 minimises the empirical risk

    R(c) = -(1/n) sum_i c(X_i) + ln Z = -sum_A p_A c_A + ln Z,  p_A = n_A / n,

the negative mean log likelihood. There are two choices of the values:

* "log_frequency": c_A = ln(p_A / vol A) moved to [-beta, beta], -beta where there are no rows;
* "minimizer": R's least. At it dR / dc_A = vol A exp(c_A) / Z - p_A is 0 within the limits, so
  c_A = ln(p_A / vol A) + ln Z moved to [-beta, beta]: the log frequencies, all shifted by one
  number before they are limited. Z couples all cells; the shift is the root of a falling piecewise
  function and is found exactly (:mod:`dmondrian.ensemble.density_risk_kernels`).

Both are the same density where no cell is at its limit. Where one is empty they never are: the
minimiser moves all values up until the largest are at beta, so that an empty cell is up to 2 beta
below them. Its risk is the smaller one of the rows learned. Of other rows it is the larger one at
lifetimes that suit them, and the smaller one at lifetimes so short that the limits cut the density
(``benchmarks/generalized.py choices``).

Relies on :mod:`dmondrian.growth.cube_cells`: cells of the cube go on to be split where the tree
leaves them whole, and a density depends on their volumes. Promises risks of the cells in full.

Shapes: m nodes, d features, a cells with rows, c splits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian.ensemble.density_risk_kernels import sweep_densities
from dmondrian.ensemble.settings.loss_settings import MINIMIZER, Cost
from dmondrian.growth.cube_cells import split_to_the_end, write_cells
from dmondrian.tree import nodes


class Cells(NamedTuple):
    """The cells of a tree at a lifetime that hold rows, and the values of all."""

    nodes: np.ndarray  # int64 [a], each cell's
    lower: np.ndarray  # float64 [a, d]
    upper: np.ndarray  # float64 [a, d]
    log_volume: np.ndarray  # float64 [a]
    rest: float  # volume of cells without rows
    values: np.ndarray  # float64 [a], c_A; -beta on cells without rows


def limit(bound: float | None, total_weight: float) -> float:
    """Return beta_n: the bound, or max(1, ln(1 + n))."""
    return max(1.0, float(np.log1p(total_weight))) if bound is None else float(bound)


def cells_at(
    tree: nodes.Tree, seed: int, number: int, lifetime: float, beta: float, cell_value: str
) -> Cells:
    """Return the cells of a tree at a lifetime.

    Parameters
    ----------
    tree : Tree
        On the cube, with rows, realised to the lifetime.
    seed, number : int
        Of the forest, and of the tree.
    lifetime : float
    beta : float
        Limit of the values.
    cell_value : {"log_frequency", "minimizer"}
    """
    m, d = int(tree.head_i[nodes.N_NODES]), tree.n_features
    time, parent = nodes.times_of(tree), tree.i[:m, nodes.PARENT]
    weight = tree.d[:m, nodes.STAT]
    birth = np.where(parent >= 0, time[parent], 0.0)
    cells = np.flatnonzero((weight > 0.0) & (birth <= lifetime) & (lifetime < time))
    lower, upper = np.empty((len(cells), d)), np.empty((len(cells), d))
    view = tree._replace(scratch=np.empty(3 * d))  # other threads may read this tree
    write_cells(view, np.uint64(seed), np.uint64(number), cells, lifetime, lower, upper)
    log_volume = np.log(upper - lower).sum(axis=1)
    share = weight[cells] / float(tree.head_f[nodes.TOTAL_WEIGHT])
    rest = max(1.0 - float(np.exp(log_volume).sum()), 0.0)
    level, shift = np.log(share) - log_volume, 0.0
    if cell_value == MINIMIZER:
        all_levels, all_shares = np.append(level, -np.inf), np.append(share, 0.0)
        volume = np.append(np.exp(log_volume), rest)
        splits = np.empty((0, 3), np.int64)
        all_cells = np.arange(len(volume))
        shift = float(
            _swept(all_levels, volume, all_shares, all_cells, splits, beta, cell_value)[1][0]
        )
    values = np.clip(level + shift, -beta, beta)
    return Cells(cells, lower, upper, log_volume, rest, values)


def sweep_density(
    tree: nodes.Tree, seed: int, number: int, end: float, cost: Cost
) -> tuple[np.ndarray, np.ndarray]:
    """Return all lifetimes at which the cells of rows change, and the risk from there on.

    Parameters
    ----------
    tree : Tree
        On the cube, with rows.
    seed, number : int
        Of the forest, and of the tree.
    end : float
        The last lifetime, to which the tree is realised; finite.
    cost : Cost
        With the limit of the values, and their choice.

    Returns
    -------
    lifetimes : float64 array of shape (c + 1,)
        0, then the times in order at which a cell with rows is split, also where the tree leaves
        it whole as it holds a single point.
    risks : float64 array of shape (c + 1,)
        Negative mean log likelihood of the rows learned.
    """
    tree = _in_full(tree, seed, number, end)
    m = int(tree.head_i[nodes.N_NODES])
    left, time = tree.i[:m, nodes.LEFT].astype(np.int64), nodes.times_of(tree)
    right = tree.i[:m, nodes.RIGHT].astype(np.int64)
    log_volume = _log_volumes(tree)
    share = tree.d[:m, nodes.STAT] / float(tree.head_f[nodes.TOTAL_WEIGHT])
    with np.errstate(divide="ignore"):
        level = np.log(share) - log_volume
    splits = np.flatnonzero(left >= 0)
    splits = splits[np.argsort(time[splits], kind="stable")]
    start = np.array([tree.head_i[nodes.ROOT]], np.int64)
    parts = np.stack([splits, left[splits], right[splits]], axis=1)
    beta = limit(cost.bound, float(tree.head_f[nodes.TOTAL_WEIGHT]))
    risks, _ = _swept(level, np.exp(log_volume), share, start, parts, beta, cost.cell_value)
    return np.concatenate([[0.0], time[splits]]), risks


def _swept(
    level: np.ndarray,
    volume: np.ndarray,
    share: np.ndarray,
    start: np.ndarray,
    splits: np.ndarray,
    beta: float,
    cell_value: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Return risks and shifts of :func:`sweep_densities` for cells in any order."""
    with_rows = np.flatnonzero(share > 0.0)
    with_rows = with_rows[np.argsort(level[with_rows], kind="stable")]
    place = np.zeros(len(level), np.int64)
    place[with_rows] = np.arange(1, len(with_rows) + 1)
    levels = np.append(-np.inf, level[with_rows])
    sums = np.zeros((2 << (len(levels) - 1).bit_length(), 3))
    risks, shifts = np.empty(len(splits) + 1), np.empty(len(splits) + 1)
    is_least = cell_value == MINIMIZER
    sweep_densities(
        levels, place, volume, share, start, splits, float(beta), is_least, sums, risks, shifts
    )
    return risks, shifts


def _in_full(tree: nodes.Tree, seed: int, number: int, end: float) -> nodes.Tree:
    """Return a copy of a tree in which the cells of single points are split up to a lifetime."""
    header = {"root": int(tree.head_i[nodes.ROOT]), "floats": tree.head_f}
    copy, _ = nodes.from_fields(nodes.fields(tree), header, tree.columns)
    while not split_to_the_end(copy, np.uint64(seed), np.uint64(number), end):
        copy = nodes.resize(copy, 2 * len(copy.i))
    return copy


def _log_volumes(tree: nodes.Tree) -> np.ndarray:
    """Return the log of the volume of each node's cell, float64 [m]."""
    m, d = int(tree.head_i[nodes.N_NODES]), tree.n_features
    lower, upper = np.zeros((m, d)), np.ones((m, d))
    left, right = tree.i[:m, nodes.LEFT], tree.i[:m, nodes.RIGHT]
    feature = tree.i[:m, nodes.FEATURE]
    threshold = tree.f[:m, nodes.THRESHOLD].astype(np.float64)
    level = np.array([tree.head_i[nodes.ROOT]])
    while len(level := level[left[level] >= 0]):
        for side, ends in ((left[level], upper), (right[level], lower)):
            lower[side], upper[side] = lower[level], upper[level]
            ends[side, feature[level]] = threshold[level]
        level = np.concatenate([left[level], right[level]])
    log_volumes: np.ndarray = np.log(upper - lower).sum(axis=1)
    return log_volumes
