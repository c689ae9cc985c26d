"""Lazy predictions of Dask collections: the estimator's own, and no model in the graph."""

from __future__ import annotations

import pickle
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dmondrian import (
    AMFClassifier,
    FencedError,
    GeneralizedMondrianForestRegressor,
    ParameterError,
    SchemaError,
)
from dmondrian.distributed import predict, predict_proba
from dmondrian.distributed.scoring import dask_predict
from dmondrian.frames import FrameModel
from tests.distributed.conftest import COLUMNS

D = 4


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).random((3000, D), dtype=np.float32)
    return X, np.array(["low", "mid", "top"])[(3.0 * X[:, 0]).astype(int)]


@pytest.fixture(scope="module")
def forest(rows) -> AMFClassifier:
    return AMFClassifier(n_estimators=3, random_state=0, feature_scales=None).fit(*rows)


@pytest.fixture(scope="module")
def model(forest, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lazy") / "model"
    forest.save(folder)
    return folder


def graph_bytes(collection) -> int:
    return len(pickle.dumps(dict(collection.__dask_graph__())))


def test_arrays_are_predicted_block_by_block(client, rows, forest, model) -> None:
    X = rows[0]
    blocks = da.from_array(X, chunks=(700, 3))
    label, proba = predict(model, blocks), predict_proba(model, blocks)
    assert (label.shape, proba.shape) == ((3000,), (3000, 3))
    assert (label.dtype, proba.dtype) == (forest.classes_.dtype, np.float64)
    reported = client.compute([label, proba], sync=True)
    np.testing.assert_array_equal(reported[0], forest.predict(X))
    np.testing.assert_array_equal(reported[1], forest.predict_proba(X))


def test_the_graph_holds_no_model(forest, model) -> None:
    block = da.zeros((10, D), chunks=10, dtype=np.float32)
    asked = predict(model, block)
    assert len(pickle.dumps(forest)) > 100_000
    assert graph_bytes(asked) < 10_000
    # So another process needs nothing but the folder.
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(asked)).compute(scheduler="threads"),
                                  forest.predict(np.zeros((10, D))))  # fmt: skip


def test_a_process_reads_the_model_once(rows, model, monkeypatch) -> None:
    opened = []

    class Counted(FrameModel):
        def __init__(self, path) -> None:
            opened.append(path)
            super().__init__(path)

    monkeypatch.setattr("dmondrian.frames.FrameModel", Counted)
    monkeypatch.setattr(dask_predict, "_models", dask_predict.SingleFlightCache(1))
    blocks = da.from_array(rows[0], chunks=(100, D))
    with dask.config.set(scheduler="threads"):
        predict(model, blocks).compute()
    assert len(opened) == 1


def test_frames_of_a_run_are_encoded_as_it_did(client, undisturbed, adult) -> None:
    plain = pd.concat(pd.read_parquet(file) for file in sorted(adult.glob("*.parquet")))
    plain = plain.reset_index(drop=True)
    frame = dd.from_pandas(plain[COLUMNS[::-1]], npartitions=5)
    label, proba = predict(undisturbed.run_url, frame), predict_proba(undisturbed.run_url, frame)
    assert list(proba.columns) == ["proba_<=50K", "proba_>50K"]
    wanted = FrameModel(undisturbed.run_url)
    reported = client.compute(proba, sync=True)
    pd.testing.assert_frame_equal(reported, wanted.predict_proba(plain))
    pd.testing.assert_series_equal(client.compute(label, sync=True), wanted.predict(plain))
    none = predict(undisturbed.run_url, frame[frame["age"] < 0])
    assert len(client.compute(none, sync=True)) == 0
    with pytest.raises(SchemaError, match="lack the columns \\['sex'\\]"):
        predict(undisturbed.run_url, frame.drop(columns="sex"))


def test_quantiles_are_columns(rows, tmp_path) -> None:
    X = rows[0]
    forest = GeneralizedMondrianForestRegressor(
        loss="quantile", quantile=[0.9, 0.1], n_estimators=2, random_state=0
    ).fit(X[:500], X[:500, 0])
    forest.save(tmp_path / "model")
    frame = dd.from_pandas(pd.DataFrame(X[:50]), npartitions=2)
    with dask.config.set(scheduler="threads"):
        reported = predict(tmp_path / "model", frame).compute()
        block = predict(tmp_path / "model", da.from_array(X[:50], chunks=(20, D))).compute()
    assert list(reported.columns) == ["q_0.9", "q_0.1"]
    np.testing.assert_array_equal(reported.to_numpy(), forest.predict(X[:50]))
    np.testing.assert_array_equal(block, forest.predict(X[:50]))


def test_a_model_that_changed_since_is_refused(rows, tmp_path) -> None:
    X, y = rows
    folder = tmp_path / "model"
    AMFClassifier(n_estimators=1, random_state=0, feature_scales=None).fit(X, y).save(folder)
    asked = predict(folder, da.from_array(X, chunks=(1000, D)))
    folder.rename(tmp_path / "old")
    AMFClassifier(n_estimators=1, random_state=1, feature_scales=None).fit(X, y).save(folder)
    with dask.config.set(scheduler="threads"), pytest.raises(FencedError, match="ask again"):
        asked.compute()


@pytest.mark.parametrize(
    ("ask", "reported"),
    [
        (lambda model, forest, X: predict(forest, X), "save it first"),
        (lambda model, forest, X: predict(model, np.zeros((3, D))), "expected a Dask DataFrame"),
        (lambda model, forest, X: predict(model, X[:, :2]), "have 2 columns, the model 4"),
    ],
)
def test_what_cannot_be_predicted_is_refused(model, forest, rows, ask, reported) -> None:
    with pytest.raises(ParameterError, match=reported):
        ask(model, forest, da.from_array(rows[0], chunks=(1000, D)))
