"""Bodies of answers: scores as JSON or as an Arrow IPC stream.

Relies on PyArrow. Promises that a float64 is the same after its way through JSON; what JSON has no
number for is null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dmondrian.serving.request_rows import PredictRequest

POSITION = "dmondrian-position"
"""Header, and entry of an Arrow schema's metadata: weight that it had learned."""


def as_lists(columns: Mapping[str, pa.Array]) -> dict[str, list[Any]]:
    """Return columns as values that JSON has."""
    lists = {}
    for name, values in columns.items():
        if not pa.types.is_floating(values.type):
            lists[name] = values.to_pylist()
            continue
        numbers = values.to_numpy()
        lists[name] = numbers.tolist()
        if not np.isfinite(numbers).all():
            lists[name] = [x if np.isfinite(x) else None for x in lists[name]]
    return lists


def json_body(
    request: PredictRequest, columns: Mapping[str, Sequence[Any]], position: int
) -> bytes:
    """Return the answer to a request in JSON, in the form that it came in."""
    answer: dict[str, Any] = {"position": position}
    if request.form == "rows":
        names = list(columns)
        rows = zip(*columns.values(), strict=True)
        answer["rows"] = [dict(zip(names, row, strict=True)) for row in rows]
    else:
        answer["columns"] = columns
    if request.keys is not None:
        answer["keys"] = request.keys
    return json.dumps(answer, allow_nan=False).encode()


def arrow_body(columns: Mapping[str, pa.Array], position: int) -> bytes:
    """Return the answer as an Arrow IPC stream of one batch."""
    table = pa.table(dict(columns)).replace_schema_metadata({POSITION: str(position)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data
