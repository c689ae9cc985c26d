"""B16, Figure 8: error of held-out rows of cpu_act against the seconds spent on finding a lifetime.

The sweep of this package makes the partitions longer and goes on from the values it has. Fourier
features and binning are made anew for each lifetime tried: from 1 it is doubled or halved on the
more promising side, then the bracket is halved (in logarithm). They are fitted as B16 fitted them,
by stochastic gradient (scikit-learn's SGDRegressor, ten passes), and, beyond B16, by solving for
the weights. One thread; all have as many entries per row. The kernels are compiled before.

    python -m benchmarks.kernel.figure_8 --data data
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.linear_model import Ridge, SGDRegressor

from benchmarks.kernel.peers import Split, binning, fourier, parser_of, split_of, write
from benchmarks.records import table
from dmondrian import MondrianKernelRegressor
from dmondrian.kernel.batches import learn_batches
from dmondrian.kernel.grid import lengthened
from dmondrian.kernel.path import realised

ENTRIES, RIDGE, TRIES, STEP = 350, 1e-2, 8, 2.0**0.5
FIRST, LAST = 1e-2, 8.0
Path = list[tuple[float, float, float]]  # seconds, lifetime, error


def ours(split: Split, n: int) -> Path:
    """Return the sweep, lifetime by lifetime."""
    X, Z = split.X.astype(np.float32), split.X_test.astype(np.float32)
    model = MondrianKernelRegressor(n, solver="sgd", random_state=0)
    parameters, weights, told = model._forest_parameters(X.shape[1]), np.ones(len(X)), Path()
    began, forest, lifetime = time.perf_counter(), None, FIRST
    like = realised(parameters, n, X[:2], weights[:2], 1, FIRST, None)
    best = np.inf
    while lifetime < LAST:
        forest = lengthened(forest, like, lifetime, X, weights, 1)
        learn_batches(forest, X, split.y, None, 1, again=True)
        told.append((0.0, lifetime, split.error(forest.predict_sums(Z).mean[:, 0])))
        told[-1] = (time.perf_counter() - began, *told[-1][1:])
        if told[-1][2] > 1.5 * best:
            break
        best, lifetime = min(best, told[-1][2]), lifetime * STEP
    return told


def search(fit: Callable[[float], float]) -> Path:
    """Return what the search of B16 tries with features that are made anew."""
    began, found, told = time.perf_counter(), {}, Path()

    def error(lifetime: float) -> float:
        if lifetime not in found:
            found[lifetime] = fit(lifetime)
            told.append((time.perf_counter() - began, lifetime, found[lifetime]))
        return found[lifetime]

    low = high = 1.0
    error(1.0)
    while len(told) < TRIES:
        best = min(found, key=lambda at: found[at])
        if best == low or len(told) == 1:
            low = low / 2.0
            error(low)
        if best == high and len(told) < TRIES:
            high = high * 2.0
            error(high)
        if low < best < high:
            tried = sorted(found)
            at = tried.index(best)
            error(float(np.sqrt(tried[at] * tried[at - 1])))
            if len(told) < TRIES:
                error(float(np.sqrt(tried[at] * tried[at + 1])))
    return told


def with_features(split: Split, kind: Any, n: int, by_gradient: bool) -> Callable[[float], float]:
    mean, spread = split.y.mean(), split.y.std()

    def fit(lifetime: float) -> float:
        phi, phi_test = kind(split.X, split.X_test, n, lifetime, 0)
        if by_gradient:
            model: Any = SGDRegressor(
                alpha=RIDGE / len(phi.tocsr().indptr if hasattr(phi, "tocsr") else phi),
                fit_intercept=False, max_iter=10, tol=None, eta0=0.5, power_t=0.25, random_state=0,
            )  # fmt: skip
        else:
            model = Ridge(RIDGE, fit_intercept=False, max_iter=300, tol=1e-4,
                          solver="sparse_cg" if hasattr(phi, "tocsr") else "cholesky")  # fmt: skip
        model.fit(phi, (split.y - mean) / spread)
        return split.error(mean + spread * model.predict(phi_test))

    return fit


def sooner(path: Path, share: float = 1.1) -> float:
    """Return the seconds until the error is within a tenth of the best of this path."""
    best = min(error for _, _, error in path)
    return next(seconds for seconds, _, error in path if error <= share * best)


def main() -> None:
    parser = parser_of(__doc__, "figure_8", takes_set=True)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    args = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    split, n = split_of(args), args.entries
    ours(Split(*(part[:50] for part in split)), 2)
    paths = {"Mondrian, one sweep": ours(split, n)}
    for name, kind in {"Fourier": fourier, "binning": binning}.items():
        paths[f"{name}, stochastic gradient"] = search(with_features(split, kind, n, True))
        paths[f"{name}, solved"] = search(with_features(split, kind, n, False))
    figure, axis = plt.subplots(figsize=(6.5, 4.0), layout="constrained")
    for name, path in paths.items():
        seconds = [at for at, _, _ in path]
        axis.plot(seconds, np.minimum.accumulate([e for _, _, e in path]), marker=".", label=name)
    axis.set(xscale="log", yscale="log", xlabel="seconds", ylabel="best error of held-out rows, %")
    axis.legend(fontsize=8)
    head = ["", "seconds to within 10 % of its best", "seconds", "best error, %", "its lifetime"]
    rows = []
    for name, path in paths.items():
        best = min(path, key=lambda at: at[2])
        rows.append([name, sooner(path), path[-1][0], best[2], best[1]])
    write(args, f"### {args.set}, {n} entries per row\n\n{table(head, rows)}", figure)


if __name__ == "__main__":
    main()
