"""Optional packages: the error with what to install if one is missing.

Relies on the standard library. Promises that a package is looked for, not imported.
"""

from __future__ import annotations

import importlib.util

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
