"""Signals ask for a clean stop once, and for an immediate one after that."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from dmondrian.distributed.cluster.interrupt import DeferredInterrupt, Interrupts, without_terminal

NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    """Signals that nohup, or a shell's background, had these tests begin without."""
    before = {n: signal.signal(n, signal.default_int_handler) for n in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_asks_and_the_second_stops_at_once(number: signal.Signals) -> None:
    before = [signal.getsignal(n) for n in NUMBERS]
    with Interrupts() as interrupts:
        assert not interrupts.is_requested
        signal.raise_signal(number)
        assert interrupts.is_requested
        with pytest.raises(KeyboardInterrupt, match="at once"):
            signal.raise_signal(number)
    assert [signal.getsignal(n) for n in NUMBERS] == before


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
            assert not interrupts.is_requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_than_the_main_one_changes_nothing() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def enter() -> None:
        with Interrupts():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [before]


@pytest.mark.parametrize("number", NUMBERS)
def test_what_is_held_back_comes_at_the_end(number: signal.Signals) -> None:
    before, done = [signal.getsignal(n) for n in NUMBERS], []

    def hold() -> None:
        with DeferredInterrupt():
            signal.raise_signal(number)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        hold()
    assert done == ["all of it"]
    assert [signal.getsignal(n) for n in NUMBERS] == before


def test_the_second_is_not_held_back() -> None:
    def hold() -> None:
        with DeferredInterrupt():
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt, match="at once"):
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        hold()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_terminal_does_not_reach_processes_that_are_started_undisturbed(
    number: signal.Signals,
) -> None:
    words = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
    process = without_terminal(lambda: subprocess.Popen(words, stdout=subprocess.PIPE))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


def test_a_failure_of_what_is_started_undisturbed_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        without_terminal(lambda: 1 // 0)


def test_a_request_reaches_the_contexts_around_and_none_inside() -> None:
    with Interrupts() as outer:
        with Interrupts() as inner:
            signal.raise_signal(signal.SIGTERM)
            assert inner.is_requested
            assert not outer.is_requested
        assert outer.is_requested
    with Interrupts() as outer:
        with DeferredInterrupt():
            signal.raise_signal(signal.SIGTERM)
        assert outer.is_requested
        with Interrupts() as inner:
            assert not inner.is_requested
