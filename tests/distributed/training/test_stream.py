"""Steps end where they are asked to, and a stream is the same wherever a run was stopped."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import MondrianKernelClassifier
from dmondrian.checkpoint import Run
from dmondrian.data import make_plan
from dmondrian.distributed import Progress, evaluate, follow, score
from dmondrian.distributed.metrics.sortedness import Sortedness
from dmondrian.distributed.training import run_setup
from dmondrian.distributed.worker import tasks
from dmondrian.errors import CheckpointError
from dmondrian.forest.forest import Forest
from tests.distributed.conftest import OFTEN, ROWS, SETTLED, Fit, digests, forest


class StopError(Exception):
    """Ends a run as a crash does."""


def stop_after(rows: int) -> Any:
    def listen(progress: Progress) -> None:
        if progress.durable >= rows:
            raise StopError

    return listen


@pytest.fixture
def one_group(adult: Path, tmp_path: Path) -> Path:
    """The sample as one row group, some rows without a target, sorted by it."""
    table = pa.concat_tables([pq.read_table(file) for file in sorted(adult.iterdir())])
    table = table.sort_by("income")
    income = table["income"].to_pylist()
    income = [None if i % 7 == 2 else label for i, label in enumerate(income)]
    table = table.set_column(
        table.column_names.index("income"), "income", pa.array(income, pa.string())
    )
    path = tmp_path / "one.parquet"
    pq.write_table(table, path, row_group_size=ROWS)
    return path


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.filterwarnings("ignore:the rows look sorted")
@pytest.mark.thorough(but="True")
def test_checkpoints_are_at_the_rows_asked_for_and_a_run_goes_on_from_them(
    fit: Fit, one_group: Path, shuffle: bool
) -> None:
    options: dict[str, Any] = {"data": one_group, "null_target": "drop", "shuffle": shuffle}
    straight = fit("straight", checkpoint_every=None, **options)
    with pytest.raises(StopError):
        fit(
            "stopped", checkpoint_every="700 rows", progress=stop_after(1400), window=1, **options
        )  # fmt: skip
    run = fit("stopped", checkpoint_every="1100 rows", **options)
    positions = sorted(Run.open(run.run_url).manifests())
    assert positions == [700, 1400, 2200, 3300, 4400, 5500, ROWS]
    assert digests(run) == digests(straight)
    assert run.metrics["rows"] == straight.metrics["rows"] == sum(i % 7 != 2 for i in range(ROWS))
    latest = Run.open(run.run_url).latest()
    assert latest is not None
    assert latest.metrics["counts"]["null_target"] == sum(i % 7 == 2 for i in range(ROWS))
    check_rows(run.run_url)


def check_rows(url: str) -> None:
    """Check that each row before a checkpoint is counted: as learned, or as without a target."""
    for position in Run.open(url).manifests():
        metrics = Run.open(url).manifest(position).metrics
        assert metrics["progressive"]["rows"] + metrics["counts"].get("null_target", 0) == position


@pytest.mark.filterwarnings("ignore:the rows look sorted")
def test_rows_without_a_target_are_counted_where_trees_are_fitted_together(
    fit: Fit, one_group: Path
) -> None:
    estimator = MondrianKernelClassifier(
        2, lifetime=1.5, random_state=7, n_passes=1, batch_size=500
    )
    run = fit(estimator=estimator, data=one_group, null_target="drop", checkpoint_every="700 rows")
    assert len(Run.open(run.run_url).manifests()) > 4
    check_rows(run.run_url)


@pytest.mark.filterwarnings("ignore:the rows look sorted")
def test_sorted_rows_are_learned_as_well_as_mixed_ones_where_they_are_shuffled(
    fit: Fit, adult: Path, tmp_path: Path
) -> None:
    table = pa.concat_tables([pq.read_table(file) for file in sorted(adult.iterdir())])
    pq.write_table(table.sort_by("income"), tmp_path / "sorted.parquet", row_group_size=1500)
    losses = {
        shuffle: fit(f"{shuffle}", data=tmp_path / "sorted.parquet", shuffle=shuffle).metrics
        for shuffle in (False, True)
    }
    as_it_was = fit("as it was").metrics["log_loss"]
    assert losses[True]["log_loss"] == pytest.approx(as_it_was, abs=0.02)
    assert losses[False]["log_loss"] > as_it_was + 0.1


@pytest.mark.usefixtures("talkative")
def test_a_run_that_an_earlier_version_shuffled_goes_on_and_grows_as_it_began(
    fit: Fit, adult: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "arriving"
    folder.mkdir()
    shutil.copy2(adult / "part-0.parquet", folder)
    options: dict[str, Any] = {"data": folder, "shuffle": True, "seed": 3}

    def earlier(data: Any, **given: Any) -> Any:
        return make_plan(data, **{**given, "is_mixed": False})

    with monkeypatch.context() as patch:
        patch.setattr(run_setup, "make_plan", earlier)
        straight = fit("straight", **options)
        with pytest.raises(StopError):
            fit("run", progress=stop_after(1000), window=1, **OFTEN, **options)
        damaged = fit("damaged", checkpoint_every=None, **options)
    assert not straight.plan.bands
    expected = digests(straight)
    run = fit("run", **options)
    assert run.summary["resumed_at"] == 1000
    assert digests(run) == expected
    shutil.copy2(adult / "part-1.parquet", folder)
    grown, other = fit("run", **options), fit("straight", **options)
    assert grown.plan.n_rows == ROWS
    assert not grown.plan.bands
    assert digests(grown) == digests(other)
    (folder / "part-1.parquet").unlink()
    Path(damaged.run_url.removeprefix("file://"), "plan.parquet").unlink()
    assert digests(fit("damaged", **options)) == expected


@pytest.mark.parametrize("left", [None, 100])
def test_a_run_whose_plan_is_lost_goes_on_with_the_files_that_it_began_with(
    client: Client, adult: Path, tmp_path: Path, left: int | None
) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    options = {"target": "income", "run": run, "once": True, "client": client}
    shutil.copy2(adult / "part-0.parquet", data)
    follow(forest(), data, **options)
    plan = run / "plan.parquet"
    plan.unlink() if left is None else os.truncate(plan, left)
    shutil.copy2(adult / "part-1.parquet", data)
    with pytest.raises(CheckpointError, match="plan of that run cannot be read"):
        follow(forest(), data, **options)
    with nullcontext() if left is None else pytest.warns(UserWarning, match="was damaged"):
        follow(forest(), data / "part-0.parquet", **options)
    found = follow(forest(), data, **options)
    assert found is not None
    assert found.plan.n_rows == ROWS


def printed(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "dmondrian"]


def test_a_sorted_file_that_came_later_is_found_while_it_is_learned(
    fit: Fit, adult: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "arriving"
    folder.mkdir()
    table = pq.read_table(adult / "part-0.parquet")
    pq.write_table(table.slice(0, 200), folder / "a.parquet")
    with caplog.at_level("INFO", "dmondrian"):
        fit("run", data=folder)
    assert not any("look sorted" in text for text in printed(caplog))
    pq.write_table(table.slice(200).sort_by("income"), folder / "b.parquet", row_group_size=500)
    with caplog.at_level("INFO", "dmondrian"):
        fit("run", data=folder)
    (reported,) = [text for text in printed(caplog) if "look sorted" in text]
    assert "by the target 'income'" in reported
    assert "shuffle = true" in reported


@pytest.mark.parametrize(
    ("y", "n_classes", "is_sorted"),
    [
        (np.repeat([0.0, 1.0, 2.0], 500), 3, True),
        (np.tile([0.0, 1.0, 2.0], 500), 3, False),
        (np.zeros(1500), 2, False),
        (np.arange(1500.0), 0, True),
        (-np.arange(1500.0) // 3, 0, True),
        (np.random.default_rng(0).normal(size=1500), 0, False),
        (np.cumsum(np.random.default_rng(0).normal(size=1500)), 0, False),
    ],
)
def test_a_stream_is_found_sorted_once_however_it_is_cut(
    y: np.ndarray, n_classes: int, is_sorted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    found = Sortedness("label", n_classes, is_shuffled=True)
    for part in np.array_split(y, 7):
        found.add(part)
        found.add(part[:0])
    assert len(printed(caplog)) == int(is_sorted)
    assert all("random order" in text for text in printed(caplog))


def test_many_small_files_are_learned_scored_and_measured_together(
    fit: Fit, adult: Path, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pq.read_table(adult / "part-0.parquet").slice(0, 1500)
    whole, folder = tmp_path / "whole.parquet", tmp_path / "small"
    pq.write_table(table, whole)
    folder.mkdir()
    for i in range(300):
        pq.write_table(table.slice(5 * i, 5), folder / f"{i:03d}.parquet")
    options: dict[str, Any] = {"checkpoint_every": None, "estimator": forest(**SETTLED)}
    expected = fit("whole", data=whole, **options)
    learned: list[int] = []
    asked: list[int] = []
    learn, ask = tasks._learn, Forest.predict_sums

    def learning(chunk: Any, *about: Any) -> None:
        learned.append(chunk.index)
        learn(chunk, *about)

    def asking(self: Forest, X: np.ndarray, *about: Any, **options: Any) -> Any:
        asked.append(len(X))
        return ask(self, X, *about, **options)

    monkeypatch.setattr(tasks, "_learn", learning)
    monkeypatch.setattr(Forest, "predict_sums", asking)
    run = fit("many", data=folder, progressive=False, **options)
    n_chunks = len(run.plan.chunks)
    assert len(run.plan.blocks) == 300 > 100 * n_chunks
    assert len(learned) == 6 * n_chunks
    assert digests(run) == digests(expected)
    score(run.run_url, folder, tmp_path / "a", client=client)
    measured = evaluate(run.run_url, folder, client=client)
    assert [n for n in asked if n > 2] == [1500, 1500]  # of two rows kernels are compiled
    score(run.run_url, whole, tmp_path / "b", client=client)
    one, other = (pq.read_table(tmp_path / name / "part-000000.parquet") for name in "ab")
    assert one.equals(other)
    reported = evaluate(run.run_url, whole, client=client)
    assert measured["log_loss"] == pytest.approx(reported["log_loss"], rel=1e-12)
    assert (measured["rows"], measured["accuracy"]) == (1500, reported["accuracy"])
