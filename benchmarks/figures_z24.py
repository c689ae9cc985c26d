"""Z24's settings: each of its losses with the lifetime of its Theorem 2.

Z24 has no figures; its Section 6 names losses. The bound of Theorem 2 on the regret is of the order
(1 + lifetime)^d / n^(1/2) + lifetime^(-p) for functions of smoothness p <= 1: the terms fall alike
at the lifetime n^(1 / (2 (p + d))), and with them the bound as n^(-p / (2 (p + d))). Here p = d = 1
and the lifetime is n^(1/4), so the bound falls as n^(-1/4): does the excess risk fall so fast?

The function is |2x - 1|, x uniform; five seeds, 50 trees on the cube. Risks are in nats.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.pages import Number, Page, column_of, publish, range_of
from benchmarks.records import REPORTS, Records, tabled
from dmondrian import (
    GeneralizedMondrianForestClassifier,
    GeneralizedMondrianForestRegressor,
    PowerLifetime,
)
from dmondrian.ensemble.settings.lifetime import lifetime_at

TREES, SEEDS = 50, range(5)
SLOPE = "slope from n = 1000"
STEPS = [100, 316, 1000, 3162, 10_000, 31_623]
POINTS = np.linspace(0.005, 0.995, 496, dtype=np.float32)[:, None]
THEORY = PowerLifetime(1.0, 0.25)

Draw = np.random.Generator


class Setting(NamedTuple):
    """A loss, how labels are drawn, and the excess risk of what a forest predicts."""

    loss: str
    draw: Callable[[Draw, np.ndarray], np.ndarray]  # labels at x
    excess: Callable[[np.ndarray, np.ndarray], np.ndarray]  # of z, at x


def slope(x: np.ndarray) -> np.ndarray:
    return np.abs(2.0 * x - 1.0)


def share(x: np.ndarray) -> np.ndarray:
    return 0.2 + 0.6 * slope(x)


def pinball_excess(z: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Excess pinball risk at 1/2 of uniform noise of width 1 about the function."""
    gap = np.abs(z - slope(x))
    return np.where(gap <= 0.5, 0.5 * gap**2, 0.5 * (gap - 0.25))


def logistic_excess(z: np.ndarray, x: np.ndarray) -> np.ndarray:
    p = share(x)
    risk = p * np.logaddexp(0.0, -z) + (1.0 - p) * np.logaddexp(0.0, z)
    return risk + p * np.log(p) + (1.0 - p) * np.log1p(-p)


def poisson_excess(z: np.ndarray, x: np.ndarray) -> np.ndarray:
    mean = 1.0 + slope(x)
    return np.exp(z) - mean * z - mean + mean * np.log(mean)


SETTINGS = {
    "least squares": Setting(
        "squared",
        lambda draw, x: slope(x) + 0.5 * draw.normal(size=len(x)),
        lambda z, x: (z - slope(x)) ** 2,
    ),
    "Poisson regression": Setting(
        "poisson", lambda draw, x: draw.poisson(1.0 + slope(x)) * 1.0, poisson_excess
    ),
    "Huber": Setting(
        "huber",
        lambda draw, x: slope(x) + draw.uniform(-0.5, 0.5, len(x)),
        lambda z, x: 0.5 * (z - slope(x)) ** 2,  # both within delta: the middle is quadratic
    ),
    "median": Setting(
        "quantile", lambda draw, x: slope(x) + draw.uniform(-0.5, 0.5, len(x)), pinball_excess
    ),
    "logistic classification": Setting(
        "logistic", lambda draw, x: draw.random(len(x)) < share(x), logistic_excess
    ),
}


def risks(setting: Setting, seed: int) -> list[float]:
    """Return excess risks after each number of rows."""
    draw = np.random.default_rng(seed)
    given = {"loss": setting.loss, "lifetime": THEORY, "domain": "cube", "random_state": seed}
    given["max_lifetime"] = 1.01 * lifetime_at(THEORY, STEPS[-1])  # trees need go no further
    is_class = setting.loss == "logistic"
    kind = GeneralizedMondrianForestClassifier if is_class else GeneralizedMondrianForestRegressor
    forest, done, found = kind(TREES, **given), 0, []
    for n in STEPS:
        x = draw.random((n - done, 1), dtype=np.float32)
        y, done = setting.draw(draw, x[:, 0]), n
        if is_class:
            forest.partial_fit(x, y, classes=[False, True])
            z = forest.decision_function(POINTS)
        else:
            forest.partial_fit(x, y)
            z = forest.predict_link(POINTS)
        found.append(float(setting.excess(z, POINTS[:, 0].astype(np.float64)).mean()))
    return found


def report(args: argparse.Namespace, folder: Path) -> None:
    """Draw excess risks against rows, and write their page."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.5, 4.0), layout="constrained")
    rows = []
    for name, setting in SETTINGS.items():
        found = np.array([risks(setting, seed) for seed in SEEDS])
        mean = found.mean(axis=0)
        fitted = float(np.polyfit(np.log(STEPS[2:]), np.log(mean[2:]), 1)[0])
        axis.plot(STEPS, mean, marker=".", label=f"{name}: slope {fitted:.2f}")
        rows.append([name, *mean[::2].tolist(), fitted])
    bound = 0.1 * (np.array(STEPS) / STEPS[0]) ** -0.25
    axis.plot(STEPS, bound, color="grey", linestyle=":", label="n^(-1/4)")
    axis.set(xscale="log", yscale="log", xlabel="rows learned", ylabel="excess risk")
    axis.legend(fontsize=8)
    figure.savefig(REPORTS / "z24_settings.png", dpi=90)
    records = Records(folder / "figures_z24.json", PAGE.identity)
    head = ["loss", *(f"n = {n}" for n in STEPS[::2]), SLOPE]
    title = "Z24, Section 6: excess risk at the lifetime n^(1/4)"
    records.add(tabled("risks", title, head, rows, digits=5, picture="z24_settings.png"))
    publish("figures_z24", records)


def slopes(records: Records) -> Number:
    """Return the range of the slopes of the losses."""
    found = records.where(part="risks")
    return range_of(column_of(found[0], SLOPE), ".2f", found)


PAGE = Page(
    title="Z24's settings",
    question="Does the excess risk fall as fast as the bound of Theorem 2 of Z24, for each of its"
    " losses?",
    identity=("part",),
    numbers={"slopes": slopes},
    sentences=(
        "The bound, which falls as the fourth root of the rows, holds for all losses and is far"
        " from sharp here: the slopes on log scales are {slopes}.",
    ),
)
