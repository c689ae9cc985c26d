"""One process at a time: who holds a run, who is refused, who takes over."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dmondrian.checkpoint import Lease, lease
from dmondrian.checkpoint.lease import ask_to_stop, holder_of
from dmondrian.errors import FencedError, StoreError
from dmondrian.store import Store, open_store

LONG = 60.0  # seconds that anything may take on a busy machine


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 4.0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path)


def wait_until(is_so: object) -> None:
    end = time.monotonic() + LONG
    while not is_so():  # type: ignore[operator]  # a callable without a type of its own
        assert time.monotonic() < end
        time.sleep(0.01)


def test_nobody_holds_a_new_folder_and_the_first_gets_number_one(store: Store) -> None:
    assert holder_of(store) is None
    with Lease.take(store) as held:
        assert held.number == 1
        held.set_progress({"rows": 7})
        wait_until(lambda: (holder_of(store).beat or {}).get("told") == {"rows": 7})  # type: ignore[union-attr]  # one holds it
        holder = holder_of(store)
        assert holder is not None
        assert not holder.is_over
        assert holder.pid == os.getpid()
        held.end("finished")
    holder = holder_of(store)
    assert holder is not None
    assert holder.is_over
    assert holder.beat is not None
    assert holder.beat["outcome"] == "finished"


def test_a_second_one_is_refused_while_the_first_lives(store: Store) -> None:
    with Lease.take(store), pytest.raises(FencedError, match=f"process {os.getpid()} on"):
        Lease.take(store)
    with Lease.take(store) as next_one:
        assert next_one.number == 2


def test_the_same_command_waits_for_its_predecessor(store: Store) -> None:
    taken = []
    with Lease.take(store, job="a"):
        thread = threading.Thread(target=lambda: taken.append(Lease.take(store, job="a")))
        thread.start()
        thread.join(1.5 * lease.LEASE_SECONDS)
        assert thread.is_alive()
    thread.join(LONG)
    assert taken[0].number == 2


def test_a_holder_on_another_machine_that_falls_silent_is_taken_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_machine", lambda: None)  # nobody can look for its process
    silent = Lease.take(store)
    silent._beat("running")
    began = time.monotonic()
    with Lease.take(store) as held:
        assert held.number == 2
        assert time.monotonic() - began >= lease.LEASE_SECONDS
        with pytest.raises(FencedError, match="took over"):
            silent.check()
        held.check()


def test_a_holder_that_was_taken_over_is_notified_without_asking(store: Store) -> None:
    with Lease.take(store) as first:
        first.check(now=False)
        Lease(store, 2)  # as a takeover while this process was stopped
        store.put("lease/000002.json", b"{}")
        wait_until(lambda: first._is_lost)
        with pytest.raises(FencedError):
            first.check(now=False)


HOLD = """
import sys, time
from dmondrian.checkpoint import Lease
from dmondrian.store import open_store
with Lease.take(open_store(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_killed_process_of_this_machine_is_taken_over_at_once(store: Store) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, store.url], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(FencedError, match=f"process {process.pid}"):
        Lease.take(store)
    process.kill()
    process.communicate(timeout=LONG)
    holder = holder_of(store)
    assert holder is not None
    assert holder.is_over
    assert Lease.take(store).number == 2


ENDING = """
import sys
from dmondrian.checkpoint import Lease
from dmondrian.store import open_store
with Lease.take(open_store(sys.argv[1])) as held:
    print("held", flush=True)
    sys.stdin.read()
    held.end("finished")
"""


def test_a_process_that_ends_while_it_is_looked_at_is_alive_or_has_had_its_last_word(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", ENDING, store.url]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    read = store.get

    def get(name: str, max_bytes: int) -> bytes:
        found = read(name, max_bytes)
        if name.endswith(".beat") and process.poll() is None:
            process.communicate(timeout=LONG)  # it writes its last beat and is gone
        return found

    monkeypatch.setattr(store, "get", get)
    for outcome in (None, "finished"):
        holder = holder_of(store)
        assert holder is not None
        assert holder.beat is not None
        assert holder.beat["outcome"] == outcome
        assert holder.is_over == (outcome is not None)


def test_of_many_that_want_a_run_one_gets_it(store: Store) -> None:
    outcomes: list[object] = []
    done = threading.Event()

    def want() -> None:
        try:
            with Lease.take(store) as held:
                outcomes.append(held.number)
                done.wait(LONG)
        except FencedError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(outcomes) == 8)
    done.set()
    for thread in threads:
        thread.join()
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [1]


def test_a_request_to_stop_reaches_the_holder_and_who_replaces_it(store: Store) -> None:
    with Lease.take(store, job="a") as held:
        assert not held.is_asked_to_stop
        ask_to_stop(store, holder_of(store))  # type: ignore[arg-type]  # one holds it
        wait_until(lambda: held.is_asked_to_stop)
    assert Lease.take(store, job="a").is_asked_to_stop
    assert not Lease.take(store, job="b").is_asked_to_stop


def test_a_store_that_fails_for_a_moment_does_not_end_the_hold(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*about: object) -> None:
        raise StoreError("the store is busy")

    with Lease.take(store) as held:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "put", fail)
            patch.setattr(Store, "list", fail)
            time.sleep(0.3)
        before = held._count
        wait_until(lambda: held._count > before + 1)
        held.check()


@pytest.mark.parametrize("at", [5, 60])
def test_a_damaged_note_of_a_holder_hinders_nobody(store: Store, at: int) -> None:
    """Its beat tells whether it lives; who it was is lost."""
    name = "lease/000001.json"
    with Lease.take(store):
        data = bytearray(store.get(name))
        data[at] ^= 1
        store.put(name, bytes(data))
        with pytest.raises(FencedError, match="on a machine that its damaged note does not name"):
            Lease.take(store)
    assert [one.number for one in lease.holders(store)] == [1]
    with Lease.take(store) as held:
        assert held.number == 2


def test_only_the_last_holders_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "KEPT", 4)
    for number in range(1, 13):
        with Lease.take(store) as held:
            assert held.number == number
            lease.ask_to_stop(store, lease.holders(store)[-1])
        assert len(store.list()) <= 3 * 4
    assert [one.number for one in lease.holders(store)] == [9, 10, 11, 12]
    assert all(one.has_ended for one in lease.holders(store))


def test_who_stood_still_while_its_number_was_deleted_holds_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "KEPT", 2)
    with Lease.take(store):
        pass
    put = Store.put_same

    def overtaken(self: Store, name: str, data: bytes) -> bool:
        monkeypatch.setattr(Store, "put_same", put)
        for _ in range(5):
            with Lease.take(store):
                pass
        assert not store.exists(name)
        return put(self, name, data)

    monkeypatch.setattr(Store, "put_same", overtaken)
    with Lease.take(store) as held:
        assert held.number == 7
        held.check()
