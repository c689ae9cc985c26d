"""Thousands of columns: planning takes time in proportion to them, and plain numbers go at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian import frames
from dmondrian.data import Schema, make_plan, make_scoring_plan, read_block
from dmondrian.data.encode import encode_features
from dmondrian.data.number_block import NumberBlock

ROWS = 60
NARROW, WIDE = 1_250, 5_000
MOST = 9.0  # times that four times as many columns may take: 16 if it were their square
KINDS: dict[str, Callable] = {
    "pandas": lambda table: table.to_pandas(),
    "polars": pl.from_arrow,
    "pyarrow": lambda table: table,
}


def wide(d: int, rows: int = 5) -> pa.Table:
    X = np.random.default_rng(0).random((rows, d)).astype(np.float32)
    return pa.table({**{f"gene_{j}": X[:, j] for j in range(d)}, "y": np.arange(rows) % 2})


def seconds(do: Callable[[], object]) -> float:
    """Return the least time of the processor of three tries."""
    times = []
    for _ in range(3):
        began = time.process_time()
        do()
        times.append(time.process_time() - began)
    return min(times)


def features(schema: Schema, frame: object, kind: str) -> np.ndarray:
    """Encode a frame that has the columns of a schema first."""
    at = np.arange(len(schema.columns))
    return frames._encode(schema, NumberBlock(schema), frame, kind, at)


def test_planning_is_linear_in_columns(tmp_path: Path) -> None:
    taken = {}
    for d in (NARROW, WIDE):
        path = tmp_path / f"{d}.parquet"
        pq.write_table(wide(d), path)

        def plan(path: Path = path) -> None:
            schema = make_plan(path, target="y").schema
            make_scoring_plan(path, Schema.from_json(schema.to_json()), keep=["y"])
            schema.describe()

        taken[d] = seconds(plan)
    assert taken[WIDE] < MOST * taken[NARROW], taken


@pytest.mark.parametrize("kind", KINDS)
def test_plain_numbers_of_a_frame_are_encoded_at_once(tmp_path, monkeypatch, kind) -> None:
    table = wide(300)
    pq.write_table(table, tmp_path / "wide.parquet")
    plan = make_plan(tmp_path / "wide.parquet", target="y")
    expected = read_block(plan, plan.blocks[0]).X
    monkeypatch.setattr(frames, "encode_features", None)  # one by one
    monkeypatch.setattr(frames, "_table", None)
    np.testing.assert_array_equal(features(plan.schema, KINDS[kind](table), kind), expected)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> tuple[Schema, pa.Table]:
    """Columns of every kind, and later rows beyond their ranges, with nulls and infinities."""
    draw = np.random.default_rng(1)
    folder = tmp_path_factory.mktemp("mixed")

    def table(scale: float) -> pa.Table:
        whole = draw.integers(0, 90, ROWS)
        real = draw.normal(size=ROWS) * scale
        holes = draw.random(ROWS) < 0.3
        far = np.where(holes, np.inf * np.sign(real), real) if scale > 1 else real
        names = ("int8", "uint16", "int32", "uint64", "float32", "float64")
        plain = {name: pa.array((whole * scale).astype(name)) for name in names}
        return pa.table({
            **plain,
            "big": pa.array(draw.integers(-(2**62), 2**62, ROWS)),
            "holes": pa.array(real, mask=holes),
            "int holes": pa.array(whole, mask=holes),
            "no holes": pa.array(real, mask=holes if scale > 1 else None),
            "far": pa.array(far),
            "truth": pa.array(whole > 40),
            "wide": pa.array(real * 1e307 / scale),
            "duration": pa.array(whole, pa.duration("s")),
            "text": pa.array(np.array(["a", "b", "c"])[whole % 3]),
            "only null": pa.array([None if hit else 1.0 for hit in holes]),
            "time": pa.array(whole * 10**10, pa.timestamp("us")),
        })  # fmt: skip

    pq.write_table(table(1.0), folder / "rows.parquet")
    schema = make_plan(folder / "rows.parquet", infinite="clip").schema
    return schema, table(1.1)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_are_encoded_as_files(mixed, kind) -> None:
    schema, table = mixed
    table = table.select([column.name for column in schema.columns])
    counts: dict[str, int] = {}
    columns = dict(zip(table.column_names, table.columns, strict=True))
    expected = encode_features(schema, columns, ROWS, counts, str)
    assert any(event.startswith("outside:") for event in counts)
    assert {"clipped:far", "null:no holes"} <= set(counts)
    np.testing.assert_array_equal(features(schema, KINDS[kind](table), kind), expected)
    none = KINDS[kind](table.slice(0, 0))
    assert features(schema, none, kind).shape == (0, schema.n_features)


def test_a_block_counts_what_its_columns_would(mixed) -> None:
    schema, table = mixed
    block = NumberBlock(schema)
    names = [schema.columns[i].name for i in block.columns]
    part = np.array([i for i, name in enumerate(names) if name not in ("far", "truth", "duration")])
    some = table.select([names[i] for i in part])
    values = some.to_pandas().to_numpy(np.float64)
    X, counts, expected = np.zeros((ROWS, schema.n_features), np.float32), {}, {}
    block.encode(part, values, X, counts)
    columns = tuple(schema.columns[block.columns[i]] for i in part)
    arrays = dict(zip(some.column_names, some.columns, strict=True))
    encode_features(Schema(columns), arrays, ROWS, expected, str)
    assert counts == expected
    assert any(event.startswith("null:") for event in counts)


def test_columns_by_any_order_and_chunks(mixed) -> None:
    schema, table = mixed
    names = [column.name for column in schema.columns]
    backward = table.select(names[::-1]).to_pandas()
    block, at = NumberBlock(schema), np.arange(len(names))[::-1]
    wanted = features(schema, table.select(names), "pyarrow")
    np.testing.assert_array_equal(frames._encode(schema, block, backward, "pandas", at), wanted)
    halves = pa.concat_tables([table.slice(0, 7), table.slice(7)]).select(names)
    np.testing.assert_array_equal(features(schema, halves, "pyarrow"), wanted)
