"""Forests that follow the stream, on a cluster: the bytes of one process, whatever happens."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import AMFClassifier, AMFRegressor, load
from dmondrian.boosting.boosted_set import BoostedSet
from dmondrian.checkpoint import Manifest, Run, encode_forest, kept_shares
from dmondrian.checkpoint.copying import copy_model
from dmondrian.checkpoint.merging import merge
from dmondrian.checkpoint.model import known_trees, look_at_model
from dmondrian.checkpoint.parts import parts_of, runs_before
from dmondrian.checkpoint.stored_trees import load_trees
from dmondrian.distributed import TrainedRun, evaluate, grow, predict_proba, score, train
from dmondrian.distributed.scoring.model_info import open_model
from dmondrian.distributed.worker import work_units
from dmondrian.drift import scaled_trees
from dmondrian.drift.drift_forest import DriftForest
from dmondrian.drift.scaled_trees import WIDEST
from dmondrian.errors import CheckpointError, CorruptError, ParameterError
from dmondrian.estimators.stream_following import EXPERTS
from dmondrian.frames import FrameModel
from tests.distributed.conftest import ADULT, COLUMNS, Fit, Grow, Once, digests, resize, table_of
from tests.distributed.scoring.test_tree_pipeline import limit_of, manifest, plan_small
from tests.distributed.training.test_generalized import rows_of
from tests.distributed.training.test_stream import StopError, stop_after
from tests.drift.streams import early_births, switching
from tests.reference.boosting import births_until

ROWS = 3000  # members learn a row more slowly than trees do
BOOSTED: dict[str, Any] = {"delay": 64, "experts": ("mondrian", "boosted")}
SCALED: dict[str, Any] = {"delay": 64, "experts": ("mondrian", "boosted", "scaled")}


def following(n_estimators: int = 5, delay: int = 1, **others: Any) -> AMFClassifier:
    return AMFClassifier(n_estimators, drift="follow", delay=delay, random_state=7, **others)


def state_of(model: Any) -> bytes:
    return encode_forest(*model.forest_.state())  # a pickle depends on which texts are one object


def alone(run: TrainedRun, estimator: AMFClassifier, n: int = ROWS) -> Any:
    """Return the estimator fitted to the first rows of a run, on arrays, in two calls."""
    X, y = rows_of(run)
    labels = np.array(run.plan.schema.classes)[y.astype(int)]
    half = n // 2 + 3
    estimator.partial_fit(X[:half], labels[:half], classes=list(run.plan.schema.classes or ()))
    return estimator.partial_fit(X[half:n], labels[half:n])


@pytest.fixture(scope="module")
def adult(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of 1,500 rows in row groups of 500."""
    folder = tmp_path_factory.mktemp("followed")
    table = pq.read_table(ADULT, columns=COLUMNS)
    for i in range(2):
        half = table.slice(i * ROWS // 2, ROWS // 2)
        pq.write_table(half, folder / f"part-{i}.parquet", row_group_size=500)
    return folder


@pytest.fixture(
    scope="module",
    params=[
        pytest.param({"delay": 1}, id="at once"),
        # Boosted sets and scaled trees are beside the same members, and learn the same blocks.
        pytest.param({"delay": 64}, id="in blocks", marks=pytest.mark.thorough),
        pytest.param(BOOSTED, id="boosted", marks=pytest.mark.thorough),
        pytest.param(SCALED, id="scaled"),
    ],
)
def run(
    request: pytest.FixtureRequest, adult: Path, client: Client,
    tmp_path_factory: pytest.TempPathFactory,
) -> TrainedRun:  # fmt: skip
    """A run that nothing disturbs, of five members."""
    folder = tmp_path_factory.mktemp("following") / "run"
    return train(
        following(**request.param), adult, target="income", run=folder, client=client,
        checkpoint_every="700 rows",
    )  # fmt: skip


def settings_of(run: TrainedRun) -> dict[str, Any]:
    given = Run.open(run.run_url).run_json["estimator"]
    return {"delay": int(given["delay"]), "experts": tuple(given["experts"])}


def delay_of(run: TrainedRun) -> int:
    return int(settings_of(run)["delay"])


@pytest.mark.thorough(but="at once")
def test_a_run_is_the_forest_of_one_process(run: TrainedRun) -> None:
    shared, estimator = run.to_local(), alone(run, following(**settings_of(run)))
    assert isinstance(shared.forest_, DriftForest)
    assert state_of(shared) == state_of(estimator)
    X, _ = rows_of(run)
    before = estimator.predict_proba(X)
    estimator.forest_.labels_are_known = True  # as that of a run is
    np.testing.assert_array_equal(shared.predict_proba(X), estimator.predict_proba(X))
    assert np.array_equal(before, shared.predict_proba(X)) is (not shared.n_waiting_)


@pytest.mark.thorough(but="at once")
def test_metrics_are_those_of_every_forecast_of_the_guard(run: TrainedRun) -> None:
    X, y = rows_of(run)
    forest = DriftForest(run.to_local().forest_.parameters, range(5))
    result = forest.forecast_and_learn(X.to_numpy(), y)
    assert len(result) == ROWS
    losses = -np.log(result[np.arange(ROWS), y.astype(int)])
    assert run.metrics["log_loss"] == pytest.approx(losses.mean(), rel=1e-12)
    assert run.metrics["accuracy"] == (result.argmax(axis=1) == y).mean()


@pytest.mark.thorough
def test_any_checkpoint_goes_on_amid_a_block_too(run: TrainedRun) -> None:
    X, y = rows_of(run)
    positions = Run.open(run.run_url).manifests()
    assert positions[:2] == [700, 1400]
    whole = state_of(run.to_local())
    for position in positions[:2]:
        before = load(f"{run.run_url}@{position}")
        assert len(before.forest_.waiting.y) == position % delay_of(run)
        before.partial_fit(X[position:], before.classes_[y[position:].astype(int)])
        assert state_of(before) == whole


@pytest.mark.parametrize("n_shards", [1, 2])
@pytest.mark.thorough
def test_shards_and_checkpoints_change_no_byte(run: TrainedRun, fit: Fit, n_shards: int) -> None:
    other = fit(estimator=following(**settings_of(run)), n_shards=n_shards, checkpoint_every=None)
    assert len(digests(other)) == n_shards
    assert state_of(other.to_local()) == state_of(run.to_local())
    assert other.metrics == run.metrics


@pytest.mark.usefixtures("talkative")
@pytest.mark.thorough(but="at once")
def test_a_killed_worker_changes_no_byte(run: TrainedRun, fit: Fit, pair: Client) -> None:
    pid = min(pair.run(os.getpid).values())
    kill = Once(partial(os.kill, pid, signal.SIGKILL))
    options = {"estimator": following(**settings_of(run)), "checkpoint_every": "700 rows"}
    other = fit(client=pair, progress=kill, window=1, **options)
    assert kill.is_done
    assert other.summary["recoveries"] >= 1
    assert digests(other) == digests(run)
    assert other.metrics == run.metrics


@pytest.mark.usefixtures("talkative")
@pytest.mark.thorough
def test_a_worker_that_joins_takes_members_over(run: TrainedRun, fit: Fit, cluster: Grow) -> None:
    workers, client = cluster(1)
    join = Once(lambda: resize(workers, client, 2))
    options = {"estimator": following(**settings_of(run)), "checkpoint_every": "700 rows"}
    other = fit(client=client, progress=join, window=1, **options)
    assert other.summary["workers"] == 2
    assert digests(other) == digests(run)


@pytest.mark.usefixtures("talkative")
@pytest.mark.thorough(but="at once")
def test_a_stopped_run_goes_on_amid_a_block(run: TrainedRun, fit: Fit) -> None:
    options = {"estimator": following(**settings_of(run)), "checkpoint_every": "700 rows"}
    with pytest.raises(StopError):
        fit(progress=stop_after(1400), window=1, **options)
    again = fit(**options)
    assert 0 < again.summary["resumed_at"] < ROWS
    assert digests(again) == digests(run)
    assert again.metrics == run.metrics


def test_shards_of_a_worker_share_the_boosted_sets_and_the_scales(
    cluster: Grow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early_births(monkeypatch)
    X, y = switching(400)
    table = pa.table({**{f"x{j}": X[:, j] for j in range(X.shape[1])}, "y": y})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=50)
    fitted, fit = [], BoostedSet.fit
    monkeypatch.setattr(BoostedSet, "fit", lambda *its: fitted.append(len(its[0])) or fit(*its))
    searched, search = [], scaled_trees.learn_scales
    monkeypatch.setattr(
        scaled_trees,
        "learn_scales",
        lambda *its: searched.append(len(its[1][1])) or search(*its),
    )
    run = train(
        following(4, experts=EXPERTS), tmp_path / "rows.parquet", target="y",
        run=tmp_path / "run", client=cluster(1)[1], n_shards=4,
    )  # fmt: skip
    assert fitted == births_until(200) + births_until(400)  # kernels are compiled on 200 rows
    assert searched == [64, 128, 100, 64, 128, 128, 128]
    shards = [load_trees([blob]) for blob in look_at_model(run.run_url)[0]]
    assert len({shard.boosted.digest for shard in shards}) == 1
    shards[1].boosted.newest.first_scores[0] += 1.0
    with pytest.raises(ParameterError, match="learned other rows"):
        type(shards[0]).join(shards)


def test_a_run_warns_once_that_it_grows_no_scaled_trees(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    n, d = 40, WIDEST + 1
    X = np.random.default_rng(0).random((n, d), np.float32)
    columns = {f"x{j}": X[:, j] for j in range(d)}
    pq.write_table(pa.table({**columns, "y": X[:, 0] > 0.5}), tmp_path / "rows.parquet")
    estimator, given = following(1, experts=EXPERTS), (tmp_path / "rows.parquet",)
    with caplog.at_level(logging.WARNING, "dmondrian"):
        for _ in range(2):
            run = train(estimator, *given, target="y", run=tmp_path / "run", client=client)
    found = [r.getMessage() for r in caplog.records if "grows no trees" in r.getMessage()]
    assert run.to_local().forest_.rows_so_far["learned"] == n
    with pytest.warns(UserWarning, match="grows no trees") as warned:
        estimator.fit(X, X[:, 0] > 0.5)
    assert found == [str(one.message) for one in warned]


@pytest.mark.thorough
def test_boosted_sets_split_on_what_is_missing_and_on_categories(
    client: Client, tmp_path: Path
) -> None:
    """Nulls and categories are columns of the encoding, and sets take them as any other."""
    draw = np.random.default_rng(0)
    n, others = 1500, {f"noise{j}": draw.random(1500) for j in range(5)}
    kind = draw.choice(["a", "b", "c"], n)
    is_missing = draw.random(n) < 0.5
    y = np.where((kind == "b") ^ is_missing, "yes", "no")
    table = pa.table({
        "number": pa.array(draw.random(n), mask=is_missing),
        "kind": pa.array(kind, mask=kind == "c").dictionary_encode(), **others, "y": y,
    })  # fmt: skip
    for name, rows in (("train", table[:1200]), ("later", table[1200:])):
        pq.write_table(rows, tmp_path / f"{name}.parquet", row_group_size=100)
    estimator = following(3, **BOOSTED)
    run = train(
        estimator, tmp_path / "train.parquet", target="y", run=tmp_path / "run", client=client,
        checkpoint_every="500 rows",
    )  # fmt: skip
    shared, (X, labels) = run.to_local(), rows_of(run)
    names = list(X)
    assert {"number=<null>", "kind=b"} <= set(names)
    newest = shared.forest_.boosted.newest.trees
    used = {names[j] for j in np.unique(newest.columns)}
    assert {"number=<null>", "kind=b"} <= used
    one = following(3, **BOOSTED).partial_fit(
        X, np.array(["no", "yes"])[labels.astype(int)], classes=["no", "yes"]
    )
    assert state_of(shared) == state_of(one)
    measured = evaluate(run.run_url, tmp_path / "later.parquet", client=client)
    assert measured["accuracy"] > 0.97
    plain = train(
        following(3, delay=64), tmp_path / "train.parquet", target="y", run=tmp_path / "plain",
        client=client,
    )  # fmt: skip
    assert plain.metrics["log_loss"] > run.metrics["log_loss"]
    assert score(run.run_url, tmp_path / "later.parquet", tmp_path / "out", client=client)["rows"]
    frame = pq.read_table(tmp_path / "later.parquet").to_pandas()
    found = FrameModel(run.run_url).predict(frame)
    np.testing.assert_array_equal(table_of(tmp_path / "out")["prediction"].to_pylist(), found)
    for value in (np.nan, np.inf):
        rows = X.to_numpy()[:5].copy()
        rows[2, 0] = value
        with pytest.raises(ValueError, match="contains"):
            shared.predict(rows)


def test_what_a_worker_sends_at_once_is_bounded_by_classes(run: TrainedRun) -> None:
    from dmondrian.distributed.training.attempt import Attempt, attempt_options

    attempt = Attempt(Run.open(run.run_url), run.plan, attempt_options(None, 4, None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_units, "UNIT_NUMBERS", 12_500)  # five sums, of five numbers at least
        assert max(unit.rows for unit in attempt._cut()) == 500


@pytest.mark.thorough(but="at once")
def test_scores_predictions_and_metrics_of_other_rows(
    run: TrainedRun, adult: Path, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_small(monkeypatch)
    shared, frame = run.to_local(), pq.read_table(adult).to_pandas()
    X, y = rows_of(run)
    expected = shared.predict_proba(X)
    assert score(run.run_url, adult, tmp_path / "whole", client=client)["trees_sharded"] == 1
    limit = limit_of(open_model(run.run_url), 2)
    parts = score(run.run_url, adult, tmp_path / "parts", client=client, memory_limit=limit)
    assert parts["trees_sharded"] > 1
    assert manifest(tmp_path / "parts") == manifest(tmp_path / "whole")
    result = table_of(tmp_path / "whole")
    assert result.column_names == [
        "prediction", "proba_<=50K", "proba_>50K", "spread", "distance",
    ]  # fmt: skip
    np.testing.assert_array_equal(result["proba_>50K"].to_numpy(), expected[:, 1])
    assert result["prediction"].to_pylist() == shared.predict(X).tolist()
    each = shared.forest_.caught_up().share_each(X.to_numpy()).of_members
    best = expected.argmax(axis=1)
    spread = each[:, np.arange(ROWS), best].std(axis=0)
    np.testing.assert_allclose(result["spread"].to_numpy(), spread, atol=1e-7)
    assert (result["distance"].to_numpy() >= 0.0).all()
    measured = evaluate(run.run_url, adult, client=client)
    assert measured["accuracy"] == (best == y).mean()
    losses = -np.log(expected[np.arange(ROWS), y.astype(int)])
    assert measured["log_loss"] == pytest.approx(losses.mean(), rel=1e-12)
    np.testing.assert_array_equal(FrameModel(run.run_url).predict_proba(frame), expected)
    lazy = predict_proba(run.run_url, dd.from_pandas(frame, npartitions=3))
    np.testing.assert_array_equal(lazy.compute(scheduler=client).to_numpy(), expected)


def test_rows_without_label_or_weight_have_no_number(client: Client, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    a, b = draw.random((2, 900))
    a[:2], b[:2] = [0.0, 1.0], [1.0, 0.0]  # columns are scaled by their range
    y = np.where(draw.random(900) < 0.1, None, np.where(a > b, "yes", "no"))
    w = draw.choice([0.0, 0.5, 2.0], 900)
    table = pa.table({"a": a, "b": b, "y": pa.array(y.tolist()), "w": w})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=100)
    estimator = following(3, delay=40)
    run = train(
        estimator, tmp_path / "rows.parquet", target="y", weight="w", null_target="drop",
        run=tmp_path / "run", client=client, checkpoint_every="130 rows",
    )  # fmt: skip
    known = np.array([label is not None for label in y])
    X = np.stack([a, b], axis=1)[known]
    one = following(3, delay=40).partial_fit(
        X, y[known].astype(str), classes=["no", "yes"], sample_weight=w[known]
    )
    shared = run.to_local()
    assert state_of(shared) == state_of(one)
    kept = w[known] > 0.0
    assert shared.forest_.guard.position == kept.sum()
    forest = DriftForest(shared.forest_.parameters, range(3))
    labels = (y[known] == "yes").astype(float)
    result = forest.forecast_and_learn(X.astype(np.float32), labels, w[known])
    losses = -np.log(result[np.arange(len(result)), labels[kept].astype(int)])
    mean = np.average(losses, weights=w[known][kept])
    assert run.metrics["log_loss"] == pytest.approx(mean, rel=1e-12)


def test_files_that_come_later_go_on_amid_a_block(fit: Fit, adult: Path, tmp_path: Path) -> None:
    first, second = sorted(adult.iterdir())
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(first, data)
    fit(data=data, estimator=following(3, delay=64))
    shutil.copy(second, data)
    run = fit(data=data, estimator=following(3, delay=64))
    assert run.summary["resumed_at"] == ROWS // 2
    assert (ROWS // 2) % 64 > 0
    assert state_of(run.to_local()) == state_of(alone(run, following(3, delay=64)))
    assert run.metrics["rows"] == ROWS


@pytest.mark.thorough
def test_a_run_without_metrics_has_a_guard_all_the_same(run: TrainedRun, fit: Fit) -> None:
    other = fit(estimator=following(**settings_of(run)), progressive=False)
    assert other.metrics == {}
    assert state_of(other.to_local()) == state_of(run.to_local())


@pytest.mark.parametrize(
    "others",
    [*(pytest.param({"delay": n}, marks=pytest.mark.thorough) for n in (1, 64)), BOOSTED],
    ids=str,
)
def test_numbers_are_followed_with_their_deviation(
    fit: Fit, adult: Path, client: Client, tmp_path: Path, others: dict[str, Any]
) -> None:
    delay, settings = others["delay"], {"drift": "follow", "random_state": 7, **others}
    run = fit(estimator=AMFRegressor(3, **settings), target="age", checkpoint_every="700 rows")
    X, y = rows_of(run)
    one = AMFRegressor(3, **settings).partial_fit(X[:1503], y[:1503])
    shared = run.to_local()
    assert state_of(shared) == state_of(one.partial_fit(X[1503:], y[1503:]))
    forest = DriftForest(shared.forest_.parameters, range(3))
    errors = forest.forecast_and_learn(X.to_numpy(), y)[:, 0] - y
    errors[:delay] = y[0] - y[:delay]  # rows that no label is known for
    assert run.metrics["rmse"] == pytest.approx((errors @ errors / ROWS) ** 0.5, rel=1e-9)
    assert score(run.run_url, adult, tmp_path / "out", client=client)["rows"] == ROWS
    result, (mean, std) = table_of(tmp_path / "out"), shared.predict(X, return_std=True)
    assert result.column_names == ["prediction", "std", "distance"]
    np.testing.assert_array_equal(result["prediction"].to_numpy(), mean)
    np.testing.assert_array_equal(result["std"].to_numpy(), std)
    measured = evaluate(run.run_url, adult, client=client)
    assert measured["mae"] == pytest.approx(np.abs(mean - y).mean(), rel=1e-9)
    assert 0.85 < measured["coverage_90"] < 0.99


@pytest.mark.usefixtures("talkative")
@pytest.mark.thorough
def test_members_that_are_added_are_those_of_a_run_that_had_them_from_the_start(
    run: TrainedRun, fit: Fit, adult: Path, client: Client, tmp_path: Path
) -> None:
    """In two turns, the first stopped in the middle; by shards and checkpoints of other sizes."""
    full = fit("full", estimator=following(8, **settings_of(run)), n_shards=2)
    folder = tmp_path / "grown"
    shutil.copytree(run.run_url, folder)
    with pytest.raises(StopError):
        grow(folder, 7, client=client, checkpoint_every=500, n_shards=1, progress=stop_after(1000))
    (part,) = parts_of(Run.open(folder))
    assert 0 < part.manifests()[-1] < ROWS
    assert state_of(load(folder)) == state_of(run.to_local())
    grown = grow(folder, 7, client=client, checkpoint_every=700, n_shards=1)
    assert grown.summary["resumed_at"] >= 1000
    grown = grow(folder, 8, client=client)
    assert state_of(load(folder)) == state_of(full.to_local())
    assert grown.metrics == full.metrics
    assert digests(folder) == digests(run)  # of the members that were there
    assert known_trees(folder)[0].n_trees == 8
    assert evaluate(folder, adult, client=client) == evaluate(full.run_url, adult, client=client)
    assert grow(folder, 8, client=client).summary["rows"] == 0
    copied = copy_model(folder, tmp_path / "copy")
    assert state_of(load(copied.url)) == state_of(full.to_local())
    if delay_of(run) == 1:
        return
    table = pq.read_table(adult / "part-0.parquet").slice(0, 700)
    more = shutil.copytree(adult, tmp_path / "more")
    pq.write_table(table, more / "part-2.parquet")
    options: dict[str, Any] = {"target": "income", "client": client}
    longer = train(following(8, **settings_of(run)), more, run=full.run_url, **options)
    again = train(following(5, **settings_of(run)), more, run=copied.url, **options)
    assert state_of(load(copied.url)) == state_of(longer.to_local())
    assert again.metrics == longer.metrics


@pytest.mark.thorough
def test_members_are_not_added_to_those_whose_forecasts_are_gone(
    run: TrainedRun, fit: Fit, adult: Path, client: Client, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    folder = tmp_path / "without"
    shutil.copytree(run.run_url, folder)
    piece = folder / kept_shares.names_of(Run.open(folder))[1]
    whole = piece.read_bytes()
    piece.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptError, match=rf"{piece.name} in .* is damaged.*back from a copy"):
        grow(folder, 9, client=client)
    assert not parts_of(Run.open(folder))
    piece.unlink()
    with pytest.raises(ParameterError, match=r"are gone back from a copy, or .* run of 9 trees"):
        grow(folder, 9, client=client)
    assert not parts_of(Run.open(folder))
    settings = {**settings_of(run), "delay": 3}  # nor would these be merged with another delay
    other = fit("other", estimator=following(2, **settings), first_tree=5)
    with pytest.raises(ParameterError, match="follows the stream"):
        merge([run.run_url, other.run_url], tmp_path / "merged")
    with pytest.raises(CheckpointError, match=r"(?s)another job.*grow .* --n-estimators 6"):
        train(following(6, **settings_of(run)), adult, target="income", run=run.run_url,
              client=client)  # fmt: skip
    if delay_of(run) != 1:
        return
    more = shutil.copytree(adult, tmp_path / "more")
    pq.write_table(pq.read_table(adult / "part-0.parquet").slice(0, 20), more / "part-2.parquet")
    train(following(5, **settings_of(run)), more, target="income", run=folder, client=client)
    (text,) = [record.message for record in caplog.records if "files in shares/" in record.message]
    assert re.search(r"are gone, behind row [\d,]+ of positive weight: no trees can be added", text)


@pytest.mark.thorough(but="at once")
def test_a_part_without_the_run_around_it_is_refused(
    run: TrainedRun, client: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "grown"
    shutil.copytree(run.run_url, folder)
    grow(folder, 6, client=client)
    (part,) = parts_of(Run.open(folder))
    alone = tmp_path / "alone"
    shutil.copytree(part.url, alone)
    with pytest.raises(CheckpointError, match="move the whole run"):
        runs_before(Run.open(alone))
    with pytest.raises((CheckpointError, CorruptError)):
        load(alone)


def test_what_many_classes_forecast_is_not_kept(
    adult: Path, client: Client, tmp_path: Path
) -> None:
    table = pq.read_table(adult / "part-0.parquet").slice(0, 600)
    ages = pa.array([f"{age % 13}" for age in table["age"].to_pylist()])
    pq.write_table(table.set_column(0, "class", ages), tmp_path / "rows.parquet")
    done = train(following(2), tmp_path / "rows.parquet", target="class", run=tmp_path / "run",
                 client=client)  # fmt: skip
    assert kept_shares.names_of(Run.open(done.run_url)) == []
    with pytest.raises(ParameterError, match="twelve classes"):
        grow(done.run_url, 3, client=client)


def test_a_manifest_whose_guard_is_of_other_rows_is_refused(run: TrainedRun) -> None:
    read = Manifest.from_bytes

    def changed(data: bytes, name: str) -> Manifest:
        found = read(data, name)
        found.metrics["guard"]["position"] -= 1
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Manifest, "from_bytes", changed)
        with pytest.raises(CorruptError, match="guard"):
            load(run.run_url)


def test_a_run_names_the_columns_with_which_its_forecasts_rise(
    adult: Path, client: Client, tmp_path: Path
) -> None:
    named = following(2, **BOOSTED, monotonic_cst={"education-num": 1})
    run = train(named, adult, target="income", run=tmp_path / "run", client=client)
    X, _ = rows_of(run)
    names = run.plan.schema.feature_names
    directions = [int(name == "education-num") for name in names]
    assert sum(directions) == 1
    expected = alone(run, following(2, **BOOSTED, monotonic_cst=directions))
    assert state_of(run.to_local()) == state_of(expected)
    X, steps = X[:200].copy(), []
    for value in np.linspace(0.0, 1.0, 12, dtype=np.float32):
        X["education-num"] = value
        steps.append(run.to_local().predict_proba(X)[:, 1])
    assert (np.diff(steps, axis=0) >= -1e-12).all()
    assert (np.diff(steps, axis=0) > 1e-3).any()
    wrong = following(2, **BOOSTED, monotonic_cst={"education": 1})
    with pytest.raises(ParameterError, match="'education', which is no column of numbers"):
        train(wrong, adult, target="income", run=tmp_path / "other", client=client)
