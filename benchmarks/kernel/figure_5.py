"""B16, Figure 5: the largest kernel error on 100 points of the unit square, lifetime 10.

Against the entries of a row that are not zero: Mondrian features, Fourier features and random
binning; mean, least and greatest of five draws of points and features.

    python -m benchmarks.kernel.figure_5
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.kernel.peers import binning, fourier, laplace, parser_of, write
from benchmarks.pages import Page, cell
from benchmarks.records import tabled
from dmondrian import MondrianFeatures

LIFETIME, POINTS, SEEDS = 10.0, 100, range(5)
SIZES = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


def mondrian(X: np.ndarray, Z: np.ndarray, n: int, lifetime: float, seed: int) -> tuple[Any, Any]:
    """Return Mondrian features, those of ``X`` fitted."""
    features = MondrianFeatures(n, lifetime=lifetime, domain="cube", random_state=seed).fit(X)
    return features.transform(X), features.transform(Z)


KINDS = {"Mondrian": mondrian, "Fourier": fourier, "binning": binning}


def worst(kind: Any, n: int, seed: int) -> float:
    X = np.random.default_rng(seed).random((POINTS, 2))
    phi = kind(X, X[:1], n, LIFETIME, seed)[0]
    reported = phi @ phi.T
    reported = reported if isinstance(reported, np.ndarray) else reported.toarray()
    return float(np.abs(reported - laplace(X, X, LIFETIME)).max())


PAGE = Page(
    title="B16: Figure 5",
    question="Is the largest error of the kernel as small with Mondrian features as with random"
    " binning?",
    identity=("part",),
    numbers={name: cell("errors", {"entries": name}, "500", ".3f") for name in KINDS},
    sentences=(
        "Holds: with some hundred entries per row the largest error is {Mondrian} for Mondrian"
        " features, {binning} for random binning and {Fourier} for Fourier features.",
    ),
    pictures=("kernel_figure_5.png",),
)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="entries of a row")
    args = parser.parse_args()
    sizes = args.sizes
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = {
        name: np.array([[worst(kind, n, seed) for n in sizes] for seed in SEEDS])
        for name, kind in KINDS.items()
    }
    figure, axis = plt.subplots(figsize=(6.0, 3.8), layout="constrained")
    for name, errors in found.items():
        (line,) = axis.plot(sizes, errors.mean(axis=0), marker="o", markersize=4, label=name)
        axis.fill_between(
            sizes, errors.min(axis=0), errors.max(axis=0), color=line.get_color(), alpha=0.15
        )
    axis.set(xscale="log", yscale="log", xlabel="entries of a row that are not zero")
    axis.set_ylabel("largest error of the kernel")
    axis.legend()
    rows = [[name, *errors.mean(axis=0).tolist()] for name, errors in found.items()]
    head = ["entries", *map(str, sizes)]
    write("figure_5", tabled("errors", "Largest kernel error", head, rows), figure)


if __name__ == "__main__":
    main()
