"""B16, Figure 10: the weights of kernel machine and forest, on the same partitions of cpu_act.

A weight is what a cell's value is beyond the mean label, over the root of the partitions; of both
fits of ``MondrianKernelRegressor``. Of the lifetimes of Figure 9 (its columns are scaled, B16's are
not) the second is the best of the kernel machine, the last that of the forest.

    python -m benchmarks.kernel.figure_10 --data data
"""

from __future__ import annotations

import numpy as np

from benchmarks.kernel.peers import parser_of, split_of, write
from benchmarks.pages import Figure, Number, Page, runs_of
from benchmarks.records import Records, tabled
from dmondrian import MondrianKernelRegressor
from dmondrian.joint_fit.cell_columns import leaves_of

TREES, LIFETIMES, BINS, NEAR = 50, (0.16, 0.64, 2.56), 61, 0.05


def of_row(fitting: str, at: int) -> Figure:
    """Return what finds a column of a kind of fit at the middle lifetime."""

    def find(records: Records) -> Number:
        found = records.where(part="weights")
        rows = [row for row in found[0]["rows"] if row[1] == fitting]
        value = rows[len(rows) // 2][at]
        return Number(f"{value:.2f}" if at == NEAR_AT else f"{value:.1f}", "", runs_of(found))

    return find


NEAR_AT, KURTOSIS_AT = 3, 9
PAGE = Page(
    title="B16: Figure 10",
    question="How do the weights of a kernel machine and of a forest of the same partitions"
    " differ?",
    identity=("part",),
    numbers={
        f"{fitting}_{what}": of_row(fitting, at)
        for fitting in ("joint", "independent")
        for what, at in (("near", NEAR_AT), ("kurtosis", KURTOSIS_AT))
    },
    sentences=(
        "In part: at the kernel machine's best lifetime its weights have the longer tails, a"
        " kurtosis of {joint_kurtosis} against {independent_kurtosis}, but no larger share of them"
        " is near zero: {joint_near} against {independent_near}. Near zero is below a twentieth of"
        " the largest weight of the forest. B16 leaves open how labels were centred and how long"
        " gradients were followed, which both matter.",
    ),
    pictures=("kernel_figure_10.png",),
)


def weights_of(model: MondrianKernelRegressor, X: np.ndarray, mean: float) -> np.ndarray:
    """Return the weights of all cells that hold rows, float64 [c]."""
    forest, rows = model.forest_, np.ascontiguousarray(X, np.float32)
    lifetimes = np.array([model.lifetime_])
    values = forest.answers(rows, forest.policies, lifetimes, 1)[:, :, 0, 0]
    found = []
    for t, cells in enumerate(leaves_of(forest, rows).T):
        _, first = np.unique(cells, return_index=True)
        found.append(values[t, first] - mean)
    return np.concatenate(found) / np.sqrt(len(values))


def main() -> None:
    parser = parser_of(__doc__, takes_set=True)
    parser.add_argument("--lifetimes", type=float, nargs="+", default=LIFETIMES)
    args = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    split, rows = split_of(args), []
    mean = float(np.mean(split.y))
    figure, axes = plt.subplots(
        1, len(args.lifetimes), figsize=(9.0, 3.4), layout="constrained", squeeze=False
    )
    for lifetime, axis in zip(args.lifetimes, axes[0], strict=True):
        found = {}
        for fitting in ("joint", "independent"):
            model = MondrianKernelRegressor(
                TREES, lifetime=lifetime, fitting=fitting, solver="sgd", random_state=0
            ).fit(split.X, split.y)
            found[fitting] = weights_of(model, split.X, mean)
        forest = float(np.abs(found["independent"]).max())
        edges = np.linspace(-1.5 * forest, 1.5 * forest, BINS)
        for fitting, label in (("joint", "kernel (joint)"), ("independent", "forest")):
            w = found[fitting]
            axis.hist(w, edges, density=True, alpha=0.5, label=label)
            size = np.abs(w)
            kurtosis = float(np.mean((w - w.mean()) ** 4)) / float(w.var()) ** 2
            near = float((size < NEAR * forest).mean())
            quantiles = np.quantile(size, [0.25, 0.5, 0.75, 0.95])
            rows.append([lifetime, fitting, len(w), near, *quantiles, size.max(), kurtosis])
        axis.set(xlabel="weight", title=f"lifetime {lifetime:g}")
    axes[0, 0].set(ylabel="density")
    axes[0, 0].legend()
    head = ["lifetime", "fitting", "cells", "share near 0", "size, 25 %", "50 %", "75 %", "95 %",
            "largest", "kurtosis"]  # fmt: skip
    title = f"{args.set}, {TREES} partitions: weights of cells"
    write("figure_10", tabled("weights", title, head, rows), figure)


if __name__ == "__main__":
    main()
