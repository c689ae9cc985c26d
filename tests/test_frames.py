"""Data frames of pandas, polars and Arrow: to estimators, and to stored models."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    MondrianDensity,
    MondrianFeatures,
    ParameterError,
    SchemaError,
    frames,
    load,
)
from dmondrian.distributed import predict, train
from dmondrian.frames import FrameModel, answer_names
from tests.distributed.conftest import ADULT, COLUMNS, worker_threads
from tests.distributed.conftest import forest as small_forest

NAMES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).random((600, 3)).astype(np.float32)
    return X, np.where(X[:, 0] > X[:, 1], "yes", "no")


@pytest.fixture(scope="module")
def model(rows, tmp_path_factory) -> FrameModel:
    folder = tmp_path_factory.mktemp("frames") / "model"
    X = pd.DataFrame(rows[0], columns=NAMES)
    AMFClassifier(n_estimators=2, random_state=0).fit(X, rows[1]).save(folder)
    return FrameModel(folder)


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    return pd.read_parquet(ADULT, columns=COLUMNS).iloc[:1000].astype({"sex": "str"})


@pytest.fixture(scope="module")
def of_people(people, tmp_path_factory) -> FrameModel:
    """A run, which knows how its category was encoded."""
    folder = tmp_path_factory.mktemp("people")
    people.to_parquet(folder / "rows.parquet")
    with worker_threads(1) as (_, client):
        run = train(
            small_forest(n_estimators=2), folder / "rows.parquet", target="income",
            run=folder / "run", client=client,
        )  # fmt: skip
    return FrameModel(run.run_url)


KINDS = {
    "pandas category": lambda frame: frame.astype({"sex": "category"}),
    "pandas, categories that no row has": lambda frame: frame.assign(
        sex=pd.Categorical(frame["sex"], categories=["Other", "Male", "None", "Female"])
    ),
    "pandas of Arrow": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "pandas nullable": lambda frame: frame.convert_dtypes(),
    "polars": pl.from_pandas,
    "polars Categorical": lambda frame: pl.from_pandas(frame).cast({"sex": pl.Categorical}),
    "polars Enum": lambda frame: pl.from_pandas(frame).cast({"sex": pl.Enum(["Male", "Female"])}),
    "Arrow": pa.Table.from_pandas,
    "Arrow batch": pa.RecordBatch.from_pandas,
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_columns_are_encoded_alike(of_people, people, kind) -> None:
    some = people.iloc[100:200].reset_index(drop=True)
    reported = of_people.predict_proba(KINDS[kind](some))
    reported = reported.to_pandas() if isinstance(reported, pa.Table) else reported
    np.testing.assert_array_equal(reported.to_numpy(), of_people.predict_proba(some).to_numpy())


def test_a_category_that_training_did_not_have_is_other_in_all_frames(of_people, people) -> None:
    some = people.iloc[:50].assign(sex="new")
    wanted = of_people.features(some)
    assert (wanted[:, of_people.schema.feature_names.index("sex=<other>")] > 0).all()
    for other in (
        some.assign(sex=pd.Categorical(some["sex"])),
        pl.from_pandas(some).cast({"sex": pl.Categorical}),
        pl.from_pandas(some).cast({"sex": pl.Enum(["new", "Male"])}),
    ):
        np.testing.assert_array_equal(of_people.features(other), wanted)


def test_columns_of_other_types_or_twice_are_refused_by_name(of_people, people) -> None:
    with pytest.raises(SchemaError, match="'age': expected number"):
        of_people.predict(people.astype({"age": "str"}))
    twice = pd.concat([people, people[["age"]]], axis=1)
    with pytest.raises(SchemaError, match=r"several columns of the names \['age'\]"):
        of_people.predict(twice)


def test_forests_have_no_output_to_set(rows) -> None:
    forest = AMFClassifier(n_estimators=1, random_state=0)
    assert not hasattr(forest, "set_output")
    features = MondrianFeatures(3, lifetime=1.0, random_state=0).fit(rows[0])
    assert features.set_output(transform="default").transform(rows[0]).shape[0] == len(rows[0])
    features.set_output(transform="pandas")
    with pytest.raises(ValueError, match="sparse"):
        features.transform(rows[0])


@pytest.mark.parametrize("library", [pd, pl])
def test_estimators_learn_frames_and_check_names(library, rows) -> None:
    X, y = rows
    frame = library.DataFrame({name: X[:, j] for j, name in enumerate(NAMES)})
    labels = library.Series(y.tolist())
    forest = AMFClassifier(n_estimators=2, random_state=0)
    forest.partial_fit(frame[:300], labels[:300], classes=["no", "yes"])
    forest.partial_fit(frame[300:], labels[300:])
    plain = AMFClassifier(n_estimators=2, random_state=0).partial_fit(X, y, classes=["no", "yes"])
    np.testing.assert_array_equal(forest.predict_proba(frame), plain.predict_proba(X))
    assert forest.feature_names_in_.tolist() == NAMES
    for method in (forest.predict, lambda X: forest.partial_fit(X, y)):
        with pytest.raises(ValueError, match="feature names should match"):
            method(frame[NAMES[::-1]])


def test_stored_models_find_columns_by_name_and_answer_in_kind(model, rows) -> None:
    X, _ = rows
    columns = {"other": X[:, 0], **{name: X[:, j] for j, name in enumerate(NAMES)}}
    columns = dict(reversed(columns.items()))
    index = np.arange(600) * 2
    by_pandas = model.predict_proba(pd.DataFrame(columns, index=index))
    by_polars = model.predict_proba(pl.DataFrame(columns))
    by_arrow = model.predict_proba(pa.table(columns))
    assert list(by_pandas.columns) == by_polars.columns == by_arrow.column_names
    assert by_polars.columns == ["proba_no", "proba_yes"]
    assert (by_pandas.index == index).all()
    wanted = model.estimator.predict_proba(pd.DataFrame(X, columns=NAMES))
    for reported in (by_pandas.to_numpy(), by_polars.to_numpy(), by_arrow.to_pandas().to_numpy()):
        np.testing.assert_array_equal(reported, wanted)
    labels = model.estimator.predict(pd.DataFrame(X, columns=NAMES)).tolist()
    by_pandas = model.predict(pd.DataFrame(columns, index=index))
    assert isinstance(by_pandas, pd.Series)
    assert (by_pandas.index == index).all()
    by_polars, by_arrow = model.predict(pl.DataFrame(columns)), model.predict(pa.table(columns))
    assert isinstance(by_polars, pl.Series)
    assert by_pandas.tolist() == by_polars.to_list() == by_arrow.to_pylist() == labels


@pytest.mark.parametrize("library", [pd, pl])
def test_no_rows_have_no_answers(model, library) -> None:
    frame = library.DataFrame({name: np.empty(0) for name in NAMES})
    assert model.predict(frame).shape == (0,)
    assert model.predict_proba(frame).shape == (0, 2)


def test_models_without_names_take_columns_in_their_order(rows, tmp_path: Path) -> None:
    X, _ = rows
    forest = AMFRegressor(n_estimators=1, random_state=0).fit(X, X[:, 0])
    forest.save(tmp_path / "model")
    stored = FrameModel(tmp_path / "model")
    reported = stored.predict(pl.DataFrame(X, schema=["z", "y", "x"]))
    np.testing.assert_array_equal(reported.to_numpy(), forest.predict(X))
    with pytest.raises(SchemaError, match="2 columns; expected the 3"):
        stored.predict(pd.DataFrame(X[:, :2]))
    with pytest.raises(ParameterError, match=r"no predict_proba here: it has \['predict'\]"):
        stored.predict_proba(pd.DataFrame(X))


@pytest.mark.parametrize(
    ("frame", "error", "reported"),
    [
        (pd.DataFrame({"a": [1.0], "c": [1.0]}), SchemaError, r"lacks the columns \['b'\]"),
        (pl.DataFrame({"a": ["1"], "b": [1], "c": [1]}), SchemaError, r"in 'a' \(\w*string\)"),
        (
            pa.table({"a": [Decimal(1), None], "b": [1, 2], "c": [1, 2]}),
            ValueError,
            "contains NaN",
        ),
        (
            pd.DataFrame({"a": [1], "b": pd.to_datetime(["2020"]), "c": pd.to_timedelta([1])}),
            SchemaError,
            r"'b' \(timestamp.*'c' \(duration",
        ),
        (pd.DataFrame({"a": [1], "b": [1j], "c": [1]}), SchemaError, "column b with type complex"),
        (pd.DataFrame({"a": [1, "x"], "b": 1, "c": 1}), SchemaError, "column a with type object"),
        (pl.LazyFrame({"a": [1], "b": [1], "c": [1]}), ParameterError, "not computed yet"),
        ([[1.0, 2.0, 3.0]], ParameterError, "got list"),
    ],
)
def test_what_is_no_frame_of_the_model_is_refused(model, frame, error, reported) -> None:
    with pytest.raises(error, match=reported):
        model.predict(frame)


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table])
@pytest.mark.parametrize("first", [1, 1.0], ids=["mixed", "alike"])
def test_a_number_beyond_float32_is_refused_without_a_warning(model, kind, first) -> None:
    frame = kind({"a": [first], "b": [0.5], "c": [1e39]})
    with pytest.raises(ValueError, match="infinity or a value too large"):
        model.predict(frame)
    assert model.numbers(frame).tolist() == [[1.0, 0.5, np.inf]]


def test_raw_rows_are_not_taken_for_those_that_a_run_encoded(people, tmp_path: Path) -> None:
    numbers = people.select_dtypes("number").assign(income=people["income"])
    numbers.to_parquet(tmp_path / "rows.parquet")
    with worker_threads(1) as (_, client):
        run = train(
            small_forest(n_estimators=2), tmp_path / "rows.parquet", target="income",
            run=tmp_path / "run", client=client,
        ).run_url  # fmt: skip
    model, asked = FrameModel(run), numbers.drop(columns="income")
    encoded = pd.DataFrame(model.features(asked), columns=asked.columns)
    with pytest.warns(UserWarning, match="takes rows as the run encodes them.*'age' has a median"):
        load(run).predict(asked)
    answers = load(run).predict(encoded)  # without a warning, which would be an error
    assert (answers == model.predict(asked).to_numpy()).all()
    model.estimator.save(tmp_path / "saved")
    with pytest.warns(UserWarning, match="takes rows as the run encodes them"):
        load(tmp_path / "saved").predict(asked)
    with pytest.raises(SchemaError, match="saved without how the run encodes columns"):
        FrameModel(tmp_path / "saved")


def test_a_density_predicts_nothing(rows, tmp_path: Path) -> None:
    MondrianDensity(n_estimators=1, random_state=0).fit(rows[0][:50]).save(tmp_path / "model")
    with pytest.raises(ParameterError, match=r"has no predict here: it has \['score_samples'\]"):
        FrameModel(tmp_path / "model").predict(pd.DataFrame(rows[0]))
    with pytest.raises(ParameterError, match="predicts nothing"):
        predict(tmp_path / "model", da.from_array(rows[0], chunks=100))


def test_quantiles_that_are_close_have_columns_of_their_own() -> None:
    levels = [0.1234567, 0.1234568, 0.5, 1e-05, 0.9999999]
    names = answer_names({"loss": "quantile", "quantile": levels}, None)
    assert names == ["q_0.1234567", "q_0.1234568", "q_0.5", "q_1e-05", "q_0.9999999"]


def test_an_answer_of_texts_is_of_texts_for_no_rows_too(rows, tmp_path) -> None:
    X, y = rows
    frame = pd.DataFrame(X, columns=NAMES)
    AMFClassifier(1, random_state=0).fit(frame, y).save(tmp_path / "model")
    model = FrameModel(tmp_path / "model")
    for some in (frame[:2], frame[:0]):
        assert pa.types.is_string(model.predict(pa.Table.from_pandas(some)).type)
        assert model.predict(pl.from_pandas(some)).dtype == pl.String


LIGHT = {
    "a": pl.Series([0.25, None, float("nan"), 1e300], dtype=pl.Float64),
    "b": pl.Series([2**63 - 1, 2**53 + 1, None, -3], dtype=pl.Int64),
    "c": pl.Series([0.1, None, 3.5, -0.0], dtype=pl.Float32),
    "d": pl.Series([2**64 - 1, 0, 7, None], dtype=pl.UInt64),
    "e": pl.Series([-128, 127, None, 0], dtype=pl.Int8),
}


def numbers(frame: pl.DataFrame, monkeypatch: pytest.MonkeyPatch, few: int) -> np.ndarray:
    """Return the numbers of all columns but texts, where so many rows are few."""
    with monkeypatch.context() as patch:
        patch.setattr(frames, "FEW_ROWS", few)
        out = np.empty((len(frame), frame.width))
        for part, values in frames._numbers(frame, "polars", np.arange(frame.width)):
            out[:, part] = values
    return out[:, : len(LIGHT)]


@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize("other", [None, pl.Series(["x", None, "", "y"]), pl.Series([True] * 4)])
def test_few_rows_of_polars_are_the_numbers_of_its_columns(
    monkeypatch: pytest.MonkeyPatch, n: int, other: pl.Series | None
) -> None:
    frame = pl.DataFrame(LIGHT if other is None else {**LIGHT, "o": other}).slice(0, n)
    by_row, by_column = (numbers(frame, monkeypatch, few) for few in (16, -1))
    assert by_row.tobytes() == by_column.tobytes()


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[object]:
    """Note the calls of a method."""
    calls: list[object] = []
    own = getattr(owner, name)

    def call(self: object, *given: object) -> object:
        calls.append(self)
        return own(self, *given)

    monkeypatch.setattr(owner, name, call)
    return calls


@pytest.mark.parametrize("has_schema", [False, True])
def test_one_wide_row_of_polars_is_taken_without_a_look_at_each_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_schema: bool
) -> None:
    X = np.random.default_rng(0).random((60, 50)).astype(np.float32)
    names = [f"x{j}" for j in range(50)]
    whole = pl.DataFrame(X, schema=names).with_columns(y=pl.Series([0, 1] * 30))
    estimator = AMFClassifier(2, random_state=0)
    if has_schema:
        whole.write_parquet(tmp_path / "rows.parquet")
        with worker_threads(1) as (_, client):
            given = {"target": "y", "run": tmp_path / "model", "client": client}
            train(small_forest(n_estimators=2), tmp_path / "rows.parquet", **given)
    else:
        estimator.fit(whole.drop("y").to_pandas(), whole["y"].to_numpy()).save(tmp_path / "model")
    model = FrameModel(tmp_path / "model")
    expected = model.predict_proba(whole.to_arrow())
    columns, compared, series = (
        counted(monkeypatch, owner, name)
        for owner, name in (
            (pl.DataFrame, "get_columns"), (pl.DataType, "__eq__"), (pl.DataType, "__hash__"),
        )
    )  # fmt: skip
    found = model.predict_proba(whole.slice(7, 1))
    assert not columns
    assert len(compared) + len(series) < 20
    monkeypatch.undo()
    assert found.equals(pl.from_arrow(expected).slice(7, 1))
