"""One bit of a Parquet file's values, flipped: what nothing but a checksum shows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq


def flip_value(data: bytes, column: int = 0) -> bytes:
    """Return a file with another value in the last page of a column of its first row group."""
    chunk = pq.read_metadata(pa.BufferReader(data)).row_group(0).column(column)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    flipped = bytearray(data)
    flipped[begin + chunk.total_compressed_size - 1] ^= 1
    return bytes(flipped)


def carries_checksums(data: bytes) -> bool:
    """Whether readers that compare checksums refuse each column where it is damaged."""
    for column in range(pq.read_metadata(pa.BufferReader(data)).num_columns):
        bad = pa.BufferReader(flip_value(data, column))
        try:
            pq.ParquetFile(bad, page_checksum_verification=True).read()
        except OSError as error:
            if "CRC checksum" in str(error):
                continue
        return False
    return True
