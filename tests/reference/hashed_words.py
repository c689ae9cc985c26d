"""Hashed words of a text, in plain Python: MurmurHash3 (x86, 32 bits, seed 0) of UTF-8 bytes."""

from __future__ import annotations

import re

_WORD = re.compile(r"(?u)\b\w\w+\b")
_MASK = 0xFFFFFFFF


def _rotated(x: int, by: int) -> int:
    return ((x << by) | (x >> (32 - by))) & _MASK


def _mixed(block: int) -> int:
    return (_rotated((block * 0xCC9E2D51) & _MASK, 15) * 0x1B873593) & _MASK


def murmur3(data: bytes) -> int:
    """Return the hash, in [0, 2^32)."""
    whole = len(data) - len(data) % 4
    h = 0
    for at in range(0, whole, 4):
        h ^= _mixed(int.from_bytes(data[at : at + 4], "little"))
        h = (_rotated(h, 13) * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        h ^= _mixed(int.from_bytes(data[whole:], "little"))
    h ^= len(data)
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    return h ^ (h >> 16)


def features_of(text: str, n_features: int, longest: int) -> set[int]:
    """Return the features of a text: absolute values of signed hashes, modulo their number."""
    words = _WORD.findall(text.lower())
    runs = [
        " ".join(words[at : at + length])
        for length in range(1, longest + 1)
        for at in range(len(words) - length + 1)
    ]
    hashes = [murmur3(run.encode()) for run in runs]
    return {abs(h - 2**32 if h >= 2**31 else h) % n_features for h in hashes}
