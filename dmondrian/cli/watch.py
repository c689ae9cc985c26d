"""`dmondrian describe --follow` and `dmondrian cancel`: a run that works elsewhere.

Relies on the run folder alone: on the heartbeats of its lease, which report progress, and on the
records of jobs that were submitted to a cluster. Promises to wait while a job may continue, even in
another process than it began in, and only a bounded time for one that gives no sign of life.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
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
from dmondrian.checkpoint.row_ranges import learned_of_parts, unmerged_in_words
from dmondrian.cli.output import Output
from dmondrian.errors import ClusterError

if TYPE_CHECKING:
    from dmondrian.distributed import Progress

_SILENCE = 4 * LEASE_SECONDS  # seconds without a sign of life after which a process is given up
_RESTART = 300.0  # the same for a job, which the cluster may start again elsewhere
_START = 60.0  # seconds after which it is worth a note that a job has not begun


def follow(arguments: argparse.Namespace, output: Output) -> int:
    """Run `describe --follow`: report progress until nobody works on the run any more."""
    run = open_whole(arguments.model)
    watch = _Watch(run, output)
    if watch.holder is not None and not watch.holder.is_over:
        output.note(f"{run.url}: {watch.holder}")
    watch.wait()
    return _report_end(run, watch, output)


def cancel(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian cancel --help`."""
    run = open_whole(arguments.model)
    watch = _Watch(run, output)
    holder, job = watch.holder, watch.job
    if job is not None and (holder is None or holder.is_over):
        return _cancel_job(watch, job)
    if holder is None or holder.is_over:
        output.event("cancelled", {"run": run.url, "was_running": False})
        output.text(f"nobody works on {run.url}; {_state(run)}")
        return 0
    ask_to_stop(_newest(run)[0].store, holder)
    if job is not None and holder.job == job.id:
        jobs.ask_to_stop(run.store, job.id)  # should it be at its end: it would go on to score
    output.note(f"asked {holder} to stop: it saves where the step that it computes ends")
    watch.wait()
    outcome = watch.outcome
    if outcome == "failed":
        raise ClusterError(f"{watch.holder} failed before it stopped: {watch.error}")
    output.event("cancelled", {"run": run.url, "was_running": True, "outcome": outcome})
    if outcome == "finished":
        output.text(f"{run.url} came to its end before it stopped; {_state(run)}")
    else:
        output.text(f"stopped {run.url}; {_state(run)}")
    return 0


def _cancel_job(watch: _Watch, job: jobs.Job) -> int:
    """Stop a submitted job that does not train: it waits, or scores."""
    run, output, holder = watch.run, watch.output, watch.holder
    jobs.ask_to_stop(run.store, job.id)
    is_lost = _is_of(holder, job)
    if holder is not None and is_lost:
        ask_to_stop(_newest(run)[0].store, holder)  # who takes its place looks there
    job = jobs.find(run.store, job.id)  # it looks for the request after it reports that it scores
    if job.scoring is None:
        output.event("cancelled", {"run": run.url, "was_running": False})
        what = "go on" if is_lost else "begin to train or to score"
        output.text(f"the job that was handed over will not {what}; {_state(run)}")
        return 0
    output.note("the job has trained and scores: asked it to stop at its next file of scores")
    watch.wait()
    job = jobs.find(run.store, job.id)
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


def _newest(run: Run) -> tuple[Run, Holder | None]:
    """Return the run or the part of it that is worked on, or was last."""
    held = [(run_or_part, holder_of(run_or_part.store)) for run_or_part in (run, *parts_of(run))]
    known = [(run_or_part, holder) for run_or_part, holder in held if holder is not None]
    if not known:
        return run, None
    return max(known, key=lambda pair: (not pair[1].is_over, pair[1].began))


def _pending(run: Run, holder: Holder | None) -> jobs.Job | None:
    """Return the last submitted job, if it may still continue."""
    job = jobs.newest(run.store)
    if job is None or job.is_done:
        return None
    is_of_another = holder is not None and holder.job != job.id and holder.began > job.began
    return None if is_of_another else job


class _Watch:
    """Polls who works on a run.

    Attributes
    ----------
    run : Run
    output : Output
    holder : Holder or None
        Who works on it, or did last.
    job : Job or None
        The job that was handed over, as long as it may go on.
    """

    def __init__(self, run: Run, output: Output) -> None:
        self.run, self.output = run, output
        self._last_sign = time.monotonic()  # when the last sign of life came
        self._is_noted = False  # that there was none since
        self.look()
        self._seen = _seen_of(self.holder)  # attempt, and number of its last event that is known

    def look(self) -> None:
        """Read who works on the run."""
        _, self.holder = _newest(self.run)
        self.job = _pending(self.run, self.holder)

    @property
    def is_working(self) -> bool:
        """Whether somebody works on the run, or may begin to."""
        return self.job is not None or (self.holder is not None and not self.holder.is_over)

    @property
    def outcome(self) -> str:
        """The end that the last holder wrote; "lost" where it wrote none."""
        beat = self.holder.beat if self.holder is not None and self.holder.has_ended else None
        return str((beat or {}).get("outcome") or "lost")

    @property
    def error(self) -> str | None:
        """Why the last holder failed."""
        beat = self.holder.beat if self.holder is not None else None
        return (beat or {}).get("error")

    def wait(self) -> None:
        """Report progress until nobody works on the run any more.

        Raises
        ------
        ClusterError
            There was no sign of life for too long.
        """
        while self.is_working:
            self._check_silence()
            time.sleep(BEAT_SECONDS)
            before = self.holder, self.job
            self.look()
            self._report_news(*before)
        self.output.close_bar()

    def _report_news(self, before: Holder | None, job: jobs.Job | None) -> None:
        """Report what has changed since the look before."""
        now = self.holder
        scoring = self.job.scoring if self.job is not None else None
        if scoring is not None and (job is None or scoring != job.scoring):
            self._note_sign()
            _report_scoring(self.run, scoring, self.output)
        is_new = now is not None and (before is None or before.number != now.number)
        if now is None or (not is_new and before is not None and before.beat == now.beat):
            return
        self._note_sign()
        if is_new:
            where = "" if before is None or before.has_ended else f" where {before} was lost"
            self.output.note(f"{now} goes on{where}" if before is not None else f"{now} begins")
        for event in _events_in(now.beat):
            if (now.number, event["number"]) > self._seen:
                self.output.happened({k: v for k, v in event.items() if k != "number"})
        self._seen = max(self._seen, _seen_of(now))
        if (progress := _progress_in(now.beat)) is not None:
            self.output.follow(progress)

    def _note_sign(self) -> None:
        self._last_sign, self._is_noted = time.monotonic(), False

    def _check_silence(self) -> None:
        """Report once that there is no sign of life; give up after a long time."""
        silence = time.monotonic() - self._last_sign
        if silence > (_SILENCE if self.job is None else _RESTART):
            raise ClusterError(_given_up(self.run, self.holder, self.job, silence))
        if not self._is_noted:
            is_gone = self.holder is not None and self.holder.is_over
            text = _silent(self.run, self.holder, self.job, silence)
            self._is_noted = text is not None
            if text is not None:
                self.output.note(text)
                about = {"run": self.run.url, "seconds": silence, "is_gone": is_gone}
                self.output.event("silent", about)


def _events_in(beat: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the events in a heartbeat that this version knows."""
    events = (beat or {}).get("events")
    events_there = (
        [event for event in events if isinstance(event, dict)] if type(events) is list else []
    )
    return [
        event for event in events_there if _is_a(event.get("number"), "int") and "text" in event
    ]


def _seen_of(holder: Holder | None) -> tuple[int, int]:
    if holder is None:
        return 0, 0
    return holder.number, max((event["number"] for event in _events_in(holder.beat)), default=0)


def _is_of(holder: Holder | None, job: jobs.Job) -> bool:
    """Whether a job has a process that trains and did not write that it has ended."""
    return holder is not None and holder.job == job.id and not holder.has_ended


def _silent(run: Run, holder: Holder | None, job: jobs.Job | None, silence: float) -> str | None:
    """Return what a silence means, or None while it is short."""
    again = "the cluster starts the job again on another worker, and this waits for it"
    if job is None or _is_of(holder, job):
        assert holder is not None  # without a job it is what is waited for
        if job is not None and holder.is_gone:
            return (
                f"{holder}, which moved the run, was lost{_last_sign(holder)}: {again}; "
                f"{_state(run)}"
            )
        if silence <= LEASE_SECONDS:
            return None
        what = "" if job is None else f"; if it was lost, {again}; {_state(run)}"
        return f"no sign of life from {holder} for {silence:.0f} seconds{what}"
    if job.scoring is not None and silence > LEASE_SECONDS:
        return f"no sign of life from the job that scores for {silence:.0f} seconds"
    if job.scoring is None and silence > _START:
        return (
            f"a job was handed over and does not begin for {silence:.0f} seconds: it waits for a "
            "worker, or its cluster is gone"
        )
    return None


def _given_up(run: Run, holder: Holder | None, job: jobs.Job | None, silence: float) -> str:
    """Return the error after a long silence, and what to do."""
    if job is None:
        return (
            f"no sign of life from {holder} for {silence:.0f} seconds: nobody works on {run.url} "
            f"any more; {_state(run)}. The command that trains it goes on from there"
        )
    if job.scoring is not None:
        return (
            f"no sign of life from the job that scores for {silence:.0f} seconds; {_state(run)}. "
            "Files of scores that are written stay, and the same scoring goes on from them"
        )
    lost = f"{holder} was lost and nobody took its place"
    who = lost if _is_of(holder, job) else "it has not begun"
    return (
        f"no sign of life from the job for {silence:.0f} seconds: {who}; {_state(run)}. If it only "
        "waits for a worker, follow it again; if its cluster is gone, or gave it up (by default "
        "after it lost 3 workers more), the command that trains it, with --detach or without, goes "
        "on from there"
    )


def _report_scoring(run: Run, beat: Mapping[str, Any], output: Output) -> None:
    rows, n_rows = beat.get("rows"), beat.get("n_rows")
    if isinstance(rows, int) and isinstance(n_rows, int) and n_rows > 0:
        share = 100 * rows // n_rows
        output.progress(f"scoring: {rows:,} of {n_rows:,} rows ({share}%)", rows, n_rows)
        output.event("scoring", {"run": run.url, "rows": rows, "n_rows": n_rows})


def _last_sign(holder: Holder) -> str:
    at = (holder.beat or {}).get("at")
    if not _is_a(at, "float"):
        return ""
    return f" (last sign of life at {time.strftime('%H:%M:%S', time.localtime(at))})"


def _progress_in(beat: Mapping[str, Any] | None) -> Progress | None:
    """Return the progress in a heartbeat; None if this version cannot read it."""
    from dmondrian.distributed import Progress

    values = (beat or {}).get("told")
    if not isinstance(values, dict):
        return None
    known = {entry.name: entry.type for entry in fields(Progress) if entry.name in values}
    if not all(_is_a(values[name], str(kind)) for name, kind in known.items()):
        return None
    try:
        return Progress(**{name: values[name] for name in known})
    except TypeError:  # one that is needed is not there
        return None


def _is_a(value: Any, kind: str) -> bool:
    """Whether a value of JSON has the type that is annotated on a field of `Progress`."""
    if kind == "float | None":  # seconds, which are shown as a clock
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


def _report_end(run: Run, watch: _Watch, output: Output) -> int:
    holder, job = watch.holder, jobs.newest(run.store)
    # A failure that another attempt has come after is history.
    is_last = job is not None and (
        holder is None or holder.job == job.id or holder.began < job.began
    )
    if job is not None and is_last and job.error is not None:
        raise ClusterError(f"the job that was handed over failed: {job.error}")
    if holder is None:
        output.text(f"nobody works on {run.url}; {_state(run)}")
        return 0
    output.event("followed", {"run": run.url, "outcome": watch.outcome, "error": watch.error})
    if watch.outcome == "lost":
        raise ClusterError(
            f"{holder} is gone, and did not write how it ended: it was killed{_last_sign(holder)}; "
            f"{_state(run)}. The command that trains it goes on from there"
        )
    output.text(f"{watch.outcome}; {_state(run)}")
    if watch.outcome == "failed":
        raise ClusterError(f"{holder} failed: {watch.error}")
    return 0


def _state(run: Run) -> str:
    """Return how far a run has come."""
    newest = run.latest(verify=False)
    if newest is None:
        learned = learned_of_parts(run)
        parts = "" if learned is None else f": {unmerged_in_words(run.run_json, learned)}"
        return f"it has no checkpoint yet{parts}"
    end = ", the end of its stream" if newest.final else ""
    return f"its last checkpoint is at position {newest.position:,}{end}"
