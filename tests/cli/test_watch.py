"""What following a run tells of a job that failed, and of one that somebody made good."""

from __future__ import annotations

import io
from argparse import Namespace
from pathlib import Path

import pytest

from dmondrian.checkpoint import Lease, Run, jobs
from dmondrian.cli.output import Output
from dmondrian.cli.watch import cancel, follow
from dmondrian.errors import ClusterError, ParameterError
from tests.checkpoint.run_folders import ASKED, PLAN, commit


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run.create(tmp_path / "run", ASKED, PLAN)
    commit(made, 10)
    return made


def told(command: object, run: Run) -> str:
    text = io.StringIO()
    output = Output(as_json=False, stdout=text, stderr=text)
    assert command(Namespace(model=run.url), output) == 0  # type: ignore[operator]  # a command
    return text.getvalue()


def test_a_failed_job_is_told_until_another_attempt_comes_after_it(run: Run) -> None:
    with Lease.take(run.store) as lease:
        lease.end("finished")
    jobs.end(run.store, jobs.hand_over(run.store), "DataError: a column is gone")
    with pytest.raises(ClusterError, match="a column is gone"):
        told(follow, run)
    with Lease.take(run.store) as lease:
        lease.end("finished")
    assert "finished; its last checkpoint is at position 10" in told(follow, run)


def test_a_job_that_waits_is_cancelled_and_one_that_is_done_is_not(run: Run) -> None:
    assert "nobody works on" in told(cancel, run)
    job = jobs.hand_over(run.store)
    assert "will not begin" in told(cancel, run)
    assert jobs.is_asked_to_stop(run.store, job)
    jobs.end(run.store, job)
    assert "nobody works on" in told(cancel, run)


def test_a_checkpoint_is_neither_followed_nor_cancelled(run: Run) -> None:
    for command in (follow, cancel):
        with pytest.raises(ParameterError, match="leave @10 out"):
            command(Namespace(model=f"{run.url}@10"), Output(as_json=True))
