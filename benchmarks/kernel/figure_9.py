"""B16, Figure 9: kernel machine and forest on the same 50 partitions, over lifetimes.

Test error on cpu_act; both of ``MondrianKernelRegressor``, which differ in ``fitting`` alone.

    python -m benchmarks.kernel.figure_9 --data data
"""

from __future__ import annotations

import numpy as np

from benchmarks.kernel.peers import parser_of, split_of, write
from benchmarks.records import table
from dmondrian import MondrianKernelRegressor

TREES, LIFETIMES = 50, np.geomspace(0.02, 5.12, 9)


def main() -> None:
    parser = parser_of(__doc__, "figure_9", takes_set=True)
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
    write(args, f"### {args.set}, {TREES} partitions: test error, %\n\n{table(head, rows)}", figure)


if __name__ == "__main__":
    main()
