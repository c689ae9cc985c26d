"""dmondrian: Mondrian forests that keep learning, on one machine or a Dask cluster.

``import dmondrian`` loads neither Dask nor PyArrow; :func:`load` and
``dmondrian.distributed`` do when they are used.
"""

from __future__ import annotations

from typing import Any

from dmondrian.errors import (
    CheckpointError,
    ClusterError,
    CorruptError,
    DataError,
    DMondrianError,
    FencedError,
    JobError,
    NotFoundError,
    ParameterError,
    PlanError,
    SchemaError,
    StoreError,
)
from dmondrian.estimators import AMFClassifier, AMFRegressor

__version__ = "0.1.0"

__all__ = [
    "AMFClassifier",
    "AMFRegressor",
    "CheckpointError",
    "ClusterError",
    "CorruptError",
    "DMondrianError",
    "DataError",
    "FencedError",
    "JobError",
    "NotFoundError",
    "ParameterError",
    "PlanError",
    "SchemaError",
    "StoreError",
    "load",
]


def load(path: Any) -> Any:
    """Return the fitted estimator of a checkpoint.

    Parameters
    ----------
    path : path or URL
        What ``save`` or a training run wrote; ``path@position`` picks a checkpoint.

    Returns
    -------
    AMFClassifier or AMFRegressor

    Raises
    ------
    CheckpointError
        If there is no checkpoint, or its bytes are not what was written.
    """
    from dmondrian.estimators.persistence import load_estimator

    return load_estimator(path)
