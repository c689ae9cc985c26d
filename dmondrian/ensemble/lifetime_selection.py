r"""The lifetime of each tree, chosen from the tree itself (Z24, section 5).

Every node keeps its statistics, so that a trained tree holds the trees of all shorter lifetimes:
the risk at lifetime l is the sum over the cells of l of what their rows lose. It changes only where
a node splits, by risk(left) + risk(right) - risk(node): in the order of split times one sweep over
the nodes tells all of it, and the best lifetime is among the split times.

"penalized" minimises the empirical risk per unit of weight + alpha_n l (Z24, Equation 8), each tree
for itself. Theorem 8 leaves the strength alpha_n open; unless it is given it is found from the
tree. Where labels are noise alone, splits lower the empirical risk too, each by some c on average
(of squared loss by the variance / n), and rows that were not learned lose by them as much: a tree
of k splits costs twice c k more than it seems, which is Mallows' Cp and the slope heuristic. c is
the mean gain of the later half of the splits, whose cells are small beside what the function varies
over. With one feature k is proportional to l, and alpha_n = 2 c k / l settles it. With more k grows
faster than any line, and no alpha_n need choose what risk + 2 c k does. Equation 8 can choose the
corners of the lower convex hull of (l, risk), each for the alpha_n between the slopes at its sides:
alpha_n is in the middle of those of the corner nearest, in the logarithm of l, to the least of risk
+ 2 c k. All is in units of the loss: scaling the label changes nothing. What it chooses, beside the
best lifetimes: ``benchmarks/generalized.py lifetimes``.

A density's risk is a likelihood, in nats, and needs no estimate of the noise: each split is charged
ln(n) / (2 n), as by Schwarz (1978). Twice what noise gains, 1 / n in all, is too little: a split
that leaves a cell empty costs new rows more than it gains on those learned.

"prequential" minimises what each cell's rows lost by its forecast made before each of them: the
node's cumulated price. It needs no penalty and no constant.

Relies on :mod:`dmondrian.ensemble.lifetime_selection_kernels`. Promises a pure function of the
tree: nothing is stored, and neither cuts between calls nor the number of machines matters.

References: Zhan, Wang, Xia (Z24), section 5. Arlot, Massart (2009), "Data-driven calibration of
penalties for least-squares regression", JMLR 10: twice what noise gains. Schwarz (1978),
"Estimating the dimension of a model", Annals of Statistics 6.

Shapes: m nodes, c splits, L lifetimes, T trees, n rows, k outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dmondrian.ensemble.lifetime_selection_kernels import assess
from dmondrian.ensemble.settings.loss_settings import Cost
from dmondrian.errors import ParameterError
from dmondrian.stats.moments import PRICE
from dmondrian.tree import nodes

_GRID = 200  # most lifetimes of a path that is returned
Swept = tuple[np.ndarray, np.ndarray]  # lifetimes and risks, as :func:`sweep` returns them


class LifetimePath(NamedTuple):
    """Risks at many lifetimes, and what was chosen by them."""

    lifetimes: np.ndarray  # float64 [L], increasing
    risks: np.ndarray  # float64 [T, L], per unit of weight
    penalty: np.ndarray  # float64 [T], of a unit of lifetime
    chosen: np.ndarray  # float64 [T]

    @property
    def objective(self) -> np.ndarray:
        """Objective of the choice, float64 [T, L], which is minimised."""
        return self.risks + self.penalty[:, None] * self.lifetimes


def sweep(tree: nodes.Tree, policy: Any, cost: Cost, node_risks: np.ndarray | None = None) -> Swept:
    """Return all lifetimes at which a tree changes and its risk from there on. O(m log m).

    Parameters
    ----------
    tree : Tree
        With rows.
    policy : loss policy
    cost : Cost
        Its selection names the risk: "prequential", else the empirical one.
    node_risks : float64 array of shape (m,), optional
        What the rows of each node lose, where the policy does not know.

    Returns
    -------
    lifetimes : float64 array of shape (c + 1,)
        0, then the split times in order.
    risks : float64 array of shape (c + 1,)
        Per unit of weight.

    Raises
    ------
    ParameterError
        If some risk is not a finite number.
    """
    m = int(tree.head_i[nodes.N_NODES])
    if node_risks is None and cost.selection == "prequential":
        node_risks = tree.d[:m, PRICE].copy()
    elif node_risks is None:
        node_risks = np.zeros(m)
        assess(policy, tree, np.zeros((m, cost.n_outputs)), node_risks)
    left, right, time = tree.i[:m, nodes.LEFT], tree.i[:m, nodes.RIGHT], nodes.times_of(tree)
    splits = np.flatnonzero(left >= 0)
    splits = splits[np.argsort(time[splits], kind="stable")]
    gains = node_risks[left[splits]] + node_risks[right[splits]] - node_risks[splits]
    total = float(tree.head_f[nodes.TOTAL_WEIGHT])
    risks = np.cumsum(np.concatenate([[node_risks[tree.head_i[nodes.ROOT]]], gains]))
    lifetimes = np.concatenate([[0.0], time[splits]])
    if not np.isfinite(risks).all():
        at = lifetimes[np.argmin(np.isfinite(risks))]
        raise ParameterError(
            f"the loss of the rows learned is not a finite number at lifetime {at:g}: give a bound "
            "within which the loss is finite, or another loss"
        )
    return lifetimes, risks / total


def penalty_of(cost: Cost, lifetimes: np.ndarray, risks: np.ndarray, total_weight: float) -> float:
    """Return what a unit of lifetime costs the tree of this sweep. O(splits)."""
    if cost.selection != "penalized":
        return 0.0
    if cost.penalty is not None:
        return float(cost.penalty)
    gains = -np.diff(risks)
    if not len(gains):
        return 0.0
    if cost.loss == "density":
        price = 0.5 * max(float(np.log(total_weight)), 1.0) / total_weight
    else:
        price = 2.0 * max(float(gains[len(gains) // 2 :].mean()), 0.0)
    wanted = int(np.argmin(risks + price * np.arange(len(risks))))
    corners, slopes = _corners(lifetimes, risks)
    if not len(slopes):
        return 0.0  # all splits are in vain
    if wanted == 0:
        return 2.0 * float(slopes[0])  # one cell
    away = np.log(lifetimes[corners[1:]]) - np.log(lifetimes[wanted])
    i = 1 + int(np.argmin(np.abs(away)))
    return 0.5 * float(slopes[i - 1] + (slopes[i] if i < len(slopes) else 0.0))


def _corners(lifetimes: np.ndarray, risks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners of the falling lower convex hull, and how steep it falls between them."""
    corners: list[int] = []
    slopes: list[float] = []
    for i in range(len(risks)):
        while corners:
            fall = (risks[corners[-1]] - risks[i]) / (lifetimes[i] - lifetimes[corners[-1]])
            if not slopes or fall < slopes[-1]:
                break
            corners.pop()
            slopes.pop()
        if not corners or fall > 0.0:
            if corners:
                slopes.append(float(fall))
            corners.append(i)
    return np.array(corners), np.array(slopes)


def _choice(cost: Cost, swept: Swept, total_weight: float) -> tuple[float, float]:
    """Return the penalty of a sweep, and the lifetime of least risk and penalty."""
    lifetimes, risks = swept
    penalty = penalty_of(cost, lifetimes, risks, total_weight)
    return penalty, float(lifetimes[np.argmin(risks + penalty * lifetimes)])


def chosen_lifetime(cost: Cost, swept: Swept, total_weight: float) -> float:
    """Return the lifetime of least risk and penalty, the shortest of equals; 0 without a split."""
    return _choice(cost, swept, total_weight)[1]


def lifetime_path(
    trees: Sequence[nodes.Tree], cost: Cost, swept: Sequence[Swept], total_weight: float
) -> LifetimePath:
    """Return the risks of trees with rows on one grid of lifetimes, and what each chose.

    The grid has the lifetimes chosen and up to 200 between the first split and the last. Each
    tree's risks are those of its sweep.
    """
    penalties, chosen = zip(
        *(_choice(cost, sweep_of_tree, total_weight) for sweep_of_tree in swept), strict=True
    )
    grid = np.unique(np.concatenate([lifetime_grid(trees, _GRID), chosen]))
    risks = [r[np.searchsorted(at, grid, side="right") - 1] for at, r in swept]
    return LifetimePath(grid, np.array(risks), np.array(penalties), np.array(chosen))


def held_out(n: int, fraction: float) -> np.ndarray:
    """Tell which of ``n`` rows are held out of a fit, evenly spread over them, bool [n].

    Raises
    ------
    ParameterError
        If none would be learned, or none held out.
    """
    turns = np.floor(np.arange(n + 1) * fraction)
    is_held: np.ndarray = turns[1:] > turns[:-1]
    if is_held.all() or not is_held.any():
        raise ParameterError(
            f"validation_fraction={fraction!r} of {n} rows leaves none to learn or none to hold "
            "out: give more rows or another fraction"
        )
    return is_held


def held_out_path(lifetimes: np.ndarray, losses: np.ndarray, total_weight: float) -> LifetimePath:
    """Return the choice by the total loss of held-out rows, float64 [L], at each lifetime.

    Raises
    ------
    ParameterError
        If the rows have no weight, or some loss is not a number.
    """
    if not total_weight > 0.0:
        raise ParameterError(
            "all held-out rows have weight 0, so they choose no lifetime: give rows of positive "
            "weight"
        )
    if np.isnan(losses).any() or not np.isfinite(losses).any():
        at = lifetimes[np.argmin(np.isfinite(losses))]
        raise ParameterError(
            f"the loss of the held-out rows is not a finite number at lifetime {at:g}: give a "
            "bound within which the loss is finite, or another loss"
        )
    risks = losses / total_weight
    best = np.array([lifetimes[np.argmin(risks)]])
    return LifetimePath(lifetimes, risks[None], np.zeros(1), best)


def lifetime_grid(trees: Sequence[nodes.Tree], size: int) -> np.ndarray:
    """Return up to ``size`` increasing lifetimes > 0 that part the splits of trees evenly in log.

    From just before the first split of any tree to the last one; one where nothing is split.
    """
    times = np.concatenate([nodes.times_of(tree) for tree in trees])
    times = times[np.isfinite(times)]
    if not len(times):
        return np.array([1.0])
    return np.unique(np.geomspace(0.5 * times.min(), times.max(), size))
