"""Intervals of Mondrian forest regressors: how often they hold what they should.

Prediction intervals on held-out rows of real sets (columns scaled to [0, 1] by the range of the
training rows, 20 trees): the forest's own, and those calibrated on a fifth of the training rows,
which is then not learned. AMF's deviations of the label, before and after calibration in the
stream (one pass, default settings). Confidence intervals for the mean by simulation on the cube
(uniform rows, the mean over columns of sin(2 pi x), noise 0.5, 20 interior points): the share that
holds the truth, and their mean width, with and without debiasing. And the slope of log squared
error on log n of both estimators at lifetimes 4 n^(1/(d+8)), too small for the plain one: -4 /
(d+8) and -8 / (d+8) in theory. Errors there are those of a forest of infinitely many trees:
products of the errors of two halves whose trees are independent.

    python -m benchmarks.intervals --data <folder>
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.records import RESULTS, table
from dmondrian import AMFRegressor, MondrianForestRegressor, PowerLifetime

TREES = 20
COVERAGES = (0.95, 0.9, 0.8, 0.5)
FORESTS: dict[str, dict[str, Any]] = {
    "hierarchy, grow": {"aggregation": "hierarchy"},
    "hierarchy, no end": {"aggregation": "hierarchy", "lifetime": None},
    "mean, grow": {"aggregation": "mean"},
    "mean, grow with c = 4": {"aggregation": "mean", "lifetime": PowerLifetime(4.0, 0.1)},
}


def prediction(names: list[str], data: str | None, max_rows: int | None) -> str:
    """Share of held-out labels within the intervals, and median width in spreads of y."""
    rows = []
    for name in names:
        dataset = datasets.load(name, data, max_rows)
        X, y = dataset.X_train, dataset.y_train
        n_learned = len(X) - len(X) // 5
        for label, options in FORESTS.items():
            make = {"n_estimators": TREES, "random_state": 0, **options}
            forest = MondrianForestRegressor(**make)
            tails = [(1.0 - coverage) / 2.0 for coverage in COVERAGES]
            levels = [*tails, *(1.0 - tail for tail in tails[::-1])]
            ends = forest.fit(X, y).predict_quantiles(dataset.X_test, levels)
            found = [_held(ends[:, i], ends[:, -1 - i], dataset) for i in range(len(COVERAGES))]
            rows.append([name, label, "own", *_flat(found)])
            forest.fit(X[:n_learned], y[:n_learned])
            forest.calibrate_intervals(X[n_learned:], y[n_learned:])
            found = [
                _held(*forest.predict_interval(dataset.X_test, c, calibrated=True), dataset)
                for c in COVERAGES
            ]
            rows.append([name, label, "calibrated", *_flat(found)])
    head = ["set", "forest", "intervals", *(str(c) for c in COVERAGES)]
    head += [f"width {c}" for c in COVERAGES]
    return "### Prediction intervals: coverage, width / std of y\n\n" + table(head, rows)


def deviations(names: list[str], data: str | None, max_rows: int | None) -> str:
    """Held-out labels under Gaussians of AMF: as cells tell them, and calibrated in the stream.

    Beside them one Gaussian for all errors, whose variance is that of the held-out ones.
    """
    rows = []
    for name in names:
        dataset = datasets.load(name, data, max_rows)
        for n_trees in (10, 100):
            forest = AMFRegressor(n_trees, calibrate=True, random_state=0, n_jobs=-1)
            forest.fit(dataset.X_train, dataset.y_train)
            mean, std = forest.predict(dataset.X_test, return_std=True)
            error, factor = dataset.y_test - mean, forest.variance_factor_
            constant = np.full(len(error), np.sqrt((error * error).mean()))
            found = [_likely(error, s) for s in (std / np.sqrt(factor), std, constant)]
            rows.append([name, n_trees, factor, *(x for one in found for x in one)])
    head = ["set", "trees", "factor"]
    for kind in ("own", "calibrated", "one for all"):
        head += [f"{kind}: within 90 %", "nats"]
    return "### Deviations of labels: share in the central 90 %, log loss\n\n" + table(head, rows)


def _likely(error: np.ndarray, std: np.ndarray) -> tuple[float, float]:
    """Share of errors within 1.645 deviations, and mean negative log density."""
    std = np.maximum(std, 1e-9 * np.abs(error).max())
    nats = np.log(np.sqrt(2.0 * np.pi) * std) + 0.5 * (error / std) ** 2
    return float((np.abs(error) <= 1.645 * std).mean()), float(nats.mean())


def _held(lower: np.ndarray, upper: np.ndarray, dataset: Any) -> tuple[float, float]:
    inside = (lower <= dataset.y_test) & (dataset.y_test <= upper)
    return float(inside.mean()), float(np.median(upper - lower) / dataset.y_train.std())


def _flat(found: list[tuple[float, float]]) -> list[float]:
    return [share for share, _ in found] + [width for _, width in found]


def waves(X: np.ndarray) -> np.ndarray:
    """Return a smooth function, the mean over columns of a sine."""
    return np.sin(2.0 * np.pi * X.astype(np.float64)).mean(axis=1)


def simulate(rng: np.random.Generator, n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return uniform rows and labels with noise 0.5."""
    X = rng.random((n, d)).astype(np.float32)
    return X, waves(X) + rng.normal(0.0, 0.5, n)


def confidence(n_repeats: int) -> str:
    """Share of confidence intervals that hold the truth, over data sets and interior points."""
    rows = []
    for d, n, n_trees in ((1, 1000, 200), (2, 2000, 200)):
        own = float(n) ** (1.0 / (d + 2))
        query = np.random.default_rng(99).uniform(0.25, 0.75, (20, d)).astype(np.float32)
        for lifetime in (0.6 * own, own, 2.0 * own):
            held = np.zeros((2, 2))  # share and width, plain and debiased
            for seed in range(n_repeats):
                X, y = simulate(np.random.default_rng(seed), n, d)
                forest = MondrianForestRegressor(
                    n_trees, domain="cube", lifetime=1.5 * lifetime, random_state=seed
                ).fit(X, y)
                for i in range(2):
                    lower, upper = forest.confidence_interval(
                        query, X, lifetime=lifetime, debias=i > 0
                    )
                    inside = (lower <= waves(query)) & (waves(query) <= upper)
                    held[i] += np.mean([inside, upper - lower], axis=1) / n_repeats
            for kind, row in zip(("plain", "debiased"), held.tolist(), strict=True):
                rows.append([d, n, lifetime, kind, *row])
    head = ["d", "n", "lifetime", "estimator", "coverage at 0.95", "mean width"]
    return "### Confidence intervals for the mean\n\n" + table(head, rows)


def slopes() -> str:
    """Slope of log error on log n, with and without debiasing, at the same lifetimes."""
    rows = []
    for d in (1, 2):
        steps = [2**k for k in (9, 11, 13, 15)]
        growth = PowerLifetime(4.0, 1.0 / (d + 8))
        query = np.random.default_rng(7).uniform(0.25, 0.75, (500, d)).astype(np.float32)
        errors = {"plain": np.zeros(len(steps)), "debiased": np.zeros(len(steps))}
        for seed in range(8):
            X, y = simulate(np.random.default_rng(seed), steps[-1], d)
            halves = [
                MondrianForestRegressor(
                    150, domain="cube", lifetime=1.5 * growth.at(steps[-1]), random_state=state
                )
                for state in (2 * seed, 2 * seed + 1)
            ]
            done = 0
            for i, n in enumerate(steps):
                for half in halves:
                    half.partial_fit(X[done:n], y[done:n])
                done, at = n, growth.at(n)
                plain = [half.predict(query, lifetime=at) - waves(query) for half in halves]
                debiased = [half.predict_debiased(query, at) - waves(query) for half in halves]
                errors["plain"][i] += np.mean(plain[0] * plain[1]) / 8
                errors["debiased"][i] += np.mean(debiased[0] * debiased[1]) / 8
        for kind, order in (("plain", 4.0), ("debiased", 8.0)):
            slope = float(np.polyfit(np.log(steps), np.log(errors[kind]), 1)[0])
            rows.append([f"d = {d}", kind, *errors[kind].tolist(), slope, -order / (d + 8.0)])
    head = ["", "estimator", *(f"n = {n}" for n in steps), "slope", "theory"]
    return "### Squared error of large forests\n\n" + table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    datasets.add_arguments(parser, ["california_housing"])
    parser.add_argument("--repeats", type=int, default=100, help="data sets of the simulation")
    named = {
        "slopes": slopes,
        "confidence": lambda: confidence(args.repeats),
        "prediction": lambda: prediction(args.sets, args.data, args.max_rows),
        "deviations": lambda: deviations(args.sets, args.data, args.max_rows),
    }
    parser.add_argument("--parts", nargs="+", default=list(named), choices=named)
    args = parser.parse_args()
    for name in args.parts:
        told = named[name]()
        print(told, flush=True)
        (RESULTS / f"intervals_{name}.md").write_text(told)


if __name__ == "__main__":
    main()
