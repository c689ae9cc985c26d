"""Opening: from an address to a run's store, its position and what its run.json asks for.

``folder@12345`` is the folder ``folder`` at position 12345, unless a folder of that very name
exists. Promises: opening creates nothing; a run is never taken for another one.
"""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dmondrian.checkpoint import document
from dmondrian.errors import CheckpointError, NotFoundError, StoreError
from dmondrian.store import Store, open_store

FORMAT = 1
RUN_NAME = "run.json"
# Says who wrote a run and may differ between the attempts of one run.
VERSIONS_KEY = "created_by"
PACKAGES = ("dmondrian", "numpy", "numba", "pyarrow", "obstore")
POSITION = re.compile(r"(.+)@([0-9]{1,18})", re.DOTALL)


def pick(text: str) -> tuple[Store, int | None]:
    """Open the store of an address, and the position behind its last ``@``."""
    match = POSITION.fullmatch(text)
    if match and not _holds_run(text):
        return _open_existing(match[1]), int(match[2])
    return _open_existing(text), None


def _holds_run(text: str) -> bool:
    """Whether ``name@123`` is meant literally."""
    if "://" not in text:
        return Path(text).expanduser().is_dir()
    try:
        return open_store(text, create=False).exists(RUN_NAME)
    except StoreError:
        # Not an address by itself (s3://bucket@12), or a store whose failure opening will show.
        return False


def _open_existing(text: str) -> Store:
    try:
        return open_store(text, create=False)
    except NotFoundError:
        raise CheckpointError(
            f"There is no folder {text}: expected the folder or URL of a run or of a saved model "
            "(FOLDER@POSITION picks a checkpoint)."
        ) from None


def read_run(store: Store) -> dict[str, Any]:
    """Read and check run.json."""
    try:
        data = store.get(RUN_NAME, document.MAX_BYTES)
    except NotFoundError:
        raise CheckpointError(
            f"{store.url} holds no run: {RUN_NAME} is missing. Expected the folder of a run or of "
            "a saved model."
        ) from None
    advice = "Restore it from a copy, or start again in another folder."
    content = document.unseal(data, f"{RUN_NAME} in {store.url}", advice)
    if content.get("format") != FORMAT:
        raise CheckpointError(
            f"{RUN_NAME} in {store.url} has format {content.get('format')!r}, this version reads "
            f"{FORMAT}: a newer dmondrian wrote it ({content.get(VERSIONS_KEY)}), upgrade."
        )
    return content


def refuse_other(store: Store, there: dict[str, Any], own: dict[str, Any]) -> None:
    """Raise CheckpointError when two run.json ask for different things, and say which."""

    def asked(content: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in content.items() if key != VERSIONS_KEY}

    lines = document.differences(asked(there), asked(own))
    if lines:
        shown = "".join(f"\n  {line[:200]}" for line in lines[:20])
        more = f"\n  and {len(lines) - 20} more" if len(lines) > 20 else ""
        raise CheckpointError(
            f"The folder {store.url} belongs to another job. These entries differ:{shown}{more}\n"
            "Choose another folder, or take the settings back to go on with that run."
        )


def versions() -> dict[str, str]:
    """List the versions of Python and of the packages that decide what is written."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
