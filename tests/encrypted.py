"""Writes encrypted Parquet, as whoever keeps some columns from some readers does."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

_MASTER_KEYS = {"footer": "0123456789112345", "columns": "1234567890123450"}


class _KeyService(pe.KmsClient):
    """Keeps the master keys in memory."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._keys = config.custom_kms_conf

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(self._keys[master_key_identifier].encode() + key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)[16:]


def write_encrypted(
    path: Path, table: pa.Table, columns: list[str], plain_footer: bool, **options: Any
) -> Path:
    """Write a table with some columns encrypted; others may read those beside a plain footer."""
    config = pe.EncryptionConfiguration(
        footer_key="footer",
        column_keys={"columns": columns},
        plaintext_footer=plain_footer,
        data_key_length_bits=128,
    )
    service = pe.KmsConnectionConfig(custom_kms_conf=_MASTER_KEYS)
    keys = pe.CryptoFactory(_KeyService).file_encryption_properties(service, config)
    with pq.ParquetWriter(path, table.schema, encryption_properties=keys) as writer:
        writer.write_table(table, **options)
    return path
