"""Notes of files of rows that this package writes: what they were made of, with a digest.

Relies on the metadata of a file's schema, which no checksum of Parquet covers. Promises that a note
that was damaged is an error, and that notes of earlier versions, which had no digest, are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_DIGEST = b"dmondrian.sha256"


def sealed_note(key: bytes, about: Any) -> dict[bytes, bytes]:
    """Return a note, which JSON can hold, as metadata of a schema."""
    note = json.dumps(about).encode()
    return {key: note, _DIGEST: hashlib.sha256(note).hexdigest().encode()}


def read_note(metadata: Mapping[bytes, bytes] | None, key: bytes) -> Any:
    """Return the note of a schema.

    Raises
    ------
    KeyError
        There is none.
    ValueError
        It is damaged.
    """
    note, digest = (metadata or {})[key], (metadata or {}).get(_DIGEST)
    if digest is not None and hashlib.sha256(note).hexdigest().encode() != digest:
        raise ValueError("it does not agree with its own sha256")
    return json.loads(note)
