"""Pruning keeps what anybody may still need, and names what it deletes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dmondrian.checkpoint import Lease, Run, lease
from dmondrian.checkpoint.parts import model_parts, part_url
from dmondrian.checkpoint.pruning import prune, prune_while_training
from dmondrian.errors import CorruptError, FencedError, ParameterError
from tests.checkpoint.run_folders import ASKED, blob_of, commit, file_of


def names(run: Run) -> set[str]:
    return {name for name in run.store.list() if not name.startswith("lease/")}


def test_the_newest_stay_and_a_dry_run_deletes_nothing(run: Run) -> None:
    positions, before = run.manifests(), names(run)
    assert positions == [10, 20, 30]
    (reported,) = prune(run, keep=2, dry_run=True)
    assert names(run) == before
    assert not run.store.list("lease")
    assert reported.positions == [10]
    assert reported.kept == [20, 30]
    assert len(reported.blobs) == 2
    assert reported.n_bytes == sum(len(run.store.get(name)) for name in reported.blobs)
    assert prune(run, keep=2) == [reported]
    assert names(run) == before - {*reported.blobs, "manifests/000000000010.json"}
    for position in (20, 30):
        run.manifest(position, verify=True)
    assert prune(run, keep=2)[0].positions == []


def test_a_blob_that_a_later_manifest_names_too_stays(run: Run) -> None:
    shards = run.manifest(10).shards
    run.commit(40, shards, parent=30)
    prune(run, keep=1)
    assert run.manifests() == [40]
    run.manifest(40, verify=True)
    assert len(run.store.list("blobs")) == 2


def test_blobs_that_no_checkpoint_ever_named_go(run: Run) -> None:
    digest = run.put_blob(b"of an attempt that was killed")
    (reported,) = prune(run, keep=3)
    assert reported.blobs == [f"blobs/{digest}"]


def test_a_damaged_manifest_stops_it_before_anything_is_gone(run: Run) -> None:
    file_of(run, 20).write_bytes(b"{}")
    before = names(run)
    with pytest.raises(CorruptError, match="nothing was deleted"):
        prune(run, keep=2)
    assert names(run) == before
    prune(run, keep=1)  # the damaged one is among the old
    assert run.manifests() == [30]
    assert blob_of(run, 30).exists()


def test_a_run_that_is_worked_on_is_left_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.05)
    before = names(run)
    with Lease.take(run.store), pytest.raises(FencedError, match="worked on"):
        prune(run, keep=1)
    assert names(run) == before


def test_what_is_committed_while_it_waits_stays(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Lease.take

    def take_late(store: object) -> Lease:
        commit(run, 40, 30, final=True)  # the holder's last one, just before it ends
        return take(store)  # type: ignore[arg-type]  # a store

    monkeypatch.setattr(Lease, "take", take_late)
    (reported,) = prune(run, keep=1)
    assert reported.kept == run.manifests() == [40]
    run.manifest(40, verify=True)


def test_a_part_that_lags_behind_keeps_what_the_model_needs(run: Run) -> None:
    part = Run.create(part_url(run, 3, 4), {**ASKED, "shards": [[3, 4], [4, 5]]})
    commit(part, 10, final=True)  # it counts since then
    commit(part, 15, 10)
    commit(part, 20, 15)
    commit(part, 25, 20)
    reported = prune(run, keep=1)
    assert [one.kept for one in reported] == [[20, 30], [10, 20, 25]]
    assert [manifest.position for _, manifest in model_parts(run)] == [20, 20]


def test_parts_keep_the_positions_they_share_with_the_run(run: Run) -> None:
    part = Run.create(part_url(run, 3, 4), {**ASKED, "shards": [[3, 4], [4, 5]]})
    commit(part, 10)
    commit(part, 20, 10, final=True)  # it lags behind
    reported = prune(run, keep=1)
    assert [one.kept for one in reported] == [[20, 30], [20]]
    assert run.manifests() == [20, 30]
    assert part.manifests() == [20]


@pytest.mark.parametrize("keep", [0, -1, True, "3", None])
def test_keeping_nothing_is_refused(run: Run, keep: object, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="keep"):
        prune(run, keep=keep)  # type: ignore[arg-type]  # that is the point


def test_a_run_in_work_deletes_what_is_older_and_nothing_of_the_next_checkpoint(run: Run) -> None:
    before = names(run)
    coming = run.put_blob(b"of the next checkpoint")  # which no manifest names yet
    first = run.manifest(10).shards
    assert prune_while_training(run, 30, 3, []) == []
    assert names(run) == {*before, f"blobs/{coming}"}
    needed = first[0]["digest"]
    assert prune_while_training(run, 30, 2, [needed]) == [10]
    gone = {f"blobs/{shard['digest']}" for shard in first.values()} - {f"blobs/{needed}"}
    assert names(run) == {*before, f"blobs/{coming}"} - gone - {"manifests/000000000010.json"}
    for position in (20, 30):
        run.manifest(position, verify=True)


def test_a_later_checkpoint_that_was_passed_over_does_not_count(run: Run) -> None:
    assert prune_while_training(run, 20, 2, []) == []
    assert run.manifests() == [10, 20, 30]
    commit(run, 25, 20)
    assert prune_while_training(run, 25, 2, []) == [10]
    assert run.manifests() == [20, 25, 30]


def test_a_run_in_work_deletes_nothing_if_it_cannot_know_what_is_needed(run: Run) -> None:
    file_of(run, 30).write_bytes(b"{}")
    before = names(run)
    commit(run, 40, 20)
    assert prune_while_training(run, 40, 2, []) == []
    assert before < names(run)
    commit(run, 50, 40)
    assert prune_while_training(run, 50, 2, []) == [10, 20]  # the damaged one is old, and stays
    assert run.manifests() == [30, 40, 50]
