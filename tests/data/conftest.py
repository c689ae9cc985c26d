"""Fixtures that write small Parquet files, and the data that the project carries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(columns, name="a.parquet", **options of write_table)` -> path of the file."""

    def write_file(
        columns: dict[str, Any] | pa.Table, name: str = "data/a.parquet", **options: Any
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        pq.write_table(table, path, **options)
        return path

    return write_file


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return Path(__file__).parents[2]


@pytest.fixture(scope="session")
def adult(root: Path) -> Path:
    return root / "jobs" / "data" / "adult"


@pytest.fixture(scope="session")
def resources(root: Path) -> Path:
    return root / "tests" / "resources"
