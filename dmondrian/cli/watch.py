"""`dmondrian describe --follow` and `dmondrian cancel`: a run that works elsewhere.

Relies on the run folder alone: on the beats of its lease, which say where it stands. Promises not
to wait for a holder that gives no sign of life any more.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from dmondrian.checkpoint import Run, jobs
from dmondrian.checkpoint.lease import (
    BEAT_SECONDS,
    LEASE_SECONDS,
    Holder,
    ask_to_stop,
    holder_of,
)
from dmondrian.checkpoint.parts import open_whole, parts_of
from dmondrian.cli.output import Output
from dmondrian.errors import ClusterError

if TYPE_CHECKING:
    from dmondrian.distributed import Progress

_START_SECONDS = 60.0  # how long to wait for a job that was handed over to begin


def follow(arguments: argparse.Namespace, output: Output) -> int:
    """Run `describe --follow`: tell progress until nobody works on the run any more."""
    run = open_whole(arguments.model)
    holder = _wait_for_holder(run, output)
    if holder is not None and not holder.is_over:
        output.note(f"{run.url}: {holder}")
        for now in _beats(run, holder, output):
            holder = now
        output.close_line()
    return _tell_end(run, holder, output)


def cancel(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian cancel --help`."""
    run = open_whole(arguments.model)
    one, holder = _newest(run)
    job = jobs.newest(run.store)
    is_waiting = job is not None and not job.is_done
    if holder is None or holder.is_over:
        if job is not None and is_waiting:
            return _cancel_job(run, job, output)
        output.event("cancelled", {"run": run.url, "was_running": False})
        output.text(f"nobody works on {run.url}; {_state(run)}")
        return 0
    ask_to_stop(one.store, holder)
    if job is not None and is_waiting and holder.job == job.id:
        jobs.ask_to_stop(run.store, job.id)  # should it be at its end: it would go on to score
    output.note(f"asked {holder} to stop at its next checkpoint")
    for now in _beats(run, holder, output):
        holder = now
    output.close_line()
    output.event("cancelled", {"run": run.url, "was_running": True})
    output.text(f"stopped {run.url}; {_state(run)}")
    return 0


def _cancel_job(run: Run, job: jobs.Job, output: Output) -> int:
    """Stop a job that was handed over and does not train: it waits, or scores."""
    jobs.ask_to_stop(run.store, job.id)
    job = jobs.find(run.store, job.id)  # it looks for the request after it says that it scores
    if job.scoring is None:
        output.event("cancelled", {"run": run.url, "was_running": False})
        output.text(
            f"the job that was handed over will not begin to train or to score; {_state(run)}"
        )
        return 0
    output.note("the job has trained and scores: asked it to stop at its next file of scores")
    job = _wait_for_end(run, job, output)
    if job.error is not None:
        raise ClusterError(f"the job failed before it stopped: {job.error}")
    output.event("cancelled", {"run": run.url, "was_running": True, "was_scoring": True})
    if job.is_stopped:
        output.text(
            f"stopped the scoring of {run.url}: files of scores that are written stay, and the "
            f"same scoring goes on from them; {_state(run)}"
        )
    else:
        output.text(f"the scoring of {run.url} came to its end before it stopped; {_state(run)}")
    return 0


def _wait_for_end(run: Run, job: jobs.Job, output: Output) -> jobs.Job:
    """Return a job that scores when it has ended; refuse to wait for one that gives no sign."""
    heard, is_told = time.monotonic(), False
    while not job.is_done:
        time.sleep(BEAT_SECONDS)
        before, job = job, jobs.find(run.store, job.id)
        if job.scoring != before.scoring:
            heard, is_told = time.monotonic(), False
        silence = time.monotonic() - heard
        if silence > LEASE_SECONDS and not is_told:
            is_told = True
            output.note(f"no sign of life from the job for {silence:.0f} seconds")
        if silence > 4 * LEASE_SECONDS:
            raise ClusterError(
                f"the job that scores works on {run.url} no more; {_state(run)}. It will not begin "
                "again; files of scores that are written stay, and the same scoring goes on from "
                "them"
            )
    return job


def _wait_for_holder(run: Run, output: Output) -> Holder | None:
    """Return who works on a run, or did last; wait for a job that was handed over to begin."""
    end = time.monotonic() + _START_SECONDS
    while True:
        _, holder = _newest(run)
        job = jobs.newest(run.store)
        is_waiting = (
            job is not None and not job.is_done and (holder is None or holder.job != job.id)
        )
        if not is_waiting or time.monotonic() > end:
            if is_waiting:
                output.note(
                    f"a job was handed over and has not begun after {_START_SECONDS:.0f} seconds: "
                    "it waits for a worker, or its cluster is gone"
                )
            return holder
        time.sleep(BEAT_SECONDS)


def _newest(run: Run) -> tuple[Run, Holder | None]:
    """Return the run or the part of it that is worked on, or was last."""
    held = [(one, holder_of(one.store)) for one in (run, *parts_of(run))]
    known = [(one, holder) for one, holder in held if holder is not None]
    if not known:
        return run, None
    return max(known, key=lambda pair: (not pair[1].is_over, pair[1].began))


def _beats(run: Run, holder: Holder, output: Output) -> Iterator[Holder]:
    """Yield each sign of life until the end, or until there was none for long."""
    heard = time.monotonic()
    is_told = False
    while True:
        _, now = _newest(run)
        before, holder = holder, now or holder
        if (before.number, before.beat) != (holder.number, holder.beat):
            heard, is_told = time.monotonic(), False
            if (told := _progress_in(holder.beat)) is not None:
                output.follow(told)
            yield holder
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


def _progress_in(beat: Mapping[str, Any] | None) -> Progress | None:
    """Return what a beat tells; None where it is not what this version knows."""
    from dmondrian.distributed import Progress

    told = (beat or {}).get("told")
    if not isinstance(told, dict):
        return None
    known = {entry.name: entry.type for entry in fields(Progress) if entry.name in told}
    if not all(_is_a(told[name], str(kind)) for name, kind in known.items()):
        return None
    try:
        return Progress(**{name: told[name] for name in known})
    except TypeError:  # one that is needed is not there
        return None


def _is_a(value: Any, kind: str) -> bool:
    """Whether a value of JSON is of the type that a field of `Progress` is said to have."""
    if kind == "float | None":  # seconds, which are told as a clock
        return value is None or (_is_a(value, "float") and math.isfinite(value))
    if kind == "int | None":
        return value is None or _is_a(value, "int")
    if kind == "dict[str, float]":
        return isinstance(value, dict) and all(_is_a(item, "float") for item in value.values())
    if kind == "bool":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind == "int":
        return isinstance(value, int)
    return isinstance(value, (int, float))


def _tell_end(run: Run, holder: Holder | None, output: Output) -> int:
    job = jobs.newest(run.store)
    # A failure that another attempt has come after is history.
    is_last = job is not None and (
        holder is None or holder.job == job.id or holder.began < job.began
    )
    if job is not None and is_last and job.error is not None:
        raise ClusterError(f"the job that was handed over failed: {job.error}")
    if holder is None:
        output.text(f"nobody works on {run.url}; {_state(run)}")
        return 0
    if job is not None and not job.is_done and holder.job == job.id:
        output.note("training has ended; the job goes on, with its scores or its last words")
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
