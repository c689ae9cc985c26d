"""Missing values by column: counted from encoded rows as they are in the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dmondrian.data import (
    ROWS_READ,
    count_missing,
    events_of,
    make_plan,
    missing_shares,
    read_chunk,
)


def test_they_are_those_of_the_files(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    n = 500
    gaps = {name: draw.random(n) < share for name, share in (("x", 0.1), ("t", 0.3), ("c", 0.02))}
    columns = {
        "x": pa.array(draw.random(n), mask=gaps["x"]),
        "whole": pa.array(draw.random(n)),
        "t": pa.array(draw.integers(0, 10**15, n), pa.timestamp("us"), mask=gaps["t"]),
        "c": pa.array(draw.choice(["a", "b"], n), mask=gaps["c"]),
        "y": pa.array(draw.random(n), mask=np.arange(n) % 7 == 3),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=120)
    plan = make_plan(tmp_path, target="y", task="regression", null_target="drop")
    total: dict[str, int] = {}
    for chunk in plan.chunks:
        part = read_chunk(plan, chunk)
        for name, count in {**part.counts, **count_missing(plan.schema, part.X)}.items():
            total[name] = total.get(name, 0) + count
    kept = np.arange(n) % 7 != 3
    assert total[ROWS_READ] == kept.sum()
    assert missing_shares(plan.schema, total) == {
        **{name: gap[kept].sum() / kept.sum() for name, gap in gaps.items()}, "whole": 0.0
    }  # fmt: skip
    assert events_of(total) == {"null_target": n - kept.sum()}


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    x = pa.array([1.0, None, 2.0, 3.0])
    pq.write_table(pa.table({"x": x, "z": [1.0, 2.0, 3.0, 5.0], "y": [0, 1, 0, 1]}),
                   tmp_path / "a.parquet")  # fmt: skip
    schema = make_plan(tmp_path, target="y").schema
    assert missing_shares(schema, {}) == {"z": 0.0}  # as of a run of an earlier version
    assert missing_shares(schema, {ROWS_READ: 4, "missing:x": 1, "null:z": 2}) == {"x": 0.25}
    alone = make_plan(tmp_path, target="y", exclude=["x"]).schema
    assert count_missing(alone, np.zeros((4, alone.n_features), np.float32)) == {}
