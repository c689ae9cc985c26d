"""Runs whose checkpoints are differences: followed, killed, damaged, pruned, copied and scored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import AMFClassifier
from dmondrian.checkpoint import Run, deltas, encode_forest
from dmondrian.checkpoint.copying import copy_model
from dmondrian.checkpoint.migrating import migrate
from dmondrian.checkpoint.model import load_model
from dmondrian.checkpoint.pruning import prune
from dmondrian.distributed import TrainedRun, follow, score, train
from dmondrian.distributed.training.batch_source import safe_position
from dmondrian.forest import forest as forest_module
from tests.checkpoint.test_damage import flip
from tests.distributed.conftest import ADULT, COLUMNS, Fit, forest
from tests.distributed.test_stored_formats import FORESTS, copied

FIRST, ROWS = 4000, 12


@pytest.fixture(autouse=True)
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forest_module, "LEAST_SPARSE", 0)


@pytest.fixture
def look(client: Client, tmp_path: Path) -> Callable[..., TrainedRun]:
    """Put the next rows there and have them learned: many at first, then few."""
    data = tmp_path / "data"
    data.mkdir()
    table = pq.read_table(ADULT, columns=COLUMNS)

    def call(**options: Any) -> TrainedRun:
        n = len(list(data.iterdir()))
        first = 0 if n == 0 else FIRST + (n - 1) * ROWS
        part = table.slice(first, FIRST if n == 0 else ROWS)
        pq.write_table(part, data / ".part")
        (data / ".part").rename(data / f"{n:04d}.parquet")
        given = {"target": "income", "client": client, "run": tmp_path / "run", "n_shards": 2}
        given |= options
        found = follow(forest(), data, once=True, **given)
        assert found is not None
        return found

    return call


def stored(url: Any) -> bytes:
    """All trees of a model, as one blob."""
    return encode_forest(*load_model(url)[0].stored())


def straight(client: Client, tmp_path: Path) -> TrainedRun:
    """The same rows, learned at one go."""
    options: dict[str, Any] = {"target": "income", "client": client, "run": tmp_path / "straight"}
    return train(forest(), tmp_path / "data", **options)


def test_looks_at_few_rows_write_few_bytes_and_the_forest_is_the_same(
    look: Callable[..., TrainedRun], client: Client, tmp_path: Path
) -> None:
    look(keep=2)
    run = Run.open(tmp_path / "run")
    first = run.manifest(FIRST)
    assert not first.bases
    for _ in range(5):
        look(keep=2)
    last = run.latest()
    assert last is not None
    assert (
        run.manifests() == [FIRST + 4 * ROWS, last.position] == [FIRST + n * ROWS for n in (4, 5)]
    )
    for number, shard in last.shards.items():
        assert shard["base"] == first.shards[number]
        assert shard["bytes"] < 0.7 * first.shards[number]["bytes"]
    assert safe_position(run) == 0  # all need the first one
    assert stored(tmp_path / "run") == stored(straight(client, tmp_path).run_url)


def test_a_damaged_base_takes_the_run_back_to_what_does_without(
    look: Callable[..., TrainedRun], client: Client, tmp_path: Path
) -> None:
    look()
    run = Run.open(tmp_path / "run")
    whole = run.manifest(FIRST)
    look()
    flip(Path(run.url) / "blobs" / whole.shards[1]["digest"])
    with pytest.warns(UserWarning, match="passed over"):
        found = look()
    assert found.summary["resumed_at"] in (None, 0)  # nothing does without: all is learned again
    newest = Run.open(tmp_path / "run").latest()
    assert newest is not None
    assert newest.position == FIRST + 2 * ROWS
    assert stored(tmp_path / "run") == stored(straight(client, tmp_path).run_url)


def test_whoever_reads_the_run_reads_the_same(
    look: Callable[..., TrainedRun], client: Client, tmp_path: Path
) -> None:
    for _ in range(4):
        look()
    run = tmp_path / "run"
    assert Run.open(run).latest().bases  # type: ignore[union-attr]  # there is one
    expected = stored(run)
    assert stored(copy_model(run, tmp_path / "copy").url) == expected
    migrated = migrate(run, tmp_path / "migrated").run
    assert stored(migrated.url) == expected
    assert not migrated.latest().bases  # type: ignore[union-attr]  # as above
    rows = tmp_path / "data/0003.parquet"
    found = []
    for model in (run, tmp_path / "copy", tmp_path / "migrated"):
        score(model, rows, tmp_path / f"{model.name}-scores", client=client)
        (part,) = (tmp_path / f"{model.name}-scores").rglob("part-*.parquet")
        found.append(pq.read_table(part).to_pydict())
    assert found[0] == found[1] == found[2]
    prune(Run.open(run), keep=1)
    assert stored(run) == expected
    again = follow(
        forest(), tmp_path / "data", once=True, target="income", client=client,
        run=tmp_path / "copy", n_shards=2,
    )  # fmt: skip
    assert again is not None
    assert stored(tmp_path / "copy") == expected


def test_all_shards_write_whole_states_now_and_then(
    look: Callable[..., TrainedRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By themselves shards do so at different looks, and no checkpoint does without the others."""

    def encode(forest: Any, base: Any, is_whole: bool, is_last: bool) -> Any:
        most = 2 if forest.tree_numbers[0] == 0 else 3
        is_own = base is not None and base.count >= most
        return deltas.encode_state(forest, base, is_whole or is_own, is_last)

    monkeypatch.setattr("dmondrian.distributed.worker.shard.encode_state", encode)
    monkeypatch.setattr(deltas, "_pays", lambda *_: True)
    monkeypatch.setattr("dmondrian.distributed.training.coordinator.MOST", 4)
    run, n_whole = tmp_path / "run", 0
    for n in range(14):
        look(keep=2)
        newest = Run.open(run).latest()
        assert newest is not None
        n_whole += not newest.bases
        assert newest.n_since_whole <= 4
        if n > 5:
            assert safe_position(Run.open(run)) >= FIRST + (n - 10) * ROWS
    assert n_whole >= 3
    assert len(Run.open(run).manifests()) <= 3


def test_a_run_of_an_earlier_format_goes_on(client: Client, tmp_path: Path) -> None:
    stored_run = copied("forest_2", tmp_path)
    rows = pq.read_table(stored_run / "data/2.parquet")
    (stored_run / "data/2.parquet").unlink()
    for n in range(3):
        pq.write_table(rows.slice(2 * n, 2), stored_run / f"data/{n + 2}.parquet")
        found = follow(
            AMFClassifier(**FORESTS["run"]), stored_run / "data", once=True, target="y",
            run=stored_run / "run", client=client, n_shards=2, keep=2,
        )  # fmt: skip
        assert found is not None
    run = Run.open(stored_run / "run")
    assert any(run.manifest(position).bases for position in run.manifests())
    for position in run.manifests():
        load_model(f"{stored_run}/run@{position}")


def test_training_ends_with_whole_states_whatever_came_between(
    fit: Fit, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deltas, "_pays", lambda *_: True)
    run = fit(checkpoint_every=1000)
    opened = Run.open(run.run_url)
    bases = [len(opened.manifest(position).bases) for position in opened.manifests()]
    assert max(bases) > 0  # not all: a state before which one is being stored is whole
    assert bases[-1] == 0
    monkeypatch.undo()  # the undisturbed run has small trees, whose blobs have their zeros
    assert stored(run.run_url) == stored(undisturbed.run_url)


def test_without_the_mechanism_all_states_are_whole(
    look: Callable[..., TrainedRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dmondrian.checkpoint.deltas.uses", lambda name: name != "deltas")
    for _ in range(3):
        look()
    run = Run.open(tmp_path / "run")
    assert [run.manifest(position).bases for position in run.manifests()] == [set()] * 3
