"""Rows to score with the lags of a run: files beside the scores, for as long as they are read.

Relies on the rows with lags that a run keeps. Promises that a file of the run's data gets the lags
with which it was learned, and other files those of rows that come behind all of these, in their
order; that files which are written again, after a job was killed, are the same; and that they are
deleted at the end, also after errors.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dmondrian.checkpoint import Run
from dmondrian.data.lagged_files import is_of_rows, lags_of_run
from dmondrian.store import open_store

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
        Folder or URL of the scores, in which the rows are; by default they are in the run's folder.
    """
    run = Run.open(model_url)
    lagged = lags_of_run(run)
    if lagged is None:
        yield data
        return
    if out is None:
        store = open_store(f"{lagged.out.rstrip('/')}/_evaluated-{uuid.uuid4().hex}")
    else:
        store = open_store(f"{open_store(out).url.rstrip('/')}/{FOLDER}")
    try:
        yield lagged.follow_on(data, store)
    finally:
        store.delete([name for name in store.list() if is_of_rows(name)])
        if store.is_local:
            with suppress(OSError):
                os.rmdir(store.address.path)
