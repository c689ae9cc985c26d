"""Which state of a file it is: its size, and its ETag or the time of its last change.

Promises: two states of one size are the same where their ETags are equal, or, where one of them has
none, where their times of change are equal in the coarser of the two precisions: object stores list
milliseconds and answer a look at one object in whole seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

_SECOND = 1_000_000_000  # nanoseconds
_PRECISIONS = (_SECOND, 1_000_000, 1_000)


@dataclass(frozen=True)
class Version:
    """State of a file."""

    size: int  # bytes
    stamp: str  # ETag, or else the time of change in nanoseconds since 1970
    changed: str = ""  # that time, if it is known and the stamp is an ETag

    def is_same(self, size: int, stamp: str, is_local: bool) -> bool:
        """Whether this is the state of which a size and a stamp were noted.

        Parameters
        ----------
        size : int
        stamp : str
            ETag or time of change; plans of earlier versions have times alone.
        is_local : bool
            A file of this machine, whose times of change are all of one precision.
        """
        if size != self.size or stamp == self.stamp:
            return size == self.size
        now = self.changed or self.stamp
        return not is_local and stamp.isdigit() and now.isdigit() and _is_near(int(stamp), int(now))


def version_of(file: pa.NativeFile) -> Version | None:
    """Return the state of an open remote object, or None where its store has no ETags."""
    headers = {str(key).lower(): value for key, value in (file.metadata() or {}).items()}
    etag = _text(headers.get("etag"))
    if not etag:
        return None
    return Version(file.size(), etag, _nanoseconds(_text(headers.get("last-modified"))))


def _is_near(first: int, second: int) -> bool:
    """Whether two times are equal in the coarser of their precisions."""
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
