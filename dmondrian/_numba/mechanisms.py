"""Mechanisms that only save time, memory or storage, and which of them are in use.

``DMONDRIAN_WITHOUT`` names those to leave out, for measuring what each is worth; it is read when
the package is imported. None changes a byte of a forest or of a prediction.
"""

from __future__ import annotations

import functools
import os

from dmondrian.errors import ParameterError

MECHANISMS = {
    "look_ahead": "the paths of up to 96 rows are walked together, and noted",
    "prefetch": "instructions that ask for cache lines ahead of their use",
    "speculation": "the noted path is followed before the parent links confirm it",
    "simd": "vector instructions written in LLVM's language",
    "int16": "bounds of rounded columns take 16 bits",
    "bits": "bounds of columns of two values take two bits",
    "huge_pages": "large arrays of nodes lie in pages of 2 MiB",
    "single_row": "one plain row goes past the conversion of its arguments",
    "flat": "flat copies of trees answer once they pay",
    "deltas": "checkpoints of large trees have the nodes alone that have changed",
    "sum_tree": "forecasts of many workers are added on these",
}
_COMPILED = {"look_ahead", "prefetch", "speculation", "simd"}  # these change compiled code


@functools.cache
def left_out() -> frozenset[str]:
    """Return the mechanisms that ``DMONDRIAN_WITHOUT`` names, separated by commas.

    Raises
    ------
    ParameterError
        If one of them is none of :data:`MECHANISMS`.
    """
    names = os.environ.get("DMONDRIAN_WITHOUT", "").replace(" ", "").split(",")
    mechanisms = frozenset(name for name in names if name)
    if unknown := sorted(mechanisms - set(MECHANISMS)):
        raise ParameterError(
            f"DMONDRIAN_WITHOUT names {', '.join(unknown)}: name some of {', '.join(MECHANISMS)}, "
            "separated by commas"
        )
    return mechanisms


def uses(mechanism: str) -> bool:
    """Return whether a mechanism is in use: for measuring what it is worth.

    Parameters
    ----------
    mechanism : str
        A key of :data:`MECHANISMS`.
    """
    if mechanism not in MECHANISMS:
        raise KeyError(mechanism)
    return mechanism not in left_out()


def left_out_of_code() -> list[str]:
    """Return those left out that compiled code depends on, sorted."""
    return sorted(left_out() & _COMPILED)
