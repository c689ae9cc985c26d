"""A scheduler and three workers on hosts of their own; one host's cable is pulled mid-run.

Another host is far away: each frame takes 20 ms to it or from it, and one of a hundred is lost.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.command import ADULT, TIMEOUT, call, digests, events, manifests, train_words
from tests.cluster.hosts import Far, Hosts, address, connected_hosts, why_not

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

# Silence is found out soon: a test cannot wait for a minute.
SOON = {
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "8s",
    "DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING": "false",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "12s",
}
SCHEDULER = f"tls://{address(1)}:8786"
FOREST = ("forest.n_estimators=6", "run.n_shards=6", "run.checkpoint_every=1000 rows")


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if reason := why_not():
        pytest.skip(reason)
    with connected_hosts(4, Far(4, 0.02, 0.01)) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("adult") / "rows.parquet"
    table = pq.read_table(ADULT / "part-0000-train.parquet").slice(0, 16_000)
    pq.write_table(table, file, row_group_size=500)
    return file


def start_cluster(hosts: Hosts, certificates: Path) -> None:
    tls = [f"--tls-{role}={certificates / name}" for role, name in
           (("ca-file", "ca.pem"), ("cert", "cert.pem"), ("key", "key.pem"))]  # fmt: skip
    words = ("-m", "dask", "scheduler", f"--host={SCHEDULER}", "--no-dashboard", *tls)
    hosts.start(1, *words, **SOON)
    size = ("--nworkers=1", "--nthreads=1", "--no-dashboard")
    for number in (2, 3, 4):
        hosts.start(number, "-m", "dask", "worker", SCHEDULER, *size, *tls, **SOON)


def wait_for_a_checkpoint(process: subprocess.Popen[str], run: Path) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not (run / "manifests").exists() or not manifests(run):
        assert process.poll() is None, "the training ended before its first checkpoint"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_host_that_is_cut_off_and_one_far_away_cost_time_and_not_one_byte(
    hosts: Hosts, rows: Path, certificates: Path, tmp_path: Path, record_property: Any
) -> None:
    start_cluster(hosts, certificates)
    run = tmp_path / "run"
    keys = {"scheduler": SCHEDULER} | {
        f"tls_{name}": certificates / f"{name}.pem" for name in ("ca", "cert", "key")
    }
    words = train_words(
        run, f"data.path={rows}", *FOREST, *(f"cluster.{k}={v}" for k, v in keys.items())
    )
    process = hosts.start(1, "-m", "dmondrian.cli", *words, "--json", is_read=True, **SOON)
    wait_for_a_checkpoint(process, run)
    cut = time.monotonic()
    hosts.cut(3)
    stdout, _ = process.communicate(timeout=TIMEOUT)
    seconds = time.monotonic() - cut
    assert process.returncode == 0, stdout
    (trained,) = (event for event in events(stdout) if event["event"] == "trained")
    record_property("seconds_from_cut_to_end", round(seconds))
    assert trained["summary"]["recoveries"] >= 1
    call(*train_words(tmp_path / "alone", f"data.path={rows}", *FOREST, "cluster.workers=1"))
    assert digests(run) == digests(tmp_path / "alone")
