"""Every benchmark runs, at tiny sizes, on the data of the repository: scripts must not rot."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import runpy
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks import datasets
from benchmarks.__main__ import NAMES, RUNS, Run, command
from benchmarks.figures import run_script
from benchmarks.growth import stages
from benchmarks.records import RESULTS_VARIABLE

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow  # so that they begin with the first: they are many


def test_all_scripts_are_run_by_the_one_command() -> None:
    named = {
        path.stem for path in (ROOT / "benchmarks").glob("*.py") if "def main(" in path.read_text()
    }
    named |= {path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")}
    deeper = {
        f"{path.parent.name}.{path.stem}"
        for path in (ROOT / "benchmarks").glob("*/*.py")
        if path.stem != "__main__"
        and path.parent.name != "peers"
        and "def main(" in path.read_text()
    }
    assert named - {"__main__", "pages", "summary"} | deeper == set(NAMES)


PRELOADED = ["dmondrian.estimators", "dmondrian.distributed", "dask.distributed"]
PRELOADED += ["pandas", "matplotlib.pyplot", "sklearn.ensemble", "sklearn.pipeline", "scipy.stats"]


@pytest.fixture(scope="module")
def imported() -> multiprocessing.context.ForkServerContext:
    """Processes that have imported what the scripts do: half of the time of each, otherwise."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def run_as_script(name: str, arguments: list[str], results: Path) -> None:
    """Run a benchmark as ``python -m`` does, with a file for what it prints."""
    os.chdir(ROOT)
    os.environ[RESULTS_VARIABLE] = str(results)
    for module in [each for each in sys.modules if each.partition(".")[0] == "benchmarks"]:
        del sys.modules[module]  # they look at the environment when they are imported
    sys.argv = [name, *arguments]
    printed = os.open(results / "printed.txt", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):  # of processes that a script starts, too
        os.dup2(printed, stream)
    runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)


class ReadError(Exception):
    """The arguments of a script were read."""


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.script)
def test_a_benchmark_knows_its_arguments(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parse = ArgumentParser.parse_args

    def parse_and_end(self: ArgumentParser, *given: Any) -> None:
        parse(self, *given)
        raise ReadError

    is_folder = (ROOT / "benchmarks" / run.script).is_dir()
    name = f"benchmarks.{run.script}" + ".__main__" * is_folder
    main = importlib.import_module(name).main
    monkeypatch.setattr(ArgumentParser, "parse_args", parse_and_end)
    for small in {False, run.small is not None}:
        words = command(run, Namespace(data="jobs/data", peers="peers", small=small))[3:]
        monkeypatch.setattr(sys, "argv", [run.script, *words])
        with pytest.raises(ReadError):
            main()


# Scripts that are run outside of the thorough run too: one of data, that takes seconds. One of a
# paper, without data, is run below; what all scripts read from a command line is shown above.
QUICK = (
    "ablation",  # losses
)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, id=run.script, marks=() if run.script in QUICK else pytest.mark.thorough)
        for run in RUNS
        if run.small is not None
    ],
)
def test_a_benchmark_runs(
    run: Run, imported: multiprocessing.context.ForkServerContext, tmp_path: Path
) -> None:
    asked = Namespace(data="jobs/data", peers=None, small=True)
    arguments = command(run, asked)[3:]  # behind python -m benchmarks.NAME
    process = imported.Process(target=run_as_script, args=(run.script, arguments, tmp_path))
    process.start()
    process.join()
    printed = (tmp_path / "printed.txt").read_text()
    assert process.exitcode == 0, printed
    # Each prints the page that it writes from its records.
    pages = [file.read_text() for file in tmp_path.glob("*.md")]
    assert pages
    assert all(page in printed and "|" in page for page in pages)
    assert all(page.with_suffix(".json").exists() for page in tmp_path.glob("*.md"))


@pytest.mark.thorough
def test_the_one_command_runs_a_script_and_names_one_that_failed(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "benchmarks", "kernel.figure_7", "rounding", "--small"]
    asked += ["--data", str(tmp_path / "nothing"), "--results", str(tmp_path)]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "kernel.figure_7: " in done.stderr
    assert done.stderr.rstrip().endswith("failed: rounding")
    assert (tmp_path / "kernel_figure_7.json").exists()


def test_figures_that_other_scripts_have_are_drawn_where_asked(tmp_path: Path) -> None:
    args = Namespace(data="jobs/data")
    run_script("kernel.figure_5", ["--sizes", "2", "5"], args, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {
        "kernel_figure_5.json",
        "kernel_figure_5.md",
        "kernel_figure_5.png",
    }
    assert sum(name.startswith("kernel.figure_") for name in NAMES) == 6


@pytest.mark.parametrize(
    ("rows", "reported"),
    [
        (1_000_000, [10_000, 30_000, 100_000, 300_000, 1_000_000]),
        (581_012, [10_000, 30_000, 100_000, 300_000, 581_012]),
        (48_842, [10_000, 30_000, 48_842]),
        (14_000, [10_000]),
        (8_000, [8_000]),
    ],
)
def test_growth_is_reported_at_the_end_of_a_stream(rows: int, reported: list[int]) -> None:
    assert stages(rows) == reported


def test_rows_are_learned_in_the_order_in_which_they_are_stored() -> None:
    files = sorted((ROOT / "jobs/data/adult").glob("*.parquet"))
    income = np.concatenate([pq.read_table(file)["income"].to_pandas() for file in files])
    found = datasets.stored("adult", ROOT / "jobs/data")
    assert (found.y_train == (income == ">50K")).all()
    assert len(found.y_train) == len(found.X_train) == 48_842
    assert len(found.y_test) == 0
    few = datasets.stored("adult", ROOT / "jobs/data", 500)
    assert (few.y_train == found.y_train[:500]).all()
    assert few.X_train.min() == 0.0
    assert few.X_train.max() == 1.0
