"""Addresses: what each form means, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dmondrian.errors import StoreError
from dmondrian.store import open_store, parse_address


def test_relative_and_home_paths_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_address("runs/a").url == str(tmp_path / "runs" / "a")
    assert parse_address("./runs/../b").url == str(tmp_path / "b")
    assert parse_address("~/c").url == str(tmp_path / "c")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("file:///data/my%20run", "/data/my run"),
        ("file://localhost/x", "/x"),
        ("file:///odd#name", "/odd#name"),
        ("/odd?name@12#3", "/odd?name@12#3"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket//a//b@7", "s3://bucket/a/b@7"),
        ("S3://bucket", "s3://bucket"),
        ("abfs://box@account.dfs.core.windows.net/x", "abfs://box@account.dfs.core.windows.net/x"),
        ("memory://t/x", "memory://t/x"),
    ],
)
def test_forms(text: str, url: str) -> None:
    assert parse_address(text).url == url
    assert parse_address(url).url == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://h/x",
        "s3:///x",
        "s3://b/a/../c",
        "file://host/x",
        "a\0b",
        "s3://b/x?versionId=1",
        "s3://[b/x",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(StoreError, match=r"expected|write|give"):
        parse_address(text)


@pytest.mark.parametrize("text", ["s3://id:topsecret@bucket/x", "s3://bucket/x?key=topsecret"])
def test_secrets_in_addresses_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(StoreError, match="environment") as caught:
        open_store(text)
    assert "topsecret" not in str(caught.value)


def test_a_home_that_is_not_there_is_refused() -> None:
    with pytest.raises(StoreError, match=r"~nouser/x: the home folder .* write the path out"):
        parse_address("~nouser/x")
