"""Credentials of the environment are in no task, log, warning, error, object or repr."""

from __future__ import annotations

import io
import logging
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from distributed import Client

from dmondrian import load
from dmondrian.checkpoint import Run
from dmondrian.distributed import Progress, score, train
from dmondrian.errors import DMondrianError
from dmondrian.store import open_store

from ..store.servers import BUCKET, faulty_server, moto_server, set_credentials
from .conftest import forest

SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIAdistinct0001",
    "AWS_SECRET_ACCESS_KEY": "distinct-aws-secret-0002",
    "AZURE_STORAGE_ACCOUNT_KEY": "ZGlzdGluY3QtYXp1cmUtMDAwMw==",
    "AZURE_STORAGE_SAS_KEY": "sv=2022&sig=distinct-sas-0004",
    "AZURE_CLIENT_SECRET": "distinct-azure-client-0005",
    "GOOGLE_SERVICE_ACCOUNT_KEY": '{"private_key": "distinct-google-0006"}',
    "GOOGLE_APPLICATION_CREDENTIALS": "/distinct-google-credentials-0007.json",
}
TYPED = ("distinct-signature-0008", "distinct-password-0009")  # in addresses, by mistake


class Overheard:
    """Everything that was sent or printed, as bytes, by where it was."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes]] = []

    def add(self, where: str, what: Any) -> None:
        self.seen.append((where, what if isinstance(what, bytes) else str(what).encode()))

    def error(self, error: BaseException) -> None:
        self.add("traceback", "".join(traceback.format_exception(error)))
        self.add("pickled error", cloudpickle.dumps(error))
        links: list[BaseException | None] = [error]
        while links:
            link = links.pop()
            if link is not None:
                self.add("error", f"{link} {link!r} {link.args!r}")
                links += [link.__cause__, link.__context__]

    def leaks(self) -> list[tuple[str, str]]:
        secrets = [*SECRETS.values(), *TYPED, "distinct-"]
        return [(w, s) for w, what in self.seen for s in secrets if s.encode() in what]


@pytest.fixture
def overheard(monkeypatch: pytest.MonkeyPatch, client: Client) -> Iterator[Overheard]:
    """Listen to what is sent to the scheduler, logged at any level and warned of."""
    found = Overheard()
    for name in ("submit", "map", "compute", "run", "register_plugin"):
        before = getattr(client, name)

        def spy(*args: Any, _before: Any = before, _name: str = name, **options: Any) -> Any:
            found.add(f"client.{_name}", cloudpickle.dumps((args, options)))
            return _before(*args, **options)

        monkeypatch.setattr(client, name, spy)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in ("dmondrian", "distributed", "dask")}
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    for name in levels:
        logging.getLogger(name).setLevel(logging.DEBUG)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield found
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        for name, value in levels.items():
            logging.getLogger(name).setLevel(value)
    for warning in warned:
        found.add("warning", warning.message)
    found.add("log", stream.getvalue())
    assert found.leaks() == []


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    boto3 = pytest.importorskip("boto3")
    with moto_server() as endpoint:
        set_credentials(monkeypatch, endpoint)
        for name, value in SECRETS.items():
            monkeypatch.setenv(name, value)
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}"


def test_a_job_prints_no_secret(
    bucket: str, adult: Path, client: Client, overheard: Overheard
) -> None:
    folder = f"{bucket}/secrets"  # buckets of one process are one, whoever serves them
    store = open_store(folder)
    for file in adult.iterdir():
        store.put(f"data/{file.name}", file.read_bytes())

    def listen(reported: Progress) -> None:
        overheard.add("progress", repr(reported))

    options: dict[str, Any] = {"target": "income", "client": client, "progress": listen}
    run = train(forest(), f"{folder}/data", run=f"{folder}/run", **options)
    reported = score(run.run_url, f"{folder}/data", f"{folder}/scores", client=client)
    opened, estimator = Run.open(run.run_url), load(run.run_url)
    for thing in (run, reported, opened, estimator, store, store.address, opened.run_json):
        overheard.add("repr", repr(thing))
        overheard.add("pickle", cloudpickle.dumps(thing))
    for name in store.list():
        overheard.add(name, store.get(name))
    assert any(where.startswith("client.") for where, _ in overheard.seen)
    assert any(where == "progress" for where, _ in overheard.seen)
    assert overheard.leaks() == []


@pytest.mark.parametrize(
    ("data", "run"),
    [
        ("s3://no-such-bucket/data", "s3://no-such-bucket/run"),
        ("LOCAL", "s3://no-such-bucket/run"),
        ("LOCAL", f"s3://{BUCKET}/run?X-Amz-Signature={TYPED[0]}"),
        ("LOCAL", f"s3://user:{TYPED[1]}@{BUCKET}/run"),
        (f"s3://{BUCKET}/data?X-Amz-Signature={TYPED[0]}", f"s3://{BUCKET}/run"),
        (f"s3://user:{TYPED[1]}@{BUCKET}/data", f"s3://{BUCKET}/run"),
        (f"https://user:{TYPED[1]}@127.0.0.1:9/data.parquet", f"s3://{BUCKET}/run"),
        (f"https://127.0.0.1:9/d.parquet?X-Amz-Signature={TYPED[0]}", f"s3://{BUCKET}/run"),
    ],
)
def test_a_job_that_fails_prints_no_secret(
    bucket: str, adult: Path, client: Client, overheard: Overheard, data: str, run: str
) -> None:
    source = str(adult) if data == "LOCAL" else data
    with pytest.raises(DMondrianError) as caught:
        train(forest(), source, target="income", run=run, client=client)
    overheard.error(caught.value)
    assert overheard.leaks() == []


def test_a_refused_signature_prints_no_secret(
    adult: Path, client: Client, overheard: Overheard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty_server("refuses") as server:
        set_credentials(monkeypatch, server.endpoint)
        for name, value in SECRETS.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(DMondrianError) as caught:
            train(forest(), adult, target="income", run=f"s3://{BUCKET}/run", client=client)
    overheard.error(caught.value)
    assert overheard.leaks() == []
