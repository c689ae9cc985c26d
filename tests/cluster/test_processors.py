"""Kernels for another processor than this one: made ahead of time, kept apart, the same forests.

As in the image of cluster/Dockerfile, the other processor is one that lacks what this one has:
Numba learns that by its settings, NumPy and the C library's exp and log by theirs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from numba import config
from numba.core.registry import cpu_target
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

from tests.cli.command import PROJECT, TIMEOUT, arguments
from tests.cluster.forests import FORESTS, digest

pytestmark = pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")

# Of an Intel Xeon with AVX-512, as `python -m tests.cluster.forests` prints them. They may change
# where forests do, by the changelog.
KNOWN = Path(__file__).with_name("digests.json")
ALGORITHM = "online-forest-regressor"
ROWS = 3000  # of a job
PLAIN = {
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
    "NPY_DISABLE_CPU_FEATURES": " ".join(f for f in __cpu_dispatch__ if __cpu_features__[f]),
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4",
}


def run(command: list[str], env: dict[str, str]) -> tuple[str, str]:
    """Run a command to its end; return stdout and stderr."""
    done = subprocess.run(
        command,
        env={**os.environ, **env},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT,  # twice the kernels of others
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def forests(env: dict[str, str], *names: str) -> tuple[dict[str, Any], str]:
    """Grow small forests in a process of their own; return what it tells, and its stderr."""
    stdout, stderr = run([sys.executable, "-m", "tests.cluster.forests", *names], env)
    return json.loads(stdout), stderr


def kept(env: dict[str, str]) -> set[str]:
    """Return the files of compiled kernels in a cache."""
    return {file.name for file in Path(env["DMONDRIAN_CACHE_DIR"]).rglob("*.nbc")}


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of the plain processor, and of a cache that `dmondrian warm` has filled."""
    env = {**PLAIN, "DMONDRIAN_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    words = ["warm", "--json", "--algorithm", ALGORITHM, "--domain", "range"]
    stdout, stderr = run(arguments(*words), env)
    reported = json.loads(stdout)
    assert reported["event"] == "warmed"
    assert reported["algorithms"] == [ALGORITHM]
    assert reported["compiled"] == len(kept(env)) > 0
    assert stderr.count("note: compiling kernels for this machine") == 1
    return env


@pytest.mark.slow
@pytest.mark.thorough
def test_nothing_is_compiled_once_all_kernels_are_there(
    warmed: dict[str, str], tmp_path: Path
) -> None:
    before = kept(warmed)
    stdout, stderr = run(arguments("warm", "--algorithm", ALGORITHM, "--domain", "range"), warmed)
    assert stdout.startswith("nothing to compile")
    assert "compiling kernels" not in stderr
    reported, stderr = forests(warmed, ALGORITHM)
    assert reported["compiled"] == {}
    assert reported["is_idle"]
    assert stderr == ""

    job, data = tmp_path / "job.toml", tmp_path / "rows.parquet"
    stored = pq.read_table(PROJECT / "jobs/data/california_housing/part-0000.parquet")
    pq.write_table(stored.slice(0, ROWS), data, row_group_size=ROWS // 4)
    job.write_text(
        f'[forest]\nalgorithm = "{ALGORITHM}"\nn_estimators = 2\n'
        f'[data]\npath = "{data}"\ntarget = "medianHouseValue"\n'
        f"[cluster]\nworkers = 1\nthreads = 2\n"
        f'[run]\npath = "{tmp_path / "run"}"\ncheckpoint_every = "1000 rows"\n'
        f'[score]\npath = "{data}"\nout = "{tmp_path / "scores"}"\n'
    )
    stdout, stderr = run(arguments("train", str(job), "--json"), warmed)
    done = [json.loads(line)["event"] for line in stdout.splitlines()]
    assert [event for event in done if event != "progress"] == ["trained", "scored", "evaluated"]
    assert "compiling kernels" not in stderr
    assert kept(warmed) == before


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n.startswith("amf") else pytest.mark.thorough) for n in FORESTS],
)
def test_forests_are_those_that_are_known(name: str) -> None:
    assert digest(name) == json.loads(KNOWN.read_text())[name]


@pytest.mark.slow
@pytest.mark.thorough  # all are compiled for the other processor, which takes minutes
def test_forests_do_not_depend_on_the_processor(warmed: dict[str, str]) -> None:
    plain, _ = forests(warmed)
    assert plain["processor"] != list(cpu_target.target_context.codegen().magic_tuple())
    assert plain["digests"] == json.loads(KNOWN.read_text())


def test_a_cache_keeps_the_kernels_of_processors_apart(tmp_path: Path) -> None:
    script = tmp_path / "kernel.py"
    script.write_text(
        "from dmondrian._numba import jit\n"
        "kernel = jit.kernel(lambda x: x + x)\n"
        "assert kernel(2) == 4\n"
        "print(sum(kernel.stats.cache_hits.values()), end='')\n"
    )
    cache = {"DMONDRIAN_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(PROJECT)}
    hits = [
        run([sys.executable, str(script)], {**cache, **processor})[0]
        for processor in ({}, PLAIN, {}, PLAIN, {**PLAIN, "NUMBA_CPU_FEATURES": "+sse4.2"})
    ]
    assert hits == ["0", "0", "1", "1", "0"]
    assert len(kept(cache)) == 3
