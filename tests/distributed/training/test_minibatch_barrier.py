"""Kernel machines on a cluster: partial predictions are summed, and residuals go back."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import MondrianFeatures, MondrianKernelClassifier, MondrianKernelRegressor
from dmondrian.checkpoint import Run
from dmondrian.checkpoint.merging import merge
from dmondrian.data import make_plan
from dmondrian.distributed import evaluate, grow, score
from dmondrian.distributed.training import attempt
from dmondrian.distributed.training.minibatch_barrier import MinibatchBarrier
from dmondrian.distributed.worker import tasks
from dmondrian.distributed.worker.work_units import chunks_of, cut_jointly
from dmondrian.errors import ClusterError, DataError, ParameterError, StoreError
from tests.distributed.conftest import GROUP, Fit, Grow, Once, digests, resize
from tests.distributed.training.test_generalized import rows_of
from tests.estimators.test_amf import same_forest

GIVEN = {"lifetime": 1.5, "random_state": 7, "n_passes": 1, "batch_size": 128}
ROWS = 3000  # of one file: each mini-batch is a round of messages
FILES = 100  # of 5 rows each


@pytest.fixture
def rows(adult: Path) -> Path:
    return adult / "part-0.parquet"


@pytest.fixture
def fit(fit: Fit, rows: Path) -> Fit:
    return partial(fit, data=rows)


def regressor(n_trees: int = 5, **more: object) -> MondrianKernelRegressor:
    return MondrianKernelRegressor(n_trees, **{**GIVEN, **more})  # type: ignore[arg-type]  # as named


def test_a_run_is_the_estimator_and_scores_as_it_does(
    fit: Fit, rows: Path, client: Client, tmp_path: Path
) -> None:
    run = fit("kernel", estimator=regressor(), target="age", n_shards=3)
    X, y = rows_of(run)
    alone = regressor(solver="sgd").fit(X, y)
    shared = run.to_local()
    assert same_forest(alone, shared)
    assert isinstance(shared, MondrianKernelRegressor)
    assert score(run.run_url, rows, tmp_path / "out", client=client)["rows"] == ROWS
    files = sorted((tmp_path / "out").glob("part-*.parquet"))
    reported = pa.concat_tables([pq.read_table(file) for file in files])
    assert np.array_equal(reported.column("prediction").to_numpy(), alone.predict(X))
    measured = evaluate(run.run_url, rows, client=client)
    assert measured["rmse"] == pytest.approx(np.sqrt(np.mean((alone.predict(X) - y) ** 2)))
    assert measured["rmse"] < run.metrics["rmse"] < 1.2 * y.std()
    assert run.metrics["rows"] == ROWS


def test_shards_workers_and_checkpoints_change_no_byte(fit: Fit) -> None:
    first = fit("one-shard", estimator=regressor(), target="age", n_shards=1)
    second = fit(
        "five-shards", estimator=regressor(), target="age", n_shards=5,
        checkpoint_every="700 rows", progressive=False,
    )  # fmt: skip
    assert same_forest(first.to_local(), second.to_local())
    assert len(Run.open(second.run_url).manifests()) == 5
    assert not second.metrics


def test_classes_have_probabilities(fit: Fit, rows: Path, client: Client, tmp_path: Path) -> None:
    estimator = MondrianKernelClassifier(4, **GIVEN)  # type: ignore[arg-type]  # as named
    run = fit("classes", estimator=estimator)
    X, y = rows_of(run)
    shared = run.to_local()
    score(run.run_url, rows, tmp_path / "out", client=client)
    files = sorted((tmp_path / "out").glob("part-*.parquet"))
    table = pa.concat_tables([pq.read_table(file) for file in files])
    assert table.column_names == [
        "prediction", "proba_<=50K", "proba_>50K", "spread", "distance"
    ]  # fmt: skip
    proba = np.stack([table.column(k).to_numpy() for k in (1, 2)], axis=1)
    np.testing.assert_allclose(proba, shared.predict_proba(X), rtol=1e-12)
    measured = evaluate(run.run_url, rows, client=client)
    assert measured["accuracy"] == pytest.approx(shared.score(X, shared.classes_[y.astype(int)]))
    assert 0.0 < run.metrics["log_loss"] < np.log(2.0)


def test_units_end_with_batches_and_blocks(fit: Fit) -> None:
    run = fit("units", estimator=regressor(2, batch_size=100), target="age")
    units = cut_jointly(run.plan.chunks_by_block, 100)
    assert [u.start for u in units[1:]] == [u.stop for u in units[:-1]]
    assert (units[0].start, units[-1].stop) == (0, ROWS)
    assert all(u.start // GROUP == (u.stop - 1) // GROUP for u in units)
    assert max(u.rows for u in units) == 100


@pytest.fixture
def small(rows: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A folder of files of 5 rows each, and all of their rows in one file."""
    table = pq.read_table(rows).slice(0, 5 * FILES)
    folder, whole = tmp_path / "small", tmp_path / "whole.parquet"
    folder.mkdir()
    pq.write_table(table, whole)
    for i in range(FILES):
        pq.write_table(table.slice(5 * i, 5), folder / f"{i:03d}.parquet")
    return folder, whole


def test_small_files_are_learned_in_steps_of_many(
    fit: Fit, small: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {"estimator": regressor(2), "target": "age", "n_shards": 2, "checkpoint_every": None}
    learn, steps = tasks._learn, []

    def learning(chunk: Any, shard: Any, encoded: Any, order: Any) -> None:
        steps.append(order.stop)
        learn(chunk, shard, encoded, order)

    monkeypatch.setattr(tasks, "_learn", learning)
    runs, counts = [], []
    for name, data in zip(("many", "whole"), small, strict=True):
        steps.clear()
        runs.append(fit(name, data=data, **kept))
        counts.append(len(steps))
    assert digests(runs[0]) == digests(runs[1])
    assert counts[0] == counts[1] < 2 * FILES


@pytest.mark.thorough
def test_a_run_that_stopped_between_small_files_goes_on(
    fit: Fit, small: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions learned each row group in steps of its own."""
    kept = {"estimator": regressor(2), "target": "age", "n_shards": 2, "data": small[0]}
    undisturbed = fit("undisturbed", **kept)
    learn = tasks._learn

    def fail(chunk: Any, shard: Any, encoded: Any, order: Any) -> None:
        if order.stop > 390:
            raise FloatingPointError("no such number")
        learn(chunk, shard, encoded, order)

    with monkeypatch.context() as patch:
        for module in (attempt, tasks):
            patch.setattr(module, "chunks_of", lambda plan, joint: plan.chunks_by_block)
        patch.setattr(tasks, "_learn", fail)
        with pytest.raises(ClusterError, match="no such number"):
            fit("resumed", checkpoint_every="110 rows", **kept)
    position = Run.open(tmp_path / "resumed").manifests()[-1]
    assert position not in {unit.stop for unit in cut_jointly(undisturbed.plan.chunks, 128)}
    run = fit("resumed", **kept)
    assert run.summary["resumed_at"] == position
    assert digests(run) == digests(undisturbed)


def test_steps_end_with_row_groups_where_rows_may_be_dropped(small: tuple[Path, Path]) -> None:
    joint = regressor()._run_parameters(4, 0).joint
    for dropped, joined in (("error", True), ("drop", False)):
        plan = make_plan(small[0], target="age", task="regression", null_target=dropped)
        assert len(chunks_of(plan, None)) == 1
        assert len(chunks_of(plan, joint)) == (1 if joined else FILES)


def test_rounds_keep_the_first_word_of_each_shard() -> None:
    rounds = MinibatchBarrier(2, 4)
    rounds.take(1, 3, np.ones((2, 1)))
    rounds.take(1, 3, np.full((2, 1), 9.0))
    rounds.take(0, 3, None)
    assert rounds.mean(3) is None
    rounds.take(0, 3, np.full((2, 1), 3.0))
    assert rounds.mean(3).tolist() == [[1.0], [1.0]]
    rounds.forget_before(4)
    assert rounds.mean(3) is None


def test_what_a_run_of_kernels_cannot_do_is_refused(
    fit: Fit, small: tuple[Path, Path], client: Client, tmp_path: Path
) -> None:
    for bad, reported in (
        (regressor(lifetime="validation"), "chosen from all rows"),
        (regressor(lifetime="average", domain="cube"), "chosen from all rows"),
        (regressor(lifetime="average", fitting="independent"), "chosen from all rows"),
        (regressor(solver="cholesky"), "of one machine"),
        (MondrianKernelClassifier(2, loss="hinge"), r"optimum found for all rows together"),
    ):
        with pytest.raises(ParameterError, match=reported):
            fit("refused", estimator=bad, target="age")
    with pytest.raises(ParameterError, match="has no target"):
        fit("features", estimator=MondrianFeatures(), target="age")
    kept = {"data": small[1], "estimator": regressor(2), "target": "age"}
    run = fit("small run", **kept)
    with pytest.raises(ParameterError, match="fitted together"):
        grow(run.run_url, 4, client=client)
    other = fit("other", first_tree=2, **kept)
    with pytest.raises(ParameterError, match="fitted together"):
        merge([run.run_url, other.run_url], tmp_path / "merged")


@pytest.fixture(scope="module")
def cube(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of the unit cube, in two files; the last row of "outside" is not in it."""
    folder = tmp_path_factory.mktemp("cube")
    X = np.random.default_rng(0).random((1600, 2), dtype=np.float32)
    y = np.sin(6.0 * X[:, 0]) + X[:, 1]
    for name, rows in (("inside/a", slice(900)), ("inside/b", slice(900, 1600))):
        (folder / "inside").mkdir(exist_ok=True)
        table = pa.table({"a": X[rows, 0], "b": X[rows, 1], "y": y[rows]})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=300)
    X[899, 1] = 1.5
    table = pa.table({"a": X[:900, 0], "b": X[:900, 1], "y": y[:900]})
    pq.write_table(table, folder / "outside.parquet", row_group_size=300)
    return folder


@pytest.mark.parametrize("solver", ["auto", "cholesky"])
@pytest.mark.thorough(but="auto")
def test_forests_of_the_cube_are_the_estimator_in_any_shards(
    fit: Fit, cube: Path, solver: str
) -> None:
    """Trees fitted each for itself: nothing joins them but the order of rows."""
    given = {"fitting": "independent", "domain": "cube", "solver": solver, "batch_size": 64}
    kept = {"data": cube / "inside", "target": "y", "estimator": regressor(**given)}
    runs = [
        fit("one", n_shards=1, **kept),
        fit("five", n_shards=5, checkpoint_every="300 rows", **kept),
    ]
    X, y = rows_of(runs[0])
    alone = regressor(**given).partial_fit(X, y)  # `fit` knows the mean of all rows
    assert all(same_forest(alone, run.to_local()) for run in runs)
    other = regressor(**{**given, "fitting": "joint", "solver": "sgd"}).fit(X, y)
    assert not same_forest(alone, other)


@pytest.mark.parametrize("fitting", ["independent", "joint"])
@pytest.mark.thorough(but="joint")
def test_a_row_outside_the_cube_is_refused_or_moved_to_it(
    fit: Fit, cube: Path, client: Client, tmp_path: Path, fitting: str
) -> None:
    """Runs scale the columns they learn to the cube; rows to be scored may leave it."""
    runs = [
        fit(
            f"clip-{clip}", data=cube / "inside", target="y",
            estimator=regressor(2, fitting=fitting, domain="cube", clip=clip),
        )
        for clip in (False, True)
    ]  # fmt: skip
    assert same_forest(runs[0].to_local(), runs[1].to_local())
    outside = cube / "outside.parquet"
    with pytest.raises(DataError, match="column 'b' has values in"):
        score(runs[0].run_url, outside, tmp_path / "refused", client=client)
    score(runs[1].run_url, outside, tmp_path / "moved", client=client)
    files = sorted((tmp_path / "moved").glob("part-*.parquet"))
    reported = pa.concat_tables([pq.read_table(file) for file in files])
    predicted = reported.column("prediction").to_numpy()
    assert len(predicted) == 900
    assert np.isfinite(predicted).all()


@pytest.mark.usefixtures("talkative")
@pytest.mark.thorough
def test_lost_and_joining_workers_replay_the_same_rounds(fit: Fit, cluster: Grow) -> None:
    undisturbed = fit("undisturbed", estimator=regressor(), target="age", n_shards=4)
    workers, client = cluster(2)
    lose = Once(lambda: resize(workers, client, 1))
    kept = {"estimator": regressor(), "target": "age", "n_shards": 4}
    run = fit("lost", client=client, progress=lose, window=1, **kept)
    assert lose.is_done
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics
    join = Once(lambda: resize(workers, client, 2))
    run = fit("joined", client=client, progress=join, checkpoint_every="500 rows", window=1, **kept)
    assert join.is_done
    assert run.summary["workers"] == 2
    assert digests(run) == digests(undisturbed)


@pytest.mark.usefixtures("talkative")
@pytest.mark.thorough
def test_a_killed_worker_costs_no_byte(fit: Fit, pair: Client) -> None:
    kept = {"estimator": regressor(), "target": "age", "n_shards": 4}
    pid = min(pair.run(os.getpid).values())
    kill = Once(lambda: os.kill(pid, signal.SIGKILL))
    run = fit("killed", client=pair, progress=kill, window=1, **kept)
    assert kill.is_done
    assert run.summary["recoveries"] >= 2
    assert digests(run) == digests(fit("undisturbed", **kept))


def test_a_run_resumes_within_a_block_and_failures_are_undone(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {"estimator": regressor(3), "target": "age", "n_shards": 2}
    undisturbed = fit("undisturbed", **kept)
    learn, put, failed = tasks._learn, Run.put_blob, []

    def fail(plan: Any, shard: Any, encoded: Any, order: Any) -> None:
        if order.stop > 1650:
            raise FloatingPointError("no such number")
        learn(plan, shard, encoded, order)

    def fail_once(plan: Any, shard: Any, encoded: Any, order: Any) -> None:
        learn(plan, shard, encoded, order)
        if order.stop > 1700 and order.shard not in failed:
            failed.append(order.shard)
            raise FloatingPointError("not this time")

    def flaky(self: Run, data: bytes) -> str:
        if len(failed) < 4:
            failed.append(len(data))
            raise StoreError("the store is busy")
        return put(self, data)

    monkeypatch.setattr(tasks, "_learn", fail)
    with pytest.raises(ClusterError, match="no such number"):
        fit("resumed", checkpoint_every="400 rows", **kept)
    positions = Run.open(tmp_path / "resumed").manifests()
    assert any(position % GROUP for position in positions)
    monkeypatch.setattr(tasks, "_learn", fail_once)
    monkeypatch.setattr(Run, "put_blob", flaky)
    run = fit("resumed", checkpoint_every="2000 rows", **kept)
    assert run.summary["resumed_at"] == positions[-1]
    assert len(failed) == 4
    assert digests(run) == digests(undisturbed)
