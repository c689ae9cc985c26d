"""Check that a folder can be written, before work whose results are stored there.

Relies on `Store.probe`. Promises that no file and no new folder is left behind.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dmondrian.store.address import parse_address
from dmondrian.store.store import open_store


def check_writable(url: str | os.PathLike[str]) -> None:
    """Write an object below an address, and remove it.

    Parameters
    ----------
    url : str or path
        See `parse_address`. A local folder that is missing is made, and removed again.

    Raises
    ------
    StoreError
        The address is wrong, or what `Store.probe` finds.
    """
    address = parse_address(url)
    made: list[Path] = []
    if address.scheme == "file":
        folder = Path(address.path)
        made = [
            folder_above
            for folder_above in (folder, *folder.parents)
            if not os.path.exists(folder_above)
        ]
    try:
        open_store(url).probe()
    finally:
        for made_folder in made:
            with suppress(OSError):  # never made, or somebody else uses it by now
                made_folder.rmdir()
