"""Models and plans in a worker's memory: each is loaded once per process, however many tasks ask.

Relies on checkpoints never changing under their digest. Promises that tasks that ask at the same
time wait for one load, that a failed load is tried again by the next task, and that only the few
last used are kept.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from dmondrian.checkpoint import load_model
from dmondrian.checkpoint.stream import MAX_PLAN_BYTES
from dmondrian.data import Plan, Schema
from dmondrian.errors import CorruptError, DataError
from dmondrian.forest import Forest
from dmondrian.store import open_store

LOAD_SECONDS = 900.0
"""A load that takes longer is given up."""

_KEPT = 2  # models and plans of a process: the one in use and the one before


@dataclass(frozen=True)
class Model:
    """A forest with the encoding of its rows."""

    url: str  # run folder and position
    forest: Forest
    schema: Schema
    digest: str  # of forest and schema: equal models have equal digests, wherever they lie


class Once:
    """Values by key, each made by one thread while others wait."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._values: OrderedDict[Any, Future] = OrderedDict()

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the value of a key, made by `make` if it is not there."""
        with self._lock:
            is_mine = key not in self._values
            value = self._values.setdefault(key, Future())
            self._values.move_to_end(key)
            while len(self._values) > self._kept:
                self._values.popitem(last=False)
        if is_mine:
            try:
                value.set_result(make())
            except BaseException as error:
                with self._lock:
                    if self._values.get(key) is value:
                        del self._values[key]
                value.set_exception(error)
                raise
        return value.result(timeout=LOAD_SECONDS)


_models = Once()
_plans = Once()


def open_model(url: str) -> Model:
    """Load a model of a run that was trained on a plan.

    Raises
    ------
    CheckpointError
        There is no model, or its bytes are damaged.
    DataError
        The model was fitted on arrays: nothing says how to encode the columns of a file.
    """
    forest, about, manifest = load_model(url)
    if about.get("schema") is None:
        raise DataError(
            f"{url} was fitted on arrays and holds no schema: load it with dmondrian.load and call "
            f"predict, or train it with dmondrian.distributed.train"
        )
    content = {
        "schema": about["schema"],
        "position": manifest.position,
        "shards": {str(n): shard["digest"] for n, shard in sorted(manifest.shards.items())},
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    # Pinned to the position, so that a worker that loads later finds the same model.
    plain = url.removesuffix(f"@{manifest.position}")
    schema = Schema.from_json(about["schema"])
    shape = forest.parameters.n_features, forest.parameters.n_classes
    if (schema.n_features, schema.n_classes) != shape:
        raise CorruptError(
            f"{url}: run.json describes {schema.n_features} features and {schema.n_classes} "
            f"classes, the forest has {shape[0]} and {shape[1]}"
        )
    return Model(f"{plain}@{manifest.position}", forest, schema, digest)


def model_here(url: str, digest: str) -> Model:
    """Return a model, loaded once per process.

    Raises
    ------
    CorruptError
        The model at `url` is another one than the caller saw.
    """
    model = _models.get((url, digest), lambda: open_model(url))
    if model.digest != digest:
        raise CorruptError(f"{url} changed while it was used: expected the digest {digest}")
    return model


def adopt(model: Model) -> None:
    """Keep a model that is loaded already, for the tasks that run in this process."""
    _models.get((model.url, model.digest), lambda: model)


def plan_here(folder: str, name: str, digest: str) -> Plan:
    """Return a stored plan, read once per process."""

    def read() -> Plan:
        plan = Plan.from_parquet(open_store(folder).get(name, MAX_PLAN_BYTES))
        if plan.digest != digest:
            raise CorruptError(f"{name} in {folder} is another plan than the one asked for")
        return plan

    return _plans.get((folder, name, digest), read)
