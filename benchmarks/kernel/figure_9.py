"""B16, Figure 9: kernel machine and forest on the same 50 partitions, over lifetimes.

Test error on cpu_act; both of ``MondrianKernelRegressor``, which differ in ``fitting`` alone.

    python -m benchmarks.kernel.figure_9 --data data
"""

from __future__ import annotations

import numpy as np

from benchmarks.kernel.peers import parser_of, split_of, write
from benchmarks.pages import Figure, Number, Page, runs_of
from benchmarks.records import Records, tabled
from dmondrian import MondrianKernelRegressor

TREES, LIFETIMES = 50, np.geomspace(0.02, 5.12, 9)


def best(fitting: str, at: bool) -> Figure:
    """Return what finds the least error of a kind of fit, or the lifetime of it."""

    def find(records: Records) -> Number:
        found = records.where(part="errors")
        (row,) = (row for row in found[0]["rows"] if row[0] == fitting)
        error, lifetime = min(zip(row[1:], found[0]["head"][1:], strict=True))
        return Number(lifetime if at else f"{error:.1f}", "", runs_of(found))

    return find


PAGE = Page(
    title="B16: Figure 9",
    question="What does fitting the cells of all trees together gain over a forest of the same"
    " partitions?",
    identity=("part",),
    numbers={
        f"{fitting}_{what}": best(fitting, what == "at")
        for fitting in ("joint", "independent")
        for what in ("error", "at")
    },
    sentences=(
        "Holds: fitted together, the cells have an error of {joint_error} per cent at the best"
        " lifetime, {joint_at}; the forest of the same partitions {independent_error} per cent, at"
        " {independent_at}.",
    ),
    pictures=("kernel_figure_9.png",),
)


def main() -> None:
    parser = parser_of(__doc__, takes_set=True)
    parser.add_argument("--lifetimes", type=float, nargs="+", default=LIFETIMES)
    args = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    split, found = split_of(args), {}
    for fitting in ("joint", "independent"):
        found[fitting] = [
            split.error(
                MondrianKernelRegressor(
                    TREES, lifetime=float(at), fitting=fitting, solver="sgd", random_state=0
                )
                .fit(split.X, split.y)
                .predict(split.X_test)
            )
            for at in args.lifetimes
        ]
    figure, axis = plt.subplots(figsize=(6.0, 3.8), layout="constrained")
    for fitting, label in (("joint", "kernel (joint)"), ("independent", "forest (independent)")):
        axis.plot(args.lifetimes, found[fitting], marker="o", markersize=4, label=label)
    axis.set(xscale="log", yscale="log", xlabel="lifetime", ylabel="test error, %")
    axis.legend()
    head = ["lifetime", *(f"{at:.2g}" for at in args.lifetimes)]
    rows = [[name, *errors] for name, errors in found.items()]
    title = f"{args.set}, {TREES} partitions: test error, %"
    write("figure_9", tabled("errors", title, head, rows), figure)


if __name__ == "__main__":
    main()
