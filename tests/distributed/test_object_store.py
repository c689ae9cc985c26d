"""Data, run and scores on an S3 server: the same bytes, and no secret in any of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client

from dmondrian import load
from dmondrian.distributed import TrainedRun, evaluate, score, train
from dmondrian.distributed.models import open_model
from dmondrian.store import open_store

from ..store.servers import BUCKET, KEY_ID, SECRET, moto_server, set_credentials
from .conftest import ROWS, digests, forest
from .test_relay import limit_of, small_plans  # noqa: F401 - a fixture


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    boto3 = pytest.importorskip("boto3")
    with moto_server() as endpoint:
        set_credentials(monkeypatch, endpoint)
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}"


@pytest.mark.usefixtures("small_plans")
def test_a_job_whose_files_are_all_in_a_bucket(
    bucket: str, adult: Path, client: Client, undisturbed: TrainedRun
) -> None:
    store = open_store(bucket)
    for file in adult.iterdir():
        store.put(f"data/{file.name}", file.read_bytes())
    options = {"target": "income", "client": client, "checkpoint_every": "2000 rows"}
    run = train(forest(), f"{bucket}/data", run=f"{bucket}/run", **options)
    assert run.run_url == f"{bucket}/run"
    assert digests(run) == digests(undisturbed)
    again = train(forest(), f"{bucket}/data", run=f"{bucket}/run", **options)
    assert again.metrics == run.metrics == undisturbed.metrics
    assert load(run.run_url).n_estimators == 6
    told = score(run.run_url, f"{bucket}/data", f"{bucket}/scores", client=client)
    assert told["rows"] == ROWS
    assert score(run.run_url, f"{bucket}/data", f"{bucket}/scores", client=client)["written"] == 0
    limit = limit_of(open_model(run.run_url), 2)
    sharded = score(
        run.run_url, f"{bucket}/data", f"{bucket}/sharded", client=client, memory_limit=limit
    )
    assert sharded["trees_sharded"] > 1
    parts = [name for name in store.list("scores") if name.endswith(".parquet")]
    assert parts
    for name in parts:
        assert store.get(name) == store.get(name.replace("scores/", "sharded/", 1))
    found = evaluate(run.run_url, f"{bucket}/data/part-1.parquet", client=client)
    assert found["rows"] == ROWS // 2
    for name in store.list():
        data = store.get(name)
        assert SECRET.encode() not in data
        assert KEY_ID.encode() not in data
