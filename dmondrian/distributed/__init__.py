"""Training, scoring and evaluating on a Dask cluster.

Relies on any Dask cluster whose workers can import dmondrian and reach data and run folder; starts
worker processes on this machine when none is given. Promises that the forest depends on data,
parameters and seed alone: not on workers, threads, crashes or restarts.

Dask, and what learns, are loaded when one of these functions is asked for: whoever reads the
metrics of a run needs neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dmondrian.distributed.detached import submit
    from dmondrian.distributed.evaluation import evaluate
    from dmondrian.distributed.growing import grow
    from dmondrian.distributed.lazy import predict, predict_proba
    from dmondrian.distributed.progress import Progress
    from dmondrian.distributed.scoring import score
    from dmondrian.distributed.trainer import TrainedRun, train

__all__ = [
    "Progress",
    "TrainedRun",
    "evaluate",
    "grow",
    "predict",
    "predict_proba",
    "score",
    "submit",
    "train",
]

_LAZY = {
    "Progress": "progress",
    "TrainedRun": "trainer",
    "evaluate": "evaluation",
    "grow": "growing",
    "predict": "lazy",
    "predict_proba": "lazy",
    "score": "scoring",
    "submit": "detached",
    "train": "trainer",
}


def __getattr__(name: str) -> Any:
    """Load a function when it is first asked for (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
