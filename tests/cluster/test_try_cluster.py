"""`dmondrian cluster`: two encrypted workers that a job uses, that strangers cannot, that end."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
import tomllib
import urllib.request
from pathlib import Path

import pytest
from distributed import Client, Nanny

from dmondrian._numba.cache import cache_folder
from dmondrian.cli import encrypted_cluster
from dmondrian.cli.cluster import connected
from dmondrian.cli.tls import Tls
from dmondrian.cli.try_cluster import _dashboard
from dmondrian.distributed.cluster import local_restarts
from dmondrian.distributed.cluster.client import encrypted
from dmondrian.errors import ClusterError, JobError
from tests.cli.command import TIMEOUT, call, digests, finish, start, train_words
from tests.cluster.conftest import Running, kill, start_cluster
from tests.distributed.conftest import wait_until

pytestmark = pytest.mark.slow


def processes_of(group: int) -> list[int]:
    """Processes of a group that are not yet gone."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it went away meanwhile
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def compiled(folder: str) -> set[Path]:
    return set(Path(folder).glob("*.nb[ic]"))


def test_a_job_is_trained_encrypted_and_compiles_nothing(
    running: Running, alone: dict[str, str], tmp_path: Path
) -> None:
    tls = running.tls
    security = encrypted(tls.ca, tls.cert, tls.key)
    assert running.reported["address"].startswith("tls://127.0.0.1:")
    with Client(running.reported["address"], security=security, set_as_default=False) as client:
        folders = {address: str(path) for address, path in client.run(cache_folder).items()}
        assert len(set(folders.values())) == 2  # a kernel cache for each of two processes
        before = {folder: compiled(folder) for folder in folders.values()}
        assert all(before.values())
        run = tmp_path / "run"
        _, stderr = call(*train_words(run, *running.overrides()))
        assert "not encrypted" not in stderr
        assert {folder: compiled(folder) for folder in before} == before
    assert digests(run) == alone


def test_its_dashboard_is_reported_where_there_is_one(running: Running) -> None:
    address = running.reported["dashboard"]
    if importlib.util.find_spec("bokeh") is None:
        assert address is None
        return
    assert address.startswith(("http://127.0.0.1:", "https://127.0.0.1:"))
    with urllib.request.urlopen(address, timeout=TIMEOUT) as page:
        assert b"Dask" in page.read()


@pytest.mark.parametrize(
    ("address", "reported"),
    [(None, "it needs the package bokeh"), ("http://127.0.0.1:1/status", "127.0.0.1:1")],
)
def test_a_dashboard_in_words(address: str | None, reported: str) -> None:
    assert reported in _dashboard(address)


def test_nobody_is_let_in_without_certificates(running: Running, strangers: Tls) -> None:
    with pytest.raises(ClusterError, match="give tls_ca, tls_cert and tls_key"):
        connected(running.reported["address"], None, None).__enter__()
    with pytest.raises(ClusterError, match="not by the authority in tls_ca"):
        connected(running.reported["scheduler"], None, None, strangers).__enter__()
    plain = running.reported["address"].replace("tls://", "tcp://")
    with pytest.raises(ClusterError, match="no Dask scheduler at"):
        connected(plain, None, None).__enter__()
    with pytest.raises(JobError, match="does not encrypt"):
        connected(plain, None, None, running.tls).__enter__()


def test_a_client_that_cannot_connect_is_closed_at_once() -> None:
    with pytest.raises(ClusterError) as caught:
        connected("tls://127.0.0.1:1", None, None).__enter__()
    cause = caught.value.__cause__
    assert cause is not None
    found, trace = [], cause.__traceback__
    while trace is not None:
        found.append(trace.tb_frame.f_locals.get("self"))
        trace = trace.tb_next
    (client,) = {id(one): one for one in found if isinstance(one, Client)}.values()
    assert client.status == "closed"
    assert not client._loop_runner.is_started()


def test_a_local_cluster_is_encrypted_where_certificates_are_given(strangers: Tls) -> None:
    with connected("local", 1, 1, strangers) as arguments:
        client = arguments["client"]
        assert client.scheduler.address.startswith("tls://127.0.0.1:")
        assert all(address.startswith("tls://") for address in client.run(os.getpid))
        assert client.submit(sum, [1, 2]).result(timeout=60) == 3


def close_soon(dask_worker: Nanny) -> None:
    """End a worker as a nanny does that cannot start its process, once the answer is sent."""
    dask_worker.loop.call_later(0.1, dask_worker.close)


def test_workers_that_dask_gave_up_are_started_again(
    strangers: Tls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_restarts, "GRACE_SECONDS", 0.0)
    options = (1, 1, strangers, tmp_path / "scheduler.json", tmp_path / "kernels")
    security = encrypted(strangers.ca, strangers.cert, strangers.key)
    with (
        encrypted_cluster.running(*options) as its,
        Client(its.address, security=security, set_as_default=False) as client,
    ):
        (first,) = client.scheduler_info()["workers"]
        client.run(close_soon, nanny=True)
        wait_until(lambda: not client.scheduler_info()["workers"])
        time.sleep(1.0)
        assert not client.scheduler_info()["workers"]  # nobody else starts it
        its.restart_lost()
        wait_until(lambda: len(client.scheduler_info()["workers"]) == 1)
        assert first not in client.scheduler_info()["workers"]


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)]
)
def test_everything_ends_with_the_command(number: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    process = start_cluster("--workers", "1", "--folder", folder).process
    assert (folder / "scheduler.json").exists()
    assert len(processes_of(process.pid)) > 1
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # a terminal sends it to the whole group
    else:
        process.send_signal(number)
    _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr
    deadline = time.monotonic() + 60
    while processes_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes_of(process.pid)
    # The certificates stay for the next time; what only this time needs is gone.
    left = sorted(file.name for file in folder.iterdir())
    assert left == ["ca.pem", "cert.pem", "key.pem", "lock"]


def test_a_second_one_in_its_folder_is_refused(running: Running) -> None:
    scheduler = Path(running.reported["scheduler"])
    before = scheduler.read_bytes()
    _, stderr = finish("cluster", "--folder", scheduler.parent, code=2)
    assert f"{scheduler.parent}: another `dmondrian cluster` is running in it" in stderr
    assert scheduler.read_bytes() == before  # the first goes on


def test_certificates_alone_are_made_once_and_used_again(tmp_path: Path) -> None:
    words = ("cluster", "--certificates-only", "--folder", tmp_path / "new")
    stdout, stderr = call(*words)
    keys = tomllib.loads(stdout)["cluster"]
    assert "made a temporary certificate authority" in stderr
    first = {name: Path(path).read_bytes() for name, path in keys.items()}
    stdout, stderr = call(*words)
    assert "using the certificates in" in stderr
    assert {name: Path(path).read_bytes() for name, path in keys.items()} == first


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    _, stderr = call("cluster", "--certificates-only", "--folder", tmp_path, code=2)
    assert "chmod 700" in stderr
    assert not list(tmp_path.iterdir())


def test_a_killed_command_leaves_no_worker() -> None:
    process = start_cluster("--workers", "1").process
    try:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
        deadline = time.monotonic() + 60
        while processes_of(process.pid) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not processes_of(process.pid)
    finally:
        kill(process)


def test_an_absurd_size_is_refused_before_anything_starts() -> None:
    _, stderr = call("cluster", "--threads", 10**20, code=2)
    assert f"threads is {10**20}; expected an integer from 1 to 1,024" in stderr


def test_an_unknown_certificate_is_reported_before_anything_starts(tmp_path: Path) -> None:
    process = start("cluster", "--tls-ca", tmp_path / "none.pem", "--tls-cert", tmp_path / "c.pem")
    _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 2
    assert "--tls-ca: given without tls_key" in stderr
