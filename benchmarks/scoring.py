"""What does `dmondrian score` cost beyond the forest's answers? Parquet to Parquet beside memory.

A forest is trained on rows of a set, which are then scored in four ways, in turns, each on one
thread: from memory, and by `dmondrian.distributed.score` with one worker of one thread, from
Parquet to Parquet; the probabilities alone (`details=False`), and with all that a file of scores
writes of a row by default (deviation and distance too). Parquet to Parquet is measured by the
difference between many copies of the file and one, so that the start of processes, which does not
grow with the rows, is left out; it is reported by itself. A profile shows where the rest goes.

    python -m benchmarks.scoring --data <folder>
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dmondrian
from benchmarks.answering import seconds
from benchmarks.pages import Number, Page, publish, single
from benchmarks.records import RESULTS, Records, table
from benchmarks.throughput import spread
from dmondrian import AMFClassifier
from dmondrian.data import make_scoring_plan, read_block
from dmondrian.data.score_columns import score_arrays
from dmondrian.distributed import score, train
from dmondrian.distributed.scoring.model_info import open_model
from dmondrian.distributed.scoring.output_folder import sealed

TARGETS = {"covtype": "Cover_Type", "adult": "income"}
PLAIN, ALL = "probabilities", "all that a file has"
ASKED = {PLAIN: {}, ALL: {"spread": True, "distance": True}}
ONE = {"n_workers": 1, "threads": 1}


def first_rows(folder: Path, n: int) -> pa.Table:
    """Return the first rows of the set."""
    return pa.concat_tables(map(pq.read_table, sorted(folder.glob("*.parquet")))).slice(0, n)


def profile(forest: Any, plan: Any, classes: Any, scratch: Path) -> dict[str, float]:
    """Return the seconds of each step of scoring the plan's rows, in this process."""
    marks = [time.perf_counter()]
    read = [read_block(plan, block) for block in plan.blocks]
    marks.append(time.perf_counter())
    sums = [forest.predict_sums(rows.X, **ASKED[ALL]) for rows in read]
    marks.append(time.perf_counter())
    arrays = [score_arrays(one, classes, None, forest.parameters) for one in sums]
    marks.append(time.perf_counter())
    for own in arrays:
        names = [str(k) for k in range(len(own))]
        scratch.write_bytes(sealed(pa.table(own, names), "0" * 64, scratch.name))
    marks.append(time.perf_counter())
    return dict(zip(("read", "answer", "columns", "write"), np.diff(marks), strict=True))


def ordered(values: list[float], scale: float = 1.0) -> str:
    """Write the median, least and greatest."""
    return spread([of(values) / scale for of in (min, statistics.median, max)], ".2f")


def millions(rates: list[float]) -> str:
    """Write rates in millions a second."""
    return ordered(rates, 1e6)


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train, score in turns; return one record."""
    rows = first_rows(Path(args.data) / args.set, args.max_rows)
    for name, copies in (("one", 1), ("many", 1 + args.copies)):
        (folder / name).mkdir()
        for copy in range(copies):
            pq.write_table(rows, folder / name / f"{copy:03d}.parquet")
    estimator = AMFClassifier(args.trees, random_state=0, feature_scales=None, alpha=0.01)
    run = str(folder / "run")
    train(estimator, str(folder / "one"), target=TARGETS[args.set], run=run, progress=False, **ONE)
    model, forest = open_model(run), dmondrian.load(run).forest_
    plan = make_scoring_plan(str(folder / "one"), model.schema)
    X = np.concatenate([read_block(plan, block).X for block in plan.blocks])
    forest.predict_sums(X, **ASKED[ALL])  # compiles and freezes
    work = len(X) * args.trees
    memory: dict[str, list[float]] = {asked: [] for asked in ASKED}
    parquet: dict[str, list[float]] = {asked: [] for asked in ASKED}
    starts, steps = [], []
    for _ in range(args.repeats):
        for asked, reported in ASKED.items():
            memory[asked].append(work / seconds(partial(forest.predict_sums, X, **reported)))
            took = {}
            for name in ("one", "many"):
                how = {"details": asked == ALL, "progress": False, **ONE}
                out = folder / "scores"
                took[name] = seconds(partial(score, run, str(folder / name), out, **how))
                shutil.rmtree(out)
            parquet[asked].append(work * args.copies / (took["many"] - took["one"]))
            starts.append(took["one"] - (took["many"] - took["one"]) / args.copies)
        steps.append(profile(forest, plan, model.schema.classes, folder / "scratch"))
    shares = {
        name: statistics.median(step[name] / sum(step.values()) for step in steps)
        for name in steps[0]
    }
    about = {"set": args.set, "rows": len(X), "trees": args.trees, "copies": args.copies}
    rates = {"memory": memory, "parquet": parquet}
    return {**about, "rates": rates, "start_seconds": statistics.median(starts), "shares": shares}


def report(records: Records) -> str:
    """Markdown: rates, ratios, and shares of the steps."""
    lines = []
    for r in records:
        memory, parquet = r["rates"]["memory"], r["rates"]["parquet"]
        for asked in ASKED:
            ratio = [own / other for own, other in zip(parquet[asked], memory[asked], strict=True)]
            lines.append(
                [r["set"], r["rows"], r["trees"], asked, millions(memory[asked]),
                 millions(parquet[asked]), ordered(ratio)]
            )  # fmt: skip
    head = ["set", "rows", "trees", "what is asked", "from memory", "Parquet to Parquet", "ratio"]
    text = (
        "Millions of rows x trees per second, one thread: median (least to greatest).\n\n"
        + table(head, lines)
    )
    for r in records:
        reported = ", ".join(f"{name} {100 * share:.0f} %" for name, share in r["shares"].items())
        text += f"\n{r['set']}, {r['rows']} rows, {r['trees']} trees: {reported}; "
        text += f"start and end, the loading of the model in it, {r['start_seconds']:.1f} s.\n"
    return text


def ratio_of(asked: str) -> Callable[[Records], Number]:
    """Return what finds the rate from Parquet to Parquet over the rate in memory."""

    def find(records: Records) -> Number:
        record = records.only(set="covtype")
        memory, parquet = (record["rates"][where][asked] for where in ("memory", "parquet"))
        ratio = [own / other for own, other in zip(parquet, memory, strict=True)]
        return single([min(ratio), statistics.median(ratio), max(ratio)], ".2f", record)

    return find


def share_of_answers(records: Records) -> Number:
    """Return the share of the time that the forest's answers take."""
    record = records.only(set="covtype")
    return single(100.0 * record["shares"]["answer"], ".0f", record)


PAGE = Page(
    title="Scoring Parquet",
    question="What does `dmondrian score` cost beyond the forest's answers, from Parquet to"
    " Parquet?",
    identity=("set", "rows", "trees", "cpu"),
    body=report,
    numbers={
        "plain": ratio_of(PLAIN),
        "all": ratio_of(ALL),
        "answers": share_of_answers,
    },
    sentences=(
        "From Parquet to Parquet a worker reaches {plain} of the rate in memory for probabilities"
        " alone, and {all} with deviation and distance, which have to be looked up.",
        "Of the time that grows with the rows the answers take {answers} per cent.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder with one sub-folder per real set")
    parser.add_argument("--set", default="covtype", choices=list(TARGETS))
    parser.add_argument("--max-rows", type=int, default=20_000)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--copies", type=int, default=10, help="of the file, scored beyond one")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "scoring.json")
    args = parser.parse_args()
    records = Records(args.out, PAGE.identity)
    with tempfile.TemporaryDirectory() as folder:
        records.add(measure(args, Path(folder)))
    publish("scoring", records)


if __name__ == "__main__":
    main()
