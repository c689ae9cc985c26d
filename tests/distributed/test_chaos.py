"""Seeded chaos: after whatever happens to workers, store and coordinator, the same bytes.

By default a few schedules, chosen so that together they lose workers in every way;
``DMONDRIAN_CHAOS_SEEDS=20`` runs the seeds 0 to 19 instead. ``python -m benchmarks.chaos`` does the
same with more rows and takes the time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dmondrian.store import open_store

from ..store.proxy import Proxy, proxy
from ..store.servers import BUCKET, moto_server, set_credentials
from .chaos import harness, schedule
from .chaos.harness import Outcome
from .chaos.verdict import complaints
from .chaos.workers import Workers, workers

pytestmark = pytest.mark.slow

FEW = (2, 4, 13)
N_SEEDS = int(os.environ.get("DMONDRIAN_CHAOS_SEEDS", "0"))
SEEDS = range(N_SEEDS) if N_SEEDS else FEW
LIMIT = 300.0  # seconds: nothing here takes a tenth of it, but the machine may be busy
INTERVAL = 1000
OPTIONS = {
    "target": "income",
    "checkpoint_every": f"{INTERVAL} rows",
    "unit_rows": 500,
    "forest": {"n_estimators": 6, "random_state": 7},
}


@dataclass
class Place:
    """Three worker processes, and a bucket behind a proxy with the sample in it."""

    workers: Workers
    proxy: Proxy

    def run(self, name: str, faults: list[schedule.Fault]) -> Outcome:
        url = f"s3://{BUCKET}"
        return harness.run(
            self.workers, self.proxy, faults, f"{url}/data", f"{url}/{name}", OPTIONS, LIMIT
        )


@pytest.fixture(scope="module")
def place(adult: Path) -> Iterator[Place]:
    boto3 = pytest.importorskip("boto3")
    with pytest.MonkeyPatch.context() as patch, moto_server() as end, proxy(end) as front:
        set_credentials(patch, front.endpoint)  # before the workers start: they inherit it
        boto3.client("s3", endpoint_url=front.endpoint).create_bucket(Bucket=BUCKET)
        store = open_store(f"s3://{BUCKET}/data")
        for file in adult.iterdir():
            store.put(file.name, file.read_bytes())
        with workers(3) as found:
            yield Place(found, front)


@pytest.fixture(scope="module")
def calm(place: Place) -> Outcome:
    outcome = place.run("calm", [])
    assert complaints(outcome, outcome, INTERVAL) == []
    assert outcome.losses == []
    return outcome


@pytest.mark.parametrize("seed", SEEDS)
def test_chaos_changes_no_byte_and_replays_lost_shards_alone(
    place: Place, calm: Outcome, seed: int
) -> None:
    faults = schedule.draw(seed)
    outcome = place.run(f"seed-{seed}", faults)
    assert outcome.struck == faults
    assert complaints(outcome, calm, INTERVAL) == []
