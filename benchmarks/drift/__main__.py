"""Run the benchmark of drift: learners on streams; what is stored is not run again.

    python -m benchmarks.drift --data <folder> --peers <cache folder>
    python -m benchmarks.drift --data <folder> --learners 'AMF follow 10' --delays 1

Records are stored one by one, so that a run that was stopped takes up where it stood; ``--fresh``
measures again what is asked for. Learners that cannot be run here are left out, with the reason.
The delays come one after the other, so that the first is complete before the next begins; then the
blocks.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.drift.blocks import scores
from benchmarks.drift.learners import (
    BASELINE,
    BASELINES,
    LEARNERS,
    OWN,
    Learner,
    is_asked,
    parameters_of,
    why_not,
)
from benchmarks.drift.page import PAGE
from benchmarks.drift.picture import draw
from benchmarks.drift.streams import ARRIVALS, STREAMS, Arrival, Rows, load
from benchmarks.pages import publish
from benchmarks.peers.runner import PeerFailedError, started
from benchmarks.records import REPORTS, RESULTS, Records

# Feature scales are chosen when 4,096 rows have been learned: what compiles then is not timed.
WARM_ROWS = 4200
SHOWN = ("log_loss", "accuracy", "cpu_seconds", "calls_cpu_seconds")
COSTS = ("cpu_seconds", "calls_cpu_seconds", "peak_mib")


def forecasts_of(
    name: str, learner: Learner, rows: Rows, arrival: Arrival, args: argparse.Namespace
) -> tuple[np.ndarray, dict[str, float]]:
    """Return forecasts [n, K] of all rows, and processor seconds and MiB."""
    if learner.kind == BASELINE:
        clock = time.process_time()
        found = BASELINES[name](rows.y, rows.n_classes, arrival.known(len(rows.y)))
        return found, {"cpu_seconds": time.process_time() - clock}
    options: dict[str, Any] = arrival._asdict() if arrival.in_blocks else {"delay": arrival.delay}
    if learner.kind == OWN:
        options |= {"parameters": json.dumps(parameters_of(learner, *arrival))}
        options |= {"warm_rows": WARM_ROWS}
    if learner.in_calls:
        options |= {"in_calls": True}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        X, y = rows.X, rows.y
        np.savez(path, X_train=X, y_train=y, X_test=X[:1], y_test=y[:1], n_classes=rows.n_classes)
        with started(
            learner.worker, path, peers=args.peers, trees=learner.members, **options
        ) as worker:
            times = worker.measure()
            found = worker.predictions()["before"]
    return found, {key: times[key] for key in COSTS if key in times}


def measure(
    stream: str, name: str, rows: Rows, arrival: Arrival, args: argparse.Namespace
) -> dict[str, Any]:
    """Return the record of a learner on a stream."""
    learner = LEARNERS[name]
    forecasts, cost = forecasts_of(name, learner, rows, arrival, args)
    n, d = rows.X.shape
    about = {"stream": stream, "learner": name, **arrival._asdict(), "rows": n, "d": d}
    return {**about, "K": rows.n_classes, **scores(rows.y, forecasts), **cost}


def run(args: argparse.Namespace) -> list[str]:
    """Measure what has no record yet, or all of it; return what failed."""
    names = []
    for name in args.learners:
        if reason := why_not(LEARNERS[name], args.peers):
            print(f"{name}: left out, {reason}", file=sys.stderr)
        else:
            names.append(name)
    failed, loaded = [], functools.cache(load)
    arrivals = [Arrival(delay) for delay in args.delays]
    arrivals += [Arrival(delay, in_blocks=True) for delay in args.blocks]
    for arrival, stream in itertools.product(arrivals, args.streams):
        n = min(STREAMS[stream].rows, args.max_rows or STREAMS[stream].rows)
        keys = {"stream": stream, **arrival._asdict(), "rows": n}
        records = Records(args.out, PAGE.identity)
        wanted = [name for name in names if args.fresh or {**keys, "learner": name} not in records]
        if not wanted:
            continue
        if STREAMS[stream].real and args.data is None:
            print(f"{stream}: left out, no --data", file=sys.stderr)
            continue
        try:
            rows = loaded(stream, args.data, n)
        except FileNotFoundError as error:
            print(f"{stream}: left out, {error}", file=sys.stderr)
            continue
        for name in wanted:
            most = LEARNERS[name].most_columns
            if most is not None and rows.X.shape[1] > most:
                continue
            if not is_asked(LEARNERS[name], *arrival):
                continue
            about = f"{stream}, {arrival}, {name}"
            try:
                record = measure(stream, name, rows, arrival, args)
            except PeerFailedError as error:
                failed.append(about)
                print(f"{about}: {error}", file=sys.stderr)
                continue
            # Read again: another process may have added records meanwhile.
            Records(args.out, PAGE.identity).add(record)
            shown = {key: record[key] for key in SHOWN if key in record}
            print(f"{about}: {json.dumps(shown)}", file=sys.stderr, flush=True)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        default=os.environ.get(datasets.ENVIRONMENT_VARIABLE),
        help="folder with one sub-folder of Parquet per real set",
    )
    parser.add_argument("--peers", help="folder of the peers' environments")
    parser.add_argument(
        "--streams",
        nargs="+",
        default=list(STREAMS),
        choices=STREAMS,
        metavar="STREAM",
        help=f"of {'; '.join(STREAMS)}; all",
    )
    parser.add_argument(
        "--learners",
        nargs="+",
        default=list(LEARNERS),
        choices=LEARNERS,
        metavar="LEARNER",
        help=f"of {'; '.join(LEARNERS)}; all",
    )
    parser.add_argument(
        "--delays",
        nargs="*",
        type=int,
        default=[its.delay for its in ARRIVALS if not its.in_blocks],
        help="rows after which labels are known",
    )
    parser.add_argument(
        "--blocks",
        nargs="*",
        type=int,
        default=[its.delay for its in ARRIVALS if its.in_blocks],
        help="rows whose labels are known together, after the last of them",
    )
    parser.add_argument("--max-rows", type=int, help="keep at most this many rows of each stream")
    parser.add_argument("--fresh", action="store_true", help="measure again what is asked for")
    parser.add_argument("--out", type=Path, default=RESULTS / "drift.json")
    args = parser.parse_args()
    if (least := min([1, *args.delays, *args.blocks])) < 1:
        parser.error(f"labels are known 1 row later or more, not {least}: a row is forecast first")
    failed = run(args)
    draw(REPORTS if args.out.parent == RESULTS else args.out.parent, args.max_rows)
    publish("drift", Records(args.out, PAGE.identity))
    if failed:
        sys.exit(f"failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
