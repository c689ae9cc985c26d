"""Random draws of one row of one tree, with Python integers.

A draw is a pure function of (seed, tree number, weight learned before the row, number of the
draw within the row). Written from the specification of the stream and sharing no code with the
compiled kernel, so that equal trees mean that both read the same specification.
"""

from __future__ import annotations

import struct

MODULUS = 1 << 64
GOLDEN = 0x9E3779B97F4A7C15


def mix64(z: int) -> int:
    """Return the splitmix64 finaliser of a 64-bit integer."""
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 % MODULUS
    z ^= z >> 27
    z = z * 0x94D049BB133111EB % MODULUS
    return z ^ (z >> 31)


def tree_key(seed: int, tree: int) -> int:
    """Return the key of one tree: equal seeds give unrelated trees."""
    seeded = mix64((seed + GOLDEN) % MODULUS)
    return mix64((seeded + (tree + 1) * GOLDEN) % MODULUS)


def row_key(key: int, weight_before: float) -> int:
    """Return the key of the row that arrives after `weight_before` of weight was learned."""
    bits = struct.unpack("<Q", struct.pack("<d", weight_before))[0]
    return mix64(key ^ mix64((bits + GOLDEN) % MODULUS))


class RowDraws:
    """The uniforms on (0, 1) of one row, consumed in order of need along the path."""

    def __init__(self, seed: int, tree: int, weight_before: float) -> None:
        self._key = row_key(tree_key(seed, tree), weight_before)
        self.taken = 0

    @classmethod
    def keyed(cls, key: int, weight_before: float) -> RowDraws:
        """Return the draws of a row of the tree that has this key."""
        draws = cls(0, 0, weight_before)
        draws._key = row_key(key, weight_before)
        return draws

    def uniform(self) -> float:
        """Return the next uniform, strictly inside (0, 1)."""
        self.taken += 1
        bits = mix64((self._key + self.taken * GOLDEN) % MODULUS)
        return ((bits >> 11) + 0.5) * 2.0**-53
