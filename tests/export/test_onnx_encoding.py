"""The encoding of columns in ONNX is the run's, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian import AMFClassifier, ParameterError
from dmondrian.data import Column, Schema, make_plan, read_block
from dmondrian.data.encode import encode_features
from dmondrian.data.schema import CYCLIC_PARTS
from dmondrian.distributed import train
from dmondrian.export.graph import Graph
from dmondrian.export.onnx_encoding import add_columns
from tests.cli.command import call
from tests.distributed.conftest import worker_threads

N = 4000
NAT = np.iinfo(np.int64).min


@pytest.fixture(scope="module")
def columns() -> dict[str, list]:
    """Values of every kind, from year 1843 to 2033, with nulls."""
    draw = np.random.default_rng(0)
    number = (draw.normal(size=N) * 1e3).tolist()
    times = draw.integers(-4 * 10**15, 2 * 10**15, N).tolist()
    # Ends of months, of leap years too, and the microseconds before.
    edges = np.array(
        [
            "1900-02-28",
            "1900-03-01",
            "1904-02-29",
            "2000-02-29",
            "2000-12-31",
            "1970-01-01",
            "1969-12-31",
            "2001-01-01",
        ],
        "datetime64[us]",
    ).astype(np.int64)
    times[:16] = [*edges.tolist(), *(edges - 1).tolist()]
    rare = [f"level {k}" for k in draw.geometric(0.02, N)]
    for values in (number, times[16:], rare):
        values[::7] = [None] * len(values[::7])
    return {
        "number": number,
        "whole": draw.integers(0, 9, N).tolist(),
        "truth": (draw.random(N) < 0.3).tolist(),
        "constant": [None if hit else 1.0 for hit in draw.random(N) < 0.2],
        "time": [None if hit else t for hit, t in zip(draw.random(N) < 0.1, times, strict=True)],
        "words": [["a", "b", "ü", ""][k] for k in draw.integers(0, 4, N)],
        "rare": rare,
    }


def features(schema: Schema, feed: dict[str, np.ndarray]) -> np.ndarray:
    graph = Graph()
    graph.output(add_columns(graph, schema), "features", np.float32, schema.n_features)
    session = onnxruntime.InferenceSession(graph.model({}).SerializeToString())
    return session.run(["features"], feed)[0]


def test_features_are_those_of_the_run(tmp_path: Path, columns) -> None:
    table = pa.table({**columns, "target": range(N)})
    times = table.schema.get_field_index("time")
    table = table.set_column(times, "time", table["time"].cast(pa.timestamp("us")))
    file = tmp_path / "rows.parquet"
    pq.write_table(table, file)
    plan = make_plan(file, target="target", task="regression")
    kinds = {column.kind for column in plan.schema.columns}
    parts = {part for column in plan.schema.columns for part in column.parts}
    assert kinds == {"number", "category", "time"}
    assert parts == {"value", "linear", "hour", "weekday", "month"}
    feed = {name: np.array(columns[name], np.float64)[:, None]
            for name in ("number", "whole", "truth", "constant")}  # fmt: skip
    feed["time"] = np.array([NAT if t is None else t for t in columns["time"]])[:, None]
    for name in ("words", "rare"):
        texts = ["" if text is None else text for text in columns[name]]
        feed[name] = np.array(texts, object)[:, None]
    wanted = np.concatenate([read_block(plan, block).X for block in plan.blocks])
    np.testing.assert_array_equal(features(plan.schema, feed), wanted)


def test_points_of_circles_are_those_of_the_run(columns) -> None:
    parts = tuple(part for pair in CYCLIC_PARTS.values() for part in pair)
    column = Column("t", "time", "timestamp[us]", 0, 1, parts, has_nulls=True)
    day = 86_400_000_000
    years, dates = (1600, 1899, 1900, 1904, 2000, 2023, 2024, 2100), ("01-01", "02-28", "12-31")
    firsts = [np.datetime64(f"{year}-{date}", "us") for year in years for date in dates]
    ends = [int(each.astype(np.int64)) + by for each in firsts for by in (0, -1, day, day - 1)]
    times = [*columns["time"], *ends, *(day * k // 8 for k in range(17))]
    feed = {"t": np.array([NAT if t is None else t for t in times])[:, None]}
    values = pa.array(times, pa.timestamp("us"))
    wanted = encode_features(Schema((column,)), {"t": values}, len(times), {}, str)
    assert wanted.shape[1] == 7
    np.testing.assert_array_equal(features(Schema((column,)), feed), wanted)


def test_decimals_of_earlier_versions_are_found_by_either_text() -> None:
    levels = ("0.50", "2")  # the type's zeros were a part of them
    column = Column("c", "category", "decimal128(8, 2)", levels=levels, n_distinct=2)
    feed = {"c": np.array([["0.50"], ["0.5"], ["2"], ["0.25"]], object)}
    assert features(Schema((column,)), feed).argmax(axis=1).tolist() == [0, 0, 1, 2]


def test_infinite_numbers_and_spans_beyond_float64() -> None:
    wide = Column("wide", "number", "double", -1.5e308, 1.5e308, ("value",))
    plain = Column("plain", "number", "double", 0.0, 4.0, ("value",))
    ends = np.array([[-np.inf], [-1.5e308], [0.0], [1.5e308], [np.inf]])
    feed = {"wide": ends, "plain": np.array([[-np.inf], [0.0], [1.0], [5.0], [np.inf]])}
    reported = features(Schema((wide, plain), infinite="clip"), feed)
    np.testing.assert_array_equal(reported[:, 0], np.float32([0.0, 0.0, 0.5, 1.0, 1.0]))
    np.testing.assert_array_equal(reported[:, 1], np.float32([0.0, 0.0, 0.25, 1.25, 1.0]))
    # The run refuses such rows: they have no answer, and those with a null have one.
    reported = features(Schema((plain,)), {"plain": np.array([[np.nan]])})
    assert np.isfinite(reported).all()
    reported = features(Schema((plain,)), {"plain": feed["plain"]})
    np.testing.assert_array_equal(reported[:, 0], np.float32([np.nan, 0.0, 0.25, 1.25, np.nan]))


def test_a_column_named_as_an_output_is_refused() -> None:
    graph = Graph()
    label = add_columns(graph, Schema((Column("label", "number", "double", 0.0, 1.0, ("value",)),)))
    with pytest.raises(ParameterError, match="a column is called 'label'"):
        graph.output(label, "label", np.float32, 1)


def test_texts_are_refused_where_they_would_be_encoded() -> None:
    with pytest.raises(ParameterError, match=r"the words of 'c' are hashed.*columns=False"):
        add_columns(Graph(), Schema((Column("c", "text", "string", hashed=(8, 1)),)))


def test_a_column_without_a_name_is_refused_and_can_be_left_encoded(tmp_path: Path) -> None:
    rows = pa.table([np.linspace(0, 1, 50), np.arange(50.0), ["a", "b"] * 25], ["x", "", "y"])
    pq.write_table(rows, tmp_path / "rows.parquet")
    with worker_threads(1) as (_, client):
        forest = AMFClassifier(1, random_state=0)
        data, run = tmp_path / "rows.parquet", tmp_path / "run"
        train(forest, data, target="y", run=run, client=client)
    _, stderr = call("export", run, "-o", tmp_path / "file.onnx", code=2)
    assert "column 1 of the 2 that the model reads" in stderr
    assert "rename it in the data and train again, or export with columns=False" in stderr
    assert not (tmp_path / "file.onnx").exists()
    call("export", run, "-o", tmp_path / "file.onnx", "--encoded")


def test_infinite_times_are_the_bounds_where_the_run_clips_them() -> None:
    day = 86_400_000_000
    column = Column("t", "time", "timestamp[us]", day, 40 * day, ("linear", "weekday", "month"))
    schema = Schema((column,), infinite="clip")
    times = np.array([2**63 - 1, -(2**63) + 1, day, 9 * day, NAT], np.int64)
    values = pa.array(times, pa.timestamp("us"), mask=times == NAT)
    wanted = encode_features(schema, {"t": values}, len(times), {}, str)
    np.testing.assert_array_equal(features(schema, {"t": times[:, None]}), wanted)
    assert wanted[:2, 0].tolist() == [1, 0]
