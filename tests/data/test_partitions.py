"""Hive folders that come later, or alone: their values are read as the model's columns say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dmondrian.data import extend_plan, make_plan, make_scoring_plan, read_block
from dmondrian.errors import PlanError, SchemaError

from .conftest import Write

NULL = "__HIVE_DEFAULT_PARTITION__"


def lake(write: Write, *values: str) -> Path:
    """Write a file of two rows per value, and return the folder of all."""
    for value in values:
        path = write({"x": [0.5, 1.5], "y": [0.0, 1.0]}, f"lake/k={value}/a.parquet")
    return path.parents[1]


def encoded(plan: object) -> np.ndarray:
    return np.concatenate([read_block(plan, block).X for block in plan.blocks])  # type: ignore[attr-defined]  # a plan


def test_a_null_partition_that_came_later_does_not_end_the_run(write: Write) -> None:
    folder = lake(write, "1", "2", NULL)
    first = make_plan(folder, target="y", task="regression")
    write({"x": [0.5], "y": [1.0]}, f"lake/k={NULL}/b.parquet")
    second = extend_plan(first, folder)
    assert second.n_rows == first.n_rows + 1
    assert extend_plan(second, folder) == second
    whole = make_plan(folder, target="y", task="regression")
    assert sorted(map(tuple, encoded(second))) == sorted(map(tuple, encoded(whole)))


def test_a_category_takes_a_number_for_text(write: Write) -> None:
    folder = lake(write, "1", "2", "zwei ü")
    plan = make_plan(folder, target="y", task="regression")
    alone = make_scoring_plan(folder / "k=1", plan.schema)
    assert np.array_equal(encoded(alone), encoded(make_scoring_plan(folder, plan.schema))[:2])
    lake(write, "3")
    longer = extend_plan(plan, folder)
    assert longer.n_rows == plan.n_rows + 2
    assert extend_plan(longer, folder) == longer


def test_a_number_takes_no_text_and_folders_are_compared(write: Write) -> None:
    folder = lake(write, "1", "2")
    plan = make_plan(folder, target="y", task="regression")
    with pytest.raises(SchemaError, match="'k': expected number"):
        make_scoring_plan(lake(write, "zwei").joinpath("k=zwei"), plan.schema)
    (folder / "k=zwei/a.parquet").unlink()
    (folder / "k=2").rename(folder / "k=4")
    with pytest.raises(PlanError, match="lies in other folders"):
        extend_plan(plan, folder)
