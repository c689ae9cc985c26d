"""The folder that a run is asked to begin in, looked at before anything is learned or searched.

Relies on the address alone, and on names of what the folder holds. Promises to make no folder.
"""

from __future__ import annotations

import os
from typing import Any

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.new_folder import refuse_folder_of_data
from dmondrian.checkpoint.stream import BATCHES, STAGED
from dmondrian.data.read_again import files_named_in, place_that_reads
from dmondrian.errors import CheckpointError, ParameterError
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
    place = place_that_reads(data, url, _READ)
    if place is not None:
        raise ParameterError(
            f"run is {url} and data are {place} ([run] path and [data] path of a job): a run's "
            "files would be read as data; choose another folder for the run"
        )
    refuse_folder_of_data(url, files_named_in(data, url))
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
