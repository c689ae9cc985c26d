"""Checkpoints are evaluated on held-out data beside the training, and change no forest."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

import dmondrian
from dmondrian import AMFRegressor, DataError, MondrianDensity
from dmondrian.checkpoint import Run
from dmondrian.checkpoint.held_out import NAME, read_record
from dmondrian.checkpoint.pruning import prune
from dmondrian.data import read_blocks
from dmondrian.distributed import Progress, TrainedRun, evaluate, train
from dmondrian.distributed.training import validation
from dmondrian.errors import CheckpointError, SchemaError
from tests.distributed.conftest import (
    ADULT,
    COLUMNS,
    OFTEN,
    PATIENCE,
    ROWS,
    Fit,
    Grow,
    digests,
    forest,
    resize,
)

POSITIONS = [1000, 2000, 3000, 4000, 5000, 6000]


@pytest.fixture
def fit(fit: Fit) -> Fit:
    return partial(fit, **OFTEN)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of adult behind those that the runs learn."""
    path = tmp_path_factory.mktemp("held") / "held.parquet"
    pq.write_table(pq.read_table(ADULT, columns=COLUMNS).slice(ROWS, 800), path, row_group_size=300)
    return path


@pytest.fixture(scope="module")
def validated(
    adult: Path, held: Path, client: Client, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainedRun, list[Progress]]:
    seen: list[Progress] = []
    run = train(
        forest(), adult, target="income", run=tmp_path_factory.mktemp("held") / "run",
        client=client, checkpoint_every="1000 rows", validation=held, progress=seen.append,
    )  # fmt: skip
    return run, seen


def checkpoints_of(run: TrainedRun) -> dict[int, dict[str, Any]]:
    return {one["position"]: one for one in run.held_out["checkpoints"]}


def test_each_checkpoint_has_the_metrics_that_evaluate_gives(
    validated: tuple[TrainedRun, list[Progress]], held: Path, client: Client
) -> None:
    run, _ = validated
    found = checkpoints_of(run)
    assert list(found) == POSITIONS
    assert (run.held_out["rows"], run.held_out["files"]) == (800, [str(held)])
    for position in (1000, 6000):
        expected = evaluate(f"{run.run_url}@{position}", held, client=client)
        for name in ("log_loss", "accuracy", "ece", "auc"):
            assert found[position][name] == expected[name]


def test_forest_and_progressive_metrics_are_those_without(
    validated: tuple[TrainedRun, list[Progress]], undisturbed: TrainedRun
) -> None:
    run, _ = validated
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics
    for position in POSITIONS:
        mine, other = (Run.open(r.run_url).manifest(position) for r in (run, undisturbed))
        assert mine.to_bytes() == other.to_bytes()
    assert undisturbed.held_out == {}


def test_best_is_the_checkpoint_of_the_least_loss_wherever_a_position_is_taken(
    validated: tuple[TrainedRun, list[Progress]], held: Path, client: Client
) -> None:
    run, _ = validated
    found = checkpoints_of(run)
    best = min(found, key=lambda position: found[position]["log_loss"])
    assert run.held_out["best"] == best
    assert Run.open(f"{run.run_url}@best").position == best
    loss = evaluate(f"{run.run_url}@best", held, client=client)["log_loss"]
    assert loss == found[best]["log_loss"]
    X = first_rows(run)
    at_best, there = (dmondrian.load(f"{run.run_url}@{at}") for at in ("best", best))
    assert (at_best.predict_proba(X) == there.predict_proba(X)).all()


def first_rows(run: TrainedRun) -> Any:
    return read_blocks(run.plan, run.plan.blocks[:1]).X


def test_progress_shows_the_newest_and_the_best(
    validated: tuple[TrainedRun, list[Progress]],
) -> None:
    run, seen = validated
    found, last = checkpoints_of(run), seen[-1]
    assert last.held_out["position"] == 6000
    assert last.held_out["log_loss"] == found[6000]["log_loss"]
    assert last.held_out["best_position"] == run.held_out["best"]
    assert last.held_out["best"] == found[run.held_out["best"]]["log_loss"]
    text = f"held-out log_loss {found[6000]['log_loss']:.4g} at row 6,000"
    assert text in last.line()
    assert "held-out" not in seen[0].line()


def test_a_checkpoint_is_evaluated_once_also_by_other_calls(
    fit: Fit, held: Path, adult: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    measure = validation.measure

    def counting(model: Any, plan: Any, *args: Any, **options: Any) -> dict[str, Any]:
        measured.append(1)
        return measure(model, plan, *args, **options)

    monkeypatch.setattr(validation, "measure", counting)
    first = adult / "part-0.parquet"
    fit(data=first, validation=held)
    assert len(measured) == 3
    again = fit(data=first, validation=held)
    assert len(measured) == 3
    assert list(checkpoints_of(again)) == POSITIONS[:3]
    longer = fit(data=[first, adult / "part-1.parquet"], validation=held)  # it goes on
    assert len(measured) == 6
    assert list(checkpoints_of(longer)) == POSITIONS


def test_a_finished_run_is_evaluated_at_its_end_and_by_other_data_anew(
    fit: Fit, held: Path, tmp_path: Path
) -> None:
    fit()
    assert list(checkpoints_of(fit(validation=held))) == [6000]
    fewer = tmp_path / "fewer.parquet"
    pq.write_table(pq.read_table(held).slice(0, 100), fewer)
    other = fit(validation=fewer)
    assert other.held_out["rows"] == 100
    assert list(checkpoints_of(other)) == [6000]


def test_the_best_stays_where_old_checkpoints_go(
    fit: Fit, adult: Path, held: Path, client: Client, tmp_path: Path
) -> None:
    # From the middle on labels are turned round: what was learned before is best, and old.
    table = pq.read_table(adult / "part-1.parquet")
    other = {"<=50K": ">50K", ">50K": "<=50K"}
    label = pa.array([other[one] for one in table["income"].to_pylist()])
    turned = tmp_path / "turned.parquet"
    table = table.set_column(COLUMNS.index("income"), "income", label)
    pq.write_table(table, turned, row_group_size=500)
    run = fit(data=[adult / "part-0.parquet", turned], validation=held, keep=2)
    best = run.held_out["best"]
    losses = {position: one["log_loss"] for position, one in checkpoints_of(run).items()}
    assert list(losses) == POSITIONS  # what is known of those that are gone stays known
    assert best == min(losses, key=lambda position: losses[position])
    assert best < 5000
    assert Run.open(run.run_url).manifests() == [best, 5000, 6000]
    prune(Run.open(run.run_url), 1)
    assert Run.open(run.run_url).manifests() == [best, 6000]
    again = evaluate(f"{run.run_url}@best", held, client=client)  # all of it is there
    assert again["log_loss"] == losses[best]


def test_a_stop_gives_an_evaluation_up_and_the_next_call_begins_it_again(
    fit: Fit, held: Path, monkeypatch: pytest.MonkeyPatch, talkative: None
) -> None:
    blocked, measure = threading.Event(), validation.measure

    def slow(*args: Any, go_on: Any, **options: Any) -> dict[str, Any]:
        blocked.set()
        while True:
            go_on()
            threading.Event().wait(0.01)

    monkeypatch.setattr(validation, "measure", slow)

    def interrupt(progress: Progress) -> None:
        if blocked.is_set():
            blocked.clear()
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="stopped at row"):
        fit(validation=held, progress=interrupt)
    monkeypatch.setattr(validation, "measure", measure)
    run = fit(validation=held)
    stopped_at = min(checkpoints_of(run))
    assert {position for position in POSITIONS if position > stopped_at} <= set(checkpoints_of(run))
    assert stopped_at <= 3000  # where it stopped was evaluated when it went on


def test_workers_that_are_lost_meanwhile_change_nothing(
    fit: Fit, held: Path, cluster: Grow, monkeypatch: pytest.MonkeyPatch, talkative: None,
    validated: tuple[TrainedRun, list[Progress]],
) -> None:  # fmt: skip
    made, client = cluster(2)
    begun, lost, measure = threading.Event(), threading.Event(), validation.measure

    def waiting(*args: Any, **options: Any) -> dict[str, Any]:
        begun.set()
        assert lost.wait(PATIENCE)
        return measure(*args, **options)

    def lose_one(progress: Progress) -> None:
        if begun.is_set() and not lost.is_set():
            resize(made, client, 1)
            lost.set()

    monkeypatch.setattr(validation, "measure", waiting)
    run = fit(client=client, validation=held, progress=lose_one)
    assert lost.is_set()
    assert digests(run) == digests(validated[0])
    assert checkpoints_of(run) == checkpoints_of(validated[0])


def test_a_failure_is_reported_and_ends_no_training(
    fit: Fit, held: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, undisturbed: TrainedRun,
) -> None:  # fmt: skip
    lost = tmp_path / "lost.parquet"
    lost.write_bytes(held.read_bytes())
    run = fit(validation=lost, on_plan=lambda plan: lost.unlink())
    assert digests(run) == digests(undisturbed)
    assert run.held_out["checkpoints"] == []
    reported = [r for r in caplog.records if "was not evaluated on held-out data" in r.message]
    assert len(reported) == 6
    assert "lost.parquet" in reported[0].message


def test_rows_that_are_trained_on_are_refused(fit: Fit, adult: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"trained on as well .*part-1\.parquet"):
        fit(validation=adult / "part-1.parquet")
    (tmp_path / "copy.parquet").write_bytes((adult / "part-1.parquet").read_bytes())
    with pytest.raises(DataError, match=r"trained on as well .*copy\.parquet"):
        fit(validation=tmp_path / "copy.parquet")
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda t: t.drop_columns(["age"]), SchemaError, "age"),
        (lambda t: t.drop_columns(["income"]), SchemaError, "income"),
        (lambda t: t.slice(0, 0), DataError, "no rows"),
        (
            lambda t: t.set_column(COLUMNS.index("income"), "income", pa.array(["rich"] * len(t))),
            DataError,
            "rich",
        ),
    ],
)
def test_unfit_data_are_refused_before_the_run_begins(
    fit: Fit, held: Path, tmp_path: Path, change: Any, error: type, match: str
) -> None:
    unfit = tmp_path / "unfit.parquet"
    pq.write_table(change(pq.read_table(held)), unfit)
    with pytest.raises(error, match=f"validation: .*{match}"):
        fit(validation=unfit)
    assert not (tmp_path / "run" / "run.json").exists()


def test_best_is_refused_where_nothing_was_evaluated(undisturbed: TrainedRun) -> None:
    with pytest.raises(CheckpointError, match="validation"):
        Run.open(f"{undisturbed.run_url}@best")


def test_a_damaged_record_is_made_again(fit: Fit, held: Path, tmp_path: Path) -> None:
    run = fit(validation=held)
    (tmp_path / "run" / NAME).write_bytes(b"{}")
    with pytest.raises(CheckpointError, match="Delete it"):
        Run.open(f"{run.run_url}@best")
    again = fit(validation=held)
    assert checkpoints_of(again) == {6000: checkpoints_of(run)[6000]}


def test_numbers_are_ranked_by_rmse_and_densities_by_likelihood(
    fit: Fit, adult: Path, held: Path
) -> None:
    plain = AMFRegressor(n_estimators=3, random_state=1, feature_scales=None)
    run = fit(
        "numbers", estimator=plain, target="age", data=adult / "part-0.parquet", validation=held
    )
    losses = {position: one["rmse"] for position, one in checkpoints_of(run).items()}
    assert run.held_out["best"] == min(losses, key=lambda position: losses[position])
    density = MondrianDensity(n_estimators=2, max_lifetime=2.0, n_draws=64, random_state=1)
    run = fit(
        "density", estimator=density, target=None, data=adult / "part-0.parquet", validation=held
    )
    found = {position: one["log_likelihood"] for position, one in checkpoints_of(run).items()}
    assert run.held_out["best"] == max(found, key=lambda position: found[position])
    record = read_record(Run.open(run.run_url).store)
    assert record is not None
    assert record.evaluated[0].loss == "log_likelihood"
