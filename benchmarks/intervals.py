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
from benchmarks.pages import Figure, Page, cell, look_up, publish, range_of
from benchmarks.records import RESULTS, Records, tabled
from dmondrian import AMFRegressor, MondrianForestRegressor, PowerLifetime

TREES = 20
COVERAGES = (0.95, 0.9, 0.8, 0.5)
FORESTS: dict[str, dict[str, Any]] = {
    "hierarchy, grow": {"aggregation": "hierarchy"},
    "hierarchy, no end": {"aggregation": "hierarchy", "lifetime": None},
    "mean, grow": {"aggregation": "mean"},
    "mean, grow with c = 4": {"aggregation": "mean", "lifetime": PowerLifetime(4.0, 0.1)},
}


def prediction(names: list[str], data: str | None, max_rows: int | None) -> dict[str, Any]:
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
    return tabled("prediction", "Prediction intervals: coverage, width / std of y", head, rows)


def deviations(names: list[str], data: str | None, max_rows: int | None) -> dict[str, Any]:
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
    title = "Deviations of labels: share in the central 90 %, log loss"
    return tabled("deviations", title, head, rows)


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


def confidence(n_repeats: int) -> dict[str, Any]:
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
    return tabled("confidence", "Confidence intervals for the mean", head, rows)


def slopes() -> dict[str, Any]:
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
    return tabled("slopes", "Squared error of large forests", head, rows)


def coverage_at_own_lifetime(estimator: str) -> Figure:
    """Return what finds the coverage of confidence intervals at lifetimes n^(1/(d+2))."""

    def find(records: Records) -> Any:
        record = records.only(part="confidence")
        rows = [row for row in record["rows"] if row[3] == estimator]
        own = {row[0]: float(row[1]) ** (1.0 / (row[0] + 2)) for row in rows}
        held = [row[4] for row in rows if abs(row[2] / own[row[0]] - 1.0) < 0.01]
        return range_of(held, ".2f", [record])

    return find


def coverage_of_labels(column: str) -> Figure:
    """Return what finds the coverage of AMF's Gaussians over sets, with a hundred trees."""

    def find(records: Records) -> Any:
        record = records.only(part="deviations")
        names = dict.fromkeys(row[0] for row in record["rows"])
        held = [look_up(record, {"set": name, "trees": 100}, column) for name in names]
        return range_of(held, ".2f", [record])

    return find


OWN = {"set": "california_housing", "forest": "hierarchy, grow"}
PAGE = Page(
    title="Intervals",
    question="Do intervals of regressors hold what they should, for labels and for the mean?",
    identity=("part",),
    numbers={
        "own": cell("prediction", OWN | {"intervals": "own"}, "0.9", ".2f"),
        "calibrated": cell("prediction", OWN | {"intervals": "calibrated"}, "0.9", ".2f"),
        "plain": coverage_at_own_lifetime("plain"),
        "debiased": coverage_at_own_lifetime("debiased"),
        "std_own": coverage_of_labels("own: within 90 %"),
        "std_calibrated": coverage_of_labels("calibrated: within 90 %"),
    },
    sentences=(
        "Of prediction intervals of nine tenths, those of the hierarchy with a growing lifetime"
        " hold {own} of held-out labels and calibrated ones {calibrated}: the Gaussians take noise"
        " to be a fixed small share of the variance.",
        "The Gaussians of AMF hold {std_own} over the sets, as the variance between trees counts"
        " in full, and {std_calibrated} after calibration in the stream.",
        "Confidence intervals for the mean want `debias=True`: at the growing lifetime they hold"
        " {debiased} where nineteen in twenty are asked for, plain ones {plain}.",
    ),
)


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
    records = Records(RESULTS / "intervals.json", PAGE.identity)
    for name in args.parts:
        records.add(named[name]())
    publish("intervals", records)


if __name__ == "__main__":
    main()
