"""Rows to score with the lags of a run: files beside the scores, for as long as they are read.

Relies on the rows with lags that a run keeps. Promises that a file of the run's data gets the lags
with which it was learned, and other files those of rows that come behind all of these, in their
order; that files which are written again, after a job was killed, are the same; that a folder of a
run that cannot be written will do where there are no scores; that errors name the files of the
data; and that the rows are deleted at the end, also after errors.
"""

from __future__ import annotations

import logging
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dmondrian.checkpoint import Run
from dmondrian.data.lagged_files import is_of_rows, lags_of_run
from dmondrian.data.source import is_local
from dmondrian.errors import StoreError
from dmondrian.store import Store, open_store
from dmondrian.store.address import parse_address

_log = logging.getLogger("dmondrian")

FOLDER = "_rows_with_lags"
"""Of the rows that are scored, in the folder of their scores."""


@contextmanager
def with_lags(
    model_url: str, data: Any, out: str | os.PathLike[str] | None = None
) -> Iterator[Any]:
    """Return data in which rows have the lags of a model; the data themselves if it has none.

    Parameters
    ----------
    model_url : str
    data : str, path or sequence of them
    out : str, path or None
        Folder or URL of the scores, in which the rows are; by default they are in the run's folder,
        or, where that cannot be written, in a temporary one.
    """
    run = Run.open(model_url)
    lagged = lags_of_run(run)
    if lagged is None:
        yield data
        return
    with _folder(lagged.out, out) as store, lagged.errors_of_data(store.url):
        try:
            yield lagged.follow_on(data, store)
        finally:
            store.delete([name for name in store.list() if is_of_rows(name)])


@contextmanager
def _folder(beside: str, out: str | os.PathLike[str] | None) -> Iterator[Store]:
    """Open the folder of rows that are scored; delete it at the end, if it is empty."""
    store = _written_beside(beside) if out is None else open_store(_within(open_store(out).url))
    if store is None:
        with tempfile.TemporaryDirectory(prefix="dmondrian-lags-") as place:
            _log.warning(
                "%s cannot be written, so rows are written with lags to %s, which workers on other "
                "machines have to reach, and deleted at the end; TMPDIR names another place",
                beside,
                place,
            )
            yield open_store(place)
        return
    try:
        yield store
    finally:
        if store.is_local:
            with suppress(OSError):
                os.rmdir(store.address.path)


def _within(url: str) -> str:
    return f"{url.rstrip('/')}/{FOLDER}"


def _written_beside(rows: str) -> Store | None:
    """Return a folder beside the rows of a run; None if it cannot be written."""
    url = f"{rows.rstrip('/')}/_evaluated-{uuid.uuid4().hex}"
    try:
        open_store(url).probe()
    except StoreError:
        if is_local(url):  # it may be there and take no file, as on a full disk
            with suppress(OSError):
                os.rmdir(parse_address(url).path)
        return None
    return open_store(url)
