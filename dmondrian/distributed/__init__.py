"""Training, scoring and evaluating on a Dask cluster.

Relies on any Dask cluster whose workers can import dmondrian and reach data and run folder; starts
worker processes on this machine when none is given. Promises that the forest depends on data,
parameters and seed alone: not on workers, threads, crashes or restarts.
"""

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
