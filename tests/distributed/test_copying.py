"""A copy of a model has its newest checkpoint, with trees that came later, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dmondrian import CheckpointError, CorruptError, ParameterError, load
from dmondrian.checkpoint.copying import copy_model, copy_pieces
from dmondrian.checkpoint.model import load_model
from dmondrian.distributed import grow
from dmondrian.store import Store, open_store
from tests.distributed.conftest import ROWS, Fit, forest


def test_a_grown_run_is_copied_whole(fit: Fit, client, adult, tmp_path) -> None:
    run = fit(estimator=forest(n_estimators=2), data=adult / "part-0.parquet")
    grow(run.run_url, 3, client=client)
    copy = copy_model(run.run_url, tmp_path / "copy")
    reported = [load_model(url)[2].state for url in (run.run_url, copy.url)]
    assert reported[0] == reported[1]
    assert len(load(copy.url).forest_.trees) == 3
    names = copy.store.list()
    assert len([name for name in names if name.startswith("manifests/")]) == 1
    assert not any(name.startswith(("lease/", "attempts/", "jobs/")) for name in names)
    assert copy_pieces(run.run_url, tmp_path / "copy")[1] == 0  # compared
    with pytest.raises(ParameterError, match="or within it"):
        copy_model(run.run_url, f"{run.run_url}/copy")


def test_an_earlier_checkpoint_is_copied(fit: Fit, tmp_path) -> None:
    run = fit(estimator=forest(n_estimators=1))
    copy = copy_model(f"{run.run_url}@2000", tmp_path / "copy")
    assert copy.manifests() == [2000]
    assert load(copy.url).forest_.total_weight == 2000.0
    with pytest.raises(ParameterError, match="is not empty"):
        copy_model(run.run_url, tmp_path / "copy")
    with pytest.raises(CheckpointError):
        copy_model(tmp_path / "none", tmp_path / "other")


def test_a_damaged_model_is_not_copied(fit: Fit, tmp_path) -> None:
    run = fit(estimator=forest(n_estimators=1))
    shard = load_model(run.run_url)[2].shards[0]
    blob = Path(run.run_url) / "blobs" / shard["digest"]
    whole = blob.read_bytes()
    blob.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    with pytest.raises(CorruptError, match=r"is damaged.*another sha256"):
        copy_model(run.run_url, tmp_path / "damaged")
    blob.unlink()
    with pytest.raises(CorruptError, match="is missing"):
        copy_model(run.run_url, tmp_path / "missing")
    assert not open_store(tmp_path / "missing").list()
    blob.write_bytes(whole)
    assert copy_model(run.run_url, tmp_path / "damaged").manifests() == [ROWS]


def test_nothing_is_made_where_there_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        copy_model(tmp_path / "none", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def stop_at(patch: pytest.MonkeyPatch, n: int, is_killed: bool) -> None:
    """Stop a copy when it has written so many objects, as a signal or a kill would."""
    left = [n]

    def counted(original: Callable[..., None]) -> Callable[..., None]:
        def put(store: Store, name: str, data: bytes) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            original(store, name, data)

        return put

    for method in ("put", "put_new"):
        patch.setattr(Store, method, counted(getattr(Store, method)))
    if is_killed:  # who is dead removes nothing
        patch.setattr(Store, "delete", lambda *_: None)


@pytest.mark.parametrize("way", ["interrupted", "killed", "resumable"])
@pytest.mark.thorough(but="killed")
def test_a_copy_that_was_stopped_anywhere_is_no_model_and_can_be_made_again(
    fit: Fit, client, adult, tmp_path, way: str
) -> None:
    run = fit(estimator=forest(n_estimators=2), data=adult / "part-0.parquet")
    grow(run.run_url, 3, client=client)
    n_objects = len(copy_model(run.run_url, tmp_path / "whole").store.list())
    for n in range(n_objects):
        folder = tmp_path / f"copy-{n}"
        with pytest.MonkeyPatch.context() as patch:
            stop_at(patch, n, way == "killed")
            with pytest.raises(KeyboardInterrupt):
                copy_model(run.run_url, folder, resumable=way == "resumable")
        assert len(open_store(folder).list()) == (0 if way == "interrupted" else n)
        with pytest.raises(CheckpointError):
            load_model(folder)
        copy_model(run.run_url, folder)
        reported = [load_model(url)[2].state for url in (run.run_url, folder)]
        assert reported[0] == reported[1]
        assert len(load(folder).forest_.trees) == 3


def test_what_is_not_of_the_copy_is_left_alone(fit: Fit, tmp_path) -> None:
    run = fit(estimator=forest(n_estimators=1))
    for name in ("mine.txt", "run.json"):
        mine = tmp_path / name[0] / name
        mine.parent.mkdir()
        mine.write_text("mine")
        with pytest.raises(ParameterError, match=f"is not empty, it holds {name}"):
            copy_model(run.run_url, mine.parent)
        assert mine.read_text() == "mine"
        assert open_store(mine.parent).list() == [name]
