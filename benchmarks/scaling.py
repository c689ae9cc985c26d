"""Processor time of scheduler and coordinator a step of a shard, with many workers.

Workers are `distributed.Worker` objects, many to a process, in processes of their own; so are the
scheduler and, in this one, the coordinator. Trees are small and steps are of a few rows, so that
messages are what is measured. Each case is trained twice, with few units and with many: processor
seconds of the difference, by the steps of shards in it, are free of start and end. By the clock
nothing is measured: many workers on few cores wait for each other. What workers without a run cost
a second (heartbeats) is measured before, and its part of this time is left out in one column. With
``--trees`` and more rows a step, the cost of more shards for the same trees is what is measured,
that of workers included. ``DMONDRIAN_WITHOUT=sum_tree`` sends each worker's reply to the
coordinator.

    python -m benchmarks.scaling [--workers 16 64] [--shards 64]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import dask
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client, Scheduler, Worker

from benchmarks.pages import Figure, Number, Page, publish, runs_of, single
from benchmarks.records import RESULTS, Records, table
from dmondrian import AMFClassifier
from dmondrian._numba.mechanisms import left_out
from dmondrian.checkpoint import Run
from dmondrian.data import Plan
from dmondrian.distributed import train
from dmondrian.distributed.cluster.client import CONFIG
from dmondrian.distributed.training.attempt import Attempt, attempt_options
from dmondrian.distributed.training.coordinator import Coordinator
from dmondrian.distributed.worker.tasks import step

CLASSES = 7
PER_PROCESS = 64  # workers of one process
WAIT = 600.0  # seconds for processes to start


def serve(folder: Path) -> None:
    """Run a scheduler until this process is ended."""

    async def run() -> None:
        async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
            Path(folder, "scheduler").write_text(scheduler.address)
            await scheduler.finished()

    asyncio.run(run())


def work(address: str, n_workers: int) -> None:
    """Run workers of one thread each until this process is ended."""

    async def run() -> None:
        workers = [
            Worker(address, nthreads=1, memory_limit=0, dashboard=False, host="127.0.0.1")
            for _ in range(n_workers)
        ]
        await asyncio.gather(*workers)
        await asyncio.gather(*(worker.finished() for worker in workers))

    # At the end of a run each would go through the objects of all.
    with mock.patch("dmondrian.distributed.worker.tasks.free_memory"):
        asyncio.run(run())


@contextmanager
def process(*arguments: str) -> Iterator[psutil.Process]:
    """Run this script in another process."""
    started = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.scaling", *arguments], stderr=subprocess.DEVNULL
    )
    try:
        yield psutil.Process(started.pid)
    finally:
        started.kill()
        started.wait()


@contextmanager
def cluster(n_workers: int, folder: Path) -> Iterator[tuple[Client, list[psutil.Process]]]:
    """Start a scheduler and workers; yield a client, and the processes, the scheduler's first."""
    place = folder / "scheduler"
    place.unlink(missing_ok=True)
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(CONFIG))
        processes = [stack.enter_context(process("--serve", str(folder)))]
        end = time.monotonic() + WAIT
        while not (place.exists() and place.read_text()):
            if time.monotonic() > end:
                raise TimeoutError("the scheduler did not start")
            time.sleep(0.1)
        address = place.read_text()
        for first in range(0, n_workers, PER_PROCESS):
            some = min(PER_PROCESS, n_workers - first)
            started = process("--work", address, "--workers", str(some))
            processes.append(stack.enter_context(started))
        client = stack.enter_context(Client(address, set_as_default=False, timeout=WAIT))
        client.wait_for_workers(n_workers, timeout=WAIT)
        yield client, processes


def write_rows(path: Path, n_rows: int) -> Path:
    """Write a table of labels that one column tells in part."""
    chance = np.random.default_rng(0)
    X = chance.random((n_rows, 4), np.float32)
    columns = {f"x{j}": X[:, j] for j in range(4)}
    columns["y"] = np.minimum((X[:, 0] * CLASSES).astype(int), CLASSES - 1)
    pq.write_table(pa.table(columns), path, row_group_size=1000)
    return path


def measure(
    client: Client, processes: list[psutil.Process], data: Path, n_shards: int, args: Any
) -> np.ndarray:
    """Train once; return units, orders of steps, seconds by the clock, and processor seconds.

    These are of coordinator, scheduler and workers.
    """
    submit, n_orders = Coordinator._submit, 0

    def count(self: Coordinator, task: Any, *about: Any) -> None:
        nonlocal n_orders
        n_orders += task is step
        submit(self, task, *about)

    with (
        tempfile.TemporaryDirectory() as run,
        mock.patch.object(Coordinator, "_submit", count),
    ):
        estimator = AMFClassifier(
            args.trees or n_shards,
            alpha=0.01,
            charge_opening=True,
            feature_scales=None,
            random_state=7,
        )  # fmt: skip
        before, began = seconds_of(processes), time.monotonic()
        train(
            estimator, data, target="y", run=run, client=client, n_shards=n_shards,
            checkpoint_every=None, window=args.window,
        )  # fmt: skip
        spent, clock = seconds_of(processes) - before, time.monotonic() - began
        opened = Run.open(run)
        plan = Plan.from_parquet(opened.stream.read())
        units = Attempt(opened, plan, attempt_options(None, args.window, None)).units
    return np.array([len(units), n_orders, clock, *spent])


def idle(processes: list[psutil.Process], seconds: float) -> np.ndarray:
    """Return the processor seconds a second of coordinator, scheduler and workers without a run."""
    before, began = seconds_of(processes), time.monotonic()
    time.sleep(seconds)
    return (seconds_of(processes) - before) / (time.monotonic() - began)


def seconds_of(processes: list[psutil.Process]) -> np.ndarray:
    """Return the processor seconds of this process, of the scheduler and of all workers."""
    times = [one.cpu_times() for one in processes]
    scheduler, *workers = (one.user + one.system for one in times)
    return np.array([time.process_time(), scheduler, sum(workers)])


def case(args: argparse.Namespace, n_workers: int, n_shards: int, folder: Path) -> dict[str, Any]:
    """Return the price of a shard's step in microseconds, of both processes."""
    few, many = (write_rows(folder / f"{n}.parquet", n * args.unit_rows) for n in args.units)
    with (
        mock.patch("dmondrian.distributed.worker.work_units.UNIT_ROWS", args.unit_rows),
        cluster(n_workers, folder) as (client, processes),
    ):
        measure(client, processes, few, n_shards, args)  # starts all that is to start
        resting = idle(processes, args.idle)
        a = measure(client, processes, few, n_shards, args)
        b = measure(client, processes, many, n_shards, args)
        files = processes[0].num_fds()
    n_units, n_orders, clock, *spent = b - a
    n_steps = n_units * n_shards
    coordinator, scheduler, workers = (1e6 * np.array(spent) / n_steps).tolist()
    beside = (1e6 * clock * resting / n_steps).tolist()
    return {
        "orders": args.orders, "workers": n_workers, "shards": n_shards, "window": args.window,
        "trees": args.trees or n_shards, "unit_rows": args.unit_rows,
        "units": [int(a[0]), int(b[0])], "idle": beside[:2],
        "steps_of_order": n_steps / n_orders, "scheduler_files": files, "load": os.getloadavg()[0],
        "coordinator": coordinator, "scheduler": scheduler, "of_workers": workers,
    }  # fmt: skip


def report(records: Records) -> str:
    """Markdown: a row per case."""
    rows = [
        [
            r["orders"], r["workers"], r["trees"], r["shards"], r["unit_rows"],
            f"{r['scheduler']:.0f}", f"{r['coordinator']:.0f}",
            f"{r['scheduler'] + r['coordinator']:.0f}",
            f"{r['scheduler'] + r['coordinator'] - sum(r['idle']):.0f}" if "idle" in r else "-",
            f"{r['steps_of_order']:.1f}" if "idle" in r else "-",
            r["scheduler_files"], f"{r['load']:.1f}", records.cpu(r),
        ]
        for r in records
    ]  # fmt: skip
    what = "Microseconds of processor time a shard and step.\n\n"
    return what + table(
        ["orders", "workers", "trees", "shards", "rows a step", "scheduler", "coordinator", "both",
         "without heartbeats", "steps of an order", "scheduler's open files", "load", "machine"],
        rows,
    )  # fmt: skip


def pair(records: Records, many_rows: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the records of most workers that were measured both ways: joined, and bundles."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for kind in ("joined", "bundles"):
        own = [r for r in records.where(orders=kind, window=None) if "idle" in r]
        found[kind] = {r["workers"]: r for r in own if (r["unit_rows"] > 100) == many_rows}
    most = max(found["joined"].keys() & found["bundles"].keys(), default=None)
    if most is None:
        raise LookupError("no number of workers was measured both ways")
    return found["joined"][most], found["bundles"][most]


def price(which: int, without_heartbeats: bool = False) -> Figure:
    """Return what finds the price of a step in microseconds, of most workers: joined, or not."""

    def find(records: Records) -> Number:
        record = pair(records, many_rows=False)[which]
        beside = sum(record["idle"]) if without_heartbeats else 0.0
        return single(record["scheduler"] + record["coordinator"] - beside, ".0f", record)

    return find


def of_a_row(records: Records) -> Number:
    """Return the nanoseconds that a worker's forecasts of a row cost where they are not joined."""
    joined, apart = pair(records, many_rows=True)
    both = [r["scheduler"] + r["coordinator"] - sum(r["idle"]) for r in (joined, apart)]
    value = 1000.0 * (both[1] - both[0]) / apart["unit_rows"]
    return Number(f"{value:.0f}", "", runs_of([joined, apart]))


PAGE = Page(
    title="Many workers",
    question="What does a step of a shard cost scheduler and coordinator?",
    identity=("orders", "workers", "trees", "shards", "unit_rows", "window", "cpu"),
    body=report,
    numbers={
        "joined": price(0),
        "joined_alone": price(0, without_heartbeats=True),
        "bundles": price(1),
        "row": of_a_row,
    },
    sentences=(
        "With most workers a step costs {joined} us of both, {joined_alone} without as many"
        " heartbeats as idle workers send; {bundles} where each reply goes to the coordinator.",
        "Steps are of few rows, without the price of forecasts; with many rows it is {row} ns for"
        " each row and worker where replies are not joined, and otherwise next to nothing.",
        "`load` is the mean number of processes that wanted a processor in the last minute: the"
        " greater it is, the more processor time the same work takes.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 8, 16, 64])
    parser.add_argument("--shards", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--units", type=int, nargs=2, default=[10, 60])
    parser.add_argument("--trees", type=int, default=0, help="0: one a shard")
    parser.add_argument("--unit-rows", type=int, default=100)
    parser.add_argument("--window", type=int, help="by default as in runs")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds to measure idle workers")
    joined = "bundles" if "sum_tree" in left_out() else "joined"
    parser.add_argument("--orders", default=joined, help="what is measured, for the table")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS / "scaling.json")
    args = parser.parse_args()
    if args.serve is not None:
        return serve(args.serve)
    if args.work is not None:
        return work(args.work, args.workers[0])
    records = Records(args.out, PAGE.identity)
    with tempfile.TemporaryDirectory() as folder:
        for n_shards in args.shards:
            for n_workers in args.workers:
                if n_workers <= n_shards:
                    records.add(case(args, n_workers, n_shards, Path(folder)))
                    print(records_line(records), file=sys.stderr)
    publish("scaling", records)
    return None


def records_line(records: Records) -> str:
    """Return the newest record as a line."""
    newest = list(records)[-1]
    return ", ".join(
        f"{key} {newest[key]}" for key in ("workers", "shards", "scheduler", "coordinator")
    )


if __name__ == "__main__":
    main()
