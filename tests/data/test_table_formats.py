"""Folders kept by a table format are refused, but for Delta tables that are named themselves."""

from __future__ import annotations

import base64
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from dmondrian.data import extend_plan, list_source, make_plan, make_scoring_plan, read_block
from dmondrian.errors import DataError
from tests.store.servers import moto_server, set_credentials

from .conftest import Write

CITIES = ["New York", "a/b", "ü=1", "100%"]


def delta_table(uri: str) -> None:
    """Write a partitioned table, replace its rows with id 2 and delete those with id 3."""
    rows = [{"id": i, "x": float(i), "city": city} for i in range(4) for city in CITIES]
    table = pa.Table.from_pylist(rows)
    options = {"aws_conditional_put": "etag", "aws_allow_http": "true"}
    write_deltalake(uri, table, partition_by=["city"], storage_options=options)
    live = DeltaTable(uri, storage_options=options)
    live.update(updates={"x": "x + 10"}, predicate="id = 2")
    live.delete("id = 3")


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake") / "a table"
    delta_table(str(folder))
    return folder


def rows_of(source: Any) -> list[tuple[float, float]]:
    plan = make_plan(source, exclude=["city"])
    found = [read_block(plan, block, keep=("id", "x")).keep for block in plan.blocks]
    read = pa.concat_tables([table for table in found if table is not None])
    return sorted(zip(read["id"].to_pylist(), read["x"].to_pylist(), strict=True))


LIVE = sorted((i, float(i) + 10.0 * (i == 2)) for i in range(3) for _ in CITIES)


@pytest.mark.parametrize(
    "below",
    ["city=New%2520York", "*", "*/*.parquet", "**/*.parquet", "city=*", "_delta_log", "../",
     "../*", "../**/*.parquet"],
)  # fmt: skip
def test_delta_table_is_refused_wherever_one_points(delta: Path, below: str) -> None:
    with pytest.raises(DataError, match=r"a table is a Delta table.*the table itself"):
        list_source(f"{delta}/{unquote(below)}")
    with pytest.raises(DataError, match="is a Delta table"):
        list_source([next(delta.glob("*/*.parquet")), f"{delta.as_uri()}/{below}"])


def test_every_way_to_read_data_takes_a_table(delta: Path) -> None:
    plan = make_plan(delta, exclude=["city"])
    assert rows_of(delta) == LIVE
    assert len(list_source(delta)[0]) < len(list(delta.glob("*/*.parquet")))
    assert make_scoring_plan(delta, plan.schema).n_rows == plan.n_rows
    assert extend_plan(plan, delta).digest == plan.digest
    cities = {dict(file.partition)["city"] for file in list_source(delta)[0]}
    assert cities == set(CITIES)


def test_link_to_a_partition_of_a_table_is_refused(delta: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/part").symlink_to(delta / "city=New%20York")
    for source in ("in", "in/part", "in/p*", "in/part/*.parquet"):
        with pytest.raises(DataError, match="is a Delta table"):
            list_source(tmp_path / source)


def inline_vector(row: int) -> str:
    """Return a deletion vector of one row as a Delta log holds it: roaring bits in base 85."""
    bits = struct.pack("<IQI", 1681511377, 1, 0)  # magic, bitmaps, high half of the numbers
    bits += struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, row)  # one container of one number
    ours = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    delta = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    padded = bits + b"\0" * (-len(bits) % 4)
    return base64.b85encode(padded).decode().translate(str.maketrans(ours, delta))


def test_a_table_with_deletion_vectors_is_refused(write: Write) -> None:
    file = write({"x": [1, 2, 3]}, "vectors/a.parquet")
    described = {"type": "struct", "fields": [
        {"name": "x", "type": "long", "nullable": True, "metadata": {}}]}  # fmt: skip
    lines: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7,
                      "readerFeatures": ["deletionVectors"],
                      "writerFeatures": ["deletionVectors"]}},
        {"metaData": {"id": "a", "format": {"provider": "parquet", "options": {}},
                      "schemaString": json.dumps(described), "partitionColumns": [],
                      "configuration": {}, "createdTime": 1}},
        {"add": {"path": file.name, "partitionValues": {}, "size": file.stat().st_size,
                 "modificationTime": 1, "dataChange": True, "stats": '{"numRecords": 3}',
                 "deletionVector": {"storageType": "i", "pathOrInlineDv": inline_vector(1),
                                    "sizeInBytes": 34, "cardinality": 1}}},
    ]  # fmt: skip
    (file.parent / "_delta_log").mkdir()
    log = file.parent / "_delta_log" / f"{0:020}.json"
    log.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(DataError, match=r"rows of a\.parquet are deleted by a deletion vector"):
        list_source(file.parent)
    lines[-1]["add"].pop("deletionVector")
    log.write_text("\n".join(map(json.dumps, lines)))
    plan = make_plan(file.parent)
    assert plan.n_rows == 3
    described_by = {**lines[-1]["add"], "deletionVector": {
        "storageType": "i", "pathOrInlineDv": inline_vector(1), "sizeInBytes": 34,
        "cardinality": 1}}  # fmt: skip
    remove = {"path": file.name, "dataChange": True, "partitionValues": {}}
    later = log.with_name(f"{1:020}.json")
    later.write_text("\n".join(map(json.dumps, [{"remove": remove}, {"add": described_by}])))
    same = extend_plan(plan, file.parent, 3)
    assert same.digest == plan.digest
    assert same.tables[0].deleted == 1
    fresh = {**described_by, "path": write({"x": [4, 5]}, "vectors/b.parquet").name}
    log.with_name(f"{2:020}.json").write_text(json.dumps({"add": fresh}))
    with pytest.raises(DataError, match=r"rows of b\.parquet are deleted by a deletion vector"):
        extend_plan(plan, file.parent, 3)


FORMATS = {
    "a Hudi table": (".hoodie/hoodie.properties", "p/a.parquet"),
    "a Hudi table ": ("p/.hoodie_partition_metadata", "p/a.parquet"),
    "the output of a Spark stream": ("_spark_metadata/0", "p/a.parquet"),
    "an Iceberg table": (
        "metadata/00000-0a1b2c3d-0000-4000-8000-000000000000.metadata.json", "data/a.parquet",
    ),
    "an Iceberg table ": ("metadata/v1.gz.metadata.json", "data/k=1/a.parquet"),
    "an Iceberg table  ": ("metadata/version-hint.text", "data/a.parquet"),
    "a Paimon table": ("schema/schema-0", "bucket-0/data-0.parquet"),
    "a DuckLake table": (
        "README", "ducklake-0197a1b2-0000-7000-8000-000000000000.parquet",
    ),
    "a transactional Hive table": ("README", "k=1/delta_0000001_0000001_0000/000000_0"),
    "a transactional Hive table ": ("README", "base_0000002/000000_0"),
    "a transactional Hive table  ": ("README", "k=1/base_0000002_v0000012/bucket_00001"),
    "a transactional Hive table   ": ("base_0000002/_orc_acid_version", "base_0000002/a.parquet"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_other_formats_are_known_by_their_names_of_files(
    write: Write, tmp_path: Path, name: str
) -> None:
    marker, data = FORMATS[name]
    file = write({"x": [1]}, f"lake/table/{data}")
    (tmp_path / "lake/table" / marker).parent.mkdir(exist_ok=True)
    (tmp_path / "lake/table" / marker).write_text("{}")
    sources = [tmp_path / "lake/table", tmp_path / "lake", file.parent, f"{file.parent}/*"]
    for source in [*sources, tmp_path / "lake/t*"]:
        with pytest.raises(DataError, match=f"is {name.strip()}"):
            list_source(source)
    assert len(list_source(file)[0]) == 1


def test_the_refusal_of_a_folder_of_iceberg_names_addresses_that_are_read(
    write: Write, tmp_path: Path
) -> None:
    write({"x": [1]}, "table/data/a.parquet")
    (tmp_path / "table/metadata").mkdir()
    (tmp_path / "table/metadata/v1.metadata.json").write_text("{}")
    with pytest.raises(DataError, match=r"Expected iceberg://CATALOG/NAMESPACE\.TABLE, or its"):
        list_source(tmp_path / "table")


def test_table_without_parquet_is_named_too(tmp_path: Path) -> None:
    for name in ("data/0.lance", "_versions/1.manifest"):
        (tmp_path / "t.lance" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "t.lance" / name).write_text("")
    with pytest.raises(DataError, match="is a Lance table"):
        list_source(tmp_path / "t.lance")


def test_writes_of_databricks_that_did_not_end_are_refused(write: Write, tmp_path: Path) -> None:
    def wrote(number: int, part: int) -> str:
        name = f"part-0000{part}-tid-{number}-0a1b2c3d-{part}-1-c000.snappy.parquet"
        write({"x": [1]}, f"rows/k=1/{name}")
        return name

    folder = tmp_path / "rows/k=1"
    first, second = wrote(111, 0), wrote(111, 1)
    note = folder / "_committed_111"
    note.write_text(json.dumps({"added": [first, second], "removed": []}))
    (folder / "_started_111").write_text("")
    (folder / "_SUCCESS").write_text("")
    sources = [tmp_path / "rows", folder, f"{folder}/*.parquet", tmp_path / "rows/k*"]
    for source in sources:
        assert len(list_source(source)[0]) == 2
    third = wrote(222, 0)
    (folder / "_started_222").write_text("")
    for source in sources:
        with pytest.raises(DataError, match=rf"{third} is of a write of Databricks that has not"):
            list_source(source)
    (folder / "_committed_222").write_text(json.dumps({"added": [third], "removed": [first]}))
    for source in sources:
        with pytest.raises(DataError, match=rf"{first} was removed by a later write"):
            list_source(source)
    assert len(list_source([folder / second, folder / third])[0]) == 2
    (folder / first).unlink()
    assert len(list_source(tmp_path / "rows")[0]) == 2
    note.write_text("{")
    with pytest.raises(DataError, match="_committed_111 should list"):
        list_source(folder)


@pytest.mark.parametrize("name", ["base_0000001", "delta_0000001_0000002", "base_0000001/k=1"])
def test_folders_named_as_those_of_hive_are_read(write: Write, tmp_path: Path, name: str) -> None:
    file = write({"x": [1]}, f"rows/{name}/part-0.parquet")
    write({"x": [1]}, f"rows/{name}/000000_1.parquet")
    for source in (tmp_path / "rows", file.parent, f"{file.parent}/*.parquet"):
        assert len(list_source(source)[0]) == 2
    other = write({"x": [1]}, f"rows/{name}/deep/bucket_00000")
    assert len(list_source(other.parent)[0]) == 1


def test_plain_folders_with_similar_names_are_read(write: Write, tmp_path: Path) -> None:
    for name in (
        "metadata/about.json", "metadata/1_census.metadata.json", "metadata/2024-01.metadata.json",
        "metadata/00001.metadata.json", "schema/a.txt", "schema-0/x.csv", "delta/x.json",
    ):  # fmt: skip
        (tmp_path / "rows" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "rows" / name).write_text("{}")
    for name in ("a.parquet", "metadata/b.parquet", "base_2024/c.parquet", "schema/d.parquet"):
        write({"x": [1]}, f"rows/{name}")
    assert len(list_source(tmp_path / "rows")[0]) == 4
    write({"x": [1]}, "rows/other/e.parquet")
    delta_table(str(tmp_path / "beside"))
    assert len(list_source(tmp_path / "rows/*/*.parquet")[0]) == 4


@pytest.fixture(scope="module")
def table() -> Iterator[str]:
    """A table on an S3 server, for which the environment has credentials."""
    import boto3

    with moto_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        set_credentials(patch, endpoint)
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="lake")
        delta_table("s3://lake/deep/a table")
        yield "s3://lake/deep/a table"


def objects() -> list[Any]:
    import boto3

    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    return list(client.list_objects_v2(Bucket="lake")["Contents"])


class TestObjectStore:
    @pytest.mark.parametrize(
        "url",
        ["s3://lake", "s3://lake/deep", "s3://lake/deep/*", "{}/city=New%2520York",
         "{}/*/*.parquet", "{}/city=New%2520York/*.parquet"],
    )  # fmt: skip
    def test_delta_table_is_refused_wherever_one_points(self, table: str, url: str) -> None:
        with pytest.raises(DataError, match=r"s3://lake/deep/a%20table is a Delta table"):
            list_source(url.format(table))

    def test_live_files_are_read(self, table: str) -> None:
        assert rows_of(table) == LIVE

    def test_keys_of_objects_are_found_as_they_are(self, table: str) -> None:
        keys = sorted(entry["Key"] for entry in objects() if "New%20York" in entry["Key"])
        assert keys
        for key in keys:
            assert list_source(f"s3://lake/{key}") == list_source(f"s3://lake/{quote(key)}")


def test_pages_of_the_table_are_not_opened(delta: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(pq, "ParquetFile", lambda *given, **_: opened.append(given))
    with pytest.raises(DataError, match="is a Delta table"):
        make_plan(delta.parent)
    assert opened == []
