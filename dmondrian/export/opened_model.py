"""A model that is exported: an estimator, or the folder of one that was saved or of a run.

Relies on :func:`dmondrian.load`. Promises to know the encoding of a run's columns.
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dmondrian.data import Schema


def opened(model: Any) -> tuple[Any, Schema | None]:
    """Return the estimator, and for a run the encoding of its columns.

    Parameters
    ----------
    model : estimator, or str or path
        Folder or URL of a run or a saved estimator.
    """
    if not isinstance(model, (str, PathLike)):
        return model, None
    from dmondrian import load
    from dmondrian.checkpoint import Run
    from dmondrian.data import Schema

    stored = Run.open(model).run_json.get("schema")
    return load(model), None if stored is None else Schema.from_json(stored)
