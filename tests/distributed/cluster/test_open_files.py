"""Too low a limit of open files is raised as far as it may be, else reported before a run."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("resource")

SCRIPT = """
import logging, resource, sys
from distributed import Client, LocalCluster
from dmondrian.distributed.cluster.open_files import check_open_files, raise_limit

if __name__ == "__main__":
    soft, hard, n_workers = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    logging.basicConfig(format="%(message)s")
    with LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            check_open_files(client, n_workers)
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], raise_limit(1))
"""


def run(*limits: int) -> tuple[str, str]:
    """Check limits in another process; return what is the limit then, and what was reported."""
    numbers = map(str, limits)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *numbers], capture_output=True, text=True, check=True
    )
    return done.stdout, done.stderr


def test_a_soft_limit_is_raised_without_a_message() -> None:
    assert run(300, 4000, 400) == ("2500 2500\n", "")


def test_enough_stays_as_it_is() -> None:
    assert run(1000, 4000, 100) == ("1000 1000\n", "")


def test_a_hard_limit_that_is_too_low_is_reported_with_what_to_do() -> None:
    limit, reported = run(300, 400, 400)
    assert limit == "400 400\n"
    for who in ("this process", "the scheduler"):
        assert (
            f"{who} may open 400 files, enough for some 50 workers, and there are 400" in reported
        )
    assert "ulimit -n 65536" in reported
