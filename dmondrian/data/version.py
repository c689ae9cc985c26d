"""Version of a file: its size, and its ETag or modification time.

Promises: two versions of one size are the same if their ETags are equal, or, if one has none, if
their modification times are equal in the coarser of the two precisions: object stores list
milliseconds, but return whole seconds for a single object.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

_SECOND = 1_000_000_000  # nanoseconds
_PRECISIONS = (_SECOND, 1_000_000, 1_000)


@dataclass(frozen=True)
class Version:
    """Version of a file, by which a changed file is recognised."""

    size: int  # bytes
    stamp: str  # ETag, or else the modification time in nanoseconds since 1970
    changed: str = ""  # modification time, if known and the stamp is an ETag

    def is_same(self, size: int, stamp: str, is_local: bool) -> bool:
        """Return whether this version has a recorded size and stamp.

        Parameters
        ----------
        size : int
        stamp : str
            ETag or modification time; plans of earlier versions have times only.
        is_local : bool
            Whether it is a local file, whose times all have the same precision.
        """
        if size != self.size or stamp == self.stamp:
            return size == self.size
        now = self.changed or self.stamp
        return not is_local and stamp.isdigit() and now.isdigit() and _is_near(int(stamp), int(now))


def version_of(file: pa.NativeFile) -> Version | None:
    """Return the version of an open remote object; None if its store has no ETags."""
    headers = {str(key).lower(): value for key, value in (file.metadata() or {}).items()}
    etag = _text(headers.get("etag"))
    if not etag:
        return None
    return Version(file.size(), etag, _nanoseconds(_text(headers.get("last-modified"))))


def _is_near(first: int, second: int) -> bool:
    """Return whether two times are equal in the coarser of their precisions."""
    return abs(first - second) < max(_precision(first), _precision(second))


def _precision(time: int) -> int:
    return next((unit for unit in _PRECISIONS if time % unit == 0), 1)


def _nanoseconds(time: str) -> str:
    try:
        return str(int(datetime.fromisoformat(time).timestamp()) * _SECOND)
    except ValueError:
        return ""


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
