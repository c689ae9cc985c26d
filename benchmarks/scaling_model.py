"""How far does the design scale? A discrete-event model of a run on 10 to 10,000 workers.

Workers take units of the stream in order, not more than some units ahead of the last one that
all have answered for; each learns its trees (one shard a worker) while it reads the next block;
answers queue for one coordinator, which costs seconds an order, seconds a step of it and, with
forecasts, seconds a row; blobs go up at each checkpoint; workers differ by chance, and fail by
chance, whereupon the stream waits for a restore and a replay. Where replies are joined, a row of
forecasts costs the coordinator once, and each worker that sends it on. Orders have as many units as
:mod:`dmondrian.distributed.training.order_sizes` gives them.

The costs are those that `benchmarks.recovery` measured (``results/recovery.json``), and of orders
and steps those of `benchmarks.scaling`; what they cannot measure on one machine (the store's and a
worker's bandwidth, how often workers fail, their spread) is an argument below. The model has no
network between workers and coordinator, and adds the scheduler's work to the coordinator's, as if
one processor did both.

    python -m benchmarks.scaling_model [--plot scaling.png]
"""

from __future__ import annotations

import argparse
import heapq
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import Figure, Page, publish, single
from benchmarks.records import RESULTS, Records, table
from dmondrian.distributed.training.order_sizes import (
    ORDER_BYTES,
    ORDER_SECONDS,
    ORDERS_PER_SECOND,
    WINDOW_BYTES,
)
from dmondrian.distributed.training.shard_state import Limits
from dmondrian.distributed.training.sum_tree import LEAST

CLASSES = 7
# Seconds a row of forecasts: a float64 a class, copied three times at a gigabyte a second. The
# difference of two runs can be below its noise.
FORECAST_FLOOR = 3 * CLASSES * 8 / 1e9
SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)


@dataclass(frozen=True)
class Costs:
    """What a run is made of; seconds and bytes."""

    learn: float  # seconds a row and tree, forecast included
    order: float  # seconds of the coordinator an order, beside its steps
    step: float  # seconds of the coordinator a step of an order
    forecast: float  # seconds of the coordinator a row of an order's forecasts
    recover: float  # seconds from a kill to the stream going on, without the replay
    row_bytes: float  # of the Parquet files
    tree_bytes: float  # of a tree's blob a row learned
    rows: int = 2_000_000
    trees: int = 10_000
    unit: int = 65_536  # rows of a step
    interval: int = 500_000  # rows between checkpoints
    spread: float = 0.1  # of the logarithm of a step's seconds
    store: float = 50e9  # bytes a second of the store, all workers together
    link: float = 0.3e9  # bytes a second of one worker
    failure: float = 1000 * 3600.0  # seconds between two failures of one worker
    forecasts: bool = True
    joined: bool = True  # replies are joined on workers


def calibrated(path: Path, of_orders: Path, joined: bool = True) -> Costs:
    """Return the costs of measurements."""
    parts: dict[str, Any] = {}
    for record in json.loads(path.read_text())["records"]:
        parts.setdefault(record["part"], record)
    orders, one, kill = parts["orders"], parts["coordinator"], parts["kill"]
    cases = orders["cases"]
    shared = [orders["rows"] * case["shards"] * case["progressive"] for case in cases]
    columns = np.array([[1.0, c["orders"], s] for c, s in zip(cases, shared, strict=True)])
    seconds = np.array([case["coordinator_cpu"] for case in cases])
    found, *_ = np.linalg.lstsq(columns, seconds, rcond=None)
    replay = np.mean(kill["replayed"]) / (kill["rows_per_second"] * 6)
    n_learned = orders["rows"] * orders["trees"]
    order, step = price_of_orders(of_orders, joined)
    return Costs(
        learn=float(np.median([t[1] for run in one["apart"] for t in run]))
        * one["workers"]
        / (one["rows"] * one["trees"]),
        order=order,
        step=step,
        forecast=max(float(found[2]), FORECAST_FLOOR),
        recover=max(float(np.median(kill["passed"]) - replay), 0.5),
        row_bytes=orders["data_bytes"] / orders["rows"],
        tree_bytes=orders["blob_bytes"] / n_learned,
        joined=joined,
    )


def price_of_orders(path: Path, joined: bool) -> tuple[float, float]:
    """Return seconds of scheduler and coordinator an order, and a step of one.

    Those that least squares find for all numbers of workers, heartbeats included.
    """
    kind, columns, seconds = "joined" if joined else "bundles", [], []
    for r in json.loads(path.read_text())["records"]:
        if r["orders"] == kind and r["unit_rows"] == 100 and "steps_of_order" in r:
            columns.append([1.0 / r["steps_of_order"], 1.0])
            seconds.append(1e-6 * (r["scheduler"] + r["coordinator"]))
    (order, step), *_ = np.linalg.lstsq(np.array(columns), np.array(seconds), rcond=None)
    return max(float(order), 1e-4), max(float(step), 1e-5)


def units_of_order(costs: Costs, n_workers: int, learn: float) -> int:
    """Return the units of an order, of which each takes ``learn`` seconds."""
    unit_bytes = 8 * CLASSES * costs.unit * costs.forecasts
    by_time = max(ORDER_SECONDS, n_workers / ORDERS_PER_SECOND) / learn
    by_bytes = min(ORDER_BYTES, WINDOW_BYTES // Limits.depth) // max(1, unit_bytes)
    return max(1, int(min(by_time, by_bytes, Limits.largest_window // Limits.depth)))


def simulate(costs: Costs, n_workers: int, seed: int = 0) -> dict[str, float]:
    """Run the model; return seconds, and how busy each part is."""
    chance = np.random.default_rng(seed)
    n_units = -(-costs.rows // costs.unit)
    trees = costs.trees / n_workers
    speed = min(costs.link, costs.store / n_workers)
    learn = costs.unit * trees * costs.learn
    step = max(learn, costs.unit * costs.row_bytes / speed)
    every = max(1, round(costs.interval / costs.unit))
    units = units_of_order(costs, n_workers, learn)
    window = max(Limits.window, Limits.depth * units)
    rows = costs.unit * costs.forecasts
    answer = costs.order / units + costs.step
    if costs.joined and n_workers >= LEAST:
        answer += costs.forecast * rows / n_workers
        step += FORECAST_FLOOR * rows
    else:
        answer += costs.forecast * rows
    next_unit, answered = np.zeros(n_workers, dtype=int), np.zeros(n_units, dtype=int)
    idle = set(range(n_workers))
    events: list[tuple[float, bool, int, int]] = []  # moment, is it an answer, worker, unit
    settled, free, busy, failures, now = 0, 0.0, 0.0, 0, 0.0

    def begin(worker: int, moment: float) -> None:
        """Start a worker's next unit, if the window allows."""
        nonlocal failures
        unit = int(next_unit[worker])
        if unit >= min(n_units, settled + window):
            return
        idle.discard(worker)
        seconds = step * chance.lognormal(0.0, costs.spread)
        if (unit + 1) % every == 0 or unit + 1 == n_units:
            seconds += (unit + 1) * costs.unit * trees * costs.tree_bytes / speed
        if chance.random() < seconds / costs.failure:
            failures += 1
            seconds += costs.recover + (unit % every) * learn + seconds
        heapq.heappush(events, (moment + seconds, False, worker, unit))

    for worker in range(n_workers):
        begin(worker, 0.0)
    while events:
        now, is_answer, worker, unit = heapq.heappop(events)
        if not is_answer:
            free = max(free, now) + answer
            busy += answer
            heapq.heappush(events, (free, True, worker, unit))
            next_unit[worker] += 1
            idle.add(worker)
            begin(worker, now)
            continue
        answered[unit] += 1
        before = settled
        while settled < n_units and answered[settled] == n_workers:
            settled += 1
        if settled > before:
            for ready in sorted(idle):
                begin(ready, now)
    seconds = now
    ideal = costs.rows * costs.trees * costs.learn / n_workers
    return {
        "seconds": seconds,
        "efficiency": ideal / seconds,
        "read": n_workers * costs.rows * costs.row_bytes,
        "coordinator": busy / seconds,
        "store": n_workers * costs.rows * costs.row_bytes / seconds / costs.store,
        "failures": float(failures),
    }


def figures_of(costs: Costs, apart: Costs) -> dict[str, list[dict[str, float]]]:
    """Return all figures by variant."""
    variants = {
        "as it is": costs,
        "no forecasts": replace(costs, forecasts=False),
        "stored at the end": replace(costs, interval=costs.rows),
        "replies not joined": apart,
    }
    return {
        name: [{"workers": n, **simulate(variant, n)} for n in SIZES]
        for name, variant in variants.items()
    }


def report(records: Records) -> str:
    """Return Markdown: the costs, and a row for each variant and number of workers."""
    costs = records.only(variant="costs")
    rows = [
        [
            found["variant"], found["workers"], f"{found['seconds']:,.0f}",
            f"{found['efficiency']:.2f}", f"{found['read'] / 1e9:,.0f}",
            f"{found['coordinator']:.2f}", f"{found['store']:.2f}", f"{found['failures']:.0f}",
        ]
        for found in records
        if found["variant"] != "costs"
    ]  # fmt: skip
    head = ["variant", "workers", "seconds", "efficiency", "GB read", "coordinator busy"]
    named = [[name, f"{value:g}"] for name, value in costs["costs"].items()]
    return (
        f"## Costs\n\n{table(['cost', 'value'], named)}\n"
        f"## Runs\n\n{table([*head, 'store busy', 'failures'], rows)}"
    )


def of(variant: str, workers: int, what: str = "efficiency") -> Figure:
    """Return what finds a figure of some workers."""

    def find(records: Records) -> Any:
        record = records.only(variant=variant, workers=workers)
        return single(record[what], ".2f", record)

    return find


PAGE = Page(
    title="A model of many workers",
    question="How many workers does a single coordinator carry, by a model with measured costs?",
    identity=("variant", "workers"),
    body=report,
    numbers={
        "some": of("as it is", 10),
        "hundred": of("as it is", 100),
        "thousand": of("as it is", 1000),
        "busy": of("as it is", 1000, "coordinator"),
        "last": of("stored at the end", 1000),
        "apart": of("replies not joined", 300, "coordinator"),
    },
    sentences=(
        "By the model few workers have an efficiency of {some}, a hundred of them {hundred}, a"
        " thousand {thousand}, with a coordinator that is busy {busy} of the time; it would be"
        " {apart} with three hundred, and then saturated, were replies not joined.",
        "What a thousand lose they lose to states that are stored: the run is short, and learning"
        " waits for them in the model; stored at its end alone, it is {last}.",
    ),
)


def plot(figures: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Draw efficiency and the coordinator's load; needs matplotlib."""
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(1, 2, figsize=(10, 4))
    for axis, what in zip(axes, ("efficiency", "coordinator"), strict=True):
        for name, found in figures.items():
            axis.semilogx([f["workers"] for f in found], [f[what] for f in found], label=name)
        axis.set(xlabel="workers", ylabel=what)
    axes[0].legend()
    plt.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measured", type=Path, default=RESULTS / "recovery.json")
    parser.add_argument("--orders", type=Path, default=RESULTS / "scaling.json")
    parser.add_argument("--out", type=Path, default=RESULTS / "scaling_model.json")
    parser.add_argument("--plot", type=Path, help="also draw a picture")
    args = parser.parse_args()
    costs = calibrated(args.measured, args.orders)
    figures = figures_of(costs, calibrated(args.measured, args.orders, joined=False))
    records = Records(args.out, PAGE.identity, fresh=True)
    records.add({"variant": "costs", "costs": asdict(costs)})
    for variant, found in figures.items():
        for one in found:
            records.add({"variant": variant, **one})
    publish("scaling_model", records)
    if args.plot:
        plot(figures, args.plot)


if __name__ == "__main__":
    main()
