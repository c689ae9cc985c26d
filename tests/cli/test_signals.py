"""A command that is asked to end prints that, wherever it is in its work, and ends with 130.

A service ends with 0.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dmondrian import AMFClassifier
from dmondrian.cli.signals import ending_in_order
from tests.cli.command import ADULT, PROJECT, TIMEOUT, call, start, train_words

ENDING = [signal.SIGTERM, signal.SIGHUP]
INTERRUPTED = "interrupted: run the same command again to go on"
LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="not Linux")


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    """Signals that nohup, or a shell's background, had these tests begin without."""
    numbers = [signal.SIGINT, *ENDING]
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def catches(process: subprocess.Popen[str], number: int) -> bool:
    """Whether a process has a handler for a signal."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def has_worker(process: subprocess.Popen[str]) -> bool:
    """Whether a process has started one of its own that Python's `spawn` begins."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = folder.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            is_worker = b"spawn_main" in folder.joinpath("cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        if is_worker and int(parent) == process.pid:
            return True
    return False


def reported_after(
    process: subprocess.Popen[str],
    is_time: Callable[[], bool],
    send: Callable[[int], object],
    code: int = 130,
) -> str:
    """Send a signal when it is time; return what the command printed on its way to its code."""
    try:
        while process.poll() is None and not is_time():
            time.sleep(0.01)
        send(process.pid)
        _, stderr = process.communicate(timeout=TIMEOUT)
    except BaseException:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == code, f"exit code {process.returncode}\n{stderr}"
    assert "Traceback" not in stderr
    assert "CancelledError" not in stderr
    return stderr


@LINUX
@pytest.mark.parametrize("number", ENDING)
def test_training_that_has_not_begun_to_learn(number: signal.Signals, tmp_path: Path) -> None:
    process = start(*train_words(tmp_path / "run", "cluster.workers=1"))
    stderr = reported_after(
        process, lambda: catches(process, number), lambda pid: os.kill(pid, number)
    )
    assert INTERRUPTED in stderr.splitlines()
    assert not (tmp_path / "run" / "manifests").exists()


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("raise KeyboardInterrupt", id="through an exec"),
        pytest.param(
            "raise ImportError('initialization failed') from KeyboardInterrupt()",
            id="as pybind11 was initialising a module",
        ),
    ],
)
def test_an_interrupt_that_came_by_a_detour_has_the_same_code(tmp_path: Path, how: str) -> None:
    (tmp_path / "interrupted.py").write_text(
        "import sys\n"
        "from dmondrian.cli import app\n"
        f"app._command = lambda name: lambda *_: exec({how!r})\n"
        "sys.exit(app.main(['describe', 'none']))\n"
    )
    command = [sys.executable, "-m", "interrupted"]
    path = os.pathsep.join([str(tmp_path), str(PROJECT)])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        timeout=TIMEOUT,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("interrupted: ")


@LINUX
@pytest.mark.parametrize("number", ENDING)
@pytest.mark.parametrize("command", ["follow", "serve"])
def test_a_service_that_is_asked_to_end_before_its_work_begins(
    command: str, number: signal.Signals, tmp_path: Path
) -> None:
    words = train_words(tmp_path / "run")[1:]
    if command == "serve":
        AMFClassifier(1, random_state=0).fit([[0.0], [1.0]], [0, 1]).save(tmp_path / "model")
        words = [str(tmp_path / "model"), "--port", "0"]
    process = start(command, *words)
    reported_after(
        process, lambda: catches(process, number), lambda pid: os.kill(pid, number), code=0
    )


@LINUX
def test_ctrl_c_while_the_local_workers_start(tmp_path: Path) -> None:
    process = start(*train_words(tmp_path / "run", "cluster.workers=1"))
    stderr = reported_after(
        process, lambda: has_worker(process), lambda pid: os.killpg(pid, signal.SIGINT)
    )
    assert INTERRUPTED in stderr.splitlines()
    assert not (tmp_path / "run" / "manifests").exists()


@LINUX
@pytest.mark.parametrize(
    ("number", "seconds"),
    [
        pytest.param(signal.SIGTERM, 0.0, id="SIGTERM, workers start", marks=pytest.mark.thorough),
        pytest.param(signal.SIGINT, 2.5, id="SIGINT, later"),
        pytest.param(signal.SIGINT, 0.0, id="SIGINT, workers start", marks=pytest.mark.thorough),
        pytest.param(signal.SIGTERM, 2.5, id="SIGTERM, later", marks=pytest.mark.thorough),
    ],
)
def test_scoring(
    model: Path, many: Path, number: signal.Signals, seconds: float, tmp_path: Path
) -> None:
    process = start("score", model, many, tmp_path / "scores", "--workers", 1, "--threads", 1)
    began: list[float] = []

    def is_time() -> bool:
        if not began and has_worker(process):
            began.append(time.monotonic())
        return bool(began) and time.monotonic() - began[0] >= seconds

    stderr = reported_after(process, is_time, lambda pid: os.kill(pid, number))
    where = r"(stopped with \d+ of \d+ files of scores written; )?"
    assert re.search(rf"^interrupted: {where}run the same command again to go on", stderr, re.M)
    assert not (tmp_path / "scores" / "_manifest.json").exists()


@pytest.fixture(scope="module")
def model(shared: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("model") / "run"
    call(*train_words(run, f"cluster.scheduler={shared}"))
    return run


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows enough for some seconds of scoring."""
    folder = tmp_path_factory.mktemp("many")
    for number in range(60):
        (folder / f"{number:02d}.parquet").symlink_to(ADULT / "part-0000-train.parquet")
    return folder


def test_handlers_are_put_back_and_what_is_ignored_stays_so(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in ENDING]
    call("describe", tmp_path / "none", code=4)
    assert [signal.getsignal(number) for number in ENDING] == before
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with ending_in_order():
        signal.raise_signal(signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) == before[0]


def test_an_interrupt_that_could_not_be_passed_on_comes_again() -> None:
    class Gone:
        """An object that somebody watches."""

    gone, before = Gone(), sys.unraisablehook
    watch = weakref.ref(gone, lambda _: signal.raise_signal(signal.SIGTERM))
    with ending_in_order():
        del gone  # Python prints that it ignores what is raised by who watches
        with pytest.raises(KeyboardInterrupt):
            time.sleep(TIMEOUT)
    assert watch() is None
    assert sys.unraisablehook is before
