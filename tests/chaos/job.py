"""The coordinator of a chaos run, in a process of its own: job.py SCHEDULER DATA RUN OPTIONS.

It prints, a JSON line each, where it stands, which shards it lost and how it ended, and
after each word of where it stands waits for a line on stdin: a command, or nothing. Relies on the
harness for both ends; promises that whoever kills it needs no consent.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import signal
import sys
import time
from typing import Any

from distributed import Client

from dmondrian import AMFClassifier
from dmondrian.checkpoint import Run
from dmondrian.distributed import Progress, train
from dmondrian.distributed.cluster import progress
from dmondrian.distributed.training.coordinator import Coordinator
from dmondrian.distributed.training.shard_state import ShardState
from dmondrian.distributed.worker import work_units

SILENCE = 1.0
"""Seconds after which a worker that was stopped on purpose is given up; others have the default,
because a busy machine can keep a healthy worker silent for longer."""

_silent: set[str] = set()


def say(**about: Any) -> None:
    """Write one line for the harness."""
    sys.stdout.write(json.dumps(about) + "\n")
    sys.stdout.flush()


def listen(reported: Progress) -> None:
    """Say where the run stands, and do what the harness wants."""
    say(rows=reported.rows, n_rows=reported.n_rows, durable=reported.durable)
    line = sys.stdin.readline()
    if not line:
        raise RuntimeError("the harness has gone")
    command = json.loads(line)
    if "silent" in command:
        _silent.add(command["silent"])
    if "woken" in command:
        _silent.discard(command["woken"])
    if "commit" in command:
        _die_at_commit(is_after=command["commit"] == "after")


def _die_at_commit(is_after: bool) -> None:
    """End this process around the next commit: its blobs are written."""
    commit = Run.commit

    @functools.wraps(commit)
    def die(*arguments: Any) -> Any:
        if is_after:
            commit(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    Run.commit = die  # type: ignore[method-assign]  # a process that is about to end


def _watch_losses() -> None:
    """Say which shard was lost, where, how many rows that costs, and whether it only moved."""
    lose, rebalance, check = (
        Coordinator._lose,
        Coordinator._rebalance,
        Coordinator._check_silence,
    )
    is_moving = [False]

    def watch(self: Coordinator, state: ShardState) -> None:
        alive = state.address in self._workers.threads
        say(
            lost=state.shard,
            address=state.address,
            is_held=state.is_held,
            rows=self._row(state.done) - self._row(state.saved_unit) if state.is_held else 0,
            # A worker that went away just as shards were rebalanced is a loss.
            is_move=is_moving[0] and alive,
        )
        lose(self, state)

    def move(self: Coordinator) -> None:
        is_moving[0] = True
        try:
            rebalance(self)
        finally:
            is_moving[0] = False

    def hasten(self: Coordinator, now: float) -> None:
        for address in _silent & self._last_answer.keys():
            if now - self._last_answer[address] > SILENCE:
                self._last_answer[address] = -float("inf")
        check(self, now)

    Coordinator._lose = watch  # type: ignore[method-assign]  # in this process only
    Coordinator._rebalance = move  # type: ignore[method-assign]  # as above
    Coordinator._check_silence = hasten  # type: ignore[method-assign]  # as above


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    scheduler, data, run, text = sys.argv[1:]
    options = json.loads(text)
    progress.ProgressReporter.interval = 0.0
    work_units.UNIT_ROWS = options.pop("unit_rows", work_units.UNIT_ROWS)
    estimator = AMFClassifier(**options.pop("forest"))
    _watch_losses()
    with Client(scheduler, set_as_default=False) as client:
        began = time.monotonic()
        done = train(estimator, data, run=run, client=client, progress=listen, **options)
        say(summary=done.summary, metrics=done.metrics, seconds=time.monotonic() - began)


if __name__ == "__main__":
    main()
