"""Opening: from an address to a run's store, its position and what its run.json asks for.

``folder@12345`` is the folder ``folder`` at position 12345, ``folder@best`` at the checkpoint of
the least held-out loss, unless a folder of that very name exists. Promises: opening creates
nothing; a run is never taken for another one.
"""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dmondrian._atomic_write import broken_link
from dmondrian.checkpoint import document
from dmondrian.checkpoint.held_out import BEST, best_position
from dmondrian.errors import CheckpointError, CorruptError, NotFoundError, StoreError
from dmondrian.store import Store, open_store

FORMAT = 1
CONDENSED_FORMAT = 2
"""Of a run whose links of plans were condensed: versions that cannot read these refuse it."""

DELTA_FORMAT = 3
"""Of a run with checkpoints that are differences; its links may be condensed too."""

RUN_NAME = "run.json"
# Versions of the packages that wrote a run; they may differ between the attempts of one run.
VERSIONS_KEY = "created_by"
PACKAGES = ("dmondrian", "numpy", "numba", "pyarrow", "obstore")
ADVICE = "Restore it from a copy, or start again in another folder."
_TEXT, _LIST, _OBJECT = (str, type(None)), (list, type(None)), (dict, type(None))
# Types of the entries, where they are there: a model saved by hand lacks some.
ENTRIES: dict[str, tuple[type, ...]] = {
    "algorithm": (str,),
    "parameters": (dict,),
    "estimator": (dict,),
    "n_estimators": (int,),
    "shards": (list,),
    "target": _TEXT,
    "classes": _LIST,
    "label_dtype": _TEXT,
    "feature_names": _LIST,
    "categories": _LIST,
    "time_units": _LIST,
    "schema": _OBJECT,
    "plan": _TEXT,
    "progressive": (bool,),
    "takes_encoded_rows": (bool,),
    "beside": _LIST,
    "row_parts": _LIST,
    "row_ranges": _LIST,
}
POSITION = re.compile(rf"(.+)@([0-9]{{1,18}}|{BEST})", re.DOTALL)


def pick(text: str) -> tuple[Store, int | None]:
    """Open the store of an address, and the position behind its last ``@``."""
    match = POSITION.fullmatch(text)
    if match and not _holds_run(text):
        store = _open_existing(match[1])
        return store, best_position(store) if match[2] == BEST else int(match[2])
    return _open_existing(text), None


def _holds_run(text: str) -> bool:
    """Whether ``name@123`` is meant literally."""
    if "://" not in text:
        return os.path.isdir(os.path.expanduser(text))  # which leaves a home there is not as it is
    try:
        return open_store(text, create=False).exists(RUN_NAME)
    except StoreError:
        # Not an address by itself (s3://bucket@12), or a store whose failure opening will show.
        return False


def _open_existing(text: str) -> Store:
    try:
        return open_store(text, create=False)
    except NotFoundError:
        lost = None if "://" in text else broken_link(os.path.expanduser(text))
        link = "" if lost is None else f" ({lost[0]} is a link to {lost[1]}, which is not there)"
        raise CheckpointError(
            f"There is no folder {text}{link}: expected the folder or URL of a run or of a saved "
            "model (FOLDER@POSITION or FOLDER@best picks a checkpoint)."
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
    name = f"{RUN_NAME} in {store.url}"
    content = document.unseal(data, name, ADVICE)
    form = content.get("format")
    if type(form) is not int or form not in (FORMAT, CONDENSED_FORMAT, DELTA_FORMAT):
        format_there = str(form)[:80]
        writer = str(content.get(VERSIONS_KEY))[:400]
        raise CheckpointError(
            f"{name} has format {format_there!r}, this version reads {FORMAT} to "
            f"{DELTA_FORMAT}: a newer dmondrian wrote it ({writer}), upgrade."
        )
    _check_entries(content, name)
    return content


def mark_condensed(store: Store) -> None:
    """Give run.json the format of a run whose links of plans are condensed, or a later one."""
    _mark(store, CONDENSED_FORMAT)


def mark_deltas(store: Store) -> None:
    """Give run.json the format of a run with checkpoints that are differences, or a later one."""
    _mark(store, DELTA_FORMAT)


def _mark(store: Store, least: int) -> None:
    content = read_run(store)
    if content["format"] < least:
        store.put(RUN_NAME, document.seal({**content, "format": least}))


def _check_entries(content: dict[str, Any], name: str) -> None:
    """Raise CorruptError where an entry that is there is not of the type that readers rely on."""
    for key, kinds in ENTRIES.items():
        value = content.get(key)
        if key in content and type(value) not in kinds:
            value_there = f"{type(value).__name__} {str(value)[:80]!r}"
            raise CorruptError(f"{name}: {key} is a {value_there}. {ADVICE}")
    shards, at = content.get("shards"), 0
    for shard in shards or []:
        is_pair = isinstance(shard, list) and [type(end) for end in shard] == [int, int]
        if not is_pair or not at <= shard[0] < shard[1] < 2**62:
            raise CorruptError(
                f"{name}: shards should be ranges of tree numbers, in order, not "
                f"{str(shard)[:80]!r}. {ADVICE}"
            )
        at = shard[1]
    names = content.get("feature_names") or []
    if not all(isinstance(feature, str) for feature in names):
        raise CorruptError(f"{name}: feature_names should be texts. {ADVICE}")


def refuse_other(store: Store, there: dict[str, Any], here: dict[str, Any]) -> None:
    """Raise CheckpointError when two run.json ask for different things, and name them."""

    def settings_of(content: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in content.items() if key not in (VERSIONS_KEY, "format")}

    lines = document.differences(settings_of(there), settings_of(here))
    if lines:
        shown = "".join(f"\n  {line[:200]}" for line in lines[:20])
        more = f"\n  and {len(lines) - 20} more" if len(lines) > 20 else ""
        raise CheckpointError(
            f"The folder {store.url} belongs to another job. These entries differ:{shown}{more}\n"
            "Choose another folder, or take the settings back to go on with that run."
        )


def versions() -> dict[str, str]:
    """List the versions of Python and of the packages that decide what is written."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = "not installed"
    return installed
