"""Clusters that grow and shrink by themselves, and clusters of many workers: the same bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dask
import pytest
from distributed import Client

from dmondrian.distributed import Progress, TrainedRun, train
from dmondrian.distributed.cluster.workers import Workers
from dmondrian.errors import ClusterError
from tests.distributed.conftest import (
    Fit,
    Grow,
    digests,
    forest,
    giving_up_after,
    wait_until,
    worker_processes,
    worker_threads,
    workers_of,
)
from tests.distributed.test_left_behind import tasks_known, wait_until_empty

# So that a run of seconds is long for the cluster: it looks often, and wants a worker for each
# hundredth of a second of work. A worker must be idle for a second to be sent away: the run goes
# on between two losses, or it would be given up.
QUICK = {
    "distributed.adaptive.interval": "50 ms",
    "distributed.adaptive.wait-count": 20,
    "distributed.adaptive.target-duration": "10 ms",
}


@contextmanager
def adaptive(minimum: int, maximum: int) -> Iterator[Client]:
    """A cluster that decides on the number of its workers."""
    with dask.config.set(QUICK), worker_threads(0) as (cluster, client):
        cluster.adapt(minimum=minimum, maximum=maximum)
        yield client


@pytest.mark.usefixtures("talkative")
def test_a_cluster_that_adapts_during_the_run_changes_no_byte(
    fit: Fit, undisturbed: TrainedRun
) -> None:
    numbers: list[int] = []
    with adaptive(1, 3) as client:

        def grow(progress: Progress) -> None:
            """Have the cluster start workers, once: it does so for tasks that would take long."""
            if not numbers:
                numbers.append(len(workers_of(client)))
                others = client.map(time.sleep, [0.1] * 20, pure=False)
                wait_until(lambda: len(workers_of(client)) > numbers[0])
                client.cancel(others)
                numbers.append(len(workers_of(client)))

        run = fit(client=client, progress=grow)
        assert digests(run) == digests(undisturbed)
        assert run.metrics == undisturbed.metrics
        wait_until_empty(client)
    assert numbers[0] < numbers[1]


@pytest.mark.usefixtures("talkative")
def test_a_cluster_without_workers_is_asked_for_one_and_may_take_it_back(
    fit: Fit, undisturbed: TrainedRun
) -> None:
    with adaptive(0, 3) as client:
        assert workers_of(client) == []
        run = fit(client=client)
        assert digests(run) == digests(undisturbed)
        assert run.metrics == undisturbed.metrics
        wait_until_empty(client)
        wait_until(lambda: workers_of(client) == [])


def test_a_demand_that_nobody_met_is_taken_back(
    fit: Fit, cluster: Grow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workers, "__init__", giving_up_after(4.0))
    _, client = cluster(0)
    seen: set[int] = set()
    with pytest.raises(ClusterError, match="has no workers") as raised:
        fit(client=client, progress=lambda _: seen.add(client.run_on_scheduler(tasks_known)))
    assert 1 in seen
    wait_until(lambda: client.run_on_scheduler(tasks_known) == 0)
    assert raised.tb is not None


@pytest.mark.parametrize("n_workers", [1, 6])
def test_the_number_of_workers_changes_no_byte(
    fit: Fit, cluster: Grow, undisturbed: TrainedRun, n_workers: int
) -> None:
    run = fit(client=cluster(n_workers)[1])
    assert run.summary["workers"] == n_workers
    assert digests(run) == digests(undisturbed)


@pytest.mark.slow
@pytest.mark.thorough
def test_four_processes_are_all_used_and_change_no_byte(
    adult: Path, tmp_path: Path, fit: Fit
) -> None:
    estimator = forest(n_estimators=4)
    with worker_processes(4) as client:
        run = train(
            estimator, adult, target="income", run=tmp_path / "four", client=client,
            checkpoint_every="3000 rows",
        )  # fmt: skip
        wait_until_empty(client)
    assert run.summary["workers"] == 4
    assert digests(run) == digests(fit(estimator=estimator))
