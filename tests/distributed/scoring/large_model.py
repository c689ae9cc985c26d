"""A run folder with a forest that is large in memory and made in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dmondrian.checkpoint import Run, encode_forest
from dmondrian.data import make_plan
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.forest.forest import Forest


def write_rows(path: Path, n_rows: int, n_features: int, group: int) -> Path:
    """Write random numbers with a target that is the sign of the first column."""
    X = np.random.default_rng(5).standard_normal((n_rows, n_features)).astype(np.float32)
    columns = {f"x{j}": X[:, j] for j in range(n_features)}
    table = pa.table({**columns, "y": np.where(X[:, 0] > 0, "above", "below")})
    pq.write_table(table, path, row_group_size=group)
    return path


def write_model(run: Path, data: Path, n_shards: int, trees: int) -> int:
    """Write a model of equal shards under other tree numbers; return its bytes in memory."""
    plan = make_plan(str(data), target="y")
    d = len(plan.schema.feature_names)
    X = np.random.default_rng(6).random((1500, d), dtype=np.float32)
    y = (X[:, 0] > 0.5).astype(float)
    parameters = ForestParameters("amf-classifier", d, 2, seed=1, split_pure=True)
    forest = Forest(parameters, range(trees))
    forest.update(X, y)
    header, arrays = forest.state()
    ranges = [[n * trees, (n + 1) * trees] for n in range(n_shards)]
    about = {"schema": plan.schema.to_json(), "shards": ranges, "plan": None}
    written = Run.create(run, about)
    shards = {}
    for number, (first, _) in enumerate(ranges):
        named = [{**tree, "number": first + i} for i, tree in enumerate(header["trees"])]
        blob = encode_forest({**header, "trees": named}, arrays)
        shards[number] = {"digest": written.put_blob(blob), "bytes": len(blob)}
    written.commit(len(X), shards, final=True)
    return n_shards * sum(array.nbytes for tree in arrays for array in tree.values())
