"""Evaluating: a model's metrics on a data set that has its target.

Relies on blocks being scored independently. Promises metrics that do not depend on the workers:
blocks are added in the order of the input.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Client

from dmondrian.data import Plan, make_scoring_plan, read_block
from dmondrian.distributed.cluster import connected_for
from dmondrian.distributed.metrics import HeldOut
from dmondrian.distributed.models import Model, adopt, model_here, open_model
from dmondrian.distributed.spread import Spread
from dmondrian.distributed.units import cut
from dmondrian.errors import DataError


@dataclass(frozen=True)
class Part:
    """Consecutive blocks to measure."""

    model: str  # URL and position
    model_digest: str
    plan: Plan  # of these blocks alone: there is no folder that every worker could read it from


Measured = list[tuple[np.ndarray, np.ndarray, np.ndarray | None]]


def evaluate(
    model_url: str | os.PathLike[str],
    data: Any,
    *,
    client: Client | None = None,
    n_workers: int | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Measure a model on data that it has not learned.

    Parameters
    ----------
    model_url : str or path
        Run folder or URL; ``@position`` picks a checkpoint.
    data : str, path or sequence of them
        Parquet files, folders, globs or URLs, with the target.
    client : Client or None
        A cluster of the caller; by default this machine.
    n_workers, threads : int or None
        Size of the local cluster.

    Returns
    -------
    dict
        "rows", and "log_loss" (nats), "accuracy" and, for two classes that both occur, "auc"; or
        "rmse", "mae" and "r2". Weighted where the model was trained with weights.

    Raises
    ------
    DataError
        Columns or labels that the model does not know.
    CheckpointError
        There is no model, or its bytes are damaged.
    ClusterError
        Workers were lost beyond recovery.
    """
    model = open_model(os.fspath(model_url))
    plan = make_scoring_plan(data, model.schema, target=True)
    adopt(model)
    parts = [
        Part(model.url, model.digest, Plan(plan.schema, plan.blocks[unit.first : unit.last]))
        for unit in cut(plan.blocks)
    ]
    total = HeldOut(model.schema.task)

    def add(measured: Measured) -> None:
        for mean, y, weight in measured:
            total.add(mean, y, weight)

    with connected_for(plan.n_rows, client, n_workers, threads) as used:
        Spread(used, measure_part, parts, "part of the data").run(add)
    if total.weight == 0.0:
        raise DataError(
            f"no row of the data has a positive weight ({plan.schema.weight!r}): there is nothing "
            "to measure"
        )
    return total.report()


def measure_part(part: Part) -> Measured:
    """Task: forecast some blocks; returns forecasts [n, K], targets and weights of each."""
    model: Model = model_here(part.model, part.model_digest)
    measured: Measured = []
    for block in part.plan.blocks:
        encoded = read_block(part.plan, block)
        sums = model.forest.predict_sums(encoded.X)
        assert encoded.y is not None  # the plan was made with the target
        measured.append((sums.total / sums.n_trees, encoded.y, encoded.weight))
    return measured
