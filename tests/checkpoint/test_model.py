"""Saved models: a forest that was saved is the forest that is loaded, and goes on as itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmondrian.checkpoint import (
    Run,
    decode_forest,
    encode_forest,
    load_model,
    save_model,
    stored_trees,
)
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CheckpointError, CorruptError
from dmondrian.forest.forest import Forest

MODEL = {"algorithm": "amf-classifier", "classes": ["no", "yes"], "feature_names": None}


def rows(n: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    X = rng.random((n, 3)).astype(np.float32)
    return X, (X[:, 0] > 0.5).astype(np.float64)


def forest(n: int, trees: range = range(3), algorithm: str = "amf-classifier") -> Forest:
    n_classes = 2 if algorithm == "amf-classifier" else 0
    made = Forest(ForestParameters(algorithm, 3, n_classes, 7), trees)
    if n:
        made.update(*rows(n))
    return made


def state(of: Forest) -> bytes:
    return encode_forest(*of.state())


@pytest.mark.parametrize("algorithm", ["amf-classifier", "amf-regressor"])
@pytest.mark.parametrize("n", [0, 1, 200])
def test_loaded_is_saved(tmp_path: Path, algorithm: str, n: int) -> None:
    saved = forest(n, algorithm=algorithm)
    save_model(tmp_path / "m", saved, {**MODEL, "n_seen": n})
    loaded, model_json, manifest = load_model(tmp_path / "m")
    assert state(loaded) == state(saved)
    assert {k: model_json[k] for k in MODEL} == MODEL
    assert model_json["n_seen"] == manifest.position == n
    assert manifest.final


def test_loaded_goes_on_as_if_never_saved(tmp_path: Path) -> None:
    save_model(tmp_path / "m", forest(100), {**MODEL, "n_seen": 100})
    loaded, _, _ = load_model(tmp_path / "m")
    X, y = rows(300)
    loaded.update(X[100:], y[100:])
    whole = forest(0)
    whole.update(X, y)
    assert state(loaded) == state(whole)


def test_bytes_in_memory_are_enough_for_a_copy() -> None:
    first = forest(50)
    assert state(Forest.from_state(*decode_forest(state(first)))) == state(first)


def sharded(folder: Path, n: int, ranges: list[range]) -> None:
    content = {**MODEL, "shards": [[one.start, one.stop] for one in ranges], "plan": None}
    run = Run.create(folder, content)
    shards = {}
    for number, trees in reversed(list(enumerate(ranges))):
        data = state(forest(n, trees))
        shards[number] = {"digest": run.put_blob(data), "bytes": len(data)}
    run.commit(n, shards)


def test_shards_are_joined_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    sharded(tmp_path / "r", 100, [range(2), range(2, 3)])
    assert state(load_model(tmp_path / "r")[0]) == state(forest(100))


def test_large_shards_are_loaded_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each within the memory that those before it left."""
    sharded(tmp_path / "r", 100, [range(t, t + 1) for t in range(4)])
    whole = forest(100, range(4))
    n_bytes = sum(array.nbytes for tree in whole.state()[1] for array in tree.values())

    def load_with(usable: int) -> bytes:
        monkeypatch.setattr(stored_trees, "usable_bytes", lambda: usable)
        return state(load_model(tmp_path / "r")[0])

    assert load_with(1000 * n_bytes) == load_with(2 * n_bytes) == state(whole)
    with pytest.raises(CorruptError, match="more than the"):
        load_with(n_bytes // 2)


def test_a_missing_shard_is_not_passed_over(tmp_path: Path) -> None:
    run = Run.create(tmp_path, {**MODEL, "shards": [[0, 2], [2, 3]], "plan": None})
    data = state(forest(10, range(2)))
    run.commit(10, {0: {"digest": run.put_blob(data), "bytes": len(data)}})
    with pytest.raises(CorruptError, match=r"names 1 shards, run.json 2"):
        load_model(tmp_path)


def test_saving_again_adds_the_newer_model(tmp_path: Path) -> None:
    save_model(tmp_path, forest(10), {**MODEL, "n_seen": 10})
    save_model(tmp_path, forest(10), {**MODEL, "n_seen": 10})
    save_model(tmp_path, forest(20), {**MODEL, "n_seen": 20})
    assert state(load_model(tmp_path)[0]) == state(forest(20))
    assert state(load_model(f"{tmp_path}@10")[0]) == state(forest(10))


def test_another_model_is_not_saved_over_this_one(tmp_path: Path) -> None:
    save_model(tmp_path, forest(20), {**MODEL, "n_seen": 20})
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.json")}
    with pytest.raises(CheckpointError, match=r"learned 20 rows, this one learned 10"):
        save_model(tmp_path, forest(10), {**MODEL, "n_seen": 10})
    with pytest.raises(CheckpointError, match="as many rows"):
        save_model(tmp_path, forest(21), {**MODEL, "n_seen": 20})
    with pytest.raises(CheckpointError, match=r"(?s)n_estimators: 3 there, 4 here.*shards"):
        save_model(tmp_path, forest(20, range(4)), {**MODEL, "n_seen": 20})
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.json")} == before


def test_damage_is_named_and_not_answered_with_an_older_model(tmp_path: Path) -> None:
    save_model(tmp_path, forest(10), {**MODEL, "n_seen": 10})
    newest = save_model(tmp_path, forest(20), {**MODEL, "n_seen": 20})
    blob = tmp_path / "blobs" / newest.shards[0]["digest"]
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 4
    blob.write_bytes(data)
    with pytest.raises(CorruptError, match=f"(?s){blob.name}.*damaged.*earlier checkpoint"):
        load_model(tmp_path)
    assert state(load_model(f"{tmp_path}@10")[0]) == state(forest(10))


def test_a_sound_blob_that_is_no_forest(tmp_path: Path) -> None:
    run = Run.create(tmp_path, {**MODEL, "shards": [[0, 1]], "plan": None})
    data = encode_forest({"x": 1}, [{"a": np.zeros(3, np.int32)}])
    run.commit(5, {0: {"digest": run.put_blob(data), "bytes": len(data)}})
    with pytest.raises(CorruptError, match="Shard 0"):
        load_model(tmp_path)


def test_nothing_to_load(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no folder"):
        load_model(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"run\.json is missing"):
        load_model(tmp_path)
    Run.create(tmp_path, {**MODEL, "plan": None})
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        load_model(tmp_path)
    with pytest.raises(CheckpointError, match="none yet"):
        load_model(f"{tmp_path}@5")


def test_over_s3(s3_url: str) -> None:
    save_model(s3_url, forest(30), {**MODEL, "n_seen": 30})
    assert state(load_model(s3_url)[0]) == state(forest(30))
    assert state(load_model(f"{s3_url}@30")[0]) == state(forest(30))
    with pytest.raises(CheckpointError, match="position 31"):
        load_model(f"{s3_url}@31")
