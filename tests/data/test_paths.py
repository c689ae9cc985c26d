"""Data are named by paths and URLs: rows in memory are refused by kind, never read as paths."""

from __future__ import annotations

from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dmondrian import AMFClassifier
from dmondrian.data import list_source, make_plan, make_scoring_plan
from dmondrian.data.paths import rooted
from dmondrian.distributed import evaluate, predict, score, submit, train
from dmondrian.errors import ParameterError

from .conftest import Write

ROWS = {"x": [1.0, 2.0], "y": [0, 1]}
FRAMES = {
    "a pandas DataFrame": pd.DataFrame(ROWS),
    "a pandas Series": pd.Series(ROWS["x"]),
    "a polars DataFrame": pl.DataFrame(ROWS),
    "a polars LazyFrame": pl.LazyFrame(ROWS),
    "a pyarrow Table": pa.table(ROWS),
    "a numpy ndarray": np.zeros((2, 2)),
    "a dict": ROWS,
}
OTHERS = {
    "a dask DataFrame": dd.from_pandas(pd.DataFrame(ROWS), npartitions=1),
    "a dask Array": da.zeros((2, 2)),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_are_refused_before_anything_is_done(tmp_path: Path, kind: str) -> None:
    frame, run = FRAMES[kind], tmp_path / "run"
    forest = AMFClassifier(n_estimators=1, random_state=0)
    with pytest.raises(ParameterError, match=rf"^data is {kind}, whose rows.*write.*call .* fit"):
        train(forest, frame, target="y", run=run)
    with pytest.raises(ParameterError, match=f"^data is {kind}, whose rows"):
        submit(forest, frame, target="y", run=run, client=None)
    assert not run.exists()


@pytest.mark.parametrize("kind", {**FRAMES, **OTHERS})
def test_frames_are_no_files(tmp_path: Path, write: Write, kind: str) -> None:
    frame = {**FRAMES, **OTHERS}[kind]
    name = kind.split()[-1]
    schema = make_plan(write({"x": [1, 2]})).schema
    reported = rf"^data is an? (\w+ )*\S*{name}, whose rows are in memory: expected Parquet"
    for ask in (
        lambda: make_plan(frame),
        lambda: make_scoring_plan(frame, schema),
        lambda: score(tmp_path / "run", frame, tmp_path / "scores"),
        lambda: evaluate(tmp_path / "run", frame),
    ):
        with pytest.raises(ParameterError, match=reported):
            ask()
    assert not (tmp_path / "scores").exists()


@pytest.mark.parametrize(
    ("data", "reported"),
    [
        (None, "data is a NoneType; expected Parquet by its path"),
        (3, "data is an int; expected"),
        (b"rows.parquet", "data is a bytes; expected"),
        ({"a.parquet", "b.parquet"}, "data is a set, which has no order"),
        (iter(["a.parquet"]), "data is a list_iterator; expected"),
        (["a.parquet", 3], r"data\[1\] is an int; expected"),
        ([pd.DataFrame(ROWS)], r"data\[0\] is a pandas DataFrame; expected"),
    ],
    ids=["none", "int", "bytes", "set", "iterator", "list of others", "list of frames"],
)
def test_what_names_no_files_is_refused(data: object, reported: str) -> None:
    with pytest.raises(ParameterError, match=reported):
        make_plan(data)


def test_lists_and_tuples_of_paths_are_read(write: Write) -> None:
    first, second = write({"x": [1, 2]}, "a.parquet"), write({"x": [3, 4]}, "b.parquet")
    assert make_plan((first, str(second))).n_rows == make_plan([first, second]).n_rows == 4
    assert len(list_source([first])[0]) == 1


def test_predict_names_who_answers_frames(tmp_path: Path) -> None:
    X = np.random.default_rng(0).random((20, 2))
    AMFClassifier(n_estimators=1, random_state=0).fit(X, X[:, 0] > 0.5).save(tmp_path / "model")
    with pytest.raises(ParameterError, match=r"is DataFrame; .*FrameModel answers frames"):
        predict(tmp_path / "model", pd.DataFrame(X))


def test_relative_paths_are_below_a_root(tmp_path: Path) -> None:
    home = str(Path("~").expanduser())
    assert rooted("a/*.parquet", None) == "a/*.parquet"
    assert rooted("a/*.parquet", tmp_path) == f"{tmp_path}/a/*.parquet"
    assert rooted([Path("a"), "/b", "s3://c/d", "~/e"], "~") == [
        f"{home}/a", "/b", "s3://c/d", "~/e",
    ]  # fmt: skip
    assert rooted(["./a/../b", ".", "t@v3"], "s3://c/d/") == [
        "s3://c/d/b",
        "s3://c/d",
        "s3://c/d/t@v3",
    ]
    with pytest.raises(ParameterError, match="leads out of the root s3://c"):
        rooted("a/../../b", "s3://c")
    for root in ("", 5, ["a"]):
        with pytest.raises(ParameterError, match="expected a folder or URL"):
            rooted("a", root)  # type: ignore[arg-type]  # what a caller may give
    with pytest.raises(ParameterError, match="a root is for paths alone"):
        rooted(FRAMES["a pyarrow Table"], "a")
