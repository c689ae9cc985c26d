"""Single Parquet files behind http:// and https:// links, read in ranges.

Relies on obstore's HTTP client, since pyarrow has no file system for the web. Promises: only the
parts of a file that are needed are fetched (the server must support range requests); a link cannot
be listed, so it is a single file; its stamp is the server's ETag, else the time of the last change.
"""

from __future__ import annotations

import io
from urllib.parse import unquote, urlsplit

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError
from obstore.store import HTTPStore

SCHEMES = ("http", "https")


def is_web(uri: str) -> bool:
    """Whether a uri is a web link."""
    return urlsplit(uri).scheme.lower() in SCHEMES


def open_web(uri: str) -> pa.NativeFile:
    """Open the file behind a link for random reading.

    Raises
    ------
    OSError
        The server refuses or does not answer.
    """
    store, path = _store(uri)
    size_and_stamp = stat_web(uri)
    if size_and_stamp is None:
        raise FileNotFoundError(f"{uri} does not exist")
    return pa.PythonFile(_WebFile(store, path, size_and_stamp[0]), mode="r")


def stat_web(uri: str) -> tuple[int, str] | None:
    """Size in bytes and stamp of the file behind a link, or None when there is none.

    Raises
    ------
    OSError
        The server refuses or does not answer.
    """
    store, path = _store(uri)
    try:
        about = obstore.head(store, path)
    except FileNotFoundError:
        return None
    except BaseError as error:
        raise OSError(str(error).splitlines()[0]) from error
    changed = about["last_modified"]
    return about["size"], about["e_tag"] or str(int(changed.timestamp()))


def _store(uri: str) -> tuple[HTTPStore, str]:
    split = urlsplit(uri)
    if split.query:
        raise OSError("links with a query (?...) cannot be read; download the file first")
    folder, _, name = split.path.rpartition("/")
    plain = split.scheme.lower() == "http"
    base = f"{split.scheme}://{split.netloc}{folder}"
    return HTTPStore.from_url(base, client_options={"allow_http": plain}), unquote(name)


class _WebFile(io.RawIOBase):
    """Read-only binary file with the methods that pyarrow calls."""

    def __init__(self, store: HTTPStore, path: str, size: int) -> None:
        super().__init__()
        self._store = store
        self._path = path
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._size, self._at + size)
        if stop <= self._at:
            return b""
        try:
            data = obstore.get_range(self._store, self._path, start=self._at, end=stop)
        except BaseError as error:
            raise OSError(str(error).splitlines()[0]) from error
        self._at = stop
        return data.to_bytes()
