"""Documents: small JSON objects of a run folder, in one spelling, with a digest of themselves.

Keys are sorted and floats are written so that they read back exactly, so equal content gives equal
bytes. The entry ``sha256`` is the digest of the rest: a flipped bit in a number is found out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from dmondrian.errors import CorruptError

SEAL = "sha256"
EARLIER = "Restore it from a copy, or use an earlier checkpoint (FOLDER@POSITION)."
# A document lists shards and schema columns, not rows: far below this many bytes.
MAX_BYTES = 64 * 2**20
# A schema's deepest entries are four levels down, a curve's five.
MAX_DEPTH = 64
MAX_BITS = 1000


def dump_json(content: Mapping[str, Any]) -> str:
    """Content as compact JSON with sorted keys; numbers of NumPy become Python's."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), default=_plain)


def parse_json(text: str | bytes) -> Any:
    """Read JSON from outside; what this returns is no trouble to walk, write or print.

    Raises
    ------
    ValueError
        It is not JSON, is nested deeper than any document of ours, or has a number that no
        double can hold.
    """
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [content]
    for _ in range(MAX_DEPTH):
        if not level:
            return content
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif type(value) is int and value.bit_length() > MAX_BITS:
                raise ValueError("it has a number that no double can hold")
        level = below
    raise ValueError("it is nested too deeply")


def seal(content: Mapping[str, Any]) -> bytes:
    """Write a document's bytes: readable JSON of `content` and its digest."""
    body = {key: value for key, value in content.items() if key != SEAL}
    body[SEAL] = _digest(body)
    return (json.dumps(body, sort_keys=True, indent=1, default=_plain) + "\n").encode()


def unseal(data: bytes, name: str, advice: str = EARLIER) -> dict[str, Any]:
    """Content of a document, without its digest.

    Raises
    ------
    CorruptError
        `data` is not such a document, or its digest is another.
    """
    try:
        content = parse_json(data)
    except ValueError as error:
        raise CorruptError(
            f"{name} is not JSON of this kind ({len(data)} bytes, {str(error)[:80]}): it is "
            f"truncated or damaged. {advice}"
        ) from None
    seal_there = content.pop(SEAL, None) if isinstance(content, dict) else None
    if seal_there is None or seal_there != _digest(content):
        raise CorruptError(
            f"{name} does not agree with its own sha256 entry: it is damaged or was edited. "
            f"{advice}"
        )
    return dict(content)


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return lines of the entries in which two documents differ, e.g. ``seed: 1 there, 2 here``."""
    a, b = dict(_leaves("", there)), dict(_leaves("", here))
    lines = []
    for key in sorted(a.keys() | b.keys()):
        if a.get(key) != b.get(key):
            lines.append(f"{key}: {a.get(key, 'nothing')} there, {b.get(key, 'nothing')} here")
    return lines


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), below)
        return
    text = json.dumps(value, sort_keys=True, default=_plain)
    yield prefix, text


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(dump_json(content).encode()).hexdigest()


def _plain(value: Any) -> Any:
    # NumPy's scalars and arrays, without importing NumPy for two lines.
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON: pass plain values.")
