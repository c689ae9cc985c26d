"""Columns of a file that hold the index of the data frame it was written from.

Relies on the ``pandas`` entry of a file's key-value metadata, which pandas, Dask, GeoPandas and
fastparquet write, and on the names that pyarrow and Dask reserve for an index without one, which
remain if another tool copies the columns without the metadata. Promises that damaged metadata name
no column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

_RESERVED = re.compile(r"__index_level_[0-9]+__|__null_dask_index__")


def index_names(names: Sequence[str], metadata: Mapping[bytes, bytes] | None) -> tuple[str, ...]:
    """Return the names, among those of a file's columns, of its index columns.

    Parameters
    ----------
    names : sequence of str
        All columns.
    metadata : mapping or None
        Of the file's Arrow schema.
    """
    declared = _declared((metadata or {}).get(b"pandas", b"{}"))
    return tuple(name for name in names if name in declared or _RESERVED.fullmatch(name))


def _declared(text: bytes) -> set[str]:
    """Return the index columns listed in the metadata; a range index is an object there."""
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError):
        return set()
    listed = stored.get("index_columns") if isinstance(stored, dict) else None
    return {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else set()
