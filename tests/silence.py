"""Ends processes of tests that say nothing any more, with the stacks of all their threads.

A test may hang where no Python code runs: in a library that keeps the interpreter's lock, in a
process that was stopped, in a child that was forked and holds its parent's pipes. So the process
that shares the tests out watches, and ends the others by a signal: pytest has them print their
stacks on SIGABRT, and pytest-xdist reports the test and begins its file again.

Before that, each process is asked (SIGUSR1) for what its main thread waits for: stacks and, of
Dask's clusters and of runs in it, the state. The answers, and how each lost process ended, are
printed again at the end, as long logs are cut in the middle.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from xdist.scheduler import LoadFileScheduling

FOLDER = "DMONDRIAN_TESTS_SILENCE"  # environment: where processes write what they wait for


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--silence``."""
    parser.addoption("--silence", type=float, default=600.0, metavar="SECONDS",
                     help="end the processes of tests of which none has begun or ended for so "
                     "long (600)")  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Watch, where tests are shared out; be ready to describe a process that is watched."""
    if hasattr(config, "workerinput") and FOLDER in os.environ:
        signal.signal(signal.SIGUSR1, lambda *_: _describe(Path(os.environ[FOLDER])))
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Watch(config.getoption("silence")))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Return what shares the files out, where it is done by file."""
    return _Files(config, log) if config.getoption("dist") == "loadfile" else None


class _Files(LoadFileScheduling):
    """Shares out files, those of a lost process too.

    With pytest-xdist 3.8 a process in the place of a lost one may wait for ever: it is given one
    file, which may be one that the other was done with, and begins a test when it has the next one.
    """

    def schedule(self) -> None:
        super().schedule()
        super().schedule()  # at least two tests for each process

    def remove_node(self, node: Any) -> str | None:
        files = self.assigned_work[node]
        for name in [name for name, tests in files.items() if all(tests.values())]:
            del files[name]
        return super().remove_node(node)


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
        self._folder = tempfile.TemporaryDirectory(prefix="silence-")
        self._lines: list[str] = []  # printed again at the end

    def pytest_sessionstart(self) -> None:
        """Begin to watch."""
        os.environ[FOLDER] = self._folder.name
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

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Note how a process was lost, and what the machine had left."""
        if error:
            process = getattr(getattr(node.gateway, "_io", None), "popen", None)  # execnet's
            with suppress(Exception):  # its pipes may be closed while it writes its stacks
                process.wait(timeout=10)
            code = getattr(process, "returncode", None)
            self._write(f"{node.gateway.id} was lost, exit code {code}; {_machine()}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print again what was found."""
        if self._lines:
            terminalreporter.section("processes that were lost or silent")
            terminalreporter.write_line("\n".join(self._lines))
        self._folder.cleanup()

    def _watch(self) -> None:
        while not self._is_over.wait(self._seconds / 10):
            if time.monotonic() - self._last > self._seconds:
                self._end_all()
                self._last = time.monotonic()

    def _end_all(self) -> None:
        begun = ", ".join(sorted(self._begun)) or "between two tests"
        self._write(f"\nno test began or ended for {self._seconds:g} s: {begun}; {_machine()}")
        faulthandler.dump_traceback(file=sys.__stderr__)
        processes = psutil.Process().children()
        if not processes:  # it is this one that hangs
            os._exit(1)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                children = process.children(recursive=True)
                self._write(
                    f"process {process.pid} is {process.status()}, has {len(children)} children"
                )
                self._write(self._ask(process))
                process.send_signal(signal.SIGABRT)
                process.resume()  # one that was stopped sees the signal only then
                _wait(process, 10.0)  # psutil's own would take the exit code away from execnet
                for child in (process, *children):
                    with suppress(psutil.NoSuchProcess):
                        child.kill()

    def _ask(self, process: psutil.Process) -> str:
        """Return what a process writes of itself; nothing where its main thread runs no Python."""
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED):
            return ""
        process.send_signal(signal.SIGUSR1)
        end, file = time.monotonic() + 5, Path(self._folder.name) / str(process.pid)
        while not file.exists() and process.is_running() and time.monotonic() < end:
            time.sleep(0.1)
        return file.read_text() if file.exists() else ""

    def _write(self, line: str) -> None:
        self._lines.append(line)
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _wait(process: psutil.Process, seconds: float) -> None:
    """Wait until a process has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.05)


def _machine() -> str:
    """Return what memory and disk have left."""
    memory, disk = psutil.virtual_memory(), psutil.disk_usage(tempfile.gettempdir())
    return f"{memory.available >> 20} MiB of memory and {disk.free >> 20} MiB of disk are free"


def _describe(folder: Path) -> None:
    """Write what this process, which is ended next, waits for: at once, or not at all."""
    memory = psutil.Process().memory_info().rss >> 20
    gc.disable()  # it may deadlock while stacks are read: CPython issue 106883
    part = folder / f"{os.getpid()}.part"
    part.write_text("\n".join([f"holds {memory} MiB", *_threads(), *_dask(), *_tasks()]))
    part.rename(folder / str(os.getpid()))


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for identity, frame in sys._current_frames().items():
        yield f"thread {names.get(identity, identity)}:"
        yield from (f"  {at.filename}:{at.lineno} {at.name}" for at in _newest(frame))


def _newest(frame: Any) -> list[traceback.FrameSummary]:
    return list(traceback.extract_stack(frame))[-12:]


def _dask() -> Iterator[str]:
    """Yield the state of clusters and coordinators in this process."""
    for found in gc.get_objects():
        name = f"{type(found).__module__}.{type(found).__qualname__}"
        with suppress(Exception):  # objects may be half closed
            if name == "distributed.scheduler.Scheduler":
                tasks = [f"{key}: {task.state}" for key, task in found.tasks.items()]
                workers = [
                    f"{address} {w.status.name}, {len(w.processing)} tasks"
                    for address, w in found.workers.items()
                ]
                yield f"{found}, workers {workers}, tasks {tasks[:20]}"
            elif name == "distributed.worker.Worker":
                states = Counter(task.state for task in found.state.tasks.values())
                yield f"{found}, {found.memory_limit >> 20} MiB allowed, tasks {dict(states)}"
            elif name == "distributed.client.Client":
                futures = {key: state.status for key, state in found.futures.items()}
                yield f"{found}, futures {futures}"
            elif name == "dmondrian.distributed.training.coordinator.Coordinator":
                yield f"{name}: stop {found._stop}, settled {found._ledger.settled} of "
                checkpoints = sorted(found._checkpoint_units)[:20]
                yield f"  {len(found._units)}, checkpoints {checkpoints}, to "
                yield f"  check {found._to_check}, watched {list(found._results._watched)}"
                yield from (f"  {vars(state)}" for state in found._states)


def _tasks() -> Iterator[str]:
    for found in gc.get_objects():
        with suppress(ReferenceError):  # a weak reference, to what is gone
            if isinstance(found, asyncio.Task) and not found.done():
                frames = [f"{f.f_code.co_qualname}:{f.f_lineno}" for f in found.get_stack()]
                yield f"asyncio {found.get_coro()}: {' > '.join(frames)}"[:300]
