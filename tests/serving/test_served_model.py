"""Answers are those of estimators and of scores, whatever waits together, after JSON as before."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestClassifier,
    GeneralizedMondrianForestRegressor,
    MondrianDensity,
    MondrianFeatures,
    MondrianForestRegressor,
    MondrianKernelRegressor,
    OnlineRandomForestClassifier,
    ParameterError,
)
from dmondrian.distributed import score, train
from dmondrian.serving.learner import Learner, check_learns
from dmondrian.serving.request_queue import answers
from dmondrian.serving.request_rows import (
    PredictRequest,
    read_json,
    request_of_arrow,
    request_of_json,
)
from dmondrian.serving.served_model import Address, ServedModel
from tests.distributed.conftest import table_of, worker_threads

SETTINGS: dict[str, Any] = {"n_estimators": 3, "random_state": 0}
ESTIMATORS = {
    "classes": AMFClassifier(**SETTINGS),
    "calibrated classes": AMFClassifier(calibrate=True, **SETTINGS),
    "numbers": AMFRegressor(**SETTINGS),
    "calibrated numbers": AMFRegressor(calibrate=True, **SETTINGS),
    "classes of a stream": AMFClassifier(drift="follow", **SETTINGS),
    "numbers of a stream": AMFRegressor(drift="follow", **SETTINGS),
    "hierarchy": MondrianForestRegressor(aggregation="hierarchy", lifetime=None, **SETTINGS),
    "decision": GeneralizedMondrianForestClassifier(**SETTINGS),
    "signs": GeneralizedMondrianForestClassifier(loss="hinge", **SETTINGS),
    "quantiles": GeneralizedMondrianForestRegressor(
        loss="quantile", quantile=[0.1, 0.9], **SETTINGS
    ),
    "fringe": OnlineRandomForestClassifier(**SETTINGS),
    "kernel": MondrianKernelRegressor(**SETTINGS),
    "density": MondrianDensity(**SETTINGS),
}


def served(path: Path) -> ServedModel:
    return ServedModel(Address.find(str(path)))


def request_of(model: ServedModel, value: Any) -> PredictRequest:
    return request_of_json(read_json(json.dumps(value).encode()), model.names, model.n_columns)


def replies(model: ServedModel, requests: list[PredictRequest]) -> list[Any]:
    """Return bodies of answers as values, or errors."""
    found = answers(model, requests, False)
    return [one if isinstance(one, Exception) else json.loads(one[0].body) for one in found]


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.random((300, 3), dtype=np.float32)
    return X, X[:, 0] + 0.1 * rng.standard_normal(300)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_answers_are_the_estimator_s_bit_for_bit(rows, name: str, tmp_path: Path) -> None:
    X, y = rows
    forest = ESTIMATORS[name]
    is_classifier = hasattr(forest, "classes_") or "Classifier" in type(forest).__name__
    forest.fit(X, np.where(y > 0.5, "yes", "no") if is_classifier else y)
    forest.save(tmp_path / "model")
    model = served(tmp_path / "model")
    together = [request_of(model, {"rows": X[i : i + 1].tolist()}) for i in range(40)]
    found = [one["rows"][0] for one in replies(model, together)]
    (at_once,) = replies(model, [request_of(model, X[:40].tolist())])
    assert at_once["rows"] == found
    assert at_once["position"] == 300

    def column(label: str) -> list[Any]:
        return [row[label] for row in found]

    if name == "density":
        assert column("log_density") == forest.score_samples(X[:40]).tolist()
        return
    if name == "quantiles":
        assert [column("q_0.1"), column("q_0.9")] == forest.predict(X[:40]).T.tolist()
        return
    assert column("prediction") == forest.predict(X[:40]).tolist()
    if is_classifier and name != "signs":
        shares = [column(f"proba_{label}") for label in forest.classes_]
        assert shares == forest.predict_proba(X[:40]).T.tolist()
    if name in ("calibrated numbers", "hierarchy"):
        assert column("std") == forest.predict(X[:40], return_std=True)[1].tolist()
    if name == "decision":
        assert column("decision") == forest.decision_function(X[:40]).tolist()
    (plain,) = replies(model, [request_of(model, {"rows": X[:2].tolist(), "details": False})])
    assert set(found[0]) - set(plain["rows"][0]) <= {"spread", "std", "distance"}
    assert all(plain["rows"][0][key] == found[0][key] for key in plain["rows"][0])


def test_what_forecasts_nothing_is_refused(rows, tmp_path: Path) -> None:
    MondrianFeatures(3, lifetime=1.0, random_state=0).fit(rows[0]).save(tmp_path / "features")
    with pytest.raises(ParameterError, match="forecasts nothing"):
        served(tmp_path / "features")


def table() -> pa.Table:
    """Columns of each kind, with missing values."""
    rng = np.random.default_rng(1)
    n = 400
    age, hours = rng.integers(20, 70, n), rng.random(n)
    city = rng.choice(["Oslo", "Łódź", "東京", None], n)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    times = [start + timedelta(minutes=float(m)) for m in np.round(rng.random(n) * 1e5, 1)]
    return pa.table(
        {
            "age": age,
            "hours": pa.array(np.where(rng.random(n) < 0.1, None, hours).tolist(), pa.float64()),
            "city": pa.array(city.tolist(), pa.string()),
            "member": rng.random(n) < 0.5,
            "since": pa.array(times, pa.timestamp("us", "UTC")),
            "buys": np.where(age + 20 * hours > 55, "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[ServedModel, list[dict], list[dict]]:
    """A served run, rows as JSON has them, and their scores."""
    folder = tmp_path_factory.mktemp("run")
    pq.write_table(table(), folder / "rows.parquet")
    with worker_threads(1) as (_, client):
        forest = AMFClassifier(n_estimators=3, random_state=0)
        train(forest, folder / "rows.parquet", target="buys", run=folder / "run", client=client)
        score(folder / "run", folder / "rows.parquet", folder / "scores", client=client)
    rows = table().drop_columns(["buys"]).to_pylist()
    rows = [{**row, "since": row["since"].isoformat()} for row in rows]
    return served(folder / "run"), rows, table_of(folder / "scores").to_pylist()


def test_answers_of_a_run_are_its_scores_bit_for_bit(run) -> None:
    model, rows, scores = run
    (at_once,) = replies(model, [request_of(model, rows)])
    assert at_once == {"position": 400, "rows": scores}
    alone = replies(model, [request_of(model, {"rows": [row]}) for row in rows])
    assert [one["rows"][0] for one in alone] == scores
    columns = {name: [row[name] for row in rows[:7]] for name in rows[0]}
    (as_columns,) = replies(model, [request_of(model, {"columns": columns, "details": True})])
    assert as_columns["columns"] == {name: [s[name] for s in scores[:7]] for name in scores[0]}


def test_categories_of_times_and_decimals_are_found_by_what_json_has(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    which = rng.integers(0, 4, 200)
    starts = [datetime(2026, 1, 1 + int(k), 12, tzinfo=UTC) for k in which]
    columns = {
        "zoned": pa.array(starts, pa.timestamp("ms", "Europe/Vienna")),
        "plain": pa.array([one.replace(tzinfo=None) for one in starts], pa.timestamp("us")),
        "day": pa.array([one.date() for one in starts]),
        "price": pa.array([Decimal(int(k)) / 4 for k in which], pa.decimal128(8, 2)),
    }
    table = pa.table({**columns, "y": which > 1})
    pq.write_table(table, tmp_path / "rows.parquet")
    with worker_threads(1) as (_, client):
        forest = AMFClassifier(n_estimators=3, random_state=0)
        how = {"target": "y", "categorical": [*columns], "client": client}
        train(forest, tmp_path / "rows.parquet", run=tmp_path / "run", **how)
        score(tmp_path / "run", tmp_path / "rows.parquet", tmp_path / "scores", client=client)
    scores = table_of(tmp_path / "scores").to_pylist()
    rows = table.drop_columns(["y"]).to_pylist()
    rows = [
        {name: float(v) if name == "price" else v.isoformat() for name, v in row.items()}
        for row in rows
    ]
    model = served(tmp_path / "run")
    (at_once,) = replies(model, [request_of(model, rows)])
    assert at_once["rows"] == scores
    alone = replies(model, [request_of(model, [row]) for row in rows[:20]])
    assert [one["rows"][0] for one in alone] == scores[:20]
    (error,) = replies(model, [request_of(model, [{**rows[0], "plain": "yesterday"}])])
    assert "no time" in str(error)


def test_arrow_is_answered_with_arrow(run) -> None:
    model, _, scores = run
    source = table().select(["since", "city", "hours", "age", "buys", "member"])  # by name
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, source.schema) as writer:
        writer.write_table(source, max_chunksize=150)
    ((answer, _),) = answers(model, [request_of_arrow(sink.getvalue().to_pybytes())], False)
    found = pa.ipc.open_stream(answer.body).read_all()
    assert found.to_pylist() == scores
    assert found.schema.metadata == {b"dmondrian-position": b"400"}


def test_rows_are_refused_as_scoring_refuses_them(run) -> None:
    model, rows, scores = run
    row = rows[0]

    def refusal(**changed: Any) -> str:
        (error,) = replies(model, [request_of(model, [row, {**row, **changed}])])
        return f"{type(error).__name__}: {error}"

    assert "'age'" in refusal(age="old")
    assert "'age'" in refusal(age=[1])
    (error,) = replies(model, [request_of_json([{**row, "hours": float("inf")}], model.names, 5)])
    assert "infinite" in str(error)
    assert "no time" in refusal(since="yesterday")
    good = [request_of(model, [one]) for one in rows[:3]]
    bad = request_of(model, [{**row, "city": 7}])
    found = replies(model, [good[0], bad, good[1], good[2]])
    assert "'city': expected category" in str(found[1])
    assert [one["rows"][0] for one in (found[0], *found[2:])] == scores[:3]
    (unseen,) = replies(model, [request_of(model, [{**row, "city": "Roma", "more": 1}])])
    assert set(unseen["rows"][0]) == set(scores[0])


def test_plain_rows_of_a_run_need_no_table(run, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows, scores = run
    monkeypatch.setattr(type(model.reader), "table", None)
    found = replies(model, [request_of(model, [row]) for row in rows])
    assert [one["rows"][0] for one in found] == scores


BAD: dict[str, list[Any]] = {
    "age": ["old", [1], True, 2**53 + 1, 2**64, 10**400, float("inf")],
    "hours": ["1", {}, False, float("-inf")],
    "city": [7, True, "\ud800", ["Oslo"]],
    "member": [1, 0.5, "true", None],
    "since": ["yesterday", "2026-01-31T12:00:00", 5, "2026-13-01T00:00:00Z", None, True],
}


@pytest.mark.parametrize("number", [1, 2])
def test_rows_are_answered_or_refused_as_their_table_is(run, number: int) -> None:
    model, rows, scores = run
    changed = [{**rows[0], name: value} for name, values in BAD.items() for value in values]
    requests = [request_of_json([rows[1], row][-number:], model.names, 5) for row in changed]
    wanted = []
    for request in requests:
        try:
            X = model.rows(model.reader.table([request]))
        except Exception as error:  # noqa: BLE001  # whatever it is, it is compared
            wanted.append((type(error), str(error)))
        else:
            columns = {name: values.to_pylist() for name, values in model.answer(X, True).items()}
            wanted.append(columns)
    assert any(isinstance(one, dict) for one in wanted)
    assert sum(isinstance(one, tuple) for one in wanted) > 15
    good = request_of(model, [rows[2]])
    found = replies(model, [good, *requests, good])
    assert found[0]["rows"] == found[-1]["rows"] == [scores[2]]
    for one, expected in zip(found[1:-1], wanted, strict=True):
        if isinstance(expected, tuple):
            assert (type(one), str(one)) == expected
        else:
            assert {name: [r[name] for r in one["rows"]] for name in expected} == expected


def test_a_run_does_not_learn(run) -> None:
    with pytest.raises(ParameterError, match="trained on a cluster"):
        check_learns(run[0])


def test_names_of_a_saved_estimator_are_found(rows, tmp_path: Path) -> None:
    X, y = rows
    frame = pd.DataFrame(X, columns=["left", "mid", "right"])
    forest = AMFRegressor(missing_values="encode", **SETTINGS).fit(frame, y)
    forest.save(tmp_path / "model")
    model = served(tmp_path / "model")
    some = frame.iloc[:5].astype(float)
    some.iloc[2, 1] = None
    columns = {
        name: [None if pd.isna(v) else v for v in some[name]] for name in ("right", "mid", "left")
    }
    (found,) = replies(model, [request_of(model, {"columns": columns})])
    assert found["columns"]["prediction"] == forest.predict(some.astype(np.float32)).tolist()


def test_frames_are_learned_by_name_and_weights_are_counted(tmp_path: Path) -> None:
    X = pd.DataFrame(np.random.default_rng(0).random((40, 2)), columns=["a", "b"])
    forest = AMFClassifier(**SETTINGS).fit(X, X["a"] > 0.5, sample_weight=np.full(40, 0.5))
    forest.save(tmp_path / "model")
    model = served(tmp_path / "model")
    assert model.position == 20
    learner = Learner(model, 10, 10, 10.0)
    try:
        learner.learn(X.to_numpy(np.float32)[:3], np.array([True, False, True]))  # warns of nothing
    finally:
        learner.close()
    assert model.position == 23
