"""Data, run and scores on an S3 server: the same bytes, and no secret in any of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client

from dmondrian import AMFClassifier, load
from dmondrian.data.source import SourceFile
from dmondrian.distributed import TrainedRun, evaluate, grow, score, train
from dmondrian.distributed.scoring.lagged_rows import FOLDER
from dmondrian.distributed.scoring.model_info import open_model
from dmondrian.errors import CheckpointError, DataError
from dmondrian.report import compare_runs
from dmondrian.store import open_store
from tests.distributed.scoring.test_tree_pipeline import limit_of, small_plans  # noqa: F401 - a fixture

from ..store.servers import BUCKET, KEY_ID, SECRET, moto_server, set_credentials
from .conftest import ROWS, digests, forest


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    boto3 = pytest.importorskip("boto3")
    with moto_server(lists_milliseconds=True) as endpoint:
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
    reported = score(run.run_url, f"{bucket}/data", f"{bucket}/scores", client=client)
    assert reported["rows"] == ROWS
    assert score(run.run_url, f"{bucket}/data", f"{bucket}/scores", client=client)["written"] == 0
    limit = limit_of(open_model(run.run_url), 2)
    sharded = score(
        run.run_url, f"{bucket}/data", f"{bucket}/sharded", client=client, memory_limit=limit
    )
    assert sharded["trees_sharded"] > 1
    follows = AMFClassifier(3, drift="follow", delay=64, random_state=7)
    part = f"{bucket}/data/part-0.parquet"
    run = train(follows, part, run=f"{bucket}/follows", **options)
    assert load(run.run_url).forest_.guard.position == ROWS // 2
    assert train(follows, part, run=run.run_url, **options).metrics == run.metrics
    assert score(run.run_url, part, f"{bucket}/scored", client=client)["rows"] == ROWS // 2
    compared = compare_runs([undisturbed.run_url, f"{bucket}/run@{ROWS}", run.run_url])
    assert compared["alike"] == [{"runs": ["A", "B"], "rows": ROWS, "delay": 1}]  # of copies
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


@pytest.mark.thorough
def test_a_run_with_lags_in_a_bucket(
    bucket: str, adult: Path, client: Client, tmp_path: Path
) -> None:
    bucket = f"{bucket}/lags"  # moto keeps what another test has put into it
    store = open_store(bucket)
    files = sorted(adult.iterdir())
    lags = {"columns": "age", "key": "sex"}
    options = {"target": "income", "client": client, "lags": lags}
    for file in files:
        store.put(f"data/{file.name}", file.read_bytes())
        run = train(forest(n_estimators=2), f"{bucket}/data", run=f"{bucket}/run", **options)
    here = train(forest(n_estimators=2), files[0], run=tmp_path / "run", **options)
    here = train(forest(n_estimators=2), files, run=tmp_path / "run", **options)
    assert digests(run) == digests(here)
    other = f"{bucket}/data/part-1.parquet"
    assert evaluate(run.run_url, other, client=client) == evaluate(
        here.run_url, files[1], client=client
    )
    store.put("later/a.parquet", files[0].read_bytes()[:-1] + files[0].read_bytes()[-1:])
    for _ in range(2):
        score(run.run_url, f"{bucket}/later", f"{bucket}/scores", client=client)
    assert not store.list(f"scores/{FOLDER}")


@pytest.mark.thorough
def test_runs_and_scores_that_noted_times_of_change_go_on(
    bucket: str, adult: Path, client: Client
) -> None:
    files = sorted(adult.iterdir())
    bucket = f"{bucket}/earlier"
    store = open_store(bucket)
    store.put("data/part-0.parquet", files[0].read_bytes())
    data, run, out = f"{bucket}/data", f"{bucket}/run", f"{bucket}/scores"
    options = {"target": "income", "client": client, "run": run}
    with pytest.MonkeyPatch.context() as patch:
        # An earlier version noted what listings say, which have no ETags.
        patch.setattr(SourceFile, "opened", lambda self, *_: self)
        first = train(forest(), data, **options)
        score(run, data, out, client=client)
        assert all(block.stamp.endswith("123000000") for block in first.plan.blocks)
    assert score(run, data, out, client=client)["written"] == 0
    same = train(forest(), data, **options)
    assert same.plan.digest == first.plan.digest
    assert same.metrics == first.metrics
    store.put("data/part-1.parquet", files[1].read_bytes())
    assert train(forest(), data, **options).plan.n_rows == ROWS
    assert grow(run, 8, client=client).plan.n_rows == ROWS
    with pytest.raises(CheckpointError, match=r"part-1\.parquet came since"):
        score(run, data, out, client=client)
    store.put("data/part-0.parquet", files[0].read_bytes()[::-1])
    assert train(forest(), data, **options).plan.n_rows == ROWS  # learned: not needed to go on
    with pytest.raises(DataError, match=r"part-0\.parquet"):
        grow(run, 10, client=client)
