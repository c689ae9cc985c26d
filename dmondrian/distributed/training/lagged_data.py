"""Data of a run with lags: the files with them in its folder, and what is refused of such runs.

Relies on :mod:`dmondrian.data.lagged_files`, which writes these files, and on run.json, which has
the settings. Promises that a run goes on with the lags that it began with, or is refused before
anything is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.stream import LAGS
from dmondrian.data.lag_origins import NAME, in_words_of_data
from dmondrian.data.lagged_files import lagged_files, source_of
from dmondrian.distributed.training.kept_plan import kept_plan
from dmondrian.distributed.training.unlearned_files import advice
from dmondrian.errors import CheckpointError, DataError, ParameterError
from dmondrian.store import open_store


def write_lags(
    url: str, lags: Mapping[str, Any], data: Any, target: str | None, time: str | None
) -> str:
    """Write the rows of data with lags into the folder of a run; return where they are.

    Raises
    ------
    CheckpointError
        The run has other lags.
    DataError
        As of :meth:`dmondrian.data.lagged_files.LaggedFiles.take`.
    """
    refuse_other_lags(url, lags)
    files = lagged_files(open_store(url).url, lags, target, time)
    files.take(data)
    return files.out


def refuse_other_lags(url: str, settings: Mapping[str, Any] | None) -> None:
    """Refuse the folder of a run with other lags than those of a job.

    Raises
    ------
    CheckpointError
    """
    try:
        run = Run.open(url)
    except CheckpointError:
        return
    stored = run.run_json.get("lags")
    if stored == settings:
        return
    names = dict.fromkeys((*(stored or {}), *(settings or {})))
    lines = [
        f"[lags] {name}: {_shown(stored, name)} there, {_shown(settings, name)} here"
        for name in names
        if (stored or {}).get(name) != (settings or {}).get(name)
    ]
    raise CheckpointError(
        f"The folder {url} belongs to another job. In the words of a job file it differs in:"
        + "".join(f"\n  {line}" for line in lines)
        + "\nChoose another folder, or take the settings back to go on with that run."
    )


def refuse_with_lags(lags: Any, **options: Any) -> None:
    """Refuse what does not go with lags, by name.

    Raises
    ------
    ParameterError
    """
    if lags is None:
        return
    for name, value in options.items():
        if value is not None:
            raise ParameterError(f"{name} does not go with lags: {WHY[name]}")


WHY = {
    "labels": (
        "rows stand in the order in which their labels came, so the row before would be another "
        "one; add lags to the rows before they are written (dmondrian.data.KeyedLags)"
    ),
    "validation": (
        "which rows come before the held-out ones is not known; train without it, and measure "
        "later rows with `dmondrian evaluate`, which adds their lags"
    ),
    "batches": (
        "a source of batches begins where the run has to go on, and lags need the rows before; "
        "wrap an iterable as dmondrian.data.LaggedBatches(batches, ...)"
    ),
}
"""Why something does not go with lags, and what to do."""


@contextmanager
def about_lagged(url: str, settings: Mapping[str, Any] | None) -> Iterator[None]:
    """Let errors of data name its files, and add what to do about rows that cannot be learned."""
    try:
        yield
    except DataError as error:
        folder = f"{url.rstrip('/')}/{LAGS}"
        named = re.search(rf"{re.escape(folder)}/({NAME.pattern})", str(error))
        if settings is None or named is None:
            raise
        files = lagged_files(url, settings, None)
        in_words = in_words_of_data(error, [folder], files.origin)
        raise type(error)(f"{in_words}. {_advice(url, folder, named[1])}") from error


def _advice(url: str, folder: str, name: str) -> str:
    """Return what to do about a file with a row that cannot be learned."""
    first, plan = _first_of_same_data(url, folder, name), kept_plan(url)
    is_of_checkpoint = plan is not None and plan.n_rows > int(first.partition(".")[0])
    what = advice("the data", folder, first, is_of_checkpoint)
    return f"The run learns these rows from files in which they have lags: {what}"


def _first_of_same_data(url: str, folder: str, name: str) -> str:
    """Return the first file with rows of the same file of the data."""
    names = [uri.rpartition("/")[2] for uri in open_store(url).list(LAGS) if uri.count("/") == 1]
    first, made_of = name, source_of(f"{folder}/{name}")
    for earlier in sorted((other for other in names if other < name), reverse=True):
        if made_of is None or source_of(f"{folder}/{earlier}") != made_of:
            break
        first = earlier
    return first


def _shown(settings: Mapping[str, Any] | None, name: str) -> str:
    value = None if settings is None else settings.get(name)
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)
