"""How kernels are compiled, and which mechanisms that only save time or memory are in use.

Two environment variables choose, read when the package is imported: ``DMONDRIAN_NUMBA_STOCK``
(:func:`is_stock`) and ``DMONDRIAN_WITHOUT`` (:func:`uses`). Neither changes a byte of a forest or
of a prediction.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os

import numba

from dmondrian.errors import ParameterError

# Numba's versions whose private parts our passes were tested with: from the first, below the last.
TESTED = (0, 61), (0, 69)
MECHANISMS = {
    "look_ahead": "the paths of up to 96 rows are walked together, and noted",
    "prefetch": "instructions that ask for cache lines ahead of their use",
    "speculation": "the noted path is followed before the parent links confirm it",
    "simd": "vector instructions written in LLVM's language",
    "reorder": "nodes are moved along heavy paths",
    "int16": "bounds of rounded columns take 16 bits",
    "bits": "bounds of columns of two values take two bits",
    "single_row": "one plain row goes past the conversion of its arguments",
    "flat": "flat copies of trees answer once they pay",
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
    found = frozenset(name for name in names if name)
    if unknown := sorted(found - set(MECHANISMS)):
        raise ParameterError(
            f"DMONDRIAN_WITHOUT names {', '.join(unknown)}: name some of {', '.join(MECHANISMS)}, "
            "separated by commas"
        )
    return found


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


@functools.cache
def is_stock() -> bool:
    """Whether Numba's public interface has to do: it was asked for, or others were not tested.

    ``DMONDRIAN_NUMBA_STOCK`` = 1 asks for it, and 0 for our passes with any version.
    """
    asked = os.environ.get("DMONDRIAN_NUMBA_STOCK", "")
    if asked in ("0", "1"):
        return asked == "1"
    version = tuple(int(part) for part in numba.__version__.split(".")[:2])
    reason = "" if TESTED[0] <= version < TESTED[1] else "was not tested"
    if not reason:
        try:
            importlib.import_module("dmondrian._numba.pipeline")
            importlib.import_module("dmondrian._numba.kernel_cache")
        except (ImportError, AttributeError) as error:  # a build of it that differs
            reason = f"differs from what was tested ({error})"
    if reason:
        logging.getLogger("dmondrian").warning(
            "numba %s %s: kernels are compiled by its public interface alone, with the same "
            "results, but slower", numba.__version__, reason,
        )  # fmt: skip
    return bool(reason)
