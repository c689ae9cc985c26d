"""All benchmarks, one after the other: as benchmarks/README.md reports them, or at tiny sizes.

    python -m benchmarks --data <folder> [--peers <folder>] [name ...]
    python -m benchmarks --small --data jobs/data --results <folder>

``--small`` runs each script for seconds, on a few hundred rows, to see that it runs: its figures
say nothing, so it wants a folder of its own for them. A script that fails does not stop the
others; it is named at the end, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.records import RESULTS, RESULTS_VARIABLE


class Run(NamedTuple):
    """How one script is run."""

    script: str
    whole: str  # arguments of the reported run
    small: str | None  # those of a tiny one; None where the least there is takes minutes
    takes_data: bool = True
    takes_peers: bool = False


RUNS = (
    Run("quality", "", "--sets adult california_housing --max-rows 300 --models"
        " 'dmondrian 10' 'uncalibrated 10'", takes_peers=True),
    Run("quality_small", "", "--sets adult california_housing --sizes 100 --seeds 2 --models"
        " 'dmondrian 100' 'random forest 100' 'hist boosting 100'", takes_peers=True),
    Run("scales_tried", "--max-rows 12000",
        "--sets california_housing --max-rows 400 --parts maps groups warmup"),
    Run("rounding", "--max-rows 20000",
        "--sets adult california_housing --max-rows 900 --trees 2 --seeds 1"),
    Run("throughput", "--max-rows 100000", "--workloads adult friedman1 --max-rows 1000 --repeats 1"
        " --models dmondrian --at-hand 16", takes_peers=True),
    Run("levels", "", "--sets adult --max-rows 300"),
    Run("monotone", "", "--sets adult friedman1 --max-rows 300"),
    Run("calibrating", "",
        "--sets adult --max-rows 600 --trees 2 --single 100 200 300 --repeats 1"),
    Run("answering", "--max-rows 100000",
        "--workloads adult friedman1 --max-rows 1000 --repeats 1"),
    Run("forecasts", "", "--streams classes labels --max-rows 2000 --trees 2 --repeats 1"),
    Run("drift", "", "--streams SEA --max-rows 600 --delays 1 --blocks 64"
        " --learners 'AMF plain 10' 'AMF follow 4' 'river HAT' 'last label'", takes_peers=True),
    Run("drift.numbers", "", "--streams Friedman --max-rows 300"
        " --learners 'AMF plain 10' 'AMF follow 4' 'last label'", takes_peers=True),
    Run("drift.later", "", "--streams hyperplane --max-rows 300"
        " --learners AMF 'AMF follow, delay as advised'"),
    Run("drift.answers", "", "--sets adult --max-rows 300 --repeats 1"),
    Run("scoring", "--max-rows 100000",
        "--set adult --max-rows 600 --trees 2 --copies 1 --repeats 1"),
    Run("serving", "--connections 1 32", "--rows 300 --seconds 0.2 --repeats 1 --connections 2"
        " --servers 'dmondrian serve' 'run of 14 columns, reloaded'", takes_data=False),
    Run("growth", "--fresh",
        "--streams classes labels wide adult --max-rows 11000 --trees 1 --at-hand 16"),
    Run("shapes", "", "--max-rows 300 --repeats 1", takes_data=False),
    Run("startup", "", None, takes_data=False, takes_peers=True),
    Run("report_pages", "", "--max-rows 600", takes_peers=True),
    Run("first_screen", "", None, takes_data=False),
    Run("footprint", "", None, takes_data=False),
    Run("structure", "", "--commits HEAD", takes_data=False),
    Run("small_files", "", "--files 20 --kernel-files 0 --trees 2", takes_data=False),
    Run("micro_batches", "", "--looks 3", takes_data=False),
    Run("mechanisms", "", "--workloads adult --sizes 300 --trees 1 --rounds 1 --not-compiling"
        " --without int16 bits"),
    Run("ablation", "--max-rows 20000", "--sets adult --max-rows 200 --trees 2"),
    Run("encoding", "", "--trees 1 --max-rows 1000"),
    Run("lifetimes", "--max-rows 12000", "--sets california_housing --max-rows 200"),
    # Without b16, whose scripts are below.
    Run("figures", "m17 m21 z24 d13",
        "d13 --d13-set adult --d13-trees 2 --d13-seeds 1 --max-rows 300"),
    Run("intervals", "--max-rows 8000 --repeats 25",
        "--max-rows 300 --parts prediction deviations"),
    # The part that it does not name is run by figures.
    Run("online_forests", "usps memory defaults speech peers",
        "--sets adult --max-rows 300 --models 'online forest 10' --trees 2"
        " --seeds 1 --rows 500 memory peers", takes_peers=True),
    Run("generalized", "--max-rows 8000", "--sets california_housing --max-rows 300 quantiles"),
    Run("rates", "", "--sets california_housing --max-rows 300 --states 5 --rows 300 --seeds 2"),
    Run("kernel.figure_5", "", "--sizes 2 5", takes_data=False),
    Run("kernel.figure_6", "", "--set california_housing --max-rows 200 --sizes 1 5"),
    Run("kernel.figure_7", "", "--rows 60 --seeds 5", takes_data=False),
    Run("kernel.figure_8", "--compared",
        "--entries 4 --set california_housing --max-rows 200"),
    Run("kernel.figure_9", "", "--set california_housing --max-rows 200 --lifetimes 0.3 1"),
    Run("kernel.figure_10", "", "--set california_housing --max-rows 200 --lifetimes 0.3 1"),
    Run("kernel.speed_table", "", "--sets california_housing --max-rows 200"),
    Run("blobs", "", "--set adult --rows 16000 --trees 1 --repeats 1"),
    Run("chaos", "", None),
    Run("recovery", "", None),
    Run("far_hosts", "", None),
    Run("scaling", "", None, takes_data=False),
    Run("row_parts", "--fresh", "--fresh --max-rows 4000 --endless-rows 1000", takes_data=False),
    Run("scaling_model", "", None, takes_data=False),
)  # fmt: skip
NAMES = tuple(run.script for run in RUNS)


def command(run: Run, args: argparse.Namespace) -> list[str]:
    """Return the command line of one script."""
    reported = [sys.executable, "-m", f"benchmarks.{run.script}"]
    if run.takes_data:
        reported += ["--data", args.data]
    if run.takes_peers and args.peers is not None:
        reported += ["--peers", args.peers]
    return reported + shlex.split((run.small if args.small else run.whole) or "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}; all")
    parser.add_argument("--data", required=True, help="folder with one sub-folder per real set")
    parser.add_argument("--peers", help="folder of the peers' environments")
    parser.add_argument("--small", action="store_true", help="only see that they run")
    parser.add_argument("--results", type=Path, help="folder for tables and figures")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(NAMES)):
        parser.error(f"there is no benchmark named {', '.join(unknown)}")
    if args.small and args.results is None:
        parser.error("--small wants --results: its figures are not to replace those reported")
    results = args.results or RESULTS
    results.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, RESULTS_VARIABLE: str(results.resolve())}
    failed = []
    for run in RUNS:
        if run.script not in (args.names or NAMES) or (args.small and run.small is None):
            continue
        started = time.monotonic()
        code = subprocess.run(command(run, args), env=environment, check=False).returncode
        print(f"{run.script}: {time.monotonic() - started:.0f} s, exit {code}", file=sys.stderr)
        failed += [run.script] if code else []
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
