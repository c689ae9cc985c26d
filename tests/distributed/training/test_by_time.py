"""Runs whose labels come by a column of times: the bytes of one process, whatever happens."""

from __future__ import annotations

import logging
import os
import pickle
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import AMFClassifier, AMFRegressor, load
from dmondrian.checkpoint import Run
from dmondrian.data import make_plan, read_block
from dmondrian.displays import LearningCurveDisplay
from dmondrian.distributed import Progress, TrainedRun, evaluate, score, submit, train
from dmondrian.drift import label_blocks
from dmondrian.drift.drift_forest import DriftForest
from dmondrian.errors import (
    CheckpointError,
    DataError,
    DMondrianError,
    ParameterError,
    SchemaError,
)
from dmondrian.report.facts import gather
from dmondrian.report.rerun_job import job_of
from dmondrian.report.sections import learning, overview
from tests.cli.command import call
from tests.distributed.conftest import Once, digests
from tests.distributed.training.test_stream import StopError, stop_after
from tests.drift.streams import switching

N = 2400
BOOSTED: dict[str, Any] = {"experts": ("mondrian", "boosted")}
CLASSES, NUMBERS = AMFClassifier, AMFRegressor


def by_time(kind: Any = CLASSES, delay: Any = "2 days", **others: Any) -> Any:
    return kind(4, drift="follow", delay=delay, random_state=7, **others)


def times_of() -> np.ndarray:
    """Return times in microseconds: some 80 rows in two days, a gap of weeks, and rows late."""
    rng = np.random.default_rng(3)
    seconds = np.cumsum(rng.integers(0, 4200, N))
    seconds[1300:] += 21 * 86400
    late = rng.random(N) < 0.004
    seconds = np.where(late, seconds - rng.integers(0, 9 * 86400, N), seconds)
    return np.datetime64("2024-03-01", "us") + seconds.astype("timedelta64[s]")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files, whose times are of other units and zones; some rows lack a label or weight."""
    folder = tmp_path_factory.mktemp("rows")
    X, y = switching(N)
    w = np.random.default_rng(5).choice([0.0, 0.5, 1.0, 3.0], N)
    labels = [None if i % 97 == 5 else int(label) for i, label in enumerate(y)]
    kinds = [pa.timestamp("ns"), pa.timestamp("us", "Asia/Tokyo"), pa.timestamp("ms")]
    for i, part in enumerate(np.array_split(np.arange(N), 3)):
        columns: dict[str, Any] = {f"x{j}": X[part, j] for j in range(4)}
        columns["at"] = pa.array(times_of()[part]).cast(kinds[i])
        columns |= {"w": w[part], "y": labels[part[0] : part[-1] + 1]}
        pq.write_table(pa.table(columns), folder / f"{i}.parquet", row_group_size=370)
    return folder


def trained(rows: Path, run: Path, estimator: Any = None, **options: Any) -> TrainedRun:
    options = {"checkpoint_every": "370 rows", **options}
    return train(
        by_time() if estimator is None else estimator, rows, run=run, target="y", weight="w",
        time="at", exclude=["at"], null_target="drop", progress=options.pop("progress", False),
        **options,
    )  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[
        # Boosted sets are beside the same members, and learn the same blocks.
        pytest.param((CLASSES, {}), id="classes", marks=pytest.mark.thorough),
        pytest.param((CLASSES, BOOSTED), id="boosted"),
        pytest.param((NUMBERS, {}), id="numbers"),
    ],
)
def run(
    request: pytest.FixtureRequest,
    rows: Path,
    client: Client,
    tmp_path_factory: pytest.TempPathFactory,
) -> TrainedRun:
    """A run that nothing disturbs."""
    kind, others = request.param
    folder = tmp_path_factory.mktemp("by_time") / "run"
    return trained(rows, folder, by_time(kind, **others), client=client)


def estimator_of(run: TrainedRun) -> Any:
    return type(run.to_local())(**Run.open(run.run_url).run_json["estimator"])


def encoded(run: TrainedRun) -> dict[str, np.ndarray]:
    """Return all rows as the run encoded them."""
    blocks = [read_block(run.plan, block) for block in run.plan.blocks]
    names = ("X", "y", "weight", "times")
    return {name: np.concatenate([getattr(block, name) for block in blocks]) for name in names}


def learned(run: TrainedRun, first: Any, stop: int = N, start: int = 0) -> Any:
    """Let an estimator learn rows of a run on arrays, in two calls."""
    its = encoded(run)
    classes = run.plan.schema.classes
    labels = its["y"] if classes is None else np.array(classes)[its["y"].astype(int)]
    times = its["times"].astype("datetime64[us]")
    named = {} if classes is None else {"classes": list(classes)}
    middle = (start + min(stop, len(labels))) // 2 + 3
    for part in (slice(start, middle), slice(middle, stop)):
        first.partial_fit(
            its["X"][part], labels[part], **named, sample_weight=its["weight"][part],
            times=times[part],
        )  # fmt: skip
    return first


def state_of(model: Any) -> bytes:
    return pickle.dumps(model.forest_.state())


@pytest.mark.thorough(but="numbers")
def test_a_run_is_the_forest_of_one_process(run: TrainedRun) -> None:
    shared = run.to_local()
    assert isinstance(shared.forest_, DriftForest)
    clock = shared.forest_.blocks.clock
    assert clock.block > 30
    assert clock.n_late > 3
    assert state_of(shared) == state_of(learned(run, estimator_of(run)))


def test_a_run_is_asked_by_who_knows_its_last_block(run: TrainedRun) -> None:
    shared, X = run.to_local(), encoded(run)["X"][:200]
    alone = learned(run, estimator_of(run))
    assert alone.n_waiting_ == shared.n_waiting_ > 0
    assert not np.array_equal(alone.predict(X), shared.predict(X))
    alone.forest_.labels_are_known = True
    np.testing.assert_array_equal(alone.predict(X), shared.predict(X))


def test_times_are_those_of_the_files(run: TrainedRun) -> None:
    labelled = np.array([i % 97 != 5 for i in range(N)])
    expected = times_of()[labelled].astype("datetime64[ms]").astype("datetime64[us]")
    np.testing.assert_array_equal(encoded(run)["times"].astype("datetime64[us]"), expected)
    assert "at" not in run.plan.schema.feature_names


def test_metrics_are_those_of_every_forecast_of_the_guard(run: TrainedRun) -> None:
    its = encoded(run)
    forest = DriftForest(run.to_local().forest_.parameters, range(4))
    w, some = its["weight"], its["weight"] > 0
    result = forest.forecast_and_learn(its["X"], its["y"], w, times=its["times"])
    y, w = its["y"][some], w[some]
    days = (its["times"][some] - its["times"][some][0]) // (2 * 86_400_000_000)
    block = np.maximum.accumulate(np.maximum(days, 0.0))
    begins = np.concatenate([[True], np.diff(block) > 0])
    known = y[np.maximum(np.maximum.accumulate(np.where(begins, np.arange(len(y)), 0)) - 1, 0)]
    if run.plan.schema.classes is None:
        means = np.where(block == 0, y[0], result[:, 0])  # the first label, until some is learned
        assert run.metrics["rmse"] == pytest.approx(
            np.sqrt(np.average((means - y) ** 2, weights=w)), rel=1e-12
        )
        errors = np.where(block == 0, y[0], known) - y
        found = run.metrics["baselines"]["last_label_by_delay"]["mae"]
        assert found == pytest.approx(np.average(np.abs(errors), weights=w), rel=1e-12)
        return
    losses = -np.log(result[np.arange(len(y)), y.astype(int)])
    assert run.metrics["log_loss"] == pytest.approx(np.average(losses, weights=w), rel=1e-12)
    hits = np.average(
        known == y, weights=w
    )  # in the first block the most frequent class is predicted
    of_last = run.metrics["baselines"]["last_label_by_delay"]["accuracy"]
    assert of_last == pytest.approx(hits, abs=w[block == 0].sum() / w.sum())


@pytest.mark.thorough
def test_any_checkpoint_goes_on_in_an_open_block(run: TrainedRun) -> None:
    positions = Run.open(run.run_url).manifests()
    assert len(positions) > 3
    whole = state_of(run.to_local())
    lacking = np.cumsum([i % 97 == 5 for i in range(N)])
    for position in positions[:3]:
        before: Any = load(f"{run.run_url}@{position}")
        assert before.n_waiting_ > 0
        start = position - int(lacking[position - 1])
        assert state_of(learned(run, before, start=start)) == whole


@pytest.mark.parametrize(
    "n_shards", [*(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 2)), 3]
)
@pytest.mark.thorough
def test_shards_and_checkpoints_change_no_byte(
    run: TrainedRun, rows: Path, client: Client, tmp_path: Path, n_shards: int
) -> None:
    options: dict[str, Any] = {"n_shards": n_shards, "checkpoint_every": None}
    other = trained(rows, tmp_path / "run", estimator_of(run), client=client, **options)
    assert len(digests(other)) == n_shards
    assert state_of(other.to_local()) == state_of(run.to_local())
    assert other.metrics == run.metrics


@pytest.mark.thorough
def test_a_run_that_was_stopped_goes_on(
    run: TrainedRun, rows: Path, client: Client, tmp_path: Path
) -> None:
    with pytest.raises(StopError):
        trained(rows, tmp_path / "run", estimator_of(run), client=client, progress=stop_after(740))
    other = trained(rows, tmp_path / "run", estimator_of(run), client=client)
    assert other.summary["resumed_at"] >= 740
    assert state_of(other.to_local()) == state_of(run.to_local())
    assert other.metrics == run.metrics


@pytest.mark.usefixtures("talkative")
@pytest.mark.thorough
def test_a_killed_worker_changes_no_byte(
    run: TrainedRun, rows: Path, pair: Client, tmp_path: Path
) -> None:
    pid = min(pair.run(os.getpid).values())
    kill = Once(partial(os.kill, pid, signal.SIGKILL))
    other = trained(rows, tmp_path / "run", estimator_of(run), client=pair, progress=kill, window=1)
    assert kill.is_done
    assert other.summary["recoveries"] >= 1
    assert state_of(other.to_local()) == state_of(run.to_local())
    assert other.metrics == run.metrics


def test_more_files_go_on_with_the_stream(rows: Path, client: Client, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    files = sorted(rows.iterdir())
    for file in files[:2]:
        (folder / file.name).write_bytes(file.read_bytes())
    trained(folder, tmp_path / "run", client=client)
    (folder / files[2].name).write_bytes(files[2].read_bytes())
    later = trained(folder, tmp_path / "run", client=client)
    assert later.summary["resumed_at"] == 1600
    assert state_of(later.to_local()) == state_of(learned(later, by_time()))


@pytest.mark.thorough(but="numbers")
def test_words_of_time_are_beside_every_metric(
    run: TrainedRun, rows: Path, client: Client, tmp_path: Path
) -> None:
    words = "rows of 2 days forecast before any of their labels was known"
    assert (run.metrics["delay"], run.metrics["forecast"]) == ("2 days", words)
    waiting = run.summary["waiting"]
    assert waiting == run.to_local().n_waiting_ > 0
    text, _ = call("describe", run.run_url)
    assert f"{words}, delay up to 2 days" in text
    assert f"; {waiting:,} more wait for their labels (delay 2 days)" in text
    assert "late_rows" in text
    schema, _ = call("schema", run.run_url)
    assert "time 'at', by which labels come" in schema
    facts = gather(run.run_url)
    assert "delay up to 2 days" in str(overview(facts))
    assert f"{words[0].upper()}{words[1:]} (delay up to 2 days)" in str(learning(facts))
    assert 'time = "at"' in job_of(facts)
    display = LearningCurveDisplay.from_runs({"one": run.run_url})
    assert display.ax_.get_ylabel().endswith("delay up to 2 days")
    records: list[Progress] = []
    trained(rows, tmp_path / "run", estimator_of(run), client=client, progress=records.append)
    assert records[-1].delay == "2 days"
    assert ", delay 2 days, " in records[-1].line()
    assert records[-1].waiting == waiting


def test_a_model_is_asked_about_files_without_the_column(
    run: TrainedRun, rows: Path, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = pq.read_table(rows / "0.parquet")
    pq.write_table(table.drop_columns(["at"]), tmp_path / "file.parquet")
    with caplog.at_level(logging.WARNING, "dmondrian"):
        score(run.run_url, tmp_path / "file.parquet", tmp_path / "out", client=client)
    (record,) = [r for r in caplog.records if "learned to mix" in r.getMessage()]
    assert "labels that are known 2 days later" in record.getMessage()
    measured = evaluate(run.run_url, rows, client=client)
    assert 0 < run.summary["waiting"] <= measured["delay"] < 300


def test_rows_that_come_late_are_counted_and_warned_of(
    rows: Path, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = pa.concat_tables(
        [
            part.set_column(
                part.column_names.index("at"), "at", part["at"].cast(pa.timestamp("ms"))
            )
            for part in map(pq.read_table, sorted(rows.iterdir()))
        ]
    )
    shuffled = table.take(np.random.default_rng(0).permutation(N))
    pq.write_table(shuffled, tmp_path / "rows.parquet", row_group_size=370)
    with caplog.at_level(logging.WARNING, "dmondrian"):
        run = trained(tmp_path / "rows.parquet", tmp_path / "run", client=client)
    found = [r for r in caplog.records if "is not sorted by time" in r.getMessage()]
    assert len(found) == 1
    counts = Run.open(run.run_url).latest().metrics["counts"]
    assert counts["late_rows"] == run.to_local().n_late_ > N // 2


def test_numbers_may_be_times(rows: Path, client: Client, tmp_path: Path) -> None:
    table = pq.read_table(rows / "0.parquet")
    seconds = table["at"].cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    at = table.column_names.index("at")
    pq.write_table(table.set_column(at, "at", seconds), tmp_path / "n.parquet", row_group_size=99)
    dates = table.set_column(at, "at", table["at"].cast(pa.timestamp("s"), safe=False))
    pq.write_table(dates, tmp_path / "d.parquet", row_group_size=99)
    by_number = trained(
        tmp_path / "n.parquet", tmp_path / "a", by_time(delay="172800"), client=client
    )
    by_date = trained(tmp_path / "d.parquet", tmp_path / "b", client=client)
    assert by_number.metrics["delay"] == "172800"
    assert by_number.metrics["log_loss"] == by_date.metrics["log_loss"]
    text, _ = call("describe", by_number.run_url)
    assert "delay up to 172800 by the column of times" in text


def refused(rows: Path, kind: type[DMondrianError], why: str, run: Path, **options: Any) -> None:
    estimator = options.pop("estimator", by_time())
    given: dict[str, Any] = {"target": "y", "time": "at", "null_target": "drop", **options}
    with pytest.raises(kind, match=why):
        train(estimator, rows, run=run, progress=False, **given)
    assert not (run / "run.json").exists()


def test_what_does_not_go_together_is_refused_before_a_row_is_read(
    rows: Path, client: Client, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    needs = "delay='2 days' needs the time of each row: name its column"
    refused(rows, ParameterError, needs, run, time=None, client=client)
    counts = "time='at' goes with a delay that is a time, and delay=64 counts rows"
    refused(rows, ParameterError, counts, run, estimator=by_time(delay=64), client=client)
    plain = AMFClassifier(2)
    refused(rows, ParameterError, "time='at' goes with a delay", run, estimator=plain)
    in_numbers = by_time(delay="500")
    why = "in units of numbers, and the column 'at' has times"
    refused(rows, ParameterError, why, run, estimator=in_numbers, client=client)
    why = "a length of time, and the column 'x0' has numbers"
    refused(rows, ParameterError, why, run, time="x0", client=client)
    refused(rows, ParameterError, "shuffle would mix", run, shuffle=True, client=client)
    refused(rows, ParameterError, "also given as the target", run, time="y", client=client)
    refused(rows, SchemaError, "'att'.*'at'", run, time="att", client=client)
    with pytest.raises(ParameterError, match="needs the time of each row"):
        submit(by_time(), rows, target="y", run=run, client=client)


def test_columns_that_are_no_times_are_refused(rows: Path, client: Client, tmp_path: Path) -> None:
    table = pq.read_table(rows / "0.parquet").select(["x0", "x1", "y", "at"]).slice(10, 60)
    times = table["at"].to_pandas()
    columns: dict[str, tuple[Any, type[DMondrianError], str]] = {
        "text": (times.astype(str), SchemaError, "must be of times, dates or numbers"),
        "bool": (times > times.iloc[3], SchemaError, "must be of times, dates or numbers"),
        "clock": (pa.array(times).cast(pa.time64("ns")), SchemaError, "must be of times, dates"),
        "null": (times.where(times.index != 7), DataError, "time 'at' is null or infinite at .*7"),
        "none": (pa.nulls(60), DataError, "the time 'at' cannot be used"),
    }
    for name, (column, kind, why) in columns.items():
        file, made = tmp_path / f"{name}.parquet", pa.table({"at": column})["at"]
        pq.write_table(table.set_column(3, "at", made), file)
        with pytest.raises(kind, match=why):
            train(
                by_time(), file, run=tmp_path / name, target="y", time="at", client=client,
                progress=False, exclude=["at"],
            )  # fmt: skip
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    pq.write_table(table, mixed / "0.parquet")
    numbers = table.set_column(3, "at", pa.array(np.arange(60)))
    pq.write_table(numbers, mixed / "1.parquet")
    with pytest.raises(SchemaError, match="'at'"):
        make_plan(mixed, target="y", time="at", exclude=["at"])


def test_too_many_rows_of_one_time_end_a_run_with_what_to_do(
    rows: Path, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_blocks, "LARGEST_DELAY", 60)
    with pytest.raises(DataError, match=r"came within 2 days, .* at most 60: give a shorter delay"):
        trained(rows, tmp_path / "run", client=client)


def test_a_run_with_another_column_of_times_is_another_job(
    rows: Path, client: Client, tmp_path: Path
) -> None:
    table = pq.read_table(rows / "0.parquet")
    pq.write_table(table.append_column("later", table["at"]), tmp_path / "rows.parquet")
    options: dict[str, Any] = {
        "run": tmp_path / "run", "target": "y", "null_target": "drop", "client": client,
        "exclude": ["at", "later"], "progress": False,
    }  # fmt: skip
    train(by_time(), tmp_path / "rows.parquet", time="at", **options)
    with pytest.raises(CheckpointError, match=r"\[data\] time.*at.*later"):
        train(by_time(), tmp_path / "rows.parquet", time="later", **options)


def test_a_job_file_names_the_column(rows: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    data = f'path = "{rows}"\ntarget = "y"\nnull_target = "drop"\nexclude = ["at"]\n'
    forest = 'algorithm = "amf-classifier"\nn_estimators = 2\ndrift = "follow"\ndelay = "2 days"\n'
    end = f'[run]\npath = "{tmp_path / "run"}"\n[cluster]\nworkers = 1\n'
    job.write_text(f"[data]\n{data}[forest]\n{forest}{end}")
    _, printed = call("train", job, code=2)
    assert f'{job}:10: [forest] delay = "2 days" needs the time of each row: name its' in printed
    assert "time of [data] in a job" in printed
    job.write_text(f'[data]\n{data}time = "at"\n[forest]\n{forest}{end}')
    text, _ = call("train", job)
    assert "delay up to 2 days" in text
    job.write_text(
        f'[data]\n{data}time = "at"\n[forest]\n{forest.replace("2 days", "2 moons")}{end}'
    )
    assert 'delay = "2 moons" is no length of time' in call("train", job, code=2)[1]
    rows_alone = forest.replace('"2 days"', "64")
    job.write_text(f'[data]\n{data}time = "at"\n[forest]\n{rows_alone}{end}')
    printed = call("train", job, code=2)[1]
    assert f'{job}:6: [data] time = "at" goes with a delay that is a time' in printed


def test_a_time_that_is_a_feature_stays_one(rows: Path, client: Client, tmp_path: Path) -> None:
    run = train(
        by_time(), rows, run=tmp_path / "run", target="y", time="at", null_target="drop",
        client=client, progress=False,
    )  # fmt: skip
    assert {"at", "at.hour", "at.weekday"} <= set(run.plan.schema.feature_names)
