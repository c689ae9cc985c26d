"""Benchmarks of history run, by asv itself, at tiny sizes: they must not rot."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from asv.util import load_json

import dmondrian
from dmondrian._numba.cache import cache_folder

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "benchmarks/asv.conf.json"
PATIENCE = 600.0  # seconds, for a process that may compile kernels
pytestmark = pytest.mark.slow


def environment(home: Path) -> dict[str, str]:
    """Return a home for asv's notes, and the package and kernels of this process."""
    package = str(Path(dmondrian.__file__).parents[1])
    own = {"HOME": str(home), "DMONDRIAN_HISTORY": "tiny", "PYTHONPATH": package}
    own |= {"ASV_PYTHONPATH": package, "DMONDRIAN_CACHE_DIR": str(cache_folder().parents[1])}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ASV")}
    return {**kept, **own}


def git(folder: Path, *reported: str) -> str:
    name = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    done = subprocess.run(
        ["git", *name, *reported],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    return done.stdout.strip()


def asv(folder: Path, *reported: str) -> subprocess.CompletedProcess[str]:
    """Run asv as the repository does, but on what is installed, and with its files in a folder."""
    repository = folder / "repository"
    if not repository.exists():
        # The results of an existing environment are stored where they are of a commit; a source
        # distribution has none.
        repository.mkdir()
        git(repository, "init", "--quiet", "--initial-branch=main")
        git(repository, "commit", "--quiet", "--allow-empty", "--message=empty")
    given: dict[str, Any] = load_json(str(CONFIGURATION), js_comments=True)
    given["benchmark_dir"] = str(CONFIGURATION.parent / given["benchmark_dir"])
    given["repo"] = str(repository)
    path = folder / "asv.conf.json"
    path.write_text(json.dumps(given))
    command = [sys.executable, "-m", "asv", "--config", str(path), *reported]
    return subprocess.run(
        command,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def results(folder: Path) -> dict[str, list[float | None]]:
    """Return what was measured, by benchmark; a value for each choice of parameters."""
    (file,) = folder.glob(".asv/results/*/*-existing*.json")
    stored = json.loads(file.read_text())
    return {
        name: dict(zip(stored["result_columns"], row, strict=False))["result"]
        for name, row in stored["results"].items()
    }


@pytest.mark.thorough
def test_every_benchmark_runs(tmp_path: Path) -> None:
    assert asv(tmp_path, "machine", "--yes").returncode == 0
    # Processes are forked from one that has imported everything: they are many, and tiny.
    done = asv(
        tmp_path, "run", "--python=same", "--quick", "--show-stderr", "--set-commit-hash=main",
        "--launch-method=forkserver",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    known = json.loads((tmp_path / ".asv/results/benchmarks.json").read_text())
    known.pop("version")
    found = results(tmp_path)
    assert set(found) == set(known)
    assert {name.split(".")[0] for name in found} == {"learning", "start", "trained"}
    for name, values in found.items():
        assert len(values) == math.prod(len(choices) for choices in known[name]["params"])
        # null where it failed, NaN where it was left out.
        assert all(value is not None and 0.0 < value < math.inf for value in values), name


@pytest.mark.parametrize("is_installed", [True, False])
def test_the_package_that_asv_installed_is_measured_or_nothing(
    is_installed: bool, tmp_path: Path
) -> None:
    package = Path(dmondrian.__file__).parents[1]
    reported = {"ASV_ENV_DIR": str(package if is_installed else tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", "import history"],
        env={**environment(tmp_path), **reported, "PYTHONPATH": f"{package}:{ROOT / 'benchmarks'}"},
        cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode == 0) == is_installed, done.stderr
    assert is_installed or "is not the package that asv installed" in done.stderr


def test_benchmarks_do_without_the_checkouts_packages(tmp_path: Path) -> None:
    # As asv imports them, from another folder. Parameters may lack in old commits, not in this one.
    reported = f"""
import sys
from asv_runner.discovery import list_benchmarks
list_benchmarks({str(ROOT / "benchmarks/history")!r}, sys.stderr)
assert "history.trained" in sys.modules and "benchmarks" not in sys.modules
from history.rows import LATER, AMFClassifier
assert set(LATER) <= set(AMFClassifier().get_params())
"""
    done = subprocess.run(
        [sys.executable, "-c", reported],
        env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
