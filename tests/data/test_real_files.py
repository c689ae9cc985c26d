"""Files of the kinds people have: the sets that the project carries, Hive's int96, a taxi month."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dmondrian.data import make_plan, make_scoring_plan, read_block, read_chunk

from .conftest import Write


def test_adult(adult: Path) -> None:
    plan = make_plan(adult, target="income")
    schema = plan.schema
    assert plan.n_rows == 48_842
    assert schema.classes == ("<=50K", ">50K")
    assert schema.n_features == 116
    assert {"age", "sex=Male", "workclass=<null>", "sex=<other>"} < set(schema.feature_names)
    parts = [read_block(plan, block) for block in plan.blocks]
    assert [sum(part.counts.values()) for part in parts] == [0] * 6
    y = np.concatenate([part.y for part in parts if part.y is not None])
    assert int(y.sum()) == 7_841 + 3_846
    X = np.concatenate([part.X for part in parts])
    table = pq.read_table(adult / "part-0000-train.parquet")
    column = schema.feature_names.index
    ages = table["age"].to_numpy()
    np.testing.assert_allclose(X[:32_561, column("age")], (ages - 17) / 73, atol=1e-6)
    nulls = table["workclass"].is_null().to_numpy()
    np.testing.assert_array_equal(X[:32_561, column("workclass=<null>")] > 0, nulls)
    one_hot = [i for i, name in enumerate(schema.feature_names) if name.startswith("workclass=")]
    assert set((X[:, one_hot] > 0).sum(axis=1)) == {1}


def test_adult_test_file_is_scored_with_the_training_schema(adult: Path) -> None:
    schema = make_plan(adult / "part-0000-train.parquet", target="income").schema
    plan = make_scoring_plan(adult / "part-0001-test.parquet", schema, target=True)
    parts = [read_block(plan, block, keep=["age"]) for block in plan.blocks]
    assert sum(len(part.X) for part in parts) == 16_281
    assert all(part.y is not None and part.keep is not None for part in parts)


def test_california_housing(root: Path) -> None:
    source = root / "jobs" / "data" / "california_housing"
    plan = make_plan(source, target="medianHouseValue", task="regression", shuffle=True)
    assert plan.schema.n_features == 8
    assert plan.schema.target_range == (14_999, 500_001)
    y = [read_chunk(plan, chunk).y for chunk in plan.chunks]
    assert sum(len(part) for part in y if part is not None) == plan.n_rows == 20_640


def test_hive_file_with_int96_times_and_no_statistics(resources: Path) -> None:
    source = resources / "kylo_userdata"
    plan = make_plan(source, target="salary", task="regression", null_target="drop")
    names = plan.schema.feature_names
    assert {"registration_dttm", "registration_dttm.hour", "gender=Female"} < set(names)
    encoded = read_block(plan, plan.blocks[0], keep=["registration_dttm", "gender"])
    assert encoded.counts["null_target"] == 1000 - len(encoded.X) > 0
    assert encoded.keep is not None
    moments = encoded.keep["registration_dttm"].to_pylist()
    hours = [(m - datetime(m.year, m.month, m.day)).total_seconds() / 86_400 for m in moments]
    np.testing.assert_allclose(
        encoded.X[:, names.index("registration_dttm.hour")], hours, atol=1e-6
    )
    female = [text == "Female" for text in encoded.keep["gender"].to_pylist()]
    np.testing.assert_array_equal(encoded.X[:, names.index("gender=Female")] > 0, female)


def test_taxi_month(write: Write) -> None:
    """Microsecond times, a column that is all null, columns null together, a null string."""
    rows = 5_000
    draws = np.random.default_rng(0)
    pickup = 1_761_955_200_000_000 + draws.integers(0, 30 * 86_400_000_000, rows)
    unknown = draws.random(rows) < 0.12
    flag = np.where(draws.random(rows) < 0.01, "Y", "N")
    columns = {
        "pickup": pa.array(pickup, pa.timestamp("us")),
        "dropoff": pa.array(pickup + 600_000_000, pa.timestamp("us")),
        "flag": pa.array(flag, pa.large_string(), mask=unknown),
        "passengers": pa.array(draws.integers(0, 7, rows).astype(float), mask=unknown),
        "zone": pa.array(draws.integers(1, 266, rows), pa.int32()),
        "ehail_fee": pa.nulls(rows, pa.float64()),
        "tip": pa.array(draws.gamma(1.0, 3.0, rows).round(2)),
    }
    plan = make_plan(write(columns), target="tip", task="regression")
    assert plan.schema.left_out == (("ehail_fee", "all null"),)
    encoded = read_block(plan, plan.blocks[0])
    names = plan.schema.feature_names
    for name in ("flag=<null>", "passengers=<null>"):
        np.testing.assert_array_equal(encoded.X[:, names.index(name)] > 0, unknown)
    assert encoded.X.min() >= 0
    assert encoded.X.max() <= 1
    assert encoded.counts == {"null_target": 0}


def test_pandas_and_polars_files(tmp_path: Path) -> None:
    import pandas as pd
    import polars as pl

    frame = pd.DataFrame(
        {"n": [1.0, None, 3.0], "c": pd.Categorical(["a", "b", None]), "y": ["u", "v", "v"]}
    )
    frame.to_parquet(tmp_path / "pandas.parquet")
    pl.DataFrame(
        {
            "n": [1.0, None, 3.0],
            "c": pl.Series(["a", "b", None], dtype=pl.Categorical),
            "y": ["u", "v", "v"],
        }
    ).write_parquet(tmp_path / "polars.parquet")
    parts = []
    for name in ("pandas", "polars"):
        plan = make_plan(tmp_path / f"{name}.parquet", target="y")
        assert plan.schema.feature_names == ["n", "n=<null>", "c=a", "c=b", "c=<other>", "c=<null>"]
        parts.append(read_block(plan, plan.blocks[0]).X.tobytes())
    assert parts[0] == parts[1]
