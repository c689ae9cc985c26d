"""M21, section 3.3: online-to-batch conversion, and rates on functions of known smoothness.

* `batch`: AMF's forecasts averaged over the states of its stream, and those of a state that is
  drawn at random, beside its last state, on held-out rows. M21's guarantee is of the first two, its
  experiments are by the last. By Lemma 2 the expected loss of a drawn state is the mean loss of
  rows that were forecast before they were learned, which is given too: 100 states, evenly spaced,
  stand for all of them;
* `rates`: squared error to functions of smoothness beta (Hölder) against the number of rows, and
  the slope of its logarithm, mean over seeds with a 95 % interval of Student's t. Theorem 2 gives
  2 beta / (d + 2 beta) for the average over the stream of AMF as its theory has it, up to a power
  of log n, whatever beta is. Mondrian trees at the lifetime n^(1 / (d + 2)), of Lipschitz
  functions, have 2 beta / (d + 2) by the bounds of M17, and need beta for the better rate, at
  n^(1 / (d + 2 beta)).

The functions: sums over k of 2^(-beta k) tri(2^k x), tri the distance to the nearest whole number,
which for beta < 1 are no smoother anywhere, and tri(x) alone for beta = 1; the mean over columns,
of sizes up to 3/4. x is uniform, and uniform noise is added, so that labels are in [-1, 1].

    python -m benchmarks.rates --data <folder> [part ...]

The picture needs matplotlib (the `plots` extra).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks import datasets
from benchmarks.pages import Page, publish
from benchmarks.records import REPORTS, RESULTS, Records, tabled
from dmondrian import AMFClassifier, AMFRegressor, MondrianForestRegressor

SETS = ["adult", "bank", "bananas", "phishing", "california_housing", "cpu_act", "friedman1"]
TREES = 10
STATES = 100
PAPERS: dict[str, Any] = {"feature_scales": None, "feature_units": None, "charge_opening": True}

SMOOTHNESS = (1.0, 0.5, 0.25)
COLUMNS = (1, 2)
RATE_TREES = 3
FIRST = 1 / 4  # rows of the first state, of those of the first error
BENDS = 16  # terms of a function: the last is of the size of 2^(-16 beta)
POINTS = 400  # where errors are measured
PER_DOUBLING = 8  # states that are averaged
MODELS = ("AMF, average", "AMF, last", "n^(1/(d+2))", "n^(1/(d+2 beta))")

PAGE = Page(
    title="M21: online to batch, and the rates of errors",
    question="Does the average over the states of a stream do better than its last state, and do"
    " errors fall with the number of rows as M21's Theorem 2 has it?",
    identity=("part",),
)


def tri(x: np.ndarray) -> np.ndarray:
    return np.abs(x - np.round(x))


def function(beta: float, X: np.ndarray) -> np.ndarray:
    """Return the function of smoothness ``beta`` at rows of the cube, in [-3/4, 3/4]."""
    side = np.linspace(0.0, 1.0, 2**BENDS + 1)
    largest = float(bent(beta, side).max())
    return 1.5 * bent(beta, X).mean(axis=1) / largest - 0.75


def bent(beta: float, x: np.ndarray) -> np.ndarray:
    n_terms = 1 if beta == 1.0 else BENDS
    return np.sum([2.0 ** (-beta * k) * tri(2.0**k * x) for k in range(n_terms)], axis=0)


def theory(beta: float, d: int) -> dict[str, float]:
    """Return the exponents of n that the papers' bounds have."""
    adaptive = 2.0 * beta / (d + 2.0 * beta)
    return dict(zip(MODELS, (adaptive, adaptive, 2.0 * beta / (d + 2.0), adaptive), strict=True))


def errors(beta: float, d: int, steps: Sequence[int], seed: int) -> dict[str, list[float]]:
    """Return the squared error of each model to the function after each number of rows."""
    draw = np.random.default_rng([seed, d, int(100 * beta)])
    asked = draw.random((POINTS, d), dtype=np.float32)
    truth = function(beta, asked.astype(np.float64))
    amf = AMFRegressor(
        RATE_TREES, learning_rate="theory", target_range=(-1.0, 1.0), empty_cell="prior",
        predict_extension="expected", domain="cube", random_state=seed, **PAPERS,
    )  # fmt: skip
    longest = float(steps[-1] ** (1.0 / (d + 2.0 * beta)))
    mondrian = MondrianForestRegressor(
        RATE_TREES, lifetime=1.01 * longest, domain="cube", random_state=seed
    )
    first = max(FIRST * steps[0], 1.0)
    n_states = round(PER_DOUBLING * np.log2(steps[-1] / first)) + 1
    states = np.unique([*np.geomspace(first, steps[-1], n_states).round().astype(int), *steps])
    found: dict[str, list[float]] = {name: [] for name in MODELS}
    done, total = 0, np.zeros(POINTS)
    before: np.ndarray | None = None
    for n in states:
        X = draw.random((n - done, d), dtype=np.float32)
        y = function(beta, X.astype(np.float64)) + draw.uniform(-0.25, 0.25, n - done)
        amf.partial_fit(X, y)
        mondrian.partial_fit(X, y)
        now = amf.predict(asked)
        before = now if before is None else before
        total += 0.5 * (before + now) * (n - done)  # rows between two states find their mean
        done, before = int(n), now
        if n in steps:
            lifetimes = [n ** (1.0 / (d + 2.0)), n ** (1.0 / (d + 2.0 * beta))]
            answers = [
                total / n,
                now,
                *(mondrian.predict(asked, lifetime) for lifetime in lifetimes),
            ]
            for name, each in zip(MODELS, answers, strict=True):
                found[name].append(float(((each - truth) ** 2).mean()))
    return found


def slope_and_interval(steps: Sequence[int], found: np.ndarray) -> tuple[float, float]:
    """Return the mean slope of log errors [seeds, steps], and half its 95 % interval."""
    slopes = np.polyfit(np.log(steps), np.log(found).T, 1)[0]
    half = float(student.ppf(0.975, len(slopes) - 1) * slopes.std(ddof=1) / len(slopes) ** 0.5)
    return float(slopes.mean()), half


def rates(args: argparse.Namespace) -> dict[str, Any]:
    """Measure slopes; draw the errors that they are fitted to."""
    import matplotlib.pyplot as plt

    steps = np.geomspace(args.rows / 32, args.rows, 6).round().astype(int)
    figure, axes = plt.subplots(
        len(COLUMNS), len(SMOOTHNESS), figsize=(11, 6), sharex=True, layout="constrained"
    )
    rows = []
    for line, d in zip(axes, COLUMNS, strict=True):
        for axis, beta in zip(line, SMOOTHNESS, strict=True):
            found = [errors(beta, d, steps.tolist(), seed) for seed in range(args.seeds)]
            for name, exponent in theory(beta, d).items():
                mine = np.array([each[name] for each in found])
                slope, half = slope_and_interval(steps, mine)
                mean = mean_of_logs(mine)
                axis.plot(steps, mean, marker=".", label=name)
                cells = [f"{mean[0]:.5f}", f"{mean[-1]:.5f}", [-slope - half, -slope, half - slope]]
                rows.append([d, f"{beta:g}", name, *cells, exponent])
                print(rows[-1], flush=True)
            line_of_theory = mean[0] * (steps / steps[0]) ** -theory(beta, d)[MODELS[0]]
            axis.plot(steps, line_of_theory, color="grey", linestyle=":", label="Theorem 2")
            axis.set(xscale="log", yscale="log", title=f"d = {d}, beta = {beta:g}")
            axis.xaxis.set_minor_formatter("")  # they would be written over each other
    figure.supxlabel("rows learned")
    figure.supylabel("squared error to the function")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    REPORTS.mkdir(parents=True, exist_ok=True)
    figure.savefig(REPORTS / "rates.png", dpi=90)
    head = ["d", "beta", "model", f"error at n = {steps[0]}", f"at n = {steps[-1]}"]
    about = (
        f"Six numbers of rows from {steps[0]} to {steps[-1]}, {args.seeds} seeds, {RATE_TREES} "
        "trees; errors are geometric means over seeds."
    )
    title = "Errors against rows, on functions of known smoothness"
    head += ["error falls as n to the minus", "bound of theory"]
    return tabled("rates", title, head, rows, about, picture="rates.png")


def mean_of_logs(found: np.ndarray) -> np.ndarray:
    """Return the geometric mean over seeds."""
    return np.exp(np.log(found).mean(axis=0))


def losses(forecasts: np.ndarray, y: np.ndarray, is_classification: bool) -> np.ndarray:
    """Return log loss or squared error of each row."""
    if is_classification:
        return -np.log(forecasts[np.arange(len(y)), y])
    return (forecasts - y) ** 2


def converted(dataset: datasets.Dataset, make: Callable[[], Any], states: int) -> dict[str, float]:
    """Return mean held-out losses of what is made of the states, and that of the stream itself."""
    X, y = dataset.X_train, dataset.y_train
    is_classification = dataset.is_classification
    labels = {"classes": np.arange(dataset.n_classes)} if is_classification else {}
    model, total, by_state, before = make(), 0.0, [], 0.0
    steps = np.unique(np.linspace(0, len(X), states + 1).round().astype(int))
    for start, stop in pairwise(steps):
        if start == 0:
            model.partial_fit(X[:stop], y[:stop], **labels)
        else:
            before += float(
                losses(ask(model, X[start:stop]), y[start:stop], is_classification).sum()
            )
            model.partial_fit(X[start:stop], y[start:stop], **labels)
        answer = ask(model, dataset.X_test)
        total = total + answer
        by_state.append(losses(answer, dataset.y_test, is_classification).mean())
    made = losses(total / len(by_state), dataset.y_test, is_classification).mean()
    return {
        "average": float(made),
        "drawn": float(np.mean(by_state)),
        "last": float(by_state[-1]),
        "before learning": before / int(len(X) - steps[1]),
    }


def ask(model: Any, X: np.ndarray) -> np.ndarray:
    return model.predict_proba(X) if hasattr(model, "predict_proba") else model.predict(X)


def batch(args: argparse.Namespace) -> dict[str, Any]:
    """Compare what the conversion makes of a stream with its last state."""
    rows = []
    for name in args.sets:
        dataset = datasets.load(name, args.data, args.max_rows)
        makers: dict[str, Callable[[], Any]]
        if dataset.is_classification:
            makers = {
                "paper's": lambda: AMFClassifier(
                    TREES, alpha=0.5, calibrate=False, **PAPERS, random_state=0
                ),
                "defaults": lambda: AMFClassifier(TREES, random_state=0),
            }
        else:
            makers = {
                "paper's": lambda: AMFRegressor(
                    TREES, learning_rate="theory", **PAPERS, random_state=0
                ),
                "defaults": lambda: AMFRegressor(TREES, random_state=0),
            }
        for settings, make in makers.items():
            found = converted(dataset, make, args.states)
            unit = 1.0 if dataset.is_classification else float(dataset.y_test.var())
            reported = [value / unit for value in found.values()]
            rows.append([name, len(dataset.X_train), settings, *reported])
            print(rows[-1], flush=True)
    head = ["set", "n", "settings", "average of states", "a state drawn", "last state"]
    about = (
        f"{TREES} trees, one seed, {args.states} states. Held-out log loss of classes; squared "
        "error of numbers by the variance of the held-out labels. Before learning: rows of the "
        "stream, without those before the first state."
    )
    title = "Online to batch: what is made of a stream's states"
    return tabled("batch", title, [*head, "before learning"], rows, about)


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {"batch": batch, "rates": rates}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    datasets.add_arguments(parser, default=SETS)
    parser.set_defaults(max_rows=10_000)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART")
    parser.add_argument("--states", type=int, default=STATES, help="of each stream")
    parser.add_argument("--rows", type=int, default=65_536, help="of the longest stream of rates")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    import matplotlib  # here, so that a run without it ends before it has measured anything

    matplotlib.use("Agg")
    records = Records(RESULTS / "rates.json", PAGE.identity)
    for part in args.parts or PARTS:
        records.add(PARTS[part](args))
    publish("rates", records)


if __name__ == "__main__":
    main()
