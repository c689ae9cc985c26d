"""What else was tried with feature scales: quantile maps, exponents, longer warm-ups, noise.

AMF with ten trees, learned scales and otherwise default settings: held-out log loss or R2.

    python -m benchmarks.scales_tried --data <folder> --max-rows 12000 --parts maps
    python -m benchmarks.scales_tried --data <folder> --parts noise size bank

* *quantile*: columns of more than two values are mapped to their quantiles among the first 4096
  rows, piecewise linearly; *half* is the mean of that and of the column as it is. *chosen* is the
  one of the three whose forest has least progressive loss on the training rows, in 20 parts.
* *exponents*: four forests of the scales to the powers 0, 1/2, 1 and 2, their forecasts averaged
  with weights proportional to exp(-progressive loss) (classes; regrets at most log 4). In
  regression the loss is in units of the labels' variance.
* *groups*: the columns of a one-hot group share the mean of their learned scales; *warmup*: scales
  are learned from more rows, which is the best that learning them anew at doublings could do.
* *seeds*: the defaults with five seeds, also among 50 columns of noise; a search that is caught by
  what it found first is seen in the worst of them. Seconds are the processor's, until settings are
  chosen.
* *luck*: the defaults with a hundred trees and five seeds, beside forests of the scales that the
  first seed found, and beside random forests: standard deviations of the held-out score (of R2: of
  what it is short of 1) in per cent of its mean.
* *wide*: defaults among 300 and among 2,000 columns of noise, beside no scales and a random forest
  of 100 trees, on at most 12,000 rows of each set; seconds are the processor's for the whole fit.
  How far steps go there was chosen on adult, cpu_act and synthetic_d100_k5 with 300.
* *noise*: adult with 50 uniform columns more, for three seeds; *size*: with noise of a fixed scale,
  the loss that scales are judged by beside the held-out one. *bank*: where its gap comes from.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.ensemble import (
    ExtraTreesClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)

from benchmarks import datasets
from benchmarks.datasets import REGRESSION, Dataset
from benchmarks.metrics import row_losses
from benchmarks.pages import Figure, Number, Page, cell, column_of, middle, publish, runs_of
from benchmarks.records import RESULTS, Records, tabled
from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.prequential.progressive_validation import late_loss

FIRST = 4096
PARTS = 20
MOST_WIDE = 12_000  # rows
POWERS = (0.0, 0.5, 1.0, 2.0)
SETS = ("bank", "spambase", "covtype", "electricity", "california_housing", "cpu_act")


def model(data: Dataset, trees: int = 10, **given: Any) -> AMFClassifier | AMFRegressor:
    """Return an estimator that learns its scales, on sets of few rows from two thirds of them."""
    kind = AMFClassifier if data.is_classification else AMFRegressor
    given.setdefault("warmup_rows", min(FIRST, 2 * len(data.y_train) // 3))
    return kind(trees, **{"feature_scales": "learned", "random_state": 0, **given})


def forecast(data: Dataset, fitted: Any, X: np.ndarray) -> np.ndarray:
    return fitted.predict_proba(X) if data.is_classification else fitted.predict(X)


def losses(data: Dataset, reported: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return each row's log loss, or its squared error over the variance of the labels."""
    if data.is_classification:
        return row_losses(y, reported)
    return (reported - y) ** 2 / data.y_train.var()


def score(data: Dataset, reported: np.ndarray) -> float:
    """Return the held-out log loss, or R2."""
    if data.is_classification:
        return float(losses(data, reported, data.y_test).mean())
    return 1.0 - float(((reported - data.y_test) ** 2).mean() / data.y_test.var())


def progressive(data: Dataset, X: np.ndarray, **given: Any) -> tuple[float, Any]:
    """Return the sum of progressive losses from the second part on, and the forest."""
    forest, total = model(data, **given), 0.0
    more = {"classes": np.arange(data.n_classes)} if data.is_classification else {}
    for rows in np.array_split(np.arange(len(X)), PARTS):
        y = data.y_train[rows]
        if rows[0]:
            total += float(losses(data, forecast(data, forest, X[rows]), y).sum())
        forest.partial_fit(X[rows], y, **more)
    return total, forest


def quantile_map(X: np.ndarray) -> Any:
    """Return the map of columns to their quantiles among the first rows of ``X``."""
    maps = []
    for column in X[:FIRST].T:
        values, counts = np.unique(column, return_counts=True)
        middles = (np.cumsum(counts) - counts / 2.0) / counts.sum()
        maps.append((values, middles) if len(values) > 2 else None)

    def apply(X: np.ndarray, share: float) -> np.ndarray:
        mapped = X.copy()
        for j, known in enumerate(maps):
            if known is not None:
                mapped[:, j] = share * np.interp(X[:, j], *known) + (1.0 - share) * X[:, j]
        return mapped

    return apply


def measure(data: Dataset) -> list[float | str | None]:
    """Return the row of one set in the table."""
    apply, found = quantile_map(data.X_train), {}
    for name, share in (("minmax", 0.0), ("quantile", 1.0), ("half", 0.5)):
        total, forest = progressive(data, apply(data.X_train, share))
        reported = forecast(data, forest, apply(data.X_test, share))
        found[name] = (total, score(data, reported), forest.feature_scales_)
    plain = model(data, feature_scales=None).fit(data.X_train, data.y_train)
    plainly = score(data, forecast(data, plain, data.X_test))
    chosen = min(found.values(), key=lambda one: one[0])[1]
    groups = [
        progressive(data, data.X_train, feature_scales=found["minmax"][2].astype(float) ** power)
        for power in POWERS
    ]
    totals = np.array([total for total, _ in groups])
    weights = np.exp(totals.min() - totals)
    reported = sum(
        w * forecast(data, g[1], data.X_test) for w, g in zip(weights, groups, strict=True)
    )
    mixed = score(data, reported / weights.sum())
    three = [found[name][1] for name in ("minmax", "quantile", "half")]
    return [data.name, len(data.y_train), plainly, *three, chosen, mixed]


def widened(data: Dataset, columns: int) -> list[np.ndarray]:
    """Return training and held-out rows with columns of uniform noise."""
    rng = np.random.default_rng(0)
    return [np.hstack([X, rng.random((len(X), columns), np.float32)])
            for X in (data.X_train, data.X_test)]  # fmt: skip


def with_noise(data: Dataset, columns: int = 50) -> list[list[float | str | None]]:
    """Return losses without and with noise columns, for three seeds."""
    wide, rows = widened(data, columns), []
    for seed in range(3):
        own = []
        for scales in (None, "learned"):
            for X, Z in ((data.X_train, data.X_test), wide):
                forest = model(data, feature_scales=scales, random_state=seed)
                own.append(score(data, forest.fit(X, data.y_train).predict_proba(Z)))
        rows.append([str(seed), *own])
    return rows


def by_seed(data: Dataset, seeds: int = 5) -> list[list[float | str | None]]:
    """Return the mean, the deviation and the worst of held-out scores, as it is and with noise."""
    X, Z = widened(data, 50)
    noisy = replace(data, name=f"{data.name}, noise", X_train=X, X_test=Z)
    rows: list[list[float | str | None]] = []
    for one in (data, noisy):
        scores, seconds = np.empty(seeds), np.empty(seeds)
        kind = AMFClassifier if data.is_classification else AMFRegressor
        more = {"classes": np.arange(data.n_classes)} if data.is_classification else {}
        for seed in range(seeds):
            fitted, start = kind(10, random_state=seed), time.process_time()
            fitted.partial_fit(one.X_train[: FIRST + 1], one.y_train[: FIRST + 1], **more)
            seconds[seed] = time.process_time() - start
            fitted.partial_fit(one.X_train[FIRST + 1 :], one.y_train[FIRST + 1 :])
            scores[seed] = score(one, forecast(one, fitted, one.X_test))
        worst = scores.max() if data.is_classification else scores.min()
        rows.append([one.name, scores.mean(), scores.std(ddof=1), worst, seconds.mean()])
    return rows


def by_luck(data: Dataset, seeds: int = 5) -> list[float | str | None]:
    """Return the mean of the held-out losses of a hundred trees, and deviations in per cent."""
    kind = AMFClassifier if data.is_classification else AMFRegressor
    batch = RandomForestClassifier if data.is_classification else RandomForestRegressor

    def loss(forest: Any) -> float:
        forest.fit(data.X_train, data.y_train)
        reached = score(data, forecast(data, forest, data.X_test))
        return reached if data.is_classification else 1.0 - reached

    rows, scales = [], None
    for seed in range(seeds):
        default = kind(100, random_state=seed)
        row = [loss(default)]
        if scales is None:
            scales = np.asarray(default.feature_scales_, float).tolist()
        # Other trees than those that the scales were found with.
        row.append(loss(kind(100, random_state=seeds + seed, feature_scales=scales)))
        rows.append([*row, loss(batch(100, random_state=seed))])
    mean, deviation = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1)
    return [data.name, float(mean[0]), *(100.0 * deviation / mean).tolist()]


def among_many(data: Dataset) -> Iterator[list[float | str | None]]:
    """Yield held-out scores and seconds of one set among many columns of noise."""
    kind = AMFClassifier if data.is_classification else AMFRegressor
    batch = RandomForestClassifier if data.is_classification else RandomForestRegressor
    for columns in (300, 2000):
        X, Z = widened(data, columns)
        found: list[float | str | None] = [data.name, X.shape[1]]
        for scales in (None, "auto"):
            fitted, start = kind(10, feature_scales=scales, random_state=0), time.process_time()
            fitted.fit(X, data.y_train)
            seconds = time.process_time() - start
            found += [score(data, forecast(data, fitted, Z)), seconds]
        peer, start = batch(100, random_state=0), time.process_time()
        peer.fit(X, data.y_train)
        seconds = time.process_time() - start
        yield [*found, score(data, forecast(data, peer, Z)), seconds]


def by_size(data: Dataset, columns: int = 50) -> list[list[float | str | None]]:
    """Return losses with noise columns of a given scale, others with scales learned without."""
    scales = model(data).fit(data.X_train, data.y_train).feature_scales_
    X, Z = widened(data, columns)
    rows = []
    for power in (-6, -9, -12, -16, -24):
        own = np.concatenate([scales, np.full(columns, 2.0**power)])
        forest = model(data, feature_scales=own).fit(X, data.y_train)
        first = X[:FIRST], data.y_train[:FIRST].astype(float), np.ones(FIRST)
        judged = late_loss(forest.forest_.parameters, range(10), first)
        rows.append([f"2^{power}", judged, score(data, forest.predict_proba(Z))])
    return rows


def of_bank(data: Dataset) -> list[list[float | str | None]]:
    """Return held-out log losses of 30 calibrated trees, beside batch forests."""
    apply, rows, longer = quantile_map(data.X_train), [], {"warmup_rows": 4 * FIRST}
    tried: tuple[tuple[str, float, dict[str, Any]], ...] = (
        ("default", 0.0, {}), ("quantile map", 1.0, {}),
        ("scales of 16384 rows", 0.0, longer), ("both", 1.0, longer),
    )  # fmt: skip
    for name, share, given in tried:
        X, Z = (apply(X, share) for X in (data.X_train, data.X_test))
        forest = model(data, 30, calibrate=True, **given).fit(X, data.y_train)
        rows.append([name, score(data, forest.predict_proba(Z))])
    for kind in (RandomForestClassifier, ExtraTreesClassifier):
        for least in (1, 5):
            batch = kind(100, min_samples_leaf=least, random_state=0)
            reported = batch.fit(data.X_train, data.y_train).predict_proba(data.X_test)
            rows.append([f"{kind.__name__}, leaves of {least} or more", score(data, reported)])
    return rows


def one_hot_groups(X: np.ndarray) -> list[slice]:
    """Return the runs of neighbouring columns of 0 and 1 of which each row has a single one."""
    is_binary, groups, first = ((X == 0) | (X == 1)).all(axis=0), [], 0
    while first < X.shape[1]:
        stop, ones = first, np.zeros(len(X), np.int64)
        while stop < X.shape[1] and is_binary[stop] and (ones + X[:, stop]).max() <= 1:
            ones += X[:, stop].astype(np.int64)
            stop += 1
        if stop > first + 1 and ones.all():
            groups.append(slice(first, stop))
            first = stop
        else:
            first += 1
    return groups


def by_group(data: Dataset) -> list[float | str | None]:
    """Return losses with learned scales, and with the mean of each source column's for all of it.

    The mean keeps the share of splits that the source column gets.
    """
    own = model(data).fit(data.X_train, data.y_train)
    scales = own.feature_scales_.astype(float)
    groups = one_hot_groups(np.vstack([data.X_train, data.X_test]))
    for group in groups:
        scales[group] = scales[group].mean()
    shared = model(data, feature_scales=scales).fit(data.X_train, data.y_train)
    reported = [score(data, forecast(data, one, data.X_test)) for one in (own, shared)]
    return [data.name, len(data.y_train), len(groups), *reported]


def by_warmup(data: Dataset) -> list[float | str | None]:
    """Return losses with scales of the first 4096 rows, and of two, four and eight times as many.

    The best that relearning at doublings of the rows could do: its scales for the last rows, from
    the first one on.
    """
    found: list[float | str | None] = [data.name, len(data.y_train)]
    for times in (1, 2, 4, 8):
        has_rows = times * FIRST <= 2 * len(data.y_train) // 3
        fitted = model(data, warmup_rows=times * FIRST) if has_rows else None
        reported = fitted and forecast(data, fitted.fit(data.X_train, data.y_train), data.X_test)
        found.append(None if reported is None else score(data, reported))
    return found


TITLES = {
    "maps": "Maps of the columns, and exponents of the scales",
    "seeds": "Five seeds, and among fifty columns of noise",
    "luck": "Five seeds of a hundred trees: deviations in per cent of the loss",
    "wide": "Among hundreds and thousands of columns of noise",
    "noise": "adult with fifty columns of noise",
    "size": "Noise columns of a given scale",
    "bank": "What the gap on bank consists of",
    "groups": "One scale for all columns of a one-hot group",
    "warmup": "Scales of more rows",
}


def noise_costs(place: int) -> Figure:
    """Return what finds the per cent that noise columns cost, without scales or with."""

    def find(records: Records) -> Any:
        record = records.only(part="noise")
        values = [100.0 * (row[place + 1] / row[place] - 1.0) for row in record["rows"]]
        return middle(values, ".1f", [record])

    return find


def lower_among_many(than: str) -> Figure:
    """Return what finds on how many rows of the part *wide* the default has the better score."""

    def find(records: Records) -> Any:
        record = records.only(part="wide")
        names = ("set", "default", than)
        rows = zip(*(column_of(record, name) for name in names), strict=True)
        are = [own > other if name in REGRESSION else own < other for name, own, other in rows]
        return Number(f"{sum(are)} of {len(are)}", "", runs_of([record]))

    return find


def deviation(of: str) -> Figure:
    """Return what finds the per cent by which five seeds deviate, over sets."""

    def find(records: Records) -> Any:
        record = records.only(part="luck")
        return middle(list(column_of(record, of)), ".1f", [record])

    return find


def seconds(records: Records) -> Any:
    """Return the seconds until scales are chosen, over sets without noise columns."""
    record = records.only(part="seeds")
    pairs = zip(column_of(record, "set"), column_of(record, "seconds"), strict=True)
    return middle([value for name, value in pairs if "noise" not in name], ".1f", [record])


PAGE = Page(
    title="The search for feature scales",
    question="What do learned feature scales gain and cost, and what else was tried with them?",
    identity=("part",),
    numbers={
        "noise_plain": noise_costs(1),
        "noise": noise_costs(3),
        "seconds": seconds,
        "luck": deviation("default"),
        "luck_given": deviation("scales given"),
        "luck_forest": deviation("random forest"),
        "wide": lower_among_many("no scales"),
        "wide_forest": lower_among_many("random forest"),
        "learned": cell("groups", {"set": "adult"}, "learned", ".3f"),
        "grouped": cell("groups", {"set": "adult"}, "mean of its group", ".3f"),
    },
    sentences=(
        "The search takes {seconds} seconds of the processor; fifty columns of noise cost"
        " {noise_plain} per cent of the loss on adult without scales, and {noise} with scales that"
        " are learned; among hundreds and thousands of them the defaults are better than no scales"
        " on {wide} of the rows below, and than a random forest on {wide_forest}; five seeds of a"
        " hundred trees deviate by {luck} per cent of their loss, by {luck_given} where scales are"
        " given, and random forests by {luck_forest}.",
        "Not built, as they gain little or lose: quantile maps, groups of exponents, one scale for"
        " a one-hot group ({grouped} where single scales have {learned} on adult), and learning"
        " scales anew as rows come, which at best is what `warmup_rows` has.",
        "What is left of the gap to random forests on bank is where the splits are: with"
        " thresholds drawn at random, extra trees lose as much.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    datasets.add_arguments(parser, list(SETS))
    parser.add_argument(
        "--parts",
        nargs="+",
        default=["maps", "seeds", "luck", "wide", "noise", "size", "bank", "groups", "warmup"],
    )
    args = parser.parse_args()
    parts: dict[str, Any] = {
        "maps": (
            ["set", "n", "no scales", "learned", "quantile", "half", "chosen", "exponents"],
            lambda: (measure(load(name, args.max_rows)) for name in args.sets)),
        "seeds": (["set", "mean", "deviation", "worst", "seconds"],
                  lambda: (row for s in args.sets for row in by_seed(load(s, args.max_rows)))),
        "luck": (["set", "loss", "default", "scales given", "random forest"],
                 lambda: (by_luck(load(name, args.max_rows)) for name in args.sets)),
        "wide": (["set", "columns", "no scales", "no scales, s", "default", "default, s",
                  "random forest", "random forest, s"],
                 lambda: (row for s in args.sets for row in among_many(load(s, MOST_WIDE)))),
        "noise": (["seed", "no scales", "with noise", "learned", "with noise"],
                  lambda: with_noise(load("adult", None))),
        "size": (["scale of noise", "late loss of 4096 rows", "held-out"],
                 lambda: by_size(load("adult", None))),
        "bank": (["bank, all rows", "log loss"], lambda: of_bank(load("bank", None))),
        "groups": (["set", "n", "groups", "learned", "mean of its group"],
                   lambda: (by_group(load(name, args.max_rows)) for name in args.sets)),
        "warmup": (["set", "n", *(str(times * FIRST) for times in (1, 2, 4, 8))],
                   lambda: (by_warmup(load(name, args.max_rows)) for name in args.sets)),
    }  # fmt: skip

    def load(name: str, most: int | None) -> Dataset:
        print(name, file=sys.stderr)
        return datasets.load(name, args.data, most)

    records = Records(RESULTS / "scales_tried.json", PAGE.identity)
    for name in args.parts:
        head, rows = parts[name]
        records.add(tabled(name, TITLES[name], head, rows()))
    publish("scales_tried", records)


if __name__ == "__main__":
    main()
