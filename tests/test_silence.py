"""A test that hangs ends the run, with its name and its stack, wherever it hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
WAYS = {
    "in Python": "threading.Event().wait()",
    "with the interpreter's lock": "ctypes.PyDLL(None).pause()",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP), threading.Event().wait()",
    "with a forked child": "os.fork(), threading.Event().wait()",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_test_that_hangs_ends_the_run(tmp_path: Path, way: str) -> None:
    lines = ["import ctypes, os, signal, threading", "def test_that_hangs():", f"    {WAYS[way]}"]
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
    assert 'test_it.py", line 3 in test_that_hangs' in done.stderr  # the stack
    assert "crashed while running 'test_it.py::test_that_hangs'" in done.stdout
