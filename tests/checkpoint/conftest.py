"""Fixtures of the checkpoint tests: the stores' S3 server, and small states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmondrian.checkpoint import Run
from tests.checkpoint.run_folders import ASKED, PLAN, commit
from tests.store.conftest import s3_endpoint, s3_url

__all__ = ["s3_endpoint", "s3_url"]


def make_tree(seed: int, n_nodes: int) -> dict[str, np.ndarray[Any, Any]]:
    """A bundle of arrays of every kind that the codec knows; no valid tree."""
    rng = np.random.default_rng(seed)
    return {
        "left": rng.integers(-(2**31), 2**31, n_nodes).astype(np.int32),
        "time": rng.standard_normal(n_nodes),
        "threshold": rng.standard_normal(n_nodes).astype(np.float32),
        "box": rng.standard_normal((n_nodes, 3)).astype(np.float32),
        "counts": rng.integers(0, 9, (n_nodes, 1)).astype(np.float64),
        "links": rng.integers(0, 9, (n_nodes, 2)).astype(np.int32),
    }


@pytest.fixture
def trees() -> list[dict[str, np.ndarray[Any, Any]]]:
    return [make_tree(seed, n_nodes) for seed, n_nodes in enumerate((300, 1, 0, 77))]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run.create(tmp_path / "run", ASKED, PLAN)
    for position, parent in ((10, None), (20, 10), (30, 20)):
        commit(made, position, parent)
    return made
