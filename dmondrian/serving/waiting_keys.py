"""Rows that wait for their labels by key, and keys whose rows were learned.

Relies on dicts, which keep their order. Promises that memory holds at most so many rows and as many
keys: the oldest are given up, and counted.

Shapes: n rows, d columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dmondrian.errors import CorruptError, DataError, DMondrianError

_SEAL = b"dmondrian sha256"  # behind the stream; earlier versions wrote none
_SEALED = len(_SEAL) + 32


class KeyedError(DMondrianError):
    """Keys that cannot be used as asked; nothing was changed."""


class WaitingKeys:
    """Rows that wait for their labels, by key.

    Parameters
    ----------
    n_columns : int
    most : int
        Largest number of rows that wait, and of keys that are remembered.

    Attributes
    ----------
    given_up : int
        Rows that were older than all that may wait.
    """

    def __init__(self, n_columns: int, most: int) -> None:
        self._n_columns, self._most = n_columns, most
        self._waiting: dict[str, bytes] = {}
        self._learned: dict[str, None] = {}
        self.given_up = 0

    def __len__(self) -> int:
        """Return the number of rows that wait."""
        return len(self._waiting)

    def check_new(self, keys: Sequence[str], rows: np.ndarray) -> None:
        """Refuse keys that other rows have, or whose rows were learned.

        Parameters
        ----------
        keys : n texts
        rows : float32 [n, d]
        """
        learned = [key for key in keys if key in self._learned]
        if learned:
            raise KeyedError(f"rows of the keys {learned[:8]} were learned: take new keys")
        there = [(key, row) for key, row in zip(keys, rows, strict=True) if key in self._waiting]
        taken = [key for key, row in there if row.tobytes() != self._waiting[key]]
        if taken:
            raise KeyedError(f"other rows wait under the keys {taken[:8]}: take new keys")

    def check_fits(self, n: int) -> None:
        """Refuse more rows at once than may wait."""
        if n > self._most:
            raise DataError(
                f"{n} rows came with keys, and at most {self._most} wait: send fewer at once, or "
                "start the server with a larger --waiting"
            )

    def add(self, keys: Sequence[str], rows: np.ndarray) -> None:
        """Keep rows until their labels come."""
        for key, row in zip(keys, rows, strict=True):
            self._waiting.setdefault(key, row.tobytes())
        self._bound()

    def _bound(self) -> None:
        """Give up the oldest rows beyond the bound."""
        while len(self._waiting) > self._most:
            del self._waiting[next(iter(self._waiting))]
            self.given_up += 1
        while len(self._learned) > self._most:
            del self._learned[next(iter(self._learned))]

    def is_learned(self, key: str) -> bool:
        """Whether the row of a key was learned, of late."""
        return key in self._learned

    def rows_of(self, keys: Sequence[str]) -> np.ndarray:
        """Return the rows that wait under keys, float32 [n, d].

        Raises
        ------
        KeyedError
            None waits under one of them.
        """
        unknown = [key for key in keys if key not in self._waiting]
        if unknown:
            raise KeyedError(
                f"no rows wait under the keys {unknown[:8]}{' and more' if unknown[8:] else ''}: "
                "ask for their forecasts first, or send the rows with their labels; nothing was "
                "learned"
            )
        data = b"".join(self._waiting[key] for key in keys)
        return np.frombuffer(data, np.float32).reshape(len(keys), self._n_columns)

    def note_learned(self, keys: Sequence[str]) -> None:
        """Remember that rows of keys were learned."""
        for key in keys:
            self._waiting.pop(key, None)
            self._learned[key] = None
        self._bound()

    def copy(self) -> WaitingKeys:
        """Return the same keys, which stay as they are now."""
        copied = WaitingKeys(self._n_columns, self._most)
        copied._waiting, copied._learned = self._waiting.copy(), self._learned.copy()
        copied.given_up = self.given_up
        return copied

    def to_arrow(self) -> bytes:
        """Return the keys and rows as an Arrow IPC stream, and their digest behind it."""
        rows = [*self._waiting.values(), *([None] * len(self._learned))]
        table = pa.table(
            {
                "key": pa.array([*self._waiting, *self._learned], pa.string()),
                "row": pa.array(rows, pa.binary()),  # of those learned null
            }
        ).replace_schema_metadata({"given_up": str(self.given_up)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data: bytes = sink.getvalue().to_pybytes()
        return data + _SEAL + hashlib.sha256(data).digest()

    @classmethod
    def from_arrow(cls, data: bytes, n_columns: int, most: int) -> WaitingKeys:
        """Return stored keys and rows.

        Raises
        ------
        CorruptError
            The bytes are not such keys.
        """
        keys = cls(n_columns, most)
        data, seal, digest = (
            data.rpartition(_SEAL) if _SEAL in data[-_SEALED:] else (data, b"", b"")
        )
        if seal and hashlib.sha256(data).digest() != digest:
            raise CorruptError("stored keys do not agree with their own sha256")
        try:
            table = pa.ipc.open_stream(data).read_all()
            table.validate(full=True)
            names = table["key"].to_pylist()
            rows = table["row"].to_pylist()
            keys.given_up = int((table.schema.metadata or {})[b"given_up"])
        except (pa.ArrowException, KeyError, ValueError, OSError) as error:
            raise CorruptError(f"stored keys cannot be read: {str(error)[:200]}") from error
        if any(row is not None and len(row) != 4 * n_columns for row in rows):
            raise CorruptError(f"stored rows should have {n_columns} columns")
        pairs = list(zip(names, rows, strict=True))
        keys._waiting = {key: row for key, row in pairs if row is not None}
        keys._learned = {key: None for key, row in pairs if row is None}
        keys._bound()
        return keys
