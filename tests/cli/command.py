"""Running the command as a user does, in a process of its own, and quicker, in this one."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from dmondrian.cli import main

PROJECT = Path(__file__).resolve().parents[2]
ADULT = PROJECT / "jobs" / "data" / "adult"
JOB = PROJECT / "jobs" / "adult.toml"
SMALL_JOB = PROJECT / "tests" / "cli" / "adult_small.toml"
TIMEOUT = 300  # seconds; kernels may be compiled on the way


def arguments(*words: object) -> list[str]:
    return [sys.executable, "-m", "dmondrian.cli", *map(str, words)]


def start(*words: object) -> subprocess.Popen[str]:
    """Start a command as the leader of its own process group, as a shell does."""
    return subprocess.Popen(
        arguments(*words),
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(*words: object, code: int = 0) -> tuple[str, str]:
    """Run a command to its end; returns stdout and stderr."""
    process = start(*words)
    try:
        stdout, stderr = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with its workers
        stdout, stderr = process.communicate()
        raise AssertionError(f"no end after {TIMEOUT} s\n{stdout}\n{stderr}") from None
    assert process.returncode == code, f"exit code {process.returncode}\n{stdout}\n{stderr}"
    return stdout, stderr


def call(*words: object, code: int = 0) -> tuple[str, str]:
    """Do the same in this process, which has everything loaded; for what is not about processes."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        found = main([str(word) for word in words])
    assert found == code, f"exit code {found}\n{stdout.getvalue()}\n{stderr.getvalue()}"
    return stdout.getvalue(), stderr.getvalue()


def events(stdout: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.splitlines()]


def train_words(run: Path, *overrides: str, job: Path = SMALL_JOB) -> list[str]:
    """Arguments to train a job in a folder of the test."""
    words = ["train", str(job)]
    for override in (f"run.path={run}", *overrides):
        words += ["--set", override]
    return words


def digests(run: Path) -> dict[str, str]:
    """Blob digests of a run's last manifest, by shard."""
    manifest = manifests(run)[-1]
    assert manifest["final"]
    return {number: shard["digest"] for number, shard in manifest["shards"].items()}


def manifests(run: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_bytes()) for file in sorted((run / "manifests").glob("*.json"))]
