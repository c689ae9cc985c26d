"""Ends processes of tests that say nothing any more, with the stacks of all their threads.

A test may hang where no Python code runs: in a library that keeps the interpreter's lock, in a
process that was stopped, in a child that was forked and holds its parent's pipes. So the process
that shares the tests out watches, and ends the others by a signal: pytest has them print their
stacks on SIGABRT, and pytest-xdist reports the test and begins its file again.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from contextlib import suppress

import psutil
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--silence``."""
    parser.addoption("--silence", type=float, default=600.0, metavar="SECONDS",
                     help="end the processes of tests of which none has begun or ended for so "
                     "long (600)")  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Watch, where tests are shared out."""
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Watch(config.getoption("silence")))


class Watch:
    """Waits for silence.

    Parameters
    ----------
    seconds : float
        Longest time in which no test begins or ends.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = float("inf")  # no test has begun yet
        self._begun: set[str] = set()
        self._is_over = threading.Event()

    def pytest_sessionstart(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, name="silence", daemon=True).start()

    def pytest_sessionfinish(self) -> None:
        """End it."""
        self._is_over.set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that a process begins a test."""
        self._last = time.monotonic()
        self._begun.add(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note that it has ended."""
        self._last = time.monotonic()
        self._begun.discard(nodeid)

    def _watch(self) -> None:
        while not self._is_over.wait(self._seconds / 10):
            if time.monotonic() - self._last > self._seconds:
                self._end_all()
                self._last = time.monotonic()

    def _end_all(self) -> None:
        begun = ", ".join(sorted(self._begun)) or "between two tests"
        _write(f"\nno test began or ended for {self._seconds:g} s: {begun}")
        faulthandler.dump_traceback(file=sys.__stderr__)
        processes = psutil.Process().children()
        if not processes:  # it is this one that hangs
            os._exit(1)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                children = process.children(recursive=True)
                _write(f"process {process.pid} is {process.status()}, has {len(children)} children")
                process.send_signal(signal.SIGABRT)
                process.resume()  # one that was stopped sees the signal only then
                psutil.wait_procs([process], timeout=10)
                for child in (process, *children):
                    with suppress(psutil.NoSuchProcess):
                        child.kill()


def _write(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
