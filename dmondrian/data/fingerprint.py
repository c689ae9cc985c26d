"""Fingerprints of Parquet files, to recognise copies of a file.

Relies on open files with random access. Promises that a fingerprint is a pure function
of a file's bytes, covers its footer and samples of its data, and costs at most `SAMPLES` + 1
requests besides that for the end of the file. The footer alone is not enough: a table with its rows
in another order often has the same one.
"""

from __future__ import annotations

import hashlib

import pyarrow as pa

MAGIC, ENCRYPTED_MAGIC = b"PAR1", b"PARE"

END_BYTES = 65_536
"""Bytes read first from the end of a file: most footers are shorter."""

WHOLE_BYTES = 196_608
"""Size up to which the rest of a file is read whole; larger ones are sampled."""

SAMPLE_BYTES = 16_384
SAMPLES = 4  # in addition to one at the beginning


def read_end(file: pa.NativeFile) -> bytes:
    """Return the last bytes of an open file: at least `END_BYTES` of them and its whole footer."""
    size = file.size()
    end = bytes(file.read_at(min(size, END_BYTES), max(0, size - END_BYTES)))
    n_bytes = _footer_bytes(end)
    if len(end) < n_bytes <= size:
        end = bytes(file.read_at(n_bytes, size - n_bytes))
    return end


def footer_in(end: bytes) -> bytes:
    """Return the footer with the 8 bytes after it; all given bytes if there is none.

    Parameters
    ----------
    end : bytes
        As `read_end` returns them.
    """
    n_bytes = _footer_bytes(end)
    return end[-n_bytes:] if 0 < n_bytes <= len(end) else end


def fingerprint(file: pa.NativeFile, end: bytes) -> str:
    """Return the fingerprint of an open Parquet file.

    Rows in another order change all pages of all columns that are not constant, so any sample
    distinguishes the files. The places of samples depend on sizes alone, and are pseudo-random so
    that they do not all fall into the same column if row groups have equal sizes.

    Parameters
    ----------
    file : NativeFile
    end : bytes
        Its last bytes, see `read_end`.

    Returns
    -------
    str
        32 hexadecimal digits.
    """
    rest = file.size() - len(end)
    digest = hashlib.sha256(f"{rest}:".encode())
    digest.update(end)
    for start, n_bytes in _samples(rest):
        digest.update(file.read_at(n_bytes, start))
    return digest.hexdigest()[:32]


def _samples(n_bytes: int) -> list[tuple[int, int]]:
    """Return offsets and sizes of the samples of `n_bytes` bytes."""
    if n_bytes <= WHOLE_BYTES:
        return [(0, n_bytes)] if n_bytes else []
    samples = [(0, SAMPLE_BYTES)]
    for i in range(SAMPLES):
        start, stop = i * n_bytes // SAMPLES, (i + 1) * n_bytes // SAMPLES - SAMPLE_BYTES
        number = int.from_bytes(hashlib.sha256(f"{n_bytes}/{i}".encode()).digest()[:8], "little")
        samples.append((start + number % (stop - start), SAMPLE_BYTES))
    return samples


def _footer_bytes(end: bytes) -> int:
    """Return the bytes of the footer and the 8 after it; 0 if the file does not end as Parquet."""
    if end[-4:] not in (MAGIC, ENCRYPTED_MAGIC):
        return 0
    return int.from_bytes(end[-8:-4], "little") + 8
