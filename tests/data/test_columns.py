"""Which columns are used: left out with a reason, by name, and the same in all files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian.data import Schema, make_plan, make_scoring_plan, read_block
from dmondrian.data import scan as scan_module
from dmondrian.errors import DataError, SchemaError

from .conftest import Write

ROWS = 100
X = pa.array(np.arange(ROWS))


def left_out(write: Write, columns: dict[str, Any], **options: Any) -> dict[str, str]:
    plan = make_plan(write({"x": X, **columns}), **options)
    assert plan.schema.feature_names == ["x"]
    for name, _ in plan.schema.left_out:
        assert any(repr(name) in note for note in plan.notes)
    return dict(plan.schema.left_out)


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.nulls(ROWS), "all null"),
        (pa.nulls(ROWS, pa.float64()), "all null"),
        (pa.nulls(ROWS, pa.string()), "all null"),
        (pa.nulls(ROWS, pa.timestamp("us")), "all null"),
        (pa.array([float("nan")] * ROWS), "all null"),
        (pa.array([7] * ROWS), "constant (7)"),
        (pa.array([True] * ROWS), "constant (1)"),
        (pa.array(["one"] * ROWS), "constant ('one')"),
        (pa.array([0] * ROWS, pa.timestamp("us")), "constant (one moment)"),
        (pa.array([[1, 2]] * ROWS), "nested"),
        (pa.array([{"a": 1}] * ROWS), "nested"),
        (pa.array([b"ab"] * ROWS), "binary"),
        (pa.array([f"id{i}" for i in range(ROWS)]), "identifier"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else value,
)
def test_useless_columns_are_left_out_by_name_and_reason(
    write: Write, column: pa.Array, reason: str
) -> None:
    assert reason in left_out(write, {"c": column})["c"]


def test_excluded_columns_are_not_even_looked_at(write: Write) -> None:
    infinite = pa.array([float("inf")] * ROWS)
    assert left_out(write, {"c": infinite}, exclude=["c"]) == {}


def test_column_with_too_many_values_is_left_out(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "MAX_DISTINCT", 10)
    values = [f"v{i // 2}" for i in range(ROWS)]
    assert "identifier" in left_out(write, {"c": pa.array(values)})["c"]


def test_nothing_left_is_an_error_that_names_the_columns(write: Write) -> None:
    with pytest.raises(DataError, match=r"'a': constant \(1\)"):
        make_plan(write({"a": [1, 1], "y": ["u", "v"]}), target="y")


def test_columns_with_one_name_are_left_out(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([X, X, X], names=["x", "c", "c"])
    pq.write_table(table, tmp_path / "a.parquet")
    plan = make_plan(tmp_path / "a.parquet")
    assert plan.schema.feature_names == ["x"]
    assert "two columns" in dict(plan.schema.left_out)["c"]


def named(path: Path, *names: str) -> Path:
    """Write a file with columns of these names, which need not differ."""
    path.parent.mkdir(exist_ok=True, parents=True)
    pq.write_table(pa.Table.from_arrays([X] * len(names), names=list(names)), path)
    return path


@pytest.mark.parametrize("name", ["y", "w"], ids=["target", "weight"])
def test_a_target_or_weight_that_is_there_twice_is_refused(tmp_path: Path, name: str) -> None:
    files = [
        named(tmp_path / "a.parquet", "x", "c", "y", "w"),
        named(tmp_path / "b.parquet", "x", "c", "y", "w", name),
    ]
    reported = rf"b\.parquet has the column '{name}' more than once.*rename or remove"
    with pytest.raises(SchemaError, match=reported):
        make_plan(files, target="y", weight="w", task="regression")


@pytest.mark.parametrize("name", ["x", "y", "k"], ids=["feature", "target", "kept"])
def test_other_data_with_a_column_twice_is_refused(tmp_path: Path, name: str) -> None:
    first = named(tmp_path / "a.parquet", "x", "k", "y")
    schema = make_plan(first, target="y", task="regression", exclude=["k"]).schema
    second = named(tmp_path / "b.parquet", "x", "k", "y", name)
    with pytest.raises(SchemaError, match=rf"b\.parquet has the column '{name}' more than once"):
        make_scoring_plan([first, second], schema, keep=["k"], target=True)


def test_other_data_may_have_columns_twice_that_are_not_read(tmp_path: Path) -> None:
    first = named(tmp_path / "a.parquet", "x", "k", "y")
    schema = make_plan(first, target="y", task="regression", exclude=["k"]).schema
    plan = make_scoring_plan(named(tmp_path / "b.parquet", "x", "k", "k", "y", "y"), schema)
    assert read_block(plan, plan.blocks[0]).X.shape == (len(X), 1)


def test_a_column_twice_is_not_hidden_by_a_folder_of_its_name(tmp_path: Path) -> None:
    first = named(tmp_path / "a.parquet", "x", "y")
    schema = make_plan(first, target="y", task="regression").schema
    named(tmp_path / "in/x=1/b.parquet", "x", "x", "y")
    with pytest.raises(SchemaError, match="'x' more than once"):
        make_scoring_plan(tmp_path / "in", schema)


def test_column_names_with_dots_are_plain_names(write: Write) -> None:
    columns = {"a": [1, 2, 3], "a.b": [3, 2, 1], "s": [{"b": 1}] * 3, "y": ["u", "v", "v"]}
    plan = make_plan(write(columns), target="y")
    assert plan.schema.feature_names == ["a", "a.b"]
    assert read_block(plan, plan.blocks[0]).X.tolist() == [[0, 1], [0.5, 0.5], [1, 0]]


def test_names_that_collide_after_encoding_are_kept_apart(write: Write) -> None:
    columns = {"a": ["b=c", "d", "d"], "a=b": ["c", "d", "d"]}
    names = make_plan(write(columns)).schema.feature_names
    assert len(set(names)) == len(names) == 6
    assert {"a=b=c", "a=b=c#2"} < set(names)


@pytest.mark.parametrize("role", ["target", "weight", "exclude", "categorical"])
def test_name_that_no_column_has_is_refused_with_the_nearest(write: Write, role: str) -> None:
    value = "incom" if role in ("target", "weight") else ["incom"]
    with pytest.raises(SchemaError, match=f"'incom'.*{role}.*'income'"):
        make_plan(write({"x": X, "income": X}), **{role: value})  # type: ignore[arg-type]


def test_files_are_read_by_name_whatever_their_order_of_columns(write: Write) -> None:
    write({"a": [0, 1], "b": [0.0, 4.0]}, "two/a.parquet")
    path = write({"b": pa.array([2, 4], pa.int16()), "a": [2, 4]}, "two/b.parquet")
    plan = make_plan(path.parent)
    assert plan.schema.feature_names == ["a", "b"]
    assert read_block(plan, plan.blocks[1]).X.tolist() == [[0.5, 0.5], [1, 1]]


def test_file_that_lacks_a_column_is_named(write: Write) -> None:
    write({"a": [0, 1], "b": [0, 1]}, "two/a.parquet")
    path = write({"a": [0, 1]}, "two/b.parquet")
    with pytest.raises(SchemaError, match=r"b\.parquet has no column 'b'"):
        make_plan(path.parent)
    assert make_plan(path.parent, exclude=["b"]).schema.feature_names == ["a"]


def test_column_only_in_a_later_file_is_left_out(write: Write) -> None:
    write({"a": [0, 1]}, "two/a.parquet")
    plan = make_plan(write({"a": [0, 1], "b": [0, 1]}, "two/b.parquet").parent)
    assert plan.schema.feature_names == ["a"]
    assert "b.parquet but not in" in dict(plan.schema.left_out)["b"]


def test_files_that_disagree_on_the_kind_are_refused(write: Write) -> None:
    write({"a": [0, 1]}, "two/a.parquet")
    path = write({"a": ["0", "2"]}, "two/b.parquet")
    with pytest.raises(SchemaError, match=r"'a' is int64 in .*a\.parquet but string in .*b\.par"):
        make_plan(path.parent)
    plan = make_plan(path.parent, categorical=["a"])
    assert plan.schema.feature_names == ["a=0", "a=1", "a=2", "a=<other>"]


def test_file_whose_column_is_all_null_agrees_with_any_kind(write: Write) -> None:
    write({"a": pa.nulls(2), "b": pa.nulls(2)}, "two/a.parquet")
    path = write({"a": [1.0, 2.0], "b": ["u", "v"]}, "two/b.parquet")
    plan = make_plan(path.parent)
    assert plan.schema.feature_names == ["a", "a=<null>", "b=u", "b=v", "b=<other>", "b=<null>"]
    X = read_block(plan, plan.blocks[0]).X
    assert X.tolist() == [[0.5, 1, 0, 0, 0, np.float32(1 / 3)]] * 2  # levels u, v and null


def test_empty_files_among_others_are_passed_over(write: Write) -> None:
    write(pa.table({"other": pa.array([], pa.int8())}), "three/a.parquet")
    write({"a": [0, 1]}, "three/b.parquet")
    path = write(pa.table({"a": pa.array([], pa.string())}), "three/c.parquet")
    plan = make_plan(path.parent)
    assert plan.n_rows == 2
    assert any("a.parquet" in note and "without rows" in note for note in plan.notes)


def test_no_row_at_all_is_an_error(write: Write) -> None:
    path = write(pa.table({"a": pa.array([], pa.int8())}))
    with pytest.raises(DataError, match="no rows"):
        make_plan(path)
    schema = make_plan(write({"a": [1, 2]}, "b.parquet")).schema
    with pytest.raises(DataError, match="no rows"):
        make_scoring_plan(path, schema)


def test_one_row_has_nothing_that_varies(write: Write) -> None:
    with pytest.raises(DataError, match="constant"):
        make_plan(write({"a": [1], "y": [1.0]}), target="y", task="regression")


class TestHive:
    @pytest.fixture
    def folder(self, write: Write) -> Path:
        for year, city, day in ((2023, "Rome", "2023-05-01"), (2024, "Oslo", "2024-06-01")):
            columns = {"x": X, "city": pa.array([city] * ROWS)}
            path = write(columns, f"hive/year={year}/city=Paris/day={day}/a.parquet")
        return path.parents[3]

    def test_partition_values_become_columns(self, folder: Path) -> None:
        plan = make_plan(folder)
        assert plan.schema.feature_names == [
            "x",
            "city=Oslo",  # the file's own column wins over the folder's
            "city=Rome",
            "city=<other>",
            "year",
            "day",
            "day.weekday",
            "day.month",
        ]
        encoded = [read_block(plan, block).X for block in plan.blocks]
        assert set(encoded[0][:, 4]) == {0}
        assert set(encoded[1][:, 4]) == {1}

    def test_one_file_of_the_folder_can_be_scored(self, folder: Path) -> None:
        plan = make_plan(folder)
        file = next(folder.rglob("year=2024/**/*.parquet"))
        scoring = make_scoring_plan(file, plan.schema, keep=["year", "city"])
        encoded = read_block(scoring, scoring.blocks[0], keep=["year", "city"])
        assert encoded.X.tobytes() == read_block(plan, plan.blocks[1]).X.tobytes()
        assert encoded.keep is not None
        assert encoded.keep.column("year").to_pylist() == [2024] * ROWS
        assert encoded.keep.column("city").to_pylist() == ["Oslo"] * ROWS

    def test_partition_can_be_the_target_and_have_nulls(self, write: Write) -> None:
        write({"x": X}, "h/label=a/level=1/a.parquet")
        write({"x": X}, "h/label=b/level=007/a.parquet")
        path = write({"x": X}, "h/label=b/level=__HIVE_DEFAULT_PARTITION__/a.parquet")
        with pytest.warns(UserWarning, match="look sorted"):
            plan = make_plan(path.parents[2], target="label")
        assert plan.schema.classes == ("a", "b")
        names = ["x", "level=007", "level=1", "level=<other>", "level=<null>"]
        assert plan.schema.feature_names == names
        y = [read_block(plan, block).y for block in plan.blocks]
        assert [set(part) for part in y if part is not None] == [{0}, {1}, {1}]


class TestScoring:
    @pytest.fixture
    def schema(self, write: Write) -> Schema:
        columns = {
            "age": [1, 2, 3, 4],
            "city": ["a", "b", "b", "a"],
            "when": pa.array([0, 10**12, 2 * 10**12, 3 * 10**12], pa.timestamp("us")),
            "w": [1.0, 2.0, 1.0, 2.0],
            "y": ["no", "yes", "no", "yes"],
        }
        return make_plan(write(columns, "train.parquet"), target="y", weight="w").schema

    def good(self, **others: Any) -> dict[str, Any]:
        when = pa.array([0, 10**12], pa.timestamp("ms"))
        return {"when": when, "id": [7, 8], "city": ["b", "a"], "age": [4, 1], **others}

    def test_target_and_weight_may_be_absent(self, schema: Schema, write: Write) -> None:
        plan = make_scoring_plan(write(self.good()), schema, keep=["id"])
        encoded = read_block(plan, plan.blocks[0], keep=["id"])
        assert encoded.y is None
        assert encoded.weight is None
        assert encoded.X.shape == (2, schema.n_features)
        assert encoded.X[:, 0].tolist() == [1, 0]
        assert encoded.keep is not None
        assert encoded.keep.to_pydict() == {"id": [7, 8]}

    def test_target_is_read_to_evaluate(self, schema: Schema, write: Write) -> None:
        path = write(self.good(y=["yes", "no"], w=[1.0, 1.0]))
        plan = make_scoring_plan(path, schema, target=True)
        encoded = read_block(plan, plan.blocks[0])
        assert encoded.y is not None
        assert encoded.y.tolist() == [1, 0]

    def test_labels_are_not_looked_at_when_only_scoring(self, schema: Schema, write: Write) -> None:
        plan = make_scoring_plan(write(self.good(y=["maybe", None])), schema)
        assert read_block(plan, plan.blocks[0]).y is None

    def test_unknown_label_is_refused_with_its_place(self, schema: Schema, write: Write) -> None:
        path = write(self.good(y=["yes", "maybe"], w=[1.0, 1.0]), row_group_size=1)
        plan = make_scoring_plan(path, schema, target=True)
        with pytest.raises(DataError, match=r"'maybe' .* row 1: expected one of the 2 classes"):
            read_block(plan, plan.blocks[1])

    def test_missing_columns_are_named_with_likely_new_names(
        self, schema: Schema, write: Write
    ) -> None:
        columns = self.good()
        columns["City"] = columns.pop("city")
        columns.pop("age")
        with pytest.raises(SchemaError, match=r"lacks the columns 'age', 'city'.*may be 'City'"):
            make_scoring_plan(write(columns), schema)
        lacking = r"lacks 'y', the target; 'w', the weight: it has the columns of features.*`score`"
        with pytest.raises(SchemaError, match=lacking):
            make_scoring_plan(write(self.good()), schema, target=True)
        named = self.good(Y=["yes", "no"], w=[1.0, 1.0])
        with pytest.raises(SchemaError, match=r"lacks 'y', the target \('y' may be 'Y'\): it has"):
            make_scoring_plan(write(named), schema, target=True)
        with pytest.raises(SchemaError, match="lacks the column 'key'"):
            make_scoring_plan(write(self.good()), schema, keep=["key"])

    def test_a_column_to_be_kept_has_one_type(self, schema: Schema, write: Write) -> None:
        """Also where files differ in the types of features, which are converted."""
        first = write(self.good(note=["b", "a"]), "two/1.parquet")
        city = pa.array(["b", "a"]).dictionary_encode()
        write(self.good(city=city, age=[4.0, 1.0], note=[2, 1]), "two/2.parquet")
        make_scoring_plan(first.parent, schema, keep=["id", "when"])
        for name in ("age", "city", "note"):
            reported = f"column '{name}', asked for to be kept, is .*1.parquet but .*2.parquet"
            with pytest.raises(SchemaError, match=reported):
                make_scoring_plan(first.parent, schema, keep=["id", name])

    @pytest.mark.parametrize(
        "wrong",
        [
            {"age": ["4", "1"]},
            {"city": [1, 2]},
            {"when": [1, 2]},
            {"age": [[1], [2]]},
            {"age": pa.array([1, 2], pa.timestamp("us"))},
        ],
        ids=["text", "integers", "integers for times", "lists", "times"],
    )
    def test_other_kinds_of_type_are_refused(
        self, schema: Schema, write: Write, wrong: dict[str, Any]
    ) -> None:
        with pytest.raises(SchemaError, match=f"'{next(iter(wrong))}': expected"):
            make_scoring_plan(write(self.good(**wrong)), schema)

    def test_all_null_columns_fit_any_kind(self, schema: Schema, write: Write) -> None:
        columns = self.good(age=pa.nulls(2), city=pa.nulls(2), when=pa.nulls(2))
        plan = make_scoring_plan(write(columns), schema)
        encoded = read_block(plan, plan.blocks[0])
        assert encoded.counts["null:age"] == 2
        assert encoded.X[:, 0].tolist() == [0.5, 0.5]

    def test_model_without_target_reads_none_to_be_evaluated(self, write: Write) -> None:
        schema = make_plan(write({"a": [1, 2]})).schema
        plan = make_scoring_plan(write({"a": [1, 2]}), schema, target=True)
        assert read_block(plan, plan.blocks[0]).y is None
