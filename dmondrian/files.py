"""Files that a person asked for: written whole or not at all, and never over something else.

Relies on the standard library. Promises that whoever reads the file meanwhile sees the old one or
the new one, and that what is no such file is not replaced.
"""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path

from dmondrian.errors import ParameterError


def write_whole(out: str | PathLike[str], data: bytes, kind: str, begins: bytes) -> Path:
    """Write a file, or replace one of its kind.

    Parameters
    ----------
    out : str or path
    data : bytes
    kind : str
        What the file is, for messages: "a report".
    begins : bytes
        How files of this kind begin.

    Returns
    -------
    Path
        Of the file.

    Raises
    ------
    ParameterError
        There is no such folder, the file cannot be written, or something else is there.
    """
    file = Path(out)
    if not file.parent.is_dir():
        raise ParameterError(f"there is no folder {file.parent}: make it, or give another file")
    try:
        if file.exists() and file.stat().st_size and not _begins(file, begins):
            raise ParameterError(
                f"{file} is there and is not {kind}: give another file, or remove that one"
            )
        _replace(file, data)
    except OSError as error:
        raise ParameterError(
            f"{file} cannot be written ({error.strerror}): give another file"
        ) from error
    return file


def _begins(file: Path, begins: bytes) -> bool:
    with file.open("rb") as there:
        return there.read(len(begins)) == begins


def _replace(file: Path, data: bytes) -> None:
    """Write beside the file, then put it in its place."""
    whole = file.resolve()  # of a link the file that it leads to
    scratch = whole.with_name(f".{whole.name}.{os.getpid()}.part")
    try:
        scratch.write_bytes(data)
        os.replace(scratch, whole)
    finally:
        scratch.unlink(missing_ok=True)
