"""The same bytes from an S3 server and from a web server as from the local folder."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from dmondrian.data import Plan, extend_plan, list_source, make_plan, read_block, read_chunk
from dmondrian.data import read as read_module
from dmondrian.data.proxy import proxy_for
from dmondrian.data.version import Version
from dmondrian.errors import DataError, PlanError
from dmondrian.store import open_store
from tests.store.proxy import ForwardProxy, forward_proxy
from tests.store.servers import moto_server, set_credentials

from .conftest import Write


@pytest.fixture
def folder(write: Write) -> Path:
    write({"x": [1, 2, 3], "y": ["a", "b", "a"]}, "my lake/k=1/a.parquet")
    path = write({"x": [4, 5, 6], "y": ["a", "b", "c"]}, "my lake/k=2/b.parquet")
    (path.parent / "_SUCCESS").write_text("")
    return path.parents[1]


def content(plan: Plan) -> list[bytes]:
    return [read_block(plan, block).X.tobytes() for block in plan.blocks]


class TestS3:
    @pytest.fixture
    def bucket(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        import boto3

        with moto_server() as endpoint:
            set_credentials(monkeypatch, endpoint)
            client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
            client.create_bucket(Bucket="data")
            for path in folder.rglob("*"):
                if path.is_file():
                    client.upload_file(str(path), "data", str(path.relative_to(folder.parent)))
            yield client

    @pytest.mark.parametrize(
        "url",
        [
            "s3://data/my%20lake",
            "s3a://data/my lake/k=*/*.parquet",
            "s3://data/my lake/k=?/?.parquet",
        ],
    )
    def test_bucket_reads_like_the_folder(self, folder: Path, bucket: Any, url: str) -> None:
        plan = make_plan(url, target="y")
        assert content(plan) == content(make_plan(folder, target="y"))
        assert Plan.from_parquet(plan.to_parquet()).digest == plan.digest

    def test_names_with_a_hash_are_other_names(self, folder: Path, bucket: Any) -> None:
        file = next(folder.rglob("b.parquet"))
        bucket.upload_file(str(file), "data", "my lake#2/c.parquet")
        plan = make_plan("s3://data/my lake%232", target="y")
        assert [block.uri for block in plan.blocks] == ["s3://data/my%20lake%232/c.parquet"]
        assert len(content(plan)) == 1
        with pytest.raises(DataError, match="write %23"):
            make_plan("s3://data/my lake#2", target="y")

    def test_plan_holds_no_secret(self, folder: Path, bucket: Any) -> None:
        stored = make_plan("s3://data/my%20lake", target="y").to_parquet()
        assert os.environ["AWS_SECRET_ACCESS_KEY"].encode() not in stored
        assert os.environ["AWS_ACCESS_KEY_ID"].encode() not in stored

    def test_changed_object_is_named(self, folder: Path, bucket: Any) -> None:
        plan = make_plan("s3://data/my%20lake", target="y")
        bucket.put_object(Bucket="data", Key="my lake/k=1/a.parquet", Body=b"other")
        with pytest.raises(PlanError, match=r"a\.parquet changed"):
            read_block(plan, plan.blocks[0])

    def test_missing_object_is_named(self, bucket: Any) -> None:
        with pytest.raises(DataError, match="s3://data/nope"):
            make_plan("s3://data/nope", target="y")


@pytest.mark.skipif(
    tuple(map(int, pa.__version__.split(".")[:3])) < (26, 0, 1),
    reason="earlier PyArrow reads listings in whole seconds too: there is nothing to tell apart",
)
class TestFinerListing:
    """A server that lists milliseconds and answers a look at one object in whole seconds."""

    @pytest.fixture
    def bucket(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        import boto3

        with moto_server(lists_milliseconds=True) as endpoint:
            set_credentials(monkeypatch, endpoint)
            client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
            client.create_bucket(Bucket="fine")
            for path in folder.rglob("*.parquet"):
                client.upload_file(str(path), "fine", str(path.relative_to(folder)))
            filesystem, _ = fs.FileSystem.from_uri("s3://fine/")
            (listed,) = filesystem.get_file_info(fs.FileSelector("fine/k=1"))
            assert listed.mtime_ns - filesystem.get_file_info(listed.path).mtime_ns == 123_000_000
            yield client

    def test_objects_are_known_by_their_etags_however_they_are_named(
        self, folder: Path, bucket: Any
    ) -> None:
        there = content(make_plan(folder, target="y"))
        sources = ("s3://fine", "s3://fine/*/*.parquet",
                   ["s3://fine/k=1/a.parquet", "s3://fine/k=2/b.parquet"])  # fmt: skip
        plans = [make_plan(source, target="y") for source in sources]
        for plan in plans:
            assert content(Plan.from_parquet(plan.to_parquet())) == there
            assert extend_plan(plan, "s3://fine").digest == plan.digest
        assert len({plan.digest for plan in plans}) == 1
        etag = bucket.head_object(Bucket="fine", Key="k=1/a.parquet")["ETag"]
        assert plans[0].blocks[0].stamp == etag

    def test_same_size_and_second_are_kept_apart_by_etags(self, folder: Path, bucket: Any) -> None:
        plan = make_plan("s3://fine", target="y")
        body = bytearray((folder / "k=1/a.parquet").read_bytes())
        bucket.put_object(Bucket="fine", Key="k=1/a.parquet", Body=bytes(body))
        assert read_block(plan, plan.blocks[0]).y is not None
        body[10] ^= 1
        bucket.put_object(Bucket="fine", Key="k=1/a.parquet", Body=bytes(body))
        with pytest.raises(PlanError, match=r"a\.parquet changed"):
            read_block(plan, plan.blocks[0])
        with pytest.raises(PlanError, match=r"a\.parquet changed"):
            extend_plan(plan, "s3://fine")


@pytest.mark.parametrize(
    ("then", "now", "is_local", "expected"),
    [
        ("1700000000123000000", Version(9, '"e"', "1700000000000000000"), False, True),
        ("1700000000000000000", Version(9, "1700000000123000000"), False, True),
        ("1700000000999000000", Version(9, '"e"', "1700000001000000000"), False, True),
        ("1700000000123000000", Version(9, "1700000000123456789"), False, True),
        ("1700000000123000000", Version(9, '"e"', "1700000002000000000"), False, False),
        ("1700000000123000000", Version(9, "1700000000124000000"), False, False),
        ("1700000000000000000", Version(9, "1700000000123000000"), True, False),
        ("1700000000123456789", Version(9, "1700000000123456789"), True, True),
        ('"e"', Version(9, '"e"', "1700000000000000000"), False, True),
        ('"f"', Version(9, '"e"', "1700000000000000000"), False, False),
        ('"e"', Version(8, '"e"', "1700000000000000000"), False, False),
        ('"e"', Version(9, "1700000000000000000"), False, False),
        ("", Version(9, ""), False, True),
    ],
)
def test_versions_are_compared_by_what_both_have(
    then: str, now: Version, is_local: bool, expected: bool
) -> None:
    assert now.is_same(9, then, is_local) is expected


class RangeHandler(SimpleHTTPRequestHandler):
    """Files of a folder, whole or in ranges."""

    def do_GET(self) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if wanted is None or not path.is_file():
            super().do_GET()
            return
        data = path.read_bytes()
        start, stop = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        self.end_headers()
        self.wfile.write(data[start:stop])

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the test's output is the test's."""


class TestWeb:
    @pytest.fixture
    def address(self, folder: Path) -> Iterator[str]:
        handler = partial(RangeHandler, directory=str(folder))
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        server.server_close()
        thread.join()

    def test_links_read_like_the_files(self, folder: Path, address: str) -> None:
        plan = make_plan([f"{address}/k=1/a.parquet", f"{address}/k=2/b.parquet"], target="y")
        assert plan.schema.feature_names == ["x", "k"]
        assert content(plan) == content(make_plan(folder, target="y"))

    def test_changed_file_is_named(self, folder: Path, address: str, write: Write) -> None:
        plan = make_plan(f"{address}/k=1/a.parquet", target="y")
        write({"x": [1, 2, 3, 4], "y": ["a", "b", "a", "b"]}, "my lake/k=1/a.parquet")
        with pytest.raises(PlanError, match=r"a\.parquet changed"):
            read_block(plan, plan.blocks[0])

    def test_row_groups_of_a_chunk_are_read_several_at_a_time(
        self, folder: Path, address: str, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Large ones too; each that is read waits until others are, if they are let."""
        sizes = [10] * 38 + [3000, 3000]
        for number, n in enumerate(sizes):
            write({"x": range(n), "y": range(n)}, f"my lake/many/{number:02}.parquet")
        names = [f"{address}/many/{number:02}.parquet" for number in range(len(sizes))]
        given: Any = {"target": "y", "task": "regression", "shuffle": True}
        plan = make_plan(names, **given)
        (chunk,) = plan.chunks
        local = make_plan(folder / "many", **given)
        expected = read_chunk(local, local.chunks[0])
        lock, running, most, begun = threading.Lock(), 0, 0, 0
        is_met, real = threading.Event(), read_module._columns

        def columns(*given: Any) -> Any:
            nonlocal running, most, begun
            with lock:
                running, begun = running + 1, begun + 1
                most = max(most, running)
                if running == read_module.CONNECTIONS:
                    is_met.set()
            assert is_met.wait(30)
            try:
                return real(*given)
            finally:
                with lock:
                    running -= 1

        monkeypatch.setattr(read_module, "_columns", columns)
        assert read_chunk(plan, chunk).X.tobytes() == expected.X.tobytes()
        assert most == read_module.CONNECTIONS
        parts = [read_module._Part(block) for block in plan.blocks]
        begun = 0
        tables = read_module._tables(plan, parts, (), None)
        assert next(tables)[0] is parts[0]
        assert begun <= read_module.AHEAD
        assert [part for part, _ in tables] == parts[1:]
        most = 0
        monkeypatch.setattr(read_module, "AHEAD_BYTES", 1)
        assert [part for part, _ in read_module._tables(plan, parts[:4], (), None)] == parts[:4]
        assert most == 1

    @pytest.mark.parametrize("path", ["nope.parquet", "k=1/a.parquet?token=1"])
    def test_links_that_cannot_be_read_are_named(self, address: str, path: str) -> None:
        with pytest.raises(DataError, match=re.escape(path.partition("?")[0])) as caught:
            make_plan(f"{address}/{path}", target="y")
        assert "token" not in str(caught.value)


class TestProxy:
    """Where the environment names a web proxy, run and data are both reached through it."""

    @pytest.fixture
    def proxy(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForwardProxy]:
        import boto3

        with moto_server() as endpoint, forward_proxy(endpoint) as proxy:
            set_credentials(monkeypatch, endpoint)
            client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
            client.create_bucket(Bucket="behind")
            for path in folder.rglob("*.parquet"):
                client.upload_file(str(path), "behind", str(path.relative_to(folder.parent)))
            for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "NO_PROXY", "no_proxy"):
                monkeypatch.delenv(name, raising=False)
            monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
            yield proxy

    @pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "AWS_PROXY_URL"])
    def test_both_ask_the_proxy(
        self, folder: Path, proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        # Nobody but the proxy knows this name.
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.invalid:9000")
        monkeypatch.setenv(name, proxy.endpoint)
        assert len(open_store("s3://behind").list()) == 2
        assert {host for _, host in proxy.asked} == {"store.invalid:9000"}
        proxy.asked.clear()
        plan = make_plan("s3://behind/my lake", target="y")
        assert content(plan) == content(make_plan(folder, target="y"))
        assert {host for _, host in proxy.asked} == {"store.invalid:9000"}

    def test_neither_asks_it_for_a_host_that_is_excepted(
        self, folder: Path, proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HTTP_PROXY", proxy.endpoint)
        monkeypatch.setenv("NO_PROXY", "example.org, 127.0.0.0/8")
        assert len(open_store("s3://behind").list()) == 2
        assert len(list_source("s3://behind/my lake")[0]) == 2
        assert proxy.asked == []


@pytest.mark.parametrize(
    ("excepted", "host", "expected"),
    [
        ("", "store.example.org", True),
        ("*", "store.example.org", False),
        ("example.org", "store.example.org", False),
        (".example.org", "store.Example.org", False),
        ("store.example.org,other", "store.example.org", False),
        ("ample.org", "store.example.org", True),
        ("10.0.0.0/8", "10.1.2.3", False),
        ("10.0.0.0/8, 192.168.1.1", "192.168.1.1", False),
        ("10.0.0.0/8", "11.1.2.3", True),
        (" , ", "10.1.2.3", True),
    ],
)
def test_hosts_in_no_proxy_are_asked_themselves(
    monkeypatch: pytest.MonkeyPatch, excepted: str, host: str, expected: bool
) -> None:
    for name in ("HTTPS_PROXY", "ALL_PROXY", "AWS_PROXY_URL", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", excepted)
    assert proxy_for("https", host) is None
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example.org:3128")
    assert proxy_for("https", host) == ("http://proxy.example.org:3128" if expected else None)
    assert proxy_for("http", host) is None
