"""A run that goes on, with more trees or files: byte-equal to one that had them at first."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

import dmondrian
from dmondrian.checkpoint import Lease, Run, lease, load_model
from dmondrian.checkpoint.codec import encode_forest
from dmondrian.checkpoint.merging import merge
from dmondrian.checkpoint.parts import parts_of
from dmondrian.distributed import Progress, TrainedRun, evaluate, grow, score, train
from dmondrian.errors import (
    CheckpointError,
    CorruptError,
    DataError,
    FencedError,
    ParameterError,
)
from tests.distributed.conftest import CHOSEN, ROWS, Fit, digests, forest

SETTINGS = {"alpha": 0.05, "charge_opening": True}


@pytest.fixture(scope="module")
def full(adult: Path, client: Client, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """Ten trees from the start."""
    run = tmp_path_factory.mktemp("full") / "run"
    given = {"target": "income", "client": client, "checkpoint_every": "2000 rows"}
    return train(forest(n_estimators=10), adult, run=run, **given)


def trees_of(url: str | Path) -> bytes:
    return encode_forest(*load_model(url)[0].state())


def all_digests(url: str | Path) -> list[str]:
    return [shard["digest"] for shard in load_model(url)[2].shards.values()]


def copy_of(run: TrainedRun, folder: Path) -> Path:
    shutil.copytree(run.run_url, folder)
    return folder


class StopError(Exception):
    """Raised by a listener."""


def stop_after(rows: int) -> object:
    def listen(progress: Progress) -> None:
        if progress.durable >= rows:
            raise StopError

    return listen


def test_grown_trees_are_those_of_a_run_that_had_them_from_the_start(
    fit: Fit, client: Client, tmp_path: Path
) -> None:
    chosen = {**CHOSEN, "warmup_rows": 500}
    full = fit("full", estimator=forest(n_estimators=10, **chosen))
    begun = fit("begun", estimator=forest(**chosen))
    folder = copy_of(begun, tmp_path / "grown")
    run = grow(folder, 8, client=client, checkpoint_every="2000 rows")
    assert dmondrian.load(folder).n_estimators == 8
    run = grow(folder, 10, client=client, checkpoint_every="1000 rows")
    assert run.run_url == str(folder)
    assert trees_of(folder) == trees_of(full.run_url)
    assert all_digests(folder) == list(digests(full).values())
    loaded = dmondrian.load(folder)
    assert loaded.n_estimators == 10
    assert loaded.get_params() == dmondrian.load(full.run_url).get_params()
    # One tree of a shard each, as the run was cut; the trees that were there were not touched.
    assert digests(folder) == digests(begun)
    assert [len(part.run_json["shards"]) for part in parts_of(Run.open(folder))] == [2, 2]


def test_growth_that_was_killed_goes_on_and_nobody_sees_half_of_it(
    client: Client,
    full: TrainedRun,
    undisturbed: TrainedRun,
    tmp_path: Path,
    talkative: None,
) -> None:
    folder = copy_of(undisturbed, tmp_path / "grown")
    with pytest.raises(StopError):
        grow(folder, 10, client=client, checkpoint_every=500, window=1, progress=stop_after(1000))
    (part,) = parts_of(Run.open(folder))
    assert 0 < part.manifests()[-1] < ROWS
    assert dmondrian.load(folder).n_estimators == 6
    run = grow(folder, 10, client=client, checkpoint_every=500)
    assert run.summary["resumed_at"] >= 1000
    assert trees_of(folder) == trees_of(full.run_url)
    assert grow(folder, 10, client=client).summary["rows"] == 0  # done


def test_a_grown_run_is_scored_as_one_forest(
    adult: Path, client: Client, full: TrainedRun, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    folder = copy_of(undisturbed, tmp_path / "grown")
    grow(folder, 10, client=client)
    for model, out in ((folder, "a"), (full.run_url, "b")):
        score(model, adult, tmp_path / out, client=client)
    parts = sorted(path.name for path in (tmp_path / "a").glob("part-*"))
    for name in parts:
        found = (tmp_path / "a" / name, tmp_path / "b" / name)
        left, right = (dmondrian_scores(path) for path in found)
        assert left.equals(right)
    assert evaluate(folder, adult, client=client) == evaluate(full.run_url, adult, client=client)


def dmondrian_scores(path: Path) -> object:
    return pq.read_table(path).replace_schema_metadata()


def test_only_a_finished_run_grows_and_only_upwards(
    fit: Fit, client: Client, undisturbed: TrainedRun, tmp_path: Path, talkative: None
) -> None:
    with pytest.raises(StopError):
        fit("half", progress=stop_after(1000), window=1)
    with pytest.raises(CheckpointError, match=r"has learned \d+ of 6000 rows"):
        grow(tmp_path / "half", 10, client=client)
    for n_estimators in (6, 0, True):
        with pytest.raises(ParameterError, match="n_estimators"):
            grow(undisturbed.run_url, n_estimators, client=client)
    for n_shards in (0, 5):
        with pytest.raises(ParameterError, match="n_shards"):
            grow(undisturbed.run_url, 10, n_shards=n_shards, client=client)
    dmondrian.AMFClassifier(n_estimators=2).fit(np.eye(3), [0, 1, 0]).save(tmp_path / "plain")
    with pytest.raises(CheckpointError, match="fitted on arrays"):
        grow(tmp_path / "plain", 3, client=client)
    assert not parts_of(Run.open(undisturbed.run_url))


@pytest.fixture
def arriving(adult: Path, tmp_path: Path) -> Path:
    """A folder with the first of two files."""
    folder = tmp_path / "arriving"
    folder.mkdir()
    shutil.copy2(adult / "part-0.parquet", folder)
    return folder


def test_new_files_continue_the_stream(
    fit: Fit, adult: Path, arriving: Path, client: Client, tmp_path: Path
) -> None:
    fit = partial(fit, estimator=forest(**SETTINGS))
    first = fit("appended", data=arriving)
    assert first.plan.n_rows == ROWS // 2
    assert grow(first.run_url, 8, client=client, checkpoint_every=1000).summary["rows"] > 0
    before = {path: path.read_bytes() for path in Path(first.run_url, "manifests").iterdir()}
    shutil.copy2(adult / "part-1.parquet", arriving)
    run = fit("appended", data=arriving)
    assert run.summary["resumed_at"] == ROWS // 2
    assert run.summary["rows"] == ROWS // 2  # of the stream, which the added trees learned too
    assert any("continue the stream: 1 with 3,000 rows" in note for note in run.plan.notes)
    # The second file's values lie within the first's ranges, so this is the same stream.
    whole = fit("whole", data=arriving, estimator=forest(n_estimators=8, **SETTINGS))
    assert whole.plan.schema == run.plan.schema
    assert trees_of(run.run_url) == trees_of(whole.run_url)
    assert run.metrics == fit("six", data=arriving).metrics
    assert {path: path.read_bytes() for path in before} == before
    assert fit("appended", data=arriving).summary["rows"] == 0
    assert dmondrian.load(f"{run.run_url}@3000").n_estimators == 8


def test_a_run_that_is_in_the_middle_takes_new_files_too(
    fit: Fit, adult: Path, arriving: Path, talkative: None
) -> None:
    fit = partial(fit, estimator=forest(**SETTINGS))
    with pytest.raises(StopError):
        fit("appended", data=arriving, progress=stop_after(1000), window=1)
    shutil.copy2(adult / "part-1.parquet", arriving / "a-file-that-sorts-first.parquet")
    run = fit("appended", data=arriving)
    assert 1000 <= run.summary["resumed_at"] < ROWS // 2
    assert [Path(block.uri).name for block in run.plan.blocks[-1:]] == [
        "a-file-that-sorts-first.parquet"
    ]
    shutil.move(arriving / "a-file-that-sorts-first.parquet", arriving / "part-1.parquet")
    assert digests(run) == digests(fit("whole", data=arriving))


def test_appended_row_groups_are_shuffled_among_themselves(
    fit: Fit, adult: Path, arriving: Path
) -> None:
    first = fit("appended", data=arriving, shuffle=True, seed=3)
    shutil.copy2(adult / "part-1.parquet", arriving)
    run = fit("appended", data=arriving, shuffle=True, seed=3)
    assert run.plan.blocks[: len(first.plan.blocks)] == first.plan.blocks
    groups = [block.group for block in run.plan.blocks]
    assert sorted(groups[6:]) == [6, 7, 8, 9, 10, 11] != groups[6:]
    with pytest.raises(CheckpointError, match="belongs to another job"):
        fit("appended", data=arriving, shuffle=True, seed=4)


def test_a_file_that_cannot_be_learned_may_be_repaired_or_taken_away(
    fit: Fit, adult: Path, arriving: Path, client: Client
) -> None:
    fit = partial(fit, estimator=forest(**SETTINGS))
    run = fit("appended", data=arriving)
    bad = arriving / "part-1.parquet"
    table = pq.read_table(adult / "part-1.parquet")
    labels = pa.array(["unheard of"] * table.num_rows)
    index = table.column_names.index("income")
    pq.write_table(table.set_column(index, "income", labels), bad)
    with pytest.raises(DataError, match="unheard of"):
        fit("appended", data=arriving)
    bad.unlink()
    assert fit("appended", data=arriving).summary["rows"] == 0
    assert grow(run.run_url, 7, client=client).summary["rows"] == ROWS // 2
    shutil.copy2(adult / "part-1.parquet", bad)
    assert fit("appended", data=arriving).plan.n_rows == ROWS
    assert trees_of(run.run_url) == trees_of(
        fit("whole", data=arriving, estimator=forest(n_estimators=7, **SETTINGS)).run_url
    )


def test_a_command_that_is_refused_leaves_the_stream_alone(
    fit: Fit, adult: Path, arriving: Path
) -> None:
    run = fit("appended", data=arriving)
    shutil.copy2(adult / "part-1.parquet", arriving)
    with Lease.take(Run.open(run.run_url).store, job="another"), pytest.raises(FencedError):
        fit("appended", data=arriving)
    assert len(Run.open(run.run_url).stream.digests()) == 1


def test_a_command_that_is_refused_leaves_alone_where_the_data_are(
    fit: Fit, arriving: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, talkative: None
) -> None:
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.05)
    moved = copy_folder(arriving, tmp_path / "moved")
    with pytest.raises(StopError):
        fit("run", data=arriving, progress=stop_after(1000), window=1)
    (tmp_path / "arriving").rename(tmp_path / "hidden")  # as where another host has its data
    run = Run.open(tmp_path / "run")
    noted = run.stream.places()
    with Lease.take(run.store), pytest.raises(FencedError):
        fit("run", data=moved)
    assert run.stream.places() == noted == (run.url, {})
    fit("run", data=moved)
    (there,) = run.stream.places()[1].values()
    assert there[0] == str(moved / "part-0.parquet")
    moved.rename(tmp_path / "arriving")
    with Lease.take(run.store), pytest.raises(FencedError):
        fit("run", data=arriving)  # at its end, unless the other one appends to it
    assert run.stream.places()[1]
    assert fit("run", data=arriving).summary["rows"] == 0
    assert run.stream.places() == noted
    n_holders = len(lease.holders(run.store))
    assert fit("run", data=arriving).summary["rows"] == 0
    assert len(lease.holders(run.store)) == n_holders  # nothing to write


def test_growth_that_is_refused_leaves_alone_where_the_data_are(
    fit: Fit,
    client: Client,
    arriving: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    talkative: None,
) -> None:
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.05)
    run = fit("run", data=arriving)
    with pytest.raises(StopError):
        grow(
            run.run_url, 8, client=client, checkpoint_every=500, window=1, progress=stop_after(500)
        )
    (part,) = parts_of(Run.open(run.run_url))
    noted = part.stream.places()
    moved = arriving.rename(tmp_path / "moved")
    with Lease.take(part.store):
        with pytest.raises(FencedError):
            fit("run", data=moved)  # the run itself is at its end: its places are noted
        with pytest.raises(FencedError):
            grow(run.run_url, 8, client=client)
        assert part.stream.places() == noted == (part.url, {})
    grow(run.run_url, 8, client=client)
    (there,) = part.stream.places()[1].values()
    assert there[0] == str(moved / "part-0.parquet")


def test_a_merge_that_is_refused_leaves_the_merged_run_alone(
    fit: Fit, arriving: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.05)
    for name, first_tree in (("a", 0), ("b", 1)):
        fit(name, data=arriving, estimator=forest(n_estimators=1), first_tree=first_tree)
    sources = [tmp_path / "a", tmp_path / "b"]
    merged, _ = merge(sources, tmp_path / "merged")
    moved = arriving.rename(tmp_path / "moved")
    fit("merged", data=moved, estimator=forest(n_estimators=2))
    noted = merged.stream.places()
    (there,) = noted[1].values()
    assert there[0] == str(moved / "part-0.parquet")
    with Lease.take(merged.store), pytest.raises(FencedError):
        merge(sources, tmp_path / "merged")
    assert merged.stream.places() == noted


def test_growth_finishes_what_was_begun_before_it(
    client: Client, full: TrainedRun, undisturbed: TrainedRun, tmp_path: Path, talkative: None
) -> None:
    folder = copy_of(undisturbed, tmp_path / "grown")
    with pytest.raises(StopError):
        grow(folder, 8, client=client, checkpoint_every=500, window=1, progress=stop_after(1000))
    with pytest.raises(CheckpointError, match="000006-000008 is not finished"):
        merge([folder, undisturbed.run_url], tmp_path / "merged")
    with pytest.raises(ParameterError, match=r"000006-000008 is not finished: delete it"):
        grow(folder, 7, client=client)
    with pytest.raises(ParameterError, match="these trees were cut into 2"):
        grow(folder, 8, n_shards=1, client=client)
    grow(folder, 10, client=client)
    assert trees_of(folder) == trees_of(full.run_url)


def test_growth_follows_a_stream_that_its_part_has_not_seen(
    fit: Fit, adult: Path, arriving: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = partial(fit, estimator=forest(**SETTINGS))
    run = fit("appended", data=arriving)
    grow(run.run_url, 8, client=client)
    shutil.copy2(adult / "part-1.parquet", arriving)
    with monkeypatch.context() as patch:
        patch.setattr(
            "dmondrian.distributed.training.train.parts_of", lambda run: []
        )  # as if killed
        fit("appended", data=arriving)
    grow(run.run_url, 8, client=client)
    whole = fit("whole", data=arriving, estimator=forest(n_estimators=8, **SETTINGS))
    assert trees_of(run.run_url) == trees_of(whole.run_url)


def test_of_two_that_grow_at_once_the_second_sees_the_part_of_the_first(
    client: Client, undisturbed: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_of(undisturbed, tmp_path / "grown")
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.05)
    with Lease.take(Run.open(folder).store), pytest.raises(FencedError):
        grow(folder, 8, client=client)  # the first is about to make its part
    assert not parts_of(Run.open(folder))
    grow(folder, 8, client=client)
    shutil.copytree(folder / "growth/000006-000008", folder / "growth/000007-000009")
    with pytest.raises(CorruptError, match="have trees in common: delete one"):
        load_model(folder)


def test_a_merged_run_continues_its_stream(
    fit: Fit, adult: Path, arriving: Path, tmp_path: Path
) -> None:
    data = copy_folder(arriving, tmp_path / "data")
    sizes = {"a": (forest(**SETTINGS), 0), "b": (forest(n_estimators=2, **SETTINGS), 6)}
    for _ in range(2):  # the second time with a file more
        for name, (estimator, first_tree) in sizes.items():
            fit(name, data=data, estimator=estimator, first_tree=first_tree)
        shutil.copy2(adult / "part-1.parquet", data)
    run, manifest = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    assert manifest.position == ROWS
    again = fit("merged", data=data, estimator=forest(n_estimators=8, **SETTINGS))
    assert again.summary["rows"] == 0
    shutil.copy2(adult / "part-0.parquet", data / "part-2.parquet")
    more = fit("merged", data=data, estimator=forest(n_estimators=8, **SETTINGS))
    assert more.summary["resumed_at"] == ROWS
    assert dmondrian.load(run.url).forest_.total_weight == ROWS * 3 // 2
    # The same merge again takes nothing from the run, which has gone on since.
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    assert run.manifests()[-1] == ROWS * 3 // 2
    assert dmondrian.load(run.url).forest_.total_weight == ROWS * 3 // 2


def copy_folder(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to, copy_function=shutil.copy2)
    return to


def test_a_checkpoint_is_no_run_to_grow(client: Client, undisturbed: TrainedRun) -> None:
    with pytest.raises(ParameterError, match="leave @1000 out"):
        grow(f"{undisturbed.run_url}@1000", 8, client=client)


def test_more_trees_in_the_job_of_a_run_are_pointed_to_grow(
    fit: Fit, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    copy_of(undisturbed, tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"dmondrian grow .* --n-estimators 8"):
        fit("run", estimator=forest(n_estimators=8))


def test_runs_over_other_trees_merge_into_the_run_of_all(
    fit: Fit, adult: Path, full: TrainedRun, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    other = fit("other", estimator=forest(n_estimators=4), first_tree=6)
    run, manifest = merge([other.run_url, undisturbed.run_url], tmp_path / "merged")
    assert manifest.final
    assert {n: s["digest"] for n, s in manifest.shards.items()} == digests(full)
    assert trees_of(run.url) == trees_of(full.run_url)
    again, _ = merge([undisturbed.run_url, other.run_url], tmp_path / "merged")
    assert again.manifests() == [ROWS]
    assert dmondrian.load(run.url).get_params() == dmondrian.load(full.run_url).get_params()
    # The merged run is the run of that job: it is at its end.
    assert fit("merged", estimator=forest(n_estimators=10)).summary["rows"] == 0


def test_a_grown_run_merges_with_its_parts(
    client: Client, fit: Fit, full: TrainedRun, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    folder = copy_of(undisturbed, tmp_path / "grown")
    grow(folder, 8, client=client)
    other = fit("other", estimator=forest(n_estimators=2), first_tree=8)
    run, _ = merge([folder, other.run_url], tmp_path / "merged")
    assert trees_of(run.url) == trees_of(full.run_url)


def test_runs_that_do_not_belong_together_are_not_merged(
    fit: Fit, arriving: Path, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    out = tmp_path / "merged"
    with pytest.raises(ParameterError, match="share trees from number 0 on"):
        merge([undisturbed.run_url, undisturbed.run_url], out)
    with pytest.raises(ParameterError, match="expected two or more"):
        merge([undisturbed.run_url], out)
    with pytest.raises(ParameterError, match="leave @1000 out"):
        merge([undisturbed.run_url, f"{undisturbed.run_url}@1000"], out)
    seeded = fit("seeded", estimator=forest(random_state=8), first_tree=6)
    with pytest.raises(CheckpointError, match=r"parameters\.seed: \d+ there, \d+ here"):
        merge([undisturbed.run_url, seeded.run_url], out)
    short = fit("short", data=arriving, first_tree=6)
    with pytest.raises(CheckpointError, match="stream: other files"):
        merge([undisturbed.run_url, short.run_url], out)
    assert not out.exists()


def test_a_first_tree_out_of_range_is_refused(fit: Fit) -> None:
    for first_tree in (-1, True, 10**9):
        with pytest.raises(ParameterError, match="first_tree"):
            fit(first_tree=first_tree)
