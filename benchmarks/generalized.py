"""Generalised Mondrian forests beside what people use for the same losses.

* `quantiles`: pinball loss and coverage at five levels, by the mean over trees and by the mixture
  of labels, beside quantile-forest and LightGBM's quantile objective (the `peers` extra; left out
  where they are not there); and intervals that are calibrated on a fifth of the rows;
* `counts`: Poisson deviance of hourly pick-ups by zone of nyc_green_taxi, beside scikit-learn's
  Poisson boosting;
* `robust`: Huber beside squared loss where 5 % of the training labels are gross outliers;
* `lifetimes`: the lifetime that each way of choosing takes, and its held-out loss, on functions of
  known smoothness and on real sets; and a picture of the curves;
* `density`: log likelihood of held-out rows, beside scikit-learn's KernelDensity and a histogram,
  both with the width of largest likelihood in cross-validation or of held-out rows; a picture;
* `choices`: densities by either value of their cells and a loss of one's own (expectiles), at a
  fixed lifetime and by each way of choosing one: held-out likelihood and loss on made-up rows;
* `sketch`: the certificate of bounded labels, by number of rows and their order.

    python -m benchmarks.generalized --data <folder> [part ...]

One thread, seed 0. Pictures need matplotlib (the `plots` extra). Features are scaled to [0, 1];
peers have their defaults.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import mean_pinball_loss, mean_poisson_deviance
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity

from benchmarks import datasets
from benchmarks.pages import Page, cell, publish
from benchmarks.records import REPORTS, RESULTS, Records, tabled
from dmondrian import ConvexLoss, GeneralizedMondrianForestRegressor, MondrianDensity
from dmondrian.stats.labels import KEPT

Forest = GeneralizedMondrianForestRegressor
LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]
TREES = 10
ZONES = 20  # with the most pick-ups


def settings(**options: Any) -> dict[str, Any]:
    """Return what all forests on real sets share: scales and lifetime chosen from the rows."""
    return {
        "n_estimators": TREES,
        "random_state": 0,
        "lifetime": "validation",
        "max_lifetime": 100.0,
        "feature_scales": "learned",
        **options,
    }


def quantiles(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Pinball loss and coverage on held-out rows."""
    rows: list[list[Any]] = []
    calibrated: list[list[Any]] = []
    for name in args.sets:
        dataset = datasets.load(name, args.data, args.max_rows)
        X, y, query = dataset.X_train, dataset.y_train, dataset.X_test
        mine = _quantile_forest().fit(X, y)
        all_reported = {
            "Mondrian, 50 trees": mine.predict(query),
            "Mondrian, mixture of labels": mine.predict_quantiles(query, LEVELS),
        }
        all_reported.update({k: predict(X, y, query) for k, predict in _quantile_peers().items()})
        calibrated += [[name, *row] for row in _calibrated(X, y, query, dataset.y_test)]
        for label, reported in all_reported.items():
            losses = [
                mean_pinball_loss(dataset.y_test, reported[:, i], alpha=level)
                for i, level in enumerate(LEVELS)
            ]
            inside = [
                float(
                    (
                        (reported[:, i] <= dataset.y_test) & (dataset.y_test <= reported[:, -1 - i])
                    ).mean()
                )
                for i in range(2)
            ]
            crossed = float((np.diff(reported, axis=1) < 0.0).any(axis=1).mean())
            spread = float(np.std(y))
            scaled = [loss / spread for loss in losses]
            rows.append([name, label, *scaled, float(np.mean(scaled)), *inside, crossed])
    head = ["set", "model", *(f"q {level}" for level in LEVELS), "mean", "in [0.05, 0.95]"]
    head += ["in [0.25, 0.75]", "rows that cross"]
    widths = ["set", "intervals", "coverage", "mean width / std of y"]
    return [
        tabled("quantiles", "Pinball loss / std of y, and coverage", head, rows),
        tabled("intervals", "Intervals of 0.9", widths, calibrated),
    ]


def _quantile_forest() -> Forest:
    options = {"quantile": LEVELS, "max_rows_per_leaf": 32, "n_estimators": 5 * TREES}
    return Forest(**settings(loss="quantile", **options))


def _calibrated(
    X: np.ndarray, y: np.ndarray, query: np.ndarray, truth: np.ndarray
) -> list[list[Any]]:
    """Return coverage and width of intervals of 0.9, own and calibrated on a fifth of the rows."""
    held = np.arange(len(X)) % 5 == 0
    forest = _quantile_forest().fit(X[~held], y[~held])
    forest.calibrate_intervals(X[held], y[held], coverage=0.9)
    ends = forest.predict(query)[:, [0, -1]].T
    rows = []
    for label, (lower, upper) in {
        "mean of quantiles": ends,
        "mixture": forest.predict_interval(query),
        "mixture, calibrated": forest.predict_interval(query, calibrated=True),
    }.items():
        inside = float(((lower <= truth) & (truth <= upper)).mean())
        rows.append([label, inside, float((upper - lower).mean() / np.std(y))])
    return rows


def _quantile_peers() -> dict[str, Callable[..., np.ndarray]]:
    """Return models by name, each a function of rows, labels and rows to predict."""

    def marginal(X: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
        return np.tile(np.quantile(y, LEVELS), (len(query), 1))

    peers: dict[str, Callable[..., np.ndarray]] = {"quantiles of all labels": marginal}
    try:
        from quantile_forest import RandomForestQuantileRegressor

        peers["quantile-forest, 100 trees"] = lambda X, y, query: (
            RandomForestQuantileRegressor(random_state=0).fit(X, y).predict(query, LEVELS)
        )
    except ImportError as error:
        print(f"without quantile-forest: {error}")
    try:
        from lightgbm import LGBMRegressor

        def boosted(X: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
            options = {"objective": "quantile", "random_state": 0, "verbose": -1, "n_jobs": 1}
            models = [LGBMRegressor(alpha=level, **options) for level in LEVELS]
            return np.stack([model.fit(X, y).predict(query) for model in models], axis=1)

        peers["LightGBM, a model a level"] = boosted
    except ImportError as error:
        print(f"without LightGBM: {error}")
    return peers


def hourly(folder: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows (weekday, hour, day, zones one-hot, scaled), pick-ups, and the day of each."""
    files = sorted((Path(folder) / "nyc_green_taxi").glob("*.parquet"))
    columns = ["lpep_pickup_datetime", "PULocationID"]
    frame = pd.concat([pq.read_table(file, columns=columns).to_pandas() for file in files])
    hour = frame["lpep_pickup_datetime"].dt.floor("h")
    month = hour.dt.to_period("M").mode()[0]
    zones = frame["PULocationID"].value_counts().index[:ZONES]
    hours = pd.date_range(month.start_time, month.end_time, freq="h")
    every = pd.MultiIndex.from_product([hours, sorted(zones)])
    counts = frame.groupby([hour, frame["PULocationID"]]).size().reindex(every, fill_value=0)
    at, zone = every.get_level_values(0), every.get_level_values(1)
    X = np.stack([at.day_of_week / 6.0, at.hour / 23.0, (at.day - 1) / 30.0], axis=1)
    one_hot = (np.asarray(zone)[:, None] == np.array(sorted(zones))).astype(float)
    return np.hstack([X, one_hot]).astype(np.float32), counts.to_numpy(float), np.asarray(at.day)


def counts(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Poisson deviance of the last 30 % of the days."""
    X, y, day = hourly(args.data)
    learned = day <= 21
    rng = np.random.default_rng(0)
    order = rng.permutation(np.flatnonzero(learned))
    rows = []
    forest = {"n_estimators": 5 * TREES, "max_lifetime": 1000.0}
    models = {
        "mean": None,
        "Poisson, validation": Forest(loss="poisson", **settings(**forest)),
        "squared, validation": Forest(loss="squared", **settings(**forest)),
        "Poisson boosting": HistGradientBoostingRegressor(loss="poisson", random_state=0),
        "squared boosting": HistGradientBoostingRegressor(random_state=0),
    }
    for name, model in models.items():
        if model is None:
            reported = np.full((~learned).sum(), y[order].mean())
        else:
            reported = model.fit(X[order], y[order]).predict(X[~learned])
        reported = np.maximum(reported, 1e-6)
        losses = (
            mean_poisson_deviance(y[~learned], reported),
            float(np.mean((reported - y[~learned]) ** 2)),
        )
        rows.append([name, *losses, getattr(model, "lifetime_", None)])
    head = ["model", "Poisson deviance", "squared error", "lifetime"]
    title = f"Hourly pick-ups of {ZONES} zones: {learned.sum()} rows learned"
    return [tabled("counts", title, head, rows)]


def robust(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Held-out error where a share of the training labels is far off."""
    rows = []
    for name in args.sets:
        dataset = datasets.load(name, args.data, args.max_rows)
        X, y = dataset.X_train, dataset.y_train
        rng, spread = np.random.default_rng(0), float(np.std(y))
        bad = y.copy()
        which = rng.random(len(y)) < 0.05
        bad[which] += 20.0 * spread * rng.standard_normal(which.sum())
        for label, options in {
            "squared": {"loss": "squared"},
            "huber, delta = std / 4": {"loss": "huber", "delta": spread / 4.0},
            "median": {"loss": "quantile"},
        }.items():
            errors = []
            for labels in (y, bad):
                reported = Forest(**settings(**options)).fit(X, labels).predict(dataset.X_test)
                error = (reported - dataset.y_test) / spread
                errors += [float(np.sqrt(np.mean(error**2))), float(np.mean(np.abs(error)))]
            rows.append([name, label, *errors])
    head = ["set", "loss", "RMSE, clean", "MAE, clean", "RMSE, 5 % off", "MAE, 5 % off"]
    return [tabled("robust", "Errors / std of y, of clean held-out labels", head, rows)]


FUNCTIONS: dict[str, tuple[int, Callable[[np.ndarray], np.ndarray], float]] = {
    "constant, d = 1": (1, lambda X: np.zeros(len(X)), 0.5),
    "smooth, d = 1": (1, lambda X: np.sin(2.0 * np.pi * X[:, 0]), 0.5),
    "wiggly, d = 1": (1, lambda X: np.sin(20.0 * np.pi * X[:, 0]), 0.5),
    "steps, d = 1": (1, lambda X: np.floor(8.0 * X[:, 0]) % 2.0, 0.3),
    "smooth, d = 2": (2, lambda X: np.sin(2.0 * np.pi * X).mean(axis=1), 0.3),
    "smooth, d = 5": (5, lambda X: np.sin(2.0 * np.pi * X).mean(axis=1), 0.3),
}


def lifetimes(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Lifetimes chosen and their held-out risk, beside the best of all on held-out rows."""
    rows, curves = [], {}
    grid = np.geomspace(0.1, 1000.0, 80)
    for name, (d, truth, noise) in FUNCTIONS.items():
        rng = np.random.default_rng(0)
        X = rng.random((5000, d)).astype(np.float32)
        y = truth(X) + rng.normal(0.0, noise, 5000)
        query = rng.random((5000, d)).astype(np.float32)

        def error(reported: np.ndarray, query: np.ndarray = query, f: Any = truth) -> float:
            return float(np.mean((reported - f(query)) ** 2))

        free = Forest(TREES, lifetime=None, max_lifetime=1000.0, random_state=0).fit(X, y)
        risks = [error(reported) for reported in free.staged_predict(query, grid)]
        row: list[Any] = [name, float(grid[np.argmin(risks)]), min(risks)]
        curves[name] = grid, np.array(risks), {}
        for way in ("penalized", "prequential", "validation"):
            forest = Forest(TREES, lifetime=way, max_lifetime=1000.0, random_state=0).fit(X, y)
            row += [forest.lifetime_, error(forest.predict(query))]
            curves[name][2][way] = forest.lifetime_path_
        rows.append(row)
    _draw_lifetimes(curves)
    head = ["function", "best", "error"]
    for way in ("penalized", "prequential", "validation"):
        head += [way, "error"]
    title = "Lifetimes chosen (median over trees) and squared error to the function"
    picture = "generalized_lifetimes.png"
    return [tabled("lifetimes", title, head, rows, picture=picture), _real_lifetimes(args)]


def _real_lifetimes(args: argparse.Namespace) -> dict[str, Any]:
    rows = []
    for name in args.sets:
        dataset = datasets.load(name, args.data, args.max_rows)
        row: list[Any] = [name]
        for way in ("grow", "penalized", "prequential", "validation"):
            forest = Forest(**settings(lifetime=way, feature_scales=None))
            forest.fit(dataset.X_train, dataset.y_train)
            row += [forest.lifetime_, forest.score(dataset.X_test, dataset.y_test)]
        rows.append(row)
    head = ["set"]
    for way in ("grow", "penalized", "prequential", "validation"):
        head += [way, "R2"]
    title = "Lifetimes and held-out R2, squared loss, no feature scales"
    return tabled("real_lifetimes", title, head, rows)


def _draw_lifetimes(curves: dict[str, Any]) -> None:
    """Draw the held-out error, and what each way of choosing minimises, against the lifetime."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(13, 7))
    for axis, (name, (grid, risks, paths)) in zip(axes.flat, curves.items(), strict=True):
        axis.loglog(grid, risks, "k", label="held out: error to the function")
        for i, (way, path) in enumerate(paths.items()):
            objective = path.objective.mean(axis=0)
            shown = (path.lifetimes >= grid[0]) & (path.lifetimes <= grid[-1])
            axis.loglog(path.lifetimes[shown], objective[shown], f"C{i}", label=way)
            axis.axvline(np.median(path.chosen), color=f"C{i}", linestyle=":")
        axis.set(title=name, xlabel="lifetime")
    axes[0, 0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(REPORTS / "generalized_lifetimes.png", dpi=110)


def density(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Mean log likelihood of held-out rows in the unit square."""
    rows = []
    for name in ("bananas", "cpu_act"):
        dataset = datasets.load(name, args.data, args.max_rows)
        X, query = dataset.X_train[:, :2], np.clip(dataset.X_test[:, :2], 0.0, 1.0)
        cut = len(X) * 9 // 10
        kernel = GridSearchCV(KernelDensity(), {"bandwidth": np.geomspace(0.003, 0.3, 15)}, cv=5)
        peer = kernel.fit(X).best_estimator_
        label = f"KernelDensity, bandwidth {peer.bandwidth:.3g}"
        rows.append([name, label, peer.score(query) / len(query), None])
        reported = {k: _histogram(X[:cut], X[cut:], k).mean() for k in range(2, 65)}
        best = max(reported, key=lambda k: reported[k])
        likelihood = float(_histogram(X, query, best).mean())
        rows.append([name, f"histogram, {best} x {best}", likelihood, None])
        for trees in (1, 10, 100):
            mine = MondrianDensity(trees, lifetime="validation", max_lifetime=200.0, random_state=0)
            likelihood = mine.fit(X).score(query) / len(query)
            label = f"Mondrian, {trees} trees, lifetime {mine.lifetime_:.3g}"
            rows.append([name, label, likelihood, mine.normalization_error_])
        if name == "bananas":
            _draw_density(mine, X)
    head = ["set", "estimator", "mean log likelihood", "standard error of the normaliser"]
    picture = "generalized_density.png"
    return [tabled("density", "Densities of two columns", head, rows, picture=picture)]


def _histogram(X: np.ndarray, query: np.ndarray, k: int) -> np.ndarray:
    """Return log densities of a k x k histogram with half a row in every cell."""
    cells = np.full((k, k), 0.5)
    np.add.at(cells, tuple(np.minimum((X * k).astype(int), k - 1).T), 1.0)
    found = np.minimum((query * k).astype(int), k - 1)
    return np.log(cells[found[:, 0], found[:, 1]] / cells.sum() * k * k)


def _draw_density(fitted: MondrianDensity, X: np.ndarray) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    at = (np.arange(300) + 0.5) / 300
    points = np.stack(np.meshgrid(at, at), axis=-1).reshape(-1, 2).astype(np.float32)
    figure, axes = plt.subplots(1, 2, figsize=(11, 5))
    axes[0].plot(*X.T, ".", markersize=1.5)
    reported = np.exp(fitted.score_samples(points)).reshape(300, 300)
    axes[1].imshow(reported, origin="lower", extent=(0, 1, 0, 1), cmap="magma")
    axes[0].set(xlim=(0, 1), ylim=(0, 1), aspect="equal", title="bananas, rows learned")
    axes[1].set(title=f"MondrianDensity, {fitted.n_estimators} trees")
    figure.tight_layout()
    figure.savefig(REPORTS / "generalized_density.png", dpi=110)


DENSITIES: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "uniform": lambda rng, n, d: rng.random((n, d)),
    "beta(2, 5)": lambda rng, n, d: rng.beta(2.0, 5.0, (n, d)),
    "two normals": lambda rng, n, d: np.clip(
        np.where(
            rng.random((n, 1)) < 0.5, rng.normal(0.3, 0.05, (n, d)), rng.normal(0.7, 0.1, (n, d))
        ),
        0.0,
        1.0,
    ),
}
WAYS = {"fixed, 5": 5.0, "grow": "grow", "penalized": "penalized", "validation": "validation"}


def choices(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Held-out likelihood of densities and loss of expectiles, by how the lifetime comes about."""
    n = min(3000, args.max_rows or 3000)
    rows: list[list[Any]] = []
    for name, draw in DENSITIES.items():
        for d in (1, 2):
            rng = np.random.default_rng(0)
            X, query = (draw(rng, size, d).astype(np.float32) for size in (n, 5000))
            for cell_value in ("log_frequency", "minimizer"):
                row: list[Any] = [f"{name}, d = {d}", cell_value]
                for way in WAYS.values():
                    fitted = MondrianDensity(
                        TREES,
                        lifetime=way,
                        max_lifetime=100.0,
                        cell_value=cell_value,
                        random_state=0,
                    ).fit(X)
                    row += [fitted.lifetime_, fitted.score(query) / len(query)]
                rows.append(row)
    losses: list[list[Any]] = []
    expectile = ConvexLoss(_expectile, _expectile_slope)
    options: dict[str, Any] = {"loss": expectile, "max_lifetime": 100.0}
    for name, (d, truth, noise) in FUNCTIONS.items():
        rng = np.random.default_rng(0)
        X, query = (rng.random((size, d)).astype(np.float32) for size in (n, 5000))
        y, y_query = (truth(x) + rng.normal(0.0, noise, len(x)) for x in (X, query))
        row = [name]
        for way in WAYS.values():
            forest = Forest(TREES, lifetime=way, random_state=0, **options)
            reported = forest.fit(X, y).predict(query)
            row += [forest.lifetime_, float(expectile.prices(reported, y_query).mean())]
        losses.append(row)
    pairs = [title for way in WAYS for title in (way, "held out")]
    titles = (
        "Densities: lifetimes (median over trees) and mean log likelihood of held-out rows",
        "The expectile of 0.9, a ConvexLoss: lifetimes and mean loss of held-out rows",
    )
    return [
        tabled("chosen_densities", titles[0], ["rows", "cell_value", *pairs], rows),
        tabled("chosen_expectiles", titles[1], ["function", *pairs], losses),
    ]


def _expectile(z: float, y: float) -> float:
    return (0.9 if y > z else 0.1) * (y - z) ** 2


def _expectile_slope(z: float, y: float) -> float:
    return -2.0 * (0.9 if y > z else 0.1) * (y - z)


def sketch(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Widest gap of one cell, in units of rows / labels kept."""
    rows = []
    orders: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "random": lambda y: y,
        "rising": np.sort,
        "from the ends inwards": lambda y: np.sort(y)[
            np.argsort(-np.abs(np.arange(len(y)) - 0.5 * (len(y) - 1)), kind="stable")
        ],
    }
    for size in (16, 64, 256):
        for n in (1000, 10_000, 100_000):
            y = np.random.default_rng(0).normal(size=n)
            pairs = [(order, parts) for order in orders.values() for parts in (1, 4)]
            rows.append([size, n, *(_certificate(o(y), size, p) * size / n for o, p in pairs)])
    head = ["labels", "rows", *(f"{o}, {p}" for o in orders for p in ("one stream", "4 merged"))]
    title = "Widest gap x labels kept / rows: ranks are known to half of it"
    return [tabled("sketch", title, head, rows)]


def _certificate(y: np.ndarray, size: int, parts: int) -> float:
    options: dict[str, Any] = {"loss": "quantile", "max_rows_per_leaf": size, "lifetime": 1.0}
    forests = [
        Forest(1, domain="cube", random_state=0, **options).fit(np.full((len(p), 1), 0.5), p)
        for p in np.array_split(y, parts)
    ]
    merged = forests[0].merge(*forests[1:])
    stat = merged.forest_.trees[0].d[0]
    kept = int(stat[KEPT])
    _, below, upto = stat[KEPT + 1 : KEPT + 1 + 3 * (size + 1)].reshape(3, size + 1)[:, :kept]
    return float((below[1:] - upto[:-1]).max())


CALIFORNIA = {"set": "california_housing"}
PAGE = Page(
    title="Generalised forests",
    question="How good are forests under other losses: quantiles, counts, robust means, densities,"
    " and lifetimes that are chosen?",
    identity=("part",),
    numbers={
        "mean": cell("quantiles", CALIFORNIA | {"model": "Mondrian, 50 trees"}, "mean", ".3f"),
        "mixture": cell(
            "quantiles", CALIFORNIA | {"model": "Mondrian, mixture of labels"}, "mean", ".3f"
        ),
        "peer": cell(
            "quantiles", CALIFORNIA | {"model": "quantile-forest, 100 trees"}, "mean", ".3f"
        ),
        "short": cell(
            "intervals", CALIFORNIA | {"intervals": "mean of quantiles"}, "coverage", ".2f"
        ),
        "wide": cell("intervals", CALIFORNIA | {"intervals": "mixture"}, "coverage", ".2f"),
        "calibrated": cell(
            "intervals", CALIFORNIA | {"intervals": "mixture, calibrated"}, "coverage", ".2f"
        ),
        "poisson": cell("counts", {"model": "Poisson, validation"}, "Poisson deviance", ".2f"),
        "boosting": cell("counts", {"model": "Poisson boosting"}, "Poisson deviance", ".2f"),
        "squared_off": cell("robust", CALIFORNIA | {"loss": "squared"}, "MAE, 5 % off", ".2f"),
        "huber_off": cell(
            "robust", CALIFORNIA | {"loss": "huber, delta = std / 4"}, "MAE, 5 % off", ".2f"
        ),
    },
    sentences=(
        "Splits do not look at labels, so forests whose splits do have lower pinball losses (on"
        " california_housing {mean} for the mean of quantiles, {mixture} for the mixture of the"
        " cells' labels, {peer} for quantile-forest), but quantiles of one forest never cross.",
        "Of nominal intervals of nine tenths the mean of quantiles covers {short}, as small cells"
        " hold few labels; the mixture covers {wide}, and {calibrated} after calibration with"
        " held-out rows.",
        "Each way of choosing a lifetime is near the best where the function varies; those that"
        " judge single trees, which want larger cells than their mean does, stop early where many"
        " columns matter.",
    ),
)
PARTS = {
    part.__name__: part for part in (quantiles, counts, robust, lifetimes, density, choices, sketch)
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    datasets.add_arguments(parser, ["california_housing", "nyc_green_taxi"])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all")
    args = parser.parse_args()
    records = Records(RESULTS / "generalized.json", PAGE.identity)
    for name in args.parts or PARTS:
        for record in PARTS[name](args):
            records.add(record)
        print(f"{name}: done", file=sys.stderr)
    publish("generalized", records)


if __name__ == "__main__":
    main()
