"""Notes of attempts are few, and each is counted once, whatever ends a process."""

from __future__ import annotations

import pytest

from dmondrian.checkpoint import attempt_notes, document
from dmondrian.checkpoint.attempt_notes import EARLIER_NAME, add_note, notes_of, work_of
from dmondrian.store import Store, open_store
from tests.killed import KilledError, kill_at


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_notes, "KEPT", 3)


def note(store: Store, number: int) -> None:
    summary = {"seconds": 2.0}
    add_note(store, {"began": float(number), "ended": number + 0.5, "summary": summary})


def test_many_attempts_are_few_objects_and_are_all_counted() -> None:
    store = open_store("memory://attempts")
    assert work_of(store) is None
    for number in range(40):
        note(store, number)
        assert len(store.list()) <= 7
        work = work_of(store)
        assert work is not None
        assert work.to_json() == {
            "began": 0.0, "ended": number + 0.5, "seconds": 2.0 * (number + 1),
            "attempts": number + 1,
        }  # fmt: skip
    assert [one["began"] for one in notes_of(store)][-3:] == [37.0, 38.0, 39.0]


@pytest.mark.parametrize("at", range(30))
def test_who_is_killed_while_notes_are_put_together_counts_none_twice(at: int) -> None:
    store = open_store(f"memory://attempts-killed-{at}")
    noted = 0
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, at)
        try:
            for number in range(12):
                note(store, number)
        except KilledError:
            pass
    work = work_of(store)
    noted = 0 if work is None else work.attempts
    assert len(notes_of(store)) <= noted <= 12
    for number in range(20):
        note(store, number)
        work = work_of(store)
        assert work is not None
        assert work.attempts == noted + number + 1
        assert work.seconds == 2.0 * work.attempts
    assert len(store.list()) <= 7


def test_sums_that_are_damaged_lose_no_note() -> None:
    store = open_store("memory://attempts-damaged")
    for number in range(8):
        note(store, number)
    store.put(EARLIER_NAME, b"{")
    assert len(notes_of(store)) == 5
    for content in ({}, {"began": 1, "ended": 2, "seconds": "x", "attempts": 1, "counted": []}):
        store.put(EARLIER_NAME, document.seal(content))
        work = work_of(store)
        assert work is not None
        assert work.attempts == 5
