"""The README and the ready jobs say what is true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dmondrian.cli.job import build_estimator, read_job
from tests.cli.command import PROJECT, TIMEOUT

README = (PROJECT / "README.md").read_text()
JOBS = sorted((PROJECT / "jobs").glob("*.toml"))


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_ready_jobs_are_good(job):
    read = read_job(job)
    build_estimator(read)
    assert Path(read.data["path"]).exists()


def test_the_job_in_the_readme_is_good(tmp_path):
    (text,) = blocks("toml")
    file = tmp_path / "job.toml"
    file.write_text(text)
    build_estimator(read_job(file))


def test_the_job_in_the_readme_is_the_ready_one():
    (text,) = blocks("toml")
    told, ready = tomllib.loads(text), tomllib.loads((PROJECT / "jobs/adult.toml").read_text())
    for table in ("data", "forest", "run"):
        assert told[table] == ready[table]


def test_online_examples_run(tmp_path):
    program = "".join(blocks("python")[:3])
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment(), check=True)


@pytest.mark.slow
def test_cluster_example_runs(tmp_path):
    file = tmp_path / "example.py"
    file.write_text(blocks("python")[3].replace('"jobs/', f'"{PROJECT}/jobs/'))
    subprocess.run(
        [sys.executable, file], cwd=tmp_path, env=environment(), check=True, timeout=TIMEOUT
    )
    assert (tmp_path / "runs" / "adult-from-python" / "run.json").exists()


def test_continuous_integration_runs_the_commands_of_the_readme():
    script = (PROJECT / ".ci" / "run").read_text()
    for command in ("python -m pytest", "pip install"):
        assert any(command in block for block in blocks("bash"))
        assert command in script


def environment():
    return {**os.environ, "PYTHONPATH": str(PROJECT)}
