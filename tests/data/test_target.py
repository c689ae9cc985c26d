"""The target: labels of every type, values, nulls, infinities, weights, and sorted rows."""

from __future__ import annotations

import math
import warnings
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dmondrian.data import Plan, make_plan, read_block
from dmondrian.errors import DataError, ParameterError, SchemaError

from .conftest import Write


def plan_of(write: Write, y: Any, task: str = "classification", **options: Any) -> Plan:
    size = options.pop("row_group_size", 100_000)
    path = write({"x": np.arange(len(y)), "y": y}, row_group_size=size)
    return make_plan(path, target="y", task=task, **options)


def targets(plan: Plan) -> list[float]:
    parts = [read_block(plan, block).y for block in plan.blocks]
    return np.concatenate([part for part in parts if part is not None]).tolist()


@pytest.mark.parametrize(
    ("y", "classes", "indices"),
    [
        (["b", "a", "b"], ("a", "b"), [1, 0, 1]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ("a", "b"), [1, 0, 1]),
        (pa.array([True, False, True]), (False, True), [1, 0, 1]),
        (pa.array([10, -1, 9], pa.int8()), (-1, 9, 10), [2, 0, 1]),
        (pa.array([2**64 - 1, 0, 2**64 - 2], pa.uint64()), (0, 2**64 - 2, 2**64 - 1), [2, 0, 1]),
        (pa.array([2.0, -1.0, 2.0]), (-1, 2), [1, 0, 1]),
        (pa.array([Decimal("2.0"), Decimal("1.0")]), (1, 2), [1, 0]),
        (pa.array([Decimal("2.0"), Decimal("1.0")], pa.decimal64(9, 1)), (1, 2), [1, 0]),
        (pa.array([5, 3, 5]).dictionary_encode(), (3, 5), [1, 0, 1]),
        (pa.array(["b", "a"]).cast(pa.dictionary(pa.uint8(), pa.string())), ("a", "b"), [1, 0]),
    ],
)
def test_labels_are_sorted_and_counted_from_zero(
    write: Write, y: Any, classes: tuple[Any, ...], indices: list[int]
) -> None:
    plan = plan_of(write, y)
    assert plan.schema.classes == classes
    assert [type(label) for label in plan.schema.classes or ()] == [type(c) for c in classes]
    assert targets(plan) == indices
    assert Plan.from_parquet(plan.to_parquet()).schema == plan.schema


def test_vocabulary_is_global_over_row_groups_and_files(write: Write) -> None:
    write({"x": [1, 2], "y": ["d", "b"]}, "two/a.parquet", row_group_size=1)
    path = write({"x": [1, 2], "y": ["c", "a"]}, "two/b.parquet", row_group_size=1)
    plan = make_plan(path.parent, target="y")
    assert plan.schema.classes == ("a", "b", "c", "d")
    assert targets(plan) == [3, 1, 2, 0]


def test_more_than_256_classes(write: Write) -> None:
    labels = np.random.default_rng(0).permutation(1000)
    plan = plan_of(write, [f"{label:04d}" for label in labels])
    assert plan.schema.n_classes == 1000
    assert targets(plan) == labels.tolist()


def test_one_class_is_refused(write: Write) -> None:
    with pytest.raises(DataError, match="at least two classes, got only 'a', in all 3 rows"):
        plan_of(write, ["a", "a", "a"])


def test_classes_may_be_declared(write: Write) -> None:
    plan = plan_of(write, ["b", "b"], classes=["c", "b", "a"])
    assert plan.schema.classes == ("a", "b", "c")
    assert targets(plan) == [1, 1]
    with pytest.raises(DataError, match="'d'"):
        plan_of(write, ["b", "d"], classes=["b", "c"])
    with pytest.raises(ParameterError, match="classification"):
        plan_of(write, [1.0, 2.0], "regression", classes=[1, 2])


def test_numbers_that_are_no_labels_are_refused(write: Write) -> None:
    with pytest.raises(DataError, match=r"2\.5, which is no class label.*regression"):
        plan_of(write, [1.0, 2.5])


def test_timestamps_are_no_labels(write: Write) -> None:
    with pytest.raises(DataError, match="expected strings, integers or booleans"):
        plan_of(write, pa.array([1, 2], pa.timestamp("us")))


@pytest.mark.parametrize(
    "y",
    [
        pa.array([3, 1, 2], pa.int32()),
        pa.array([3.0, 1.0, 2.0], pa.float32()),
        pa.array([Decimal("3.00"), Decimal("1.00"), Decimal("2.00")]),
        pa.array([Decimal("3.00"), Decimal("1.00"), Decimal("2.00")], pa.decimal32(3, 2)),
    ],
    ids=lambda y: str(y.type),
)
@pytest.mark.parametrize("statistics", [True, False])
def test_regression_keeps_the_unit_of_the_target(
    write: Write, y: pa.Array, statistics: bool
) -> None:
    path = write({"x": [1, 2, 3], "y": y}, write_statistics=statistics)
    plan = make_plan(path, target="y", task="regression")
    assert plan.schema.classes is None
    assert plan.schema.target_range == (1, 3)
    assert targets(plan) == [3, 1, 2]


def test_strings_cannot_be_regressed(write: Write) -> None:
    with pytest.raises(SchemaError, match="a regression needs a number"):
        plan_of(write, ["1", "2"], "regression")


@pytest.mark.parametrize(
    ("y", "task", "what"),
    [
        (["a", None, "b", None], "classification", "null in 2 rows, first at .* row 1"),
        ([1.0, math.nan, 2.0, None], "classification", "null in 2 rows, first at .* row 1"),
        ([1.0, 3.0, None, 2.0], "regression", "null or NaN in 1 row, first at .* row 2"),
        ([1.0, math.nan, None, 2.0], "regression", "null or NaN in 2 rows, first at .* row 1"),
        ([1.0, 2.0, 3.0, -math.inf], "regression", "infinite in 1 row, first at .* row 3"),
        ([1, None, 2, 3], "regression", "null in 1 row"),
    ],
)
def test_missing_targets_are_refused_with_number_and_place_or_dropped(
    write: Write, y: list[Any], task: str, what: str
) -> None:
    with pytest.raises(DataError, match=f'{what}.*null_target="drop"'):
        plan_of(write, y, task, row_group_size=2)
    plan = plan_of(write, y, task, row_group_size=2, null_target="drop")
    kept = [i for i, v in enumerate(y) if isinstance(v, str) or (v is not None and isfinite(v))]
    parts = [read_block(plan, block, keep=["x"]) for block in plan.blocks]
    assert [x for part in parts if part.keep for x in part.keep["x"].to_pylist()] == kept
    assert sum(len(part.X) for part in parts) == len(targets(plan)) == len(kept)
    assert sum(part.counts["null_target"] for part in parts) == len(y) - len(kept)
    assert any("dropped" in note for note in plan.notes)


def test_target_without_any_value_is_refused(write: Write) -> None:
    with pytest.raises(DataError, match="'y'"):
        plan_of(write, pa.nulls(3, pa.float64()), "regression", null_target="drop")


class TestWeight:
    def test_weights_are_read_and_are_no_feature(self, write: Write) -> None:
        columns = {"x": [1, 2], "w": [0.5, 2.0], "y": ["a", "b"]}
        plan = make_plan(write(columns), target="y", weight="w")
        assert plan.schema.feature_names == ["x"]
        weight = read_block(plan, plan.blocks[0]).weight
        assert weight is not None
        assert weight.tolist() == [0.5, 2.0]

    @pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf, None])
    def test_impossible_weights_are_refused_with_their_place(
        self, write: Write, wrong: float | None
    ) -> None:
        path = write({"x": [1, 2], "w": [0.5, wrong], "y": ["a", "b"]})
        plan = make_plan(path, target="y", weight="w")
        with pytest.raises(DataError, match=r"'w' is null, negative or infinite at .* row 1"):
            read_block(plan, plan.blocks[0])

    def test_text_is_no_weight(self, write: Write) -> None:
        path = write({"x": [1, 2], "w": ["a", "b"], "y": ["a", "b"]})
        with pytest.raises(SchemaError, match="must be a number"):
            make_plan(path, target="y", weight="w")


class TestOrder:
    def warnings_of(self, *arguments: Any, **options: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            plan = plan_of(*arguments, **options)
        texts = [str(warning.message) for warning in caught]
        assert all(text in plan.notes for text in texts)
        return texts

    @pytest.mark.parametrize(
        ("y", "task"),
        [
            (["a"] * 300 + ["b"] * 300, "classification"),
            ([i // 100 for i in range(600)], "classification"),
            ([float(i) for i in range(600)], "regression"),
            ([-float(i // 3) for i in range(600)], "regression"),
            (list(range(600)), "regression"),
        ],
    )
    def test_sorted_target_is_warned_of_unless_shuffled(
        self, write: Write, y: list[Any], task: str
    ) -> None:
        found = self.warnings_of(write, y, task, row_group_size=100)
        assert len(found) == 1
        assert "look sorted" in found[0]
        assert "shuffle" in found[0]
        assert self.warnings_of(write, y, task, row_group_size=100, shuffle=True) == []

    @pytest.mark.parametrize("task", ["classification", "regression"])
    def test_random_order_slow_drift_and_tiny_data_are_not_warned_of(
        self, write: Write, task: str
    ) -> None:
        draws = np.random.default_rng(0)
        walk = np.cumsum(draws.normal(size=1000))
        slow = np.where(walk > np.median(walk) + draws.normal(size=1000), 1, 0)
        series = slow if task == "classification" else walk
        assert self.warnings_of(write, series, task) == []
        assert self.warnings_of(write, draws.integers(0, 3, 1000), task) == []
        assert self.warnings_of(write, [0, 0, 0, 1, 1, 1], task) == []

    @pytest.mark.parametrize(
        ("y", "task"),
        [
            ([f"c{(i // 50) % 4}" for i in range(1000)], "classification"),
            ([(i // 50) % 4 for i in range(1000)], "regression"),
            ([float((i // 50) % 4) for i in range(1000)], "regression"),
        ],
    )
    def test_pure_row_groups_are_warned_of_unless_shuffled(
        self, write: Write, y: list[Any], task: str
    ) -> None:
        # Each row group holds one value, the next one another: no row follows one of its like for
        # long, as far as row groups are looked at one by one.
        found = self.warnings_of(write, y, task, row_group_size=50)
        assert len(found) == 1
        assert "shuffle = true" in found[0]
        assert self.warnings_of(write, y, task, row_group_size=50, shuffle=True) == []

    @pytest.mark.parametrize("group", [1, 2, 5, 20])
    @pytest.mark.parametrize("task", ["classification", "regression"])
    def test_small_row_groups_and_rare_events_are_not_taken_for_pure_ones(
        self, write: Write, task: str, group: int
    ) -> None:
        draws = np.random.default_rng(0)
        for rare in (0.02, 0.5):
            y = (draws.random(1000) < rare).astype(int)
            assert self.warnings_of(write, y.tolist(), task, row_group_size=group) == []

    def test_spambase_is_found_sorted_and_its_row_groups_too(self, resources: Path) -> None:
        source = resources / "spambase"
        with pytest.warns(UserWarning, match="look sorted by the target 'class'"):
            make_plan(source, target="class")
        plan = make_plan(source, target="class", shuffle=True)
        assert any("row groups are mixed with each other" in note for note in plan.notes)
