"""The contract on a local folder, in memory and over a real S3 protocol; S3's own cases."""

from __future__ import annotations

import copy
import os
import pickle
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dmondrian.data.lake import list_source
from dmondrian.data.listing import NoFilesError
from dmondrian.errors import DataError, FencedError, StoreError
from dmondrian.store import ExistsError, Store, open_store, parse_address
from dmondrian.store.failures import translate
from tests.contracts.store_contract import StoreContract
from tests.store.proxy import proxy
from tests.store.servers import BUCKET, KEY_ID, SECRET, FaultyServer, faulty_server, set_credentials


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store(tmp_path / "new" / "folder @1 with ümläut #2")

    def test_delete_follows_no_link_out_of_the_folder(self, store: Store, tmp_path: Path) -> None:
        outside = open_store(tmp_path / "outside")
        outside.put("precious", b"1")
        (Path(store.url) / "blobs").symlink_to(outside.url)
        with pytest.raises(StoreError, match="no link"):
            store.delete("blobs/precious")
        assert outside.exists("precious")
        with pytest.raises(StoreError, match="no link"):
            store.delete_empty_folders("blobs")

    def test_folders_without_objects_are_removed_and_others_stay(self, store: Store) -> None:
        names = ["below/a/1", "below/a/deep/2", "below/b/3", "other/4"]
        for name in names:
            store.put(name, b"1")
        store.delete(names[:2])
        store.delete_empty_folders("below")
        assert [*(Path(store.url) / "below").iterdir()] == [Path(store.url) / "below/b"]
        assert store.list() == names[2:]
        store.delete(names[2:])
        store.delete_empty_folders("below")
        assert not (Path(store.url) / "below").exists()
        assert (Path(store.url) / "other").exists()
        store.put("below/again", b"1")
        open_store("memory://empty").delete_empty_folders("below")  # has no folders


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self, request: pytest.FixtureRequest) -> Store:
        return open_store(f"memory://{request.node.name}")


class TestS3Store(StoreContract):
    @pytest.fixture
    def store(self, s3_url: str) -> Store:
        return open_store(s3_url)

    def test_large_object_goes_up_in_parts(self, store: Store) -> None:
        data = bytes(17 * 2**20)
        store.put("large", data)
        assert store.get("large") == data

    def test_prefixes_are_apart(self, store: Store) -> None:
        open_store(store.url + "0").put("x", b"1")
        assert store.list() == []

    def test_missing_bucket_names_what_to_check(self, store: Store) -> None:
        there = open_store("s3://no-such-bucket/x")
        for action in (there.probe, there.list, lambda: there.get("x")):
            with pytest.raises(StoreError, match="There is no bucket no-such-bucket"):
                action()
        with pytest.raises(NoFilesError, match="There is no bucket no-such-bucket"):
            list_source("s3://no-such-bucket/rows.parquet")


@pytest.fixture
def faulty(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    with faulty_server(request.param) as server:
        set_credentials(monkeypatch, server.endpoint)
        yield server


@pytest.mark.parametrize("faulty", ["none"], indirect=True)
def test_small_server_without_a_fault_passes_the_probe(faulty: FaultyServer) -> None:
    open_store(f"s3://{BUCKET}/run").probe()
    assert faulty.conditions == ["*", "*"]
    assert faulty.objects == {}


@pytest.mark.parametrize("faulty", ["ignores the condition"], indirect=True)
def test_probe_refuses_a_store_that_ignores_the_condition(faulty: FaultyServer) -> None:
    with pytest.raises(StoreError, match=r"If-None-Match.*conditional puts"):
        open_store(f"s3://{BUCKET}/run").probe()
    assert faulty.objects == {}


@pytest.mark.parametrize("faulty", ["conflicts 409"], indirect=True)
def test_a_refusal_in_other_words_is_read_and_compared(faulty: FaultyServer) -> None:
    store = open_store(f"s3://{BUCKET}/run")
    store.probe()
    assert store.put_same("m", b"state")
    assert not store.put_same("m", b"state")
    with pytest.raises(FencedError):
        store.put_same("m", b"other")


@pytest.mark.parametrize("faulty", ["writes and fails"], indirect=True)
def test_an_unclear_answer_is_read_and_compared(faulty: FaultyServer) -> None:
    store = open_store(f"s3://{BUCKET}/run")
    store.put_same("m", b"state")
    assert store.get("m") == b"state"
    faulty.failures = 1
    with pytest.raises(FencedError):
        store.put_same("m", b"other")
    assert store.get("m") == b"state"


@pytest.mark.parametrize("faulty", ["refuses"], indirect=True)
def test_no_secret_in_errors_reprs_or_pickles(faulty: FaultyServer) -> None:
    store = open_store(f"s3://{BUCKET}/run")
    with pytest.raises(StoreError, match="credentials") as caught:
        store.put("x", b"1")
    error = caught.value
    shown = [repr(store), store.url, str(error), repr(error), str(pickle.dumps(store))]
    shown += ["".join(traceback.format_exception(error)), str(pickle.dumps(copy.copy(error)))]
    shown += [str(vars(store)), str(error.__context__), str(error.__cause__)]
    for text in shown:
        assert SECRET not in text
        assert KEY_ID not in text


@pytest.mark.parametrize("faulty", ["slows down", "fails", "resets"], indirect=True)
def test_faults_that_pass_are_outlived(faulty: FaultyServer) -> None:
    store = open_store(f"s3://{BUCKET}/run")
    faulty.failures = 3
    store.put("a", b"1")
    faulty.failures = 3
    assert store.put_same("m", b"state")
    faulty.failures = 3
    assert store.get("a") == b"1"
    assert faulty.failures == 0


@pytest.mark.parametrize("faulty", ["breaks off"], indirect=True)
def test_a_body_that_breaks_off_is_never_taken_for_the_object(faulty: FaultyServer) -> None:
    store = open_store(f"s3://{BUCKET}/run")
    data = bytes(range(256)) * 4096
    store.put("a", data)
    faulty.failures = 1
    try:
        assert store.get("a") == data
    except StoreError as error:
        assert "reading a" in str(error)  # noqa: PT017 - a whole object is as good
    assert store.get("a") == data


@pytest.mark.parametrize("faulty", ["stalls"], indirect=True)
def test_a_server_that_stalls_is_an_error_in_bounded_time(
    faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dmondrian.store.store as module

    monkeypatch.setattr(module, "RETRY", {"max_retries": 1})
    monkeypatch.setattr(module, "ANSWER_SECONDS", 1)
    faulty.failures = 100
    with pytest.raises(StoreError, match="reading x"):
        open_store(f"s3://{BUCKET}/run").get("x")


@pytest.mark.parametrize("fault", ["errors", "ambiguous", "cut"])
def test_a_store_that_fails_for_two_seconds_costs_time_alone(
    fault: str, s3_endpoint: str, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{fault}-{number}" for number in range(8)]  # the waits are drawn
    with proxy(s3_endpoint) as front, ThreadPoolExecutor(len(names)) as threads:
        set_credentials(monkeypatch, front.endpoint)
        store = open_store(s3_url)
        front.suffer(fault, 2.0)
        list(threads.map(lambda name: store.put(name, name.encode()), names))
        assert [store.get(name) for name in names] == [name.encode() for name in names]


@pytest.mark.parametrize("url", ["gs://bucket/run", "az://box/run"])
def test_other_clouds_without_credentials_say_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import dmondrian.store.store as module

    monkeypatch.setattr(module, "RETRY", {"max_retries": 0})
    for name in list(os.environ):
        if name.startswith(("AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/no/such/account.json")
    assert parse_address(url).url == url
    with pytest.raises(StoreError, match=r"(opening|looking).* in (gs|az)://.*failed"):
        open_store(url).exists("run.json")


def test_unreachable_server_is_an_error_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import dmondrian.store.store as module

    monkeypatch.setattr(module, "RETRY", {"max_retries": 1})
    with faulty_server("none") as server:
        endpoint = server.endpoint
    set_credentials(monkeypatch, endpoint)
    with pytest.raises(StoreError, match=r"reading x in s3://b/p failed.*network") as caught:
        open_store("s3://b/p").get("x")
    assert not isinstance(caught.value, ExistsError)


def test_plain_http_to_another_host_needs_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    set_credentials(monkeypatch, "http://192.0.2.1:9000")
    with pytest.raises(StoreError, match="AWS_ALLOW_HTTP"):
        open_store("s3://b/p").get("x")


@pytest.mark.parametrize(
    ("reported", "advice"),
    [
        ("GET http://127.0.0.1:40371/b/x: HTTP error: error sending request", "the endpoint"),
        ("GET http://127.0.0.1:9000/b/x: Server returned 403 Forbidden", "the credentials"),
    ],
)
def test_a_port_is_no_status(reported: str, advice: str) -> None:
    assert f"Check {advice}" in str(translate(OSError(reported), "reading", "x", "s3://b"))


@pytest.mark.parametrize(
    ("faulty", "of_runs", "of_data"),
    [
        ("answers 403 AccessDenied", "of the bucket forests", "of the bucket forests"),
        ("answers 403 InvalidAccessKeyId", "does not know these credentials", "the credentials"),
        ("answers 400 ExpiredToken", "have expired: renew", "have not expired"),
        ("answers 403 RequestTimeTooSkewed", "clock is wrong", "the credentials"),
        ("answers 301 PermanentRedirect", "set AWS_REGION", "another region (eu-west-1)"),
        ("answers 400 AuthorizationHeaderMalformed", "another region (eu-west-1)", "AWS_REGION"),
        ("answers 405 MethodNotAllowed", "is no object store", "is no object store"),
    ],
    indirect=["faulty"],
)
def test_what_a_store_refuses_names_what_to_do(
    faulty: FaultyServer, of_runs: str, of_data: str
) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(f"s3://{BUCKET}/run").probe()
    assert of_runs in str(caught.value)
    with pytest.raises(DataError) as caught_too:
        list_source(f"s3://{BUCKET}/rows.parquet")
    assert of_data in str(caught_too.value)


@pytest.mark.parametrize("faulty", ["answers 404 NotFound"], indirect=True)
def test_an_endpoint_that_knows_no_such_place_is_named(faulty: FaultyServer) -> None:
    with pytest.raises(StoreError, match="the bucket is there, and that the endpoint"):
        open_store(f"s3://{BUCKET}/run").probe()
