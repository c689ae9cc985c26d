"""Forecasts of numbers where the world changes, beside online peers: streams, learners, a table.

What the rest of this package is for classes, in short: every learner forecasts each row before it
learns it, and the table has R2, 1 less squared errors over those of the mean of all labels, of all
rows but the first 32, and processor seconds. Labels are known at once. ``*``: no parameter of this
package was chosen on the stream. Records are stored one by one; what has one is not run again.
The page is `reports/drift_numbers.md`.

    python -m benchmarks.drift.numbers --data <folder> --peers <cache folder>

Shapes: n rows, d columns.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import datasets
from benchmarks.drift.learners import BASELINE, OWN, PEER, Learner
from benchmarks.drift.streams import ROWS, Concept, Labelled, abrupt, gradual
from benchmarks.pages import Figure, Number, Page, publish, runs_of
from benchmarks.peers.runner import PeerFailedError, interpreter, started
from benchmarks.records import MACHINE, RESULTS, Records, table

SKIPPED = 32  # rows that no score counts: a learner without labels has no scale
IDENTITY = ("stream", "learner", "rows", MACHINE)


class NumberStream(NamedTuple):
    """How a stream of numbers is made; fields as of `streams.Stream`."""

    make: Callable[[int, str | Path | None], Labelled]
    about: str
    drifts: bool = True
    untouched: bool = False


def friedman(order: tuple[int, ...]) -> Concept:
    """Friedman's function of five of ten columns, in an order, noise 1 (Friedman, 1991)."""

    def draw_rows(draw: np.random.Generator, n: int) -> Labelled:
        X = draw.random((n, 10))
        a, b, c, d, e = X[:, list(order)].T
        y = 10.0 * np.sin(np.pi * a * b) + 20.0 * (c - 0.5) ** 2 + 10.0 * d + 5.0 * e
        return X, y + draw.normal(size=n)

    return draw_rows


def plane(n: int, seed: int) -> Labelled:
    """Return rows of ten columns whose ten slopes each move by a step of its own with every row."""
    draw = np.random.default_rng(seed)
    X, start, step = draw.random((n, 10)), draw.normal(size=10), 0.001 * draw.normal(size=10)
    slopes = start + step * np.arange(1, n + 1)[:, None]
    return X, ((X - 0.5) * slopes).sum(axis=1) + 0.1 * draw.normal(size=n)


def centres(n: int, seed: int) -> Labelled:
    """Return rows around 30 moving centres in six columns, with labels of their own, noise 1."""
    draw = np.random.default_rng(seed)
    at, ways, labels = draw.random((30, 6)), draw.normal(size=(30, 6)), 5.0 * draw.normal(size=30)
    ways /= np.linalg.norm(ways, axis=1, keepdims=True)
    which = draw.integers(0, 30, n)
    X = at[which] + 2e-4 * np.arange(n)[:, None] * ways[which]
    X = 1.0 - np.abs(1.0 - X % 2.0) + 0.1 * draw.normal(size=(n, 6))
    return X, labels[which] + draw.normal(size=n)


def real(
    name: str, target: str, drop: tuple[str, ...] = (), is_shuffled: bool = False
) -> Callable[[int, str | Path | None], Labelled]:
    """Return what reads rows of a real set, in the order of the file or shuffled, and a target."""

    def read(n: int, folder: str | Path | None) -> Labelled:
        X, y = datasets.of_target(name, folder, target, drop)
        rows = np.random.default_rng(datasets.SEED).permutation(len(y)) if is_shuffled else slice(n)
        return X[rows][:n], y[rows][:n]

    return read


ORDERS = ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9), (3, 4, 0, 1, 2), (0, 1, 2, 3, 4))
FRIEDMAN = tuple(friedman(order) for order in ORDERS)
TAXI = ("ehail_fee", "store_and_fwd_flag")
AMOUNTS = (
    *("fare_amount", "extra", "mta_tax", "tip_amount", "tolls_amount", "improvement_surcharge"),
    *("congestion_surcharge", "cbd_congestion_fee", "VendorID"),
)
STREAMS: dict[str, NumberStream] = {
    "electricity price": NumberStream(
        real("electricity", "nswprice", ("class",)), "price in New South Wales, half hours in order"
    ),
    "california": NumberStream(
        real("california_housing", "medianHouseValue", (), True), "in random order", drifts=False
    ),
    "Friedman, abrupt": NumberStream(
        lambda n, folder: abrupt(FRIEDMAN, n, 5), "five of ten columns, others at each quarter"
    ),
    "taxi total": NumberStream(
        real("nyc_green_taxi", "total_amount", (*TAXI, *AMOUNTS)), "green taxis, in file order"
    ),
    "plane": NumberStream(lambda n, folder: plane(n, 5), "ten slopes that move with every row"),
    "covtype elevation": NumberStream(
        real("covtype", "Elevation", ("Cover_Type",)), "in the order of the source", untouched=True
    ),
    "california, in order": NumberStream(
        real("california_housing", "medianHouseValue"), "in the order of the file", untouched=True
    ),
    "cpu_act": NumberStream(
        real("cpu_act", "usr", (), True), "in random order", drifts=False, untouched=True
    ),
    "trump approval": NumberStream(
        real("trump_approval", "five_thirty_eight"), "days in order, 1,001 rows", untouched=True
    ),
    "taxi tip": NumberStream(
        real("nyc_green_taxi", "tip_amount", (*TAXI, "total_amount")),
        "green taxis, in file order",
        untouched=True,
    ),
    "Friedman, gradual": NumberStream(
        lambda n, folder: gradual(FRIEDMAN, n, 6), "the same, gradual changes", untouched=True
    ),
    "Friedman": NumberStream(
        lambda n, folder: FRIEDMAN[0](np.random.default_rng(7), n),
        "five of ten columns",
        drifts=False,
        untouched=True,
    ),
    "centres": NumberStream(
        lambda n, folder: centres(n, 8), "30 centres that move, .0002 a row", untouched=True
    ),
}
OURS, SETS = "AMF follow 10", "AMF boosted 10"
BOOSTED = {"drift": "follow", "experts": ("mondrian", "boosted")}
LEARNERS: dict[str, Learner] = {
    "AMF plain 10": Learner(OWN, "dmondrian", 10, {"feature_scales": None}),
    "AMF 10": Learner(OWN, "dmondrian", 10),
    "AMF follow 10": Learner(OWN, "dmondrian", 10, {"drift": "follow"}, in_calls=True),
    "AMF follow 4": Learner(OWN, "dmondrian", 4, {"drift": "follow"}, in_calls=True),
    "AMF boosted 10": Learner(OWN, "dmondrian", 10, BOOSTED, in_calls=True),
    "river ARF 10": Learner(PEER, "river_arf"),
    "river HAT": Learner(PEER, "river_hat", 1),
    "mean of labels": Learner(BASELINE),
    "last label": Learner(BASELINE),
}


def mean_of_labels(y: np.ndarray) -> np.ndarray:
    """Return the mean of the labels before each row, float64 [n]; 0 of none."""
    return np.concatenate([[0.0], np.cumsum(y)[:-1] / np.arange(1, len(y))])


def last_label(y: np.ndarray) -> np.ndarray:
    """Return the label before each row, float64 [n]; 0 of none."""
    return np.concatenate([[0.0], y[:-1]])


BASELINES = {"mean of labels": mean_of_labels, "last label": last_label}


def load(name: str, folder: str | Path | None, n: int) -> Labelled:
    """Return rows, float32 [n, d] in [0, 1], and numbers, float64 [n]."""
    X, y = STREAMS[name].make(n, folder)
    low, high = X.min(axis=0), X.max(axis=0)
    scaled = (X - low) / np.where(high > low, high - low, 1.0)
    return np.ascontiguousarray(scaled, np.float32), np.ascontiguousarray(y, np.float64)


def r2(y: np.ndarray, forecasts: np.ndarray) -> float:
    """Return R2 of all rows but the first."""
    y, forecasts = y[SKIPPED:], forecasts[SKIPPED:]
    return float(1.0 - ((y - forecasts) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def measure(name: str, X: np.ndarray, y: np.ndarray, peers: str | None) -> dict[str, Any]:
    """Return R2 and processor seconds of a learner."""
    learner = LEARNERS[name]
    if learner.kind == BASELINE:
        clock = time.process_time()
        forecasts = BASELINES[name](y)
        return {"r2": r2(y, forecasts), "cpu_seconds": time.process_time() - clock}
    options: dict[str, Any] = {"delay": 1} | ({"in_calls": True} if learner.in_calls else {})
    if learner.kind == OWN:
        options["parameters"] = json.dumps(learner.parameters)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        np.savez(path, X_train=X, y_train=y, X_test=X[:1], y_test=y[:1], n_classes=0)
        with started(learner.worker, path, peers=peers, trees=learner.members, **options) as worker:
            times = worker.measure()
            forecasts = worker.predictions()["before"][:, 0]
    seconds = times.get("calls_cpu_seconds") if learner.in_calls else times["cpu_seconds"]
    return {"r2": r2(y, forecasts), "cpu_seconds": seconds}


def body(records: Records) -> str:
    """Return the table of all records: R2 / processor seconds, the best R2 of a stream in bold."""
    known = {(r["stream"], r["learner"]): r for r in records}
    names = [name for name in LEARNERS if any(learner == name for _, learner in known)]
    rows = []
    for stream, its in STREAMS.items():
        found = {name: known[stream, name] for name in names if (stream, name) in known}
        if not found:
            continue
        best = max(found, key=lambda name: found[name]["r2"])
        texts: list[str | None] = []
        for name in names:
            one = found.get(name)
            text = one and f"{one['r2']:.4f} / {one['cpu_seconds']:.1f}"
            texts.append(f"**{text}**" if name == best else text)
        marked = stream + " *" * its.untouched + " (stationary)" * (not its.drifts)
        rows.append([marked, f"{next(iter(found.values()))['rows']:,}", *texts])
    note = (
        "R2 of forecasts made just before a row was learned, labels known at once / processor"
        " seconds; the best R2 of a stream is bold. `*`: no parameter of this package was chosen on"
        " the stream. Other processes may have had the machine as well."
    )
    about = table(["stream", "what it is"], [[name, its.about] for name, its in STREAMS.items()])
    return "\n\n".join([note, table(["stream", "rows", *names], rows), "## Streams", about])


def streams_won(name: str, others: Collection[str], drifts: bool | None = None) -> Figure:
    """Return on how many streams a learner has a higher R2 than all of some others."""

    def find(records: Records) -> Number:
        known = {(r["stream"], r["learner"]): r for r in records}
        streams = [
            stream
            for stream, its in STREAMS.items()
            if drifts in (None, its.drifts)
            and all((stream, one) in known for one in (name, *others))
        ]
        if not streams:
            raise LookupError(f"no stream with records of {name} and the others")
        used = [known[stream, one] for stream in streams for one in (name, *others)]
        won = sum(
            known[s, name]["r2"] > max(known[s, one]["r2"] for one in others) for s in streams
        )
        return Number(f"{won} of {len(streams)}", "", runs_of(used))

    return find


PLAIN = "AMF 10"
PEERS = ("river ARF 10", "river HAT", *BASELINES)
PAGE = Page(
    title="Drift of numbers",
    question="How good are forecasts of numbers where the world changes, beside online peers?",
    identity=IDENTITY,
    body=body,
    numbers={
        "won": streams_won(OURS, (PLAIN, *PEERS), drifts=True),
        "won_sets": streams_won(SETS, (PLAIN, *PEERS), drifts=True),
        "sets": streams_won(SETS, (OURS,)),
    },
    sentences=(
        "Ten members that follow the stream have the highest R2 on {won} drifting streams, with"
        " boosted sets beside on {won_sets}: those who do not follow and river's learners are the"
        " others.",
        "Boosted sets make R2 higher on {sets} streams.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=os.environ.get(datasets.ENVIRONMENT_VARIABLE))
    parser.add_argument("--peers", help="folder of the peers' environments")
    parser.add_argument("--streams", nargs="+", default=list(STREAMS), choices=STREAMS)
    parser.add_argument("--learners", nargs="+", default=list(LEARNERS), choices=LEARNERS)
    parser.add_argument("--max-rows", type=int, default=ROWS)
    parser.add_argument("--fresh", action="store_true", help="measure again what is asked for")
    parser.add_argument("--out", type=Path, default=RESULTS / "drift_numbers.json")
    args = parser.parse_args()
    for stream in args.streams:
        try:
            X, y = load(stream, args.data, args.max_rows)
        except FileNotFoundError as error:
            print(f"{stream}: left out, {error}", file=sys.stderr)
            continue
        for name in args.learners:
            about = {"stream": stream, "learner": name, "rows": len(y)}
            is_lacking = interpreter(LEARNERS[name].worker, args.peers) is None
            if not args.fresh and about in Records(args.out, IDENTITY):
                continue
            if is_lacking:
                print(f"{name}: left out, no environment", file=sys.stderr)
                continue
            try:
                found = measure(name, X, y, args.peers)
            except PeerFailedError as error:
                print(f"{stream}, {name}: {error}", file=sys.stderr)
                continue
            Records(args.out, IDENTITY).add({**about, "d": X.shape[1], **found})
            print(f"{stream}, {name}: {json.dumps(found)}", file=sys.stderr, flush=True)
    publish("drift.numbers", Records(args.out, IDENTITY))


if __name__ == "__main__":
    main()
