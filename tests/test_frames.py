"""Data frames of pandas, polars and Arrow: to estimators, and to stored models."""

from __future__ import annotations

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
    DataError,
    MondrianDensity,
    ParameterError,
    SchemaError,
)
from dmondrian.distributed import predict
from dmondrian.frames import FrameModel

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
    for told in (by_pandas.to_numpy(), by_polars.to_numpy(), by_arrow.to_pandas().to_numpy()):
        np.testing.assert_array_equal(told, wanted)
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
    told = stored.predict(pl.DataFrame(X, schema=["z", "y", "x"]))
    np.testing.assert_array_equal(told.to_numpy(), forest.predict(X))
    with pytest.raises(SchemaError, match="2 columns; expected the 3"):
        stored.predict(pd.DataFrame(X[:, :2]))
    with pytest.raises(ParameterError, match=r"no predict_proba here: it has \['predict'\]"):
        stored.predict_proba(pd.DataFrame(X))


@pytest.mark.parametrize(
    ("frame", "error", "told"),
    [
        (pd.DataFrame({"a": [1.0], "c": [1.0]}), SchemaError, r"lacks the columns \['b'\]"),
        (pl.DataFrame({"a": ["x"], "b": [1], "c": [1]}), DataError, "hold something else"),
        (pl.LazyFrame({"a": [1], "b": [1], "c": [1]}), ParameterError, "not computed yet"),
        ([[1.0, 2.0, 3.0]], ParameterError, "got list"),
    ],
)
def test_what_is_no_frame_of_the_model_is_refused(model, frame, error, told) -> None:
    with pytest.raises(error, match=told):
        model.predict(frame)


def test_a_density_predicts_nothing(rows, tmp_path: Path) -> None:
    MondrianDensity(n_estimators=1, random_state=0).fit(rows[0][:50]).save(tmp_path / "model")
    with pytest.raises(ParameterError, match=r"has no predict here: it has \['score_samples'\]"):
        FrameModel(tmp_path / "model").predict(pd.DataFrame(rows[0]))
    with pytest.raises(ParameterError, match="predicts nothing"):
        predict(tmp_path / "model", da.from_array(rows[0], chunks=100))
