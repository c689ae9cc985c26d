"""Files that a person asked for: written whole, and never over something else."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from dmondrian import ParameterError
from dmondrian._atomic_write import check_whole, write_whole


def write(out: Path, data: bytes) -> Path:
    return write_whole(out, data, "a page", b"<p>")


def test_a_file_is_written_and_written_again(tmp_path: Path) -> None:
    file = write(tmp_path / "page", b"<p>1")
    assert write(file, b"<p>2").read_bytes() == b"<p>2"
    assert list(tmp_path.iterdir()) == [file]
    link = tmp_path / "link"
    link.symlink_to(file)
    write(link, b"<p>3")
    assert link.is_symlink()
    assert file.read_bytes() == b"<p>3"


def test_an_empty_file_is_nothing_to_lose(tmp_path: Path) -> None:
    (tmp_path / "page").touch()
    assert write(tmp_path / "page", b"<p>1").read_bytes() == b"<p>1"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no such files")
def test_a_pipe_or_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        for attempt in (lambda out: write(out, b"<p>1"), lambda out: check_whole(out, "a", b"")):
            with pytest.raises(ParameterError, match="is no regular file"):
                attempt(tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_something_else_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"1,2")
    with pytest.raises(ParameterError, match="is there and is not a page: give another file"):
        write(file, b"<p>1")
    assert file.read_bytes() == b"1,2"


def test_asking_whether_a_file_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    check_whole(tmp_path / "page", "a page", b"<p>")
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "page", b"<p>1")
    check_whole(tmp_path / "page", "a page", b"<p>")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"<p>1"]
    with pytest.raises(ParameterError, match="is there and is not a book"):
        check_whole(tmp_path / "page", "a book", b"<b>")


@pytest.mark.parametrize(
    ("out", "reported"),
    [
        ("none/page", "there is no folder .*none: make it"),
        ("", "cannot be written .Is a directory."),
        ("x" * 300, "cannot be written .File name too long."),
        ("/proc/page", "cannot be written"),  # which nobody can write in, whoever asks
    ],
)
def test_where_nothing_can_be_written_is_reported(tmp_path: Path, out: str, reported: str) -> None:
    with pytest.raises(ParameterError, match=reported):
        check_whole(tmp_path / out, "a page", b"<p>")
    with pytest.raises(ParameterError, match=reported):
        write(tmp_path / out, b"<p>1")


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    pages = [b"<p>" + bytes([65 + k]) * 1_000_000 for k in range(2)]
    file, seen = write(tmp_path / "page", pages[0]), set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(file.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for k in range(50):
            write(file, pages[k % 2])
    finally:  # a thread that went on would keep the process from its end
        done.set()
        reader.join()
    assert seen <= set(pages)
