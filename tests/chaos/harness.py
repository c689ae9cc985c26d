"""The harness: runs a job, strikes it with the faults of a schedule, and takes notes.

Relies on the job's words (``job``) for the moments. Promises that a run that takes longer than
its limit fails with all that is known of it, that a coordinator that was killed is started again,
and that the workers are whole again when it returns.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.deltas import read_state
from dmondrian.checkpoint.document import dump_json
from tests.chaos import hooks, schedule
from tests.chaos.schedule import Fault
from tests.chaos.workers import MEMORY_LIMIT, Workers
from tests.store.proxy import Proxy

JOB = "tests.chaos.job"
ROOT = Path(__file__).parents[2]


@dataclass
class Outcome:
    """What became of one run."""

    url: str
    struck: list[Fault] = field(default_factory=list)  # in the order in which they struck
    victims: set[str] = field(default_factory=set)  # workers that may have lost shards
    losses: list[dict[str, Any]] = field(default_factory=list)  # by all attempts, moves included
    attempts: int = 0
    summary: dict[str, Any] = field(default_factory=dict)  # of the attempt that finished
    last_losses: list[dict[str, Any]] = field(default_factory=list)  # of that attempt
    metrics: dict[str, Any] = field(default_factory=dict)
    manifests: dict[int, bytes] = field(default_factory=dict)
    seconds: float = 0.0  # of all attempts, without the start of their processes
    log: list[tuple[float, dict[str, Any]]] = field(default_factory=list)  # times and words
    left_behind: tuple[int, int] = (0, 0)  # tasks and holders, after some time


class HangError(AssertionError):
    """A run did not end in time, or ended badly; the message holds all that is known."""


class _Job:
    """One coordinator process."""

    def __init__(self, scheduler: str, data: str, url: str, options: dict[str, Any]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the job
        self.process = subprocess.Popen(
            [sys.executable, "-m", JOB, scheduler, data, url, json.dumps(options)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.decode())
        self._lines.put(None)

    def next_event(self, timeout: float) -> dict[str, Any] | None:
        """Return the next word, None when the process has ended; raises queue.Empty."""
        line = self._lines.get(timeout=max(0.0, timeout))
        return None if line is None else json.loads(line)

    def answer(self, command: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps(command) + "\n").encode())
        self.process.stdin.flush()

    def reported(self) -> str:
        """Return the end of what it wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read().decode()[-4000:]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._errors):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # what was not written is for nobody


class _Strike:
    """The faults still to come, and how each is done."""

    def __init__(self, workers: Workers, proxy: Proxy, faults: list[Fault], out: Outcome) -> None:
        self.workers, self.proxy, self.out = workers, proxy, out
        self.left = list(faults)
        self.wake_at: dict[str, float] = {}  # stopped workers: monotonic seconds

    def due(self, rows: int, n_rows: int) -> Fault | None:
        is_due = self.left and rows >= self.left[0].share * n_rows
        return self.left.pop(0) if is_due else None

    def wake(self) -> str | None:
        """Wake a worker that was stopped for long enough."""
        for address, moment in self.wake_at.items():
            if time.monotonic() >= moment:
                del self.wake_at[address]
                self.workers.wake(address)
                return address
        return None

    def do(self, fault: Fault) -> dict[str, Any]:
        """Strike; return the command for the job."""
        self.out.struck.append(fault)
        self.out.log.append((time.monotonic(), {"struck": fault.kind}))
        if fault.kind.startswith("store "):
            self.proxy.suffer(fault.kind.removeprefix("store "), fault.seconds)
            return {}
        if fault.kind == schedule.JOIN:
            self.workers.join()
            return {}
        if fault.kind in schedule.COORDINATOR:
            return {"commit": fault.kind.split()[1]}
        return self._hurt(fault)

    def _hurt(self, fault: Fault) -> dict[str, Any]:
        living = self.workers.living()
        if not living:
            self.out.struck.pop()  # all are being started anew
            return {}
        turned = fault.victim % len(living)
        address, *others = living[turned:] + living[:turned]
        self.out.victims.add(address)
        if fault.kind in (schedule.KILL, schedule.LEAVE):
            self.workers.kill(address, is_for_good=fault.kind == schedule.LEAVE)
        elif fault.kind == schedule.RETIRE:
            self.workers.retire(address)
        elif fault.kind == schedule.STOP:
            self.workers.stop(address)
            self.wake_at[address] = time.monotonic() + 2.0 + fault.seconds
            return {"silent": address}
        elif fault.kind == schedule.MEMORY:
            self.workers.run(address, hooks.swell, MEMORY_LIMIT)
        elif fault.kind == schedule.RAISE:
            self.workers.run(address, hooks.arm_raise, fault.nth)
        elif fault.kind == schedule.KILL_IN_RESTORE:
            for other in others:
                self.out.victims.add(other)
                self.workers.run(other, hooks.arm_kill, "restore", 1, fault.delay)
                break
            self.workers.kill(address)
        else:
            moment = fault.kind.rsplit(" ", 1)[1]
            is_after = fault.kind == "kill after upload"
            arguments = moment, fault.nth, fault.delay, is_after
            self.workers.run(address, hooks.arm_kill, *arguments)
        return {}


def run(
    workers: Workers,
    proxy: Proxy,
    faults: list[Fault],
    data: str,
    url: str,
    options: dict[str, Any],
    limit: float,
) -> Outcome:
    """Train through the faults.

    Parameters
    ----------
    data, url : str
        Parquet and the run's folder.
    options : dict
        Of `train`, and ``forest`` and ``unit_rows`` for the job.
    limit : float
        Seconds for everything.

    Raises
    ------
    HangError
    """
    out = Outcome(url)
    strike = _Strike(workers, proxy, faults, out)
    end = time.monotonic() + limit
    try:
        while not out.summary:
            out.attempts += 1
            out.last_losses = []
            job = _Job(workers.scheduler, data, url, options)
            try:
                _drive(job, strike, end)
            finally:
                job.close()
        out.left_behind = _left_behind(workers, strike)
    finally:
        proxy.recover()
        workers.restore()
    folder = Run.open(url)
    out.manifests = {position: _whole(folder, position) for position in folder.manifests()}
    return out


def _whole(run: Run, position: int) -> bytes:
    """Return a manifest with digests of states, however they are written: whole or not."""
    manifest = run.manifest(position, verify=True)
    shards = {}
    for number, shard in manifest.shards.items():
        state = read_state(run.get_blob, shard["digest"], shard["bytes"], name=f"shard {number}")
        digest = hashlib.sha256(dump_json(state.header).encode())
        for tree in state.trees:
            for name in sorted(tree):
                digest.update(np.ascontiguousarray(tree[name]).tobytes())
        shards[number] = {"digest": digest.hexdigest(), "bytes": 0}
    return replace(manifest, shards=shards).to_bytes()


def _drive(job: _Job, strike: _Strike, end: float) -> None:
    """Follow one coordinator to its end, or to its death by a fault."""
    out, began, is_doomed = strike.out, None, False
    word: dict[str, Any] | None = {}
    while True:
        last = word
        try:
            word = job.next_event(end - time.monotonic())
        except queue.Empty:
            raise _hang(job, strike, f"no word in time; the last was {last}") from None
        if word is None:
            if began is not None:
                out.seconds += time.monotonic() - began
            if is_doomed and job.process.wait() == -signal.SIGKILL:
                return
            raise _hang(job, strike, f"the job ended by itself with {job.process.wait()}")
        out.log.append((time.monotonic(), word))
        if "lost" in word:
            out.losses.append(word)
            out.last_losses.append(word)
        elif "summary" in word:
            out.summary, out.metrics = word["summary"], word["metrics"]
            out.seconds += word["seconds"]
            return
        else:
            began = began or time.monotonic()
            command = _command(strike, word, is_doomed)
            if "commit" in command:
                is_doomed = True
                if command["commit"] == "now":
                    job.process.kill()
                    continue
            job.answer(command)


def _command(strike: _Strike, word: dict[str, Any], is_doomed: bool) -> dict[str, Any]:
    woken = strike.wake()
    if woken is not None:
        return {"woken": woken}
    fault = None if is_doomed else strike.due(word["rows"], word["n_rows"])
    return {} if fault is None else strike.do(fault)


def _hang(job: _Job, strike: _Strike, what: str) -> HangError:
    if job.process.poll() is None:
        os.kill(job.process.pid, signal.SIGUSR1)  # it writes where its threads are
        time.sleep(1.0)
    out = strike.out
    return HangError(
        f"{what}; attempt {out.attempts}, struck by {out.struck}, still to come {strike.left}, "
        f"stopped {strike.workers.stopped}, living {strike.workers.living()}, losses "
        f"{out.losses}; the job printed:\n{job.reported()}"
    )


def _left_behind(workers: Workers, strike: _Strike) -> tuple[int, int]:
    """Return what is on the cluster when it has had time to forget, all workers awake."""
    for address in list(workers.stopped):
        workers.wake(address)
    found = workers.left_behind(strike.out.url)
    end = time.monotonic() + 30.0
    while any(found) and time.monotonic() < end:
        time.sleep(0.1)
        found = workers.left_behind(strike.out.url)
    return found
