"""Seeded chaos: after whatever happens to workers, store and coordinator, the same bytes.

The thorough run has a few schedules, chosen so that together they lose workers in every way;
``DMONDRIAN_CHAOS_SEEDS=20`` runs the seeds 0 to 19 instead. ``python -m benchmarks.chaos`` does the
same with more rows and takes the time.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import schedule
from tests.chaos.harness import Outcome
from tests.chaos.place import Place
from tests.chaos.place import place as set_up
from tests.chaos.schedule import Fault
from tests.chaos.verdict import complaints
from tests.distributed.conftest import SETTLED

pytestmark = pytest.mark.slow

FEW = (6, 9, 10)
N_SEEDS = int(os.environ.get("DMONDRIAN_CHAOS_SEEDS", "0"))
SEEDS = range(N_SEEDS) if N_SEEDS else FEW
LIMIT = 900.0  # seconds: nothing here takes a tenth of it, but kernels may have to be compiled
INTERVAL = 1000
OPTIONS = {
    "target": "income",
    "checkpoint_every": f"{INTERVAL} rows",
    "unit_rows": 500,
}
FORESTS: dict[str, dict[str, Any]] = {
    "never forgets": {"n_estimators": 6, "random_state": 7, **SETTLED},
    "follows": {"n_estimators": 4, "random_state": 7, "drift": "follow", "delay": 64},
}
Run = Callable[[str, str, list[Fault]], Outcome]
DRAWN = [("never forgets", seed) for seed in SEEDS] + [("follows", seed) for seed in SEEDS[:1]]


@pytest.fixture(scope="module")
def place(adult: Path) -> Iterator[Place]:
    pytest.importorskip("boto3")
    files = {file.name: file.read_bytes() for file in adult.iterdir()}
    with set_up(files, OPTIONS, LIMIT) as found:
        yield found


@pytest.fixture(scope="module")
def run(place: Place) -> Run:
    """Train a forest of FORESTS through faults, in the one place of this module."""

    def call(name: str, folder: str, faults: list[Fault]) -> Outcome:
        options = {**OPTIONS, "forest": FORESTS[name]}
        return replace(place, options=options).run(f"{name.replace(' ', '-')}/{folder}", faults)

    return call


@pytest.fixture(scope="module")
def calm(run: Run) -> Callable[[str], Outcome]:
    """Outcome of a forest's run without faults; each is trained once."""

    @functools.cache
    def call(name: str) -> Outcome:
        outcome = run(name, "calm", [])
        assert complaints(outcome, outcome, INTERVAL) == []
        assert outcome.losses == []
        return outcome

    return call


@pytest.mark.parametrize(
    ("name", "seed"),
    [pytest.param(*drawn, marks=() if N_SEEDS else pytest.mark.thorough) for drawn in DRAWN],
)
def test_chaos_changes_no_byte_and_replays_lost_shards_alone(
    run: Run, calm: Callable[[str], Outcome], name: str, seed: int
) -> None:
    faults, expected = schedule.draw(seed), calm(name)
    outcome = run(name, f"seed-{seed}", faults)
    assert outcome.struck
    assert complaints(outcome, expected, INTERVAL) == []
