"""The parameters of a run: the seed is drawn, and open settings chosen, before any shard is made.

Relies on the frozen plan, whose first rows this process reads once. Promises the parameters that
the estimator itself comes to when it learns the same rows (if the plan does not shuffle), equal for
every shard and worker, and kept when the same job is run again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from joblib import effective_n_jobs

from dmondrian.checkpoint import Run
from dmondrian.data import Plan, read_block
from dmondrian.errors import CheckpointError
from dmondrian.progressive import Rows
from dmondrian.warmup import LAST, choose

SAMPLED_BLOCKS = 16
"""Blocks of a shuffled plan that settings are chosen from; each costs reading a row group."""


def settle(estimator: Any, plan: Plan, url: str, told: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of every forest of the run, as JSON.

    Parameters
    ----------
    estimator : AMFClassifier or AMFRegressor
    plan : Plan
    url : str
        The run's folder; a run of the same job that is there already keeps its parameters.
    told : dict
        The estimator's parameters as run.json has them.
    """
    before = _parameters_before(url, told, plan.digest)
    if before is not None:
        return before
    schema = plan.schema
    n_classes = len(schema.classes) if schema.classes is not None else 0
    drawn = estimator._forest_parameters(schema.n_features, n_classes)
    auto = estimator._auto_settings(n_classes)
    n_threads = int(effective_n_jobs(-1))  # of this machine: the choice does not depend on it
    return (choose(drawn, auto, first_rows(plan), n_threads) if auto else drawn).to_json()


def first_rows(plan: Plan) -> Rows:
    """Return rows that settings may be chosen from: X, y, w.

    In stream order these are the stream's first rows. A shuffle moves row groups and rows within
    them, so its first rows may all be of one row group and unlike the rest: there, the first row
    groups give their rows in turn.
    """
    parts: list[Rows] = []
    turns: list[np.ndarray] = []
    counted = 0.0
    for block in plan.blocks:
        read = read_block(plan, block)
        assert read.y is not None  # a plan to learn from has a target
        weights = np.ones(len(read.y)) if read.weight is None else read.weight
        some = np.flatnonzero(weights > 0)[:LAST]
        parts.append((read.X[some], read.y[some], weights[some]))
        turns.append(np.arange(len(some)))
        counted += float(np.maximum(np.floor(weights[some]), 1.0).sum())
        if counted >= LAST and (not plan.shuffle or len(parts) >= SAMPLED_BLOCKS):
            break
    X, y, w = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    dealt = np.argsort(np.concatenate(turns), kind="stable") if plan.shuffle else slice(None)
    return X[dealt], y[dealt], w[dealt]


def _parameters_before(url: str, told: dict[str, Any], digest: str) -> dict[str, Any] | None:
    try:
        known = Run.open(url).run_json
    except CheckpointError:
        return None  # a new folder
    is_same = known.get("estimator") == told and known.get("plan") == digest
    return known.get("parameters") if is_same else None
