"""What do safety and the cluster cost? Recovery, checkpoints and the coordinator, on covtype.

Six parts, each taken in turns so that a disturbance of the machine falls on all sides:

* ``kill``: a worker process is killed half way through a run on three workers; seconds until the
  loss is seen, and until the stream has got past the place where it was seen.
* ``checkpoints``: an interval against none but at the end, on a local folder; in seconds and in
  processor time of workers and coordinator, which other work on the machine does not touch; and
  the share of the workers' time that saving took, as they measured it.
* ``slow store``: the same where each put takes a second longer.
* ``coordinator``: rows per second of n workers of one thread each, against the sum of what the
  same processes reach at the same time when each learns its trees in one plain loop and saves
  them once, as the run does.
* ``workers``: rows per second of n workers over those of one, each in a cluster of its own, as many
  trees in all. Coordinator and scheduler have a core to themselves beside one worker of two cores,
  and none beside two: the more trees, the less that counts.
* ``orders``: processor time of the process of coordinator and scheduler over runs with small and
  large steps, with and without forecasts; from these `benchmarks.scaling_model` has its numbers.

    python -m benchmarks.recovery --data <folder>
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import dask
import numpy as np
from distributed import Client, LocalCluster

from benchmarks.chaos import N_SHARDS, covtype
from benchmarks.pages import Figure, Number, Page, middle, publish
from benchmarks.records import RESULTS, Records, table
from dmondrian import AMFClassifier
from dmondrian.checkpoint import Run, encode_forest
from dmondrian.data import Plan, read_block
from dmondrian.distributed import TrainedRun, train
from dmondrian.distributed.cluster.client import CONFIG
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.forest.forest import Forest
from dmondrian.prequential.forecasts import forecast_and_learn_all
from tests.chaos.harness import Outcome
from tests.chaos.place import place
from tests.chaos.schedule import KILL, LEAVE, Fault

PARTS = ("kill", "checkpoints", "slow store", "coordinator", "workers", "orders")
GROUP_ROWS = 20_000
INTERVALS = ("auto", "100000 rows")
PUT_SECONDS = 1.0  # of a slow store


@contextmanager
def workers(n_workers: int) -> Iterator[Client]:
    """Worker processes of one thread each."""
    with (
        dask.config.set(CONFIG),
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, dashboard_address="127.0.0.1:0",
            silence_logs=50,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        client.wait_for_workers(n_workers)
        yield client


@contextmanager
def rows_of(args: argparse.Namespace, n_rows: int) -> Iterator[Path]:
    """Write rows of covtype into a folder that goes with the block."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in covtype(args.data, n_rows, GROUP_ROWS).items():
            Path(folder, name).write_bytes(content)
        yield Path(folder)


def learn(client: Client, data: Path, args: argparse.Namespace, **options: Any) -> TrainedRun:
    """Train on a cluster, in a run folder that goes when this process ends."""
    estimator = AMFClassifier(args.trees, alpha=0.01, feature_scales=None, random_state=7)
    return train(estimator, data, target="Cover_Type", client=client, n_shards=N_SHARDS, **options)


def kill(args: argparse.Namespace) -> dict[str, Any]:
    """Kill a worker that comes back, and one that does not, in turns."""
    interval = args.kill_rows // 8
    options = {
        "target": "Cover_Type",
        "n_shards": N_SHARDS,
        "checkpoint_every": f"{interval} rows",
        "unit_rows": 2500,
        "forest": {"n_estimators": args.trees, "random_state": 7, "alpha": 0.01},
    }
    seen, passed, replayed = [], [], []
    with place(covtype(args.data, args.kill_rows, 2500), options, 600.0) as where:
        calm = where.run("calm", [])
        for i in range(args.repeats):
            for kind in (KILL, LEAVE):
                fault = Fault(kind, share=0.5, victim=i, nth=1, delay=0.0, seconds=0.0)
                outcome = where.run(f"{kind}-{i}", [fault])
                if outcome.manifests != calm.manifests:
                    raise RuntimeError(f"{kind} changed the forest")
                found = times(outcome)
                seen.append(found[0])
                passed.append(found[1])
                replayed.append(outcome.summary["rows_replayed"])
    return {
        "part": "kill", "rows": args.kill_rows, "interval": interval, "trees": args.trees,
        "seen": seen, "passed": passed, "replayed": replayed,
        "rows_per_second": args.kill_rows / calm.summary["seconds"],
    }  # fmt: skip


def times(outcome: Outcome) -> tuple[float, float]:
    """Seconds from the strike to the first loss, and to rows settled behind those settled then."""
    struck = next(moment for moment, word in outcome.log if "struck" in word)
    lost = next(moment for moment, word in outcome.log if "lost" in word and moment > struck)
    there = max(word["rows"] for moment, word in outcome.log if "rows" in word and moment < lost)
    passed = next(m for m, w in outcome.log if w.get("rows", 0) > there and m > lost)
    return lost - struck, passed - struck


def used(client: Client) -> tuple[float, float, float]:
    """Return the clock, and processor seconds of this process and of all workers."""
    return time.monotonic(), time.process_time(), sum(client.run(time.process_time).values())


def spent(before: tuple[float, ...], after: tuple[float, ...]) -> list[float]:
    return [b - a for a, b in zip(before, after, strict=True)]


def slow_down(seconds: float) -> None:
    """Make each put of a state in this process take so many seconds longer."""
    put = Run.put_blob

    def wait_and_put(self: Run, data: bytes) -> str:
        time.sleep(seconds)
        return put(self, data)

    Run.put_blob = wait_and_put  # type: ignore[method-assign]  # of this worker process alone


def checkpoints(args: argparse.Namespace, every: str, put_seconds: float = 0.0) -> dict[str, Any]:
    """Take an interval and none in turns, after a first run that warms the workers."""
    found: dict[str, list[list[float]]] = {"some": [], "none": []}
    with rows_of(args, args.rows) as data, workers(args.workers) as client:
        learn(client, data, args, checkpoint_every=None)
        if put_seconds:
            client.run(slow_down, put_seconds)
        for _ in range(args.repeats):
            for name, interval in (("some", every), ("none", None)):
                before = used(client)
                summary = learn(client, data, args, checkpoint_every=interval).summary
                reported = [summary["saving_seconds"], summary["checkpoints"]]
                found[name].append(spent(before, used(client)) + reported)
    part = "slow store" if put_seconds else "checkpoints"
    return {
        "part": part, "every": every, "rows": args.rows, "trees": args.trees,
        "workers": args.workers, "put_seconds": put_seconds, **found,
    }  # fmt: skip


def alone(url: str, trees: list[int]) -> tuple[float, float]:
    """Task: learn some trees of a run in one plain loop, as a step does, and store them.

    Returns seconds by the clock and of the processor.
    """
    run = Run.open(url)
    frozen = Plan.from_parquet(run.stream.read())
    forest = Forest(ForestParameters.from_json(run.run_json["parameters"]), np.array(trees))
    began = time.monotonic(), time.process_time()
    for block in frozen.blocks:
        rows = read_block(frozen, block)
        forecast_and_learn_all(
            forest, rows.X, rows.y, position=block.position, n_trees=run.run_json["n_estimators"]
        )
    run.put_blob(encode_forest(*forest.stored()))
    return time.monotonic() - began[0], time.process_time() - began[1]


def coordinator(args: argparse.Namespace, n_workers: int) -> dict[str, Any]:
    """Compare a cluster with its own workers, each on its own share of the trees."""
    shares = np.array_split(range(args.trees), n_workers)
    together, apart = [], []
    with rows_of(args, args.rows) as data, workers(n_workers) as client:
        run = Run.open(learn(client, data, args, checkpoint_every=None).run_url)
        for _ in range(args.repeats):
            before = used(client)
            summary = learn(client, data, args, checkpoint_every=None).summary
            together.append((summary["seconds"], spent(before, used(client))[2]))
            addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
            tasks = [
                client.submit(alone, run.url, share.tolist(), workers=[address], pure=False)
                for share, address in zip(shares, addresses, strict=True)
            ]
            apart.append(client.gather(tasks))
    return {
        "part": "coordinator", "workers": n_workers, "rows": args.rows, "trees": args.trees,
        "together": together, "apart": apart,
        # Each worker learns its share of the trees: rows per second over the sum of theirs, by
        # the clock and, of the workers' processes alone, by processor time.
        "ratio": [
            statistics.mean(t[0] for t in mine) / whole[0]
            for mine, whole in zip(apart, together, strict=True)
        ],
        "cpu_ratio": [
            sum(t[1] for t in mine) / whole[1] for mine, whole in zip(apart, together, strict=True)
        ],
    }  # fmt: skip


def over_one(args: argparse.Namespace) -> dict[str, Any]:
    """Compare a cluster of some workers with one of a single worker."""
    found = []
    with rows_of(args, args.kill_rows) as few, rows_of(args, args.rows) as data:
        for _ in range(args.repeats):
            turn = []
            for n_workers in (1, args.workers):
                with workers(n_workers) as client:
                    learn(client, few, args, checkpoint_every=None)  # starts all that is to start
                    summary = learn(client, data, args, checkpoint_every=None).summary
                    turn.append(summary["seconds"])
            found.append(turn)
    return {
        "part": "workers", "workers": args.workers, "rows": args.rows, "trees": args.trees,
        "seconds": found, "ratio": [one / some for one, some in found],
    }  # fmt: skip


def orders(args: argparse.Namespace) -> dict[str, Any]:
    """Measure runs that differ in the number of orders and in forecasts."""
    cases = []
    n_rows = args.kill_rows
    with workers(1) as client, tempfile.TemporaryDirectory() as folder:
        for name, content in covtype(args.data, n_rows, 500).items():
            Path(folder, name).write_bytes(content)
        for unit_rows in (500, 500, 5000):
            for progressive in (True, False):
                with mock.patch("dmondrian.distributed.worker.work_units.UNIT_ROWS", unit_rows):
                    before = used(client)
                    options = {"checkpoint_every": None, "progressive": progressive}
                    learn(client, Path(folder), args, **options)
                    clock, here, there = spent(before, used(client))
                cases.append(
                    {
                        "unit_rows": unit_rows, "progressive": progressive, "shards": N_SHARDS,
                        "orders": N_SHARDS * -(-n_rows // unit_rows), "seconds": clock,
                        "coordinator_cpu": here, "workers_cpu": there,
                    }
                )  # fmt: skip
    blob = learned_bytes(args)
    # The first pair of runs also compiled and started things.
    return {"part": "orders", "rows": n_rows, "trees": args.trees, "cases": cases[2:], **blob}


def learned_bytes(args: argparse.Namespace) -> dict[str, Any]:
    """Return the size of a finished run's blobs and of its data."""
    with rows_of(args, args.kill_rows) as data, workers(1) as client:
        run = Run.open(learn(client, data, args).run_url)
        n_bytes = sum(file.stat().st_size for file in data.iterdir())
        manifest = run.latest()
    assert manifest is not None
    return {
        "data_bytes": n_bytes,
        "blob_bytes": sum(shard["bytes"] for shard in manifest.shards.values()),
    }


def report(records: Records) -> str:
    """Markdown: a row per figure."""
    rows = []
    for r in records:
        before = len(rows)
        if r["part"] == "kill":
            for name, what in (("seen", "a kill is seen"), ("passed", "the stream goes on")):
                rows.append([f"seconds until {what}", *spread(r[name])])
        elif r["part"] in ("checkpoints", "slow store"):
            rows += prices(r)
        elif r["part"] == "coordinator":
            what = f"{r['workers']} workers over the sum of each alone"
            rows.append([what, *spread(r["ratio"])])
            rows.append([f"{what}, by the workers' CPU", *spread(r["cpu_ratio"])])
        elif r["part"] == "workers":
            what = f"{r['workers']} workers over one, {r['trees']} trees"
            rows.append([what, *spread(r["ratio"])])
        rows[before:] = [[*row, records.cpu(r)] for row in rows[before:]]
    return table(["figure", "median", "least", "greatest", "machine"], rows)


def prices(record: dict[str, Any]) -> list[list[Any]]:
    """Return rows: what an interval costs more than saving once, at the end."""
    pairs = list(zip(record["some"], record["none"], strict=True))
    name = f"checkpoints, {record['every']} ({pairs[0][0][4]:.0f} in {pairs[0][0][0]:.0f} s)"
    if record["part"] == "slow store":
        name = f"{record['put_seconds']:g} s a put: {name}"
    rows = []
    for i, what in ((0, "seconds"), (1, "coordinator CPU"), (2, "workers' CPU")):
        shares = [100 * (some[i] / none[i] - 1) for some, none in pairs]
        rows.append([f"{name}, % of {what}", *spread(shares)])
    once = [100 * none[3] / (record["workers"] * none[0]) for _, none in pairs]
    if record["part"] == "slow store":  # whose states are stored beside learning
        return rows
    rows.append(["saving once, at the end, % of the workers' time", *spread(once)])
    saving = [100 * (some[3] - none[3]) / (record["workers"] * none[0]) for some, none in pairs]
    rows.append([f"{name}, % that saving took", *spread(saving)])
    return rows


def spread(values: list[float]) -> list[float]:
    return [statistics.median(values), min(values), max(values)]


def found_in(part: str, key: str, **wanted: Any) -> Figure:
    """Return what finds the median, least and greatest of a list in a record."""

    def find(records: Records) -> Number:
        record = records.only(part=part, **wanted)
        return middle(record[key], ".2f", [record])

    return find


def price(every: str) -> Figure:
    """Return what finds the time that checkpoints take beside one at the end, in per cent."""

    def find(records: Records) -> Number:
        record = records.only(part="checkpoints", every=every)
        pairs = zip(record["some"], record["none"], strict=True)
        return middle([100 * (some[0] / none[0] - 1) for some, none in pairs], ".0f", [record])

    return find


PAGE = Page(
    title="Recovery, checkpoints, coordinator",
    question="How soon does a run go on after a kill, and what do checkpoints and a coordinator"
    " cost?",
    identity=("part", "workers", "every", "trees"),
    body=report,
    numbers={
        "passed": found_in("kill", "passed"),
        "coordinator": found_in("coordinator", "ratio", workers=2),
        "workers": found_in("workers", "ratio", trees=100),
        "often": price("100000 rows"),
    },
    sentences=(
        "After a worker is killed the stream goes on within {passed} seconds; a run reports once a"
        " second, so no kill is seen sooner.",
        "Two workers reach {coordinator} of what the same processes reach alone, with coordinator"
        " and scheduler on the same two cores, and with a hundred trees learn {workers} times as"
        " fast as one, beside which coordinator and scheduler have a core of their own.",
        "Frequent checkpoints cost {often} per cent of a run of some seconds here; the automatic"
        " interval saves as seldom as keeps the last save a small share of the time since.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder with a sub-folder `covtype`")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--rows", type=int, default=400_000, help="but of kill and orders")
    parser.add_argument("--kill-rows", type=int, default=40_000, help="of kill and orders")
    parser.add_argument("--trees", type=int, default=12)
    parser.add_argument("--workers", type=int, default=2, help="most workers")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "recovery.json")
    args = parser.parse_args()
    records = Records(args.out, PAGE.identity)
    for part in args.parts:
        if part == "coordinator":
            for n_workers in range(1, args.workers + 1):
                records.add(coordinator(args, n_workers))
        elif part == "checkpoints":
            for every in INTERVALS:
                records.add(checkpoints(args, every))
        elif part == "slow store":
            records.add(checkpoints(args, INTERVALS[-1], PUT_SECONDS))
        else:
            records.add({"kill": kill, "workers": over_one, "orders": orders}[part](args))
        print(f"{part}: done", file=sys.stderr)
    publish("recovery", records)


if __name__ == "__main__":
    main()
