"""Finished scores as a Delta table: a log beside the files, which stay as they are.

Relies on `deltalake`, and on files of finished scores, which never change. Promises that the table
has all of them, that the same call again changes nothing, and that a folder whose log names other
files is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from dmondrian._optional import require
from dmondrian.data.delta_table import address_of, options_of
from dmondrian.errors import CheckpointError, StoreError


def require_deltalake() -> None:
    """Refuse to begin without the package that writes the log.

    Raises
    ------
    MissingPackageError
        It is not installed.
    """
    require("deltalake", "lake", "writing scores as a Delta table")


def write_delta_log(url: str, names: Sequence[str]) -> None:
    """Make a Delta table of the files of finished scores, unless they are one.

    Parameters
    ----------
    url : str
        Folder of the scores.
    names : sequence of str
        All its files.

    Raises
    ------
    CheckpointError
        There is a log, and it has other files.
    StoreError
        The log cannot be written.
    """
    import deltalake
    from deltalake.exceptions import DeltaError

    address, options = address_of(url), options_of(url)
    try:
        if not deltalake.DeltaTable.is_deltatable(address, options):
            deltalake.convert_to_deltalake(address, mode="ignore", storage_options=options)
        table = deltalake.DeltaTable(address, storage_options=options)
        there = sorted(uri.rsplit("/", 1)[-1] for uri in table.file_uris())
    except (DeltaError, OSError) as error:
        raise StoreError(f"the Delta log of {url} cannot be written: {error}") from error
    if there != sorted(names):
        raise CheckpointError(
            f"the Delta log in {url} has {len(there):,} files, and the scores {len(names):,}: "
            "expected a folder that nothing but these scores was written to; choose another"
        )
