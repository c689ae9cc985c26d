"""Folders that runs, searches, models and scores begin in, which are not to be those of data.

Their Parquet files would be read with the data from then on. Relies on one look at the names of a
store, which ends at the first file of data. Promises that such a folder is refused before anything
is written into it, and that what a killed process left of the same kind is begun again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from dmondrian.checkpoint.opening import RUN_NAME
from dmondrian.errors import CheckpointError, NotFoundError
from dmondrian.store import Store, open_store


def refuse_others(
    store: Store, is_own: Callable[[str], bool], what: str, marker: str | None = None
) -> None:
    """Refuse a folder that has a Parquet file which is not one's own.

    Files of other kinds are left alone, as are hidden ones.

    Parameters
    ----------
    store : Store
    is_own : callable
        Whether an object of a name is.
    what : str
        Of what the folder is to be, for the message: "a run".
    marker : str or None
        Name of the object that is written first: with it the folder is one's own.

    Raises
    ------
    CheckpointError
    """

    def is_other(name: str) -> bool:
        is_read = name.endswith(".parquet") and not name.startswith((".", "_"))
        return is_read and not is_own(name)

    if marker is not None and store.exists(marker):
        return
    found = store.find(is_other)
    if found is None or (marker is not None and store.exists(marker)):  # by now: two have begun
        return
    raise CheckpointError(
        f"{store.url} holds {found}, which is not of {what}: expected an empty or new folder, as "
        "files of both would be read together; choose another one"
    )


def is_below(name: str) -> bool:
    """Return whether a file is in a folder of its own, and not in a part of a divided table."""
    folder, slash, _ = name.partition("/")
    return bool(slash) and "=" not in folder


def refuse_data(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder of data for a new run; make none.

    Data in folders of their own below it are left alone.

    Parameters
    ----------
    folder : str or path
        Folder or URL.

    Raises
    ------
    CheckpointError
    """
    with suppress(NotFoundError):  # a new one
        refuse_others(open_store(folder, create=False), is_below, "a run", RUN_NAME)
