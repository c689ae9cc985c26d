"""Files of scores that a killed job left: taken where they are as written, else scored again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian.distributed import TrainedRun, score
from dmondrian.distributed.scoring.output_folder import sealed
from dmondrian.errors import CorruptError
from tests.distributed.conftest import ROWS, table_of

pytestmark = pytest.mark.usefixtures("small_files")


def flip(file: Path, at: float) -> None:
    """Change one bit, this far into a file."""
    data = bytearray(file.read_bytes())
    data[int(at * len(data))] ^= 1
    file.write_bytes(data)


def unsealed(file: Path) -> None:
    """Leave the scores and what was asked, as files had them before there were seals."""
    table, notes = pq.read_table(file), pq.read_metadata(file).metadata
    asked = {b"dmondrian.score": notes[b"dmondrian.score"]}
    pq.write_table(table.replace_schema_metadata(asked), file, compression="zstd")


DAMAGES: dict[str, Any] = {
    "cut short": lambda file: file.write_bytes(file.read_bytes()[:-100]),
    "a page": lambda file: flip(file, 0.3),
    "the footer": lambda file: flip(file, 0.98),
    "another file of the job": lambda file: file.write_bytes(
        file.with_name("part-000001.parquet").read_bytes()
    ),
    "no seal": unsealed,
}


@pytest.fixture
def begun(adult: Path, client: Client, undisturbed: TrainedRun, tmp_path: Path) -> Path:
    """Folder of a job that was killed before its end: no manifest."""
    out = tmp_path / "out"
    score(undisturbed.run_url, adult, out, client=client)
    (out / "_manifest.json").unlink()
    (out / "part-000005.parquet").unlink()
    return out


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_not_as_written_is_scored_again(
    adult: Path, client: Client, undisturbed: TrainedRun, begun: Path, damage: str
) -> None:
    before = {file: file.read_bytes() for file in begun.glob("part-*.parquet")}
    file = begun / "part-000002.parquet"
    DAMAGES[damage](file)
    assert file.read_bytes() != before[file]
    with pytest.warns(UserWarning, match=f"^{file.name} in .* is written again$"):
        reported = score(undisturbed.run_url, adult, begun, client=client)
    assert reported["written"] == 2
    assert {file: file.read_bytes() for file in before} == before
    assert table_of(begun).num_rows == ROWS
    assert score(undisturbed.run_url, adult, begun)["written"] == 0


def test_files_that_are_whole_are_not_scored_again(
    adult: Path, client: Client, undisturbed: TrainedRun, begun: Path
) -> None:
    before = {file: file.stat().st_mtime_ns for file in begun.glob("part-*.parquet")}
    assert score(undisturbed.run_url, adult, begun, client=client)["written"] == 1
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_a_file_of_another_job_is_refused(
    adult: Path, client: Client, undisturbed: TrainedRun, begun: Path
) -> None:
    other = begun.with_name("other")
    score(f"{undisturbed.run_url}@1000", adult, other, client=client)
    file = begun / "part-000002.parquet"
    file.write_bytes((other / file.name).read_bytes())
    with pytest.raises(CorruptError, match=f"{file.name} in .* holds other scores.*delete it"):
        score(undisturbed.run_url, adult, begun, client=client)


def test_doubles_that_hardly_come_twice_have_no_dictionary() -> None:
    n = 5000
    draws = np.random.default_rng(0).random(n)
    columns = {
        "a.b": (pa.array(["x", "y"] * (n // 2)), True),
        "share": (pa.array(draws), False),
        "vote": (pa.array(np.floor(10.0 * draws) / 10.0), True),
        "half of them": (pa.array(np.concatenate([draws[:512], draws[:512], draws[1024:]])), True),
        "more": (pa.array(np.concatenate([draws[:513], draws[:511], draws[1024:]])), False),
        "none": (pa.nulls(n, pa.float64()), True),
        "single": (pa.array(draws.astype(np.float32)), True),
        "count": (pa.array(range(n)), True),
    }
    table = pa.table({name: column for name, (column, _) in columns.items()})
    texts = pa.array([["x"], ["y", "x"]] * (n // 2))
    expected = [has_one for _, has_one in columns.values()]
    for own, has_one in (
        (table, expected),
        (table.append_column("texts", texts), [True] * 9),  # which could not be distinguished
        (table.slice(0, 0), [True] * 8),
    ):
        data = pa.BufferReader(sealed(own, "0" * 64, "part-000000.parquet"))
        parts = pq.read_metadata(data).row_group(0)
        found = [parts.column(k).has_dictionary_page for k in range(parts.num_columns)]
        assert found == has_one
        assert pq.read_table(data).equals(own)
