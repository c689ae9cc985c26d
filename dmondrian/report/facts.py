"""Facts of a run from its folder, for a page.

Relies on manifests, plans, heartbeats and attempts. Promises only what is stored: an entry that the
run does not have is None or empty, and the page states it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dmondrian.checkpoint import Manifest, Run, known_trees, peek_blobs
from dmondrian.checkpoint.attempt_notes import Work
from dmondrian.checkpoint.held_out import HeldOutRecord, read_record
from dmondrian.checkpoint.lease import Holder, holders
from dmondrian.checkpoint.raised_alerts import read_alerts
from dmondrian.checkpoint.row_ranges import learned_of_parts
from dmondrian.checkpoint.stored_trees import model_blobs
from dmondrian.data import Plan, Schema, stored_plan
from dmondrian.data.column_importances import bound_columns, importances_of_columns
from dmondrian.data.lagged_files import plan_of_data
from dmondrian.distributed.metrics.progressive import Progressive, read_counts
from dmondrian.errors import CheckpointError, CorruptError, StoreError

_MOST_PEEKED = 40  # checkpoints whose sizes are read


@dataclass
class Facts:
    """Everything that a report shows of a stored run."""

    url: str
    run_json: Mapping[str, Any]
    manifest: Manifest | None  # the newest checkpoint, or the one that was picked
    position: int | None = None  # that was picked
    schema: Schema | None = None
    plan: Plan | None = None
    given: Plan | None = None  # where its rows come from: the plan, or that of the data with lags
    progressive: Progressive | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    n_nodes: int = 0
    n_bytes: int = 0  # in memory
    n_trees: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the forest, in use
    calibrated: str | None = None  # how, in words
    importances: list[tuple[str, float]] = field(default_factory=list)  # by column, largest first
    no_importances: str | None = None  # why there are none
    bound: list[str] = field(default_factory=list)  # columns with which forecasts rise or fall
    # of forecasts on columns, or why there is none; None where it is not shown
    dependence: tuple[Any, str] | None = None
    growth: list[tuple[int, int, int]] = field(default_factory=list)  # rows, nodes, bytes stored
    holders: list[Holder] = field(default_factory=list)  # the newest attempts, in order
    earlier: Work | None = None  # all attempts, where there were more than these
    alerts: list[dict[str, Any]] = field(default_factory=list)  # raised last
    n_alerts: int = 0  # of conditions that hold
    held_out: HeldOutRecord | None = None
    best: int | None = None  # position of the best checkpoint by held-out data
    learned_of_parts: int | None = None  # rows, of parts that are not merged yet

    @property
    def files(self) -> list[str]:
        """The files of the data, as they were given; none where the plan is not known."""
        return [] if self.given is None else list(dict.fromkeys(self.given.table.uris()))

    @property
    def is_working(self) -> bool:
        """Whether somebody works on the run now."""
        return bool(self.holders) and not self.holders[-1].is_over

    @property
    def name(self) -> str:
        """Address of the run, with the position that was picked."""
        return self.url if self.position is None else f"{self.url}@{self.position}"

    @property
    def seconds(self) -> float:
        """Seconds of work of all attempts, as far as they are recorded."""
        if self.earlier is not None:
            return self.earlier.seconds
        return math.fsum(
            float(timeline[-1][0])
            for holder in self.holders
            if (timeline := (holder.beat or {}).get("timeline"))
        )

    @property
    def n_waiting(self) -> int:
        """Rows at the newest checkpoint that wait for their labels; 0 where that is not stored."""
        summary = None if self.manifest is None else self.manifest.forest
        return 0 if summary is None or summary.rows is None else int(summary.rows["waiting"])

    @property
    def n_rows(self) -> int:
        """Rows of the stream; those learned where no plan is known."""
        if self.plan is not None:
            return self.plan.n_rows
        return 0 if self.manifest is None else self.manifest.position


def gather(url: str) -> Facts:
    """Return all that a page shows.

    Raises
    ------
    CheckpointError
        There is no run.
    """
    run = Run.open(url)
    manifest = run.latest(verify=False)
    facts = Facts(run.url, run.run_json, manifest, run.position, holders=holders(run.store))
    if facts.holders and facts.holders[0].number > 1:
        facts.earlier = run.work()
    if run.run_json.get("schema") is not None:
        facts.schema = Schema.from_json(run.run_json["schema"])
    if run.run_json.get("plan") is not None:
        facts.plan = _plan(run)
        facts.given = None if facts.plan is None else plan_of_data(run, facts.plan)
    alerts = read_alerts(run.store)
    facts.alerts, facts.n_alerts = alerts["raised"], len(alerts["on"])
    facts.held_out = read_record(run.store)
    if facts.held_out is not None and (best := facts.held_out.best(run.manifests())) is not None:
        facts.best = best.position
    if manifest is None:
        facts.learned_of_parts = learned_of_parts(run)
        return facts
    facts.counts = read_counts(manifest.metrics) if manifest.metrics.get("counts") else {}
    if manifest.metrics.get("progressive"):
        facts.progressive = Progressive.from_json(manifest.metrics["progressive"])
    _add_model(facts, url)
    facts.growth = _growth(run)
    return facts


def _plan(run: Run) -> Plan | None:
    try:
        return stored_plan(run.stream)
    except (CheckpointError, StoreError):
        return None  # the page states that it cannot be read


def _add_model(facts: Facts, url: str) -> None:
    trees, stored, _ = known_trees(url)
    facts.n_nodes, facts.n_bytes = trees.summary.nodes, trees.summary.memory_bytes
    facts.n_trees, facts.parameters = trees.n_trees, trees.parameters
    if trees.calibration is not None:
        from dmondrian.uncertainty.temperature_scaling import kind_of

        is_of_variance = isinstance(trees.calibration, dict) and "squares" in trees.calibration
        facts.calibrated = kind_of(is_of_variance).from_json(trees.calibration).in_words
    facts.importances, facts.no_importances = importances_of_columns(trees, stored, facts.schema)
    facts.bound = bound_columns(trees.parameters, facts.schema)


def _growth(run: Run) -> list[tuple[int, int, int]]:
    """Return rows, nodes and stored bytes of checkpoints, of those that can be read."""
    positions = run.manifests()
    if len(positions) > _MOST_PEEKED:
        step = (len(positions) - 1) / (_MOST_PEEKED - 1)
        positions = sorted({positions[round(i * step)] for i in range(_MOST_PEEKED)})
    sizes: list[tuple[int, int, int]] = []
    for position in positions:
        try:
            manifest = run.manifest(position)
            blobs = model_blobs([(run, manifest)])
            if manifest.forest is not None:
                nodes = manifest.forest.nodes
            else:  # an earlier version wrote it
                nodes = sum(peeked.n_nodes for peeked in peek_blobs(blobs))
        except (CorruptError, StoreError):
            continue
        sizes.append((position, nodes, sum(blob.all_bytes for blob in blobs)))
    return sizes
