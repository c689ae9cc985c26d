"""The services of the compose file and the Slurm script, run as processes of this machine.

There is no Docker daemon and no Slurm in continuous integration; what is in the files is run: the
commands and environment of the services with their hosts and folders replaced, and the scripts
with an `sbatch` and a `scancel` that start and end them here.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from dmondrian._numba.cache import copy_cache
from dmondrian.store import open_store
from tests.cli.command import PROJECT, TIMEOUT, digests
from tests.store.servers import moto_server, set_credentials

pytestmark = pytest.mark.slow

COMPOSE = PROJECT / "cluster" / "compose" / "compose.yaml"
TRAIN_SH = PROJECT / "cluster" / "slurm" / "train.sh"
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start processes, each in its own group; they end with the test."""
    started: list[subprocess.Popen[str]] = []

    def call(words: list[str], environment: dict[str, str], folder: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            words,
            env={**os.environ, "PYTHONPATH": str(PROJECT), **environment},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=(folder / f"{len(started)}.log").open("w"),
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        process.wait(timeout=10)


class Services:
    """The compose file's services on this machine: hosts are ports, mounts are folders."""

    def __init__(self, folder: Path, start: Start) -> None:
        self._services = yaml.safe_load(COMPOSE.read_text())["services"]
        self._folder, self._start = folder, start
        store, scheduler = free_port(), free_port()
        (folder / "certificates").mkdir(mode=0o700)
        job = (COMPOSE.parent / "job.toml").read_text()
        self._here = {
            "store:5000": f"127.0.0.1:{store}",
            "tls://scheduler:8786": f"tls://127.0.0.1:{scheduler}",
            "--port=8786": f"--port={scheduler}",
            "/certificates": str(folder / "certificates"),
            "/job.toml": str(folder / "job.toml"),
            '"/data/': f'"{PROJECT}/jobs/data/',
            "n_estimators = 10": "n_estimators = 2",
        }
        self.store = f"http://127.0.0.1:{store}"
        (folder / "job.toml").write_text(self._localised(job))

    def start(self, name: str) -> subprocess.Popen[str]:
        service = self._services[name]
        program, *words = [self._localised(word) for word in service["command"]]
        modules = {"dask": ["-m", "dask"], "dmondrian": ["-m", "dmondrian.cli"], "python": []}
        environment = {k: self._localised(v) for k, v in service["environment"].items()}
        # On loopback plain http needs no leave; see the test at the end of this file.
        environment.pop("AWS_ALLOW_HTTP")
        return self._start([sys.executable, *modules[program], *words], environment, self._folder)

    def finish(self, name: str) -> None:
        process = self.start(name)
        assert process.wait(timeout=TIMEOUT) == 0, self.logs()

    def start_store(self) -> None:
        words = ["-m", "moto.server", "--host", "127.0.0.1", "--port", self.store.split(":")[-1]]
        self._start([sys.executable, *words], {}, self._folder)
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(self.store)
                return
            except urllib.error.URLError:
                assert time.monotonic() < deadline, self.logs()
                time.sleep(0.2)

    def logs(self) -> str:
        return "\n".join(log.read_text()[-3000:] for log in sorted(self._folder.glob("*.log")))

    def _localised(self, text: str) -> str:
        for there, here in self._here.items():
            text = text.replace(there, here)
        return text


def test_the_services_of_the_compose_file_train_and_score(tmp_path: Path, start: Start) -> None:
    services = Services(tmp_path, start)
    services.start_store()
    services.finish("certificates")
    services.finish("bucket")
    services.start("scheduler")
    services.start("worker")
    services.finish("train")
    with urllib.request.urlopen(f"{services.store}/runs?list-type=2&prefix=adult") as answer:
        listed = answer.read().decode()
    assert "adult/manifests/" in listed
    assert "adult-scores/part-000000.parquet" in listed
    assert "trained s3://runs/adult" in services.logs()
    assert "scored" in services.logs()


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """An environment with commands that do what Slurm's would, here and at once."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    shims = {
        # As Slurm does, from a copy of the script and with a job number.
        "sbatch": 'copy="$(mktemp -p "$SLURM_SHIM")"; cat "${@: -1}" > "$copy"\n'
        'SLURM_JOB_ID=$$ setsid bash "$copy" > "$copy.log" 2>&1 < /dev/null &\n'
        'echo $! > "$copy.pid"; echo "Submitted batch job $!"',
        "scancel": 'for job in "$@"; do kill -TERM -- "-$job" || true; echo "$job" >> '
        '"$SLURM_SHIM/cancelled"; done',
    }
    for name, text in shims.items():
        file = folder / name
        file.write_text(f"#!/usr/bin/env bash\nset -eu\n{text}\n")
        file.chmod(0o755)
    return {
        "PATH": f"{folder}:{BIN}:{os.environ['PATH']}",
        "SLURM_SHIM": str(folder),
        "SLURM_SUBMIT_DIR": str(PROJECT),
        "PYTHON": sys.executable,
    }


# Not `importorskip`: the import installs a SIGINT handler that ends the process.
needs_jobqueue = pytest.mark.skipif(
    importlib.util.find_spec("dask_jobqueue") is None, reason="needs dask-jobqueue"
)


@needs_jobqueue
def test_a_worker_job_is_a_valid_script(
    slurm: dict[str, str], certificates: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [TRAIN_SH, "job.toml", "--job-script", "--partition", "long", "--memory", "32GB"],
        env={**os.environ, **slurm, "PYTHONPATH": str(PROJECT), "CERTIFICATES": str(certificates)},
        cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    script = tmp_path / "worker.sh"
    script.write_text(done.stdout)
    subprocess.run(["bash", "-n", script], check=True)
    lines = done.stdout.splitlines()
    for wanted in ("#SBATCH -p long", "#SBATCH --mem=30G", "#SBATCH --cpus-per-task=8"):
        assert wanted in lines
    assert any(line.startswith("export DMONDRIAN_CACHE_DIR=") for line in lines)
    command = shlex.split(lines[-1])
    assert f"{certificates}/key.pem" in command
    assert "tls://" in command


def test_a_job_without_certificates_or_file_names_what_to_give(slurm: dict[str, str]) -> None:
    environment = {**os.environ, **slurm}
    done = subprocess.run([TRAIN_SH], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "expected a job file, got none" in done.stderr
    done = subprocess.run([TRAIN_SH, "job.toml"], env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert "dmondrian cluster --certificates-only" in done.stderr


@needs_jobqueue
@pytest.mark.thorough
def test_the_slurm_job_trains_on_jobs_that_it_submits(
    slurm: dict[str, str], alone: dict[str, str], certificates: Path, tmp_path: Path, start: Start
) -> None:
    copy_cache(tmp_path / "warm")  # of kernels that are there since `alone` was trained
    run, job = tmp_path / "run", tmp_path / "job.toml"
    text = (PROJECT / "tests" / "cli" / "adult_small.toml").read_text()
    job.write_text(
        text.replace("../../jobs", f"{PROJECT}/jobs").replace("adult_small_run", str(run))
    )
    options = ["--workers", "2", "--cores", "1", "--memory", "2GB"]
    words = [str(TRAIN_SH), str(job), *options, "--interface", "lo"]
    environment = {
        "CERTIFICATES": str(certificates),
        "DMONDRIAN_WARM_CACHE": str(tmp_path / "warm"),
    }
    process = start(words, {**slurm, **environment, "TMPDIR": str(tmp_path)}, tmp_path)
    code = process.wait(timeout=TIMEOUT)
    shim = Path(slurm["SLURM_SHIM"])
    logs = "\n".join(log.read_text()[-3000:] for log in [tmp_path / "0.log", *shim.glob("*.log")])
    assert code == 0, logs
    assert f"trained {run}" in logs
    jobs = [int(file.read_text()) for file in shim.glob("*.pid")]
    assert len(jobs) == 2
    assert sorted(map(int, (shim / "cancelled").read_text().split())) == sorted(jobs)
    assert digests(run) == alone


def test_plain_http_is_allowed_where_the_environment_allows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with moto_server() as endpoint:
        set_credentials(monkeypatch, endpoint)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/runs", method="PUT")):
            assert open_store("s3://runs").list() == []
