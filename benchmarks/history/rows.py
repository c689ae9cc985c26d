"""Rows, forests and sizes of all benchmarks here.

Times are the processor's, so that other work on the machine counts for little, of one thread. asv
calls what is timed at least once before it times it (`warmup_time`), so that kernels are compiled,
or loaded from the cache on disk, by then.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from dmondrian import AMFClassifier, AMFRegressor

BENCHMARKS = Path(__file__).parents[1]
DATA = BENCHMARKS.parent / "jobs/data"
SETS = ("synthetic_d20", "friedman1", "adult")  # d = 20, 10, and 107 of which most are one-hot
TREES = 10
# Parameters that the first commits lack, whose forests do without what these are about.
LATER = ("feature_scales", "warmup_rows")


class Sizes(NamedTuple):
    """How much is done; rows are those of a set before some of them are held out."""

    rows: int
    batch: int
    few: int  # too few for trees to be frozen when they are asked about
    warmup: int  # rows that settings are chosen from
    singles: int  # calls of one row each
    at_hand: int  # MiB of memory made ready before each sample


TINY = os.environ.get("DMONDRIAN_HISTORY") == "tiny"
SIZES = Sizes(300, 50, 20, 64, 10, 1) if TINY else Sizes(20_000, 1000, 500, 4096, 1000, 256)


class Timed:
    """What all times have in common."""

    timer = time.process_time
    # Each sample is one call after a `setup`, and rounds are processes: `asv continuous` and
    # --interleave-rounds measure one commit after the other in each of them.
    number = 1
    repeat = (3, 10, 5.0)
    warmup_time = 0.1
    rounds = 2


def _datasets() -> ModuleType:
    """Return `benchmarks.datasets`, which knows nothing of dmondrian, by its file."""
    name = "history_datasets"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / "datasets.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)  # where dataclasses look
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@functools.cache
def load(name: str) -> Any:
    """Return one of `SETS`, a `benchmarks.datasets.Dataset`."""
    return _datasets().load(name, DATA, SIZES.rows)


def settled(dataset: Any) -> Any:
    """Return a forest without rows whose settings are not left to them."""
    given = {"alpha": 0.5, "charge_opening": True} if dataset.is_classification else {}
    return _forest(dataset, feature_scales=None, **given)


def left_open(dataset: Any) -> Any:
    """Return a forest without rows that is as by default, and chooses its settings from rows."""
    return _forest(dataset, warmup_rows=SIZES.warmup)


def _forest(dataset: Any, **given: Any) -> Any:
    make = AMFClassifier if dataset.is_classification else AMFRegressor
    known = make().get_params()
    given = {name: given[name] for name in given if name in known or name not in LATER}
    return make(n_estimators=TREES, random_state=0, n_jobs=1, **given)


def learn(forest: Any, dataset: Any) -> None:
    """Let a forest learn the rows of a set that are not held out, in batches."""
    known = {"classes": np.arange(dataset.n_classes)} if dataset.is_classification else {}
    X, y = dataset.X_train, dataset.y_train
    for start in range(0, len(X), SIZES.batch):
        part = slice(start, start + SIZES.batch)
        forest.partial_fit(X[part], y[part], **known)


def bring_memory() -> None:
    """Take and free memory, which a virtual machine may have given back (see throughput.py)."""
    np.ones(SIZES.at_hand << 17)  # of 8 bytes each
