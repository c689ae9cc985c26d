"""How long is it from `import` to the first prediction? Seconds of fresh processes, in one run.

Each model learns 1000 rows of 20 columns with 10 trees, and predicts them, enough for dmondrian to
freeze its trees, whose kernels are then compiled too; processes take turns.
Each tells the seconds of its steps: ``libraries`` (import NumPy and scikit-learn, which every user
of an estimator needs), ``package`` (import the package beyond these), ``estimator`` (get the class:
dmondrian loads Numba then), ``first`` (learn and predict). ``beyond`` is all but the libraries.
Byte code is cached, as in an installation. Seconds are the processor's, so that other work on the
machine does not count; all of it is on one thread.

`dmondrian, cold` begins with an empty kernel cache, as on a new machine, `dmondrian` with the one
that its cold run has filled. onelearn has no cache: every process compiles.

Of commands on a run of 1000 rows and 10 trees, the seconds of the command's process and of the
worker processes that it starts and ends.

    python -m benchmarks.startup --peers <cache folder>
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.pages import Figure, Page, publish, single
from benchmarks.peers.runner import ONE_THREAD, ROOT, interpreter
from benchmarks.records import RESULTS, Records, table

STEPS = ("libraries", "package", "estimator", "first")
# What a process does: a statement for each step but the first.
DMONDRIAN = (
    "import dmondrian",
    "from dmondrian import AMFClassifier",
    "AMFClassifier(10, random_state=0).partial_fit(X, y, classes=[0, 1]).predict_proba(X)",
)
PROGRAMS = {
    "dmondrian, cold": DMONDRIAN,
    "dmondrian": DMONDRIAN,
    "random forest": (
        "import sklearn.ensemble",
        "from sklearn.ensemble import RandomForestClassifier",
        "RandomForestClassifier(10, random_state=0).fit(X, y).predict_proba(X)",
    ),
    "onelearn": (
        "import onelearn",
        "from onelearn import AMFClassifier",
        "AMFClassifier(2, 10, random_state=0).partial_fit(X, y).predict_proba(X)",
    ),
}
COMMANDS = {
    "describe": ("describe", "run"),
    "report": ("report", "run", "--out", "page.html"),
    "evaluate": ("evaluate", "run", "rows.parquet"),
    "score": ("score", "run", "rows.parquet", "scores"),
    "score, one worker process": ("score", "run", "rows.parquet", "scores", "--workers", "1"),
}
"""Arguments of `dmondrian`, in a folder with a run and the rows that it learned."""
TRAIN = """
import numpy, pyarrow, pyarrow.parquet
from dmondrian import AMFClassifier
from dmondrian.distributed import train
if __name__ == "__main__":  # worker processes import this again
    X = numpy.random.default_rng(0).random((1000, 20))
    columns = {f"x{j}": X[:, j] for j in range(20)}
    columns["y"] = (X[:, 0] > X[:, 1]).astype(int)
    pyarrow.parquet.write_table(pyarrow.table(columns), "rows.parquet")
    train(AMFClassifier(10, random_state=0), "rows.parquet", target="y", run="run", n_workers=1)
"""
TIMED = """
import json, sys, time
times = [time.process_time()]
import numpy, sklearn
times.append(time.process_time())
X = numpy.random.default_rng(0).random((1000, 20), dtype=numpy.float32)
y = (X[:, 0] > X[:, 1]).astype(numpy.float32)
seconds = [times[1] - times[0]]
for statement in json.loads(sys.argv[1]):
    start = time.process_time()
    exec(statement)
    seconds.append(time.process_time() - start)
sys.stdout.write(json.dumps(seconds) + chr(10))
"""


def measure(python: Path, program: tuple[str, ...], folder: str, cache: str) -> dict[str, float]:
    """Run a program in a process of its own; return the seconds of its steps."""
    env = {**os.environ, **ONE_THREAD, "DMONDRIAN_CACHE_DIR": cache}
    env |= {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [str(python), "-c", TIMED, json.dumps(program)]
    done = subprocess.run(command, env=env, cwd=folder, stdout=subprocess.PIPE, check=True)
    seconds = dict(zip(STEPS, json.loads(done.stdout.splitlines()[-1]), strict=True))
    seconds["beyond"] = sum(seconds.values()) - seconds["libraries"]
    return seconds


def rounds(pythons: dict[str, Path], repeats: int, slow_repeats: int) -> dict[str, list[dict]]:
    """Let the models take turns; return the seconds of each of their processes."""
    found: dict[str, list[dict]] = {model: [] for model in pythons}
    with tempfile.TemporaryDirectory() as folder:
        for model, python in pythons.items():  # byte code of the standard library and NumPy
            if model != "onelearn":
                measure(python, PROGRAMS[model], folder, f"{folder}/first")
        for turn in range(repeats):
            for model, python in pythons.items():
                is_slow = model in ("dmondrian, cold", "onelearn")
                if is_slow and turn >= slow_repeats:
                    continue
                cache = f"{folder}/{turn}" if model == "dmondrian, cold" else f"{folder}/first"
                found[model].append(measure(python, PROGRAMS[model], folder, cache))
    return found


def commands(repeats: int) -> dict[str, list[float]]:
    """Let the commands take turns; return the seconds of each."""
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, **ONE_THREAD}  # with the user's cache of kernels
        env |= {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        Path(folder, "train.py").write_text(TRAIN)
        subprocess.run([sys.executable, "train.py"], env=env, cwd=folder, check=True)
        for turn in range(-1, repeats):  # the first ones fill the caches
            for name, words in COMMANDS.items():
                shutil.rmtree(Path(folder, "scores"), ignore_errors=True)
                before = seconds_of_children()
                subprocess.run(
                    [sys.executable, "-m", "dmondrian.cli", *words],
                    env=env, cwd=folder, check=True, capture_output=True,
                )  # fmt: skip
                if turn >= 0:
                    found[name].append(seconds_of_children() - before)
    return found


def seconds_of_children() -> float:
    """Return the processor seconds of processes that were waited for, and of those they awaited."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def summary(model: str, seconds: list[dict[str, float]]) -> dict[str, Any]:
    """Return a record: least, median and greatest seconds of each step."""
    record: dict[str, Any] = {"model": model, "repeats": len(seconds)}
    for step in (*STEPS, "beyond"):
        values = [each[step] for each in seconds]
        record[step] = [min(values), statistics.median(values), max(values)]
    return record


def report(records: Records) -> str:
    """Markdown: a row per model, and how many times dmondrian's seconds that is."""
    own = {record["model"]: record for record in records}["dmondrian"]["beyond"][1]
    steps = (*STEPS, "beyond")
    of_commands = [
        [one["model"], one["repeats"], "{1:.2f} ({0:.2f} to {2:.2f})".format(*one["whole"])]
        for one in records
        if "whole" in one
    ]
    rows = [
        [
            record["model"],
            record["repeats"],
            *("{1:.2f} ({0:.2f} to {2:.2f})".format(*record[step]) for step in steps),
            f"{record['beyond'][1] / own:.2f}",
        ]
        for record in records
        if "whole" not in record
    ]
    text = (
        "Seconds of the processor: median (least to greatest). `beyond` is the sum without the "
        "libraries, `ratio` how many times dmondrian's that is.\n\n"
        + table(["model", "processes", *STEPS, "beyond", "ratio"], rows)
    )
    if of_commands:
        text += "\nOf commands, from start to end, with the processes of their workers.\n\n"
        text += table(["command", "runs", "seconds"], of_commands)
    return text


def beyond(model: str, form: str) -> Figure:
    """Return what finds the seconds of a model beyond the libraries."""

    def find(records: Records) -> Any:
        record = records.only(model=model)
        return single(record["beyond"], form, record)

    return find


def whole(command: str) -> Figure:
    """Return what finds the seconds of a command."""

    def find(records: Records) -> Any:
        record = records.only(model=command)
        return single(record["whole"], ".2f", record)

    return find


PAGE = Page(
    title="Start-up",
    question="How long is it from `import` to the first prediction, in a fresh process?",
    identity=("model", "cpu"),
    body=report,
    numbers={
        "warm": beyond("dmondrian", ".2f"),
        "cold": beyond("dmondrian, cold", ".1f"),
        "forest": beyond("random forest", ".2f"),
        "onelearn": beyond("onelearn", ".1f"),
        "score": whole("dmondrian score"),
        "describe": whole("dmondrian describe"),
    },
    sentences=(
        "Beyond the libraries that users of scikit-learn load anyway, the first learning and"
        " prediction takes {warm} seconds where kernels are compiled, {cold} where none is,"
        " {forest} for a random forest, and {onelearn} for onelearn, which compiles in every"
        " process.",
        "Compiled kernels are loaded without what Numba compiles with.",
        "`dmondrian score` of a thousand rows takes {score} seconds in all, `describe` {describe}.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", help="folder of the peers' environments")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--slow-repeats", type=int, default=3, help="of those that compile")
    parser.add_argument("--out", type=Path, default=RESULTS / "startup.json")
    parser.add_argument("--only-commands", action="store_true")
    args = parser.parse_args()
    records = Records(args.out, PAGE.identity)
    for name, seconds in commands(args.repeats).items():
        span = [min(seconds), statistics.median(seconds), max(seconds)]
        records.add({"model": f"dmondrian {name}", "repeats": len(seconds), "whole": span})
    if not args.only_commands:
        measure_models(args, records)
    publish("startup", records)


def measure_models(args: argparse.Namespace, records: Records) -> None:
    """Measure all models that there is an environment for."""
    pythons = {
        model: python
        for model in PROGRAMS
        if (python := interpreter(model if model == "onelearn" else "dmondrian", args.peers))
    }
    if "onelearn" not in pythons:
        print("onelearn: left out, no environment for it under --peers", file=sys.stderr)
    for model, seconds in rounds(pythons, args.repeats, args.slow_repeats).items():
        records.add(summary(model, seconds))


if __name__ == "__main__":
    main()
