"""Does the forest survive? Seeded schedules of faults over covtype, each run's bytes compared.

Two shards a worker process, on three processes, and on nine, where sums of forecasts go through a
tree; data and run folder in a bucket of a local S3 server, behind a proxy that can fail. Trees are
large enough to be saved as differences. The faults (`tests.chaos.schedule`): workers killed from
outside, in a step, a read, an upload, a restore, by their memory limit; workers stopped, retired,
gone for good, joining; a step that raises; a store that is slow, fails, breaks off or denies
what it has written; the coordinator killed, also around a commit.

A run counts as equal when all manifests, with the states that they name, and all metrics are those
of the run without faults, only the shards of hurt workers were restored, none of them learned more
than one checkpoint interval again, and nothing was left on the cluster. "lost" is the seconds over
the median of the calm runs, less what the replay costs at the calm run's speed; it holds all faults
of the schedule, slow stores and starts of workers included.

    python -m benchmarks.chaos --data <folder>
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.pages import Number, Page, publish, runs_of
from benchmarks.records import RESULTS, Records, table
from tests.chaos import schedule
from tests.chaos.harness import HangError, Outcome
from tests.chaos.place import Place, place
from tests.chaos.verdict import complaints

N_SHARDS = 6  # of three workers
BLOCK_ROWS = 2500


def covtype(folder: str, n_rows: int, group_rows: int = BLOCK_ROWS) -> dict[str, bytes]:
    """Return the first rows as two Parquet files in small row groups."""
    files = sorted(Path(folder, "covtype").glob("*.parquet"))
    if not files:
        raise FileNotFoundError(f"expected Parquet files in {Path(folder, 'covtype')}, found none")
    rows = pa.concat_tables([pq.read_table(file) for file in files]).slice(0, n_rows)
    found = {}
    for i, start in enumerate((0, n_rows // 2)):
        stop = n_rows // 2 if i == 0 else n_rows
        buffer = io.BytesIO()
        pq.write_table(rows.slice(start, stop - start), buffer, row_group_size=group_rows)
        found[f"part-{i}.parquet"] = buffer.getvalue()
    return found


def options(args: argparse.Namespace, n_workers: int) -> dict[str, Any]:
    """Return what every job on so many workers is given."""
    n_shards = n_workers * N_SHARDS // 3
    return {
        "target": "Cover_Type",
        "n_shards": n_shards,
        "checkpoint_every": f"{args.interval} rows",
        "unit_rows": BLOCK_ROWS,
        "forest": {
            "n_estimators": max(args.trees, n_shards),
            "random_state": 7,
            "alpha": 0.01,
            "feature_scales": None,
        },
    }


def record(
    seed: int, n_workers: int, outcome: Outcome, calm: list[Outcome], interval: int
) -> dict[str, Any]:
    """Return the row of one schedule."""
    usual = statistics.median(run.seconds for run in calm)
    n_rows = max(calm[0].manifests)
    replayed = sum(loss["rows"] for loss in outcome.losses if not loss["is_move"])
    replay = replayed / (n_rows * n_workers * N_SHARDS // 3) * usual
    kinds = [fault.kind for fault in outcome.struck]
    return {
        "seed": seed,
        "workers": n_workers,
        "rows": n_rows,
        "interval": interval,
        "faults": kinds,
        "kills": sum(kind in schedule.KILLS + schedule.COORDINATOR for kind in kinds),
        "complaints": complaints(outcome, calm[0], interval),
        "attempts": outcome.attempts,
        "recoveries": sum(x["is_held"] and not x["is_move"] for x in outcome.losses),
        "replayed": replayed,
        "seconds": outcome.seconds,
        "calm_seconds": usual,
        "lost": outcome.seconds - usual - replay,
    }


def strike(where: Place, seed: int, calm: list[Outcome], interval: int) -> dict[str, Any]:
    """Run one schedule; a run that hangs is a record as well."""
    faults, n_workers = schedule.draw(seed), where.workers.n_workers
    try:
        outcome = where.run(f"workers-{n_workers}/seed-{seed}", faults)
        return record(seed, n_workers, outcome, calm, interval)
    except HangError as error:
        print(error, file=sys.stderr)
        kinds = [fault.kind for fault in faults]
        kept = {"seed": seed, "workers": n_workers, "faults": kinds}
        return {**kept, "complaints": [str(error).partition(";")[0]]}


def report(records: Records) -> str:
    """Markdown: a row per number of workers and seed."""
    found = sorted(records, key=lambda r: (r["workers"], r["seed"]))
    equal = sum(not r["complaints"] for r in found)
    rows = [
        [
            r["workers"],
            r["seed"],
            ", ".join(r["faults"]),
            "; ".join(r["complaints"]) or "yes",
            *(r.get(name) for name in ("attempts", "recoveries", "replayed", "seconds", "lost")),
        ]
        for r in found
    ]
    kills = sum(r.get("kills", 0) for r in found)
    lost = sum(r.get("lost", 0.0) for r in found)
    calm = {r["workers"]: f"{r['calm_seconds']:.1f} s" for r in found if "calm_seconds" in r}
    took = ", ".join(f"{seconds} on {n} workers" for n, seconds in calm.items())
    heads = ["workers", "seed", "faults", "equal", "attempts", "recoveries", "replayed", "s"]
    return (
        f"{equal} of {len(found)} schedules equal. {kills} kills; {lost / max(kills, 1):.1f} s lost"
        f" per kill, other faults included. A calm run takes {took}. `replayed` counts rows of a"
        " shard, summed over shards.\n\n" + table([*heads, "s lost"], rows)
    )


def n_equal(records: Records) -> Number:
    """Return how many schedules ended with equal bytes."""
    equal = sum(not r["complaints"] for r in records)
    if not equal:
        raise LookupError("no schedule ended with equal bytes")
    return Number(f"{equal} of {len(records)}", "", runs_of(records))


def per_kill(records: Records) -> Number:
    """Return the seconds that a kill costs, other faults included."""
    found = [r for r in records if r.get("kills")]
    if not found:
        raise LookupError("no kills")
    lost = sum(r.get("lost", 0.0) for r in records)
    return Number(f"{lost / sum(r['kills'] for r in found):.1f}", "", runs_of(found))


PAGE = Page(
    title="Faults",
    question="Do runs on a cluster end with the same bytes whatever fails on the way?",
    identity=("workers", "seed"),
    body=report,
    numbers={"equal": n_equal, "per_kill": per_kill},
    sentences=(
        "{equal} seeded schedules of kills, stops, cut connections and store errors end with the"
        " digests and metrics of a run without faults.",
        "A kill costs {per_kill} seconds on average, replay of what was not saved and all other"
        " faults of the schedules included.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder with a sub-folder `covtype`")
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--interval", type=int, default=5_000, help="rows between checkpoints")
    parser.add_argument("--trees", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--workers", type=int, nargs="+", default=[3, 9])
    parser.add_argument("--calm", type=int, default=2, help="runs without faults")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one run")
    parser.add_argument("--out", type=Path, default=RESULTS / "chaos.json")
    args = parser.parse_args()
    records = Records(args.out, PAGE.identity)
    files = covtype(args.data, args.rows)
    for n_workers in args.workers:
        with place(files, options(args, n_workers), args.limit, n_workers) as where:
            calm = [where.run(f"workers-{n_workers}/calm-{i}", []) for i in range(args.calm)]
            for seed in range(args.seeds):
                found = strike(where, seed, calm, args.interval)
                records.add(found)
                verdict = found["complaints"] or "equal"
                print(f"{n_workers}, {seed}: {found['faults']} {verdict}", file=sys.stderr)
    publish("chaos", records)


if __name__ == "__main__":
    main()
