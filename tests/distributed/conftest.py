"""A sample of adult in small row groups, a shared cluster of threads, clusters of processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dask
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster, Worker

from dmondrian import AMFClassifier
from dmondrian.checkpoint import Run
from dmondrian.distributed import Progress, TrainedRun, train
from dmondrian.distributed.cluster.workers import Workers

ADULT = Path(__file__).parents[2] / "jobs/data/adult/part-0000-train.parquet"
COLUMNS = ["age", "education-num", "hours-per-week", "capital-gain", "sex", "income"]
ROWS, GROUP = 6000, 500
PATIENCE = 120.0
"""Seconds that anything may take on a machine that is busy with other work."""


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Let connections take their time, and workers that were killed to come back."""
    slow = dict.fromkeys(
        ("distributed.comm.timeouts.connect", "distributed.deploy.lost-worker-timeout"),
        f"{PATIENCE:.0f} s",
    )
    with dask.config.set(slow):
        yield


def wait_until(
    is_so: Callable[[], object], seconds: float = PATIENCE, what: Callable[[], str] = lambda: ""
) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"waited {seconds:.0f} seconds in vain{what()}"
        time.sleep(0.01)


def workers_of(client: Client) -> list[str]:
    """Addresses of the workers that the scheduler knows.

    Now and then no answer comes while all workers of this process leave: it is asked again.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            found = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=5.0)
            return sorted(found["workers"])
        except TimeoutError:
            assert time.monotonic() < end, "the scheduler does not answer"


def state_of(client: Client) -> str:
    """Tell how the nannies of a cluster of processes are, and how its workers came and went."""
    nannies = [
        (n.name, n.status.name, n.worker_address, n.pid) for n in client.cluster.workers.values()
    ]
    events = [event for _, event in client.get_events("all")]
    moves = [e for e in events if e.get("action") in ("add-worker", "remove-worker")]
    return f" for {len(nannies)} workers: nannies {nannies}, newest events {moves[-8:]}"


@pytest.fixture(scope="session")
def adult(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of 3,000 rows in row groups of 500."""
    folder = tmp_path_factory.mktemp("adult")
    table = pq.read_table(ADULT, columns=COLUMNS).slice(0, ROWS)
    for i in range(2):
        half = table.slice(i * ROWS // 2, ROWS // 2)
        pq.write_table(half, folder / f"part-{i}.parquet", row_group_size=GROUP)
    return folder


@contextmanager
def worker_threads(n_workers: int, threads: int = 1) -> Iterator[tuple[LocalCluster, Client]]:
    """Workers in this process: quick, and the same code.

    None of them is given up as silent: that happens where the process itself was kept waiting, and
    would fail all tests that come after.
    """
    with (
        dask.config.set({"distributed.scheduler.worker-ttl": None}),
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=threads,
            processes=False,
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        if n_workers:
            client.wait_for_workers(n_workers, timeout=PATIENCE)
        try:
            yield cluster, client
        finally:
            close_clients_of_tasks(cluster)


def close_clients_of_tasks(cluster: LocalCluster) -> None:
    """Close what distributed leaves open until the last worker of this process is gone.

    Each would write a failure to find its scheduler, every other second, into the log of whatever
    test runs.
    """
    for made in list(Worker._initialized_clients):
        if made.scheduler is not None and made.scheduler.address == cluster.scheduler_address:
            made.close()


@contextmanager
def worker_processes(n_workers: int, threads: int = 1) -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=threads,
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(n_workers, timeout=PATIENCE)
        yield client


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    """Two workers in this process, for all tests that leave them as they are."""
    with worker_threads(2) as (_, client):
        yield client


@pytest.fixture(scope="package")
def two_processes() -> Iterator[Client]:
    with worker_processes(2) as client:
        yield client


@pytest.fixture
def pair(two_processes: Client) -> Client:
    """Two worker processes. A test may kill one: its nanny starts another for the next test."""
    wait_until(lambda: len(workers_of(two_processes)) == 2, what=partial(state_of, two_processes))
    two_processes.wait_for_workers(2, timeout=PATIENCE)
    return two_processes


Grow = Callable[[int], tuple[LocalCluster, Client]]


@pytest.fixture
def cluster() -> Iterator[Grow]:
    """Clusters of in-process workers of their own, to be changed while they run."""
    with ExitStack() as stack:
        yield lambda n_workers: stack.enter_context(worker_threads(n_workers))


def resize(cluster: LocalCluster, client: Client, n_workers: int) -> None:
    """Change the number of workers, and wait until the scheduler knows no others."""
    cluster.scale(n_workers)
    wait_until(lambda: len(workers_of(client)) == n_workers)
    if n_workers:
        client.wait_for_workers(n_workers, timeout=PATIENCE)  # until they run


OFTEN = {"checkpoint_every": "1000 rows"}
"""As `undisturbed`; by itself `fit` takes half as many checkpoints, which are half of its time."""
SETTLED = {"alpha": 0.25, "charge_opening": True, "feature_scales": None, "calibrate": False}
"""Settings that need no choosing: most of the time of a short run would go into the choice."""
CHOSEN = {"alpha": "auto", "charge_opening": "auto"}


def forest(**parameters: Any) -> AMFClassifier:
    return AMFClassifier(**{"n_estimators": 6, "random_state": 7, **SETTLED, **parameters})


def digests(run: TrainedRun | str | Path) -> dict[int, str]:
    """Blob digests of the newest manifest, which must be final."""
    url = run.run_url if isinstance(run, TrainedRun) else str(run)
    manifest = Run.open(url).latest()
    assert manifest is not None
    assert manifest.final
    return {number: shard["digest"] for number, shard in manifest.shards.items()}


Fit = Callable[..., TrainedRun]


@pytest.fixture
def fit(adult: Path, client: Client, tmp_path: Path) -> Fit:
    """Train on the sample with small checkpoint intervals; keyword arguments override."""

    def call(name: str = "run", **options: Any) -> TrainedRun:
        given = {"target": "income", "client": client, "checkpoint_every": "2000 rows", **options}
        estimator = given.pop("estimator", forest())
        return train(estimator, given.pop("data", adult), run=tmp_path / name, **given)

    return call


@pytest.fixture(scope="session")
def undisturbed(
    adult: Path, client: Client, tmp_path_factory: pytest.TempPathFactory
) -> TrainedRun:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    return train(forest(), adult, target="income", run=run, client=client, **OFTEN)


class Once:
    """A listener that does something when the first rows are settled, or scored.

    Fits whose end depends on it are given ``window=1``: where this thread waits for a processor,
    workers could have learned all rows before it is called.
    """

    def __init__(self, action: Callable[[], object], is_scoring: bool = False) -> None:
        self.action = action
        self.is_scoring = is_scoring
        self.is_done = False

    def __call__(self, progress: Progress) -> None:
        # Rows are counted as soon as one shard has learned them, metrics when all have.
        is_due = progress.rows > 0 and (self.is_scoring or bool(progress.metrics))
        if is_due and not self.is_done:
            self.is_done = True
            self.action()


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a listener be called at every turn of the coordinator, and steps be small."""
    monkeypatch.setattr("dmondrian.distributed.worker.work_units.UNIT_ROWS", 500)
    monkeypatch.setattr("dmondrian.distributed.cluster.progress.ProgressReporter.interval", 0.0)


def giving_up_after(patience: float) -> Callable[..., None]:
    """`Workers.__init__` for fleets that wait that many seconds for a worker."""
    before = Workers.__init__

    def init(self: Workers, client: Client) -> None:
        before(self, client, patience)

    return init


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of scores of 1,000 rows each."""
    monkeypatch.setattr("dmondrian.distributed.scoring.score.FILE_ROWS", 1000)


def table_of(out: Path) -> pa.Table:
    """Return the scores in a folder, in the order of its files."""
    files = sorted(out.glob("part-*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files])
