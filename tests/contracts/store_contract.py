"""What every store promises. Subclass it and give a fixture `store`."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from dmondrian.errors import CorruptError, FencedError, NotFoundError, StoreError
from dmondrian.store import ExistsError, Store, check_writable, open_store


class StoreContract:
    def test_what_was_put_is_read(self, store: Store) -> None:
        store.put("a/b.bin", bytes(range(256)))
        assert store.get("a/b.bin") == bytes(range(256))
        assert store.size("a/b.bin") == 256
        assert store.exists("a/b.bin")

    def test_a_range_is_read_from_start_to_stop(self, store: Store) -> None:
        store.put("a/b.bin", bytes(range(256)))
        assert store.get_range("a/b.bin", 0, 4) == bytes([0, 1, 2, 3])
        assert store.get_range("a/b.bin", 250, 256) == bytes(range(250, 256))
        with pytest.raises(NotFoundError, match=r"blobs/nothing"):
            store.get_range("blobs/nothing", 0, 1)

    def test_empty_object(self, store: Store) -> None:
        store.put_new("empty", b"")
        assert store.get("empty") == b""
        assert store.exists("empty")

    def test_put_replaces(self, store: Store) -> None:
        store.put("x", b"long old content")
        store.put("x", b"new")
        assert store.get("x") == b"new"

    def test_missing_object_is_named(self, store: Store) -> None:
        with pytest.raises(NotFoundError, match=r"blobs/nothing"):
            store.get("blobs/nothing")
        assert not store.exists("blobs/nothing")
        assert store.size("blobs/nothing") is None

    def test_put_new_leaves_the_first(self, store: Store) -> None:
        store.put_new("m/1", b"first")
        with pytest.raises(ExistsError, match="m/1"):
            store.put_new("m/1", b"second")
        assert store.get("m/1") == b"first"

    def test_one_of_many_writers_wins(self, store: Store) -> None:
        def write(number: int) -> bool:
            try:
                store.put_new("race", b"%d" % number)
            except ExistsError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(write, range(16)))
        assert sum(won) == 1
        assert store.get("race") == b"%d" % won.index(True)

    def test_put_same_accepts_equal_bytes_only(self, store: Store) -> None:
        assert store.put_same("c", b"state") is True
        assert store.put_same("c", b"state") is False
        with pytest.raises(FencedError, match="another writer"):
            store.put_same("c", b"other")
        assert store.get("c") == b"state"

    def test_list_is_sorted_and_below_the_folder(self, store: Store) -> None:
        for name in ("m/2", "m/10", "m/1", "mm/3", "z"):
            store.put(name, b"")
        assert store.list("m") == ["m/1", "m/10", "m/2"]
        assert store.list("nothing") == []
        assert store.list() == ["m/1", "m/10", "m/2", "mm/3", "z"]

    def test_names_are_of_one_level(self, store: Store) -> None:
        assert store.names() == ()
        for name in ("b", "m/1", "m/n/2", "a.parquet"):
            store.put(name, b"")
        assert store.names() == ("a.parquet", "b", "m/")

    def test_tags_change_with_the_bytes(self, store: Store) -> None:
        for name in ("m/1", "m/2"):
            store.put(name, b"before")
        before = store.tags("m")
        assert list(before) == ["m/1", "m/2"]
        assert store.tags("m") == before
        store.put("m/1", b"behind")
        after = store.tags("m")
        assert after["m/2"] == before["m/2"]
        assert after["m/1"] != before["m/1"] or not after["m/1"]
        assert store.tags("nothing") == {}

    def test_get_refuses_more_than_the_limit(self, store: Store) -> None:
        store.put("big", b"x" * 100)
        assert len(store.get("big", 100)) == 100
        with pytest.raises(CorruptError, match=r"100 bytes, at most 99"):
            store.get("big", 99)

    def test_delete(self, store: Store) -> None:
        store.put("gone", b"1")
        store.delete("gone")
        store.delete("gone")
        assert not store.exists("gone")

    def test_delete_many(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dmondrian.store.store.DELETE_BATCH", 4)
        names = [f"blobs/{n}" for n in range(10)]
        for name in (*names, "kept"):
            store.put(name, b"1")
        store.delete(["blobs/missing", *names[:7], "blobs/missing too"])
        assert store.list() == [*names[7:], "kept"]
        store.delete(iter(names))
        store.delete([])
        assert store.list() == ["kept"]

    def test_delete_refuses_names_outside_before_it_begins(self, store: Store) -> None:
        store.put("here", b"1")
        for name in ("../outside", "a/../../outside", "/outside", "a//b", "", ".", "a/"):
            with pytest.raises(StoreError, match="Nothing was deleted"):
                store.delete(["here", name])
        assert store.list() == ["here"]

    def test_probe_passes_and_leaves_nothing(self, store: Store) -> None:
        store.probe()
        check_writable(store.url)
        assert store.list() == []

    def test_names_cannot_leave_the_store(self, store: Store) -> None:
        with pytest.raises(StoreError):
            store.put("a/../../outside", b"1")
        with pytest.raises(StoreError):
            store.get("../outside")

    def test_address_and_pickle_open_the_same_objects(self, store: Store) -> None:
        store.put("here", b"1")
        assert open_store(store.url).get("here") == b"1"
        assert pickle.loads(pickle.dumps(store)).get("here") == b"1"
