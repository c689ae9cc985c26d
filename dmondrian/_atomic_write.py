"""Files that a person asked for: written whole or not at all, and never over something else.

Relies on the standard library. Promises that whoever reads the file meanwhile sees the old one or
the new one, and that what is no such file is not replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from dmondrian.errors import ParameterError

NO_HOME = (
    "{}: the home folder that its '~' stands for is not known here; expected '~/' or '~USER/' of a "
    "user of this machine: write the path out in full"
)
"""What to say where `Path.expanduser` gives up."""


def broken_link(path: str | PathLike[str]) -> tuple[str, str] | None:
    """Return the first symbolic link on the way to a path whose target is gone, and the target."""
    whole = Path(path)
    for part in (*reversed(whole.parents), whole):
        if part.is_symlink() and not os.path.exists(part):
            return str(part), os.readlink(part)
    return None


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
    with _naming_errors(file):
        _refuse_other(file, kind, begins)
        _replace(file, data)
    return file


def check_whole(out: str | PathLike[str], kind: str, begins: bytes) -> None:
    """Find out whether `write_whole` could write a file, before the work; leave nothing behind.

    Raises
    ------
    ParameterError
        As `write_whole`.
    """
    file = Path(out)
    with _naming_errors(file):
        _refuse_other(file, kind, begins)
        probe = _beside(file, "probe")
        probe.touch()
        probe.unlink(missing_ok=True)


@contextmanager
def _naming_errors(file: Path) -> Iterator[None]:
    """Raise errors of the system as ones that name the file."""
    try:
        yield
    except OSError as error:
        raise ParameterError(
            f"{file} cannot be written ({error.strerror}): give another file"
        ) from error


def _refuse_other(file: Path, kind: str, begins: bytes) -> None:
    if not file.parent.is_dir():
        raise ParameterError(f"there is no folder {file.parent}: make it, or give another file")
    if file.exists() and not file.is_dir() and not file.is_file():
        raise ParameterError(f"{file} is no regular file, which alone can be replaced as a whole")
    if file.exists() and (file.is_dir() or file.stat().st_size) and not _begins(file, begins):
        raise ParameterError(
            f"{file} is there and is not {kind}: give another file, or remove that one"
        )


def _begins(file: Path, begins: bytes) -> bool:
    with file.open("rb") as there:
        return there.read(len(begins)) == begins


def _replace(file: Path, data: bytes) -> None:
    """Write beside the file, then put it in its place."""
    scratch = _beside(file, "part")
    try:
        scratch.write_bytes(data)
        os.replace(scratch, file.resolve())
    finally:
        scratch.unlink(missing_ok=True)


def _beside(file: Path, ending: str) -> Path:
    whole = file.resolve()  # of a link the file that it leads to
    return whole.with_name(f".{whole.name}.{os.getpid()}.{ending}")
