"""How far does the design scale? A discrete-event model of a run on 10 to 10,000 workers.

Workers take units of the stream in order, not more than `window` units ahead of the last one that
all have answered for; each learns its trees (one shard a worker) while it reads the next block;
answers queue for one coordinator, which costs seconds an order and, with forecasts, seconds a row;
blobs go up at each checkpoint; workers differ by chance, and fail by chance, whereupon the stream
waits for a restore and a replay.

The costs are those that `benchmarks.recovery` measured (``results/recovery.json``); what it cannot
measure on one machine (the store's and a worker's bandwidth, how often workers fail, their
spread) is an argument below. The model has no network between workers and coordinator, and adds
the scheduler's work to the coordinator's, because both were measured as one process.

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

# Seconds a row of forecasts: seven float64, copied three times at a gigabyte a second. The
# difference of two runs can be below its noise.
FORECAST_FLOOR = 3 * 7 * 8 / 1e9
SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)


@dataclass(frozen=True)
class Costs:
    """What a run is made of; seconds and bytes."""

    learn: float  # seconds a row and tree, forecast included
    order: float  # seconds of the coordinator an order
    forecast: float  # seconds of the coordinator a row of an order's forecasts
    recover: float  # seconds from a kill to the stream going on, without the replay
    row_bytes: float  # of the Parquet files
    tree_bytes: float  # of a tree's blob a row learned
    rows: int = 2_000_000
    trees: int = 10_000
    unit: int = 65_536  # rows of a step
    interval: int = 500_000  # rows between checkpoints
    window: int = 4
    spread: float = 0.1  # of the logarithm of a step's seconds
    store: float = 50e9  # bytes a second of the store, all workers together
    link: float = 0.3e9  # bytes a second of one worker
    failure: float = 1000 * 3600.0  # seconds between two failures of one worker
    forecasts: bool = True
    fan_in: int = 1  # workers whose forecasts are added before the coordinator sees them


def calibrated(path: Path) -> Costs:
    """Return the costs of a measurement."""
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
    return Costs(
        learn=float(np.median([t[1] for run in one["apart"] for t in run]))
        * one["workers"]
        / (one["rows"] * one["trees"]),
        order=max(float(found[1]), 1e-4),
        forecast=max(float(found[2]), FORECAST_FLOOR),
        recover=max(float(np.median(kill["passed"]) - replay), 0.5),
        row_bytes=orders["data_bytes"] / orders["rows"],
        tree_bytes=orders["blob_bytes"] / n_learned,
    )


def simulate(costs: Costs, n_workers: int, seed: int = 0) -> dict[str, float]:
    """Run the model; return seconds, and how busy each part is."""
    chance = np.random.default_rng(seed)
    n_units = -(-costs.rows // costs.unit)
    trees = costs.trees / n_workers
    speed = min(costs.link, costs.store / n_workers)
    learn = costs.unit * trees * costs.learn
    step = max(learn, costs.unit * costs.row_bytes / speed)
    every = max(1, round(costs.interval / costs.unit))
    answer = costs.order + costs.forecast * costs.unit * costs.forecasts / costs.fan_in
    next_unit, answered = np.zeros(n_workers, dtype=int), np.zeros(n_units, dtype=int)
    idle = set(range(n_workers))
    events: list[tuple[float, bool, int, int]] = []  # moment, is it an answer, worker, unit
    settled, free, busy, failures, now = 0, 0.0, 0.0, 0, 0.0

    def begin(worker: int, moment: float) -> None:
        """Start a worker's next unit, if the window allows."""
        nonlocal failures
        unit = int(next_unit[worker])
        if unit >= min(n_units, settled + costs.window):
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


def figures_of(costs: Costs) -> dict[str, list[dict[str, float]]]:
    """Return all figures by variant."""
    variants = {
        "as it is": costs,
        "no forecasts": replace(costs, forecasts=False),
        "forecasts added by 32 workers": replace(costs, fan_in=32),
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


def efficiency(workers: int) -> Figure:
    """Return what finds the efficiency of some workers, as it is."""

    def find(records: Records) -> Any:
        record = records.only(variant="as it is", workers=workers)
        return single(record["efficiency"], ".2f", record)

    return find


PAGE = Page(
    title="A model of many workers",
    question="How many workers does a single coordinator carry, by a model with measured costs?",
    identity=("variant", "workers"),
    body=report,
    numbers={"some": efficiency(10), "hundred": efficiency(100), "many": efficiency(300)},
    sentences=(
        "By the model a hundred workers have an efficiency of {hundred}, where few have {some};"
        " with three hundred, {many}, the coordinator does nearly all that it can, and beyond it"
        " is saturated.",
        "Beyond that, use larger steps, or several runs over other trees (`first_tree`) that are"
        " merged.",
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
    parser.add_argument("--out", type=Path, default=RESULTS / "scaling_model.json")
    parser.add_argument("--plot", type=Path, help="also draw a picture")
    args = parser.parse_args()
    costs = calibrated(args.measured)
    figures = figures_of(costs)
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
