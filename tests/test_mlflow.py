"""A run logged to MLflow, and its model loaded back as a pyfunc."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    DataError,
    GeneralizedMondrianForestRegressor,
    MissingPackageError,
    MondrianDensity,
    ParameterError,
)
from dmondrian.checkpoint import Run
from dmondrian.distributed import Event, train
from dmondrian.frames import FrameModel
from dmondrian.mlflow import LiveLog, log_run
from tests.cli.command import finish
from tests.distributed.conftest import ADULT, COLUMNS, forest, wait_until, worker_threads

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*An input example was not provided:UserWarning",  # a signature is
    "ignore:.*Any type hint is inferred:UserWarning",  # in MLflow's own modules
    "ignore::DeprecationWarning",  # of what MLflow imports
)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return pd.read_parquet(ADULT, columns=COLUMNS).iloc[:2000]


@pytest.fixture
def tracked(tmp_path: Path, monkeypatch):
    """A tracking folder, and the client that reads it."""
    monkeypatch.setenv("DO_NOT_TRACK", "true")  # MLflow would tell its makers
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs more packages
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    yield mlflow
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def runs(frame, tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("logged")
    frame.to_parquet(folder / "rows.parquet")
    given = {"n_estimators": 2, "random_state": 0, "feature_scales": None}
    quantiles = GeneralizedMondrianForestRegressor(loss="quantile", quantile=[0.1, 0.9], **given)
    jobs = {
        "income": forest(n_estimators=2), "age": AMFRegressor(**given),
        "hours-per-week": quantiles,
    }  # fmt: skip
    with worker_threads(1) as (_, client):
        return {
            target: train(
                estimator, folder / "rows.parquet", target=target, run=folder / target,
                client=client,
            ).run_url
            for target, estimator in jobs.items()
        }  # fmt: skip


@pytest.mark.parametrize("target", ["income", "age"])
def test_a_logged_model_answers_as_the_run(tracked, frame, runs, target) -> None:
    with tracked.start_run() as active:
        info = log_run(runs[target])
    loaded = tracked.pyfunc.load_model(info.model_uri)
    rows = frame.drop(columns=target)
    reported, model = loaded.predict(rows), FrameModel(runs[target])
    pd.testing.assert_series_equal(reported["prediction"], model.predict(rows))
    if target == "income":
        proba = reported.drop(columns="prediction")
        pd.testing.assert_frame_equal(proba, model.predict_proba(rows))
    signature = loaded.metadata.signature
    assert set(signature.inputs.input_names()) == set(rows.columns)
    assert signature.outputs.input_names() == list(reported.columns)
    with pytest.raises(tracked.exceptions.MlflowException, match="hours-per-week"):
        loaded.predict(rows.drop(columns="hours-per-week"))
    client = tracked.MlflowClient()
    logged = client.get_run(active.info.run_id).data
    stored = Run.open(runs[target])
    assert logged.params["seed"] == str(stored.run_json["parameters"]["seed"])
    assert logged.params["rows"] == "2000"
    assert logged.tags["dmondrian.plan"] == stored.run_json["plan"]
    name = "log_loss" if target == "income" else "rmse"
    totals = stored.latest().metrics["totals"]
    assert logged.metrics[name] == pytest.approx(totals[name])
    curve = client.get_metric_history(active.info.run_id, name)
    assert max(point.step for point in curve) == 2000
    assert len(curve) > 10


def test_several_quantiles_have_a_column_each(tracked, frame, runs) -> None:
    run = runs["hours-per-week"]
    loaded = tracked.pyfunc.load_model(log_run(run).model_uri)
    reported = loaded.predict(frame.drop(columns="hours-per-week"))
    assert loaded.metadata.signature.outputs.input_names() == ["q_0.1", "q_0.9"]
    pd.testing.assert_frame_equal(reported, FrameModel(run).predict(frame))


def test_a_run_of_its_own_is_begun_and_ended(tracked, runs) -> None:
    log_run(runs["age"])
    assert tracked.active_run() is None


def test_a_run_is_logged_while_it_is_trained(tracked, frame, tmp_path) -> None:
    frame.iloc[:1500].to_parquet(tmp_path / "rows.parquet")
    frame.iloc[1500:].to_parquet(tmp_path / "held-out.parquet")
    store, seen = tracked.MlflowClient(), []

    def points(name: str) -> list[tuple[int, float]]:
        found = store.get_metric_history(log.run_id, name)
        return [(point.step, point.value) for point in found]

    def on_event(event: Event) -> None:
        log(event)
        seen.append(event)
        if event.kind == "checkpoint" and event.values["position"] == 500:  # 1,000 rows to go
            wait_until(lambda: points("durable_rows") == [(500, 500.0)])
            assert store.get_run(log.run_id).info.status == "RUNNING"

    with worker_threads(1) as (_, client), LiveLog() as log:
        train(
            forest(n_estimators=1), tmp_path / "rows.parquet", target="income", client=client,
            run=tmp_path / "run", checkpoint_every="500 rows", on_event=on_event,
            validation=tmp_path / "held-out.parquet",
        )  # fmt: skip
        log(Event("worker_lost", "a worker was lost", 0.0, {}))
    assert store.get_run(log.run_id).info.status == "FINISHED"
    assert (log.lost, tracked.active_run()) == (0, None)
    assert points("durable_rows") == [(n, float(n)) for n in (500, 1000, 1500)]
    for kind, at in (("window", "row"), ("held_out", "position")):
        expected_values = [event.values for event in seen if event.kind == kind]
        assert expected_values
        for name in ("log_loss", "accuracy"):
            expected = [(one[at], one["metrics"][name]) for one in expected_values]
            assert points(f"{kind}_{name}") == expected
    assert store.get_run(log.run_id).data.tags["dmondrian.event"] == "a worker was lost"


def test_a_job_file_has_a_run_logged(tracked, frame, tmp_path) -> None:
    frame.to_parquet(tmp_path / "rows.parquet")
    uri = (tmp_path / "of_the_job").as_uri()
    (tmp_path / "job.toml").write_text(
        '[data]\npath = "rows.parquet"\ntarget = "income"\n'
        '[forest]\nalgorithm = "amf-classifier"\nn_estimators = 1\nfeature_scales = "none"\n'
        '[run]\npath = "run"\ncheckpoint_every = "1000 rows"\n'
        "[cluster]\nworkers = 1\nthreads = 1\n"
        '[mlflow]\nuri = "of_the_job"\nexperiment = "jobs"\n'
    )
    finish("train", tmp_path / "job.toml")  # MLflow keeps the experiment for its process
    store = tracked.MlflowClient(uri)
    experiment = store.get_experiment_by_name("jobs")
    (logged,) = store.search_runs([experiment.experiment_id])
    assert logged.info.status == "FINISHED"
    points = store.get_metric_history(logged.info.run_id, "durable_rows")
    assert [point.step for point in points] == [1000, 2000]
    words = ("train", tmp_path / "job.toml", "--set=mlflow.run_id=nowhere", "--set=run.path=other")
    stderr = finish(*words, code=2)[1]
    assert re.search(r"job\.toml:14: \[mlflow\]: .*nowhere", stderr)
    assert not Path("other").exists()


def test_a_live_log_goes_on_with_a_run_and_tells_how_one_ended(tracked) -> None:
    saved = Event("checkpoint", "saved at row 7", 1.0, {"position": 7, "is_final": True})
    store = tracked.MlflowClient()
    with tracked.start_run() as active, LiveLog() as log:
        assert log.run_id == active.info.run_id
        log(saved)
    with pytest.raises(KeyboardInterrupt), LiveLog() as own:
        raise KeyboardInterrupt
    assert store.get_run(own.run_id).info.status == "KILLED"
    with LiveLog(log.run_id) as again:
        again(saved)
    assert len(store.get_metric_history(log.run_id, "durable_rows")) == 2
    assert store.get_run(log.run_id).info.status == "FINISHED"


def test_a_store_that_fails_ends_no_training(tracked, caplog) -> None:
    saved = Event("checkpoint", "saved at row 7", 1.0, {"position": 7, "is_final": True})
    store = tracked.MlflowClient()
    with caplog.at_level(logging.WARNING, "dmondrian"), LiveLog() as log:
        store.delete_run(log.run_id)  # takes nothing any more
        for _ in range(2):
            log(saved)
        wait_until(lambda: log.lost == 2)
        store.restore_run(log.run_id)
        log(saved)
    assert len(store.get_metric_history(log.run_id, "durable_rows")) == 1
    assert ["did not log saved at row 7" in record.message for record in caplog.records] == [True]


def test_a_store_that_fails_at_the_end_or_for_a_moment_ends_nothing(
    tracked, tmp_path, caplog
) -> None:
    saved = Event("checkpoint", "saved at row 7", 1.0, {"position": 7, "is_final": True})
    store, folder = tracked.MlflowClient(), tmp_path / "mlruns"

    def train_while_it_is_away(log: LiveLog) -> None:
        folder.rename(tmp_path / "away")
        log(saved)
        wait_until(lambda: log.lost == 1)
        raise RuntimeError("the training's own error")

    log = LiveLog()
    with pytest.raises(RuntimeError, match="the training's own error"), log:
        train_while_it_is_away(log)
    assert "that the run is FAILED" in caplog.records[-1].message
    (tmp_path / "away").rename(folder)
    assert store.get_run(log.run_id).info.status == "RUNNING"
    with LiveLog(log.run_id) as again:
        again(saved)
    assert (again.lost, store.get_run(log.run_id).info.status) == (0, "FINISHED")


def test_what_cannot_be_logged_is_refused(tracked, tmp_path, monkeypatch) -> None:
    AMFClassifier(n_estimators=1, random_state=0).fit([[0.0], [1.0]], [0, 1]).save(tmp_path / "m")
    with pytest.raises(ParameterError, match="was fitted on arrays"):
        log_run(tmp_path / "m")
    X = np.random.default_rng(0).random((100, 2))
    pq.write_table(pa.table({"a": X[:, 0], "b": X[:, 1]}), tmp_path / "rows.parquet")
    with worker_threads(1) as (_, client):
        density = MondrianDensity(n_estimators=1, lifetime=1.0, random_state=0)
        run = train(density, tmp_path / "rows.parquet", run=tmp_path / "run", client=client)
    with pytest.raises(ParameterError, match="a density predicts nothing"):
        log_run(run.run_url)
    assert tracked.active_run() is None
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingPackageError, match=r"dmondrian\[mlflow\]"):
        log_run(tmp_path / "m")
    with pytest.raises(MissingPackageError, match=r"dmondrian\[mlflow\]"):
        LiveLog()


@pytest.fixture(scope="module")
def visits(tmp_path_factory) -> tuple[str, pd.DataFrame]:
    """A run with a column of every kind, and some of its rows."""
    draw, n = np.random.default_rng(0), 300
    table = pa.table({
        "small": pa.array(draw.integers(0, 90, n), pa.int32()),
        "narrow": pa.array(draw.random(n), pa.float32()),
        "truth": pa.array(draw.random(n) < 0.5),
        "where": pa.array(np.array(["a", "b", "c"])[draw.integers(0, 3, n)]).dictionary_encode(),
        "when": pa.array(draw.integers(0, 2**50, n), pa.timestamp("us")),
        "day": pa.array(draw.integers(0, 20_000, n).astype(np.int32)).cast(pa.date32()),
        "took": pa.array(draw.integers(0, 10**6, n), pa.duration("ms")),
        "price": pa.array(draw.integers(1, 99, n)).cast(pa.decimal128(19, 0)),
        "y": pa.array(draw.random(n) < 0.5),
    })  # fmt: skip
    folder = tmp_path_factory.mktemp("visits")
    pq.write_table(table, folder / "rows.parquet")
    with worker_threads(1) as (_, client):
        run = train(
            AMFClassifier(n_estimators=1, random_state=0), folder / "rows.parquet", target="y",
            run=folder / "run", client=client,
        )  # fmt: skip
    return run.run_url, table.slice(0, 20).drop_columns("y").to_pandas()


def by_json(frame: pd.DataFrame, orient: str) -> pd.DataFrame:
    """Send a frame as MLflow's server gets it."""
    from mlflow.pyfunc.scoring_server import infer_and_parse_data

    text = frame.to_json(orient=orient, date_format="iso", double_precision=15)
    return infer_and_parse_data({f"dataframe_{orient}": json.loads(text)})


SENT = {
    "as the file has it": lambda frame: frame,
    "64 bits": lambda frame: frame.astype({"small": "int64", "narrow": "float64"}),
    "fractions": lambda frame: frame.astype({"small": "float64", "truth": "float64"}),
    "nullable": lambda frame: frame.convert_dtypes(),
    "Arrow": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "missing numbers": lambda frame: frame.assign(
        small=frame["small"].mask(frame["small"] > 40), narrow=np.nan, took=pd.NaT, price=None
    ),
    "missing categories and times": lambda frame: frame.assign(
        where=[None, *frame["where"][1:]], when=[pd.NaT, *frame["when"][1:]]
    ),
    "only missing": lambda frame: frame.assign(where=np.nan, when=pd.NaT, truth=None).head(1),
    "zoned": lambda frame: frame.assign(when=frame["when"].dt.tz_localize("UTC")),
    "another order, and a column more": lambda frame: frame[frame.columns[::-1]].assign(more=1),
}


@pytest.fixture(scope="module")
def model_of_visits(visits) -> FrameModel:
    return FrameModel(visits[0])


@pytest.mark.parametrize("how", SENT)
def test_a_pyfunc_takes_what_a_frame_model_takes(tracked, visits, model_of_visits, how) -> None:
    run, rows = visits
    loaded = tracked.pyfunc.load_model(log_run(run).model_uri)
    sent = SENT[how](rows)
    pd.testing.assert_frame_equal(
        loaded.predict(sent).drop(columns="prediction"), model_of_visits.predict_proba(sent)
    )


def test_a_pyfunc_takes_what_clients_send(tracked, visits, model_of_visits) -> None:
    """Times come as texts, durations as the numbers they are learned as: seconds."""
    run, rows = visits
    rows = rows.assign(took=rows["took"].dt.total_seconds(), price=rows["price"].astype(float))
    rows["small"] = rows["small"].mask(rows["small"] > 40)
    loaded = tracked.pyfunc.load_model(log_run(run).model_uri)
    wanted = model_of_visits.predict_proba(rows)
    split, records = by_json(rows, "split"), by_json(rows, "records")
    by_csv = pd.read_csv(io.StringIO(rows.to_csv(index=False)))
    for sent in (split, records, by_csv):
        assert pd.api.types.is_string_dtype(sent["when"])
        pd.testing.assert_frame_equal(loaded.predict(sent).drop(columns="prediction"), wanted)
    with pytest.raises(DataError, match="the column 'when' should have times"):
        loaded.predict(by_csv.assign(when="noon"))
    with pytest.raises(DataError, match="'small': expected number"):
        loaded.predict(by_csv.assign(small="many"))
    assert loaded.metadata.metadata["columns"]["small"] == "int32"
    assert loaded.metadata.signature.inputs.input_names() == list(rows.columns)
