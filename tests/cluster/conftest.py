"""Certificates, and the ``dmondrian cluster`` command running with two workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dmondrian.cli.certificates import make_certificates
from dmondrian.cli.tls import Tls
from tests.cli.command import TIMEOUT, call, digests, start, train_words


@dataclass(frozen=True)
class Running:
    """A running command, and what it printed of its cluster."""

    process: subprocess.Popen[str]
    reported: dict[str, Any]

    @property
    def tls(self) -> Tls:
        return Tls(*(self.reported[name] for name in ("tls_ca", "tls_cert", "tls_key")))

    def overrides(self) -> list[str]:
        """The lines of a job file, as overrides of the train command."""
        keys = ("scheduler", "tls_ca", "tls_cert", "tls_key")
        return [f"cluster.{key}={self.reported[key]}" for key in keys]


def start_cluster(*words: object) -> Running:
    """Start the command; returns when its workers are there."""
    process = start("cluster", "--json", "--threads", "1", *words)
    assert process.stdout is not None
    killer = threading.Timer(TIMEOUT, process.kill)
    killer.start()
    try:
        line = process.stdout.readline()
    finally:
        killer.cancel()
    if not line:
        raise AssertionError(process.communicate(timeout=10)[1])
    return Running(process, json.loads(line))


def kill(process: subprocess.Popen[str]) -> None:
    """End a command that a test may have ended already, with all its processes."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    cluster = start_cluster("--folder", tmp_path_factory.mktemp("running"))
    yield cluster
    kill(cluster.process)


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """Certificates by another authority than any cluster's."""
    return make_certificates(tmp_path_factory.mktemp("strangers"))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Blob digests of the small job, trained by one worker of this machine."""
    run = tmp_path_factory.mktemp("alone") / "run"
    call(*train_words(run, "cluster.workers=1"))
    return digests(run)
