"""States as differences: what is read is what was written, whatever comes between.

`stored` beside this file is a run with differences, and the whole state of its last checkpoint, as
the first version that has them wrote both::

    python -m tests.checkpoint.test_deltas  # writes it
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmondrian.checkpoint import Manifest, Run, deltas
from dmondrian.checkpoint.codec import NODE, Since, decode_blob, decode_forest, encode_forest
from dmondrian.checkpoint.deltas import Base, are_same_trees, encode_state, read_state
from dmondrian.checkpoint.opening import DELTA_FORMAT, read_run
from dmondrian.checkpoint.pruning import position_apart, prune, prune_while_training
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CorruptError, FencedError
from dmondrian.forest import forest as forest_module
from dmondrian.forest.forest import Forest
from dmondrian.tree.node_marks import MARK_BYTES
from tests.checkpoint.run_folders import ASKED
from tests.checkpoint.test_damage import DAMAGES, flip
from tests.killed import KilledError, kill_at

D, N = 6, 900
Change = Callable[[dict[str, Any], Since], Since]
KINDS: dict[str, dict[str, Any]] = {
    "classifier": {"algorithm": "amf-classifier", "n_classes": 2},
    "leaves of several rows": {"algorithm": "amf-classifier", "n_classes": 2, "max_nodes": 301},
    "regressor": {"algorithm": "amf-regressor", "n_classes": 0},
    "cells without rows": {"algorithm": "amf-classifier", "n_classes": 2, "domain": "cube"},
    "plain": {"algorithm": "mondrian-forest-classifier", "n_classes": 2},
}


@pytest.fixture(autouse=True)
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forest_module, "LEAST_SPARSE", 0)


def rows(seed: int = 0, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Rows of numbers, of steps, of which one becomes finer later, and of two values."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, D)).astype(np.float32)
    X[:, 2:4] = np.round(X[:, 2:4] * 16) / 32
    X[n // 2 :, 3] += 1.0 / 64  # boxes are written anew
    X[:, 4:] = X[:, 4:] > 0.5
    return X, ((X[:, 0] + X[:, 4] > 1.0) ^ (rng.random(n) < 0.3)).astype(np.float64)


def empty(kind: str = "classifier", seed: int = 1) -> Forest:
    return Forest(ForestParameters(n_features=D, seed=seed, **KINDS[kind]), range(3))


class Saver:
    """Saves states of a forest as a worker does."""

    def __init__(self, forest: Forest, put: Callable[[bytes], str]) -> None:
        self.forest, self.put = forest, put
        self.base: Base | None = None

    def save(self) -> dict[str, Any]:
        """Return what a manifest has of the state."""
        encoded = encode_state(self.forest, self.base)
        digest = self.put(encoded.data)
        entry: dict[str, Any] = {"digest": digest, "bytes": len(encoded.data)}
        if encoded.base is not None:
            entry["base"] = dict(zip(("digest", "bytes"), encoded.base.blob, strict=True))
        self.base = encoded.base_after(digest)
        return entry

    def restore(self, read: deltas.Read, entry: dict[str, Any]) -> None:
        state = read_state(read, entry["digest"], entry["bytes"], name="a state")
        self.forest = Forest.from_state(state.header, state.trees)
        self.base = state.base(self.forest)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", {**ASKED, "shards": [[0, 3]]})


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_each_state_is_read_as_it_was_whatever_comes_between(
    kind: str, data: st.DataObject
) -> None:
    X, y = rows()
    weights = np.where(np.arange(N) % 7 == 0, 0.25, 1.0)
    blobs: dict[str, bytes] = {}

    def put(blob: bytes) -> str:
        digest = f"{len(blobs):064x}"
        blobs[digest] = blob
        return digest

    def read(digest: str, n_bytes: int | None) -> bytes:
        assert n_bytes in (None, len(blobs[digest]))
        return blobs[digest]

    saver, straight = Saver(empty(kind), put), empty(kind)
    saved: list[tuple[dict[str, Any], bytes, int]] = []
    at = 0
    while at < N:
        stop = min(N, at + data.draw(st.sampled_from([500, 300, 60, 10, 1])))
        for forest in (saver.forest, straight):
            forest.update(X[at:stop], y[at:stop], weights[at:stop])
        at = stop
        entry, whole = saver.save(), encode_forest(*straight.stored())
        assert encode_forest(*saver.forest.stored()) == whole
        saved.append((entry, whole, at))
        if data.draw(st.booleans()):  # the worker is lost: another one restores its trees
            before, _, learned = saved[-data.draw(st.integers(1, min(3, len(saved))))]
            saver.restore(read, before)
            saver.forest.update(X[learned:at], y[learned:at], weights[learned:at])
    for entry, whole, _ in saved:
        state = read_state(read, entry["digest"], entry["bytes"], name="a state")
        state = state._replace(trees=list(state.trees))
        header, trees = decode_forest(whole)
        assert state.header == header
        assert are_same_trees(state.trees, trees)
        again = Forest.from_state(state.header, state.trees)
        assert encode_forest(*again.stored()) == whole


def grown(run: Run, first: int = 700, seed: int = 1) -> Saver:
    """Return what saves a forest that has learned the first rows."""
    X, y = rows()
    saver = Saver(empty(seed=seed), run.put_blob)
    saver.forest.update(X[:first], y[:first], None)
    return saver


def commit(run: Run, saver: Saver, position: int, parent: int | None, n: int = 2) -> Manifest:
    """Learn some rows and commit them."""
    X, y = rows(seed=position)
    saver.forest.update(X[:n], y[:n], None)
    return run.commit(position, {0: saver.save()}, parent=parent)


def test_states_are_whole_once_enough_differ_from_one(run: Run) -> None:
    saver = grown(run)
    entries = [commit(run, saver, 10 + i, None, n=1).shards[0] for i in range(deltas.MOST + 2)]
    assert ["base" in entry for entry in entries] == [False, *[True] * deltas.MOST, False]
    assert {entry["base"]["digest"] for entry in entries[1:-1]} == {entries[0]["digest"]}
    assert max(entry["bytes"] for entry in entries[1:-1]) < entries[0]["bytes"] / 2
    assert saver.base is not None
    nodes = sum(int(tree.head_i[1]) for tree in saver.forest.trees)
    assert sum(marks.nbytes for marks in saver.base.marks) == MARK_BYTES * nodes


def test_a_state_that_changes_much_is_whole(run: Run) -> None:
    saver = grown(run, first=100)
    X, y = rows(3)
    assert "base" not in saver.save()
    saver.forest.update(X, y, None)
    assert "base" not in saver.save()


def test_last_states_and_those_of_small_trees_are_whole(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = grown(run)
    saver.save()
    assert encode_state(saver.forest, saver.base).base is not None
    whole = encode_forest(*saver.forest.stored())
    last = encode_state(saver.forest, saver.base, is_last=True)
    assert (last.data, last.base, last.marks) == (whole, None, None)
    monkeypatch.setattr(forest_module, "LEAST_SPARSE", 10**6)
    small = encode_state(saver.forest, saver.base)
    assert (small.base, small.marks) == (None, None)


def test_a_difference_alone_is_no_forest(run: Run) -> None:
    saver = grown(run)
    commit(run, saver, 10, None)
    entry = commit(run, saver, 20, 10).shards[0]
    data = run.get_blob(entry["digest"])
    with pytest.raises(CorruptError, match="only what changed since the state blobs/"):
        decode_forest(data)


def altered(run: Run, entry: dict[str, Any], change: Change) -> str:
    """Write a difference with other nodes or another base; return its digest."""
    found = decode_blob(run.get_blob(entry["digest"]), name="it")
    found = found._replace(trees=list(found.trees))
    assert found.since is not None
    since = change(found.trees[0], found.since)
    counts = [len(tree[NODE]) for tree in found.trees]
    return run.put_blob(encode_forest(found.header, found.trees, counts, since))


def _swap(tree: dict[str, Any], since: Since) -> Since:
    tree[NODE] = tree[NODE][::-1].copy()
    return since


def _beyond(tree: dict[str, Any], since: Since) -> Since:
    tree[NODE] = tree[NODE] + 10**6
    return since


def _negative(tree: dict[str, Any], since: Since) -> Since:
    tree[NODE] = tree[NODE] - 10**6
    return since


def _lacks_new(tree: dict[str, Any], since: Since) -> Since:
    return since._replace(nodes=[since.nodes[0] + 50, *since.nodes[1:]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_swap, "not in order"),
        (_beyond, "not in order"),
        (_negative, "not in order"),
        (_lacks_new, "not in order, or lack some"),
    ],
)
def test_nodes_that_do_not_fit_are_refused(run: Run, change: Any, message: str) -> None:
    saver = grown(run)
    commit(run, saver, 10, None)
    entry = commit(run, saver, 20, 10).shards[0]
    digest = altered(run, entry, change)
    with pytest.raises(CorruptError, match=message):
        read_state(run.get_blob, digest, name="it")


def test_fields_of_another_type_are_refused(run: Run) -> None:
    saver = grown(run)
    commit(run, saver, 10, None)
    entry = commit(run, saver, 20, 10).shards[0]
    found = decode_blob(run.get_blob(entry["digest"]), name="it")
    found = found._replace(trees=list(found.trees))
    for tree in found.trees:
        tree["time"] = tree["time"].astype(np.float32)
    counts = [len(tree[NODE]) for tree in found.trees]
    digest = run.put_blob(encode_forest(found.header, found.trees, counts, found.since))
    with pytest.raises(CorruptError, match="fields of the two states differ"):
        read_state(run.get_blob, digest, name="it")


def test_a_difference_from_a_difference_is_refused(run: Run) -> None:
    saver = grown(run)
    commit(run, saver, 10, None)
    first = commit(run, saver, 20, 10).shards[0]
    second = commit(run, saver, 30, 20).shards[0]
    digest = altered(
        run, second, lambda _, since: since._replace(digest=first["digest"], n_bytes=first["bytes"])
    )
    with pytest.raises(CorruptError, match="no whole state"):
        read_state(run.get_blob, digest, name="it")


@pytest.mark.parametrize(
    "wrong",
    [{"more": 1}, {"digest": "x"}, {"n_bytes": -1}, {"nodes": [1, 2, 3]}, {"nodes": 3},
     {"n_earlier": 1.5}, {"n_written": True}, {"n_bytes": 2**70}],
)  # fmt: skip
def test_a_declaration_that_is_none_is_refused(run: Run, wrong: Any) -> None:
    saver = grown(run)
    commit(run, saver, 10, None)
    entry = commit(run, saver, 20, 10).shards[0]
    found = decode_blob(run.get_blob(entry["digest"]), name="it")
    found = found._replace(trees=list(found.trees))
    assert found.since is not None
    declared = {**found.since.to_json(), **wrong}
    counts = [len(tree[NODE]) for tree in found.trees]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Since, "to_json", lambda _: declared)
        data = encode_forest(found.header, found.trees, counts, found.since)
    with pytest.raises(CorruptError, match=r"since when|impossible state|fewer nodes"):
        decode_blob(data, name="it")


def test_no_more_memory_is_used_than_is_there(run: Run) -> None:
    saver = grown(run)
    commit(run, saver, 10, None)
    entry = commit(run, saver, 20, 10).shards[0]
    (header, trees) = decode_forest(encode_forest(*saver.forest.stored()))
    n_bytes = sum(array.nbytes for tree in trees for array in tree.values())
    assert header["trees"]
    read_state(run.get_blob, entry["digest"], name="it", max_bytes=2 * n_bytes)
    for limit in (n_bytes, n_bytes // 2, 1000):
        with pytest.raises(CorruptError, match="bytes that may be used"):
            read_state(run.get_blob, entry["digest"], name="it", max_bytes=limit)


# Runs


@pytest.fixture
def saved(run: Run) -> tuple[Run, Saver]:
    """A run whose checkpoints at 30, 40 and 50 differ from 20, and 10 does not."""
    first = grown(run)
    commit(run, first, 10, None)
    first.base = None
    commit(run, first, 20, 10)
    for position in (30, 40, 50):
        commit(run, first, position, position - 10)
    bases = [run.manifest(position).bases for position in run.manifests()]
    whole = run.manifest(20).shards[0]["digest"]
    assert bases == [set(), set(), {whole}, {whole}, {whole}]
    return run, first


def test_earlier_versions_refuse_such_runs(saved: tuple[Run, Saver], run: Run) -> None:
    assert read_run(run.store)["format"] == DELTA_FORMAT
    formats = [json.loads(run.store.get(name))["format"] for name in run.store.list("manifests")]
    assert formats == [1, 1, 2, 2, 2]


def test_runs_without_differences_are_as_before(run: Run) -> None:
    commit(run, grown(run), 10, None)
    assert read_run(run.store)["format"] == 1
    assert json.loads(run.store.get("manifests/000000000010.json"))["format"] == 1


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["own", "base"])
def test_damage_is_found_and_an_earlier_checkpoint_taken(
    saved: tuple[Run, Saver], damage: Any, which: str
) -> None:
    run, _ = saved
    shard = run.manifest(50).shards[0]
    broken = shard["base"]["digest"] if which == "base" else shard["digest"]
    damage(Path(run.url) / "blobs" / broken)
    with pytest.warns(UserWarning, match="passed over"):
        latest = run.latest()
    assert latest is not None
    assert latest.position == (10 if which == "base" else 40)
    with pytest.raises(CorruptError, match=broken):
        read_state(run.get_blob, shard["digest"], shard["bytes"], name="it")


def test_what_is_kept_can_always_be_read(saved: tuple[Run, Saver]) -> None:
    run, _ = saved
    assert position_apart(run) == 10
    assert position_apart(run, 20) == 10
    assert position_apart(run, 10) is None
    before = set(run.store.list("blobs"))
    (pruned,) = prune(run, keep=2)
    assert pruned.kept == run.manifests() == [10, 40, 50]
    for position in run.manifests():
        run.manifest(position, verify=True)
    needed = {f"blobs/{d}" for p in run.manifests() for d in run.manifest(p).blobs}
    assert set(run.store.list("blobs")) == needed < before
    flip(Path(run.url) / "blobs" / next(iter(run.manifest(50).bases)))
    with pytest.warns(UserWarning, match="passed over"):
        assert run.latest().position == 10  # type: ignore[union-attr]  # there is one
    prune(run, keep=1)
    assert run.manifests() == [50]


def test_a_run_in_work_keeps_what_its_newest_checkpoints_need(saved: tuple[Run, Saver]) -> None:
    run, saver = saved
    assert prune_while_training(run, 50, 2, []) == [20, 30]
    assert run.manifests() == [10, 40, 50]
    for position in run.manifests():
        run.manifest(position, verify=True)
    saver.base = None
    commit(run, saver, 60, 50)  # whole
    assert prune_while_training(run, 60, 2, []) == [10, 40]
    base = next(iter(run.manifest(50).bases))
    assert run.store.exists(f"blobs/{base}")
    commit(run, saver, 70, 60)
    assert prune_while_training(run, 70, 2, []) == []  # 50 does without what 60 and 70 need
    commit(run, saver, 80, 70)
    saver.base = None
    commit(run, saver, 90, 80)
    assert prune_while_training(run, 90, 2, [base]) == [50, 60, 70]
    assert run.store.exists(f"blobs/{base}")  # as was asked
    for position in run.manifests():
        run.manifest(position, verify=True)


@pytest.mark.parametrize("is_training", [True, False])
def test_whoever_is_killed_while_old_checkpoints_go_leaves_whole_ones(
    saved: tuple[Run, Saver], is_training: bool
) -> None:
    run, _ = saved
    n, is_over = 0, False
    while not is_over:
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, n)
            try:
                if is_training:
                    prune_while_training(run, 50, 2, [])
                else:
                    prune(run, 2)
                is_over = True
            except KilledError:
                n += 1
        if not is_training:  # the lease of who was killed
            run.store.delete(run.store.list("lease"))
        for position in run.manifests():
            run.manifest(position, verify=True)
        assert {10, 40, 50} <= set(run.manifests())
    assert n >= 1
    assert run.manifests() == [10, 40, 50]


def test_the_same_state_that_was_reached_by_another_way_stands(saved: tuple[Run, Saver]) -> None:
    run, saver = saved
    there = run.store.get("manifests/000000000050.json")
    saver.base = None
    whole = saver.save()
    assert "base" not in whole
    assert run.commit(50, {0: whole}, parent=10) == run.manifest(50)
    assert run.store.get("manifests/000000000050.json") == there


def test_another_state_at_the_same_position_is_fenced(saved: tuple[Run, Saver]) -> None:
    run, saver = saved
    X, y = rows(77)
    saver.forest.update(X[:1], y[:1], None)
    with pytest.raises(FencedError, match="another state"):
        run.commit(50, {0: saver.save()}, parent=40)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_needs_what_is_damaged_is_written_again(
    saved: tuple[Run, Saver], damage: Any
) -> None:
    run, saver = saved
    damage(Path(run.url) / "blobs" / next(iter(run.manifest(50).bases)))
    saver.base = None
    whole = saver.save()
    with pytest.warns(UserWarning, match="needs what is damaged and is written again"):
        assert run.commit(50, {0: whole}, parent=10).shards[0] == whole
    assert run.latest().position == 50  # type: ignore[union-attr]  # there is one


def test_a_checkpoint_that_can_be_read_is_not_replaced_by_one_that_cannot(
    saved: tuple[Run, Saver],
) -> None:
    run, saver = saved
    saver.base = None
    whole = saver.save()
    (Path(run.url) / "manifests/000000000050.json").unlink()
    run.commit(50, {0: whole}, parent=10)
    assert saver.base is not None
    saver.base = replace(saver.base, digest="0" * 64)  # a blob that is not there
    difference = saver.save()
    assert "base" in difference
    with pytest.raises(CorruptError, match="missing"):
        run.commit(50, {0: difference}, parent=10)
    assert run.manifest(50, verify=True).shards[0] == whole


def test_who_has_no_memory_to_compare_replaces_nothing(
    saved: tuple[Run, Saver], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, saver = saved
    there = run.store.get("manifests/000000000050.json")
    saver.base = None
    whole = saver.save()
    monkeypatch.setattr(deltas, "usable_bytes", lambda: 20_000)
    with pytest.raises(CorruptError, match="may be used"):
        run.commit(50, {0: whole}, parent=10)
    assert run.store.get("manifests/000000000050.json") == there


def test_checkpoints_of_one_blob_are_not_apart(run: Run) -> None:
    saver = grown(run)
    commit(run, saver, 10, None)
    saver.base = None
    commit(run, saver, 20, 10)
    run.commit(30, run.manifest(20).shards, parent=20)  # rows that taught nothing
    assert position_apart(run) == 10


def test_what_needs_the_memory_of_a_whole_state_is_enough_for_a_difference(run: Run) -> None:
    saver = grown(run)
    saver.save()
    X, y = rows(5)
    saver.forest.update(X[:3], y[:3], None)
    entry = saver.save()
    assert "base" in entry
    whole = run.put_blob(encode_forest(*saver.forest.stored()))

    def is_enough(digest: str, limit: int) -> bool:
        try:
            read_state(run.get_blob, digest, name="it", max_bytes=limit)
        except CorruptError:
            return False
        return True

    low, high = 0, 1 << 24
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(whole, middle) else (middle, high)
    assert is_enough(entry["digest"], high)
    assert not is_enough(entry["digest"], high // 2)


def test_a_state_of_an_earlier_format_is_no_base(run: Run) -> None:
    forest = grown(run).forest
    header, trees = forest.state()
    assert header["format"] != forest.stored()[0]["format"]
    saver = Saver(forest, run.put_blob)
    old = run.put_blob(encode_forest(header, trees))
    saver.restore(run.get_blob, {"digest": old, "bytes": None})
    X, y = rows(5)
    saver.forest.update(X[:3], y[:3], None)
    assert "base" not in saver.save()


def test_a_difference_from_boxes_of_another_format_is_refused(run: Run) -> None:
    saver = grown(run)
    saver.save()
    assert saver.base is not None
    old = encode_forest(*saver.forest.state())
    saver.base = replace(saver.base, digest=run.put_blob(old), n_bytes=len(old))
    X, y = rows(5)
    saver.forest.update(X[:3], y[:3], None)
    entry = saver.save()
    assert "base" in entry
    with pytest.raises(CorruptError, match="no whole state"):
        read_state(run.get_blob, entry["digest"], name="it")


def test_boxes_that_are_written_another_way_make_a_state_whole(run: Run) -> None:
    """Steps of a box and its node may stay the same, though the unit of the steps is another."""
    forest = Forest(ForestParameters(n_features=1, seed=1, **KINDS["classifier"]), range(1))
    saver = Saver(forest, run.put_blob)
    X = np.array([[0.0], [2.0**23]], np.float32)
    forest.update(X, np.zeros(2), np.full(2, 2.0**60))
    saver.save()
    forest.update(16 * X, np.zeros(2), np.ones(2))
    entry = saver.save()
    state = read_state(run.get_blob, entry["digest"], name="it")
    trees = decode_forest(encode_forest(*forest.stored()))[1]
    assert are_same_trees(state.trees, trees)


@pytest.mark.parametrize("n", range(4))
def test_whoever_is_killed_while_saving_leaves_the_checkpoint_before(run: Run, n: int) -> None:
    X, y = rows(5)
    saver = grown(run)
    commit(run, saver, 10, None)
    saver.forest.update(X[:2], y[:2], None)
    base, is_killed = saver.base, False
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, n)
        try:
            run.commit(20, {0: saver.save()}, parent=10)
        except KilledError:
            is_killed = True
    assert is_killed == (n < 3)  # before blob, run.json and manifest
    assert run.latest().position == (10 if is_killed else 20)  # type: ignore[union-attr]  # one of them
    saver.base = base
    assert run.commit(20, {0: saver.save()}, parent=10) == run.latest()


STORED = Path(__file__).parent / "stored"


def write_stored(folder: Path) -> None:
    """Write a run of two checkpoints, the second one a difference, and its state as a whole."""
    run = Run.create(folder / "run", {**ASKED, "shards": [[0, 3]]})
    saver = grown(run, first=120)
    commit(run, saver, 10, None)
    assert commit(run, saver, 20, 10).bases
    (folder / "whole.arrow").write_bytes(encode_forest(*saver.forest.stored()))


def test_a_run_that_was_stored_by_the_first_version_with_differences_is_read() -> None:
    run = Run.open(STORED / "run")
    latest = run.latest()
    assert latest is not None
    assert latest.position == 20
    shard = latest.shards[0]
    assert {shard["base"]["digest"]} == latest.bases
    state = read_state(run.get_blob, shard["digest"], shard["bytes"], name="it")
    state = state._replace(trees=list(state.trees))
    header, trees = decode_forest((STORED / "whole.arrow").read_bytes())
    assert state.header == header
    assert are_same_trees(state.trees, trees)
    X, y = rows(3)
    forests = [Forest.from_state(*one) for one in ((state.header, state.trees), (header, trees))]
    for forest in forests:
        forest.update(X[:50], y[:50], None)
    assert encode_forest(*forests[0].stored()) == encode_forest(*forests[1].stored())


if __name__ == "__main__":
    forest_module.LEAST_SPARSE = 0
    write_stored(STORED)
