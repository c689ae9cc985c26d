"""Following of data: files and rows are learned soon after they come, until the call is ended.

Files that come without labels are scored by the newest checkpoint, and the model is exported; rows
are joined with labels that come later, and learned then.

Relies on the continuation of runs (:mod:`dmondrian.distributed.training.train`), of which each look
at the data that finds something new is one; on arrivals for files that are whole; and on
:mod:`dmondrian.distributed.scoring.score_arrivals` for scores. Promises that
whatever ends the process, the next one goes on, and each row is learned once; that it ends at a
checkpoint when asked to; and that of a look only what the stream has of its files stays in memory.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from distributed import Client

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.pruning import prune
from dmondrian.data import (
    Arrivals,
    Arrived,
    BatchFiles,
    Joined,
    LabelJoin,
    Plan,
    gives_batches,
    stored_plan,
)
from dmondrian.data.label_join import N_ROWS
from dmondrian.data.lagged_files import lags_of_run
from dmondrian.data.make import NoRowsError
from dmondrian.data.paths import check_paths, rooted
from dmondrian.distributed.cluster.alerts import Alerts
from dmondrian.distributed.cluster.client import Connection
from dmondrian.distributed.cluster.events import EventListener
from dmondrian.distributed.cluster.free_memory import free_memory
from dmondrian.distributed.cluster.interrupt import Interrupts
from dmondrian.distributed.cluster.outage import Outage
from dmondrian.distributed.cluster.progress import Listener
from dmondrian.distributed.cluster.prometheus_metrics import HOST
from dmondrian.distributed.scoring.score_arrivals import ScoreArrivals, Scored
from dmondrian.distributed.training.attempt import AttemptOptions, attempt_options
from dmondrian.distributed.training.batch_source import (
    about_batches,
    batch_files,
    check_data,
    drop_learned,
    refuse_row_parts,
    refuse_with_labels,
    rows_to_take,
    safe_position,
)
from dmondrian.distributed.training.lagged_data import refuse_with_lags
from dmondrian.distributed.training.run_folder import checked_folder
from dmondrian.distributed.training.run_setup import IN_MEMORY, learned_by_all, prepare_run
from dmondrian.distributed.training.train import TrainedRun, bring_to_end, checks_of, serve_metrics
from dmondrian.distributed.training.validation import HeldOutData
from dmondrian.errors import (
    CheckpointError,
    DataError,
    FencedError,
    NotFoundError,
    OutageError,
    ParameterError,
)

_log = logging.getLogger("dmondrian")

KEEP = 3
"""Checkpoints that are kept by default: each is a whole forest, and one is saved at each look."""

ONE_ALONE = (
    "Following ends here, since another process works on this run: let one process follow it, and "
    "start this one again when that one has ended"
)
"""What to do where two processes follow one run."""

GONE = (
    "{url} holds no run any more: its folder was moved, deleted or unmounted meanwhile. "
    "Put it back and start this again; without it a new run begins there"
)
"""What to do where the folder of a run is gone."""

_TICK = 0.1  # seconds between two looks whether it is asked to end


@dataclass(frozen=True)
class Learned:
    """Result of one look at the data.

    Attributes
    ----------
    rows : int
        That were learned now.
    n_rows : int
        Of the stream so far, all saved.
    seconds : float
        From the look to the checkpoint.
    lag : float or None
        Seconds from the last change of the newest file, or the newest commit to a table, to the
        checkpoint; of stores that note no times None.
    run : TrainedRun
    """

    rows: int
    n_rows: int
    seconds: float
    lag: float | None
    run: TrainedRun


def follow(
    estimator: Any,
    data: Any,
    *,
    target: Any = None,
    run: str | os.PathLike[str],
    interval: float = 2.0,
    once: bool = False,
    keep: int = KEEP,
    on_learned: Callable[[Learned], object] | None = None,
    score: Mapping[str, Any] | None = None,
    on_scored: Callable[[Scored], object] | None = None,
    export: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    labels: Mapping[str, Any] | None = None,
    on_joined: Callable[[Joined], object] | None = None,
    client: Client | None = None,
    n_shards: int | None = None,
    first_tree: int = 0,
    checkpoint_every: str | int | None = "auto",
    progressive: bool = True,
    row_parts: int | None = None,
    window: int | None = None,
    progress: Listener | bool | None = None,
    validation: Any = None,
    alerts: Mapping[str, Any] | None = None,
    on_event: EventListener | None = None,
    metrics_port: int | None = None,
    metrics_host: str = HOST,
    n_workers: int | None = None,
    threads: int | None = None,
    lags: Mapping[str, Any] | None = None,
    root: str | os.PathLike[str] | None = None,
    **plan_options: Any,
) -> TrainedRun | None:
    """Learn the files that come to a place, until asked to end by Ctrl-C or SIGTERM.

    Each look that finds new files, or new rows of a table, goes on as
    :func:`dmondrian.distributed.train` does, and ends with a checkpoint. Files that are being
    written are left for a later look: those whose footer cannot be read. Workers stay between two
    looks.

    Parameters
    ----------
    estimator, target, client, n_shards, first_tree, progressive, row_parts, window, n_workers, \
    threads
        As in :func:`dmondrian.distributed.train`.
    data : str, path or sequence of them, or a source of batches
        There may be nothing yet: the first files that come determine the encoding. A source of
        batches is as in :func:`dmondrian.distributed.train`: a callable is asked again at each look
        after its iterable has ended, or has given None where there is nothing now; a look takes
        what comes for as long as the interval. The first look does not end by the clock, as its
        rows determine the encoding: it takes what comes before the first None or the end, at most
        1,048,576 rows. An iterable ends the call where it ends.
    run : str or path
        Folder or URL of the run.
    interval : float
        Seconds between the end of a look and the next one.
    once : bool
        Look once, and return.
    keep : int
        Newest checkpoints to keep; older ones are deleted, but the best one by held-out data.
    on_learned : callable or None
        Called with :class:`Learned` after each look that found something.
    score : mapping or None
        "data", where files come that are to be scored, and "out", a folder or URL; and "keep",
        "details" and "memory_limit" of :func:`dmondrian.distributed.score`. After each look the
        files that are new there are scored by the newest checkpoint, each once and into a folder of
        its own below "out", whose ``_scored.json`` names the file and the checkpoint. With "delta"
        "out" is a Delta table of all scores too, to which each look appends, once each.
    on_scored : callable or None
        Called with :class:`Scored` after each file that was scored.
    export : str, path or sequence of them
        Files that the model is written to, as ONNX, when the call begins and after each look that
        found something; whoever reads one meanwhile has the old model or the new one. A model that
        cannot be exported is a warning, and ends nothing.
    labels : mapping or None
        Where labels come later than their rows, in files of their own: "data", where these come;
        "key", the column of both that pairs labels with rows; "out", a folder or URL
        for the joined rows, which is what is learned; and "rows", how many of the newest rows wait
        for their labels. Each row is learned once, in the order in which labels come, and its key
        is no feature. See :class:`dmondrian.data.LabelJoin`.
    on_joined : callable or None
        Called with :class:`dmondrian.data.Joined` after each file of joined rows that was written.
    checkpoint_every : str, int or None
        In addition to the end of each look; see :func:`dmondrian.distributed.train`.
    progress : callable, bool or None
        As in :func:`dmondrian.distributed.train`, of the first look.
    validation : str, path or sequence of them, or None
        As in :func:`dmondrian.distributed.train`: held-out data, which do not change meanwhile.
    alerts : mapping or None
        As in :func:`dmondrian.distributed.train`; after each look "lag" is known too, see
        :class:`Learned`.
    on_event, metrics_port, metrics_host
        As in :func:`dmondrian.distributed.train`; the lag behind the newest data is a metric too.
    lags : mapping or None
        As in :func:`dmondrian.distributed.train`. Files that are scored get the lags of rows that
        come behind those that were learned.
    root : str, path or None
        As in :func:`dmondrian.distributed.train`.
    **plan_options
        See :func:`dmondrian.data.make_plan`.

    Returns
    -------
    TrainedRun or None
        After the last look that found something; None if none did.

    Raises
    ------
    DMondrianError
        See :func:`dmondrian.distributed.train`. A file that cannot be learned ends the call by its
        name, after what came to be scored was scored; when it has been repaired or taken away, the
        same call goes on. So does the folder of the run, if it is gone.
    KeyboardInterrupt
        After Ctrl-C while rows were learned: the first stops at a checkpoint, the second at once.
    """
    _check(interval, keep)
    data = rooted(data, root)
    options = attempt_options(checkpoint_every, window, progress)
    # Each look ends with a state, most of which is that of the look before.
    options = replace(options, alerts=Alerts.of(alerts), on_event=on_event, ends_whole=False)
    is_source = gives_batches(data)
    options = replace(options, advises_row_parts=not is_source)
    batches_given = data if is_source else None
    refuse_with_lags(lags, validation=validation, labels=labels, batches=batches_given)
    if is_source:
        refuse_with_labels(labels)
        refuse_row_parts(row_parts)
    else:
        check_data(data)
    places = [] if is_source else [data] if isinstance(data, (str, os.PathLike)) else [*data]
    if isinstance(labels, Mapping) and "out" in labels:
        places.append(labels["out"])
    url = checked_folder(run, places)
    given, given_options = data, plan_options

    def sources() -> _Sources:
        return _Sources(
            batch_files(given, url) if is_source else None,
            None if score is None else ScoreArrivals(url, score, on_scored, places),
            None if labels is None else _joining(given, labels, target, given_options),
        )

    exports = [export] if isinstance(export, (str, os.PathLike)) else list(export)
    _check_exports(exports)
    held_out = None if validation is None else HeldOutData(validation)
    first = sources()
    data = data if first.batches is None else first.batches.out
    if first.joining is not None and labels is not None:
        data, plan_options = first.joining.out, _without_key(plan_options, labels["key"])
        _check_joined(url, first.joining)
    run_options = {
        "n_shards": n_shards,
        "first_tree": first_tree,
        "progressive": progressive,
        "row_parts": row_parts,
    }
    with ExitStack() as stack, Interrupts() as interrupts:
        options = replace(options, metrics=serve_metrics(stack, metrics_port, metrics_host))
        return _Follower(
            url=url,
            data=data,
            sources=sources,
            first_sources=first,
            prepare=lambda files, is_asked: prepare_run(
                estimator, data, target, url, run_options, plan_options,
                checks_of(held_out, options.alerts), files, lags, is_asked,
                is_own=first.joining is not None or first.batches is not None,
            ),
            options=options,
            held_out=held_out,
            connection=Connection(stack, client, n_workers, threads),
            interrupts=interrupts,
            interval=interval,
            once=once,
            keep=keep,
            exports=exports,
            on_learned=on_learned,
            on_joined=on_joined,
            may_look_again=not is_source or callable(given),
        ).run()  # fmt: skip


class _Sources(NamedTuple):
    """What takes batches, scores files and joins labels, as a new process has it."""

    batches: BatchFiles | None
    scoring: ScoreArrivals | None
    joining: LabelJoin | None


@dataclass
class _Follower:
    """Looks at a place for data again and again, and trains a run on what has come.

    Attributes
    ----------
    url : str
        Of the run.
    data
        Where files to learn come.
    sources : callable
        Makes what the files to learn come from, as a new process does.
    first_sources : _Sources
        Those of the first look.
    prepare : callable
        Opens or begins the run, given its files and whether one is asked to end.
    options : AttemptOptions
    held_out : HeldOutData or None
    connection : Connection
        To the workers, made when they are needed first.
    interrupts : Interrupts
    interval : float
        Seconds between two looks.
    once : bool
    keep : int
    exports : sequence of paths
    on_learned, on_joined : callable or None
        As in :func:`follow`.
    may_look_again : bool
        Whether a look that failed may be made again: an iterable does not give its batches twice.
    """

    url: str
    data: Any
    sources: Callable[[], _Sources]
    first_sources: _Sources
    prepare: Callable[[Any, Callable[[], bool]], tuple[Run, Plan]]
    options: AttemptOptions
    held_out: HeldOutData | None
    connection: Connection
    interrupts: Interrupts
    interval: float
    once: bool
    keep: int
    exports: Sequence[str | os.PathLike[str]]
    on_learned: Callable[[Learned], object] | None
    on_joined: Callable[[Joined], object] | None
    may_look_again: bool

    def __post_init__(self) -> None:
        self._batches, self._scoring, self._joining = self.first_sources
        self._arrivals, self._outage = Arrivals(self.data, _known(self.url)), Outage()
        self._has_gone_well = False  # an earlier look, or a part of one
        self._newest: TrainedRun | None = None
        self._before: Arrived | None = None  # what the look before has found
        self._is_exported = False

    def run(self) -> TrainedRun | None:
        """Look until asked to end, or until nothing more can come; return the last result."""
        while not self._is_asked():
            try:
                n_taken = self._look()
            except OutageError as error:
                # Before anything has gone well it may be a mistake in an address; and who looks
                # once, as by a timer, looks again.
                if self.once or not self._has_gone_well or not self.may_look_again:
                    raise
                self._wait(self._outage.failed(error))
                continue
            self._has_gone_well = True
            self._outage.passed()
            is_over = self._batches is not None and self._batches.is_over and not n_taken
            if self.once or is_over:
                break
            if not n_taken:
                self._wait(self.interval)
        return self._newest

    def _look(self) -> int:
        """Take, join, learn, export and score what has come; return how many batches were taken."""
        if self._outage.is_on:  # what failed may be done in part
            self._batches, self._scoring, self._joining = self.sources()
            self._is_exported = False  # rows may be learned whose report failed
        began = time.monotonic()
        self._join_labels()
        n_taken = self._take_batches()
        if self._is_asked() and not _exists(self.url):
            return n_taken  # the encoding is not of where one was asked to end
        files = self._arrivals.look()
        is_nothing = files.is_empty and not _exists(self.url)
        if is_nothing and self.once and self._before is None:
            self._end_without_data()
            return n_taken
        if files.has_come_since(self._before) and not is_nothing:
            self._learn(files, began)
        if self.exports and not self._is_exported and self._may_publish():
            _export(self.url, self.exports)
            self._is_exported = True
        self._score()
        return n_taken

    def _join_labels(self) -> None:
        """Join labels that have come with their rows, which are scored before."""
        if self._joining is None:
            return
        self._score()
        for joined in self._joining.look():
            if self.options.metrics is not None:
                self.options.metrics.labels_joined(joined.rows_later, joined.seconds_later)
            if self.on_joined is not None:
                self.on_joined(joined)

    def _take_batches(self) -> int:
        """Write batches that have come to files; return how many."""
        if self._batches is None:
            return 0
        seconds = self.interval if _exists(self.url) else float("inf")
        return self._batches.take(rows_to_take(self._batches, self.url), seconds, self._is_asked)

    def _end_without_data(self) -> None:
        """Log, or raise, that the only look has found nothing."""
        if self._joining is None:
            raise DataError(
                f"no Parquet file has come to {self.data} yet: there is nothing to learn"
            )
        _log.info("no label of a row has come yet: there is nothing to learn")

    def _learn(self, files: Arrived, began: float) -> None:
        """Train the run on files, unless they have no rows or one is asked to end."""
        if self.options.metrics is not None:
            self.options.metrics.data_came(files.newest)
        if self._newest is not None and not _exists(self.url):
            raise CheckpointError(GONE.format(url=self.url))
        try:
            with self._explained_errors():
                run, plan = self.prepare(files.files, self._is_asked)
        except NoRowsError as error:
            if self.once:
                raise
            _log.info("%s", error)
            self._before, self._has_gone_well = files, True
            return
        if self._is_asked():
            return
        try:
            with self._explained_errors():
                trained = bring_to_end(run, plan, self.options, self._connect, self.held_out)
        except FencedError as error:
            raise FencedError(f"{error}. {ONE_ALONE}") from error
        self._drop_learned(run, plan)
        self._newest, self._before, self._has_gone_well = trained, files, True
        self.options = replace(self.options, listener=None)
        self._report(trained, files, began)

    def _drop_learned(self, run: Run, plan: Plan) -> None:
        """Delete old checkpoints, and rows that no checkpoint needs any more."""
        if len(run.manifests()) > self.keep:
            prune(run, self.keep)
        if self._batches is not None:
            drop_learned(self._batches, run)
        if self._joining is not None:
            self._joining.drop(_learned_for_good(run, plan))
        if (lagged := lags_of_run(run)) is not None:
            lagged.drop_rows(safe_position(run))

    def _report(self, trained: TrainedRun, files: Arrived, began: float) -> None:
        """Report rows that were learned to metrics, alerts and the caller."""
        n_new = trained.summary["rows"]
        if not n_new:
            if self.options.metrics is not None:
                self.options.metrics.data_learned(None)
            return
        self._is_exported = False
        seconds = time.monotonic() - began
        lag = None if files.newest is None else max(0.0, time.time() - files.newest)
        _look_at_lag(self.options, lag, trained.plan.n_rows, self.url)
        free_memory()  # an attempt's parts refer to each other, and many have the plan
        if self.on_learned is not None:
            self.on_learned(Learned(n_new, trained.plan.n_rows, seconds, lag, trained))

    def _score(self) -> None:
        """Score what has come to be scored, if there is a model."""
        if self._scoring is not None and self._may_publish():
            self._scoring.look(self._connect, self._is_asked)

    @contextmanager
    def _explained_errors(self) -> Iterator[None]:
        """Add to errors of data where these come from, and score what has come before."""
        try:
            with _about_joined(self._joining), about_batches(self._batches):
                yield
        except NoRowsError:
            raise
        except DataError:
            self._score()
            raise

    def _may_publish(self) -> bool:
        """Return whether there is a model, and one is not asked to end."""
        return not self._is_asked() and _has_model(self.url)

    def _connect(self) -> Client:
        client = self.connection()
        if self._is_asked():
            raise KeyboardInterrupt("asked to end before rows were learned")
        return client

    def _is_asked(self) -> bool:
        return self.interrupts.is_requested

    def _wait(self, seconds: float) -> None:
        _wait(self.interrupts, seconds)


def _look_at_lag(options: AttemptOptions, lag: float | None, row: int, url: str) -> None:
    """Raise alerts on how far the run is behind the newest data, and serve it."""
    if options.metrics is not None:
        options.metrics.data_learned(lag)
    if options.alerts is not None and lag is not None:
        events = options.events()
        options.alerts.look({"lag": lag}, row, url, events)
        options.alerts.close(events)


def _joining(
    data: Any, labels: Mapping[str, Any], target: Any, plan_options: Mapping[str, Any]
) -> LabelJoin:
    """Return what joins rows with their labels."""
    given = set(labels)
    if not {"data", "key", "out"} <= given <= {"data", "key", "out", "rows"}:
        raise ParameterError(
            f"labels has {', '.join(map(repr, sorted(given))) or 'nothing'}; expected 'data', "
            "'key' and 'out', and 'rows' if it is wanted"
        )
    check_paths(labels["data"], IN_MEMORY)
    for name in ("include", "categorical", "text", "cyclic", "weight", "time"):
        value = plan_options.get(name)
        if labels["key"] in ([value] if isinstance(value, str) else value or ()):
            raise ParameterError(
                f"{name} has {labels['key']!r}, the key of the labels: it pairs labels with rows, "
                "and is nothing that can be learned from; leave it out there"
            )
    n_rows = labels.get("rows", N_ROWS)
    places = data, labels["data"], labels["out"]
    return LabelJoin(*places, key=labels["key"], target=target, n_rows=n_rows)


@contextmanager
def _about_joined(joining: LabelJoin | None) -> Iterator[None]:
    """Add to errors of data where a file of joined rows comes from."""
    try:
        yield
    except DataError as error:
        if joining is None or isinstance(error, NoRowsError):
            raise
        raise type(error)(
            f"{error}. Files in {joining.out} are made of rows and their labels: mend these, "
            "delete the file, which is not learned yet, and it is made again"
        ) from error


def _check_joined(url: str, joining: LabelJoin) -> None:
    """Refuse to go on where joined rows that were learned are gone: which rows got labels is lost.

    Raises
    ------
    DataError
    """
    plan = _plan(url)
    known = joining.known
    learned = [] if plan is None else sorted(set(plan.table.uris()))
    gone = [uri for uri in learned if uri.rpartition("/")[2] not in known]
    if gone:
        raise DataError(
            f"{joining.out} lacks {len(gone)} of the files that this run has learned, the first is "
            f"{gone[0]}: they say which rows have got their labels; put them back"
        )


def _learned_for_good(run: Run, plan: Plan) -> set[str]:
    """Return the names of files whose rows the two newest checkpoints of a run have."""
    needed = set(plan.blocks_after(safe_position(run)).uris())
    return {uri.rpartition("/")[2] for uri in set(plan.table.uris()).difference(needed)}


def _without_key(options: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the options of a plan in which the key of a row is no feature."""
    exclude = options.get("exclude") or ()
    names = [exclude] if isinstance(exclude, str) else list(exclude)
    return {**options, "exclude": [*names, *([key] if key not in names else [])]}


def _check(interval: float, keep: int) -> None:
    is_number = isinstance(interval, (int, float)) and not isinstance(interval, bool)
    if not is_number or not 0.0 < interval < 1e7:
        raise ParameterError(
            f"interval is {interval!r}; expected seconds, more than 0 and below 10,000,000"
        )
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ParameterError(f"keep is {keep!r}; expected a number of checkpoints, at least 1")


def _check_exports(files: Sequence[str | os.PathLike[str]]) -> None:
    """Refuse files that a model could not be written to, and a package that is missing."""
    if files:
        from dmondrian.export.onnx import check_onnx_files

        check_onnx_files(files)


def _export(url: str, files: Sequence[str | os.PathLike[str]]) -> None:
    """Write the model to files."""
    from dmondrian.export import to_onnx

    for file in files:
        try:
            to_onnx(url, file)
        except ParameterError as error:
            _log.warning("%s is not written: %s", file, error)


def _has_model(url: str) -> bool:
    """Return whether a run has a checkpoint; its plan, which grows with files, is not read."""
    try:
        return bool(Run.open(url).manifests())
    except CheckpointError:
        return False


def _wait(asked: Interrupts, seconds: float) -> None:
    """Wait for some seconds, or until asked to end."""
    end = time.monotonic() + seconds
    while not asked.is_requested and (left := end - time.monotonic()) > 0:
        time.sleep(min(_TICK, left))


def _exists(url: str) -> bool:
    """Return whether there is a run in a folder."""
    return _plan(url) is not None


def _known(url: str) -> set[str]:
    """Return the files that a run has in its stream and has learned."""
    plan = _plan(url)
    if plan is None:
        return set()
    if (lagged := lags_of_run(Run.open(url))) is not None:
        return lagged.known()
    needed = plan.blocks_after(learned_by_all(Run.open(url))).uris()
    return set(plan.table.uris()).difference(needed)


def _plan(url: str) -> Plan | None:
    try:
        return stored_plan(Run.open(url).stream)
    except (CheckpointError, NotFoundError):  # one that is damaged or missing is made again
        return None
