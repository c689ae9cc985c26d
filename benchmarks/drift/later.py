"""Forecasts of a file that comes later: what forests that follow the stream are worth there.

A forest learns the first rows of a stream, and forecasts the rows of the next file as it is, before
any of their labels is known: what `dmondrian score` does. How late labels come while it learns,
its delay, is what it learns to mix its trees for. The table has the mean loss over files that
begin at three places of a stream: log loss, or squared errors in units of the variance of all
labels. ``*``: no parameter of this package was chosen on the stream. Records are stored one by one;
what has one is not run again. The page is `reports/drift_later.md`.

    python -m benchmarks.drift.later --data <folder>

Shapes: n rows, d columns, K classes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.drift import numbers, streams
from benchmarks.drift.blocks import losses as log_losses
from benchmarks.pages import Figure, Number, Page, publish, runs_of
from benchmarks.records import MACHINE, RESULTS, Records, table
from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.drift.waiting_rows import LONGEST_ADVISED, delay_for_later

ROWS, MOST_LATER = 20_000, 8192  # of a stream, and of a file
PLACES, SHARE = (0.4, 0.6, 0.8), 0.2  # where files begin, and how long they are, of a stream
TREES = 4
ADVISED = "as advised"
DELAYS: tuple[int | str, ...] = (1, 16, 64, ADVISED, 1024, 4096)
LEARNERS: dict[str, dict[str, Any]] = {
    "AMF": {},
    "AMF plain": {"feature_scales": None},
    **{f"AMF follow, delay {delay}": {"drift": "follow", "delay": delay} for delay in DELAYS},
}
IDENTITY = ("stream", "learner", "rows", "trees", MACHINE)
NAMES = (
    *("electricity", "covtype", "ijcnn1", "Agrawal, abrupt", "hyperplane", "RBF, slow", "waveform"),
    *("electricity price", "Friedman, abrupt", "taxi total"),
    *("covtype elevation", "trump approval", "taxi tip"),
)


def untouched(name: str) -> bool:
    """Return whether no parameter of this package was chosen on a stream."""
    if name in streams.STREAMS:
        return streams.STREAMS[name].untouched
    return numbers.STREAMS[name].untouched


def load(name: str, folder: str | Path | None, n: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return rows, float32 [n, d] in [0, 1], labels [n], and the number of classes or 0."""
    if name in streams.STREAMS:
        rows = streams.load(name, folder, n)
        return rows.X, rows.y, rows.n_classes
    return *numbers.load(name, folder, n), 0


def loss_of_file(
    X: np.ndarray, y: np.ndarray, n_classes: int, first: int, stop: int, parameters: dict[str, Any]
) -> float:
    """Return the mean loss of rows [first, stop), by a forest that learned those before."""
    X_before, y_before, later = X[:first], y[:first], y[first:stop]
    if not n_classes:
        forest = AMFRegressor(TREES, random_state=0, **parameters).fit(X_before, y_before)
        return float(((forest.predict(X[first:stop]) - later) ** 2).mean() / y.var())
    classifier = AMFClassifier(TREES, random_state=0, **parameters).fit(X_before, y_before)
    forecasts = np.zeros((stop - first, n_classes))  # 0 of classes that no row had yet
    forecasts[:, classifier.classes_] = classifier.predict_proba(X[first:stop])
    return float(log_losses(later, forecasts).mean())


def measure(name: str, X: np.ndarray, y: np.ndarray, n_classes: int) -> dict[str, Any]:
    """Return the loss of each file by a learner, and of all."""
    n, losses = len(y), []
    for place in PLACES:
        first = int(place * n)
        parameters = dict(LEARNERS[name])
        if parameters.get("delay") == ADVISED:
            parameters["delay"] = delay_for_later(first)
        stop = min(n, first + min(MOST_LATER, int(SHARE * n)))
        losses.append(loss_of_file(X, y, n_classes, first, stop, parameters))
    return {"loss": float(np.mean(losses)), "losses": losses}


def body(records: Records) -> str:
    """Return the table of all records, the lowest loss of a stream in bold."""
    known = {(r["stream"], r["learner"]): r for r in records}
    names = [name for name in LEARNERS if any(learner == name for _, learner in known)]
    rows = []
    for stream in NAMES:
        found = {name: known[stream, name] for name in names if (stream, name) in known}
        if not found:
            continue
        best = min(found, key=lambda name: found[name]["loss"])
        texts: list[str | None] = []
        for name in names:
            text = f"{found[name]['loss']:.3f}" if name in found else None
            texts.append(f"**{text}**" if name == best else text)
        marked = stream + " *" * untouched(stream)
        rows.append([marked, f"{next(iter(found.values()))['rows']:,}", *texts])
    note = (
        f"Loss of later files by forests of {TREES} trees, the mean over files of a fifth of the"
        f" stream, at most {MOST_LATER:,} rows, that begin at three places: log loss where a file"
        " has classes, else squared errors in units of the variance of all labels; the lowest of a"
        " stream is bold. `*`: no parameter of this package was chosen on the stream. The delay"
        " that warnings and `dmondrian train` advise is at most a quarter of the rows learned, and"
        f" at most {LONGEST_ADVISED}, which was chosen on these streams."
    )
    return "\n\n".join([note, table(["stream", "rows", *names], rows)])


def ratios_of(
    records: Records, name: str, others: Collection[str]
) -> tuple[list[float], list[dict[str, Any]]]:
    """Return a learner's loss over the least one of some others, by stream; and the records."""
    known = {(r["stream"], r["learner"]): r for r in records}
    found = [s for s in NAMES if all((s, one) in known for one in (name, *others))]
    if not found:
        raise LookupError(f"no stream with records of {name} and the others")
    used = [known[stream, one] for stream in found for one in (name, *others)]
    least = {s: min(known[s, one]["loss"] for one in others) for s in found}
    return [known[s, name]["loss"] / least[s] for s in found], used


def files_won(name: str, others: Collection[str]) -> Figure:
    """Return on how many streams a learner has a lower loss than all of some others."""

    def find(records: Records) -> Number:
        ratios, used = ratios_of(records, name, others)
        won = sum(ratio < 1.0 for ratio in ratios)
        return Number(f"{won} of {len(ratios)}", "", runs_of(used))

    return find


def worst(name: str, others: Collection[str]) -> Figure:
    """Return the greatest ratio of a learner's loss to the least one of some others."""

    def find(records: Records) -> Number:
        ratios, used = ratios_of(records, name, others)
        return Number(f"{max(ratios):.2f}", "", runs_of(used))

    return find


AT_ONCE, _, SHORT, LATER, LONG, _ = (f"AMF follow, delay {delay}" for delay in DELAYS)
PAGE = Page(
    title="Files that come later",
    question="What are forests that follow the stream worth for a file that comes later?",
    identity=IDENTITY,
    body=body,
    numbers={
        "won": files_won(LATER, ("AMF", "AMF plain")),
        "at_once": files_won(AT_ONCE, ("AMF", "AMF plain")),
        "over_at_once": files_won(LATER, (AT_ONCE,)),
        "over_long": files_won(LATER, (LONG,)),
        "short_over_at_once": files_won(SHORT, (AT_ONCE,)),
        "short_over_advised": files_won(SHORT, (LATER,)),
        "worst": worst(LATER, ("AMF", "AMF plain")),
        "worst_at_once": worst(AT_ONCE, ("AMF", "AMF plain")),
    },
    sentences=(
        "Of later files a forest that follows the stream with the delay that is advised has a lower"
        " loss than both that do not follow on {won} streams, and at most {worst} times theirs;"
        " with a delay of one row on {at_once}, and at most {worst_at_once} times.",
        "That delay has a lower loss than one row on {over_at_once}, and than a longer one on"
        " {over_long}.",
        "A delay of sixty-four rows has a lower loss than one row on {short_over_at_once}, and than"
        " the advised one on {short_over_advised}.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=os.environ.get(datasets.ENVIRONMENT_VARIABLE))
    parser.add_argument("--streams", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--learners", nargs="+", default=list(LEARNERS), choices=LEARNERS)
    parser.add_argument("--max-rows", type=int, default=ROWS)
    parser.add_argument("--fresh", action="store_true", help="measure again what is asked for")
    parser.add_argument("--out", type=Path, default=RESULTS / "drift_later.json")
    args = parser.parse_args()
    for stream in args.streams:
        try:
            X, y, n_classes = load(stream, args.data, args.max_rows)
        except FileNotFoundError as error:
            print(f"{stream}: left out, {error}", file=sys.stderr)
            continue
        for name in args.learners:
            about = {"stream": stream, "learner": name, "rows": len(y), "trees": TREES}
            delay = LEARNERS[name].get("delay", 1)
            if isinstance(delay, int) and delay > PLACES[0] * len(y):
                continue  # no block would be full
            if not args.fresh and about in Records(args.out, IDENTITY):
                continue
            found = measure(name, X, y, n_classes)
            Records(args.out, IDENTITY).add({**about, "d": X.shape[1], **found})
            print(f"{stream}, {name}: {json.dumps(found)}", file=sys.stderr, flush=True)
    publish("drift.later", Records(args.out, IDENTITY))


if __name__ == "__main__":
    main()
