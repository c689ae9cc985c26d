"""Copies of a model: its newest checkpoint alone, to be packed up and taken elsewhere.

Relies on the pieces of a run. Promises a folder that loads, scores and goes on learning as the run
does at that position; without what only the run needs: earlier checkpoints, attempts, leases.
"""

from __future__ import annotations

import os

from dmondrian.checkpoint.opening import RUN_NAME
from dmondrian.checkpoint.parts import part_url, pieces, tree_range
from dmondrian.checkpoint.run import BLOBS, Run
from dmondrian.checkpoint.stream import FOLDER, PLAN_NAME
from dmondrian.errors import ParameterError
from dmondrian.store import open_store


def copy_model(url: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Run:
    """Copy the newest checkpoint of a run or saved model, or the one at ``url@position``.

    Parameters
    ----------
    url : str or path
    folder : str or path
        Folder or URL; new or empty.

    Returns
    -------
    Run
        The copy.

    Raises
    ------
    CheckpointError
        There is no model.
    CorruptError
        A part of it is damaged or missing.
    ParameterError
        The folder holds something, or trees that the run took later are not at this position's end.
    """
    target = open_store(folder)
    if target.list():
        raise ParameterError(f"{target.url} is not empty: expected a new folder for the copy")
    copied = Run(target, Run.open(url).run_json)
    for number, (run, manifest) in enumerate(pieces(Run.open(url))):
        store = target if number == 0 else open_store(part_url(copied, *tree_range(run)))
        if number > 0 and not manifest.final:
            raise ParameterError(
                f"the trees of {run.url} are not at the end of a stream at position "
                f"{manifest.position}: copy the newest checkpoint, or train the run to its end"
            )
        for name in (RUN_NAME, PLAN_NAME, *run.store.list(FOLDER)):
            if run.store.exists(name):  # a saved model has no plan
                store.put(name, run.store.get(name))
        for shard in manifest.shards.values():
            data = run.get_blob(shard["digest"], shard["bytes"])
            store.put(f"{BLOBS}/{shard['digest']}", data)
        store.put(manifest.name, manifest.to_bytes())
    return Run.open(target.url)
