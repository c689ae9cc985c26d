"""A small run to test with, and where its objects lie in a local folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dmondrian.checkpoint import Manifest, Run

SHARD = {"digest": "0" * 64, "bytes": 1}
ASKED = {"plan": "p" * 64, "parameters": {"seed": 1, "alpha": 0.1}, "shards": [[0, 2], [2, 3]]}
PLAN = b"PAR1 rows PAR1"


def commit(run: Run, position: int, parent: int | None = None, **options: Any) -> Manifest:
    """Commit two shards whose bytes depend on the position only."""
    shards = {}
    for number in (1, 0):
        data = b"%d at %d" % (number, position)
        shards[number] = {"digest": run.put_blob(data), "bytes": len(data)}
    return run.commit(position, shards, {"loss": position / 7}, parent, **options)


def file_of(run: Run, position: int) -> Path:
    return Path(run.url) / "manifests" / f"{position:012d}.json"


def blob_of(run: Run, position: int, shard: int = 1) -> Path:
    return Path(run.url) / "blobs" / run.manifest(position).shards[shard]["digest"]
