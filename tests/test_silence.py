"""A test that hangs ends the run, with its name and its stack, wherever it hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
WAYS = {
    "in Python": "threading.Event().wait()",
    "beside a cluster": "distributed.LocalCluster(processes=False), threading.Event().wait()",
    # A wait that no signal breaks off: for a lock that this thread holds.
    "with the interpreter's lock": "mutex = (ctypes.c_long * 8)(); "
    "lock = ctypes.PyDLL(None).pthread_mutex_lock; lock(mutex); lock(mutex)",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP), threading.Event().wait()",
    "with a forked child": "os.fork(), threading.Event().wait()",
}

ANSWER = {"in Python", "beside a cluster", "with a forked child"}  # their main threads run Python


RARE = ("beside a cluster", "with a forked child")  # left to the thorough run


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[pytest.mark.thorough] * (way in RARE)) for way in WAYS],
)
def test_a_test_that_hangs_ends_the_run(tmp_path: Path, way: str) -> None:
    lines = [
        "import ctypes, os, signal, threading, distributed",
        "def test_that_hangs():",
        f"    {WAYS[way]}",
    ]
    (tmp_path / "test_it.py").write_text("\n".join(lines))
    (tmp_path / "pytest.ini").write_text("[pytest]")
    options = ["--silence=2", "-n1", "--dist=load", "--max-worker-restart=0"]
    command = [sys.executable, "-m", "pytest", "-p", "tests.silence", *options,
               f"--rootdir={tmp_path}", str(tmp_path)]  # fmt: skip
    done = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "no test began or ended for 2 s: test_it.py::test_that_hangs" in done.stderr
    # The stack; CPython reads that of a thread which goes on meanwhile, and rarely crashes by it.
    if "exit code -11" not in done.stderr:
        assert 'test_it.py", line 3 in test_that_hangs' in done.stderr
    assert "crashed while running 'test_it.py::test_that_hangs'" in done.stdout
    end = done.stdout[done.stdout.index("processes that were lost or silent") :]
    assert "no test began or ended for 2 s: test_it.py::test_that_hangs" in end
    codes = ("-6", "-11")  # ended by the signal, or crashed as above
    was_named = any(f"gw0 was lost, exit code {code}; " in end for code in codes)
    assert was_named or way == "with the interpreter's lock"
    assert ("test_it.py:3 test_that_hangs" in end) == (way in ANSWER)
    assert ("<Scheduler" in end) == (way == "beside a cluster")


def test_the_other_tests_of_a_process_that_was_lost_are_run(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]")
    tests = [f"def test_{number}(): pass" for number in range(5)]
    (tmp_path / "test_a.py").write_text("\n".join(tests))  # the file with most tests is the first
    flag = tmp_path / "flag"
    (tmp_path / "test_b.py").write_text(
        "import os, pathlib\n"
        "def test_that_is_lost_once():\n"
        f"    flag = pathlib.Path({str(flag)!r})\n"
        "    flag.exists() or (flag.touch(), os.abort())\n" + "\n".join(tests[:3])
    )
    for name in "cd":
        (tmp_path / f"test_{name}.py").write_text(tests[0])
    options = ["--silence=60", "-n1", "--dist=loadfile", "--max-worker-restart=1"]
    command = [sys.executable, "-m", "pytest", "-p", "tests.silence", *options,
               f"--rootdir={tmp_path}", str(tmp_path)]  # fmt: skip
    done = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False
    )
    assert "1 failed, 11 passed" in done.stdout  # the lost one, and all of them
