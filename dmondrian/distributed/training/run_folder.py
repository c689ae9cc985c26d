"""The folder that a run is asked to begin in, looked at before anything is learned or searched.

Relies on the address alone, and on names of what the folder holds. Promises to make no folder.
"""

from __future__ import annotations

import os
from typing import Any

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.new_folder import refuse_data
from dmondrian.errors import CheckpointError, ParameterError, StoreError
from dmondrian.store import parse_address


def checked_folder(run: str | os.PathLike[str], data: Any) -> str:
    """Return the URL of a run's folder.

    Parameters
    ----------
    run : str or path
        As given by the caller.
    data : object
        The data as given; only paths are looked at.

    Raises
    ------
    CheckpointError
        It holds Parquet files that are not of a run, or a saved estimator.
    ParameterError
        It is the folder of the data.
    """
    url = parse_address(run).url
    for place in [data] if isinstance(data, (str, os.PathLike)) else data:
        folder = _folder_of(place) if isinstance(place, (str, os.PathLike)) else None
        if folder is not None and _folder_of(url) == folder:
            raise ParameterError(
                f"run and data are both {url} ([run] path and [data] path of a job): a run's files "
                "would be read as data; choose another folder for the run, such as one below it"
            )
    refuse_data(url)
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
