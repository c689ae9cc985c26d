"""A copy of a model has its newest checkpoint, with trees that came later, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dmondrian import CheckpointError, CorruptError, ParameterError, load
from dmondrian.checkpoint.copying import copy_model
from dmondrian.checkpoint.model import load_model
from dmondrian.distributed import grow
from tests.distributed.conftest import Fit, forest


def test_a_grown_run_is_copied_whole(fit: Fit, client, adult, tmp_path) -> None:
    run = fit(estimator=forest(n_estimators=2), data=adult / "part-0.parquet")
    grow(run.run_url, 3, client=client)
    copy = copy_model(run.run_url, tmp_path / "copy")
    told = [load_model(url)[2].state for url in (run.run_url, copy.url)]
    assert told[0] == told[1]
    assert len(load(copy.url).forest_.trees) == 3
    names = copy.store.list()
    assert len([name for name in names if name.startswith("manifests/")]) == 1
    assert not any(name.startswith(("lease/", "attempts/", "jobs/")) for name in names)
    with pytest.raises(ParameterError, match="is not empty"):
        copy_model(run.run_url, tmp_path / "copy")


def test_an_earlier_checkpoint_is_copied(fit: Fit, tmp_path) -> None:
    run = fit(estimator=forest(n_estimators=1))
    copy = copy_model(f"{run.run_url}@2000", tmp_path / "copy")
    assert copy.manifests() == [2000]
    assert load(copy.url).forest_.total_weight == 2000.0
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
