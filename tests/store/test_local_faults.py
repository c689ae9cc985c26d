"""Folders that cannot be written, full disks, writers that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dmondrian.checkpoint import Run
from dmondrian.errors import CheckpointError, NotFoundError, StoreError
from dmondrian.store import check_writable, open_store


def test_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="choose another folder"):
        open_store(tmp_path / "file" / "run")
    with pytest.raises(StoreError, match="choose another folder"):
        open_store(tmp_path / "file")


@pytest.mark.parametrize("name", ["run", "run/deep/er"])
def test_link_to_nothing_in_the_place_of_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "run").symlink_to("/gone/run")
    reported = f"{tmp_path}/run is a link to /gone/run, which is not there"
    for opens in (open_store, check_writable):
        with pytest.raises(StoreError, match=rf"{reported}.*Bring its target back"):
            opens(tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"There is no folder .*{reported}"):
        Run.open(tmp_path / name)
    (tmp_path / "there").mkdir()
    (tmp_path / "run").unlink()
    (tmp_path / "run").symlink_to("there")
    open_store(tmp_path / name).put("x", b"x")
    assert (tmp_path / "there").joinpath(*name.split("/")[1:], "x").read_bytes() == b"x"


def test_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put("blobs", b"x")
    with pytest.raises(StoreError, match=r"writing blobs/1 .*choose another folder"):
        store.put_new("blobs/1", b"y")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="permissions"):
        open_store(tmp_path).probe()


def test_folder_that_the_system_keeps_for_itself() -> None:
    with pytest.raises(StoreError, match=r"/proc/.*folder"):
        open_store("/proc/dmondrian/run")


def test_asking_whether_a_folder_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "a/b/c")
    assert list(tmp_path.iterdir()) == []
    open_store(tmp_path / "a").put("x", b"x")
    check_writable(tmp_path / "a/b")
    check_writable(tmp_path / "a")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "x"]
    for folder in (tmp_path / "a/x", tmp_path / "a/x/b", "/sys", "/proc/dmondrian/run"):
        with pytest.raises(StoreError):
            check_writable(folder)


def test_opening_without_create_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        open_store(tmp_path / "none", create=False)
    assert list(tmp_path.iterdir()) == []


LIMITED = """
import resource, signal, sys
from dmondrian.errors import StoreError
from dmondrian.store import open_store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = open_store(sys.argv[1])
store.put_new("small", b"x" * 1000)
for put in (store.put_new, store.put):
    try:
        put("large", b"x" * 1_000_000)
    except StoreError as error:
        print(error)
"""


def test_write_that_breaks_off_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("writing large" in line and "size of files" in line for line in lines)
    store = open_store(tmp_path)
    assert store.list() == ["small"]
    store.put_new("large", b"y")
    assert store.get("large") == b"y"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this system does not let us mount a small disk")
    try:
        store = open_store(disk)
        store.put_new("small", b"x" * 1000)
        with pytest.raises(StoreError, match=r"writing large .*free some space"):
            store.put_new("large", b"x" * 1_000_000)
        assert store.list() == ["small"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="what a handle is of is in /proc alone")
def test_what_is_stored_is_forced_to_the_disk_with_the_folders_that_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[str] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        forced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    store = open_store(tmp_path)
    monkeypatch.setattr(os, "fsync", note)
    store.put("a/b/c", b"x")
    store.put_new("d", b"y")
    assert forced == [str(tmp_path / name) for name in ("a/b/c", "a/b", "a", "", "d", "")]


WRITER = """
import sys
from dmondrian.store import open_store
store = open_store(sys.argv[1])
number = 0
print("ready", flush=True)
while True:
    store.put_new(f"blobs/{number}", bytes([number % 256]) * 3_000_000)
    store.put("same", bytes([number % 256]) * 3_000_000)
    number += 1
"""


@pytest.mark.parametrize("wait", [0.05, 0.11, 0.17])
def test_killed_writer_leaves_whole_objects_only(tmp_path: Path, wait: float) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    store = open_store(tmp_path)
    while not store.exists("same"):
        time.sleep(0.01)
    time.sleep(wait)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    names = store.list()
    assert "blobs/0" in names
    for name in names:
        data = store.get(name)
        assert len(data) == 3_000_000
        assert len(set(data)) == 1
    # The next writer goes on where the killed one stopped, beside what it may have left.
    store.put_new(f"blobs/{len(names)}", b"next")


def test_half_written_temporary_is_neither_listed_nor_in_the_way(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "abc#1").write_bytes(b"half")
    assert store.list() == []
    store.put_new("blobs/abc", b"whole")
    assert store.get("blobs/abc") == b"whole"
