"""What holds for every test."""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType, SimpleNamespace

import dask
import pytest
from distributed.utils import get_mp_context
from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)


pytest_plugins = ["tests.silence"]
# It can freeze a process with CPython 3.11: dmondrian.distributed.worker.sampling_profiler.
dask.config.set({"distributed.worker.profile.enabled": False})
settings.register_profile("tests", deadline=None)  # the first example may compile or import
settings.load_profile("tests")
# Workers are spawned, as users' are.
SPAWNED = (
    "cli/test_signals.py",
    *(f"cluster/test_{name}.py" for name in ("deployments", "hosts", "tls", "try_cluster")),
)
# Tests with many workers: they are forked from a process that has imported this package, too.
FORKED = ("chaos/", "cluster/", "distributed/")
# What Dask's workers have imported when they begin a task of this package.
PRELOADED = [
    "distributed", "pandas", "dmondrian.distributed.worker.tasks",
    "dmondrian.distributed.scoring.score",
]  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Let hashes overflow where kernels run as plain Python: NumPy warns of what is meant there."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        meant = "ignore:overflow encountered in scalar:RuntimeWarning:dmondrian.tree.keyed_random"
        config.addinivalue_line("filterwarnings", meant)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Processes that share the files of tests: tests of clusters wait more than they compute."""
    return (os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out thorough tests unless asked for; begin with the files that hold slow tests.

    So none of those files is alone at the end. Of a test that is ``thorough(but="case")`` that case
    stays.
    """
    if os.environ.get("DMONDRIAN_THOROUGH") != "1":
        left_out = pytest.mark.skip(reason="thorough: runs with DMONDRIAN_THOROUGH=1")
        for item in items:
            marker, case = item.get_closest_marker("thorough"), getattr(item, "callspec", None)
            if marker and (case is None or marker.kwargs.get("but") != case.id):
                item.add_marker(left_out)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="module", autouse=True)
def forget_objects() -> None:
    """Have the garbage collector pass over all that was imported, collected and kept so far.

    Those are a million objects, through which each full collection goes for a second; clusters,
    workers and looks of `follow` begin one at their ends.
    """
    with pytest.MonkeyPatch.context() as patch:
        # What earlier tests left open, such as sockets of killed workers, fails no later one.
        patch.setattr(sys, "unraisablehook", lambda _: None)
        gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def unforced(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave it to the system when what this process stores comes to the disk: no power fails here.

    A run of a test forces a hundred files and folders to it, on a slow disk for half of its time.
    The tests of stores do, and all in the thorough run.
    """
    place = request.path.relative_to(Path(__file__).parent).as_posix()
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("DMONDRIAN_THOROUGH") != "1" and not place.startswith("store/"):
            patch.setattr("dmondrian.store.store._fsync", lambda _: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def forked_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork Dask's workers from a process that has imported it, as Dask's own tests do.

    Tests of clusters take two fifths less of the processor's time. Users' workers are spawned: so
    are those of SPAWNED.
    """
    place = request.path.relative_to(Path(__file__).parent).as_posix()
    how = "spawn" if place.startswith(SPAWNED) else "forkserver"
    if how == "forkserver" and place.startswith(FORKED):
        start_forkserver()
    setting = "distributed.worker.multiprocessing-method"
    with pytest.MonkeyPatch.context() as patch, dask.config.set({setting: how}):
        patch.setenv(f"DASK_{setting.upper().replace('.', '__').replace('-', '_')}", how)
        yield


@functools.cache
def start_forkserver() -> None:
    """Start the process that forks, with this checkout's modules imported, not those installed."""
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        context = get_mp_context()
    context.set_forkserver_preload(PRELOADED)  # in place of Dask's own list
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        forkserver.ensure_running()


@pytest.fixture(autouse=True)
def logs_are_captured(caplog: pytest.LogCaptureFixture) -> None:
    """Undo what an open cluster that silences Dask's logs does to pytest's handler."""
    caplog.handler.setLevel(logging.NOTSET)


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType, Callable[[], float]], None]:
    """Have a module read a clock in place of `time.monotonic`, which other threads go on reading.

    With a clock that stands still Dask's thread, which answers the clusters of this process, would
    wait for hours, until something wakes it, and its workers be given up as silent.
    """

    def set_one(module: ModuleType, clock: Callable[[], float]) -> None:
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))

    return set_one


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Fail a test that leaves another answer to Ctrl-C behind, for itself or by an import."""
    before = signal.getsignal(signal.SIGINT)
    yield
    after = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)
    assert after is before, f"SIGINT is left with {after}, was {before}"
