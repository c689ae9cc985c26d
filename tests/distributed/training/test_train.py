"""The promise: workers, threads, intervals, losses and restarts do not change one byte."""

from __future__ import annotations

import json
import os
import shutil
import signal
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from distributed import Client

import dmondrian
from dmondrian import AMFRegressor
from dmondrian.checkpoint import Run
from dmondrian.data import read_block
from dmondrian.distributed import Progress, TrainedRun, train
from dmondrian.distributed.training import run_setup
from dmondrian.errors import CheckpointError, DataError, ParameterError, PlanError, StoreError
from dmondrian.store import Store
from tests.distributed.conftest import (
    CHOSEN,
    OFTEN,
    ROWS,
    SETTLED,
    Fit,
    Once,
    digests,
    forest,
    worker_processes,
)


@pytest.mark.parametrize("settings", [SETTLED, CHOSEN], ids=["settled", "chosen"])
@pytest.mark.thorough(but="settled")
def test_the_run_is_what_one_estimator_learns_in_one_piece(
    fit: Fit, settings: dict[str, Any]
) -> None:
    run = fit(estimator=forest(**settings))
    plan = run.plan
    encoded = [read_block(plan, block) for block in plan.blocks]
    X = np.concatenate([e.X for e in encoded])
    labels = np.array(plan.schema.classes)[np.concatenate([e.y for e in encoded]).astype(int)]
    alone = forest(**settings).fit(X, labels)
    shared = run.to_local()
    rows = pd.DataFrame(X[:500], columns=plan.schema.feature_names)
    assert np.array_equal(shared.predict_proba(rows), alone.predict_proba(X[:500]))
    header, trees = shared.forest_.state()
    expected_header, expected = alone.forest_.state()
    assert header == expected_header
    for there, here in zip(trees, expected, strict=True):
        assert all(np.array_equal(there[name], here[name]) for name in here)


def test_metrics_and_curve_are_of_all_rows(undisturbed: TrainedRun) -> None:
    metrics = undisturbed.metrics
    assert metrics["rows"] == ROWS
    assert 0.3 < metrics["log_loss"] < 0.6
    assert metrics["curve"][0]["rows"] == 32
    assert metrics["curve"][0]["log_loss"] < np.log(2)  # the rows among them were learned
    assert metrics["curve"][-1]["log_loss"] == metrics["log_loss"]
    assert undisturbed.summary["recoveries"] == 0


@pytest.mark.parametrize(
    "options",
    [
        {"checkpoint_every": None},
        {"checkpoint_every": "0.01 s"},
        {"checkpoint_every": "700 rows"},
        {"n_shards": 6, "window": 1},
        {"progressive": False},
    ],
    ids=str,
)
def test_options_of_a_run_do_not_change_a_tree(
    fit: Fit, undisturbed: TrainedRun, options: dict[str, Any]
) -> None:
    assert digests(fit(**options)) == digests(undisturbed)


def test_fewer_shards_hold_the_same_trees(fit: Fit, undisturbed: TrainedRun) -> None:
    run = fit(n_shards=2)
    assert len(digests(run)) == 2
    assert run.metrics["log_loss"] == pytest.approx(undisturbed.metrics["log_loss"], rel=1e-12)
    trees = run.to_local().forest_.state()[1]
    expected = undisturbed.to_local().forest_.state()[1]
    for there, here in zip(trees, expected, strict=True):
        assert all(np.array_equal(there[name], here[name]) for name in here)


def test_worker_processes_and_threads_do_not_change_a_byte(
    adult: Path, tmp_path: Path, undisturbed: TrainedRun
) -> None:
    run = train(
        forest(), adult, target="income", run=tmp_path / "run", n_workers=2, threads=2,
        checkpoint_every="1000 rows",
    )  # fmt: skip
    assert digests(run) == digests(undisturbed)
    assert run.summary["workers"] == 2
    last = f"manifests/{ROWS:012d}.json"
    ours, theirs = (Path(r.run_url, last).read_bytes() for r in (run, undisturbed))
    assert ours == theirs


def interrupt(times: int = 1) -> None:
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)


class KillAt:
    """A listener that kills a worker process with SIGKILL when a row is reached."""

    def __init__(self, client: Client, row: int, times: int = 1) -> None:
        self.client, self.row, self.times = client, row, times
        self.killed: list[int] = []

    def __call__(self, progress: Progress) -> None:
        if progress.rows >= self.row and len(self.killed) < self.times:
            pids = self.client.run(os.getpid)
            pid = pids[sorted(pids)[0]]
            self.killed.append(pid)
            os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("n_workers", [1, 2])
@pytest.mark.thorough(but="1")
def test_a_killed_worker_costs_its_shards_a_replay_and_nothing_else(
    adult: Path, tmp_path: Path, undisturbed: TrainedRun, pair: Client, n_workers: int
) -> None:
    with worker_processes(1) if n_workers == 1 else nullcontext(pair) as client:
        kill = KillAt(client, 2000)
        run = train(
            forest(), adult, target="income", run=tmp_path / "run", client=client,
            checkpoint_every="1000 rows", progress=kill, window=1,
        )  # fmt: skip
    assert len(kill.killed) == 1
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics
    assert run.summary["recoveries"] == 6 // n_workers
    assert run.summary["rows_replayed"] <= run.summary["recoveries"] * 5000


@pytest.fixture
def finished(undisturbed: TrainedRun, tmp_path: Path) -> Path:
    """A copy of a finished run, which `fit` finds."""
    return Path(shutil.copytree(undisturbed.run_url, tmp_path / "run"))


def test_a_finished_run_does_nothing_again(
    fit: Fit, finished: Path, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit()  # notes where the copy is
    there = {p: p.stat().st_mtime_ns for p in finished.rglob("*") if p.is_file()}
    monkeypatch.setattr("dmondrian.distributed.training.attempt.Coordinator", None)
    again = fit()
    assert again.metrics == undisturbed.metrics
    assert {p: p.stat().st_mtime_ns for p in there} == there


@pytest.mark.usefixtures("talkative")
def test_the_first_interrupt_saves_and_the_same_call_goes_on(
    fit: Fit, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="run the same command again"):
        fit(checkpoint_every=None, window=1, progress=Once(interrupt))
    assert signal.getsignal(signal.SIGINT) is before
    positions = Run.open(tmp_path / "run").manifests()
    assert len(positions) == 1
    assert 0 < positions[0] < ROWS
    run = fit(checkpoint_every=None)
    assert run.summary["resumed_at"] == positions[0]
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics


@pytest.mark.usefixtures("talkative")
def test_the_second_interrupt_stops_at_once(
    fit: Fit, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt, match="at once"):
        fit(checkpoint_every=None, window=1, progress=Once(lambda: interrupt(times=2)))
    assert Run.open(tmp_path / "run").manifests() == []
    assert digests(fit()) == digests(undisturbed)


@pytest.mark.thorough
def test_a_run_goes_on_from_any_of_its_checkpoints(
    fit: Fit, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    for n_kept in (1, 3):
        name = f"run-{n_kept}"
        run = fit(name, **OFTEN)
        for manifest in sorted(Path(run.run_url, "manifests").iterdir())[n_kept:]:
            manifest.unlink()
        again = fit(name, checkpoint_every="1300 rows")
        assert again.summary["resumed_at"] == 1000 * n_kept
        assert digests(again) == digests(undisturbed)
        assert again.metrics == undisturbed.metrics


def test_a_damaged_blob_of_the_newest_checkpoint_falls_back_to_the_one_before(
    fit: Fit, finished: Path, undisturbed: TrainedRun
) -> None:
    blob = finished / "blobs" / digests(finished)[3]
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        again = fit()
    assert any("passed over" in str(warning.message) for warning in reported)
    assert again.summary["resumed_at"] == ROWS - 1000
    assert digests(again) == digests(undisturbed)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
@pytest.mark.thorough(but="flip")
def test_a_run_that_goes_on_passes_over_checkpoints_that_workers_find_damaged(
    fit: Fit, finished: Path, undisturbed: TrainedRun, damage: Callable[[Path], None]
) -> None:
    kept, *later = sorted((finished / "manifests").iterdir())[1:]
    before = {path.name: path.read_bytes() for path in later}
    for manifest in later[2:]:
        manifest.unlink()
    opened = Run.open(finished)
    for position, shard in ((4000, 3), (3000, 0)):
        damage(Path(finished, "blobs", opened.manifest(position).shards[shard]["digest"]))
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        again = fit(**OFTEN)
    passed = [str(one.message) for one in reported if "passed over" in str(one.message)]
    assert ["4000" in text or "3000" in text for text in passed] == [True, True]
    assert again.summary["resumed_at"] == 2000
    assert kept.name == "000000002000.json"
    assert digests(again) == digests(undisturbed)
    assert again.metrics == undisturbed.metrics
    written = sorted((finished / "manifests").iterdir())[2:]
    assert {path.name: path.read_bytes() for path in written} == before
    for position in opened.manifests():
        assert opened.manifest(position, verify=True).position == position  # all is repaired


@pytest.mark.parametrize("n_damaged", [1, 2])
@pytest.mark.thorough(but="1")
def test_without_a_whole_checkpoint_a_run_begins_anew(
    fit: Fit, finished: Path, undisturbed: TrainedRun, n_damaged: int
) -> None:
    for manifest in sorted((finished / "manifests").iterdir())[n_damaged:]:
        manifest.unlink()
    opened = Run.open(finished)
    for position in opened.manifests():
        flip(Path(finished, "blobs", opened.manifest(position).shards[2]["digest"]))
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        again = fit()
    texts = [str(warning.message) for warning in reported]
    assert sum("passed over" in text for text in texts) == n_damaged
    assert again.summary["resumed_at"] == 0
    assert digests(again) == digests(undisturbed)


def test_a_coordinator_that_goes_on_reads_no_blob(
    fit: Fit,
    pair: Client,
    finished: Path,
    undisturbed: TrainedRun,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manifests = sorted((finished / "manifests").iterdir())
    for manifest in manifests[3:]:
        manifest.unlink()
    get, get_range, n_read = Store.get, Store.get_range, dict[str, int]()

    def count(name: str, data: bytes) -> bytes:
        n_read[name] = n_read.get(name, 0) + len(data)
        return data

    monkeypatch.setattr(Store, "get", lambda self, name, *a: count(name, get(self, name, *a)))
    monkeypatch.setattr(
        Store, "get_range", lambda self, name, *a: count(name, get_range(self, name, *a))
    )
    again = fit(client=pair)
    read = dict(n_read)
    assert again.summary["resumed_at"] == 3000
    assert {"run.json", "plan.parquet"} <= set(read)
    assert not [name for name in read if name.startswith("blobs/")]
    others = [path for path in finished.rglob("*") if path.is_file()]
    n_bytes = sum(path.stat().st_size for path in others if path.parent.name != "blobs")
    assert sum(read.values()) < 4 * n_bytes  # some are read more than once
    assert digests(again) == digests(undisturbed)


@pytest.mark.thorough
def test_shards_are_by_default_as_many_as_trees_and_an_older_run_keeps_its_own(
    fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With equal metrics: neither they nor any tree depends on how trees are cut into shards."""

    def shards(run: TrainedRun) -> list[list[int]]:
        return Run.open(run.run_url).run_json["shards"]

    trees = forest(n_estimators=14)
    new = fit("new", estimator=trees)
    assert shards(new) == [[i, i + 1] for i in range(14)]
    with monkeypatch.context() as patch:
        patch.setattr(run_setup, "MOST_SHARDS", 12)  # as in earlier versions
        old = fit("old", estimator=trees, **OFTEN)
    expected = shards(old)
    assert len(expected) == 12
    for manifest in sorted(Path(old.run_url, "manifests").iterdir())[3:]:
        manifest.unlink()
    again = fit("old", estimator=trees)
    assert again.summary["resumed_at"] == 3000
    assert shards(again) == expected
    assert new.metrics == old.metrics == again.metrics
    assert digests(again) == digests(old)
    with monkeypatch.context() as patch:
        patch.setattr(run_setup, "MOST_SHARDS", 3)
        assert len(shards(fit("few", estimator=trees))) == 3


@pytest.mark.usefixtures("talkative")
def test_a_run_keeps_its_newest_checkpoints_and_can_go_on_from_each(
    fit: Fit, undisturbed: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, seen = Run.commit, []

    def note(self: Run, *about: Any, **more: Any) -> Any:
        for position in self.manifests():
            self.manifest(position, verify=True)  # whole at any moment
        seen.append(self.manifests())
        return commit(self, *about, **more)

    monkeypatch.setattr(Run, "commit", note)
    run = fit(keep=2, **OFTEN)
    opened = Run.open(run.run_url)
    assert seen == [[], [1000], [1000, 2000], [2000, 3000], [3000, 4000], [4000, 5000]]
    assert opened.manifests() == [5000, 6000]
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics
    blobs = {shard["digest"] for p in (5000, 6000) for shard in opened.manifest(p).shards.values()}
    assert {path.name for path in Path(run.run_url, "blobs").iterdir()} == blobs
    flip(Path(run.run_url, "blobs", digests(run)[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = fit(keep=2)
    assert again.summary["resumed_at"] == 5000
    assert digests(again) == digests(undisturbed)


@pytest.mark.parametrize("keep", [1, 0, True, 2.0])
def test_fewer_than_two_checkpoints_are_refused(fit: Fit, keep: Any) -> None:
    with pytest.raises(ParameterError, match="keep is"):
        fit(keep=keep)


def test_a_drawn_seed_is_kept_when_the_run_goes_on(fit: Fit, tmp_path: Path) -> None:
    first = fit(estimator=forest(random_state=None))
    expected = digests(first)
    for manifest in sorted(Path(first.run_url, "manifests").iterdir())[2:]:
        manifest.unlink()
    assert digests(fit(estimator=forest(random_state=None))) == expected


@pytest.mark.usefixtures("finished")
def test_a_folder_of_another_job_is_refused_and_the_difference_named(fit: Fit) -> None:
    others: list[tuple[dict[str, Any], str]] = [
        ({"estimator": forest(random_state=8)}, "random_state"),
        ({"estimator": forest(n_estimators=7)}, "n_estimators"),
        ({"n_shards": 3}, "shards"),
        ({"exclude": ["age"]}, r'\[data\] exclude: \[\] there, \["age"\] here'),
        ({"progressive": False}, "progressive"),
    ]
    for options, named in others:
        with pytest.raises(CheckpointError, match=f"another job(.|\n)*{named}"):
            fit(**options)


@pytest.mark.usefixtures("talkative")
def test_a_file_that_changes_under_the_run_stops_it_by_name(
    adult: Path, fit: Fit, tmp_path: Path
) -> None:
    copy = tmp_path / "data"
    copy.mkdir()
    for file in adult.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())

    def change(_: object) -> None:
        with (copy / "part-1.parquet").open("ab") as file:
            file.write(b"PAR1")

    with pytest.raises(PlanError, match=r"part-1\.parquet"):
        fit(data=copy, on_plan=change)  # before a block is read


def test_a_truncated_file_is_refused_by_name(adult: Path, fit: Fit, tmp_path: Path) -> None:
    data = (adult / "part-0.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"cut\.parquet"):
        fit(data=tmp_path / "cut.parquet")


def test_a_file_damaged_inside_stops_the_run_by_name(adult: Path, fit: Fit, tmp_path: Path) -> None:
    data = bytearray((adult / "part-0.parquet").read_bytes())
    group = pq.ParquetFile(adult / "part-0.parquet").metadata.row_group(3).column(0)
    start = group.dictionary_page_offset or group.data_page_offset
    data[start : start + group.total_compressed_size] = b"\xff" * group.total_compressed_size
    (tmp_path / "bad.parquet").write_bytes(data)
    with pytest.raises(DataError, match=r"bad\.parquet"):
        fit(data=tmp_path / "bad.parquet")


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_reported(fit: Fit, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o500)
    with pytest.raises(StoreError):
        fit()


def test_a_file_in_the_place_of_the_folder_is_reported(fit: Fit, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    with pytest.raises((StoreError, CheckpointError), match="run"):
        fit()


@pytest.mark.parametrize(
    "options",
    [
        {"n_shards": 0},
        {"n_shards": 7},
        {"window": 0},
        {"checkpoint_every": "often"},
        {"target": None},
        {"n_workers": 2},
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(fit: Fit, options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(options))):
        fit(**options)


def test_a_regressor_learns_and_reports(fit: Fit) -> None:
    estimator = AMFRegressor(n_estimators=3, feature_scales=None, random_state=1)
    run = fit(estimator=estimator, target="age")
    assert set(run.metrics) == {
        "rows", "rmse", "mae", "r2", "forecast", "delay", "window", "faded", "baselines", "drift",
        "windows", "curve",
    }  # fmt: skip
    assert isinstance(dmondrian.load(run.run_url), AMFRegressor)
    assert 0 < run.metrics["rmse"] < 20


def test_an_attempt_is_noted_with_its_outcome(undisturbed: TrainedRun) -> None:
    (note,) = Path(undisturbed.run_url, "attempts").iterdir()
    info = json.loads(note.read_text())
    assert info["outcome"] == "finished"
    assert info["summary"]["rows"] == ROWS


def test_progress_is_one_line_with_everything(fit: Fit) -> None:
    lines: list[str] = []
    reported: list[Progress] = []

    def listen(progress: Progress) -> None:
        reported.append(progress)
        lines.append(progress.line())

    fit(progress=listen)
    assert reported[-1].rows == reported[-1].n_rows == reported[-1].durable == ROWS
    for word in ("6,000 of 6,000 rows", "rows/s", "log_loss", "saved at 6,000", "left"):
        assert word in lines[-1]
    assert "\n" not in "".join(lines)
