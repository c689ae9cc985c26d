"""A store that does not answer for a while under `follow`, and one that refuses for good."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian.checkpoint import Run
from dmondrian.data import BatchFiles
from dmondrian.data.joined_files import JoinedFiles
from dmondrian.distributed import TrainedRun, follow, following, train
from dmondrian.distributed.cluster import outage
from dmondrian.distributed.training import coordinator
from dmondrian.errors import DataError, OutageError, StoreError
from dmondrian.store import failures, open_store, store
from tests.distributed.conftest import ADULT, COLUMNS, digests, forest, wait_until
from tests.store.proxy import Proxy, proxy
from tests.store.servers import BUCKET, faulty_server, moto_server, set_credentials

pytestmark = pytest.mark.slow

ROWS = 200
QUICK = {"max_retries": 1, "retry_timeout": timedelta(seconds=2), "backoff": {}}


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    boto3 = pytest.importorskip("boto3")
    monkeypatch.setattr(store, "RETRY", QUICK)
    monkeypatch.setattr(outage, "_FIRST_PAUSE", 0.1)
    with moto_server() as endpoint, proxy(endpoint) as link:
        set_credentials(monkeypatch, link.endpoint)
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
        yield link


def put(place: Any, name: str, number: int) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pq.read_table(ADULT, columns=COLUMNS).slice(number * ROWS, ROWS), sink)
    open_store(place).put(name, bytes(sink.getvalue()))


@pytest.mark.parametrize("fault", ["errors", pytest.param("cut", marks=pytest.mark.thorough)])
def test_following_outlasts_a_store_that_does_not_answer(
    link: Proxy, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    place = f"s3://{BUCKET}/{fault}"
    options: dict[str, Any] = {"target": "income", "client": client, "n_shards": 2}
    learned: list[int] = []
    scored: list[str] = []

    def fail() -> None:
        link.suffer(fault, 600.0)
        with suppress(AssertionError):
            wait_until(lambda: "tried again" in caplog.text)
            time.sleep(2.0)
        link.recover()

    def on_learned(found: Any) -> None:
        learned.append(found.n_rows)
        if len(learned) == 1:
            put(place, "data/1.parquet", 1)
            put(place, "incoming/1.parquet", 1)
            threading.Thread(target=fail).start()

    def on_scored(found: Any) -> None:
        scored.append(found.file)
        if len(scored) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    for folder in ("data", "incoming"):
        put(place, f"{folder}/0.parquet", 0)
    found = follow(
        forest(), f"{place}/data", run=f"{place}/run", interval=0.1, on_learned=on_learned,
        score={"data": f"{place}/incoming", "out": f"{place}/scores"}, on_scored=on_scored,
        **options,
    )  # fmt: skip
    assert learned == [ROWS, 2 * ROWS]
    assert sorted(uri[-9:] for uri in scored) == ["0.parquet", "1.parquet"]
    assert caplog.text.count("tried again") == caplog.text.count("answers again") == 1
    for number in range(2):
        put(tmp_path / "data", f"{number}.parquet", number)
        straight = train(forest(), tmp_path / "data", run=tmp_path / "run", **options)
    assert isinstance(found, TrainedRun)
    assert digests(found) == digests(straight)


def test_training_outlasts_a_short_outage_as_it_commits(
    link: Proxy, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "data", "0.parquet", 0)
    options = {"target": "income", "client": client, "n_shards": 2}
    commit = Run.commit

    def fail(self: Run, *given: Any) -> Any:
        if not link.met:
            link.suffer("errors", 3.0)
        return commit(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "commit", fail)
        found = train(forest(), tmp_path / "data", run=f"s3://{BUCKET}/short", **options)
    assert link.met
    assert caplog.text.count("tried again") == caplog.text.count("answers again") == 1
    straight = train(forest(), tmp_path / "data", run=tmp_path / "run", **options)
    assert digests(found) == digests(straight)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:the attempt could not be recorded")
def test_following_goes_on_behind_an_outage_amid_a_look(
    link: Proxy, client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look that failed could not give the run back: the next one takes it over."""
    place = f"s3://{BUCKET}/amid"
    learned: list[int] = []
    commit = Run.commit

    def fail(self: Run, *given: Any) -> Any:
        if learned and not link.met:
            link.suffer("errors", 6.0)
        return commit(self, *given)

    def on_learned(found: Any) -> None:
        learned.append(found.n_rows)
        if len(learned) == 1:
            put(place, "data/1.parquet", 1)
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(coordinator, "outlast", partial(outage.outlast, seconds=0.5))
    monkeypatch.setattr(Run, "commit", fail)
    put(place, "data/0.parquet", 0)
    follow(
        forest(), f"{place}/data", run=f"{place}/run", interval=0.1, target="income",
        client=client, on_learned=on_learned,
    )  # fmt: skip
    assert learned == [ROWS, 2 * ROWS]
    assert "answers again" in caplog.text


@pytest.mark.thorough
def test_a_model_is_exported_whose_old_checkpoints_an_outage_kept(
    link: Proxy, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx")
    place, model = f"s3://{BUCKET}/export", tmp_path / "model.onnx"
    exported: list[bytes] = []
    prune, export = following.prune, following._export

    def fail(*given: Any) -> Any:
        if not link.met:
            link.suffer("errors", 3.0)
        return prune(*given)

    def end(*given: Any) -> None:
        export(*given)
        exported.append(model.read_bytes())
        if len(exported) == 1:
            put(place, "data/1.parquet", 1)
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(following, "prune", fail)
    monkeypatch.setattr(following, "_export", end)
    put(place, "data/0.parquet", 0)
    ending = threading.Timer(60.0, os.kill, (os.getpid(), signal.SIGTERM))  # without an export
    ending.start()
    follow(
        forest(), f"{place}/data", run=f"{place}/run", interval=0.1, target="income",
        client=client, keep=1, export=model,
    )  # fmt: skip
    ending.cancel()
    assert link.met
    assert len(exported) == 2
    assert exported[0] != exported[1]


def test_a_store_that_refuses_ends_following(
    link: Proxy, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"s3://{BUCKET}/refused"
    put(place, "data/0.parquet", 0)
    with faulty_server("answers 403 AccessDenied") as refusing:

        def refuse(_: Any) -> None:
            monkeypatch.setattr(link, "upstream", refusing.endpoint.removeprefix("http://"))

        with pytest.raises((DataError, StoreError), match="Check the credentials") as ended:
            follow(
                forest(), f"{place}/data", run=f"{place}/run", interval=0.1, target="income",
                client=client, on_learned=refuse,
            )  # fmt: skip
        assert not isinstance(ended.value, OutageError)


def test_a_first_look_that_fails_ends_following(
    link: Proxy, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    put(f"s3://{BUCKET}/first", "data/0.parquet", 0)
    link.suffer("errors", 600.0)
    with pytest.raises(OutageError):
        follow(
            forest(), f"s3://{BUCKET}/first/data", run=f"s3://{BUCKET}/first/run",
            target="income", client=client,
        )  # fmt: skip
    assert "tried again" not in caplog.text


def test_a_write_whose_answer_is_lost_does_not_take_itself_for_another_process(
    link: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RETRY", {**QUICK, "max_retries": 8})
    place = f"s3://{BUCKET}/lost"
    rows = pa.table({"x": [1.0, 2.0]})
    open_store(place).list()
    for write in (
        lambda: open_store(place).probe(),
        lambda: BatchFiles([rows], f"{place}/batches").take(2),
        lambda: JoinedFiles(f"{place}/joined", "x").write(1, rows, {}),
    ):
        link.suffer("ambiguous", 0.15)  # over when it is sent again
        write()
        assert link.met


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("Server returned non-2xx status code: 503 Service Unavailable: <Error/>", True),
        ("Server returned non-2xx status code: 429 Too Many Requests:", True),
        ("AWS Error UNKNOWN (HTTP status 500) during HeadObject operation: No response", True),
        ("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 28", True),
        ("HTTP error: error sending request", True),
        ("Server returned non-2xx status code: 403 Forbidden: <Error/>", False),
        ("Server returned non-2xx status code: 501 Not Implemented", False),
        ("AWS Error ACCESS_DENIED during HeadObject operation: No response body.", False),
        ("Parquet magic bytes not found in footer", False),
    ],
)
def test_what_waiting_may_mend(text: str, passes: bool) -> None:
    assert failures.may_pass(OSError(text)) is passes


def test_pauses_grow_to_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    waiting = outage.Outage()
    pauses = [waiting.failed(OutageError("no answer.")) for _ in range(9)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    waiting.passed()
    waiting.passed()
    assert len(caplog.records) == 2
    assert waiting.failed(OutageError("no answer.")) == 1
