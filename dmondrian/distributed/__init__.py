"""Training, scoring and evaluating on a Dask cluster.

Relies on any Dask cluster whose workers can import dmondrian and reach data and run folder; starts
worker processes on this machine when none is given. Promises that the forest depends on data,
parameters and seed alone: not on workers, threads, crashes or restarts.

Dask and the estimators are imported when one of these functions is first used: reading the
metrics of a run needs neither.
"""

from typing import TYPE_CHECKING, Any

from dmondrian._optional import load

if TYPE_CHECKING:
    from dmondrian.data.batch_files import Position
    from dmondrian.data.kafka import KafkaTopic
    from dmondrian.distributed.cluster.events import Event
    from dmondrian.distributed.cluster.progress import Progress
    from dmondrian.distributed.detached import submit
    from dmondrian.distributed.following import Learned, follow
    from dmondrian.distributed.scoring.dask_predict import predict, predict_proba
    from dmondrian.distributed.scoring.evaluate import evaluate
    from dmondrian.distributed.scoring.score import score
    from dmondrian.distributed.scoring.score_arrivals import Scored
    from dmondrian.distributed.searching.candidate_search import Searched, search
    from dmondrian.distributed.training.add_trees import grow
    from dmondrian.distributed.training.forget import Forgotten, forget
    from dmondrian.distributed.training.train import TrainedRun, train

__all__ = [
    "Event",
    "Forgotten",
    "KafkaTopic",
    "Learned",
    "Position",
    "Progress",
    "Scored",
    "Searched",
    "TrainedRun",
    "evaluate",
    "follow",
    "forget",
    "grow",
    "predict",
    "predict_proba",
    "score",
    "search",
    "submit",
    "train",
]

_LAZY = {
    "Event": "cluster.events",
    "Forgotten": "training.forget",
    "KafkaTopic": "dmondrian.data.kafka",
    "Learned": "following",
    "Position": "dmondrian.data.batch_files",
    "Progress": "cluster.progress",
    "Scored": "scoring.score_arrivals",
    "Searched": "searching.candidate_search",
    "TrainedRun": "training.train",
    "evaluate": "scoring.evaluate",
    "follow": "following",
    "forget": "training.forget",
    "grow": "training.add_trees",
    "predict": "scoring.dask_predict",
    "predict_proba": "scoring.dask_predict",
    "score": "scoring.score",
    "search": "searching.candidate_search",
    "submit": "detached",
    "train": "training.train",
}


def __getattr__(name: str) -> Any:
    """Import a function when it is first used (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = _LAZY[name]
    module = place if place.startswith("dmondrian.") else f"{__name__}.{place}"
    value = globals()[name] = load(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
