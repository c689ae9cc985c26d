"""Evaluation of a run's checkpoints on held-out data, beside the training that writes them.

A checkpoint is evaluated as :func:`dmondrian.distributed.evaluate` does it, by the workers that
train, from the blobs that they saved: a thread of the coordinating process sends the tasks and adds
their answers, and the shards go on learning. While it lasts, workers hold a second copy of the
trees, and no next checkpoint is committed: learning waits at it, within its window, so that no
evaluation falls behind and none is left out.

Relies on checkpoints that do not change, and on the run's lease. Promises that no byte of the
forest, and no progressive metric, depends on it; that a failure is a warning, and ends no training;
that a checkpoint is evaluated once, also by a run that resumes; and that rows which are trained on
are refused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from distributed import Client

from dmondrian._text.wording import counted
from dmondrian.checkpoint import Run
from dmondrian.checkpoint.held_out import (
    NAME,
    Evaluated,
    HeldOutRecord,
    plain_metrics,
    read_record,
    write_record,
)
from dmondrian.checkpoint.parts import is_whole, model_parts, parts_of
from dmondrian.data import Plan, make_scoring_plan, read_blocks
from dmondrian.data.chunks import join
from dmondrian.data.paths import check_paths
from dmondrian.distributed.cluster.events import Events
from dmondrian.distributed.cluster.interrupt import Interrupts
from dmondrian.distributed.scoring.evaluate import measure
from dmondrian.distributed.scoring.learned_rows import files_in_common
from dmondrian.distributed.scoring.model_info import open_model
from dmondrian.errors import CheckpointError, CorruptError, DataError, SchemaError, StoreError

_log = logging.getLogger("dmondrian")

_TICK = 0.25  # seconds between two looks whether an evaluation has ended
_STOP_SECONDS = 10.0  # for a thread to end after it was asked to
_NAMED = 3  # files named in an error


class HeldOutData:
    """Held-out data of a call that trains.

    Parameters
    ----------
    source : str, path or sequence of them
        Of the same columns as the data of the run.
    """

    def __init__(self, source: Any) -> None:
        check_paths(source, "write held-out rows as Parquet, and give the path")
        self.source = source
        self.plan: Plan | None = None  # after `check`

    def check(self, plan: Plan) -> None:
        """Make the plan of the held-out data, and read their labels, once.

        Parameters
        ----------
        plan : Plan
            The stream of the run.

        Raises
        ------
        DataError
            A file is one of the stream, columns or rows are missing, labels are new, or no row
            can be measured.
        """
        if self.plan is None:
            try:
                made = make_scoring_plan(self.source, plan.schema, target=True)
                _check_labels(made)
            except DataError as error:
                kind = SchemaError if isinstance(error, SchemaError) else DataError
                raise kind(f"validation: {error}") from error
            self.plan = made
        if common := files_in_common(plan.blocks, self.plan.blocks):
            named = ", ".join(common[:_NAMED]) + (", ..." if len(common) > _NAMED else "")
            raise DataError(
                f"validation: {counted(len(common), 'file')} of the held-out data "
                f"{'is' if len(common) == 1 else 'are'} trained on as well ({named}): a loss on "
                "learned rows is no measure for others; hold out other files"
            )


def _check_labels(plan: Plan) -> None:
    """Refuse rows with labels that are no classes of the run, and data with nothing to measure."""
    schema = plan.schema
    if schema.target is None and not schema.has_weights:
        return
    # One column of features has to be read, as rows without any are none.
    alone = Plan(replace(schema, columns=schema.columns[:1]), plan.blocks)
    total = 0.0
    for chunk in join(plan.blocks):
        rows = read_blocks(alone, plan.blocks[chunk.first : chunk.last])
        total += float(len(rows.X) if rows.weight is None else np.sum(rows.weight))
    if total <= 0.0:
        lacks = schema.weight_in_words if schema.has_weights else f"a label in {schema.target!r}"
        raise DataError(f"no row of the held-out data has {lacks}")


class Validation:
    """Held-out metrics of a run in work.

    Parameters
    ----------
    run : Run
    plan : Plan
        Of the held-out data.
    """

    def __init__(self, run: Run, plan: Plan) -> None:
        self._run, self._plan = run, plan
        files = tuple(dict.fromkeys(plan.table.uris()))
        self.record = HeldOutRecord(plan.digest, files, plan.n_rows)
        stored = read_record(run.store)
        if stored is not None and stored.digest == plan.digest:
            self.record = stored
        self._thread: threading.Thread | None = None
        self._position = 0  # of the checkpoint that is being evaluated
        self._found: Evaluated | Exception | None = None
        self._is_asked_to_stop = False
        self._began = 0.0
        self._failed: set[int] = set()

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being evaluated, or was and has not been recorded."""
        return self._thread is not None

    def needed(self) -> set[int]:
        """Return the positions of checkpoints that must stay: the best, and one in use."""
        best = self.record.best(self._run.manifests())
        positions = set() if best is None else {best.position}
        return positions | ({self._position} if self.is_busy else set())

    def begin(self, position: int, client: Client) -> None:
        """Begin to evaluate a checkpoint, unless it was, or another one is being evaluated."""
        n_trees = self._n_trees()
        if self.is_busy or position in self._failed or self.record.has(position, n_trees):
            return
        self._position, self._found, self._is_asked_to_stop = position, None, False
        self._began = time.monotonic()
        self._thread = threading.Thread(
            target=self._evaluate,
            args=(position, n_trees, client),
            name="dmondrian-validation",
            daemon=True,
        )
        self._thread.start()

    def look(self, events: Events, seconds: float = 0.0) -> None:
        """Record a finished evaluation; wait for it up to some seconds."""
        if self._thread is None:
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            return
        self._thread = None
        if isinstance(self._found, Evaluated):
            self._note(self._found, events)
        elif self._found is not None:
            self._failed.add(self._position)
            error = self._found
            events.add(
                "held_out_failed",
                f"the checkpoint at row {self._position:,} was not evaluated on held-out data "
                f"({type(error).__name__}: {error}); training goes on",
                position=self._position,
            )

    def stop(self) -> None:
        """Give up the evaluation in work: the next attempt begins it again."""
        if self._thread is None:
            return
        self._is_asked_to_stop = True
        self._thread.join(_STOP_SECONDS)
        self._thread = None

    def catch_up(self, connect: Callable[[], Client], events: Events) -> None:
        """Evaluate the newest checkpoint, unless it was."""
        try:
            position = model_parts(self._run)[0][1].position
        except CheckpointError:
            return
        if position in self._failed or self.record.has(position, self._n_trees()):
            return
        client = connect()
        with Interrupts() as interrupts:
            self.begin(position, client)
            try:
                while self.is_busy:
                    self.look(events, _TICK)
                    if interrupts.is_requested:
                        raise KeyboardInterrupt(
                            "stopped before the last checkpoint was evaluated on held-out data; "
                            "run the same command again to do so"
                        )
            finally:
                self.stop()

    def report(self) -> dict[str, Any]:
        """Return what is known, as JSON values."""
        return self.record.report(self._run.manifests())

    def progress(self) -> dict[str, float]:
        """Return the newest held-out metrics, for records of progress; see `Progress.held_out`."""
        if not self.record.evaluated:
            return {}
        newest = self.record.evaluated[-1]
        best = min(
            self.record.evaluated, key=lambda evaluated: (evaluated.rank, evaluated.position)
        )
        values = {newest.loss: newest.metrics.get(newest.loss), **newest.metrics}
        values |= {"best": best.metrics.get(best.loss)}
        known = {name: value for name, value in values.items() if value is not None}
        return known | {"position": newest.position, "best_position": best.position}

    def _n_trees(self) -> int:
        """Return the trees of the model: those of parts count once these are whole."""
        parts = [part for part in parts_of(self._run) if is_whole(part)]
        return sum(int(part.run_json["n_estimators"]) for part in (self._run, *parts))

    def _evaluate(self, position: int, n_trees: int, client: Client) -> None:
        """Evaluate a checkpoint: the body of the thread."""
        try:
            model = open_model(f"{self._run.url}@{position}", measures_distance=False)
            metrics = measure(model, self._plan, client, go_on=self._go_on)
            self._found = Evaluated(position, n_trees, plain_metrics(metrics))
        except _StoppedError:
            pass
        except Exception as error:  # noqa: BLE001 - reported by `look`; must not end the training
            self._found = None if self._is_asked_to_stop else error

    def _go_on(self) -> None:
        if self._is_asked_to_stop:
            raise _StoppedError

    def _note(self, new: Evaluated, events: Events) -> None:
        """Record an evaluation, and tell of it."""
        there = self._run.manifests()
        self.record = self.record.with_one(new, there)
        try:
            write_record(self._run.store, self.record)
        except StoreError as error:  # the next one writes this one too
            _log.warning("held-out metrics of %s were not stored: %s", self._run.url, error)
        best = self.record.best(there)
        is_best = best is not None and best.position == new.position
        values = [f"{name} {new.metrics[name]:.4g}" for name in _shown(new)]
        text = (
            f"held-out {', '.join(values)} at row {new.position:,}, of "
            f"{counted(self.record.n_rows, 'row')}"
        )
        if best is not None:
            text += "; the best so far" if is_best else f"; the best is row {best.position:,}"
        events.add(
            "held_out",
            text,
            is_loss=False,
            position=new.position,
            metrics=new.metrics,
            is_best=is_best,
            seconds=round(time.monotonic() - self._began, 3),
        )


class _StoppedError(Exception):
    """An evaluation was given up."""


def _shown(evaluated: Evaluated) -> list[str]:
    """Return the metrics that a line names: the loss first."""
    names = [
        evaluated.loss,
        *(name for name in ("accuracy", "mae", "r2") if name in evaluated.metrics),
    ]
    return [name for name in names if evaluated.metrics.get(name) is not None]


def validation_of(run: Run, plan: Plan | None) -> Validation | None:
    """Return the validation of a run; None without held-out data.

    What is stored of a damaged record is lost, with a warning: it can be made again.
    """
    if plan is None:
        return None
    try:
        return Validation(run, plan)
    except CorruptError as error:
        _log.warning("%s", error)
        run.store.delete([NAME])
        return Validation(run, plan)
