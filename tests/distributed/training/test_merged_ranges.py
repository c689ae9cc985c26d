"""Parts of the rows that are learned side by side and merged: the forest that learned all rows."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

import dmondrian
from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestRegressor,
    MondrianDensity,
    MondrianForestClassifier,
    MondrianForestRegressor,
    MondrianKernelRegressor,
    OnlineRandomForestClassifier,
)
from dmondrian.checkpoint import Lease, Manifest, Run
from dmondrian.checkpoint.lease import ask_to_stop, holder_of
from dmondrian.checkpoint.merging import merge
from dmondrian.checkpoint.raised_alerts import read_alerts
from dmondrian.checkpoint.row_ranges import FOLDER
from dmondrian.cli.train import summary_line
from dmondrian.data import read_chunk
from dmondrian.distributed import Event, Progress, TrainedRun, grow, train
from dmondrian.distributed.training import merged_ranges
from dmondrian.distributed.training.merged_ranges import check_row_parts, row_parts_advice
from dmondrian.drift.drift_forest import empty_shard
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CheckpointError, ClusterError, ParameterError
from dmondrian.forest.forest import Forest
from tests.distributed.conftest import ROWS, Fit, Grow, digests, resize

PARTS = 3


def cube(**parameters: Any) -> MondrianForestClassifier:
    given = {"n_estimators": 2, "domain": "cube", "lifetime": 3.0, "random_state": 7}
    return MondrianForestClassifier(**{**given, **parameters})


def in_order(run: TrainedRun) -> Forest:
    """The forest of a run that learned all rows of its stream in order, in this process."""
    about = Run.open(run.run_url).run_json
    stop = max(tree for shard in about["shards"] for tree in shard)
    forest: Any = empty_shard(ForestParameters.from_json(about["parameters"]), range(stop))
    for chunk in run.plan.chunks:
        read = read_chunk(run.plan, chunk)
        y = np.zeros(len(read.X)) if read.y is None else read.y
        forest.update(read.X, y, read.weight)
    return forest


def queries(forest: Forest, n: int = 200) -> np.ndarray:
    d = forest.parameters.n_features
    return np.random.default_rng(1).random((n, d)).astype(np.float32)


def sums(forest: Forest) -> np.ndarray:
    return forest.predict_sums(queries(forest)).total


def table(seed: int, n: int, is_regression: bool) -> pa.Table:
    """Rows with categories, missing values, repeats, whole weights and some without a target."""
    rng = np.random.default_rng(seed)
    x = np.round(rng.random(n), int(rng.integers(1, 8)))
    z = np.where(rng.random(n) < 0.2, np.nan, rng.standard_normal(n))
    c = np.array(["u", "v", None], object)[rng.integers(0, 3, n)]
    y = 100.0 + 3.0 * x + rng.standard_normal(n) if is_regression else np.where(x > 0.4, "p", "q")
    target = pa.array(y, mask=rng.random(n) < 0.1)
    w = rng.integers(0, 4, n).astype(float)
    return pa.table({"x": x, "z": pa.array(z, from_pandas=True), "c": c, "y": target, "w": w})


KINDS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda lifetime: cube(lifetime=lifetime),
    "vote": lambda lifetime: cube(lifetime=lifetime, aggregation="vote", empty_cell="prior"),
    "hierarchy": lambda lifetime: cube(lifetime=lifetime, aggregation="hierarchy"),
    "numbers": lambda lifetime: MondrianForestRegressor(
        2, domain="cube", lifetime=lifetime, random_state=5
    ),
}


def check_equals_all_rows_in_order(client: Client, draw: Callable[[Any], Any]) -> None:
    kind, lifetime = draw(st.sampled_from([*KINDS])), draw(st.sampled_from([1.5, "grow", None]))
    n, is_regression = draw(st.integers(40, 600)), kind == "numbers"
    row_parts, n_shards = draw(st.integers(2, 6)), draw(st.integers(1, 2))
    every = draw(st.none() | st.integers(20, 400))
    options: dict[str, Any] = {"shuffle": draw(st.booleans())}
    options["weight"] = draw(st.sampled_from([None, "w"]))
    with tempfile.TemporaryDirectory() as folder:
        rows = table(draw(st.integers(0, 99)), n, is_regression)
        pq.write_table(rows, f"{folder}/rows.parquet", row_group_size=draw(st.integers(15, n)))
        run = train(
            KINDS[kind](lifetime), f"{folder}/rows.parquet", target="y", run=f"{folder}/run",
            client=client, n_shards=n_shards, row_parts=row_parts, checkpoint_every=every,
            null_target="drop", **options,
        )  # fmt: skip
        merged, whole = dmondrian.load(run.run_url).forest_, in_order(run)
        assert merged.total_weight == whole.total_weight
        assert merged.n_nodes == whole.n_nodes
        manifest = Run.open(run.run_url).latest()
        assert manifest is not None
        assert manifest.metrics["counts"].get("null_target", 0) == rows["y"].null_count
        if is_regression:
            np.testing.assert_allclose(sums(merged), sums(whole), rtol=1e-9)
        else:
            assert sums(merged).tobytes() == sums(whole).tobytes()


@settings(max_examples=4, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_forest_is_that_of_all_rows_in_order(client: Client, data: st.DataObject) -> None:
    check_equals_all_rows_in_order(client, data.draw)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_forest_is_that_of_all_rows_in_order_at_length(
    client: Client, data: st.DataObject
) -> None:
    check_equals_all_rows_in_order(client, data.draw)


@pytest.fixture(scope="module")
def parted(adult: Path, client: Client, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """A run in parts that nothing disturbed."""
    run = tmp_path_factory.mktemp("parted") / "run"
    return train(cube(), adult, target="income", run=run, client=client, row_parts=PARTS)


def test_bytes_do_not_depend_on_workers_or_checkpoints(
    fit: Fit, cluster: Grow, parted: TrainedRun
) -> None:
    workers, client = cluster(1)
    for n_workers in (1, 5):
        resize(workers, client, n_workers)
        run = fit(f"{n_workers}", estimator=cube(), client=client, row_parts=PARTS)
        assert run.summary["workers"] == n_workers
        assert digests(run) == digests(parted)
        (manifest,) = Run.open(run.run_url).manifests()
        assert manifest == ROWS
        assert not (Path(run.run_url) / FOLDER).exists()  # no empty folders either


@pytest.mark.usefixtures("talkative")
def test_a_lost_worker_changes_no_byte(fit: Fit, cluster: Grow, parted: TrainedRun) -> None:
    workers, client = cluster(2)
    lost: list[int] = []

    def lose(progress: Progress) -> None:
        if progress.rows and not lost:  # some shards hold rows that are not saved
            lost.append(progress.rows)
            resize(workers, client, 1)

    run = fit(estimator=cube(), client=client, row_parts=PARTS, window=1, progress=lose)
    assert 0 < lost[0] < ROWS
    assert run.summary["recoveries"] > 0
    assert digests(run) == digests(parted)


@pytest.mark.usefixtures("talkative")
def test_a_run_that_is_asked_to_stop_saves_all_parts_at_one_place(
    fit: Fit, parted: TrainedRun, tmp_path: Path
) -> None:
    asked: list[int] = []

    def ask(progress: Progress) -> None:
        if progress.rows and not asked:
            asked.append(progress.rows)
            os.kill(os.getpid(), signal.SIGINT)

    options: dict[str, Any] = {"estimator": cube(), "row_parts": PARTS, "checkpoint_every": None}
    with pytest.raises(KeyboardInterrupt, match=r"stopped at row [1-9][0-9,]* of 6,000"):
        fit(**options, progress=ask, window=1)
    (position,) = Run.open(tmp_path / "run" / FOLDER).manifests()
    assert 0 < position < ROWS
    again = fit(**options)
    assert again.summary["resumed_at"] == position
    assert digests(again) == digests(parted)


class StopError(Exception):
    """Raised by a listener."""


@pytest.mark.usefixtures("talkative")
def test_a_stopped_run_goes_on_where_its_parts_were(
    fit: Fit, parted: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(progress: Progress) -> None:
        assert progress.n_rows == ROWS
        if progress.durable >= 1000:
            raise StopError

    options: dict[str, Any] = {"estimator": cube(), "row_parts": PARTS}
    with pytest.raises(StopError):
        fit(**options, progress=stop, window=1)
    with monkeypatch.context() as patch:  # as if the process was killed while it merges

        def fail(*arguments: Any) -> None:
            raise StopError

        patch.setattr(merged_ranges.TaskPool, "run", fail)
        with pytest.raises(StopError):
            fit(**options)
    again = fit(**options)
    assert again.summary["resumed_at"] == ROWS  # all rows were learned: parts are merged alone
    assert digests(again) == digests(parted)
    assert fit(**options).summary["rows"] == 0


def damage(run: Run, digest: str) -> None:
    run.store.put(f"blobs/{digest}", b"damaged")


def test_damaged_states_are_made_again(
    fit: Fit, parted: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"estimator": cube(), "row_parts": PARTS}
    before, damaged = merged_ranges.merge_ranges, []

    def damage_one(run: Run, below: Run, learned: Manifest, *others: Any) -> Manifest:
        if not damaged:
            damaged.append(below.manifests())
            damage(below, learned.shards[PARTS]["digest"])
        return before(run, below, learned, *others)

    monkeypatch.setattr("dmondrian.distributed.training.attempt.merge_ranges", damage_one)
    with pytest.warns(UserWarning, match="passed over|written again"):
        run = fit(**options)
    assert damaged == [[2 * 2001, ROWS]]  # 667 rows of each part at a time; the first was used
    assert digests(run) == digests(parted)
    opened = Run.open(run.run_url)
    damage(opened, digests(run)[0])  # no checkpoint is left: all is learned again
    with pytest.warns(UserWarning, match="passed over|written again"):
        assert digests(fit(**options)) == digests(parted)


@pytest.mark.thorough
def test_merged_trees_that_are_damaged_before_new_files_come_are_made_again(
    fit: Fit, adult: Path
) -> None:
    first, both = files_of(adult)
    options: dict[str, Any] = {"estimator": cube(), "row_parts": PARTS}
    run = fit(data=first, **options)
    merged = digests(run)
    damage(Run.open(run.run_url), merged[0])
    with pytest.warns(UserWarning, match="passed over|written again"):
        again = fit(data=both, **options)
    assert again.summary["rows"] == ROWS
    made_again = Run.open(run.run_url).manifest(ROWS // 2, verify=True)
    assert {shard: one["digest"] for shard, one in made_again.shards.items()} == merged
    assert sums(dmondrian.load(run.run_url).forest_).tobytes() == sums(in_order(again)).tobytes()


def files_of(adult: Path) -> tuple[list[str], list[str]]:
    """The first file, and both."""
    both = [str(adult / f"part-{i}.parquet") for i in (0, 1)]
    return both[:1], both


def test_a_finished_run_is_one_as_any(
    fit: Fit, adult: Path, client: Client, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"data": adult / "part-0.parquet", "row_parts": PARTS}
    all_rows = {"estimator": cube(n_estimators=4), "data": options["data"]}
    plain = fit("plain", progressive=False, **all_rows)
    seen: list[Event] = []
    run = fit(
        "parts", estimator=cube(), validation=str(adult / "part-1.parquet"), on_event=seen.append,
        alerts={"when": ["log_loss_held_out > 0.001", "workers < 1"]}, **options,
    )  # fmt: skip
    assert [event.values["when"] for event in seen if event.kind == "alert"] == [
        "log_loss_held_out > 0.001"
    ]
    (raised,) = read_alerts(Run.open(run.run_url).store)["on"]
    assert raised["row"] == ROWS // 2
    assert run.metrics == {}
    assert run.held_out["best"] == ROWS // 2
    others = fit("others", estimator=cube(), first_tree=2, **options)
    rest = fit("rest", estimator=cube(), data=options["data"], first_tree=2, progressive=False)
    joined, _ = merge([run.run_url, others.run_url], tmp_path / "joined")
    with pytest.raises(CheckpointError, match=r"\[run\] row_parts: 3 there, nothing here"):
        merge([run.run_url, rest.run_url], tmp_path / "unlike")
    grow(run.run_url, 4, client=client)
    expected = sums(dmondrian.load(plain.run_url).forest_)
    for url in (run.run_url, joined.url):
        loaded = dmondrian.load(url)
        assert loaded.n_estimators == 4
        assert sums(loaded.forest_).tobytes() == expected.tobytes()


@pytest.mark.usefixtures("talkative")
def test_new_files_are_learned_after_the_parts(
    fit: Fit, adult: Path, client: Client, tmp_path: Path
) -> None:
    """Also where they come before the parts are merged, and for trees that are added later."""
    first, both = files_of(adult)

    def stop(progress: Progress) -> None:
        if progress.durable >= 1000:
            raise StopError

    options: dict[str, Any] = {"row_parts": PARTS, "estimator": cube(), "checkpoint_every": 1000}
    left = Run.open(fit("a", data=first, **options).run_url).store
    left.put(f"{FOLDER}/blobs/left", b"of a process that was killed before it deleted them")
    a = fit("a", data=both, **options)
    assert not left.list(FOLDER)
    assert a.summary["rows"] == ROWS // 2
    with pytest.raises(StopError):
        fit("b", data=first, progress=stop, window=1, **options)
    position = Run.open(tmp_path / "b" / FOLDER).manifests()[-1]
    b = fit("b", data=both, **options)
    assert b.summary["rows"] == ROWS - position
    assert digests(a) == digests(b)
    assert Run.open(b.run_url).manifests()[0] == ROWS // 2
    grow(a.run_url, 3, client=client)
    forest = dmondrian.load(a.run_url).forest_
    whole = fit("c", estimator=cube(n_estimators=3), progressive=False)
    assert sums(forest).tobytes() == sums(in_order(whole)).tobytes()


def test_sums_of_labels_are_the_same_bytes_for_as_many_parts(
    fit: Fit, cluster: Grow, tmp_path: Path
) -> None:
    pq.write_table(table(3, 500, True), tmp_path / "rows.parquet", row_group_size=90)
    options: dict[str, Any] = {"data": tmp_path / "rows.parquet", "target": "y", "row_parts": 4}
    options |= {"estimator": KINDS["numbers"](2.0), "null_target": "drop", "weight": "w"}
    workers, client = cluster(1)
    one = fit("one", client=client, **options)
    resize(workers, client, 3)
    assert digests(fit("three", client=client, n_shards=1, **options)).keys() == {0}
    assert digests(fit("two", client=client, **options)) == digests(one)


OTHERS: dict[str, tuple[Any, str | None]] = {
    "density": (MondrianDensity(2, lifetime=2.0, random_state=1), None),
    "quantile": (
        GeneralizedMondrianForestRegressor(
            2, loss="quantile", quantile=0.5, lifetime=2.0, domain="cube", random_state=1
        ),
        "age",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.thorough(but="density")
def test_forests_under_a_loss_and_densities_learn_in_parts(fit: Fit, name: str) -> None:
    estimator, target = OTHERS[name]
    run = fit(estimator=estimator, target=target, row_parts=2)
    merged, whole = dmondrian.load(run.run_url).forest_, in_order(run)
    assert sums(merged).tobytes() == sums(whole).tobytes()


@pytest.mark.thorough
def test_lags_are_written_before_the_rows_are_cut(fit: Fit) -> None:
    lags = {"columns": "age", "lags": 2}
    run = fit(estimator=cube(), lags=lags, row_parts=PARTS)
    plain = fit("plain", estimator=cube(), lags=lags)
    a, b = (dmondrian.load(one.run_url).forest_ for one in (run, plain))
    assert sums(a).tobytes() == sums(b).tobytes()


@pytest.mark.parametrize(
    ("estimator", "why"),
    [
        (AMFClassifier(), "last bits; choose a Mondrian"),
        (AMFRegressor(domain="cube"), "last bits"),
        (AMFClassifier(use_aggregation=False, domain="cube", calibrate=False), "can be merged"),
        (AMFClassifier(drift="follow"), "last bits"),
        (MondrianForestClassifier(), 'choose domain="cube"'),
        (MondrianForestClassifier(lifetime=[1.0, 2.0]), 'choose domain="cube"'),
        (cube(max_nodes=50), "without max_nodes"),
        (cube(calibrate=True), "choose calibrate=False"),
        (cube(calibrate="auto"), "choose calibrate=False"),
        (MondrianKernelRegressor(), "row_parts=2"),
        (OnlineRandomForestClassifier(), "row_parts=2"),
        (
            GeneralizedMondrianForestRegressor(domain="cube", lifetime="prequential"),
            "chosen by prequential loss",
        ),
        (
            GeneralizedMondrianForestRegressor(
                domain="cube", lifetime=2.0, aggregation="aggregate", bound=1.0
            ),
            "aggregate over prunings",
        ),
    ],
)
def test_forests_whose_parts_do_not_merge_are_refused_before_a_row_is_read(
    tmp_path: Path, estimator: Any, why: str
) -> None:
    with pytest.raises(ParameterError, match=why):
        train(estimator, tmp_path / "no.parquet", target="y", run=tmp_path / "run", row_parts=2)
    assert not (tmp_path / "run/run.json").exists()


def test_numbers_of_parts_are_checked(fit: Fit) -> None:
    for bad in (1, 0, 5000, True, 2.0):
        with pytest.raises(ParameterError, match="expected a number from 2 to 4,096"):
            check_row_parts(cube(), bad)
    assert check_row_parts(cube(), None) is None
    assert type(check_row_parts(cube(), np.int64(3))) is int
    rows = pa.table({"x": [0.1, 0.2, 0.3], "y": ["a", "b", "a"]})
    with pytest.raises(ParameterError, match="source of batches"):
        fit(estimator=cube(), data=iter([rows]), target="y", row_parts=2)


def test_more_parts_than_rows_and_other_parts_are_refused(fit: Fit, tmp_path: Path) -> None:
    rows = pa.table({"x": [0.1, 0.2, 0.3], "y": ["a", "b", "a"]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    options: dict[str, Any] = {"data": tmp_path / "rows.parquet", "target": "y"}
    with pytest.raises(ParameterError, match="3 rows: expected at most as many parts"):
        fit(estimator=cube(), row_parts=4, **options)
    run = fit(estimator=cube(), row_parts=3, **options)
    assert sums(dmondrian.load(run.run_url).forest_).tobytes() == sums(in_order(run)).tobytes()
    with pytest.raises(CheckpointError, match=r"\[run\] row_parts: 3 there, 2 here"):
        fit(estimator=cube(), row_parts=2, **options)


def test_parts_are_advised_where_workers_would_be_idle(
    parted: TrainedRun,
) -> None:
    run, many = Run.open(parted.run_url), 10**8

    def of(estimator: MondrianForestClassifier) -> Run:
        parameters = estimator._run_parameters(6, 2).to_json()
        return Run(run.store, {**run.run_json, "parameters": parameters})

    text = row_parts_advice(run, many, 5)
    assert text is not None
    assert "2 trees for 5 threads" in text
    assert "row_parts = 3" in text
    assert row_parts_advice(run, many, 2) is None  # each has a tree
    assert row_parts_advice(run, 1000, 5) is None  # done before it is begun
    assert row_parts_advice(of(cube()), many, 5) == text
    assert row_parts_advice(of(cube(domain="range")), many, 5) is None
    assert row_parts_advice(of(cube(lifetime=None)), many, 5) is None  # merging takes longer
    calibrated = Run(run.store, {**run.run_json, "estimator": {"calibrate": "auto"}})
    assert row_parts_advice(calibrated, many, 5) is None


def test_parts_are_advised_to_those_alone_who_can_ask_for_them(
    fit: Fit,
    adult: Path,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """New trees and sources of batches have no parts of rows."""
    monkeypatch.setattr(merged_ranges, "UNIT_ROWS", 2)
    caplog.set_level("INFO", "dmondrian")
    file, estimator = adult / "part-0.parquet", cube(n_estimators=1)

    def is_advised() -> bool:
        found = "with row_parts = 2 all would learn" in caplog.text
        caplog.clear()
        return found

    run = fit("files", estimator=estimator, data=file, progressive=False)
    assert is_advised()
    grow(run.run_url, 2, client=client)
    assert not is_advised()
    fit("batches", estimator=estimator, data=iter([pq.read_table(file)]), progressive=False)
    assert not is_advised()


class CountingTaskPool(merged_ranges.TaskPool):
    """Counts merges, and asks for a stop at the second level of them."""

    levels: ClassVar[list[int]] = []
    on_second: ClassVar[Callable[[], None]]

    def run(self, on_result: Callable[[Any], None]) -> None:
        self.levels.append(len(self._chains))
        if len(self.levels) == 2:
            self.on_second()
        super().run(on_result)


def test_an_attempt_is_noted_when_its_parts_are_merged(
    fit: Fit, parted: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before: merging may fail, be stopped, or be all that an attempt does."""
    options: dict[str, Any] = {"estimator": cube(), "row_parts": PARTS}

    def fail() -> None:
        raise ClusterError("no worker is left")

    def stop() -> None:
        store = Run.open(tmp_path / "run").store
        holder = holder_of(store)
        assert holder is not None
        ask_to_stop(store, holder)
        monkeypatch.setattr(Lease, "check", lambda lease, now=True: lease._look())

    for end, error, why in (
        (fail, ClusterError, "no worker"),
        (stop, KeyboardInterrupt, "while 3 parts of the rows were merged.* merge them, from the"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(CountingTaskPool, "levels", [])
            patch.setattr(CountingTaskPool, "on_second", staticmethod(end), raising=False)
            patch.setattr(merged_ranges, "TaskPool", CountingTaskPool)
            with pytest.raises(error, match=why):
                fit(**options)
    monkeypatch.undo()
    last = fit(**options)
    assert digests(last) == digests(parted)
    assert (last.summary["rows"], last.summary["merged_parts"]) == (0, PARTS)
    assert summary_line(last.summary).startswith("3 parts of the rows, learned before, were merged")
    run = Run.open(last.run_url)
    failed, stopped, merged = sorted(run.attempts(), key=lambda note: note["began"])
    assert [one["outcome"] for one in (failed, stopped, merged)] == [
        "failed", "stopped", "finished",
    ]  # fmt: skip
    assert failed["error"] == "ClusterError: no worker is left"
    assert [one["summary"]["rows"] for one in (failed, stopped, merged)] == [ROWS, 0, 0]
    assert merged["workers"]
    for one in (failed, stopped, merged):  # seconds of merging count
        assert one["summary"]["seconds"] == pytest.approx(one["ended"] - one["began"], abs=0.2)
    assert not summary_line(fit(**options).summary).startswith("3 parts")
