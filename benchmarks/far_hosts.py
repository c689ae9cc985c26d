"""Workers on two hosts, far apart: what latency and loss cost, and that they change no byte.

The hosts are network namespaces of this machine (`tests/cluster/hosts.py`), so both share its
cores. Scheduler, coordinator and four workers of one thread are on the first, four more on the
second; between the two, each frame takes 20 ms in either direction and one of a hundred is lost,
beside a cable that does neither. A run trains on the first rows of covtype with a forecast of
each row; its rate is without the start of its processes. Cables take turns. Needs Linux, root and
`ip`.

    python -m benchmarks.far_hosts --data <folder>
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import dask
from distributed import Client

from benchmarks.chaos import covtype
from benchmarks.pages import Number, Page, middle, publish, runs_of
from benchmarks.records import RESULTS, Records, table
from dmondrian import AMFClassifier
from dmondrian.distributed import train
from dmondrian.distributed.cluster.client import CONFIG
from tests.cli.command import digests
from tests.cluster.hosts import Far, address, connected_hosts, why_not

SCHEDULER = f"tcp://{address(1)}:8786"
CABLES = {"near": None, "far": Far(2, 0.02, 0.01)}
PATIENCE = 900.0  # seconds of a run
HEAD = ["cable", "ms, one way", "per cent lost", "rows", "trees", "rows a second", "least",
        "greatest", "same bytes"]  # fmt: skip


def train_here(folder: Path, args: argparse.Namespace) -> None:
    """Train on the cluster, as a program of the first host; print what came of it."""
    with dask.config.set(CONFIG), Client(SCHEDULER) as client:
        client.wait_for_workers(args.workers)
        estimator = AMFClassifier(args.trees, alpha=0.01, feature_scales=None, random_state=7)
        trained = train(
            estimator, folder / "data", target="Cover_Type", run=folder / "run", client=client,
            n_shards=args.workers, checkpoint_every=f"{args.rows // 4} rows",
        )  # fmt: skip
    seconds, recoveries = (trained.summary[name] for name in ("seconds", "recoveries"))
    print(json.dumps({"seconds": seconds, "recoveries": recoveries}))


def train_there(cable: str, data: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Train on new hosts; return what it took, and digests of the trees."""
    with tempfile.TemporaryDirectory() as name, connected_hosts(2, CABLES[cable]) as hosts:
        folder = Path(name)
        (folder / "data").symlink_to(data)
        hosts.start(1, "-m", "dask", "scheduler", f"--host={SCHEDULER}", "--no-dashboard")
        for number in (1, 2):
            size = (f"--nworkers={args.workers // 2}", "--nthreads=1", "--no-dashboard")
            hosts.start(number, "-m", "dask", "worker", SCHEDULER, *size)
        sizes = [f"--{key}={getattr(args, key)}" for key in ("data", "rows", "trees", "workers")]
        words = ("-m", "benchmarks.far_hosts", *sizes, f"--train={folder}")
        process = hosts.start(1, *words, is_read=True)
        try:
            stdout, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            sys.exit(f"{cable}: no end after {PATIENCE:.0f} s")
        if process.returncode:
            sys.exit(f"{cable}: failed")
        return {**json.loads(stdout), "digests": digests(folder / "run")}


def rates(records: Records, cable: str) -> list[float]:
    return [record["rate"] for record in records if record["cable"] == cable]


def share(records: Records) -> Number:
    """Return the rate of far hosts over that of near ones, in the middle of the turns."""
    pairs = zip(rates(records, "far"), rates(records, "near"), strict=True)
    return middle([far / near for far, near in pairs], ".2f", records)


def same(records: Records) -> Number:
    """Return how many of the runs grew the same forest."""
    found = [record["is_same"] for record in records]
    if not found:
        raise LookupError("no runs")
    return Number(f"{sum(found)} of {len(found)}", "", runs_of(records))


def show(records: Records) -> str:
    """Return the table of cables."""
    lines = []
    for cable, far in CABLES.items():
        turns = [record for record in records if record["cable"] == cable]
        if not turns:
            continue
        found, first = sorted(rates(records, cable)), turns[0]
        equal = sum(record["is_same"] for record in turns)
        lines.append([
            cable, f"{1000.0 * far.seconds:.0f}" if far else "0",
            f"{100.0 * far.loss:.0f}" if far else "0", first["rows"], first["trees"],
            f"{found[len(found) // 2]:.0f}", f"{found[0]:.0f}", f"{found[-1]:.0f}",
            f"{equal} of {len(found)}",
        ])  # fmt: skip
    return table(HEAD, lines)


PAGE = Page(
    title="Hosts far apart",
    question="What do latency and loss between hosts cost, and do they change the forest?",
    identity=("cable", "turn", "rows", "trees"),
    body=show,
    numbers={"share": share, "same": same},
    sentences=(
        "Workers on two hosts, with latency and loss between them, learn at {share} of the rate"
        " they have without; {same} runs grew the forest of one that had neither.",
        "Both hosts share the cores of one machine, which one uses while the other waits for"
        " frames: with cores of their own the share would be less.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--trees", type=int, default=16)
    parser.add_argument("--workers", type=int, default=8, help="half of them on each host")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)  # on a host, by itself
    args = parser.parse_args()
    if args.train:
        train_here(args.train, args)
        return
    if reason := why_not():
        sys.exit(reason)
    records = Records(RESULTS / "far_hosts.json", PAGE.identity, fresh=True)
    known: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        data = Path(name, "data")
        data.mkdir()
        for file, content in covtype(args.data, args.rows).items():
            (data / file).write_bytes(content)
        for turn in range(args.repeats):
            for cable in CABLES:
                found = train_there(cable, data, args)
                known = known or found["digests"]
                records.add({
                    "cable": cable, "turn": turn, "rows": args.rows, "trees": args.trees,
                    "workers": args.workers, "rate": args.rows / found["seconds"],
                    "recoveries": found["recoveries"], "is_same": found["digests"] == known,
                })  # fmt: skip
                print(f"{cable}, turn {turn + 1}: done", file=sys.stderr)
    publish("far_hosts", records)


if __name__ == "__main__":
    main()
