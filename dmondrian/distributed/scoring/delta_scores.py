"""Finished scores as a Delta table: a log beside the files, which stay as they are.

Relies on `deltalake`, and on files of finished scores, which never change. Promises that the table
has all of them, that the same call again changes nothing, and that a folder whose log names other
files is refused. Of scores that come one folder after the other the log has an entry for each
folder, in the commit with its files: so each is appended once, whenever a process is killed, and
although the table may be compacted or rows of it deleted meanwhile.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow.parquet as pq

from dmondrian._optional import require
from dmondrian.checkpoint import document
from dmondrian.data.delta_table import address_of, options_of
from dmondrian.data.source import open_uri
from dmondrian.distributed.scoring.output_folder import MANIFEST
from dmondrian.errors import CheckpointError, ParameterError, StoreError
from dmondrian.store import open_store

_log = logging.getLogger("dmondrian")

DESCRIPTION = "Scores of the files that came, by dmondrian"
"""Tells a table that `ScoreTable` made from others."""


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


class ScoreTable:
    """A Delta table of the scores in the folders below a place, which is appended to.

    Parameters
    ----------
    url : str
        The place.

    Raises
    ------
    MissingPackageError
        `deltalake` is not installed.
    ParameterError
        There is another Delta table.
    StoreError
        The log cannot be read.
    """

    def __init__(self, url: str) -> None:
        require_deltalake()
        self._url = url
        table = self._opened()
        if table is not None and table.metadata().description != DESCRIPTION:
            raise ParameterError(
                f"score: {url} is a Delta table that other scores or another program wrote; "
                "expected an empty or new folder, or one that the same job made"
            )
        self.is_begun = table is not None

    def append(self, folders: Iterable[str]) -> int:
        """Append the files of finished scores, unless they were; return the number of folders.

        Parameters
        ----------
        folders : iterable of str
            Names of folders below the place, each with a manifest. One whose columns have other
            names or types than those of the table is left out, with a warning.

        Raises
        ------
        CorruptError
            A manifest is damaged.
        StoreError
            The log cannot be written.
        """
        import deltalake
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import (
            AddAction,
            CommitProperties,
            Transaction,
            create_table_with_add_actions,
        )

        table = self._opened()
        schema = None if table is None else table.schema()
        files, entries = [], []
        for name in folders:
            if table is not None and table.transaction_version(name) is not None:
                continue
            parts = self._parts(name)
            with open_uri(f"{self._url}/{name}/{parts[0]['name']}") as file:
                own = deltalake.Schema.from_arrow(pq.read_schema(file).remove_metadata())
            schema = own if schema is None else schema
            if own != schema:
                _log.warning(
                    "the scores in %s/%s are not appended to the Delta table: their columns are %s "
                    "and those of the table %s; score such files into a folder of their own",
                    self._url, name, _columns(own), _columns(schema),
                )  # fmt: skip
                continue
            entries.append(Transaction(name, 1))
            files += [
                AddAction(
                    f"{name}/{part['name']}", part["bytes"], {}, int(time.time() * 1000), True,
                    json.dumps({"numRecords": part["rows"]}),
                )
                for part in parts
            ]  # fmt: skip
        if not entries or schema is None:
            return 0
        commit = CommitProperties(app_transactions=entries)
        try:
            if table is None:
                create_table_with_add_actions(
                    address_of(self._url), schema, files, description=DESCRIPTION,
                    storage_options=options_of(self._url), commit_properties=commit,
                )  # fmt: skip
                self.is_begun = True
            else:
                table.create_write_transaction(files, "append", schema, commit_properties=commit)
        except (DeltaError, OSError) as error:
            raise StoreError(f"the Delta log of {self._url} cannot be written: {error}") from error
        return len(entries)

    def _parts(self, name: str) -> list[dict[str, Any]]:
        """Return the files of finished scores as their manifest has them."""
        where = f"{name}/{MANIFEST}"
        stored = open_store(self._url).get(where, document.MAX_BYTES)
        parts: list[dict[str, Any]] = document.unseal(stored, f"{where} in {self._url}")["files"]
        return parts

    def _opened(self) -> Any:
        """Return the table as it is now; None if there is none."""
        import deltalake
        from deltalake.exceptions import DeltaError

        address, options = address_of(self._url), options_of(self._url)
        try:
            if not deltalake.DeltaTable.is_deltatable(address, options):
                return None
            return deltalake.DeltaTable(address, storage_options=options)
        except (DeltaError, OSError) as error:
            raise StoreError(f"the Delta log of {self._url} cannot be read: {error}") from error


def _columns(schema: Any) -> str:
    return ", ".join(f"{field.name} ({field.type.type})" for field in schema.fields)
