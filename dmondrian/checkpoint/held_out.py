"""Held-out metrics of a run's checkpoints, and which of these is the best.

::

    validation.json    the held-out data, and the metrics of each checkpoint on them

Relies on the run's lease: who trains a run writes them. Promises that metrics of other data are
never compared with those of the present ones; that a checkpoint which is gone is not the best; and
that no manifest or blob depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dmondrian.checkpoint import document
from dmondrian.checkpoint.manifest import FOLDER, manifest_position
from dmondrian.errors import CheckpointError, CorruptError, NotFoundError
from dmondrian.store import Store

NAME = "validation.json"
BEST = "best"
"""Behind the ``@`` of an address: the checkpoint of the least held-out loss."""

LOSSES = ("log_loss", "pinball", "rmse", "log_likelihood")
"""Metrics that rank checkpoints: the first of them that there is. Of the last the largest wins."""

MOST = 1000
"""Checkpoints that are gone whose metrics are kept, the newest."""


@dataclass(frozen=True)
class Evaluated:
    """Metrics of one checkpoint on held-out data.

    Attributes
    ----------
    position : int
    n_trees : int
        Of the model then; trees may be added later.
    metrics : dict of str to float or None
        Those of :func:`dmondrian.distributed.evaluate` that are numbers; what is not finite is
        None.
    """

    position: int
    n_trees: int
    metrics: dict[str, Any]

    @property
    def loss(self) -> str:
        """Name of the metric that ranks checkpoints."""
        return next((name for name in LOSSES if name in self.metrics), LOSSES[0])

    @property
    def rank(self) -> float:
        """Value that is least for the best checkpoint; infinite where the loss is."""
        value = self.metrics.get(self.loss)
        if value is None:
            return math.inf
        return -float(value) if self.loss == "log_likelihood" else float(value)


@dataclass(frozen=True)
class HeldOutRecord:
    """Metrics of a run's checkpoints on its held-out data.

    Attributes
    ----------
    digest : str
        Of the held-out data.
    files : tuple of str
    n_rows : int
    evaluated : tuple of Evaluated
        By position.
    """

    digest: str
    files: tuple[str, ...]
    n_rows: int
    evaluated: tuple[Evaluated, ...] = field(default_factory=tuple)

    def has(self, position: int, n_trees: int) -> bool:
        """Return whether a checkpoint was evaluated when it had this number of trees."""
        return any(
            (entry.position, entry.n_trees) == (position, n_trees) for entry in self.evaluated
        )

    def with_one(self, new: Evaluated, there: Collection[int]) -> HeldOutRecord:
        """Return the record with one more; old ones of checkpoints that are gone are dropped.

        Parameters
        ----------
        new : Evaluated
        there : collection of int
            Positions of the checkpoints.
        """
        earlier = [entry for entry in self.evaluated if entry.position != new.position]
        gone = sorted(entry.position for entry in earlier if entry.position not in there)
        dropped = set(gone[: max(0, len(gone) - MOST)])
        kept = [entry for entry in (*earlier, new) if entry.position not in dropped]
        return replace(self, evaluated=tuple(sorted(kept, key=lambda entry: entry.position)))

    def best(self, there: Collection[int]) -> Evaluated | None:
        """Return the best checkpoint of those that are there; of equal ones the first."""
        known = [
            entry for entry in self.evaluated if entry.position in there and entry.rank < math.inf
        ]
        return min(known, key=lambda entry: (entry.rank, entry.position), default=None)

    def report(self, there: Collection[int]) -> dict[str, Any]:
        """Return the record as JSON values, with the position of the best checkpoint."""
        best = self.best(there)
        return {
            "files": [*self.files],
            "rows": self.n_rows,
            "loss": self.evaluated[-1].loss if self.evaluated else None,
            "best": None if best is None else best.position,
            "checkpoints": [
                {"position": entry.position, **entry.metrics} for entry in self.evaluated
            ],
        }


def read_record(store: Store) -> HeldOutRecord | None:
    """Return the held-out metrics of a run; None where nothing was evaluated.

    Raises
    ------
    CorruptError
        What is stored is damaged.
    """
    try:
        data = store.get(NAME, document.MAX_BYTES)
    except NotFoundError:
        return None
    where, advice = f"{NAME} in {store.url}", "Delete it: checkpoints are evaluated again."
    content = document.unseal(data, where, advice)
    try:
        return _record(content)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"{where} cannot be read ({error}). {advice}") from error


def write_record(store: Store, record: HeldOutRecord) -> None:
    """Keep the held-out metrics of a run."""
    evaluated = [
        {"position": entry.position, "trees": entry.n_trees, "metrics": entry.metrics}
        for entry in record.evaluated
    ]
    content = {
        "data": {"digest": record.digest, "files": [*record.files], "rows": record.n_rows},
        "evaluated": evaluated,
    }
    store.put(NAME, document.seal(content))


def best_position(store: Store) -> int:
    """Return the position of the best checkpoint of a run.

    Raises
    ------
    CheckpointError
        None was evaluated on held-out data, or none of these is there.
    """
    record = read_record(store)
    best = None if record is None else record.best(positions(store))
    if best is None:
        raise CheckpointError(
            f"No checkpoint of {store.url} is known to be the best: train the run with held-out "
            "data ([validation] path in a job file, validation= in Python), or give a position."
        )
    return best.position


def positions(store: Store) -> list[int]:
    """Return the positions of all checkpoints in a folder, ascending."""
    positions_there = (manifest_position(name) for name in store.list(FOLDER))
    return sorted(position for position in positions_there if position is not None)


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that are numbers, without the number of rows; None if not finite."""
    numbers = {
        name: float(value)
        for name, value in metrics.items()
        if name not in ("rows", "delay", "trees_sharded")
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
    }
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def _record(content: Mapping[str, Any]) -> HeldOutRecord:
    data, evaluated = content["data"], []
    for entry in content["evaluated"]:
        numbers = entry["position"], entry["trees"]
        if [type(number) for number in numbers] != [int, int] or min(numbers) < 0:
            raise ValueError(f"a checkpoint is {str(numbers)[:80]}")
        values = {
            str(name): None if value is None else float(value)
            for name, value in entry["metrics"].items()
        }
        evaluated.append(Evaluated(numbers[0], numbers[1], values))
    files = tuple(str(file) for file in data["files"])
    return HeldOutRecord(str(data["digest"]), files, int(data["rows"]), tuple(evaluated))
