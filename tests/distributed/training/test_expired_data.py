"""Data that a run has learned may go or be written again: it goes on, to the same bytes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian.checkpoint import Run
from dmondrian.data import Plan
from dmondrian.distributed import Progress, grow, train
from dmondrian.distributed.training import run_setup
from dmondrian.errors import CheckpointError, DataError, PlanError
from tests.distributed.conftest import (
    ADULT,
    COLUMNS,
    GROUP,
    ROWS,
    Fit,
    Grow,
    digests,
    forest,
    resize,
)

FILES = ROWS // GROUP


def write_files(folder: Path, first: int = 0, last: int = FILES, rows: int = GROUP) -> None:
    """Write the sample as files of so many rows, each with a time of its own."""
    folder.mkdir(exist_ok=True)
    table = pq.read_table(ADULT, columns=COLUMNS)
    for i in range(first, last):
        path = folder / f"hour-{i:04d}.parquet"
        pq.write_table(table.slice(i * rows, rows), path)
        os.utime(path, ns=(i * 10**9, i * 10**9))


class StopError(Exception):
    """Ends a run as a crash does."""


def stop_after(rows: int) -> Callable[[Progress], None]:
    def listen(progress: Progress) -> None:
        if progress.durable >= rows:
            raise StopError

    return listen


def deleted(path: Path) -> None:
    path.unlink()


def rewritten(path: Path) -> None:
    pq.write_table(pa.table({"something": ["else"]}), path)


def copied_again(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


def renamed(path: Path) -> None:
    path.rename(path.with_name(f"old-{path.name}"))


def moved_into_a_folder(path: Path) -> None:
    (path.parent / "old").mkdir(exist_ok=True)
    shutil.move(path, path.parent / "old")


CHANGES = [
    deleted,
    rewritten,
    copied_again,
    *(pytest.param(one, marks=pytest.mark.thorough) for one in (renamed, moved_into_a_folder)),
]
OTHER_JOBS: list[tuple[dict[str, Any], str]] = [
    ({"exclude": ["age"]}, r'\[data\] exclude: \[\] there, \["age"\] here'),
    ({"target": "sex"}, r"\[data\] target"),
    ({"shuffle": True}, r"\[data\] shuffle"),
    ({"null_target": "drop"}, r"\[data\] null_target"),
    ({"infinite": "clip"}, r"\[data\] infinite"),
    ({"weight": "age", "exclude": []}, r"\[data\] weight"),
    ({"classes": ["<=50K", ">50K", "more"]}, r"\[data\] classes"),
    ({"categorical": ["age"]}, r"\[data\] categorical"),
    ({"max_categories": 1}, r"\[data\] max_categories: 2 there, 1 here"),
    ({"estimator": forest(alpha=0.75)}, "alpha"),
]


@pytest.mark.filterwarnings("ignore:of the .* hold.* other bytes:UserWarning")
@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.thorough(but="deleted")
def test_files_that_were_learned_may_change_and_the_run_goes_on_to_the_same_bytes(
    fit: Fit, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    folder, whole = tmp_path / "data", tmp_path / "whole"
    write_files(folder, last=8)
    write_files(whole, last=8)
    with pytest.raises(StopError):
        fit("run", data=folder, progress=stop_after(2000), window=1)
    position = max(Run.open(tmp_path / "run").manifests())
    assert 2000 <= position < 4000
    for path in sorted(folder.iterdir())[: position // GROUP]:
        change(path)
    run, kept = fit("run", data=folder), fit("kept", data=whole)
    assert run.summary["resumed_at"] == position
    assert digests(run) == digests(kept)
    for path in [path for path in sorted(folder.iterdir()) if path.is_file()]:
        change(path)
    write_files(folder, 8, FILES)
    write_files(whole, 8, FILES)
    run, kept = fit("run", data=folder), fit("kept", data=whole)
    assert run.summary["rows"] == ROWS - 4000
    assert digests(run) == digests(kept)
    assert run.metrics == kept.metrics
    assert fit("run", data=folder).summary["rows"] == 0


@pytest.mark.usefixtures("talkative")
@pytest.mark.thorough
def test_small_files_before_a_checkpoint_within_those_read_together_may_go(
    fit: Fit, tmp_path: Path
) -> None:
    folder, whole = tmp_path / "data", tmp_path / "whole"
    for one in (folder, whole):
        write_files(one, last=250, rows=20)
    options: dict[str, Any] = {"checkpoint_every": "740 rows", "weight": None}
    with pytest.raises(StopError):
        fit("run", data=folder, progress=stop_after(1400), window=1, **options)
    position = max(Run.open(tmp_path / "run").manifests())
    assert position % 1020 != 0  # files are read 51 at a time
    for path in sorted(folder.iterdir())[: position // 20]:
        path.unlink()
    run, kept = fit("run", data=folder, **options), fit("kept", data=whole, **options)
    assert run.summary["resumed_at"] == position
    assert digests(run) == digests(kept)
    assert run.metrics == kept.metrics


@pytest.mark.usefixtures("talkative")
@pytest.mark.thorough
def test_rows_without_a_target_and_weights_are_placed_though_files_before_them_are_gone(
    fit: Fit, tmp_path: Path
) -> None:
    folder, whole = tmp_path / "data", tmp_path / "whole"
    table = pq.read_table(ADULT, columns=COLUMNS).slice(0, 3000)
    income = [None if i % 7 == 2 else text for i, text in enumerate(table["income"].to_pylist())]
    table = table.set_column(table.column_names.index("income"), "income", pa.array(income))
    table = table.append_column("w", pa.array([1.0 + i % 3 for i in range(3000)]))
    for one in (folder, whole):
        one.mkdir()
        for i in range(60):
            pq.write_table(table.slice(i * 50, 50), one / f"{i:02d}.parquet")
    options: dict[str, Any] = {"null_target": "drop", "weight": "w"}
    options["checkpoint_every"] = "330 rows"
    with pytest.raises(StopError):
        fit("run", data=folder, progress=stop_after(1300), window=1, **options)
    position = max(Run.open(tmp_path / "run").manifests())
    for path in sorted(folder.iterdir())[: position // 50]:
        path.unlink()
    run, kept = fit("run", data=folder, **options), fit("kept", data=whole, **options)
    assert run.summary["resumed_at"] == position
    assert digests(run) == digests(kept)
    assert run.metrics == kept.metrics


@pytest.mark.usefixtures("talkative")
def test_a_file_that_is_not_learned_yet_is_needed(fit: Fit, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write_files(folder)
    with pytest.raises(StopError):
        fit("run", data=folder, progress=stop_after(2000), window=1)
    last = folder / f"hour-{FILES - 1:04d}.parquet"
    content = last.read_bytes()
    last.unlink()
    with pytest.raises(PlanError, match=r"hour-0011\.parquet is gone.*has not learned all"):
        fit("run", data=folder)
    rewritten(last)
    with pytest.raises(PlanError, match=r"hour-0011\.parquet changed"):
        fit("run", data=folder)
    last.write_bytes(content)  # with another time
    write_files(tmp_path / "whole")
    assert digests(fit("run", data=folder)) == digests(fit("kept", data=tmp_path / "whole"))


@pytest.mark.usefixtures("talkative")
@pytest.mark.thorough
def test_files_that_are_mixed_are_needed_until_all_of_them_are_learned(
    fit: Fit, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    write_files(folder)
    options: dict[str, Any] = {"data": folder, "shuffle": True}
    with pytest.raises(StopError):
        fit("run", progress=stop_after(2000), window=1, **options)
    first = folder / "hour-0000.parquet"
    first.rename(tmp_path / "away")
    with pytest.raises(PlanError, match=r"hour-0000\.parquet is gone"):
        fit("run", **options)
    (tmp_path / "away").rename(first)
    run = fit("run", **options)
    assert digests(run) == digests(fit("straight", **options))
    for path in folder.iterdir():
        path.unlink()
    assert fit("run", **options).summary["rows"] == 0


def test_a_loss_replays_from_the_last_checkpoint_without_the_files_before(
    cluster: Grow, tmp_path: Path
) -> None:
    folder, whole = tmp_path / "data", tmp_path / "whole"
    for one in (folder, whole):
        write_files(one)
    pair, client = cluster(2)
    lost: list[int] = []

    def expire(progress: Progress) -> None:
        if progress.durable >= 2000 and not lost:
            lost.append(progress.durable)
            for path in sorted(folder.iterdir())[: progress.durable // GROUP]:
                path.unlink()
            resize(pair, client, 1)

    options: dict[str, Any] = {"target": "income", "client": client}
    options["checkpoint_every"] = "1000 rows"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dmondrian.distributed.worker.work_units.UNIT_ROWS", 500)
        patch.setattr("dmondrian.distributed.cluster.progress.ProgressReporter.interval", 0.0)
        run = train(forest(), folder, run=tmp_path / "run", progress=expire, window=1, **options)
    assert lost
    assert run.summary["recoveries"] > 0
    straight = train(forest(), whole, run=tmp_path / "straight", **options)
    assert digests(run) == digests(straight)


def test_all_data_may_be_gone_and_nothing_has_come(
    fit: Fit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    write_files(folder, last=2)
    for name, source in (
        ("folder", folder),
        ("glob", f"{folder}/*.parquet"),
        ("file", [folder / "hour-0000.parquet", folder / "hour-0001.parquet"]),
    ):
        fit(name, data=source)
    for path in folder.iterdir():
        path.unlink()
    for name, source in (
        ("folder", folder),
        ("glob", f"{folder}/*.parquet"),
        ("file", [folder / "hour-0000.parquet", folder / "hour-0001.parquet"]),
    ):
        caplog.clear()
        with caplog.at_level("INFO", "dmondrian"):
            assert fit(name, data=source).summary["rows"] == 0
        (note,) = [text for text in caplog.messages if "not among the data any more" in text]
        assert note.startswith("of the 2 files of the stream 2 are not among the data any more")
        assert Run.open(tmp_path / name).stream.notes() == [note]
    with pytest.raises(DataError, match="does not exist"):
        fit("folder", data=tmp_path / "elsewhere")
    folder.rmdir()
    assert fit("folder", data=folder).summary["rows"] == 0


def test_a_file_that_is_replaced_each_hour_is_warned_of_and_the_run_notes_it(
    fit: Fit, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    write_files(folder, last=1)
    fit("run", data=folder)
    write_files(tmp_path / "next", 1, 2)
    (tmp_path / "next/hour-0001.parquet").rename(folder / "hour-0000.parquet")
    with pytest.warns(UserWarning, match="1 holds other bytes .* are NOT learned"):
        run = fit("run", data=folder)
    assert run.summary["rows"] == 0
    (note,) = Run.open(tmp_path / "run").stream.notes()
    assert f"{folder}/hour-0000.parquet: the rows that they hold now are NOT learned" in note


def test_logs_that_are_rotated_are_learned_once(fit: Fit, tmp_path: Path) -> None:
    folder, whole = tmp_path / "data", tmp_path / "whole"
    for name, one in (("run", folder), ("kept", whole)):
        write_files(one, last=1)
        fit(name, data=one)
    app = folder / "hour-0000.parquet"
    app.rename(folder / "hour-0000.1.parquet")
    write_files(tmp_path / "next", 1, 2)
    (tmp_path / "next/hour-0001.parquet").rename(app)
    with pytest.raises(DataError, match=r"hour-0000\.parquet is a new file with the name"):
        fit("run", data=folder)
    app.rename(folder / "hour-0001.parquet")
    write_files(whole, 1, 2)
    run = fit("run", data=folder)
    assert run.summary["rows"] == GROUP
    assert digests(run) == digests(fit("kept", data=whole))


def test_other_data_than_those_of_the_run_are_refused(fit: Fit, tmp_path: Path) -> None:
    write_files(tmp_path / "data", last=2)
    write_files(tmp_path / "other", 2, 4)
    fit("run", data=tmp_path / "data")
    with pytest.raises(PlanError, match="these are other data than those of the run"):
        fit("run", data=tmp_path / "other")


@pytest.mark.parametrize("is_noted", [True, False])
def test_another_job_is_refused_though_the_data_it_would_read_are_gone(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_noted: bool
) -> None:
    folder = tmp_path / "data"
    write_files(folder, last=2)
    if not is_noted:  # as plans of earlier versions are
        make = run_setup.make_plan
        monkeypatch.setattr(
            run_setup, "make_plan", lambda *data, **given: replace(make(*data, **given), asked=None)
        )
    began = fit("run", data=folder)
    assert (began.plan.asked is not None) == is_noted
    for path in folder.iterdir():
        path.unlink()
    write_files(folder, 2, 3)
    for options, named in OTHER_JOBS:
        with pytest.raises(CheckpointError, match=f"another job(.|\n)*{named}"):
            fit("run", data=folder, **options)
    same: dict[str, Any] = {"exclude": [], "categorical": ["sex"], "max_categories": 70}
    assert fit("run", data=folder, **same).summary["rows"] == GROUP


def test_growing_needs_the_data_and_names_what_is_missing(
    fit: Fit, client: Client, tmp_path: Path
) -> None:
    fit = partial(fit, estimator=forest())
    folder = tmp_path / "data"
    write_files(folder, last=5)
    run = fit("run", data=folder)
    (folder / "hour-0001.parquet").rename(tmp_path / "away")
    (folder / "hour-0003.parquet").unlink()
    content = (folder / "hour-0004.parquet").read_bytes()
    rewritten(folder / "hour-0004.parquet")
    with pytest.raises(DataError) as caught:
        grow(run.run_url, 8, client=client)
    assert (
        f"2 of the 5 files are gone ({folder}/hour-0001.parquet, {folder}/hour-0003.parquet) and "
        f"1 of the 5 files is changed ({folder}/hour-0004.parquet)" in str(caught.value)
    )
    assert not Path(tmp_path / "run" / "growth").exists()
    (tmp_path / "away").rename(folder / "hour-0001.parquet")
    write_files(folder, 3, 4)
    (folder / "hour-0004.parquet").write_bytes(content)
    os.utime(folder / "hour-0004.parquet", ns=(4 * 10**9, 4 * 10**9))
    assert grow(run.run_url, 8, client=client).summary["rows"] == 5 * GROUP


def test_a_plan_keeps_what_was_asked(fit: Fit, tmp_path: Path) -> None:
    write_files(tmp_path / "data", last=2)
    plan = fit("run", data=tmp_path / "data", exclude=("age",), max_categories=64).plan
    assert plan.asked == '{"exclude":["age"],"target":"income"}'
    assert Plan.from_parquet(plan.to_parquet()) == plan
