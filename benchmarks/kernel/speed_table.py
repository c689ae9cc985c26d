"""Features per second beside scikit-learn's RBFSampler and Nystroem, at equal accuracy.

On cpu_act and california_housing: ridge regression on each kind of features, its width (gamma or
lifetime) the best of a grid. Mondrian features have 50 partitions; of the others the least number
of components, doubled from 50, whose test error is no larger (or 1600, if none is). One thread.

    python -m benchmarks.kernel.speed_table --data data
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import Ridge
from sklearn.preprocessing import MinMaxScaler

from benchmarks import datasets
from benchmarks.kernel.peers import Split, parser_of, write
from benchmarks.pages import Figure, Page, cell
from benchmarks.records import tabled
from dmondrian import MondrianFeatures

SETS, TREES, MOST_ROWS = ("cpu_act", "california_housing"), 50, 10_000
OURS = "MondrianFeatures"
COMPONENTS = (50, 100, 200, 400, 800, 1600)
WIDTHS = (0.3, 1.0, 3.0)
MAKERS: dict[str, Callable[[int, float], Any]] = {
    "RBFSampler": lambda n, at: RBFSampler(gamma=at, n_components=n, random_state=0),
    "Nystroem, RBF": lambda n, at: Nystroem(gamma=at, n_components=n, random_state=0),
    "Nystroem, Laplace": lambda n, at: Nystroem(
        "laplacian", gamma=at, n_components=n, random_state=0
    ),
}


def load(name: str, args: argparse.Namespace) -> Split:
    data = datasets.load(name, args.data, args.max_rows)
    scaler = MinMaxScaler().fit(data.X_train)
    X, Z = scaler.transform(data.X_train), scaler.transform(data.X_test)
    return Split(X.astype(np.float32), data.y_train, Z.astype(np.float32), data.y_test)


def measure(maker: Any, split: Split) -> tuple[float, float, float, float, int]:
    """Return error, seconds to fit features, rows per second, seconds to fit weights, width."""
    began = time.perf_counter()
    maker.fit(split.X)
    fitted = time.perf_counter()
    phi = maker.transform(split.X)
    done = time.perf_counter()
    is_sparse = hasattr(phi, "tocsr")
    ridge = Ridge(1e-2, fit_intercept=False, max_iter=500, tol=1e-4,
                  solver="sparse_cg" if is_sparse else "cholesky")  # fmt: skip
    mean = split.y.mean()
    ridge.fit(phi, split.y - mean)
    solved = time.perf_counter()
    error = split.error(mean + ridge.predict(maker.transform(split.X_test)))
    speed = len(split.y) / (done - fitted)
    return error, fitted - began, speed, solved - done, phi.shape[1]


def best(make: Callable[[float], Any], split: Split) -> tuple[float, ...]:
    return min((measure(make(at), split) for at in WIDTHS), key=lambda found: found[0])


def speed(features: str) -> Figure:
    """Return what finds the rows per second, in thousands, on cpu_act."""
    row = {"set": "cpu_act", "features": features}
    return cell("speed", row, "rows per second", ",.0f", 1e-3)


PAGE = Page(
    title="Speed of kernel features",
    question="How fast are Mondrian features, beside RBFSampler and Nystroem at equal accuracy?",
    identity=("part",),
    numbers={
        "ours": speed(OURS),
        "sampler": speed("RBFSampler"),
        "nystroem": speed("Nystroem, Laplace"),
    },
    sentences=(
        "On cpu_act Mondrian features make {ours} thousand rows per second, RBFSampler {sampler}"
        " and Nystroem with the Laplace kernel {nystroem}: those of scikit-learn are faster.",
        "What Mondrian features have is sparse rows, streams, and all lifetimes at once.",
        "Widths and numbers of components are a coarse grid, chosen by the test error for each"
        " method.",
    ),
)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--max-rows", type=int, default=MOST_ROWS, help="of each set")
    args = parser.parse_args()
    rows = []
    MondrianFeatures(2).fit_transform(np.random.default_rng(0).random((50, 3)))
    for name in args.sets:
        split = load(name, args)
        ours = best(lambda at: MondrianFeatures(TREES, lifetime=at, random_state=0), split)
        rows.append([name, OURS, TREES, *ours])
        for peer, make in MAKERS.items():
            for n in COMPONENTS:
                found = best(lambda at, n=n, make=make: make(n, at), split)
                if found[0] <= ours[0]:
                    break
            rows.append([name, peer, n, *found])
    head = ["set", "features", "components", "test error, %", "seconds to fit", "rows per second",
            "seconds to fit weights", "columns"]  # fmt: skip
    write("speed_table", tabled("speed", "Features at equal accuracy", head, rows))


if __name__ == "__main__":
    main()
