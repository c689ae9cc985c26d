"""Evaluation: metrics of a model on a data set with its target.

Relies on blocks that are scored independently of each other. Promises metrics that do not depend on
the workers: blocks are added in the order of the input.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Client

from dmondrian._text.wording import counted
from dmondrian.checkpoint import Run
from dmondrian.data import Encoded, Plan, make_scoring_plan, read_blocks
from dmondrian.data.chunks import join
from dmondrian.data.lagged_files import lags_of_run
from dmondrian.data.paths import check_paths
from dmondrian.distributed.metrics.progressive import HeldOut, Likelihood
from dmondrian.distributed.scoring.delay_warning import warn_of_delay
from dmondrian.distributed.scoring.lagged_rows import with_lags
from dmondrian.distributed.scoring.learned_rows import count_learned
from dmondrian.distributed.scoring.memory_plan import parse_limit, row_needs
from dmondrian.distributed.scoring.model_info import Model, open_model
from dmondrian.distributed.scoring.tree_pipeline import connected_pipeline
from dmondrian.distributed.worker import work_units
from dmondrian.drift.guard import Guard
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.sums.prediction_sums import Sums
from dmondrian.errors import DataError
from dmondrian.uncertainty.temperature_scaling import (
    FittedCalibration,
    calibrated,
    calibrated_std,
    calibrates_std,
)

_log = logging.getLogger("dmondrian")

Measured = list[tuple[np.ndarray, np.ndarray, np.ndarray | None]]
"""Forecasts [n, K], targets [n] and weights [n] of each block."""


@dataclass(frozen=True)
class EvaluatePart:
    """Consecutive blocks that are evaluated by one task."""

    # Of these blocks alone, sent with the task: there is no shared folder to read it from.
    plan: Plan
    calibration: FittedCalibration | None
    parameters: ForestParameters
    guard: Guard | None = None
    is_detailed = False

    @property
    def calibrates_std(self) -> bool:
        """Whether standard deviations of the label are evaluated too."""
        return calibrates_std(self.calibration)

    def found(self) -> None:
        """Return None: there are no results of earlier jobs."""

    def read(self) -> Iterator[Encoded]:
        """Read the rows, chunk by chunk."""
        blocks = self.plan.blocks
        return (read_blocks(self.plan, blocks[chunk.first : chunk.last]) for chunk in join(blocks))

    def finish(self, summed: Iterable[tuple[Encoded, Sums]]) -> Measured:
        """Return forecasts [n, K], targets and weights of each block.

        Forecasts have the quantiles, or the standard deviation, after the point forecast.
        """
        measured: Measured = []
        for encoded, sums in summed:
            y = np.zeros(len(encoded.X)) if encoded.y is None else encoded.y  # of a density
            if self.guard is not None:
                mean = self.guard.mix(dict(sums.shares or {}))
                if not self.parameters.n_classes:  # mean and variance of the label
                    mean[:, 1] = np.sqrt(mean[:, 1])
            else:
                mean = calibrated(self.parameters.forecasts(sums.mean), self.calibration)
            if self.parameters.levels:
                mean = np.concatenate([mean, sums.mean], axis=1)
            if self.calibrates_std:
                std = calibrated_std(sums.variance, self.calibration)
                mean = np.concatenate([mean, std], axis=1)
            measured.append((mean, y, encoded.weight))
        return measured


def evaluate(
    model_url: str | os.PathLike[str],
    data: Any,
    *,
    client: Client | None = None,
    n_workers: int | None = None,
    threads: int | None = None,
    memory_limit: str | int | None = None,
) -> dict[str, Any]:
    """Evaluate a model on data that it has not learned.

    Rows that its run has learned are evaluated too, and their number is logged as a warning.

    Parameters
    ----------
    model_url : str or path
        Run folder or URL; ``@position`` picks a checkpoint.
    data : str, path or sequence of them
        Parquet files, folders, globs or URLs, with the target if there is one. Of a run with
        ``lags`` as in :func:`dmondrian.distributed.score`; the rows are written into the run's
        folder, or, where that cannot be written, into a temporary one of this machine, and deleted
        at the end.
    client : Client or None
        A cluster of the caller; by default this machine.
    n_workers, threads : int or None
        Size of the local cluster.
    memory_limit : str, int or None
        As in :func:`dmondrian.distributed.score`.

    Returns
    -------
    dict
        "rows", and "log_loss" (nats), "accuracy", "ece" (expected calibration error),
        "reliability" (confidence and accuracy by bins of confidence) and, if both of two classes
        occur, "auc"; or "rmse", "mae" and "r2" (of quantiles those of the level nearest to 1/2,
        and "pinball", the mean over levels; of a calibrated regressor "coverage_90", the share of
        labels within 1.645 standard deviations, and "nll", the mean negative log density of the
        label under the Gaussian, in nats); or of a density, whose data need no target,
        "log_likelihood", the mean log density of a row as it is encoded. Weighted if the model was
        trained with weights. "forecast" is how rows were forecast, in words, and "delay" how many
        of them the model forecasts before it knows a label: of a run with lags of the target, the
        least of these; "learned" is which rows the model has learned, in words. And
        "trees_sharded", the number of groups of trees, if no worker can hold the whole model.

    Raises
    ------
    DataError
        The data have columns or labels that the model does not know.
    CheckpointError
        There is no model, or its bytes are damaged.
    ClusterError
        Workers were lost beyond recovery, or have too little memory.
    """
    check_paths(data, "write them as Parquet, or measure what dmondrian.frames.FrameModel predicts")
    limit = parse_limit(memory_limit)
    model = open_model(os.fspath(model_url), measures_distance=False)
    with with_lags(os.fspath(model_url), data) as rows:
        metrics = _evaluate(os.fspath(model_url), model, rows, client, n_workers, threads, limit)
    lagged = lags_of_run(Run.open(os.fspath(model_url)))
    labels = {} if lagged is None else lagged.labels
    if labels and metrics.get("delay", 0) > min(labels):
        names = ", ".join(labels.values())
        metrics["learned"] += f" It reads labels of earlier rows in {names}."
        metrics["delay"] = min(labels)
    return metrics


def _evaluate(
    model_url: str,
    model: Model,
    data: Any,
    client: Client | None,
    n_workers: int | None,
    threads: int | None,
    limit: int | None,
) -> dict[str, Any]:
    """Evaluate a model on data that have all its columns."""
    plan = make_scoring_plan(data, model.schema, target=True)
    counted_rows = count_learned(model_url, plan.blocks)
    if n_learned := counted_rows or 0:
        share = "all" if n_learned == plan.n_rows else f"{n_learned:,} of the"
        _log.warning(
            "%s %s were learned by the model, which makes it look better than it is: evaluate "
            "other rows, or see by `dmondrian describe` how rows were forecast before they were "
            "learned",
            share,
            counted(plan.n_rows, "row"),
        )
    warn_of_delay(model.parameters, plan.n_rows - n_learned, model.n_trained, model.delay)
    metrics = measure(model, plan, client, n_workers, threads, limit)
    if model.n_draws is None:
        known = f"The model learned {n_learned:,} of these rows."
        if counted_rows is None:
            known = "Whether the model learned these rows is not known: its plan cannot be read."
        elif not n_learned:
            known = (
                "The model learned none of these files. Whether it learned the same rows from "
                "other files is not known."
            )
        metrics["forecast"], metrics["learned"] = "all forecast by the model as it is", known
        metrics["delay"] = max(plan.n_rows - n_learned, 0)
    return metrics


def measure(
    model: Model,
    plan: Plan,
    client: Client | None = None,
    n_workers: int | None = None,
    threads: int | None = None,
    limit: int | None = None,
    go_on: Callable[[], object] = bool,
) -> dict[str, Any]:
    """Return the metrics of a model on all rows of a plan.

    Parameters
    ----------
    model : Model
    plan : Plan
        Of :func:`dmondrian.data.make_scoring_plan`, with the target.
    client, n_workers, threads
        As in `evaluate`.
    limit : int or None
        Bytes of memory of a worker, if less than its own limit.
    go_on : callable
        Called after each part; what it raises ends the evaluation.

    Returns
    -------
    dict
        As of `evaluate`, without "forecast", "learned" and "delay".

    Raises
    ------
    DMondrianError
        As `evaluate`.
    """
    parts = [
        EvaluatePart(
            Plan(plan.schema, plan.blocks[part.first : part.last]),
            model.calibration,
            model.parameters,
            model.guard,
        )
        for part in join(plan.blocks, max_rows=work_units.UNIT_ROWS, max_blocks=None)
    ]
    k, width = model.sum_width, len(plan.schema.feature_names)
    # A result is copied once when it is sent, and has target and weight. For a generalised forest
    # it has one forecast more than sums: the other class, or the point forecast beside quantiles;
    # for a calibrated regressor the standard deviation.
    parameters = model.parameters
    has_std = calibrates_std(model.calibration)
    has_std = has_std or (model.guard is not None and parameters.gives_label_variance)
    has_more = parameters.minimises_loss or parameters.learns_jointly or has_std
    widths = {"sums": k + int(calibrates_std(model.calibration)), "result": k + 2 + int(has_more)}
    needs = row_needs((p.plan.blocks for p in parts), width, len(plan.schema.columns) + 2, widths)
    total: Likelihood | HeldOut = Likelihood()
    if model.n_draws is None:
        total = HeldOut(model.schema.task, parameters.levels, has_std)

    def add(measured: Measured) -> None:
        for mean, y, weight in measured:
            total.add(mean, y, weight)
        go_on()

    with connected_pipeline(
        model, needs, "part of the data", plan.n_rows, client, n_workers, threads, limit
    ) as pipeline:
        pipeline.run(parts, add)
    if total.weight == 0.0:
        schema = plan.schema
        lacks = f"a label in {schema.target!r}"
        if schema.has_weights:
            lacks = f"a positive weight in {schema.weight_in_words}" + (
                f" and {lacks}" if schema.target is not None else ""
            )
        raise DataError(f"no row of the data has {lacks}: there is nothing to measure")
    sharded = {"trees_sharded": pipeline.n_groups} if pipeline.n_groups > 1 else {}
    return {**total.report(), **sharded}
