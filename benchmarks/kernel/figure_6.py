"""B16, Figure 6: test error on cpu_act against the entries of a row, and of the exact kernel.

The same ridge regression on each kind of features (scikit-learn's Ridge, by conjugate gradients
where they are sparse), at one lifetime; the line is kernel ridge regression with the Laplace kernel
itself. Mean over three draws. Error: norm of the misses over that of the labels, in per cent.

    python -m benchmarks.kernel.figure_6 --data data
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from sklearn.linear_model import Ridge

from benchmarks.kernel.figure_5 import KINDS
from benchmarks.kernel.peers import Split, laplace, parser_of, split_of, write
from benchmarks.pages import Page, cell
from benchmarks.records import tabled

SIZES, SEEDS, RIDGE = (1, 2, 5, 10, 20, 50), range(3), 1e-2


def exact(split: Split, lifetime: float) -> float:
    """Return the error of the Laplace kernel itself."""
    mean = split.y.mean()
    gram = laplace(split.X, split.X, lifetime)
    gram[np.diag_indices(len(gram))] += RIDGE
    weights = cho_solve(cho_factor(gram, overwrite_a=True), split.y - mean)
    return split.error(mean + laplace(split.X_test, split.X, lifetime) @ weights)


def error(name: str, split: Split, n: int, lifetime: float, seed: int) -> float:
    X, Z = np.clip(split.X, 0.0, 1.0), np.clip(split.X_test, 0.0, 1.0)
    phi, phi_test = KINDS[name](X, Z, n, lifetime, seed)
    solver = "cholesky" if isinstance(phi, np.ndarray) else "sparse_cg"
    mean = split.y.mean()
    ridge = Ridge(RIDGE, fit_intercept=False, solver=solver, max_iter=500, tol=1e-4)
    return split.error(mean + ridge.fit(phi, split.y - mean).predict(phi_test))


NAMES = {"mondrian": "Mondrian", "fourier": "Fourier", "binning": "binning"}
PAGE = Page(
    title="B16: Figure 6",
    question="How does the test error fall with the number of entries per row, for each kind of"
    " features?",
    identity=("part",),
    numbers={
        f"{name}_{size}": cell("errors", {"entries": label}, at, ".1f")
        for name, label in NAMES.items()
        for size, at in (("few", "5"), ("many", "50"))
    }
    | {"kernel": cell("errors", {"entries": "Laplace kernel"}, "50", ".1f")},
    sentences=(
        "In part: with few entries the test error, in per cent, is {mondrian_few} for Mondrian"
        " features and {binning_few} for random binning, ahead of Fourier features with"
        " {fourier_few}, as in B16.",
        "Fourier features do not overtake them with more entries: the errors are {mondrian_many},"
        " {binning_many} and {fourier_many} with the most, and {kernel} for the Laplace kernel"
        " itself.",
        "The ridge is larger than in B16, and nothing but the learned and the tested rows is"
        " there.",
    ),
    pictures=("kernel_figure_6.png",),
)


def main() -> None:
    parser = parser_of(__doc__, takes_set=True)
    parser.add_argument("--lifetime", type=float, default=1.0)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="entries of a row")
    args = parser.parse_args()
    sizes = args.sizes
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    split = split_of(args)
    line = exact(split, args.lifetime)
    found = {
        name: [np.mean([error(name, split, n, args.lifetime, s) for s in SEEDS]) for n in sizes]
        for name in KINDS
    }
    figure, axis = plt.subplots(figsize=(6.0, 3.8), layout="constrained")
    for name, errors in found.items():
        axis.plot(sizes, errors, marker="o", markersize=4, label=name)
    axis.axhline(line, color="grey", linestyle=":", label="Laplace kernel")
    axis.set(xscale="log", yscale="log", xlabel="entries of a row that are not zero")
    axis.set_ylabel("test error, %")
    axis.legend()
    rows = [[name, *map(float, errors)] for name, errors in found.items()]
    rows.append(["Laplace kernel", *[float(line)] * len(sizes)])
    head = ["entries", *map(str, sizes)]
    title = f"{args.set}, lifetime {args.lifetime:g}: test error, %"
    write("figure_6", tabled("errors", title, head, rows), figure)


if __name__ == "__main__":
    main()
