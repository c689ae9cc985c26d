"""The chain of plans of a run that was continued."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from dmondrian.checkpoint import Run, document, stream
from dmondrian.checkpoint.manifest import Manifest
from dmondrian.checkpoint.opening import CONDENSED_FORMAT, RUN_NAME
from dmondrian.checkpoint.stream import Stream
from dmondrian.errors import CorruptError, FencedError, NotFoundError
from dmondrian.store import Store, open_store
from tests.killed import KilledError, kill_at

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


class Followed:
    """A run that takes a plan at each look, and keeps two checkpoints."""

    def __init__(self, store: Store) -> None:
        self.store = store
        if not store.exists(RUN_NAME):
            Run.create(store, {"plan": FIRST, "n_estimators": 1})

    @staticmethod
    def plan(number: int) -> str:
        return hashlib.sha256(str(number).encode()).hexdigest() if number else FIRST

    def look(self, number: int) -> None:
        chain = Stream(self.store, FIRST)
        earlier = [self.plan(k) for k in range(number)]
        chain.lead_to(self.plan(number), b"plan", earlier)
        manifest = Manifest(number, {}, plan=self.plan(number))
        self.store.put_same(manifest.name, manifest.to_bytes())
        kept = Run.open(self.store).manifests()
        chain.drop([self.plan(position) for position in kept])
        for position in kept[:-2]:
            self.store.delete(f"manifests/{position:012d}.json")

    def check(self) -> None:
        """Each checkpoint has its plan in the chain, and few objects are there."""
        run = Run.open(self.store)
        for position in run.manifests():
            assert run.manifest(position).plan == self.plan(position)
        assert run.stream.digests()[0] == FIRST
        assert len(self.store.list("plans")) <= 2 * stream.MOST_LINKS + 5

    @property
    def done(self) -> int:
        return max(Run.open(self.store).manifests(), default=0)


def test_links_are_condensed_and_their_number_is_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MOST_LINKS", 4)
    run, most, n_bytes = Followed(store), 0, []
    for number in range(1, 60):
        run.look(number)
        run.check()
        assert Stream(store, FIRST).digests()[-1] == run.plan(number)
        most = max(most, len(store.list("plans")))
        n_bytes.append(sum(store.sizes().values()))
    assert most <= 9  # five links, and the plans of four checkpoints
    assert max(n_bytes[30:]) <= max(n_bytes[:30]) + 100  # digits
    assert Run.open(store).run_json["format"] == CONDENSED_FORMAT
    assert Run.create(store, {"plan": FIRST, "n_estimators": 1}).manifests() == [58, 59]


def test_a_process_that_is_killed_at_any_object_leaves_a_chain_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "MOST_LINKS", 3)
    at, is_killed = 0, True
    while is_killed:
        run = Followed(open_store(f"memory://killed-at-{at}"))
        run.look(1)
        is_killed = False
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, at)
            try:
                for number in range(2, 9):  # condensed twice
                    run.look(number)
            except KilledError:
                is_killed = True
        run.check()
        for number in range(run.done, 16):  # the newest look may be repeated
            run.look(number)
            run.check()
        assert Stream(run.store, FIRST).digests()[-1] == run.plan(15)
        plans = [name for name in run.store.list("plans") if name.endswith(".parquet")]
        assert len(plans) <= 4
        at += 1
    assert at > 40


def test_numbers_of_links_may_have_more_than_six_digits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MOST_LINKS", 3)
    Run.create(store, {"plan": FIRST})
    link = {"plan": FIRST, "plans": [FIRST]}
    store.put("plans/999998.json", document.seal(link))
    store.put("plans/0999999.json", b"no link: its number has another name")
    stopped = Followed(store)
    for number in range(1, 3):
        stopped.look(number)
    assert {"plans/999998.json", "plans/999999.json", "plans/1000000.json"} <= {*store.list()}
    assert Stream(store, FIRST).digests() == [FIRST, stopped.plan(1), stopped.plan(2)]
    for number in range(3, 12):
        stopped.look(number)
        stopped.check()
    assert Stream(store, FIRST).digests()[-1] == stopped.plan(11)


@pytest.mark.parametrize("newest", range(3, 12))
def test_who_was_overtaken_finds_its_number_taken_or_a_higher_one(
    store: Store, monkeypatch: pytest.MonkeyPatch, newest: int
) -> None:
    monkeypatch.setattr(stream, "MOST_LINKS", 3)
    run = Followed(store)
    for number in range(1, 3):
        run.look(number)
    put = Store.put_same

    def overtaken(self: Store, name: str, data: bytes) -> bool:
        monkeypatch.setattr(Store, "put_same", put)
        for number in range(3, newest + 1):
            run.look(number)
        return put(self, name, data)

    monkeypatch.setattr(Store, "put_same", overtaken)
    late = hashlib.sha256(b"late").hexdigest()
    with pytest.raises(FencedError, match="another writer"):
        Stream(store, FIRST).lead_to(late, b"plan", [run.plan(k) for k in range(3)])
    run.check()
    assert Stream(store, FIRST).digests()[-1] == run.plan(newest)
    with pytest.raises(FencedError, match="the checkpoint at row"):
        Stream(store, FIRST).lead_to(late, b"plan", [run.plan(k) for k in range(3)])


def test_plans_of_a_link_that_has_all_of_them_can_be_taken_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MOST_LINKS", 3)
    run = Followed(store)
    for number in range(1, 4):
        run.look(number)
    assert Stream(store, FIRST).digests() == [FIRST, *map(run.plan, (1, 2, 3))]
    store.delete("manifests/000000000003.json")
    late = hashlib.sha256(b"late").hexdigest()
    Stream(store, FIRST).lead_to(late, b"plan", [FIRST, run.plan(1), run.plan(2)])
    assert Stream(store, FIRST).digests() == [FIRST, run.plan(1), run.plan(2), late]
    assert len([name for name in store.list("plans") if name.endswith(".json")]) == 1


def test_who_reads_while_links_are_condensed_reads_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MOST_LINKS", 4)
    run = Followed(store)
    for number in range(1, 4):
        run.look(number)
    stream._links.clear()
    get = Store.get

    def overtaken(self: Store, name: str, *given: int) -> bytes:
        monkeypatch.setattr(Store, "get", get)
        for number in range(4, 6):
            run.look(number)
        return get(self, name, *given)

    monkeypatch.setattr(Store, "get", overtaken)
    assert Stream(store, FIRST).digests()[-1] == run.plan(5)


def test_links_stay_where_a_checkpoint_cannot_be_read_and_damage_is_found(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MOST_LINKS", 3)
    run = Followed(store)
    for number in range(1, 3):
        run.look(number)
    there = store.get("manifests/000000000001.json")
    store.put("manifests/000000000001.json", there[:-9])
    run.look(3)
    names = [name for name in store.list("plans") if name.endswith(".json")]
    assert names == [f"plans/{number:06d}.json" for number in (1, 2, 3)]
    run.look(4)  # by now that one is deleted
    (name,) = [name for name in store.list("plans") if name.endswith(".json")]
    for plans in ([], [run.plan(1), run.plan(4)], [FIRST, run.plan(3)], [FIRST, 4], "ab", {}):
        store.put(name, document.seal({"plan": run.plan(4), "plans": plans}))
        with pytest.raises(CorruptError, match="has no plans of this run"):
            Stream(store, FIRST).digests()
    store.delete(name)
    with pytest.raises((CorruptError, NotFoundError)):
        Run.open(store).manifest(4)
