"""The mode of compilation: our own passes, or Numba's public interface alone.

``DMONDRIAN_NUMBA_STOCK`` chooses, read when the package is imported. It changes no byte of a forest
or of a prediction.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os

import numba

# Numba's versions whose private parts our passes were tested with: from the first, below the last.
TESTED = (0, 61), (0, 69)


@functools.cache
def is_stock() -> bool:
    """Whether Numba's public interface has to do: it was asked for, or others were not tested.

    ``DMONDRIAN_NUMBA_STOCK`` = 1 asks for it, and 0 for our passes with any version.
    """
    setting = os.environ.get("DMONDRIAN_NUMBA_STOCK", "")
    if setting in ("0", "1"):
        return setting == "1"
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
