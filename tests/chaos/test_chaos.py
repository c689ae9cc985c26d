"""Seeded chaos: after whatever happens to workers, store and coordinator, the same bytes.

By default a few schedules, chosen so that together they lose workers in every way;
``DMONDRIAN_CHAOS_SEEDS=20`` runs the seeds 0 to 19 instead. ``python -m benchmarks.chaos`` does the
same with more rows and takes the time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import schedule
from tests.chaos.harness import Outcome
from tests.chaos.place import Place
from tests.chaos.place import place as set_up
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
CASES = [("never forgets", seed) for seed in SEEDS] + [("follows", seed) for seed in SEEDS[:1]]


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, adult: Path) -> Iterator[Place]:
    pytest.importorskip("boto3")
    files = {file.name: file.read_bytes() for file in adult.iterdir()}
    options = {**OPTIONS, "forest": FORESTS[request.param]}
    with set_up(files, options, LIMIT) as found:
        yield found


def folder_of(place: Place) -> str:
    """Return the folder of a forest's runs: all servers of a process have the same buckets."""
    (name,) = (name for name, forest in FORESTS.items() if forest is place.options["forest"])
    return name.replace(" ", "-")


@pytest.fixture(scope="module")
def calm(place: Place) -> Outcome:
    outcome = place.run(f"{folder_of(place)}/calm", [])
    assert complaints(outcome, outcome, INTERVAL) == []
    assert outcome.losses == []
    return outcome


@pytest.mark.parametrize(("place", "seed"), CASES, indirect=["place"])
def test_chaos_changes_no_byte_and_replays_lost_shards_alone(
    place: Place, calm: Outcome, seed: int
) -> None:
    faults = schedule.draw(seed)
    outcome = place.run(f"{folder_of(place)}/seed-{seed}", faults)
    assert outcome.struck
    assert complaints(outcome, calm, INTERVAL) == []
