"""Scores of files that come to a place, each file once, in a folder of its own.

::

    <name>-<digest>/        a file that came: its name, and a digest of its whole address
        _scored.json        the file, its size and stamp, and the checkpoint that scores it; first
        _score.json ...     as :mod:`dmondrian.distributed.scoring.output_folder` has it
        _manifest.json      the file is scored; last
    _delta_log/             of all scored files as one Delta table, if it is wanted

Relies on scoring, which finishes what a killed process began, and on arrivals for files that are
whole. Promises that a file is scored by one checkpoint, which is recorded before its first score is
written; that a file with a manifest is not scored again; and that a file which cannot be scored is
a warning, and keeps no other from being scored. A Delta table has each scored file once, from the
end of the look that scored it or, if that was killed before, from the next one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from distributed import Client

from dmondrian._text.wording import NOTED
from dmondrian.checkpoint import Run, document
from dmondrian.data import Arrivals
from dmondrian.distributed.cluster.progress import Progress
from dmondrian.distributed.scoring.delta_scores import ScoreTable
from dmondrian.distributed.scoring.memory_plan import parse_limit
from dmondrian.distributed.scoring.model_info import open_model
from dmondrian.distributed.scoring.output_folder import (
    ABOUT,
    MANIFEST,
    check_flag,
    part_name,
    refuse_read_again,
)
from dmondrian.distributed.scoring.preflight import NEEDED, OPTIONAL
from dmondrian.distributed.scoring.score import score
from dmondrian.errors import (
    CheckpointError,
    CorruptError,
    DataError,
    NotFoundError,
    OutageError,
    ParameterError,
)
from dmondrian.store import PROBE, check_writable, open_store

RECORD = "_scored.json"
"""Names the file and the checkpoint of the scores in a folder."""

_log = logging.getLogger("dmondrian")
_UNUSUAL = re.compile(r"[^A-Za-z0-9_.=-]+")
_NAME_LENGTH = 80

State = tuple[int, str]  # size and stamp of a file


@dataclass(frozen=True)
class Scored:
    """A file that was scored.

    Attributes
    ----------
    file : str
        That came.
    out : str
        The folder of its scores.
    rows : int
    position : int
        Of the checkpoint that scored it: the rows it has learned.
    seconds : float
        From the beginning of its scoring, by this process, to its end.
    """

    file: str
    out: str
    rows: int
    position: int
    seconds: float


class ScoreArrivals:
    """Scores the files of a place that were not scored before, again and again.

    Parameters
    ----------
    run : str
        URL of the run whose newest checkpoint scores.
    options : mapping
        "data": where files come; "out": where a folder for each is made; and "keep", "details" and
        "memory_limit" of :func:`dmondrian.distributed.score`; and "delta": whether "out" is made
        a Delta table of all scores, which each look appends to.
    on_scored : callable or None
        Called with :class:`Scored` after each file.
    learned : object
        The data of the run, as given.

    Raises
    ------
    ParameterError
        A name is missing or unknown, a value is not allowed, "out" holds something else, or scores
        there would be read as data.
    MissingPackageError
        "delta" is wanted, and its package is not installed.
    StoreError
        The folder cannot be written.
    """

    def __init__(
        self,
        run: str,
        options: Mapping[str, Any],
        on_scored: Callable[[Scored], object] | None,
        learned: Any = (),
    ) -> None:
        self._out, self._score_options, self._table = _checked(options, learned)
        self._run, self._on_scored = run, on_scored
        self._done = _Done(_finished(self._out))
        # Scored files that the table may lack: a process may be killed before it appends them.
        self._unlisted_scores = [] if self._table is None else sorted(self._done)
        self._arrivals = Arrivals(options["data"], self._done)
        self._compared: dict[str, State] = {}  # scored files, as they were when last compared
        self._refused: dict[str, State] = {}  # files that cannot be scored
        self._unlisted = ""  # why the place could not be listed when it was last looked at

    def look(self, connect: Callable[[], Client], is_asked: Callable[[], bool]) -> int:
        """Score what has come; return the number of files.

        Parameters
        ----------
        connect : callable
            Returns the client; called only if there are files to score.
        is_asked : callable
            Whether to end.

        Raises
        ------
        KeyboardInterrupt
            It was asked to end while a file was scored, which goes on from there the next time.
        """
        self._append()
        try:
            arrived = self._arrivals.look()
        except (
            DataError,
            OutageError,
        ) as error:  # nothing that is to be scored keeps rows from being learned
            if str(error) != self._unlisted:
                _log.warning("nothing is scored: %s", error)
            self._unlisted = str(error)
            return 0
        self._unlisted = ""
        if arrived.tables:
            raise ParameterError(
                f"score: {next(iter(arrived.tables))} is a table; expected a folder, glob or URL "
                "to which Parquet files come, each of which is scored once"
            )
        for uri, state in arrived.files.items():
            if uri in self._done:
                self._compare(uri, state)
        self._compared = _only(self._compared, arrived.files)
        self._refused = _only(self._refused, arrived.files)
        new = {
            uri: state
            for uri, state in arrived.files.items()
            if uri not in self._done and self._refused.get(uri) != state
        }
        newest = self._newest() if new else None
        if newest is None:
            return 0
        n_scored = 0
        for uri, state in new.items():
            if is_asked():
                break
            n_scored += self._score(uri, state, newest, connect, is_asked)
        self._append()
        return n_scored

    def _append(self) -> None:
        """Append to the Delta table what was scored since the last time."""
        if self._table is not None and self._unlisted_scores:
            self._table.append(self._unlisted_scores)
            self._unlisted_scores = []

    def _newest(self) -> int | None:
        """Return the position of the newest checkpoint; None if no model can answer yet."""
        positions = Run.open(self._run).manifests()
        if not positions:
            return None
        try:
            open_model(f"{self._run}@{positions[-1]}")
        except ParameterError as error:  # all its rows wait for their labels
            _log.info("nothing is scored yet: %s", error, extra=NOTED)
            return None
        return positions[-1]

    def _score(
        self,
        uri: str,
        state: State,
        newest: int,
        connect: Callable[[], Client],
        is_asked: Callable[[], bool],
    ) -> bool:
        """Score a file; return whether it could be."""
        began, name = time.monotonic(), folder_of(uri)
        out = f"{self._out}/{name}"
        position = self._begun(out, uri, state)

        def listen(_: Progress) -> None:
            if is_asked():
                raise KeyboardInterrupt

        def score_by(position: int) -> dict[str, Any]:
            model = f"{self._run}@{position}"
            return score(model, uri, out, client=connect(), progress=listen, **self._score_options)

        try:
            try:
                result = None if position is None else score_by(position)
            except CheckpointError:  # it was of other bytes or options
                result = None
            if position is None or result is None:
                position = newest
                self._begin(out, uri, state, position)
                result = score_by(position)
        except DataError as error:
            self._refused[uri] = state
            _log.warning("%s is not scored: %s", uri, error)
            return False
        self._done.add(name)
        if self._table is not None:
            self._unlisted_scores.append(name)
        self._compared[uri] = state
        if self._on_scored is not None:
            seconds = time.monotonic() - began
            self._on_scored(Scored(uri, out, result["rows"], position, seconds))
        return True

    def _begun(self, out: str, uri: str, state: State) -> int | None:
        """Return the position of the checkpoint by which a file was begun to be scored.

        None if it is to be begun anew: it has changed, or the checkpoint is deleted.
        """
        record = _record(out)
        if record is None or record != {**record, **_described(uri, state)}:
            return None
        store = open_store(out)
        store.delete([name for name in store.list() if name.startswith(PROBE)])
        position = record.get("position")
        is_kept = position in Run.open(self._run).manifests()
        return position if type(position) is int and is_kept else None

    def _begin(self, out: str, uri: str, state: State, position: int) -> None:
        """Record which checkpoint scores a file, where nothing finished is."""
        store = open_store(out)
        store.delete(store.list())
        content = {**_described(uri, state), "model": self._run, "position": position}
        store.put(RECORD, document.seal(content))

    def _compare(self, uri: str, state: State) -> None:
        """Warn of a scored file that was written again: what it holds now is not scored."""
        if self._compared.get(uri) == state:
            return
        if uri in self._compared:
            is_same = False
        else:
            record = _record(f"{self._out}/{folder_of(uri)}") or {}
            is_same = (record.get("size"), record.get("stamp")) == state
        if not is_same:
            _log.warning(
                "%s was written again after it was scored: what it holds now is not scored; write "
                "rows to files of new names",
                uri,
            )
        self._compared[uri] = state


class _Done(Collection[str]):
    """Files that are scored, of which only the names of their folders are known."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def __contains__(self, uri: object) -> bool:
        return isinstance(uri, str) and folder_of(uri) in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        self._names.add(name)


def folder_of(uri: str) -> str:
    """Return the name of the folder with the scores of a file."""
    path = unquote(urlsplit(uri).path) if "://" in uri else uri
    stem = os.path.basename(path.rstrip("/"))
    for ending in (".parquet", ".parq", ".pq"):
        stem = stem.removesuffix(ending)
    legible = _UNUSUAL.sub("-", stem)[:_NAME_LENGTH].strip(".-") or "file"
    return f"{legible}-{hashlib.sha256(uri.encode()).hexdigest()[:16]}"


def _checked(
    options: Mapping[str, Any], learned: Any
) -> tuple[str, dict[str, Any], ScoreTable | None]:
    """Return the folder for scores, the options of each scoring, and the Delta table of all."""
    unknown = sorted(set(options) - {*NEEDED, *OPTIONAL, "delta"})
    missing = [name for name in NEEDED if name not in options]
    if unknown or missing:
        raise ParameterError(
            f"score has {', '.join(map(repr, options)) or 'nothing'}; expected 'data' and 'out', "
            "and of 'keep', 'details', 'delta' and 'memory_limit' those that are wanted"
        )
    how = {name: value for name, value in options.items() if name in OPTIONAL}
    check_flag("details", how.get("details", True))
    check_flag("delta", options.get("delta", False))
    parse_limit(how.get("memory_limit"))
    of_a_file = f"{folder_of('file.parquet')}/{part_name(0)}"
    refuse_read_again(options["out"], [of_a_file], options["data"], learned)
    store = open_store(options["out"])
    check_writable(store.url)
    url = store.url.rstrip("/")
    table = ScoreTable(url) if options.get("delta", False) else None
    here = [name for name in store.list() if "/" not in name]
    if table is not None and table.is_begun:  # files in it may be those of a compaction
        here = [name for name in here if name == ABOUT]
    strange = [name for name in here if name == ABOUT or name.endswith(".parquet")]
    if strange:
        raise ParameterError(
            f"score: {store.url} holds {strange[0]}; expected an empty or new folder, or one that "
            "the same job made: a folder is made in it for each file that is scored"
        )
    return url, how, table


def _finished(out: str) -> set[str]:
    """Return the names of the folders whose files are scored."""
    ending = f"/{MANIFEST}"
    return {name.removesuffix(ending) for name in open_store(out).list() if name.endswith(ending)}


def _record(out: str) -> dict[str, Any] | None:
    """Return the record of a folder; None if there is none, or it is damaged."""
    try:
        return document.unseal(open_store(out).get(RECORD, document.MAX_BYTES), RECORD)
    except (NotFoundError, CorruptError):
        return None


def _described(uri: str, state: State) -> dict[str, Any]:
    return {"file": uri, "size": state[0], "stamp": state[1]}


def _only(kept: dict[str, State], there: Mapping[str, State]) -> dict[str, State]:
    """Return the entries of files that are still there: memory does not grow with those gone."""
    return {uri: state for uri, state in kept.items() if uri in there}
