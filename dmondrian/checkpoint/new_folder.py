"""New folders: whoever begins to write into one finds nothing there but what is its own.

Relies on one look at the names of a store, which ends at the first one that is not. Promises that a
folder with other files is refused before anything is written into it, and that what a killed
process left of the same kind is begun again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress

from dmondrian.checkpoint.opening import RUN_NAME
from dmondrian.checkpoint.search_record import FOLDER as SEARCH
from dmondrian.checkpoint.stream import BATCHES, LAGS, STAGED
from dmondrian.errors import CheckpointError, NotFoundError
from dmondrian.store import PROBE, Store, open_store

# What a run's folder has before there is run.json.
_BEFORE_RUN = tuple(f"{folder}/" for folder in (SEARCH, BATCHES, LAGS, STAGED))


def refuse_others(
    store: Store, is_own: Callable[[str], bool], what: str, marker: str | None = None
) -> None:
    """Refuse a folder that has an object which is not one's own.

    Hidden files, and those that a killed look at whether the store can be written left, do not
    count.

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
        return not name.startswith((".", PROBE)) and not is_own(name)

    if marker is not None and store.exists(marker):
        return
    found = store.find(is_other)
    if found is None or (marker is not None and store.exists(marker)):  # by now: two have begun
        return
    raise CheckpointError(
        f"{store.url} holds {found}, which is not of {what}: expected an empty or new folder; "
        "choose another one"
    )


def refuse_no_run(folder: str | os.PathLike[str], beside: Collection[str] = ()) -> None:
    """Refuse the folder of a new run if it has anything else; make none.

    Parameters
    ----------
    folder : str or path
        Folder or URL.
    beside : collection of str
        Folders in it that are written for the run as well.

    Raises
    ------
    CheckpointError
    """
    with suppress(NotFoundError):  # a new one
        store = open_store(folder, create=False)
        own = (*_BEFORE_RUN, *(f"{name}/" for name in beside))
        refuse_others(store, lambda name: name.startswith(own), "a run", RUN_NAME)
