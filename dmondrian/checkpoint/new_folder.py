"""Folders that runs, searches and scores begin in, which are not to be those of data.

Their Parquet files would be read with the data from then on. Relies on one look at the names in a
folder, not at those below. Promises that a folder with Parquet files, or with parts of a divided
table, is refused before anything is written into it, and that what a killed process left of the
same kind is begun again.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress

from dmondrian.checkpoint.opening import RUN_NAME
from dmondrian.errors import CheckpointError, StoreError
from dmondrian.store import Store, open_store

PARQUET_ENDINGS = (".parquet", ".parq", ".pq")  # of names in small letters


def refuse_data(store: Store, what: str, marker: str, own_files: Collection[str] = ()) -> None:
    """Refuse a folder that has files of data, as far as it can be listed.

    Files of other kinds are left alone, as are those in folders of their own.

    Parameters
    ----------
    store : Store
    what : str
        What the folder is to be of, for the message: "a run".
    marker : str
        Name of the object that is written first: with it the folder is one's own.
    own_files : collection of str
        Names of Parquet files that may be there.

    Raises
    ------
    CheckpointError
    """
    if store.exists(marker):
        return
    names: tuple[str, ...] = ()
    with suppress(StoreError):  # whether it can be written is found out apart
        names = store.names()
    data_files = [name for name in names if _is_data(name) and name not in own_files]
    if not data_files or store.exists(marker):  # by now: two have begun
        return
    raise CheckpointError(
        f"{store.url} holds {data_files[0]}, which is not of {what}: whoever reads these data as a "
        "folder would read the new files with them; choose an empty or new folder"
    )


def refuse_folder_of_data(folder: str | os.PathLike[str], own_files: Collection[str] = ()) -> None:
    """Refuse a folder of data for a new run; make none.

    Parameters
    ----------
    folder : str or path
        Folder or URL.
    own_files : collection of str
        As of :func:`refuse_data`.

    Raises
    ------
    CheckpointError
    """
    with suppress(StoreError):  # a new one; what else is wrong is found out where it is written
        refuse_data(open_store(folder, create=False), "a run", RUN_NAME, own_files)


def _is_data(name: str) -> bool:
    """Return whether readers of a folder take what has this name in it."""
    is_part = name.endswith("/") and "=" in name
    is_file = name.lower().endswith(PARQUET_ENDINGS)
    return (is_part or is_file) and not name.startswith((".", "_"))
