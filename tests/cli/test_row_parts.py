"""`[run] row_parts`: a run whose rows were learned in parts, for every command that shows it."""

from __future__ import annotations

import html
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian.cli.job import build_estimator, check_row_parts, read_job
from dmondrian.distributed.training import merged_ranges
from dmondrian.errors import ClusterError, JobError
from tests.cli.command import call, digests, events

N = 400
JOB = """\
[data]
path = "rows.parquet"
target = "y"

[forest]
algorithm = "mondrian-forest-classifier"
n_estimators = 2
domain = "cube"
lifetime = 2.0

[run]
path = "run"
row_parts = 3
"""


@pytest.fixture
def job(tmp_path: Path, shared: str) -> Path:
    draw = np.random.default_rng(0)
    x = draw.random(N)
    rows = pa.table({"x": x, "z": draw.random(N), "y": np.where(x > 0.5, "a", "b")})
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=90)
    file = tmp_path / "job.toml"
    file.write_text(f'{JOB}\n[cluster]\nscheduler = "{shared}"\n')
    return file


def test_a_run_in_parts_is_trained_shown_and_trained_again(job: Path, tmp_path: Path) -> None:
    _, printed = call("train", job)
    assert "rows are learned in 3 parts side by side" in printed
    assert "merging the trees of 3 parts of the rows" in printed
    run, what = tmp_path / "run", "3 parts of 133 rows each, learned side by side and merged"
    assert what in " ".join(call("describe", run)[0].split())
    (model,) = [
        one for one in events(call("describe", run, "--json")[0]) if one["event"] == "model"
    ]
    assert model["row_parts"] == [[0, 133], [133, 266], [266, 400]]
    assert model["metrics"] == {}
    call("report", run, "-o", tmp_path / "report.html")
    page = html.unescape((tmp_path / "report.html").read_text())
    assert what in " ".join(page.split())
    text = page[page.index("[data]\n") : page.index("</pre>", page.index("[data]\n"))]
    assert tomllib.loads(text)["run"]["row_parts"] == 3
    (tmp_path / "again.toml").write_text(text.replace("-again", "_again"))
    call("train", tmp_path / "again.toml", "--set", f"cluster.scheduler={scheduler_of(job)}")
    assert digests(tmp_path / "run_again") == digests(run)


def test_parts_that_are_not_merged_yet_are_shown_as_such(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise ClusterError("no worker is left")

    with monkeypatch.context() as patch:
        patch.setattr(merged_ranges.TaskPool, "run", fail)
        call("train", job, code=5)
    run = tmp_path / "run"
    what = "3 parts, learned side by side up to row 400 of 400, not merged yet"
    _, error = call("describe", run, code=4)
    assert f"it has {what}: wait for that, or run the command that trains it again" in error
    assert what in call("cancel", run)[0]
    call("report", run, "-o", tmp_path / "report.html")
    page = " ".join(html.unescape((tmp_path / "report.html").read_text()).split())
    assert what in page
    assert "<b>400</b><span>of 400 rows learned" in page
    assert "and merged" not in page
    assert "3 parts of the rows, learned before, were merged in" in call("train", job)[0]
    assert "3 parts of 133 rows each, learned side by side and merged" in " ".join(
        call("describe", run)[0].split()
    )


def scheduler_of(job: Path) -> str:
    return tomllib.loads(job.read_text())["cluster"]["scheduler"]


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("run.progressive=true", "row_parts does not go with progressive = true"),
        ("forest.max_nodes=9", "row_parts = 3 does not go with .* without max_nodes"),
        ("forest.calibrate=true", ".*choose calibrate = false"),
    ],
)
def test_mistakes_are_named_by_their_line(job: Path, override: str, why: str) -> None:
    read = read_job(job, [override])
    with pytest.raises(JobError, match=rf"job.toml:13: \[run\] {why}"):
        check_row_parts(read, build_estimator(read))
