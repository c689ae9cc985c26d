"""The folder that a run is asked to begin in, looked at before anything is learned or searched.

Relies on the address alone, and on names of what the folder holds. Promises to make no folder.
"""

from __future__ import annotations

import os
from typing import Any

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.new_folder import refuse_folder_of_data
from dmondrian.checkpoint.stream import BATCHES, STAGED
from dmondrian.data.listing import matches
from dmondrian.errors import CheckpointError, ParameterError, StoreError
from dmondrian.store import parse_address

# Files of a run that readers of data would take.
_READ = ("plan.parquet", "plans/0.parquet", f"{BATCHES}/0.parquet", f"{STAGED}/0.parquet")


def checked_folder(run: str | os.PathLike[str], data: Any) -> str:
    """Return the URL of a run's folder.

    Parameters
    ----------
    run : str or path
        As given by the caller.
    data : object
        The data as given; only paths are looked at. Files that are named one by one may be in the
        run's folder.

    Raises
    ------
    CheckpointError
        It holds Parquet files that are not of a run, or a saved estimator.
    ParameterError
        It is the folder of the data, or files of a run there would match a pattern of the data.
    """
    url = parse_address(run).url
    folder, single = _folder_of(url), []
    for place in [data] if isinstance(data, (str, os.PathLike)) else data:
        of_data = _folder_of(place) if isinstance(place, (str, os.PathLike)) else None
        if folder is None or of_data is None:
            continue
        parts = of_data.split("/")
        if folder == of_data or any(matches(f"{folder}/{one}".split("/"), parts) for one in _READ):
            raise ParameterError(
                f"run is {url} and data are {os.fspath(place)} ([run] path and [data] path of a "
                "job): a run's files would be read as data; choose another folder for the run"
            )
        if folder == of_data.rpartition("/")[0]:
            single.append(parts[-1])
    refuse_folder_of_data(url, single)
    if _holds_estimator(url):
        raise CheckpointError(
            f"{url} holds a saved estimator, and no run that could go on: choose another folder"
        )
    return url


def _holds_estimator(url: str) -> bool:
    """Return whether a folder has a model that was saved, which learned no stream of files."""
    try:
        return Run.open(url).run_json.get("plan") is None
    except CheckpointError:  # a new one, or a damaged one, of which opening it reports
        return False


def _folder_of(place: str | os.PathLike[str]) -> str | None:
    """Return an address to compare; None for what only data can be, such as a table's."""
    try:
        address = parse_address(place)
    except StoreError:
        return None
    return os.path.realpath(address.path) if address.scheme == "file" else address.url
