"""Errors for files that cannot be read as Parquet: encrypted, truncated, other formats, forbidden.

Relies on the ends of the file and on pyarrow's error. Promises that encrypted columns are found
without reading their metadata, which crashes pyarrow; and that the advice to write a file again is
given only if its bytes are damaged.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.parquet as pq

from dmondrian.data.fingerprint import ENCRYPTED_MAGIC, MAGIC, read_end
from dmondrian.data.source import is_local, open_uri
from dmondrian.errors import DataError, OutageError
from dmondrian.store.failures import kind_of

_HEAD = 512
_OUT = "or take it out of the source"

# First bytes of other formats, and their names.
_KINDS: tuple[tuple[bytes, str], ...] = (
    (b"ARROW1", "an Arrow IPC (Feather) file"),
    (b"FEA1", "a Feather file"),
    (b"ORC", "an ORC file"),
    (b"Obj\x01", "an Avro file"),
    (b"PK\x03\x04", "a ZIP archive (as .xlsx and .npz are)"),
    (b"\x1f\x8b", "a gzip archive: unpack it"),
    (b"BZh", "a bzip2 archive: unpack it"),
    (b"\xfd7zXZ", "an xz archive: unpack it"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive: unpack it"),
    (b"\x89HDF", "an HDF5 file"),
    (b"SQLite format 3", "an SQLite database"),
    (b"version https://git-lfs", "a pointer of Git LFS: fetch the file with `git lfs pull`"),
    (b"/annex/objects/", "a pointer of git-annex: fetch the file with `git annex get`"),
    (b"<", "a page of HTML or XML, as servers send in place of a file"),
)
_FORBIDDEN = re.compile(r"permission denied|access.?denied|forbidden|\b403\b", re.IGNORECASE)
_UNSUPPORTED = re.compile(r"not built|not (?:yet )?(?:supported|implemented)", re.IGNORECASE)
_ENCRYPTED = re.compile(r"encrypt|decrypt", re.IGNORECASE)
_REQUEST = re.compile(r"AWS Error|curlCode|timed out|connection|error sending", re.IGNORECASE)


def encrypted_columns(parquet: pq.ParquetFile, tail: bytes, uri: str) -> tuple[str, ...]:
    """Return the top-level columns of a file that are encrypted.

    Parameters
    ----------
    parquet : ParquetFile
    tail : bytes
        Its footer, see `dmondrian.data.fingerprint.footer_in`.
    uri : str

    Raises
    ------
    DataError
        The file cannot be read.
    """
    # With encrypted columns a plain footer is signed, which adds 28 bytes.
    if len(tail) - 8 == parquet.metadata.serialized_size:
        return ()
    groups = [i for i in range(parquet.num_row_groups) if parquet.metadata.row_group(i).num_rows]
    names = []
    with pq.ParquetFile(open_uri(uri), metadata=parquet.metadata, buffer_size=8192) as pages:
        for name in dict.fromkeys(parquet.schema_arrow.names) if groups else ():
            try:
                next(pages.iter_batches(batch_size=1, row_groups=groups[:1], columns=[name]), None)
            except (pa.ArrowException, OSError) as error:
                if not _ENCRYPTED.search(str(error)):
                    raise unreadable(uri, error, f"column {name!r}") from error
                names.append(name)
    return tuple(names)


def unreadable(uri: str, error: BaseException, where: str = "") -> DataError | OutageError:
    """Return the error with the reason why a file cannot be read; an `OutageError` of its store.

    Parameters
    ----------
    uri : str
    error : BaseException
        Raised by pyarrow or the system.
    where : str
        The part that was read, such as "row group 3"; "" for opening the file.
    """
    what = f"{uri}, {where}," if where else uri
    reason = first_line(error)
    if isinstance(error, PermissionError) or _FORBIDDEN.search(reason):
        return DataError(f"{what} may not be read by this user ({reason}): allow it, {_OUT}")
    if isinstance(error, FileNotFoundError):
        return DataError(f"{what} is no longer there: put it back, {_OUT}")
    if where and _ENCRYPTED.search(reason):
        return DataError(
            f"{what} is encrypted, and keys cannot be given here ({reason}): put encrypted columns "
            "into `exclude`, or decrypt the file first"
        )
    if isinstance(error, NotImplementedError) or _UNSUPPORTED.search(reason):
        return DataError(
            f"{what} needs what pyarrow {pa.__version__} of this environment cannot read "
            f"({reason}): install a pyarrow that can, or convert the file"
        )
    if getattr(error, "errno", None) or _REQUEST.search(reason):
        return kind_of(error, uri)(f"{what} could not be read ({reason}): try again, {_OUT}")
    if where:
        return DataError(f"{what} cannot be decoded ({reason}): {_advice(uri)}")
    return DataError(f"{uri} cannot be read as Parquet: {_description(uri, reason)}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or its type."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _advice(uri: str) -> str:
    damage = "the file is damaged, write it again"
    return damage if is_local(uri) else f"try again; if it stays so, {damage}"


def _description(uri: str, reason: str) -> str:
    """Return a description of a file's bytes, with advice."""
    try:
        with open_uri(uri) as file:
            size, head, end = file.size(), file.read_at(_HEAD, 0), read_end(file)
    except (pa.ArrowException, OSError) as error:
        return f"{first_line(error)}; try again, {_OUT}"
    begins, ends = (part in (MAGIC, ENCRYPTED_MAGIC) for part in (head[:4], end[-4:]))
    if begins and ends and end[-4:] == ENCRYPTED_MAGIC:
        return (
            "its footer is encrypted, and keys cannot be given here: decrypt the file, or write "
            "it with a plain footer and put encrypted columns into `exclude`"
        )
    if begins and not ends:
        return (
            f"it begins as Parquet and is cut off after {size} bytes: copy it again, or write it "
            f"again, {_OUT}"
        )
    if ends:
        return f"its footer is damaged ({reason}): {_advice(uri)}, {_OUT}"
    kind = next((kind for start, kind in _KINDS if head.lstrip().startswith(start)), None)
    if kind is None:
        kind = "text, such as CSV or JSON" if _is_text(head) else "of another format"
    return f"it is {kind}; expected Parquet: convert it, {_OUT}"


def _is_text(head: bytes) -> bool:
    try:
        head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # otherwise a character is cut at the end
            return False
    return b"\0" not in head
