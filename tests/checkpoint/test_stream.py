"""The chain of plans of a run that was continued."""

from __future__ import annotations

from pathlib import Path

import pytest

from dmondrian.checkpoint import document
from dmondrian.checkpoint.manifest import Manifest
from dmondrian.checkpoint.stream import Stream
from dmondrian.errors import CorruptError, FencedError
from dmondrian.store import Store, open_store

FIRST, *LATER = (character * 64 for character in "abcdef")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "run")


def chain(store: Store, n: int) -> Stream:
    stream = Stream(store, FIRST)
    for i in range(n):
        stream.lead_to(LATER[i], b"plan", [FIRST, *LATER[:i]])
    return stream


def test_links_are_read_once_until_they_change(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = chain(store, 3)
    assert stream.digests() == [FIRST, *LATER[:3]]
    read: list[str] = []
    get = Store.get
    monkeypatch.setattr(
        Store, "get", lambda self, name, *given: read.append(name) or get(self, name, *given)
    )
    assert Stream(store, FIRST).digests() == [FIRST, *LATER[:3]]
    assert read == []
    link = {"plan": LATER[4], "after": LATER[1]}
    store.put("plans/000003.json", document.seal(link))
    assert Stream(store, FIRST).digests() == [FIRST, *LATER[:2], LATER[4]]
    assert read == ["plans/000003.json"]


def test_a_link_that_is_damaged_or_taken_away_later_is_found(store: Store, tmp_path: Path) -> None:
    stream = chain(store, 3)
    stream.digests()
    path = tmp_path / "run/plans/000002.json"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"c", b"d", 1))
    with pytest.raises(CorruptError):
        stream.digests()
    path.write_bytes(whole)
    assert stream.digests() == [FIRST, *LATER[:3]]
    path.unlink()
    with pytest.raises(CorruptError, match="a plan in between is missing"):
        stream.digests()


def test_a_plan_that_does_not_follow_the_newest_replaces_it(store: Store) -> None:
    stream = chain(store, 2)
    stream.lead_to(LATER[3], b"plan", [FIRST, LATER[0]])
    assert stream.digests() == [FIRST, LATER[0], LATER[3]]


@pytest.mark.parametrize(
    ("plan", "earlier"),
    [(LATER[3], [FIRST, LATER[0]]), (LATER[0], [FIRST])],
    ids=["another", "an earlier one"],
)
def test_no_link_goes_behind_which_a_checkpoint_lies(
    store: Store, plan: str, earlier: list[str]
) -> None:
    stream = chain(store, 2)
    before, behind = Manifest(5, {}, plan=LATER[0]), Manifest(9, {}, plan=LATER[1])
    store.put(before.name, before.to_bytes())
    store.put(behind.name, behind.to_bytes())
    names = store.list()
    with pytest.raises(FencedError, match="the checkpoint at row 9 has rows"):
        stream.lead_to(plan, b"plan", earlier)
    assert stream.digests() == [FIRST, *LATER[:2]]
    assert store.list() == names
    store.delete(behind.name)
    stream.lead_to(plan, b"plan", earlier)  # the checkpoint before it is no hindrance
    assert stream.digests() == [FIRST, LATER[0], *(one for one in [plan] if one != LATER[0])]


def test_notes_on_files_that_were_learned_are_kept_with_the_places(store: Store) -> None:
    stream = Stream(store, FIRST)
    assert stream.notes() == []
    stream.note_places({"a": ("b", "1")})
    assert stream.notes() == []
    assert not stream.has_noted({"a": ("b", "1")}, ["gone"])
    stream.note_places({"a": ("b", "1")}, ["gone"])
    assert stream.has_noted({"a": ("b", "1")}, ["gone"])
    assert stream.notes() == ["gone"]
    assert stream.places() == (store.url, {"a": ("b", "1")})
    store.put("places.json", document.seal({"run": store.url, "files": {}, "notes": [1]}))
    with pytest.raises(CorruptError, match="has no texts"):
        stream.notes()


def test_plans_that_no_checkpoint_needs_are_dropped_and_their_links_stay(store: Store) -> None:
    stream = chain(store, 4)
    stream.drop([LATER[1]])
    assert stream.digests() == [FIRST, *LATER[:4]]
    assert [stream.has(digest) for digest in LATER[:4]] == [False, True, False, True]
    with pytest.raises(CorruptError, match="is missing"):
        stream.read(LATER[0])
    stream.lead_to(LATER[4], b"plan", [FIRST, *LATER[:4]])
    assert stream.read() == b"plan"
