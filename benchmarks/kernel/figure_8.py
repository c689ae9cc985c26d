"""B16, Figure 8: error of held-out rows of cpu_act against the seconds spent on finding a lifetime.

The sweep of this package cuts the partitions further and goes on from the values it has. Fourier
features and binning are made anew for each lifetime tried: from 1 it is doubled or halved on the
more promising side, then the bracket is halved (in logarithm). They are fitted as B16 fitted them,
by stochastic gradient (scikit-learn's SGDRegressor, ten passes). Bins are distinguished by their
hashes; with --compared once more by comparing rows of bins (numpy.unique along an axis), as one
would write it first. All have as many entries per row, and the ridge of B16. Seconds are those of
one processor, which others may share; the kernels are compiled before.

    python -m benchmarks.kernel.figure_8 --data data
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.linear_model import SGDRegressor
from threadpoolctl import threadpool_limits

from benchmarks.kernel.peers import (
    Split,
    binning,
    compared_bins,
    fourier,
    parser_of,
    split_of,
    write,
)
from benchmarks.pages import Figure, Page, cell
from benchmarks.records import tabled
from dmondrian import MondrianKernelRegressor
from dmondrian.kernel_machine.lifetime_grid import WarmSweep

ENTRIES, RIDGE, TRIES, LAST = 350, 1e-4, 8, 8.0
Path = list[tuple[float, float, float]]  # seconds, lifetime, error


def ours(split: Split, n: int) -> Path:
    """Return the sweep, lifetime by lifetime."""
    X = np.concatenate([split.X, split.X_test]).astype(np.float32)
    y, weights = np.concatenate([split.y, split.y_test]), np.ones(len(X))
    held = np.arange(len(split.y), len(X))
    weights[held] = 0.0
    model = MondrianKernelRegressor(n, solver="sgd", regularization=RIDGE, random_state=0)
    parameters, reported, best = model._forest_parameters(X.shape[1]), Path(), np.inf
    size, began = np.linalg.norm(split.y_test), time.process_time()
    sweep = WarmSweep(parameters, n, X, weights, 1, LAST)
    for lifetime, _, squares in sweep.errors(y, held):
        error = 100.0 * float(np.sqrt(len(held) * squares) / size)
        reported.append((time.process_time() - began, lifetime, error))
        best = min(best, error)
        if error > 1.5 * best:
            break
    return reported


def search(fit: Callable[[float], float]) -> Path:
    """Return what the search of B16 tries with features that are made anew."""
    began, found, reported = time.process_time(), {}, Path()

    def error(lifetime: float) -> float:
        if lifetime not in found:
            found[lifetime] = fit(lifetime)
            reported.append((time.process_time() - began, lifetime, found[lifetime]))
        return found[lifetime]

    low = high = 1.0
    error(1.0)
    while len(reported) < TRIES:
        best = min(found, key=lambda at: found[at])
        if best == low or len(reported) == 1:
            low = low / 2.0
            error(low)
        if best == high and len(reported) < TRIES:
            high = high * 2.0
            error(high)
        if low < best < high:
            tried = sorted(found)
            at = tried.index(best)
            error(float(np.sqrt(tried[at] * tried[at - 1])))
            if len(reported) < TRIES:
                error(float(np.sqrt(tried[at] * tried[at + 1])))
    return reported


def with_features(split: Split, kind: Any, n: int) -> Callable[[float], float]:
    """Return what makes features of a lifetime, fits them, and tells the error."""
    mean, spread = split.y.mean(), split.y.std()

    def fit(lifetime: float) -> float:
        phi, phi_test = kind(split.X, split.X_test, n, lifetime, 0)
        model = SGDRegressor(
            alpha=RIDGE / len(split.y), fit_intercept=False, max_iter=10, tol=None, eta0=0.5,
            power_t=0.25, random_state=0,
        ).fit(phi, (split.y - mean) / spread)  # fmt: skip
        return split.error(mean + spread * model.predict(phi_test))

    return fit


def sooner(path: Path, share: float = 1.1) -> float:
    """Return the seconds until the error is within a tenth of the best of this path."""
    best = min(error for _, _, error in path)
    return next(seconds for seconds, _, error in path if error <= share * best)


def times(name: str) -> Figure:
    """Return what finds how many times the sweep's seconds a peer needs."""
    return cell("errors", {"": name}, "times the sweep's", ".1f")


PAGE = Page(
    title="B16: Figure 8",
    question="How soon does one sweep find a good lifetime, beside features made anew for each?",
    identity=("part",),
    numbers={
        "compared": times("binning by comparison"),
        "hashed": times("binning"),
        "fourier": times("Fourier"),
    },
    sentences=(
        "In part: to come near its best error binning needs {compared} times as long as the sweep"
        " where bins are compared column by column, but {hashed} times where they are distinguished"
        " by hashes, and Fourier features need {fourier} times as long.",
        "Both end at lower errors than the sweep, whose weights have two passes over the rows at"
        " each lifetime where theirs have ten; most of the sweep's time goes into drawing the"
        " trees.",
        "The passes, the first lifetime and how far trees are drawn ahead were chosen on this set.",
    ),
    pictures=("kernel_figure_8.png",),
)


def main() -> None:
    parser = parser_of(__doc__, takes_set=True)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--compared", action="store_true", help="tell bins apart by comparison too")
    args = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    split, n = split_of(args), args.entries
    ours(Split(*(part[:50] for part in split)), 2)
    paths = {"Mondrian, one sweep": ours(split, n)}
    others = {"Fourier": fourier, "binning": binning}
    if args.compared:
        others["binning by comparison"] = compared_bins
    with threadpool_limits(1):
        for name, kind in others.items():
            paths[name] = search(with_features(split, kind, n))
    figure, axis = plt.subplots(figsize=(6.5, 4.0), layout="constrained")
    for name, path in paths.items():
        seconds = [at for at, _, _ in path]
        axis.plot(seconds, np.minimum.accumulate([e for _, _, e in path]), marker=".", label=name)
    axis.set(xscale="log", yscale="log", xlabel="seconds", ylabel="best error of held-out rows, %")
    axis.legend(fontsize=8)
    head = ["", "seconds to within 10 % of its best", "times the sweep's", "lifetimes tried"]
    head += ["seconds", "best error, %", "its lifetime"]
    rows, first = [], sooner(paths["Mondrian, one sweep"])
    for name, path in paths.items():
        best, until = min(path, key=lambda at: at[2]), sooner(path)
        rows.append([name, until, until / first, len(path), path[-1][0], best[2], best[1]])
    write("figure_8", tabled("errors", f"{args.set}, {n} entries per row", head, rows), figure)


if __name__ == "__main__":
    main()
