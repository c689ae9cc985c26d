"""dmondrian: Mondrian forests that keep learning, on one machine or a Dask cluster.

``import dmondrian`` loads neither Dask nor PyArrow; :func:`load` and
``dmondrian.distributed`` do when they are used. The estimators, and with them scikit-learn and
Numba, are loaded when one is asked for: workers and commands that need none start without.

Where to look, from the bottom up. Each package or module imports only those that stand above it in
this list, and within a folder there is no circle of imports (``tests/test_layers.py``):

``errors``, ``_moved``
    Errors that users meet; modules that old pickles name by earlier places.
``_optional``, ``_atomic_write``, ``_memory_limit``, ``_text``
    Optional and late imports; files people ask for; memory that a process may use; text for people.
``_numba``
    Numba, which nothing else imports: compile flags, its cache, own passes.
``tree``
    One tree: nodes, boxes, keyed draws, and the two loops that learn and predict.
``stats``, ``losses``, ``rules``, ``growth``
    The policies that make an algorithm of the loops.
``ensemble``
    Trees by number: settings, rows, sums over trees, learning and predicting.
``joint_fit``
    Values of cells that are fitted over all trees: ridge regression, mini-batches, all lifetimes.
``prequential``
    Rows that are predicted before they are learned.
``uncertainty``
    How sure a forest is: of a label, and of its mean; how dense its rows lie.
``tuning``
    Settings that are chosen from the first rows.
``forest``
    The forest as checked data, merged forests, a convex loss of the user's own.
``boosting``
    Sets of boosted trees that are fitted to rows kept of a stream.
``drift``
    Forests that follow a stream: trees of all ages, mixed by what they forecast.
``kernel_machine``
    Machines on the Mondrian kernel: their lifetimes, searched and averaged over.
``store``, ``checkpoint``, ``data``
    Object stores; runs and models in them; Parquet as a numbered stream.
``estimators``
    The scikit-learn face.
``export``, ``frames``, ``river``
    Forests for other programs; models that take data frames, or river's dicts.
``distributed``
    Training, scoring and evaluation on Dask.
``serving``
    Models behind HTTP.
``displays``, ``report``, ``mlflow``
    Pictures of forests and runs; runs as pages, and side by side; runs and models in MLflow.
``cli``
    The ``dmondrian`` command and its job files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dmondrian._moved import find_moved_modules
from dmondrian._optional import load as _load
from dmondrian.errors import (
    CheckpointError,
    ClusterError,
    CorruptError,
    DataError,
    DMondrianError,
    FencedError,
    JobError,
    MissingPackageError,
    NotFoundError,
    OutageError,
    ParameterError,
    PlanError,
    SchemaError,
    StoreError,
)

if TYPE_CHECKING:
    from dmondrian.ensemble.settings.lifetime import PowerLifetime
    from dmondrian.estimators import (
        AMFClassifier,
        AMFRegressor,
        GeneralizedMondrianForestClassifier,
        GeneralizedMondrianForestRegressor,
        MondrianDensity,
        MondrianFeatures,
        MondrianForestClassifier,
        MondrianForestRegressor,
        MondrianKernelClassifier,
        MondrianKernelRegressor,
        OnlineRandomForestClassifier,
        OnlineRandomForestRegressor,
    )
    from dmondrian.forest.custom_loss import ConvexLoss

__version__ = "1.1.0.dev0"

find_moved_modules()

__all__ = [
    "AMFClassifier",
    "AMFRegressor",
    "CheckpointError",
    "ClusterError",
    "ConvexLoss",
    "CorruptError",
    "DMondrianError",
    "DataError",
    "FencedError",
    "GeneralizedMondrianForestClassifier",
    "GeneralizedMondrianForestRegressor",
    "JobError",
    "MissingPackageError",
    "MondrianDensity",
    "MondrianFeatures",
    "MondrianForestClassifier",
    "MondrianForestRegressor",
    "MondrianKernelClassifier",
    "MondrianKernelRegressor",
    "NotFoundError",
    "OnlineRandomForestClassifier",
    "OnlineRandomForestRegressor",
    "OutageError",
    "ParameterError",
    "PlanError",
    "PowerLifetime",
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
    The estimator that was saved, or that the run trained. That of a run takes rows as the run
    encoded them: for frames as they are in the files, ask :class:`dmondrian.frames.FrameModel`.

    Raises
    ------
    CheckpointError
        If there is no checkpoint, or its bytes are not what was written.
    """
    from dmondrian.estimators.load import load_estimator

    return load_estimator(path)


_LAZY = {
    "AMFClassifier": "dmondrian.estimators",
    "AMFRegressor": "dmondrian.estimators",
    "ConvexLoss": "dmondrian.forest.custom_loss",
    "GeneralizedMondrianForestClassifier": "dmondrian.estimators",
    "GeneralizedMondrianForestRegressor": "dmondrian.estimators",
    "MondrianDensity": "dmondrian.estimators",
    "MondrianFeatures": "dmondrian.estimators",
    "MondrianForestClassifier": "dmondrian.estimators",
    "MondrianForestRegressor": "dmondrian.estimators",
    "MondrianKernelClassifier": "dmondrian.estimators",
    "MondrianKernelRegressor": "dmondrian.estimators",
    "OnlineRandomForestClassifier": "dmondrian.estimators",
    "OnlineRandomForestRegressor": "dmondrian.estimators",
    "PowerLifetime": "dmondrian.ensemble.settings.lifetime",
}


def __getattr__(name: str) -> Any:
    """Load an estimator when it is first asked for (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = _load(_LAZY[name], name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
