"""Models larger than a worker: other groups of trees, and the same bytes, whatever is lost."""

from __future__ import annotations

import os
import shutil
import signal
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from dmondrian.checkpoint import load_model, load_trees, look_at_model, peek_blobs
from dmondrian.data import Encoded
from dmondrian.distributed import TrainedRun, evaluate, score
from dmondrian.distributed.scoring import memory_plan, model_info, tree_pipeline
from dmondrian.distributed.scoring.memory_plan import Needs
from dmondrian.distributed.scoring.model_info import Model, open_model
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.errors import ClusterError, CorruptError
from dmondrian.forest.forest import Forest
from tests.distributed.conftest import Grow, Once, resize


def plan_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan for trees alone, so that a limit of a few of them can be given; in many small files."""
    monkeypatch.setattr("dmondrian.distributed.scoring.score.FILE_ROWS", 500)
    monkeypatch.setattr("dmondrian.distributed.worker.work_units.UNIT_ROWS", 500)
    monkeypatch.setattr(memory_plan, "PROCESS_BYTES", 0)
    monkeypatch.setattr(memory_plan, "USABLE", 1.0)
    for user in ("score", "evaluate"):
        monkeypatch.setattr(
            f"dmondrian.distributed.scoring.{user}.row_needs", lambda *_: Needs(0, 1)
        )


@pytest.fixture(autouse=True)
def small_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_small(monkeypatch)


def limit_of(model: Model, trees: int) -> int:
    """Bytes for so many shards of one tree, and a little for running sums."""
    largest = sorted(model.trees, key=lambda one: one.held + one.loading)[-trees:]
    return sum(one.held for one in largest) + max(one.loading for one in largest) + 4096


def manifest(out: Path) -> bytes:
    return (out / "_manifest.json").read_bytes()


@pytest.fixture(scope="module")
def model(undisturbed: TrainedRun) -> Model:
    return open_model(undisturbed.run_url)


@pytest.fixture(scope="module")
def whole(
    adult: Path, client: Client, undisturbed: TrainedRun, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Scores by workers that hold the whole model, as other tests ask for them here."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dmondrian.distributed.scoring.score.FILE_ROWS", 500)
        reported = score(undisturbed.run_url, adult, out, keep=["age"], client=client)
    assert (reported["files"], reported["trees_sharded"]) == (12, 1)
    return out


@pytest.mark.parametrize(
    ("n_workers", "trees", "groups"),
    [
        (1, 3, 2),
        (3, 1, 6),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in ((1, 1, 6), (2, 1, 6), (6, 1, 6), (2, 3, 2), (2, 5, 2))
        ),
    ],
)
def test_bytes_do_not_depend_on_groups_and_passes(
    adult: Path, cluster: Grow, tmp_path: Path, undisturbed: TrainedRun, model: Model, whole: Path,
    n_workers: int, trees: int, groups: int,
) -> None:  # fmt: skip
    limit = limit_of(model, trees)
    reported = score(
        undisturbed.run_url, adult, tmp_path / "out", keep=["age"], client=cluster(n_workers)[1],
        memory_limit=limit,
    )  # fmt: skip
    assert reported["trees_sharded"] == groups
    assert reported["written"] == 12
    assert manifest(tmp_path / "out") == manifest(whole)


def test_bytes_do_not_depend_on_blocks_answered_together(
    adult: Path, client: Client, tmp_path: Path, undisturbed: TrainedRun, model: Model,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked: list[int] = []
    monkeypatch.setattr("dmondrian.data.chunks.JOINED_ROWS", 500)  # a block each

    def noted(self: Forest, X: np.ndarray, *args: Any, **named: Any) -> Any:
        asked.append(len(X))
        return Ensemble.predict_sums(self, X, *args, **named)

    monkeypatch.setattr(Forest, "predict_sums", noted)
    monkeypatch.setattr("dmondrian.distributed.scoring.score.FILE_ROWS", 1500)  # of three blocks
    d, found = model.schema.n_features, set()
    for limit in (None, limit_of(model, 2)):
        for values, rows in ((0, 500), (1000 * d, 1000), (1500 * d - 1, 1000), (1500 * d, 1500)):
            asked.clear()
            monkeypatch.setattr(tree_pipeline, "TOGETHER", values)
            out = tmp_path / f"{limit}-{values}"
            reported = score(
                undisturbed.run_url, adult, out, keep=["age"], client=client, memory_limit=limit
            )
            assert (reported["files"], reported["trees_sharded"] > 1) == (4, limit is not None)
            assert max(asked) == rows
            found.add(manifest(out))
    assert len(found) == 1


def test_rows_that_are_answered_together_are_there_once(
    undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is planned: the blocks' own arrays are gone when the forest is asked."""
    forest, read = undisturbed.to_local().forest_, []
    monkeypatch.setattr(tree_pipeline, "TOGETHER", 30 * forest.parameters.n_features)

    def blocks() -> Iterator[Encoded]:
        for _ in range(7):
            X = np.zeros((10, forest.parameters.n_features), np.float32)
            read.append(weakref.ref(X))
            yield Encoded(X, None, None, None, {}, ())
            del X

    for number, (together, X) in enumerate(tree_pipeline._batches(forest, blocks())):
        assert len(X) == 10 * len(together) == (30, 30, 10)[number]
        alive = [one() is not None for one in read[3 * number :]]
        assert alive == [False] * 3 + [True] if number < 2 else [True]  # the next one, or itself


def test_sums_go_on_to_the_last_bit(undisturbed: TrainedRun) -> None:
    blobs, _, _ = look_at_model(undisturbed.run_url)
    X = np.random.default_rng(0).random((5000, 6), dtype=np.float32)
    forest, _, _ = load_model(undisturbed.run_url)
    X = np.resize(X, (5000, forest.parameters.n_features))
    at_once = forest.predict_sums(X, 2, spread=True, distance=True)
    sums = None
    for first, stop in ((0, 1), (1, 4), (4, 6)):
        group = load_trees(blobs[first:stop])
        sums = group.predict_sums(X, spread=True, distance=True, onto=sums)
    assert sums is not None
    assert sums.n_trees == at_once.n_trees == 6
    for mine, theirs in zip(sums[:3], at_once[:3], strict=True):
        assert np.array_equal(mine, theirs)
    alone = [load_trees([blob]).predict_sums(X).total for blob in blobs]
    in_pairs = (alone[0] + alone[1]) + (alone[2] + alone[3]) + (alone[4] + alone[5])
    assert not np.array_equal(in_pairs, at_once.total)  # another order of addition would be seen


def test_evaluation_is_the_same(adult: Path, client: Client, undisturbed: TrainedRun) -> None:
    url, data = f"{undisturbed.run_url}@3000", adult / "part-1.parquet"
    whole = evaluate(url, data, client=client)
    limit = limit_of(open_model(undisturbed.run_url, measures_distance=False), 2)
    sharded = evaluate(url, data, client=client, memory_limit=limit)
    assert sharded.pop("trees_sharded") > 1
    assert "trees_sharded" not in whole
    assert sharded == whole


def test_a_model_of_one_group_and_one_of_many_are_the_same_question(
    adult: Path, client: Client, tmp_path: Path, undisturbed: TrainedRun, model: Model
) -> None:
    out = tmp_path / "out"
    score(undisturbed.run_url, adult, out, client=client, memory_limit=limit_of(model, 2))
    assert score(undisturbed.run_url, adult, out, client=client)["written"] == 0
    copy = tmp_path / "copy"
    shutil.copytree(undisturbed.run_url, copy)
    assert open_model(str(copy)).digest == model.digest
    assert score(copy, adult, out, client=client)["written"] == 0
    assert open_model(f"{undisturbed.run_url}@3000").digest != model.digest


def test_the_caller_reads_no_tree_and_workers_few_at_a_time(
    adult: Path, client: Client, tmp_path: Path, undisturbed: TrainedRun, model: Model,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    loaded: list[int] = []

    def spy(blobs: Any, with_boxes: bool) -> Any:
        loaded.append(len(blobs))
        return load_trees(blobs, with_boxes)

    monkeypatch.setattr(tree_pipeline, "load_trees", spy)  # the workers are threads of this process
    monkeypatch.setattr(tree_pipeline, "_tree_cache", tree_pipeline.TreeCache())
    monkeypatch.setattr(model_info, "load_model", None, raising=False)
    limit = limit_of(model, 3)
    score(undisturbed.run_url, adult, tmp_path / "out", client=client, memory_limit=limit)
    assert set(loaded) == {3}
    held = sum(entry.n_bytes for entry in tree_pipeline._tree_cache._entries.values())
    assert held <= limit


def test_sizes_are_those_of_the_forest(undisturbed: TrainedRun) -> None:
    blobs, _, manifest = look_at_model(undisturbed.run_url)
    assert [(blob.first, blob.stop) for blob in blobs] == [(t, t + 1) for t in range(6)]
    assert [blob.digest for blob in blobs] == [s["digest"] for s in manifest.shards.values()]
    for blob, contents in zip(blobs, peek_blobs(blobs), strict=True):
        forest = load_trees([blob])
        assert contents.numbers == tuple(forest.tree_numbers)
        reported = sum(contents.sizes)  # at most: features of two values take less in memory
        assert reported / 2 < forest.n_bytes <= reported


def test_a_beginning_that_is_damaged_is_reported(undisturbed: TrainedRun, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(undisturbed.run_url, copy)
    blobs, _, _ = look_at_model(copy)
    file = copy / "blobs" / blobs[3].digest
    data = file.read_bytes()
    for damaged in (data[:7], b"x" * len(data), data[:12] + b"\xff\xff\xff\x7f" + data[16:]):
        file.write_bytes(damaged)
        with pytest.raises(CorruptError, match=r"Shard 3.*damaged"):
            open_model(str(copy))
    file.unlink()
    with pytest.raises(CorruptError, match=r"Shard 3.*missing"):
        open_model(str(copy))


def test_damage_further_behind_is_reported_by_the_workers(
    adult: Path, client: Client, undisturbed: TrainedRun, model: Model, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(undisturbed.run_url, copy)
    file = copy / "blobs" / model.trees[3].blob.digest
    data = bytearray(file.read_bytes())
    data[-300] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptError, match="damaged"):
        score(copy, adult, tmp_path / "out", client=client, memory_limit=limit_of(model, 2))


def test_too_small_a_limit_is_refused_before_anything_is_scored(
    adult: Path, client: Client, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    with pytest.raises(ClusterError, match="MiB would do"):
        score(undisturbed.run_url, adult, tmp_path / "out", client=client, memory_limit=5000)
    assert not list((tmp_path / "out").glob("part-*"))


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("n_after", [1, 3])
@pytest.mark.thorough(but="1")
def test_workers_that_join_and_leave_change_no_byte(
    adult: Path, cluster: Grow, tmp_path: Path, undisturbed: TrainedRun, model: Model, whole: Path,
    n_after: int,
) -> None:  # fmt: skip
    workers, own = cluster(2)
    change = Once(lambda: resize(workers, own, n_after), is_scoring=True)
    score(
        undisturbed.run_url, adult, tmp_path / "out", keep=["age"], client=own, progress=change,
        memory_limit=limit_of(model, 2),
    )  # fmt: skip
    assert change.is_done
    assert manifest(tmp_path / "out") == manifest(whole)


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("trees", [1, 3], ids=["several passes", "one pass"])
@pytest.mark.thorough(but="several passes")
def test_a_worker_killed_on_the_way_changes_no_byte(
    adult: Path, tmp_path: Path, undisturbed: TrainedRun, model: Model, whole: Path, pair: Client,
    trees: int,
) -> None:  # fmt: skip
    pids = sorted(pair.run(os.getpid).values())
    kill = Once(lambda: os.kill(pids[0], signal.SIGKILL), is_scoring=True)
    reported = score(
        undisturbed.run_url, adult, tmp_path / "out", keep=["age"], client=pair, progress=kill,
        memory_limit=limit_of(model, trees),
    )  # fmt: skip
    assert kill.is_done
    assert reported["trees_sharded"] > 1
    assert manifest(tmp_path / "out") == manifest(whole)


def test_nothing_is_left_on_the_cluster(
    adult: Path, cluster: Grow, tmp_path: Path, undisturbed: TrainedRun, model: Model
) -> None:
    workers, own = cluster(2)

    def stop() -> None:
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        score(
            undisturbed.run_url, adult, tmp_path / "out", client=own, progress=Once(stop, True),
            memory_limit=limit_of(model, 1),
        )  # fmt: skip
    _wait_until_empty(workers)
    score(undisturbed.run_url, adult, tmp_path / "out", client=own, memory_limit=limit_of(model, 1))
    _wait_until_empty(workers)


def _wait_until_empty(workers: LocalCluster) -> None:
    from tests.distributed.conftest import wait_until

    wait_until(lambda: not workers.scheduler.tasks)
