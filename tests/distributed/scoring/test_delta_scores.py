"""Scores as a Delta table, which another library reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from distributed import Client

from dmondrian.distributed import TrainedRun, score
from dmondrian.distributed.scoring.preflight import check_score_options
from dmondrian.errors import CheckpointError, MissingPackageError, ParameterError
from tests.distributed.conftest import PATIENCE, ROWS, table_of
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
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="scores")
        # A process of its own: deltalake may keep the interpreter locked, which the server needs.
        call = [sys.executable, "-m", "dmondrian.cli", "score", undisturbed.run_url, str(adult)]
        command = [*call, "s3://scores/out", "--workers=1", "--delta"]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
        assert deltalake.DeltaTable("s3://scores/out").to_pyarrow_table().num_rows == ROWS


def test_what_is_missing_is_said_before_anything_is_scored(
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
