"""Scores as a Delta table, which another library reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian.distributed import TrainedRun, score
from dmondrian.distributed.scoring.delta_scores import ScoreTable, write_delta_log
from dmondrian.distributed.scoring.preflight import check_score_options
from dmondrian.errors import CheckpointError, MissingPackageError, ParameterError, SchemaError
from tests.distributed.conftest import ADULT, PATIENCE, ROWS, table_of
from tests.store.servers import moto_server, set_credentials

deltalake = pytest.importorskip("deltalake")


def log_of(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "_delta_log").glob("*.json")}


def test_the_table_has_the_scores_once(
    undisturbed: TrainedRun, adult: Path, client: Client, tmp_path: Path
) -> None:
    url, out = undisturbed.run_url, tmp_path / "out"
    score(url, adult, tmp_path / "plain", client=client, keep=["sex"])
    score(url, adult, out, client=client, keep=["sex"], delta=True)
    table = deltalake.DeltaTable(str(out))
    read = table.to_pyarrow_table().cast(table_of(tmp_path / "plain").schema)
    assert read.num_rows == ROWS
    assert read.sort_by("distance").equals(table_of(tmp_path / "plain").sort_by("distance"))
    before = log_of(out)
    score(url, adult, out, client=client, keep=["sex"], delta=True)
    assert log_of(out) == before


def test_scores_that_are_there_become_a_table(
    undisturbed: TrainedRun, adult: Path, client: Client, tmp_path: Path
) -> None:
    score(undisturbed.run_url, adult, tmp_path / "out", client=client)
    score(undisturbed.run_url, adult, tmp_path / "out", client=client, delta=True)
    assert deltalake.DeltaTable(str(tmp_path / "out")).to_pyarrow_table().num_rows == ROWS
    deltalake.DeltaTable(str(tmp_path / "out")).delete()
    with pytest.raises(CheckpointError, match=r"the Delta log in .* has 0 files"):
        score(undisturbed.run_url, adult, tmp_path / "out", client=client, delta=True)


def test_the_command_makes_a_table_in_a_store(
    undisturbed: TrainedRun, adult: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    with moto_server() as endpoint:
        set_credentials(monkeypatch, endpoint)
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="scores")
        # A process of its own: deltalake may keep the interpreter locked, which the server needs.
        call = [sys.executable, "-m", "dmondrian.cli", "score", undisturbed.run_url, str(adult)]
        command = [*call, "s3://scores/out", "--workers=1", "--delta"]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
        table = deltalake.DeltaTable("s3://scores/out", storage_options={"allow_http": "true"})
        assert table.to_pyarrow_table().num_rows == ROWS


def test_what_is_missing_is_named_before_anything_is_scored(
    undisturbed: TrainedRun, adult: Path, client: Client, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    out = tmp_path / "out"
    with pytest.raises(ParameterError, match="delta must be True or False, got 'yes'"):
        score(undisturbed.run_url, adult, out, client=client, delta="yes")  # type: ignore[arg-type]  # refused
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(MissingPackageError, match=r"scores as a Delta table.*dmondrian\[lake\]"):
        score(undisturbed.run_url, adult, out, client=client, delta=True)
    with pytest.raises(MissingPackageError, match="scores as a Delta table"):
        check_score_options({"data": adult, "out": out, "delta": True})
    assert not out.exists()


@pytest.mark.parametrize("name", ["a%20b", "a%2Fb", "a[1]", "a^b"])
def test_a_folder_that_deltalake_misreads_is_refused_before_anything_is_scored(
    undisturbed: TrainedRun, adult: Path, client: Client, tmp_path: Path, name: str
) -> None:
    out = tmp_path / name
    with pytest.raises(ParameterError, match=r"deltalake misreads .* in a path"):
        score(undisturbed.run_url, adult, out, client=client, delta=True)
    with pytest.raises(ParameterError, match=r"deltalake misreads .* in a path"):
        check_score_options({"data": adult, "out": out, "delta": True})
    with pytest.raises(ParameterError, match=r"deltalake misreads .* in a path"):
        ScoreTable(str(out))
    assert not list(tmp_path.iterdir())


def test_any_other_folder_with_a_percent_sign_takes_a_table(
    undisturbed: TrainedRun, adult: Path, client: Client, tmp_path: Path
) -> None:
    out = tmp_path / "100% of them"
    score(undisturbed.run_url, adult, out, client=client, delta=True)
    assert deltalake.DeltaTable(str(out)).to_pyarrow_table().num_rows == ROWS


UNKNOWN = {
    "uint8": pa.array([200, 1], pa.uint8()),
    "uint32": pa.array([2**31 + 5, 1], pa.uint32()),
    "uint64": pa.array([2**63, 1], pa.uint64()),
    "nanoseconds": pa.array([1, 2], pa.timestamp("ns")),
    "zone": pa.array([1, 2], pa.timestamp("us", "Europe/Berlin")),
    "time": pa.array([1, 2], pa.time64("us")),
    "duration": pa.array([1, 2], pa.duration("us")),
    "float16": pa.array(np.ones(2, np.float16)),
    "null": pa.nulls(2),
    "digits": pa.array([1, 2], pa.decimal256(50, 4)),
    "list": pa.array([[200], []], pa.list_(pa.uint8())),
    "struct": pa.array([{"a": 1}, None], pa.struct({"a": pa.time32("s")})),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.uint16())),
}
KNOWN = {
    "int8": pa.array([-128, 127], pa.int8()),
    "float32": pa.array([0.5, None], pa.float32()),
    "bool": pa.array([True, None]),
    "date": pa.array([1, 2], pa.date32()),
    "seconds": pa.array([1, 2], pa.timestamp("s")),
    "micros": pa.array([1, 2], pa.timestamp("us")),
    "utc": pa.array([1, 2], pa.timestamp("ms", "UTC")),
    "decimal": pa.array([1, 2], pa.decimal128(38, 4)),
    "binary": pa.array([b"a", None]),
    "fixed": pa.array([b"ab", None], pa.binary(2)),
    "large": pa.array(["a", None], pa.large_string()),
    "view": pa.array(["a", None], pa.string_view()),
    "dictionary": pa.array(["a", None]).dictionary_encode(),
    "list": pa.array([[1], []]),
    "struct": pa.array([{"a": 1}, None]),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
}


def with_columns(path: Path, columns: dict[str, Any]) -> Path:
    """Write two rows to score with other columns."""
    path.mkdir(parents=True)
    rows = pq.read_table(ADULT).slice(0, 2)
    for name, column in columns.items():
        rows = rows.append_column(f"kept {name}", column)
    pq.write_table(rows, path / "rows.parquet")
    return path


def test_a_column_that_delta_has_no_type_for_is_refused_before_anything_is_scored(
    undisturbed: TrainedRun, client: Client, tmp_path: Path
) -> None:
    data, out = with_columns(tmp_path / "in", UNKNOWN), tmp_path / "out"
    for name in UNKNOWN:
        kept = f"kept {name}"
        kind = pq.read_schema(data / "rows.parquet").field(kept).type
        options: dict[str, Any] = {"keep": ["age", kept], "delta": True}
        with pytest.raises(SchemaError) as refused:
            score(undisturbed.run_url, data, out, client=client, **options)
        text = f"it has no type for the column '{kept}' ({kind}). Delta has no unsigned integers"
        assert text in str(refused.value)
        with pytest.raises(SchemaError, match=f"has no type for the column '{kept}'"):
            check_score_options({"data": data, "out": out, **options})
    assert not list(out.rglob("*.parquet"))
    score(undisturbed.run_url, data, out, client=client, keep=["kept uint8"])
    with pytest.raises(SchemaError, match="has no type for the column 'kept uint8'"):
        write_delta_log(str(out), ["part-000000.parquet"])
    assert not (out / "_delta_log").exists()


def test_columns_of_all_other_types_and_of_folders_are_read_from_the_table(
    undisturbed: TrainedRun, client: Client, tmp_path: Path
) -> None:
    with_columns(tmp_path / "in" / "day=2026-01-01", KNOWN)
    out, names = tmp_path / "out", [f"kept {name}" for name in KNOWN]
    options: dict[str, Any] = {"keep": [*names, "day"], "delta": True}
    score(undisturbed.run_url, tmp_path / "in", out, client=client, **options)
    read = deltalake.DeltaTable(str(out)).to_pyarrow_table()
    for name, column in KNOWN.items():
        assert read[f"kept {name}"].to_pylist() == column.to_pylist()
    assert set(map(str, read["day"].to_pylist())) == {"2026-01-01"}
