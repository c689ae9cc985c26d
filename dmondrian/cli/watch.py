"""`dmondrian describe --follow` and `dmondrian cancel`: a run that works elsewhere.

Relies on the run folder alone: on the beats of its lease, which say where it stands. Promises not
to wait for a holder that gives no sign of life any more.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from dmondrian.checkpoint import Run, document
from dmondrian.checkpoint.lease import (
    BEAT_SECONDS,
    LEASE_SECONDS,
    Holder,
    ask_to_stop,
    holder_of,
)
from dmondrian.checkpoint.parts import parts_of
from dmondrian.cli.output import Output
from dmondrian.errors import ClusterError

_START_SECONDS = 60.0  # a job that was handed over may first wait for a worker


def follow(arguments: argparse.Namespace, output: Output) -> int:
    """Run `describe --follow`: tell progress until nobody works on the run any more."""
    run = Run.open(arguments.model)
    holder = _wait_for_holder(run)
    if holder is None:
        failure = _last_failure(run)
        if failure is not None:
            raise ClusterError(f"the last attempt at {run.url} failed: {failure}")
        output.text(f"nobody works on {run.url}; {_state(run)}")
        return 0
    output.note(f"{run.url}: {holder}")
    for now in _beats(run, holder, output):
        holder = now
    output.close_line()
    return _tell_end(run, holder, output)


def cancel(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian cancel --help`."""
    run = Run.open(arguments.model)
    one, holder = _newest(run)
    if holder is None or holder.is_over:
        output.event("cancelled", {"run": run.url, "was_running": False})
        output.text(f"nobody works on {run.url}; {_state(run)}")
        return 0
    ask_to_stop(one.store, holder)
    output.note(f"asked {holder} to stop at its next checkpoint")
    for now in _beats(run, holder, output):
        holder = now
    output.close_line()
    output.event("cancelled", {"run": run.url, "was_running": True})
    output.text(f"stopped {run.url}; {_state(run)}")
    return 0


def _wait_for_holder(run: Run) -> Holder | None:
    """Return who works on a run; wait a little for a first one."""
    end = time.monotonic() + _START_SECONDS
    while True:
        _, holder = _newest(run)
        is_fresh = not run.manifests() and not run.store.list("attempts")
        if holder is not None or not is_fresh or time.monotonic() > end:
            return holder
        time.sleep(BEAT_SECONDS)


def _last_failure(run: Run) -> str | None:
    """Return why the last attempt failed before it could take hold of the run."""
    names = run.store.list("attempts")
    note = document.unseal(run.store.get(names[-1]), names[-1]) if names else {}
    return note.get("error")


def _newest(run: Run) -> tuple[Run, Holder | None]:
    """Return the run or the part of it that is worked on, or was last."""
    held = [(one, holder_of(one.store)) for one in (run, *parts_of(run))]
    known = [(one, holder) for one, holder in held if holder is not None]
    if not known:
        return run, None
    return max(known, key=lambda pair: (not pair[1].is_over, pair[1].began))


def _beats(run: Run, holder: Holder, output: Output) -> Iterator[Holder]:
    """Yield each sign of life until the end, or until there was none for long."""
    from dmondrian.distributed import Progress

    heard = time.monotonic()
    is_told = False
    while True:
        _, now = _newest(run)
        if now is not None and (now.number, now.beat) != (holder.number, holder.beat):
            holder, heard, is_told = now, time.monotonic(), False
            if now.beat and now.beat.get("told"):
                output.follow(Progress(**now.beat["told"]))
            yield now
        if holder.is_over:
            return
        silence = time.monotonic() - heard
        if silence > LEASE_SECONDS and not is_told:
            is_told = True
            output.note(f"no sign of life from {holder} for {silence:.0f} seconds")
        if silence > 4 * LEASE_SECONDS:
            raise ClusterError(
                f"{holder} works on {run.url} no more; {_state(run)}. The command that trains it "
                "goes on from there"
            )
        time.sleep(BEAT_SECONDS)


def _tell_end(run: Run, holder: Holder, output: Output) -> int:
    beat = holder.beat or {}
    outcome = beat.get("outcome") or "ended without a word"
    output.event("followed", {"run": run.url, "outcome": outcome, "error": beat.get("error")})
    output.text(f"{outcome}; {_state(run)}")
    if outcome == "failed":
        raise ClusterError(f"{holder} failed: {beat.get('error')}")
    return 0


def _state(run: Run) -> str:
    """Say how far a run has come."""
    newest = run.latest(verify=False)
    if newest is None:
        return "it has no checkpoint yet"
    end = ", the end of its stream" if newest.final else ""
    return f"its last checkpoint is at position {newest.position:,}{end}"
