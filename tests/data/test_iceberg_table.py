"""Iceberg tables as data: live files, and rows that were appended since, once each."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmondrian.data import Arrivals, Plan, extend_plan, make_plan, make_scoring_plan, read_block
from dmondrian.data.iceberg_manifests import live_files, plain_uri
from dmondrian.errors import DataError, PlanError, SchemaError

pytest.importorskip("pyiceberg")
from pyiceberg import catalog as catalogs
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import snapshot as updates
from pyiceberg.typedef import Record
from pyiceberg.utils.config import Config

NAME = "iceberg://years/ns.rows"


def rows(first: int, last: int) -> pa.Table:
    ids = np.arange(first, last)
    return pa.table({"id": ids.astype(float), "k": [f"k{i % 3}" for i in ids]})


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rows 0 to 11, in two snapshots."""
    return new_table(tmp_path, monkeypatch)


def new_table(folder: Path, patch: pytest.MonkeyPatch) -> Any:
    prefix = "PYICEBERG_CATALOG__YEARS__"
    patch.setenv(f"{prefix}TYPE", "sql")
    patch.setenv(f"{prefix}URI", f"sqlite:///{folder / 'catalog.db'}")
    patch.setenv(f"{prefix}WAREHOUSE", folder.as_uri())
    patch.setattr(catalogs, "_ENV_CONFIG", Config())  # which reads the environment once
    catalog = catalogs.load_catalog("years")
    catalog.create_namespace("ns")
    made = catalog.create_table("ns.rows", rows(0, 1).schema)
    made.append(rows(0, 6))
    made.append(rows(6, 12))
    return made


def ids(plan: Plan, start: int = 0) -> list[float]:
    found: list[float] = []
    for block in plan.blocks:
        kept = read_block(plan, block, keep=("id",)).keep
        assert kept is not None
        found += kept["id"].to_pylist()
    return found[start:]


def stored(plan: Plan) -> Plan:
    return Plan.from_parquet(plan.to_parquet())


def compact(table: Any, last: int | None = None) -> None:
    """Write the last of the files of a table as one."""
    files = [task.file for task in table.scan().plan_files()]
    files = sorted(files, key=lambda file: file.file_path)[-last if last else None :]
    values = pa.concat_tables(
        [pq.read_table(file.file_path.removeprefix("file://")) for file in files]
    )
    replace_files(table, files, values.sort_by("id"))


def replace_files(table: Any, files: list[Any], values: pa.Table) -> None:
    """Write files again, as engines do that compact: pyiceberg itself does not yet."""
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    with table.transaction() as change:
        made = list(_dataframe_to_data_files(table_metadata=table.metadata, df=values, io=table.io))
        with updates._OverwriteFiles(Operation.OVERWRITE, change, table.io) as update:
            # Its summary cannot be made of replacements; it is noted as one below.
            for file in files:
                update.delete_data_file(file)
            for file in made:
                update.append_data_file(file)
            commit = update._summary
            update._summary = lambda *given: _as_replacement(commit(*given))


def _as_replacement(summary: Any) -> Any:
    return summary.model_copy(update={"operation": Operation.REPLACE})


def test_the_live_files_are_read_and_no_others(table: Any) -> None:
    table.delete("id = 3")
    plan = make_plan(NAME)
    assert sorted(ids(plan)) == [0, 1, 2, *range(4, 12)]
    number = table.current_snapshot().snapshot_id
    assert plan.notes[0] == f"{NAME} is read as an Iceberg table, at snapshot {number}"
    assert ids(make_scoring_plan(NAME, plan.schema)) == ids(plan)
    place = table.metadata_location.removeprefix("file://")
    assert ids(make_plan(place)) == ids(plan)
    first = table.metadata.snapshots[0].snapshot_id
    assert ids(make_plan(f"{NAME}@v{first}")) == ids(make_plan(f"{place}@v{first}"))
    assert ids(make_plan(f"{NAME}@v{first}")) == list(range(6))
    with pytest.raises(DataError, match="has no snapshot 17"):
        make_plan(f"{NAME}@v17")
    with pytest.raises(DataError, match="cannot read"):
        make_plan("iceberg://years/ns.other")
    with pytest.raises(DataError, match=r"expected iceberg://CATALOG/NAMESPACE\.TABLE"):
        make_plan("iceberg://years")
    with pytest.raises(DataError, match="Iceberg"):  # a folder does not say which files count
        make_plan(Path(table.location().removeprefix("file://")))


def test_appended_rows_follow_once_each(table: Any) -> None:
    arrivals = Arrivals(NAME)
    plan, before = stored(make_plan(NAME)), arrivals.look()
    assert not arrivals.look().has_come_since(before)
    table.append(rows(12, 18))
    table.append(rows(18, 20))
    assert arrivals.look().has_come_since(before)
    later = stored(extend_plan(plan, NAME, plan.n_rows))
    assert later.blocks[: len(plan.blocks)] == plan.blocks
    assert ids(later) == list(range(20))
    compact(table)
    table.append(rows(20, 22))
    last = stored(extend_plan(later, NAME, 20))
    assert ids(last, 20) == [20, 21]
    assert extend_plan(last, NAME, 22).digest == last.digest


def test_appended_rows_are_learned_once_although_compacted_with_learned_ones(table: Any) -> None:
    plan = stored(make_plan(NAME))
    table.append(rows(12, 18))
    compact(table)
    assert ids(extend_plan(plan, NAME, 12), 12) == list(range(12, 18))
    appended = make_plan(f"{NAME}@v{table.metadata.snapshots[-2].snapshot_id}").blocks[-1]
    Path(appended.uri).unlink()
    with pytest.raises(DataError, match="cannot be separated"):
        extend_plan(plan, NAME, 12)


def test_rows_that_are_deleted_are_counted(table: Any) -> None:
    plan = stored(make_plan(NAME))
    table.append(rows(12, 15))
    table.delete("id = 3 or id = 8")
    later = extend_plan(plan, NAME, 12)
    assert ids(later, 12) == [12, 13, 14]
    assert any("2 were deleted since" in note for note in later.about_learned)
    assert all(f"the Iceberg table {NAME}" in note for note in later.about_learned)


def counts(plan: Plan) -> tuple[int, int, int, tuple[str, ...]]:
    (state,) = plan.tables
    return state.deleted, state.updated, state.unlearned, state.bounds


def test_rows_deleted_before_they_were_learned_are_at_most_counted(table: Any) -> None:
    first = table.metadata.snapshots[0].snapshot_id
    plan = stored(make_plan(f"{NAME}@v{first}"))
    table.delete("id = 1 or id = 7")  # one learned row, and one that is new
    later = extend_plan(plan, NAME, 6)
    assert ids(later, 6) == list(range(6, 12))
    assert counts(later) == (2, 0, 0, ("deleted",))
    assert "at most 2 were deleted since" in later.about_learned[0]
    assert stored(later).tables == later.tables
    table.append(rows(12, 112))
    table.delete("id = 2 or id = 50 or id = 51")
    assert counts(extend_plan(plan, NAME, 6)) == (5, 0, 0, ("deleted",))
    assert counts(extend_plan(stored(later), NAME, 12)) == (5, 0, 0, ("deleted",))


def operate(table: Any, operation: str) -> None:
    """Write rows 0 to 9 in the place of learned ones, in more than one snapshot of a commit."""
    before = len(table.metadata.snapshots)
    if operation == "overwrite":
        table.overwrite(rows(0, 10))
    elif operation == "upsert":
        changed = rows(4, 10).set_column(1, "k", pa.array(["other"] * 6))
        table.upsert(changed, join_cols=["id"])
    else:
        table.dynamic_partition_overwrite(rows(0, 10))
    assert len(table.metadata.snapshots) > before + 1


@pytest.mark.parametrize("operation", ["overwrite", "upsert", "dynamic"])
def test_rows_in_the_place_of_learned_ones_are_not_learned(table: Any, operation: str) -> None:
    if operation == "dynamic":
        with table.update_spec() as spec:
            spec.add_identity("k")
        table.overwrite(rows(0, 12))
    plan = stored(make_plan(NAME))
    operate(table, operation)
    table.append(rows(20, 22))
    table.delete("id = 20")
    table.append(rows(22, 24))  # a commit of its own
    later = extend_plan(plan, NAME, 12)
    assert sorted(ids(later, 12)) == [21, 22, 23]
    # An upsert writes 12 rows in the place of 12, of which it changed 6.
    found = (0, 12, 0, ("updated",)) if operation == "upsert" else (12, 0, 10, ())
    assert counts(later) == found


def test_snapshots_of_which_the_commit_is_not_known_are_refused(table: Any) -> None:
    plan = stored(make_plan(NAME))
    operate(table, "overwrite")
    table.append(rows(20, 22))
    for entry in table.metadata.metadata_log:
        Path(entry.metadata_file.removeprefix("file://")).unlink()
    with pytest.raises(DataError, match="whether one operation did both"):
        extend_plan(plan, NAME, 12)


def test_partitions_whose_names_have_escapes_are_read(table: Any) -> None:
    with table.update_spec() as spec:
        spec.add_identity("k")
    names = ["a/b", "50%", "a b", "x=1", "a#b?"]
    table.append(pa.table({"id": np.arange(12.0, 17.0), "k": names}))
    plan = stored(make_plan(NAME))
    assert sorted(ids(plan)) == list(range(17))
    table.append(pa.table({"id": [17.0], "k": ["c/d"]}))
    assert ids(extend_plan(plan, NAME, 17), 17) == [17]


def test_another_table_or_past_is_refused(
    table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = table.metadata.snapshots[0].snapshot_id
    plan = stored(make_plan(NAME))
    with pytest.raises(PlanError, match="does not follow snapshot"):
        extend_plan(plan, f"{NAME}@v{first}", 12)
    other = tmp_path / "other"
    other.mkdir()
    new_table(other, monkeypatch)
    with pytest.raises(PlanError, match="is another Iceberg table"):
        extend_plan(plan, NAME, 12)


def test_snapshots_that_are_expired(table: Any) -> None:
    plan = stored(make_plan(NAME))
    for first in (12, 14, 16):
        table.append(rows(first, first + 2))
    between = table.metadata.snapshots[-2].snapshot_id
    table.maintenance.expire_snapshots().by_ids([between]).commit()
    assert ids(extend_plan(plan, NAME, 12), 12) == list(range(12, 18))
    expired = [one.snapshot_id for one in table.metadata.snapshots[:-1]]
    table.maintenance.expire_snapshots().by_ids(expired).commit()
    assert ids(extend_plan(plan, NAME, 12), 12) == list(range(12, 18))
    table.delete("id = 3")
    expired = [one.snapshot_id for one in table.metadata.snapshots[:-1]]
    table.maintenance.expire_snapshots().by_ids(expired).commit()
    with pytest.raises(DataError, match="are expired"):
        extend_plan(plan, NAME, 12)


@pytest.mark.parametrize("change", ["rename", "drop", "again"])
def test_columns_of_other_names_in_files_are_refused(table: Any, change: str) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        if change == "rename":
            update.rename_column("k", "kind")
        else:
            update.delete_column("k")
    if change == "again":
        with table.update_schema() as update:
            update.add_column("k", table.schema().find_field("id").field_type)
    words = r"'k' that was renamed to 'kind'" if change == "rename" else "'k' that was dropped"
    with pytest.raises(DataError, match=words):
        make_plan(NAME)


class DeleteManifestWriter(ManifestWriterV2):
    """Writes delete files, which pyiceberg reads and does not write."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_by_position(table: Any, *places: tuple[int, int], fresh: Any = ()) -> None:
    """Leave rows out by one delete file, as engines do that merge on read.

    Each place is the number of a data file, oldest first, and a position in it; `fresh` are data
    files that are added by the same commit.
    """
    files = [task.file for task in table.scan().plan_files()]
    order = {
        uri: number for number, uri in enumerate(live_files(table, table.current_snapshot()).rows)
    }
    paths = sorted((one.file_path for one in files), key=lambda path: order[plain_uri(path)])
    values = {
        "file_path": [paths[number] for number, _ in places],
        "pos": pa.array([position for _, position in places], pa.int64()),
    }
    add_deletes(table, values, DataFileContent.POSITION_DELETES, fresh)


def add_deletes(
    table: Any, values: dict[str, Any], content: Any, fresh: Any = (), later: Any = None
) -> None:
    """Commit a delete file and data files, and rows by another snapshot of the same commit."""
    folder = table.location().removeprefix("file://")
    place = f"{folder}/data/{uuid.uuid4()}-deletes.parquet"
    ids_of = {"file_path": b"2147483546", "pos": b"2147483545"}
    kinds = {"file_path": pa.string(), "pos": pa.int64(), "id": pa.float64()}
    schema = pa.schema(
        [
            pa.field(name, kinds[name], False, {b"PARQUET:field_id": ids_of.get(name, b"1")})
            for name in values
        ]
    )
    pq.write_table(pa.table(values, schema=schema), place)
    file = DataFile.from_args(
        content=content,
        file_path=f"file://{place}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(next(iter(values.values()))),
        file_size_in_bytes=Path(place).stat().st_size,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
        split_offsets=[],
        spec_id=0,
        equality_ids=[1] if content == DataFileContent.EQUALITY_DELETES else None,
    )
    with table.transaction() as change:
        _commit_deletes(table, change, file, fresh)
        if later is not None:
            change.append(later)


def _commit_deletes(table: Any, change: Any, file: DataFile, fresh: Any) -> None:
    folder = table.location().removeprefix("file://")
    with updates._FastAppendFiles(Operation.OVERWRITE, change, table.io) as update:
        for one in fresh:
            update.append_data_file(one)
        written = update._manifests

        def manifests() -> list[Any]:
            out = table.io.new_output(f"file://{folder}/metadata/{uuid.uuid4()}-m0.avro")
            spec, schema = table.spec(), table.schema()
            with DeleteManifestWriter(spec, schema, out, update.snapshot_id, "deflate") as writer:
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=update.snapshot_id,
                        data_file=file,
                    )
                )
            return [*written(), writer.to_manifest_file()]

        update._manifests = manifests


@pytest.mark.parametrize("text", ["{", '{"format-version": 2}'])
def test_damaged_metadata_are_named(tmp_path: Path, text: str) -> None:
    place = tmp_path / "v1.metadata.json"
    place.write_text(text)
    with pytest.raises(DataError, match=r"v1\.metadata\.json: its metadata are damaged"):
        make_plan(place)


def data_files(table: Any, values: pa.Table) -> list[Any]:
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    return list(_dataframe_to_data_files(table_metadata=table.metadata, df=values, io=table.io))


@pytest.mark.parametrize("is_in_one", [False, True])
def test_files_without_the_column_of_their_partition_are_refused(
    table: Any, is_in_one: bool
) -> None:
    with table.update_spec() as change:  # as of a table of Hive that Spark migrated
        change.add_identity("k")
    table = catalogs.load_catalog("years").load_table("ns.rows")
    table.delete("id >= 0")
    made = data_files(table, rows(0, 6))
    for file in made[is_in_one:]:
        place = Path(file.file_path.removeprefix("file://"))
        pq.write_table(pq.read_table(place).drop_columns(["k"]), place)
    with table.transaction() as all_of_it, all_of_it.update_snapshot().fast_append() as append:
        for file in made:
            append.append_data_file(file)
    assert set(table.scan().to_arrow()["k"].to_pylist()) == {"k0", "k1", "k2"}  # of its partitions
    with pytest.raises(
        SchemaError, match="lacks the column 'k', which its table has as the values"
    ):
        make_plan(NAME)
    plan = make_plan(NAME, exclude=["k"])
    assert sorted(ids(plan)) == [0, 1, 2, 3, 4, 5]


def test_files_with_positional_deletes_are_refused(table: Any) -> None:
    plan = stored(make_plan(NAME))
    delete_by_position(table, (0, 2))
    assert len(table.scan().to_arrow()) == 11  # as pyiceberg reads it
    with pytest.raises(DataError, match=r"left out by delete files \(merge-on-read\)"):
        make_plan(NAME)
    table.append(rows(12, 14))
    later = extend_plan(plan, NAME, 12)  # what was learned stays learned
    assert ids(later, 12) == [12, 13]
    assert any("1 was deleted since" in note for note in later.about_learned)
    delete_by_position(table, (0, 3), (2, 1))  # one file of positions, of two data files
    table.append(rows(14, 16))
    last = extend_plan(stored(later), NAME, 14)
    assert ids(last, 14) == [14, 15]
    assert counts(last) == (3, 0, 0, ())
    with pytest.raises(DataError, match="merge-on-read"):
        extend_plan(plan, NAME, 12)  # which has not learned rows 12 and 13 before
    table.delete("id < 6")  # the first file as a whole, of which 4 rows are left
    assert counts(extend_plan(stored(last), NAME, 16)) == (7, 0, 0, ())


def test_rows_that_are_updated_by_positions_are_not_learned_again(table: Any) -> None:
    plan = stored(make_plan(NAME))
    changed = pa.table({"id": [100.0, 101.0], "k": ["k1", "k2"]})
    delete_by_position(table, (0, 1), fresh=data_files(table, changed))
    table.append(rows(12, 14))
    later = extend_plan(plan, NAME, 12)
    assert ids(later, 12) == [12, 13]
    assert counts(later) == (0, 1, 1, ())  # a merge of one learned row and one new row
    delete_by_position(table, (1, 0), (3, 0), fresh=data_files(table, rows(14, 15)))
    assert counts(extend_plan(stored(later), NAME, 14)) == (1, 2, 1, ())
    with pytest.raises(DataError, match="were updated by the same commit as learned ones"):
        extend_plan(plan, NAME, 12)
    expired = [one.snapshot_id for one in table.metadata.snapshots[:-1]]
    table.append(rows(20, 22))
    table.maintenance.expire_snapshots().by_ids(expired).commit()
    with pytest.raises(DataError, match="are expired, and files were rewritten since, or rows of"):
        extend_plan(stored(later), NAME, 14)


def test_rows_by_another_snapshot_of_the_commit_that_left_rows_out_are_not_learned(
    table: Any,
) -> None:
    plan = stored(make_plan(NAME))
    uri = plan.blocks[0].uri
    values = {"file_path": [f"file://{uri}"], "pos": pa.array([0], pa.int64())}
    add_deletes(table, values, DataFileContent.POSITION_DELETES, later=rows(12, 14))
    table.append(rows(14, 16))
    later = extend_plan(plan, NAME, 12)
    assert ids(later, 12) == [14, 15]
    assert counts(later) == (0, 1, 1, ())


def test_deletes_by_value_are_refused_by_name(table: Any) -> None:
    plan = stored(make_plan(NAME))
    changed = data_files(table, rows(3, 4))
    add_deletes(table, {"id": [3.0]}, DataFileContent.EQUALITY_DELETES, changed)
    with pytest.raises(DataError, match="left out by equality deletes, as an upsert of Flink"):
        make_plan(NAME)
    with pytest.raises(DataError, match="left out by equality deletes, as an upsert of Flink"):
        extend_plan(plan, NAME, 12)


@settings(max_examples=6)
@given(st.lists(st.sampled_from(["append", "compact", "two", "delete", "look"]), max_size=7))
def test_each_appended_row_is_learned_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        table = new_table(tmp_path_factory.mktemp("table"), patch)
        plan, last = stored(make_plan(NAME)), 12
        gone: set[float] = set()
        for step in [*steps, "look"]:
            if step == "append":
                table.append(rows(last, last + 2))
                last += 2
            elif step == "delete" and last - 1 not in gone:
                table.delete(f"id = {last - 1}")
                gone.add(float(last - 1))
            elif step == "look":
                plan = stored(extend_plan(plan, NAME, plan.n_rows))
            elif step != "delete":
                compact(table, None if step == "compact" else 2)
        found = ids(plan)
    assert len(found) == len(set(found))
    assert set(map(float, range(last))) - gone <= set(found) <= set(map(float, range(last)))
