"""Imports that not every user needs: packages that may be missing, and modules loaded on first use.

Relies on the standard library. Promises that an optional package is looked for, not imported.
"""

from __future__ import annotations

import gc
import importlib.util
from importlib import import_module
from typing import Any

from dmondrian.errors import MissingPackageError


def require(package: str, extra: str, purpose: str) -> None:
    """Raise unless an optional package can be imported.

    Parameters
    ----------
    package : str
        Its name in imports.
    extra : str
        The extra of this package that installs it.
    purpose : str
        What it is needed for.

    Raises
    ------
    MissingPackageError
        It is not installed; the message names the extra.
    """
    if importlib.util.find_spec(package) is None:
        raise MissingPackageError(
            f"{purpose} needs the package {package}, which is not installed: install dmondrian "
            f'with its extra "{extra}" (pip install "dmondrian[{extra}]")'
        )


def load(module: str, name: str) -> Any:
    """Return an object of a module, which is imported for it.

    What is loaded stays: looking for garbage in it would only take time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return getattr(import_module(module), name)
    finally:
        if collects:
            gc.enable()
