"""The index of a data frame, which Parquet files have as a column: left out unless asked for."""

from __future__ import annotations

import json
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian import AMFClassifier
from dmondrian.data import Plan, make_plan, make_scoring_plan
from dmondrian.data.columns import INDEX
from dmondrian.data.frame_index import index_names
from dmondrian.distributed import train
from dmondrian.errors import DataError, ParameterError
from dmondrian.frames import FrameModel
from tests.distributed.conftest import worker_threads

ROWS = 120


@pytest.fixture
def frame() -> pd.DataFrame:
    """Rows sorted by label and then mixed: the index tells the label."""
    x = np.random.default_rng(0).normal(size=ROWS)
    rows = pd.DataFrame({"x": x, "y": np.repeat(["no", "yes"], ROWS // 2)})
    return rows.sample(frac=1, random_state=0)


def copied(frame: pd.DataFrame, path: Path) -> None:
    """Write with pandas, then copy with a tool that drops the metadata of pandas."""
    frame.to_parquet(path)
    pl.read_parquet(path).write_parquet(path)
    assert b"pandas" not in (pq.read_schema(path).metadata or {})


WRITERS = {
    "no name": (["__index_level_0__"], pd.DataFrame.to_parquet),
    "a name": (["row"], lambda frame, path: frame.rename_axis("row").to_parquet(path)),
    "two levels": (
        ["row", "__index_level_1__"],
        lambda frame, path: frame.set_index(
            pd.MultiIndex.from_arrays([frame.index, frame["x"]], names=["row", None])
        ).to_parquet(path),
    ),
    "times": (
        ["when"],
        lambda frame, path: frame.set_index(
            pd.date_range("2020", periods=len(frame), freq="h", name="when")
        ).to_parquet(path),
    ),
    "a range": ([], lambda frame, path: frame.reset_index(drop=True).to_parquet(path)),
    "Dask": (
        ["__null_dask_index__"],
        lambda frame, path: dd.from_pandas(frame, npartitions=1, sort=False).to_parquet(path),
    ),
    "metadata dropped": (["__index_level_0__"], copied),
}


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, to Dask
@pytest.mark.parametrize("writer", WRITERS)
def test_the_index_is_left_out_with_the_reason(frame, tmp_path, writer) -> None:
    names, write = WRITERS[writer]
    write(frame, tmp_path / "rows.parquet")
    plan = make_plan(tmp_path / "rows.parquet", target="y")
    assert [column.name for column in plan.schema.columns] == ["x"]
    assert plan.schema.left_out == tuple((name, INDEX) for name in names)
    assert [note for note in plan.notes if "left out" in note] == [
        f"{name!r} is left out: {INDEX}" for name in names
    ]
    assert "`include`" in INDEX


def test_an_index_that_is_asked_for_is_used(frame, tmp_path) -> None:
    path = tmp_path / "rows.parquet"
    frame.set_index(["x", "y"], append=True).assign(z=frame["x"].to_numpy()).to_parquet(path)
    plan = make_plan(path, target="y", include="x")
    assert [column.name for column in plan.schema.columns] == ["z", "x"]
    assert dict(plan.schema.left_out) == {"__index_level_0__": INDEX}
    assert plan.included == ("x",)
    assert Plan.from_parquet(plan.to_parquet()) == plan
    frame.assign(k=np.arange(ROWS) % 3).set_index(["k", "y"], append=True).to_parquet(path)
    plan = make_plan(path, target="y", categorical=["k"], exclude=["__index_level_0__"])
    assert {c.name: c.kind for c in plan.schema.columns} == {"x": "number", "k": "category"}
    assert plan.schema.left_out == ()
    weighed = make_plan(path, target="y", weight="__index_level_0__")
    assert weighed.schema.weight == "__index_level_0__"


def test_files_that_disagree_have_the_index_left_out(frame, tmp_path) -> None:
    """Whichever comes first; pandas writes no column for the index that it numbers rows by."""
    frame.reset_index(drop=True).to_parquet(tmp_path / "a.parquet")
    frame.to_parquet(tmp_path / "b.parquet")
    frame.rename_axis("x").drop(columns="x").to_parquet(tmp_path / "c.parquet")
    for files in (["a", "b"], ["b", "a"]):
        plan = make_plan([tmp_path / f"{name}.parquet" for name in files], target="y")
        assert [column.name for column in plan.schema.columns] == ["x"]
        assert plan.schema.left_out == (("__index_level_0__", INDEX),)
    with pytest.raises(DataError, match=r"no column is left to learn from: 'x': the index"):
        make_plan([tmp_path / "a.parquet", tmp_path / "c.parquet"], target="y")
    both = [tmp_path / "a.parquet", tmp_path / "c.parquet"]
    assert make_plan(both, target="y", include=["x"]).schema.columns[0].name == "x"


def test_include_is_for_index_columns_only(frame, tmp_path) -> None:
    frame.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ParameterError, match=r"names 'x', which is used anyway.*`exclude`"):
        make_plan(tmp_path / "rows.parquet", target="y", include=["x"])
    index = "__index_level_0__"
    with pytest.raises(ParameterError, match=r"both in `include` and in `exclude`"):
        make_plan(tmp_path / "rows.parquet", target="y", include=[index], exclude=[index])


@pytest.mark.parametrize(
    "stored",
    [b"", b"\xff", b"[]", b"3", b'{"index_columns": 3}', b'{"index_columns": [["x"], null, {}]}',
     b"[" * 100_000, json.dumps({"index_columns": ["gone"]}).encode()],
    ids=range(8),
)  # fmt: skip
def test_metadata_that_say_nothing_name_no_column(tmp_path, stored) -> None:
    assert index_names(["x"], {b"pandas": stored}) == ()
    table = pa.table({"x": [1, 2]}).replace_schema_metadata({"pandas": stored})
    pq.write_table(table, tmp_path / "rows.parquet")
    assert make_plan(tmp_path / "rows.parquet").schema.left_out == ()


def test_a_run_of_an_earlier_version_goes_on_with_its_index(frame, tmp_path) -> None:
    """Its plan does not say what was included: all was."""
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_parquet(tmp_path / "b.parquet")
    forest = AMFClassifier(n_estimators=1, random_state=0)
    options = {"target": "y", "run": tmp_path / "run"}
    with worker_threads(1) as (_, client):
        first = train(forest, tmp_path / "a.parquet", include=None, client=client, **options)
        again = train(forest, tmp_path / "*.parquet", client=client, **options)
    assert again.summary["resumed_at"] == ROWS
    assert again.plan.n_rows == 2 * ROWS
    names = [column.name for column in again.plan.schema.columns]
    assert names == [column.name for column in first.plan.schema.columns]
    assert names == ["x", "__index_level_0__"]


def test_rows_without_the_index_are_scored(frame, tmp_path) -> None:
    frame.to_parquet(tmp_path / "rows.parquet")
    schema = make_plan(tmp_path / "rows.parquet", target="y").schema
    frame.reset_index(drop=True).to_parquet(tmp_path / "other.parquet")
    assert make_scoring_plan(tmp_path / "other.parquet", schema).n_rows == ROWS
    kept = make_scoring_plan(tmp_path / "rows.parquet", schema, keep=["__index_level_0__"])
    assert kept.n_rows == ROWS


def test_frames_may_have_columns_of_the_model_as_their_index(frame, tmp_path) -> None:
    frame.set_index("x").assign(z=1.0 / (1 + frame.index)).to_parquet(tmp_path / "rows.parquet")
    forest = AMFClassifier(n_estimators=1, random_state=0)
    with worker_threads(1) as (_, client):
        options = {"target": "y", "include": ["x"], "run": tmp_path / "run", "client": client}
        train(forest, tmp_path / "rows.parquet", **options)
    model, rows = FrameModel(tmp_path / "run"), pd.read_parquet(tmp_path / "rows.parquet")
    assert rows.index.name == "x"
    answers = model.predict(rows)
    assert answers.index.equals(rows.index)
    np.testing.assert_array_equal(model.features(rows), model.features(rows.reset_index()))


def test_the_index_of_an_Arrow_table_is_no_feature_of_a_model_without_names(tmp_path) -> None:
    X = np.random.default_rng(0).random((20, 2)).astype(np.float32)
    forest = AMFClassifier(n_estimators=1, random_state=0).fit(X, X[:, 0] > 0.5)
    forest.save(tmp_path / "model")
    rows = pd.DataFrame(X, columns=["a", "b"], index=range(20, 0, -1)).sample(frac=1)
    reported = FrameModel(tmp_path / "model").predict(pa.Table.from_pandas(rows))
    np.testing.assert_array_equal(
        reported.to_numpy(zero_copy_only=False), forest.predict(rows.values)
    )
