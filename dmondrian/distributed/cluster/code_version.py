"""Digest of the code that a process runs: all shards of a forest must be grown by the same code.

Promises that installations with any difference in a source file of `dmondrian` have different
digests; `cli/` is left out, because a forest does not depend on it.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]


@functools.cache
def code_digest() -> str:
    """Return the digest of the sources of this installation, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for file in sorted(_PACKAGE.rglob("*.py")):
        name = file.relative_to(_PACKAGE).as_posix()
        if not name.startswith("cli/"):
            digest.update(f"{name}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
