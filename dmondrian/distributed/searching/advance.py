"""The task of a worker: some candidates learn the rows of a round, each chunk decoded once.

Relies on the plan and on the states of the round before, in the search's folder. Promises states
and metrics that a training of the same settings has at the same row, whoever computes them and how
often; and to write states under names that say whose they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dmondrian.checkpoint import document
from dmondrian.checkpoint.codec import decode_forest, encode_forest
from dmondrian.data import Plan, read_chunk
from dmondrian.distributed.metrics.progressive import Progressive, read_counts
from dmondrian.distributed.scoring.model_info import plan_here
from dmondrian.distributed.training.ledger import Ledger
from dmondrian.distributed.worker.chunk_cache import PreparedChunk
from dmondrian.distributed.worker.messages import OK, Answer, Step
from dmondrian.distributed.worker.shard import Shard, learn_chunk
from dmondrian.distributed.worker.work_units import Unit
from dmondrian.drift.drift_forest import empty_shard, forest_from_state
from dmondrian.drift.guard import Guard
from dmondrian.ensemble.rows.prepared_rows import Preparation
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.prequential.forecast_lag import delay_of, kind_of
from dmondrian.store import Store, open_store
from dmondrian.uncertainty.temperature_scaling import new_calibration

PLAN = "plan.parquet"
_MOST_BYTES = 2**40  # of a state


@dataclass(frozen=True)
class Candidate:
    """Settings that are tried: parameters of a forest, and its calibration.

    Attributes
    ----------
    number : int
        By which equal losses are ranked.
    parameters : dict
        Of its forest, as JSON.
    n_trees : int
    calibrate : bool or "auto"
    loss : str
        The progressive metric that ranks it.
    """

    number: int
    parameters: Mapping[str, Any]
    n_trees: int
    calibrate: bool | str
    loss: str


@dataclass(frozen=True)
class Advance:
    """An order to have candidates learn the rows from `start` to `stop`."""

    folder: str
    plan: str  # digest
    round: int
    start: int
    stop: int
    candidates: tuple[Candidate, ...]
    n_threads: int


@dataclass
class _Learning:
    """A candidate in memory."""

    candidate: Candidate
    preparation: Preparation
    shard: Shard
    ledger: Ledger


def advance(order: Advance) -> dict[int, dict[str, float]]:
    """Learn the rows of a round; return the progressive metrics of each candidate, by number."""
    plan, store = plan_here(order.folder, PLAN, order.plan), open_store(order.folder)
    parts = [
        (chunk, Unit(index, max(chunk.start, order.start), min(chunk.stop, order.stop)))
        for index, chunk in enumerate(
            chunk for chunk in plan.chunks if chunk.start < order.stop and chunk.stop > order.start
        )
    ]
    units = [unit for _, unit in parts]
    learning = [_begun(store, order, candidate, plan, units) for candidate in order.candidates]
    for chunk, unit in parts:
        encoded = read_chunk(plan, chunk)
        for learner in learning:
            _learn(
                learner, chunk, unit, PreparedChunk(encoded, learner.preparation), order.n_threads
            )
    for learner in learning:
        _save(store, order, learner)
    return {learner.candidate.number: _metrics(learner) for learner in learning}


def _metrics(learner: _Learning) -> dict[str, float]:
    progressive = learner.ledger.progressive
    assert progressive is not None  # as begun
    return {name: float(value) for name, value in progressive.totals().items()}


def _learn(
    learner: _Learning, chunk: Any, unit: Unit, prepared: PreparedChunk, threads: int
) -> None:
    """Learn a part of a chunk, and score the forecasts of its rows."""
    step = Step(
        "", "", 0, "", start=unit.start, stop=unit.stop, forecasts=learner.ledger.needs_forecasts,
        with_labels=True, samples=learner.ledger.calibration is not None, n_threads=threads,
    )  # fmt: skip
    learn_chunk(chunk, learner.shard, prepared, step)
    chunks = [learner.shard.answers.pop(unit.start)]
    learner.ledger.take(0, unit.index, Answer(OK, 0, "", position=unit.stop, chunks=chunks))
    learner.ledger.settle()


def _begun(
    store: Store, order: Advance, candidate: Candidate, plan: Plan, units: list[Unit]
) -> _Learning:
    """Return a candidate as it was at the end of the round before."""
    parameters = ForestParameters.from_json(dict(candidate.parameters))
    numbers, metrics = range(candidate.n_trees), {}
    if order.round == 0:
        forest = empty_shard(parameters, numbers)
    else:
        name = state_name(order.round - 1, candidate.number)
        metrics = document.unseal(store.get(f"{name}.json", document.MAX_BYTES), name)
        data = store.get(f"{name}.arrow", _MOST_BYTES)
        forest = forest_from_state(*decode_forest(data, name=name))
    made, delay = kind_of(parameters), delay_of(parameters)
    progressive = Progressive(plan.schema.task, made, 0, delay)
    if "progressive" in metrics:
        progressive = Progressive.from_json(metrics["progressive"])
    calibration = new_calibration(
        candidate.calibrate, parameters.gives_label_variance, parameters.follows_stream
    )
    if calibration is not None and metrics.get("calibration") is not None:
        calibration = type(calibration).from_json(metrics["calibration"])
    guard = None
    if parameters.follows_stream:
        guard = Guard(parameters, numbers)
        if metrics.get("guard") is not None:
            guard.load_json(metrics["guard"])
    ledger = Ledger(
        units, 1, candidate.n_trees, progressive, calibration, read_counts(metrics), 0, parameters,
        None, guard,
    )  # fmt: skip
    shard = Shard(forest, order.start, candidate.n_trees)
    return _Learning(candidate, Preparation(parameters), shard, ledger)


def _save(store: Store, order: Advance, learner: _Learning) -> None:
    """Write a candidate's state; the document last, as it is read first."""
    name = state_name(order.round, learner.candidate.number)
    store.put(f"{name}.arrow", encode_forest(*learner.shard.forest.stored()))
    store.put(f"{name}.json", document.seal(learner.ledger.metrics()))


def state_name(round_: int, number: int) -> str:
    """Return the name of a candidate's state at the end of a round, without its ending."""
    return f"states/{round_:02d}-{number:04d}"
