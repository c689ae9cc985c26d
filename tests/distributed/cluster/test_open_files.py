"""Too low a limit of open files is raised as far as it may be, else reported before a run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.command import TIMEOUT

pytest.importorskip("resource")

SCRIPT = """
import logging, resource, sys
from distributed import Client, LocalCluster
from dmondrian._memory_limit import raise_limit
from dmondrian.distributed.cluster.open_files import check_open_files

if __name__ == "__main__":
    soft, hard, n_workers = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    # Dask writes to the standard error what it meets while it closes: not what is asked here.
    logging.getLogger("dmondrian").addHandler(logging.StreamHandler(sys.stdout))
    with LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            check_open_files(client, n_workers)
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], raise_limit(1))
"""


def run(*limits: int) -> list[str]:
    """Check limits in another process; return what was reported and, last, the limit then."""
    command = [sys.executable, "-c", SCRIPT, *map(str, limits)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT)
    return done.stdout.splitlines()


def test_a_soft_limit_is_raised_without_a_message() -> None:
    assert run(300, 4000, 400) == ["2500 2500"]


def test_enough_stays_as_it_is() -> None:
    assert run(1000, 4000, 100) == ["1000 1000"]


def test_a_hard_limit_that_is_too_low_is_reported_with_what_to_do() -> None:
    *messages, limit = run(300, 400, 400)
    assert limit == "400 400"
    reported = "\n".join(messages)
    for who in ("this process", "the scheduler"):
        assert (
            f"{who} may open 400 files, enough for some 50 workers, and there are 400" in reported
        )
    assert "ulimit -n 65536" in reported
