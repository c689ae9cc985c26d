"""Delta tables as data: live files, and rows that were appended since, once each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from dmondrian.data import Plan, extend_plan, list_source, make_plan, make_scoring_plan, read_block
from dmondrian.data.delta_log import Changes, files_to_learn, refuse_masked
from dmondrian.errors import DataError, MissingPackageError, PlanError
from tests.store.servers import moto_server, set_credentials

CITIES = ["New York", "a/b", "ü=1", "100%"]


def rows(first: int, last: int) -> pa.Table:
    ids = np.arange(first, last)
    return pa.table({"id": ids.astype(float), "k": [CITIES[i % 4] for i in ids]})


def append(table: Path | str, first: int, last: int, **options: Any) -> None:
    write_deltalake(str(table), rows(first, last), mode="append", **options)


def ids(plan: Plan, start: int = 0) -> list[float]:
    """Return the ids of the rows from a position, in the order of the stream."""
    found: list[float] = []
    for block in plan.blocks:
        kept = read_block(plan, block, keep=("id",)).keep
        assert kept is not None
        found += kept["id"].to_pylist()
    return found[start:]


def stored(plan: Plan) -> Plan:
    return Plan.from_parquet(plan.to_parquet())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Rows 0 to 11, appended by two commits to two partitions of four."""
    path = tmp_path / "a table"
    for first in (0, 6):
        append(path, first, first + 6, partition_by=["k"])
    return path


@pytest.fixture
def plan(table: Path) -> Plan:
    return stored(make_plan(table))


def vacuum(table: Path) -> None:
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)


def test_the_live_files_are_read_and_no_others(table: Path) -> None:
    DeltaTable(table).update(updates={"id": "id + 100"}, predicate="id = 2")
    DeltaTable(table).delete("id = 3")
    plan = make_plan(table)
    assert sorted(ids(plan)) == [0, 1, *range(4, 12), 102]
    assert len(list_source(table)[0]) < len(list(table.glob("*/*.parquet")))
    assert plan.notes[0] == f"{table} is read as a Delta table, at version 3"
    assert sorted(ids(make_scoring_plan(table, plan.schema))) == sorted(ids(plan))


def test_a_version_that_is_named_is_read(table: Path) -> None:
    DeltaTable(table).delete("id >= 3")
    assert sorted(ids(make_plan(f"{table}@v0"))) == list(range(6))
    assert sorted(ids(make_plan(f"{table}@v1"))) == list(range(12))
    assert sorted(ids(make_plan(f"{table}@v2"))) == list(range(3))
    with pytest.raises(DataError, match="at version 7"):
        make_plan(f"{table}@v7")
    vacuum(table)
    with pytest.raises(DataError, match="is gone: VACUUM deletes files of old versions"):
        make_plan(f"{table}@v1")


def test_a_folder_with_such_a_name_is_no_version(tmp_path: Path) -> None:
    path = tmp_path / "rows@v1"
    path.mkdir()
    pq.write_table(rows(0, 3), path / "a.parquet")
    assert len(list_source(path)[0]) == 1
    append(tmp_path / "t@v2", 0, 3)
    assert ids(make_plan(tmp_path / "t@v2")) == [0, 1, 2]
    assert ids(make_plan(f"{tmp_path}/t@v2@v0")) == [0, 1, 2]


def test_partition_columns_are_as_the_table_has_them(tmp_path: Path) -> None:
    values = pa.table(
        {
            "id": [0.0, 1.0, 2.0],
            "code": ["007", "8", None],
            "n": pa.array([1, None, 3], pa.int32()),
            "day": [date(2024, 1, 1), None, date(2024, 1, 3)],
            "at": pa.array([datetime(2024, 1, 1, 5), None, None], pa.timestamp("us")),
            "f": [0.5, None, 2.0],
            "b": [True, None, False],
        }
    )  # fmt: skip
    names = values.column_names[1:]
    write_deltalake(tmp_path / "t", values.slice(0, 2), partition_by=names)
    plan = make_plan(tmp_path / "t")
    write_deltalake(tmp_path / "t", values.slice(2), mode="append")
    plan = extend_plan(plan, tmp_path / "t", 2)
    found = [read_block(plan, block, keep=values.column_names).keep for block in plan.blocks]
    read = pa.concat_tables([one for one in found if one is not None]).sort_by("id")
    for name in values.column_names:
        assert read[name].to_pylist() == values[name].to_pylist(), name
    kinds = {key: kind for block in plan.blocks for key, kind, _ in block.partition}
    assert kinds == {
        "code": "string", "n": "int64", "day": "date32[day]", "at": "timestamp[us]",
        "f": "double", "b": "bool",
    }  # fmt: skip


class TestContinued:
    def test_appended_rows_follow_once_each(self, table: Path, plan: Plan) -> None:
        append(table, 12, 18)
        later = extend_plan(plan, table, plan.n_rows)
        assert later.blocks[: len(plan.blocks)] == plan.blocks
        assert sorted(ids(later, 12)) == list(range(12, 18))
        assert later.notes[0] == f"{table} is read as a Delta table, at version 2"
        assert extend_plan(stored(later), table, 18).digest == later.digest
        append(table, 12, 18)  # with the bytes of files that were learned
        again = extend_plan(stored(later), table, 18)
        assert sorted(ids(again, 18)) == list(range(12, 18))

    def test_compaction_brings_no_rows(self, table: Path, plan: Plan) -> None:
        DeltaTable(table).optimize.compact()
        assert extend_plan(plan, table, 12).digest == plan.digest
        append(table, 12, 16)
        append(table, 16, 20)
        DeltaTable(table).optimize.compact()
        later = extend_plan(plan, table, 12)
        assert sorted(ids(later, 12)) == list(range(12, 20))
        append(table, 20, 24)
        DeltaTable(table).optimize.compact()
        DeltaTable(table).optimize.z_order(["id"])
        last = extend_plan(stored(later), table, 20)
        assert sorted(ids(last, 20)) == list(range(20, 24))
        assert last.about_learned == ()
        vacuum(table)
        assert extend_plan(stored(last), table, 24).digest == last.digest

    def test_files_of_a_part_that_was_not_learned_are_read_as_they_were(
        self, table: Path, plan: Plan
    ) -> None:
        before = ids(plan)
        DeltaTable(table).optimize.compact()
        later = extend_plan(plan, table, 5)
        assert ids(later) == before
        vacuum(table)
        with pytest.raises(PlanError, match="is gone"):
            extend_plan(plan, table, 5)
        assert extend_plan(plan, table, 12).digest == plan.digest

    def test_rows_whose_files_were_compacted_and_deleted_are_found_where_they_are_now(
        self, tmp_path: Path
    ) -> None:
        table = tmp_path / "t"
        write_deltalake(table, rows(0, 3).append_column("p", pa.array([0] * 3)), partition_by=["p"])
        plan = make_plan(table, exclude=["p"])
        for first in (3, 5):
            new = rows(first, first + 2).append_column("p", pa.array([1] * 2))
            write_deltalake(table, new, mode="append")
        DeltaTable(table).optimize.compact()
        both = extend_plan(plan, table, 3)
        vacuum(table)
        one = extend_plan(plan, table, 3)
        assert sorted(ids(one, 3)) == [3, 4, 5, 6]
        assert (len(both.blocks), len(one.blocks)) == (3, 2)
        new = rows(7, 8).append_column("p", pa.array([0]))
        write_deltalake(table, new, mode="append")
        DeltaTable(table).optimize.compact()
        assert sorted(ids(extend_plan(plan, table, 3), 3)) == [3, 4, 5, 6, 7]
        vacuum(table)
        with pytest.raises(DataError, match="cannot be separated: restore the file"):
            extend_plan(plan, table, 3)

    def test_deletes_and_updates_are_counted_and_learned_rows_stay(
        self, table: Path, plan: Plan
    ) -> None:
        DeltaTable(table).optimize.compact()
        DeltaTable(table).delete("id = 3 or id = 6")
        DeltaTable(table).update(updates={"id": "id + 100"}, predicate="id = 4")
        append(table, 12, 14)
        later = extend_plan(plan, table, 12)
        assert sorted(ids(later, 12)) == [12, 13]
        (state,) = later.tables
        assert (state.deleted, state.updated, state.unlearned) == (2, 1, 0)
        assert later.about_learned == (
            f"of the rows that the stream has from the Delta table {table}, 2 were deleted and 1 "
            "was updated since: what was learned of them stays learned",
        )
        DeltaTable(table).delete("id = 5")
        (state,) = extend_plan(stored(later), table, 14).tables
        assert (state.deleted, state.updated) == (3, 1)

    def test_rows_that_change_before_they_are_learned_are_learned_as_they_are(
        self, table: Path, plan: Plan
    ) -> None:
        append(table, 12, 20)
        DeltaTable(table).delete("id = 13")
        DeltaTable(table).update(updates={"id": "id + 100"}, predicate="id = 14")
        later = extend_plan(plan, table, 12)
        assert sorted(ids(later, 12)) == [12, 15, 16, 17, 18, 19, 114]
        assert later.about_learned == ()

    def test_rows_that_are_replaced_or_merged_into_learned_files_are_counted(
        self, table: Path, plan: Plan
    ) -> None:
        source = pa.table({"id": [0.0, 50.0], "k": [CITIES[0]] * 2})
        merge = DeltaTable(table).merge(source, "s.id = t.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        later = extend_plan(plan, table, 12)
        (state,) = later.tables
        assert state.updated == 1
        assert state.unlearned + later.n_rows - 12 == 1
        write_deltalake(table, rows(60, 66), mode="overwrite")
        last = extend_plan(plan, table, 12)
        assert last.n_rows == later.n_rows
        assert last.tables[0].unlearned >= 6
        assert "are not learned: rows that are appended are" in last.about_learned[1]

    def test_rows_changed_before_they_were_learned_are_at_most_counted(self, table: Path) -> None:
        def counts(source: str) -> tuple[int, int, tuple[str, ...]]:
            (state,) = extend_plan(plan, source, 6).tables
            return state.deleted, state.updated, state.bounds

        plan = stored(make_plan(f"{table}@v0"))
        DeltaTable(table).delete("id = 1 or id = 7")  # of which one is learned, in two partitions
        assert counts(str(table)) == (1, 0, ())
        DeltaTable(table).delete("id = 4 or id = 8")  # in one partition
        assert counts(f"{table}@v3") == (3, 0, ("deleted",))
        DeltaTable(table).update(updates={"id": "id + 100"}, predicate="id in (2, 6)")
        assert counts(f"{table}@v4") == (3, 1, ("deleted", "updated"))  # of one learned row

    def test_a_plan_of_an_earlier_version_with_a_count_below_0_is_read(self, plan: Plan) -> None:
        (state,) = plan.tables
        below = replace(plan, tables=(replace(state, deleted=-4),))
        assert stored(below).tables == (state,)

    def test_rows_that_move_to_another_partition_are_not_learned_again(
        self, table: Path, plan: Plan
    ) -> None:
        DeltaTable(table).update(updates={"k": "'elsewhere'"}, predicate="id = 4")
        append(table, 12, 14)
        later = extend_plan(plan, table, 12)
        assert sorted(ids(later, 12)) == [12, 13]
        assert later.tables[0].updated == 1

    def test_a_version_that_is_restored_brings_no_learned_row(
        self, table: Path, plan: Plan
    ) -> None:
        append(table, 12, 16)
        DeltaTable(table).restore(1)
        assert extend_plan(plan, table, 12).digest == plan.digest
        DeltaTable(table).delete()
        assert extend_plan(plan, table, 12).tables[0].deleted == 12
        DeltaTable(table).restore(1)
        assert extend_plan(plan, table, 12).digest == plan.digest
        DeltaTable(table).restore(2)
        assert sorted(ids(extend_plan(plan, table, 12), 12)) == [12, 13, 14, 15]

    def test_versions_of_a_stream_go_forward(self, table: Path) -> None:
        plan = make_plan(f"{table}@v0")
        assert extend_plan(plan, f"{table}@v0", 6).digest == plan.digest
        later = extend_plan(plan, f"{table}@v1", 6)
        assert sorted(ids(later, 6)) == list(range(6, 12))
        with pytest.raises(PlanError, match="the run has learned its version 1"):
            extend_plan(stored(later), f"{table}@v0", 12)

    def test_a_table_that_was_made_anew_is_another_one(self, table: Path, plan: Plan) -> None:
        shutil.rmtree(table)
        append(table, 0, 6, partition_by=["k"])
        with pytest.raises(PlanError, match="is another Delta table"):
            extend_plan(plan, table, 12)

    def test_a_table_may_move(self, table: Path, plan: Plan, tmp_path: Path) -> None:
        shutil.copytree(table, tmp_path / "there/copy")
        shutil.rmtree(table)
        append(tmp_path / "there/copy", 12, 16)
        later = extend_plan(plan, tmp_path / "there/copy", 5)
        assert sorted(ids(later)) == list(range(16))
        assert later.blocks[0].position == 0
        last = extend_plan(stored(later), tmp_path / "there/copy", 16)
        assert last.digest == later.digest

    def test_a_log_that_has_expired_is_enough_where_files_were_only_added(
        self, table: Path, plan: Plan
    ) -> None:
        append(table, 12, 14)
        append(table, 14, 16)
        DeltaTable(table).create_checkpoint()
        for version in range(3):
            (table / "_delta_log" / f"{version:020d}.json").unlink()
        later = extend_plan(plan, table, 12)
        assert sorted(ids(later, 12)) == [12, 13, 14, 15]
        DeltaTable(table).optimize.compact()
        with pytest.raises(DataError, match="its log has no entries any more"):
            extend_plan(plan, table, 12)

    def test_a_folder_that_became_a_table_goes_on(self, tmp_path: Path) -> None:
        from deltalake import convert_to_deltalake

        folder = tmp_path / "rows"
        folder.mkdir()
        pq.write_table(rows(0, 4), folder / "a.parquet")
        plan = make_plan(folder)
        convert_to_deltalake(str(folder))
        assert extend_plan(plan, folder, 4).digest == plan.digest
        append(folder, 4, 6)
        later = extend_plan(plan, folder, 4)
        assert ids(later) == list(range(6))
        append(folder, 6, 8)
        assert ids(extend_plan(stored(later), folder, 6)) == list(range(8))

    def test_tables_and_files_make_one_stream(self, table: Path, tmp_path: Path) -> None:
        plain = tmp_path / "plain"
        plain.mkdir()
        pq.write_table(rows(100, 104), plain / "a.parquet")
        append(tmp_path / "other", 50, 52)
        source = [plain, table]
        plan = make_plan(source, exclude=["k"])
        assert sorted(ids(plan)) == [*range(12), *range(100, 104)]
        append(table, 12, 16)
        pq.write_table(rows(104, 106), plain / "b.parquet")
        more = [*source, f"{tmp_path}/other@v0"]
        later = extend_plan(stored(plan), more, plan.n_rows)
        assert sorted(ids(later, 16)) == [*range(12, 16), 50, 51, 104, 105]
        assert len(stored(later).tables) == 2
        assert extend_plan(stored(later), more, later.n_rows).digest == later.digest


def write_log(table: Path, version: int, *actions: dict[str, Any]) -> None:
    (table / "_delta_log").mkdir(exist_ok=True)
    path = table / "_delta_log" / f"{version:020}.json"
    path.write_text("\n".join(map(json.dumps, actions)))


def test_a_folder_that_deltalake_misreads_is_refused(table: Path, tmp_path: Path) -> None:
    moved = table.rename(tmp_path / "a%20table")
    append(table, 0, 6)  # what it would read in its place
    with pytest.raises(DataError, match=r"deltalake misreads '%20' in a path"):
        list_source(moved)


def test_columns_with_other_names_in_the_files_are_refused(tmp_path: Path) -> None:
    field = {"name": "x", "type": "long", "nullable": True}
    field["metadata"] = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "c1"}
    (tmp_path / "t").mkdir()
    write_log(
        tmp_path / "t",
        0,
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        {"metaData": {
            "id": "a", "format": {"provider": "parquet", "options": {}}, "partitionColumns": [],
            "schemaString": json.dumps({"type": "struct", "fields": [field]}), "createdTime": 1,
            "configuration": {"delta.columnMapping.mode": "name",
                              "delta.columnMapping.maxColumnId": "1"}}},
    )  # fmt: skip
    with pytest.raises(DataError, match=r"delta\.columnMapping\.mode"):
        make_plan(tmp_path / "t")


def test_without_the_package_the_extra_is_named(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"dmondrian\[lake\]"):
        make_plan(table)


def test_a_damaged_log_is_reported(table: Path, plan: Plan) -> None:
    append(table, 12, 14)
    log = table / "_delta_log" / f"{2:020d}.json"
    log.write_text("{")
    with pytest.raises(DataError, match="cannot read"):
        extend_plan(plan, table, 12)


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    import boto3

    with moto_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        set_credentials(patch, endpoint)
        patch.setenv("AWS_ALLOW_HTTP", "true")
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="delta")
        yield "s3://delta/deep/a table"


def test_a_table_in_a_store_goes_on(bucket: str) -> None:
    options = {"storage_options": {"aws_conditional_put": "etag"}}
    append(bucket, 0, 8, partition_by=["k"], **options)
    plan = stored(make_plan(bucket))
    append(bucket, 8, 12, **options)
    DeltaTable(bucket, **options).optimize.compact()
    later = extend_plan(plan, bucket, 8)
    assert sorted(ids(later)) == list(range(12))
    assert sorted(ids(later, 8)) == list(range(8, 12))
    assert sorted(ids(make_plan(f"{bucket}@v0"))) == list(range(8))


# -- the changes of a log against a slow account of every row -------------------------------------


class Account:
    """A table as sets of rows, each file with the rows that it holds."""

    def __init__(self) -> None:
        self.live: dict[str, set[int]] = {"f0": {0, 1}, "f1": {2, 3}}  # rows that are not left out
        self.contents = dict(self.live)  # of all files that ever were, as they were written
        self.n_files, self.n_rows = 2, 4
        self.old = {0, 1, 2, 3}
        self.commits: list[list[dict[str, Any]]] = []
        self.versions: list[dict[str, int]] = [self.sizes()]
        self.effects: list[tuple[str, set[int]]] = []  # of each commit: rows deleted or updated
        self.effect: tuple[str, set[int]] = ("deleted", set())

    def sizes(self) -> dict[str, int]:
        return {name: len(self.contents[name]) for name in self.live}

    def write(self, found: set[int]) -> str:
        name = f"f{self.n_files}"
        self.n_files += 1
        self.live[name] = self.contents[name] = found
        return name

    def commit(
        self,
        adds: list[str],
        gone: list[str],
        is_change: bool,
        info: dict[str, Any],
        left_out: dict[str, set[int]] | None = None,
    ) -> None:
        actions: list[dict[str, Any]] = [{"commitInfo": info}]

        def action(name: str, n_left_out: int) -> dict[str, Any]:
            statistics = json.dumps({"numRecords": len(self.contents[name])})
            found = {"path": name, "partitionValues": {}, "dataChange": is_change}
            vector = {"deletionVector": {"cardinality": n_left_out}} if n_left_out else {}
            return {**found, **vector, "stats": statistics}

        for name in adds:
            actions.append({"add": action(name, 0)})
        for name, found in (left_out or {}).items():
            before = len(self.contents[name]) - len(self.live[name])
            actions.append({"remove": action(name, before)})
            self.live[name] = self.live[name] - found
            actions.append({"add": action(name, before + len(found))})
        for name in gone:
            before = len(self.contents[name]) - len(self.live.pop(name))
            actions.append({"remove": action(name, before)})
        self.commits.append(actions)
        self.versions.append(self.sizes())
        self.effects.append(self.effect)
        self.effect = ("deleted", set())

    def append(self) -> None:
        found = {self.n_rows, self.n_rows + 1}
        self.n_rows += 2
        self.commit([self.write(found)], [], True, {"operation": "WRITE"})

    def optimize(self, chosen: list[str]) -> None:
        found = set().union(*(self.live[name] for name in chosen))
        self.commit([self.write(found)], chosen, False, {"operation": "OPTIMIZE"})

    def change(self, chosen: list[str], how: int) -> None:
        """Delete or update one row of each file, by copies or by vectors, named or not."""
        is_update, is_masked, is_named = bool(how & 1), bool(how & 2), bool(how & 4)
        touched = {name: {sorted(self.live[name])[-1]} for name in chosen if self.live[name]}
        rows_of = set().union(*touched.values()) if touched else set()
        self.effect = ("updated" if is_update else "deleted", rows_of)
        name = "UPDATE" if is_update else "DELETE"
        key = "numUpdatedRows" if is_update else "num_deleted_rows"
        info = {"operation": name, "operationMetrics": {key: len(rows_of)}} if is_named else {}
        if is_masked:
            adds = [self.write(rows_of)] if is_update and rows_of else []
            self.commit(adds, [], True, info, touched)
            return
        found = set().union(*(self.live[name] for name in touched))
        kept = found if is_update else found - rows_of
        self.commit([self.write(kept)] if kept else [], list(touched), True, info)


STEPS = st.tuples(st.integers(0, 3), st.integers(0, 100), st.integers(1, 3), st.integers(0, 7))


@settings(max_examples=500)
@given(st.lists(STEPS, max_size=12), st.integers(0, 12))
def test_each_appended_row_is_learned_once_and_no_other(
    steps: list[tuple[int, int, int, int]], cut: int
) -> None:
    table = Account()
    for kind, where, n, how in steps:
        names = list(table.live)
        start = where % len(names) if names else 0
        chosen = names[start : start + n]
        if kind == 0 or not chosen:
            table.append()
        elif kind == 1:
            table.optimize(chosen)
        else:
            table.change(chosen, how)
    files: dict[str, int] = {}  # of the stream
    learned = list(table.old)
    for first, last in ((0, cut), (cut, len(steps))):  # a look in between changes nothing
        known = {**table.versions[min(first, len(steps))], **files}
        changes, before = Changes(known), set(learned)
        for actions in table.commits[first:last]:
            changes.commit(actions)
        for name in ("deleted", "updated"):
            effects = [found for kind, found in table.effects[first:last] if kind == name]
            found, true = getattr(changes.counts, name), sum(len(one & before) for one in effects)
            assert found >= true if name in changes.counts.bounds else found == true
        try:
            fresh = files_to_learn(changes, lambda path: True, "t")
            refuse_masked("t", {file.path: file.n_masked for file in fresh})
        except DataError:
            assert any(how & 2 for kind, _, _, how in steps if kind > 1)
            return
        files |= {file.path: file.rows for file in fresh}
        learned += [row for file in fresh for row in table.contents[file.path]]
        assert len(learned) == len(set(learned))
    live = set().union(*table.live.values()) if table.live else set()
    assert live <= set(learned)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 100), st.integers(1, 3)), max_size=12))
def test_without_files_that_are_not_live_rows_are_learned_once_or_refused(
    steps: list[tuple[int, int, int]],
) -> None:
    table = Account()
    known = {name: len(found) for name, found in table.live.items()}
    for kind, where, n in steps:
        names = list(table.live)
        start = where % len(names)
        if kind == 0:
            table.append()
        else:
            table.optimize(names[start : start + n])
    changes = Changes(known)
    for actions in table.commits:
        changes.commit(actions)
    live = set().union(*table.live.values())
    is_mixed = any(found & table.old and found - table.old for found in table.live.values())
    try:
        files = files_to_learn(changes, table.live.__contains__, "t")
    except DataError:
        assert is_mixed
        return
    learned = [row for file in files for row in table.contents[file.path]]
    assert sorted(learned) == sorted(live - table.old)
    assert not is_mixed or not any(
        found & table.old and found - table.old for found in table.live.values()
    )


def test_a_table_at_two_versions_is_refused(table: Path) -> None:
    both = (
        rf"{table} is named twice, as it is now and at version 0: rows of both would be read twice"
    )
    for read in (make_plan, lambda source: make_plan(source, among=())):
        with pytest.raises(DataError, match=both):
            read([table, f"{table}@v0"])
    assert sorted(ids(make_plan([table, table]))) == list(range(12))
