"""How fast are the forests? Rows x trees per second, to learn and to predict, in one run.

Five workloads; every library learns all rows of the workload and then predicts the same rows, in
its own process, on one thread. The libraries take turns, so that a disturbance of the machine falls
on all of them; each rate is the median over the rounds, each ratio the median of the rounds'
ratios. Compilation is not timed: it is reported as the seconds of a first run on 600 rows.

river learns one dict at a time; it is given the first 2,000 rows only, where its trees are still
shallow.

    python -m benchmarks.throughput --data <folder> --peers <cache folder> --repeats 5
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import datasets
from benchmarks.peers.runner import interpreter, save_input, started
from benchmarks.records import RESULTS, Records, table

WORKLOADS = ["synthetic_d20", "friedman1", "synthetic_d100_k5", "covtype", "adult"]
PEERS = ["dmondrian", "onelearn", "random_forest", "river_amf"]
RIVER_ROWS = 2000


def measure(name: str, args: argparse.Namespace, peers: list[str]) -> list[dict]:
    """All peers on one workload; one record each."""
    dataset = datasets.load(name, args.data, args.max_rows)
    X = np.concatenate([dataset.X_train, dataset.X_test])
    y = np.concatenate([dataset.y_train, dataset.y_test])
    dataset = replace(dataset, X_train=X, y_train=y, X_test=X, y_test=y)
    rounds: dict[str, list[dict[str, float]]] = {peer: [] for peer in peers}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        rows = Path(folder) / "rows.npz"
        save_input(dataset, rows)
        workers = {}
        for peer in peers:
            cap = RIVER_ROWS if peer.startswith("river") else None
            options = {"max_train": cap, "max_test": cap, "peers": args.peers}
            workers[peer] = stack.enter_context(started(peer, rows, trees=args.trees, **options))
        for _ in range(args.repeats):
            for peer, worker in workers.items():
                rounds[peer].append(worker.measure())
    records = []
    for peer, times in rounds.items():
        record = {
            "workload": name,
            "peer": peer,
            "trees": args.trees,
            "n": times[0]["n_train"],
            "d": X.shape[1],
            "K": dataset.n_classes,
            "repeats": args.repeats,
            "warm_seconds": workers[peer].warm_seconds,
        }
        for step, count in (("fit", "n_train"), ("predict", "n_test")):
            record[f"{step}_rate"] = statistics.median(
                time[count] * args.trees / time[f"{step}_seconds"] for time in times
            )
            # How many times this package's rate is the peer's, round by round.
            record[f"{step}_ratio"] = statistics.median(
                (mine[count] / mine[f"{step}_seconds"]) / (time[count] / time[f"{step}_seconds"])
                for mine, time in zip(rounds["dmondrian"], times, strict=True)
            )
        records.append(record)
    return records


def report(records: Records) -> str:
    """Markdown: a row per workload and peer."""
    rows = [
        [
            r["workload"],
            r["n"],
            r["d"],
            r["K"] or "-",
            r["peer"],
            *(f"{r[key] / 1000:,.0f}k" for key in ("fit_rate", "predict_rate")),
            *(f"{r[key]:.2f}" for key in ("fit_ratio", "predict_ratio")),
            f"{r['warm_seconds']:.1f}",
        ]
        for r in records
    ]
    head = ["workload", "n", "d", "K", "library", "learn, rows x trees/s", "predict"]
    return table([*head, "dmondrian / it, learn", "predict", "first run, s"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    datasets.add_arguments(parser, WORKLOADS)
    parser.add_argument("--peers", help="folder of the peers' environments")
    parser.add_argument("--only", nargs="+", default=PEERS, choices=PEERS, help="libraries")
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "throughput.json")
    args = parser.parse_args()
    chosen = ["dmondrian", *(peer for peer in args.only if peer != "dmondrian")]
    for peer in chosen:
        if interpreter(peer, args.peers) is None:
            print(f"{peer}: left out, no environment for it under --peers", file=sys.stderr)
    chosen = [peer for peer in chosen if interpreter(peer, args.peers)]
    records = Records(args.out, ("workload", "peer", "trees"))
    for name in args.sets:
        for record in measure(name, args, chosen):
            records.add(record)
    text = report(records)
    args.out.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
