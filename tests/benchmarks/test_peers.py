"""Peers of the benchmarks: what can be shown of them without their environments."""

from __future__ import annotations

import ast
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import report_pages
from benchmarks.peers import build
from benchmarks.peers.runner import ENVIRONMENTS, WORKER, interpreter
from benchmarks.peers.worker import PEERS
from benchmarks.records import Records
from benchmarks.throughput import MODELS, measure, report

# In place of scikit-garden, which no index has: its names, its arguments, and its answers' shapes.
STAND_IN = """
import numpy as np

class MondrianForestRegressor:
    def __init__(self, n_estimators, random_state, n_jobs):
        assert (n_estimators, random_state, n_jobs) == (2, 0, 1)
        self.rows = 0

    def partial_fit(self, X, y):
        assert self.rows == 0, "not in one call"
        self.rows = len(X)
        return self

    def predict(self, X):
        return np.zeros(len(X))

class MondrianForestClassifier(MondrianForestRegressor):
    def partial_fit(self, X, y, classes):
        self.classes = classes
        return super().partial_fit(X, y)

    def predict_proba(self, X):
        return np.full((len(X), len(self.classes)), 1 / len(self.classes))
"""


@pytest.fixture
def peers(tmp_path: Path) -> Path:
    """A folder of environments that has scikit-garden's alone."""
    home = tmp_path / "peers" / "scikit-garden"
    (home / "bin").mkdir(parents=True)
    (home / "skgarden.py").write_text(STAND_IN)
    python = home / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{home}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return home.parent


@pytest.mark.parametrize("workload", ["synthetic_d100_k5", "friedman1"])
@pytest.mark.thorough(but="friedman1")
def test_throughput_is_reported_beside_scikit_garden(
    workload: str, peers: Path, tmp_path: Path
) -> None:
    args = Namespace(data=None, peers=peers, max_rows=700, trees=2, repeats=1, at_hand=1)
    records = Records(tmp_path / "throughput.json", ("workload", "model"))
    for record in measure(workload, args, ["dmondrian", "scikit-garden"]):
        records.add(record)
    own, its = records
    assert (own["model"], its["model"]) == ("dmondrian", "scikit-garden")
    for step in ("fit", "predict"):
        ratio = own[f"{step}_rate"][1] / its[f"{step}_rate"][1]
        assert its[f"{step}_ratio"] == pytest.approx([ratio] * 3)
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in report(records).splitlines()
        if line.startswith("|")
    ]
    reported = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["model"] for row in reported] == ["dmondrian", "scikit-garden"]
    assert [row["ratio, learn"].split()[0] for row in reported] == [
        "1.00",
        f"{its['fit_ratio'][1]:.2f}",
    ]
    assert all(int(row["n"]) == 700 for row in reported)


def test_each_record_names_the_run_that_it_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new.json"
    command = ["script", "--data", "folder", "--trees", "2", "10 rows", "part", "--out", "file"]
    monkeypatch.setattr("sys.argv", command)
    for cpu, value in (("A", 1), ("B", 2), ("B", 3), ("A", 4)):
        monkeypatch.setattr("benchmarks.records.machine", lambda cpu=cpu: {"cpu": cpu})
        Records(path, ("model", "cpu")).add({"model": "x", "value": value})
    records = Records(path, ("model", "cpu"))
    assert [(records.cpu(r), r["value"]) for r in records] == [("A", 4), ("B", 3)]
    assert all(run["commit"] for run in records.runs)
    assert {run["arguments"] for run in records.runs} == {"--trees 2 '10 rows' part"}
    assert records.machines() == ["B", "A"]
    assert [r["value"] for r in records.of_machine("B")] == [3]
    assert {"model": "x"} in records
    monkeypatch.setattr("benchmarks.records.machine", lambda: {"cpu": "C"})
    assert {"model": "x"} not in Records(path, ("model", "cpu"))
    # Without the machine in the identity a result replaces that of any machine, and its run goes.
    plain = Records(tmp_path / "plain.json", ("model",))
    for cpu in ("A", "B"):
        monkeypatch.setattr("benchmarks.records.machine", lambda cpu=cpu: {"cpu": cpu})
        plain.add({"model": "x"})
    assert [run["cpu"] for run in Records(plain.path, ("model",)).runs] == ["B"]


def test_a_fresh_run_forgets_what_it_measures_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for identity, kept in ((("model",), 0), (("model", "cpu"), 1)):
        path = tmp_path / f"{len(identity)}.json"
        for cpu in ("A", "B"):
            monkeypatch.setattr("benchmarks.records.machine", lambda cpu=cpu: {"cpu": cpu})
            Records(path, identity).add({"model": "x"})
        assert len(Records(path, identity, fresh=True)) == kept


def test_each_peer_has_a_worker_and_where_needed_an_environment_that_can_be_built() -> None:
    assert set(MODELS.values()) | set(ENVIRONMENTS) <= set(PEERS)
    of_reports = {environment for environment, _ in report_pages.PEERS.values()}
    assert {*ENVIRONMENTS.values(), *of_reports} == set(build.RECIPES) == set(build.PROOFS)
    assert not of_reports & set(ENVIRONMENTS.values())
    assert interpreter("scikit_garden", None) is None


def test_the_worker_is_for_python_3_8() -> None:
    tree = ast.parse(WORKER.read_text(), feature_version=(3, 8))
    # What all of its names are in; the peers themselves are imported by their functions.
    asked = {
        alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    known = {"argparse", "json", "sys", "time", "pathlib.Path", "numpy"}
    assert asked - {"__future__.annotations"} <= known


def test_scikit_garden_is_left_out_where_there_is_no_python_3_8(tmp_path: Path) -> None:
    broken = tmp_path / "python3.8"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    for python in (sys.executable, str(broken), "no-such-python"):
        done = _build(tmp_path, python, "scikit-garden")
        assert done.returncode == 1
        assert "Python 3.8" in done.stderr
        assert python in done.stderr
        assert not (tmp_path / "scikit-garden").exists()


def test_the_other_peers_do_not_need_python_3_8(tmp_path: Path) -> None:
    others = [name for name in build.RECIPES if name != build.GARDEN]
    for name in others:  # as if they had been built
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\n")
        python.chmod(0o755)
    done = _build(tmp_path, sys.executable)
    assert done.returncode == 0
    assert "scikit-garden: left out" in done.stderr
    assert done.stdout.split(":")[0] == others[0]
    assert done.stdout.count("already in") == len(others)


def _build(folder: Path, python38: str, *names: str) -> subprocess.CompletedProcess[str]:
    reported = [sys.executable, "-m", "benchmarks.peers.build", str(folder), "--python38", python38]
    root = Path(__file__).parents[2]
    return subprocess.run(
        [*reported, *names], cwd=root, capture_output=True, text=True, check=False
    )


def test_scikit_garden_is_taken_from_a_clone_or_an_address(tmp_path: Path) -> None:
    assert build.address(str(tmp_path)) == tmp_path.as_uri()
    assert build.address(build.GARDEN_REPOSITORY) == build.GARDEN_REPOSITORY


def test_records_in_memory_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is written after a run is the one that its script makes of the file."""
    records = Records(tmp_path / "records.json", ("model",))
    for given in ("--first", "--second"):
        monkeypatch.setattr("benchmarks.records.arguments", lambda given=given: given)
        records.add({"model": "x"})
    stored = Records(tmp_path / "records.json", ("model",))
    assert [run["arguments"] for run in records.runs] == ["--second"]
    assert (records.runs, list(records)) == (stored.runs, list(stored))
