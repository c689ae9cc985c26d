"""Parts of the rows that trees learn side by side: what they gain, and what merging costs.

One tree of a Mondrian forest on the cube learns a stream of uniform rows in runs of one and of two
worker processes of a thread: plain, where one worker has the tree and another nothing, and with
``row_parts``. Without a lifetime each distinct row has a cell of its own, so that fewer rows are
learned there. Predictions of all runs of a lifetime are compared, to the last bit.

Seconds are the processor's, of all threads of the workers: those until the parts are learned, and
those of merging. A run takes at least the seconds of its busiest worker, so "gain" is these of the
plain run over these of the run in parts; the clock of a shared machine does not count.

    python -m benchmarks.row_parts
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client, LocalCluster

from benchmarks.pages import Figure, Page, publish, range_of
from benchmarks.records import RESULTS, Records, table
from dmondrian import MondrianForestClassifier, load
from dmondrian.distributed import train

COLUMNS = 5
GROUP = 50_000  # rows of a row group
CASES = ((1, 1), (1, 2), (2, 1), (2, 2), (8, 2))  # parts of the rows, workers


class Merging(logging.Handler):
    """Notes the seconds of workers when the parts are learned."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self.client = client
        self.learned: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Look at the workers when merging begins."""
        if record.getMessage().startswith("merging"):
            self.learned = self.client.run(time.process_time)


def write_rows(path: Path, n: int) -> None:
    """Write rows of which one column tells."""
    draw = np.random.default_rng(0)
    X = draw.random((n, COLUMNS), dtype=np.float32)
    y = (X[:, 0] + 0.2 * draw.standard_normal(n) > 0.5).astype(np.int64)
    columns = {f"x{j}": X[:, j] for j in range(COLUMNS)} | {"y": y}
    pq.write_table(pa.table(columns), path, row_group_size=GROUP)


def case(
    client: Client, rows: Path, lifetime: float | None, parts: int, folder: Path
) -> dict[str, Any]:
    """Train one run; return what it took, and its predictions."""
    forest = MondrianForestClassifier(1, domain="cube", lifetime=lifetime, random_state=0)
    merging = Merging(client)
    log = logging.getLogger("dmondrian")
    log.addHandler(merging)
    log.setLevel(logging.INFO)
    before, began = client.run(time.process_time), time.monotonic()
    try:
        train(
            forest, rows, target="y", run=folder, client=client, progressive=False,
            checkpoint_every=None, row_parts=None if parts == 1 else parts,
        )  # fmt: skip
    finally:
        log.removeHandler(merging)
    seconds, after = time.monotonic() - began, client.run(time.process_time)
    learned = merging.learned or after
    found = load(folder)
    query = np.random.default_rng(1).random((10_000, COLUMNS), dtype=np.float32)
    return {
        "learning": sum(learned[worker] - before[worker] for worker in after),
        "merging": sum(after[worker] - learned[worker] for worker in after),
        "busiest": max(after[worker] - before[worker] for worker in after),
        "clock": seconds,
        "nodes": found.forest_.n_nodes,
        "predictions": found.predict_proba(query).tobytes(),
    }


def measure(lifetime: float | None, n_rows: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a record for each case of a lifetime."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "rows.parquet", n_rows)
        for parts, n_workers in CASES:
            with (
                LocalCluster(
                    n_workers=n_workers,
                    threads_per_worker=1,
                    dashboard_address="127.0.0.1:0",
                    silence_logs=logging.ERROR,
                ) as cluster,
                Client(cluster, set_as_default=False) as client,
            ):
                client.wait_for_workers(n_workers)
                # The first loads the kernels.
                runs = [
                    case(
                        client, folder / "rows.parquet", lifetime, parts,
                        folder / f"{parts}-{n_workers}-{turn}",
                    )
                    for turn in range(-1, args.repeats)
                ][1:]  # fmt: skip
            middle = sorted(runs, key=lambda run: run["busiest"])[len(runs) // 2]
            about = {"lifetime": lifetime, "rows": n_rows, "parts": parts, "workers": n_workers}
            found.append({**about, **middle})
            print(about, file=sys.stderr)
    predictions = {record.pop("predictions") for record in found}
    assert len(predictions) == 1  # of runs that differ in nothing that forecasts show
    return found


def gain(records: Records, record: dict[str, Any]) -> float:
    """Return the seconds of the busiest worker in the plain run over those of another run."""
    plain = records.only(lifetime=record["lifetime"], parts=1, workers=1)
    return plain["busiest"] / record["busiest"]


def report(records: Records) -> str:
    """Markdown: a row for each run."""
    rows = [
        [
            "none" if r["lifetime"] is None else f"{r['lifetime']:g}", f"{r['rows']:,}",
            f"{r['nodes']:,}", r["parts"], r["workers"], f"{r['learning']:.2f}",
            f"{r['merging']:.2f}", f"{r['busiest']:.2f}", f"{gain(records, r):.2f}",
            f"{r['clock']:.1f}",
        ]
        for r in sorted(records, key=lambda r: (r["lifetime"] or np.inf, r["parts"], r["workers"]))
    ]  # fmt: skip
    head = ["lifetime", "rows", "nodes", "parts", "workers", "learning, s", "merging, s"]
    return table([*head, "busiest worker, s", "gain", "by the clock, s"], rows)


def gains(lifetime: float | None) -> Figure:
    """Return what finds the gain of two parts on two workers."""

    def find(records: Records) -> Any:
        plain = records.only(lifetime=lifetime, parts=1, workers=1)
        parts = records.only(lifetime=lifetime, parts=2, workers=2)
        return range_of([gain(records, parts)], ".2f", [plain, parts])

    return find


def merging(lifetime: float | None, parts: int) -> Figure:
    """Return what finds the seconds of merging over those of learning all rows."""

    def find(records: Records) -> Any:
        plain = records.only(lifetime=lifetime, parts=1, workers=1)
        own = records.only(lifetime=lifetime, parts=parts, workers=2)
        return range_of([own["merging"] / plain["learning"]], ".2f", [plain, own])

    return find


PAGE = Page(
    title="Parts of the rows",
    question="What do parts of the rows gain where workers outnumber trees, and what does merging"
    " cost?",
    identity=("lifetime", "rows", "parts", "workers", "cpu"),
    body=report,
    numbers={
        "few": gains(2.0),
        "some": gains(5.0),
        "endless": gains(None),
        "cheap": merging(2.0, 8),
        "dear": merging(5.0, 8),
        "dearest": merging(None, 8),
    },
    sentences=(
        "Two workers, each with half of the rows of one tree, are {few} times as quick as one at"
        " the shortest lifetime, {some} times at the longer one, and {endless} times without one.",
        "Merging eight parts takes {cheap}, {dear} and {dearest} of the seconds of learning all"
        " rows: it grows with the nodes, and learning with the rows, so parts pay where there are"
        " far more rows than nodes.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--max-rows", type=int, default=4_000_000)
    parser.add_argument("--endless-rows", type=int, default=100_000, help="without a lifetime")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="forget results of earlier runs")
    parser.add_argument("--out", type=Path, default=RESULTS / "row_parts.json")
    args = parser.parse_args()
    records = Records(args.out, PAGE.identity, args.fresh)
    for lifetime in (2.0, 5.0, None):
        n_rows = args.max_rows if lifetime is not None else args.endless_rows
        for record in measure(lifetime, n_rows, args):
            records.add(record)
    publish("row_parts", records)


if __name__ == "__main__":
    main()
