"""From a plan to a longer one: files that came to a source since continue its stream.

Relies on the plan's schema, which new rows are encoded with: what its columns did not hold then is
counted as unseen or clipped. Promises that the stream so far stays what it is, block for block,
wherever new files sort among the old ones and wherever the data have moved; or says which of its
files is gone or changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dmondrian._text.wording import counted
from dmondrian.data.chunks import Band
from dmondrian.data.columns import check_file, partition_types
from dmondrian.data.constants import constants_of
from dmondrian.data.make import footers_of, groups_of, warn_of_varied
from dmondrian.data.moved import find_places, place
from dmondrian.data.plan import (
    Block,
    Group,
    PartitionValue,
    Plan,
    arrange,
    arrange_mixed,
    mixed_note,
)
from dmondrian.data.source import Source, is_local, stat_uri
from dmondrian.data.version import Version
from dmondrian.errors import DataError, PlanError


def extend_plan(plan: Plan, source: Source) -> Plan:
    """Continue a plan with the files of a source that it does not have.

    Parameters
    ----------
    plan : Plan
    source : str, path or sequence of them
        All files: those of the plan, wherever they are now, and new ones.

    Returns
    -------
    Plan
        The same plan where nothing is new, reading its files where they are now. With a shuffle,
        the new row groups are permuted among themselves. A column left out as constant that
        varies in new files is warned of.

    Raises
    ------
    PlanError
        A file of the plan is gone or changed.
    DataError, SchemaError
        New files cannot be read with the plan's schema.
    """
    footers, _ = footers_of(source, with_bounds=constants_of(plan.schema))
    versions = {footer.file.uri: footer.file.version for footer in footers}
    places, doubtful = find_places(plan, footers)
    old = set(places.values())
    known = [footer for footer in footers if footer.file.uri in old]
    fresh = [footer for footer in footers if footer.file.uri not in old]
    there = partition_types([footer.file for footer in known], plan.schema)
    _check_prefix(plan, groups_of(known, there), versions, places, doubtful)
    plan = place(plan, {uri: (now, versions[now].stamp) for uri, now in places.items()})
    if moved := [uri for uri, now in places.items() if now != uri]:
        note = f"{len(moved)} of the files moved: {moved[0]} is {places[moved[0]]}"
        plan = replace(plan, notes=(*plan.notes, note))
    if not fresh:
        return plan
    partitions = partition_types([footer.file for footer in fresh], plan.schema)
    for footer in fresh:
        check_file(plan.schema, footer, partitions, ())
    added = groups_of(fresh, partitions)
    rows = sum(group.rows for group in added)
    note = f"files that came since continue the stream: {len(fresh)} with {counted(rows, 'row')}"
    notes = [*plan.notes, note]
    bands: tuple[Band, ...] = ()
    if plan.bands:
        more, bands = arrange_mixed(added, plan.schema.n_features, plan.seed, plan.blocks)
        notes.append(f"of these, {mixed_note(more, bands)}")
    else:
        more = arrange(added, plan.shuffle, plan.seed, plan.blocks)
    warn_of_varied(plan.schema, fresh, notes)
    return replace(
        plan,
        blocks=(*plan.blocks, *more),
        notes=tuple(notes),
        earlier=(*plan.earlier, (plan.n_rows, plan.digest)),
        bands=(*plan.bands, *bands),
    )


def _texts(partition: tuple[PartitionValue, ...]) -> list[tuple[str, str | None]]:
    """Return keys and values: their types depend on the files beside."""
    return [(key, text) for key, _, text in partition]


def change_between(then: Plan, now: Plan) -> str | None:
    """Say which file two readings of a source differ in, and how; None where they have the same.

    Parameters
    ----------
    then, now : Plan
        Of the same data, as they were and as they are.

    Returns
    -------
    str or None
        Such as "/data/a.parquet changed (310 bytes then, written again since)".
    """
    groups = [
        Group(
            block.uri, block.size, block.stamp, block.row_group, block.group_rows, block.partition
        )
        for block in now.blocks
    ]
    versions = {group.uri: Version(group.size, group.stamp) for group in groups}
    for block in then.blocks:
        version = versions.get(block.uri)
        if version and block.stamp != version.stamp and not is_local(block.uri):
            # An earlier version noted the time of change, and this one the ETag: compare the time.
            versions[block.uri] = stat_uri(block.uri) or version
    known = {block.uri for block in then.blocks}
    fresh = next((group.uri for group in groups if group.uri not in known), None)
    return _first_change(then, groups, versions, {}, {}) or (fresh and f"{fresh} came since")


def _first_change(
    plan: Plan,
    groups: Iterable[Group],
    versions: Mapping[str, Version],
    places: Mapping[str, str],
    doubtful: Mapping[str, str],
) -> str | None:
    """Say which file of a plan is gone or changed where these row groups are, and how; or None.

    The states of files are by uri; places and doubtful ones are those of `find_places`.
    """
    there = {(group.uri, group.row_group): group for group in groups}
    for block in plan.blocks:
        now = places.get(block.uri, block.uri)
        group = there.get((now, block.row_group))
        if group is None:
            what = _absence(block, doubtful.get(block.uri))
        elif now == block.uri and not _is_same(block, group, versions[now]):
            now = f"{group.size} bytes now" if group.size != block.size else "written again since"
            what = f"changed ({block.size} bytes then, {now})"
        elif _texts(group.partition) != _texts(block.partition):
            what = f"lies in other folders ({block.partition} then, {group.partition} now)"
        else:
            continue
        return f"{block.uri} {what}"
    return None


def _is_same(block: Block, group: Group, version: Version) -> bool:
    is_same = version.is_same(block.size, block.stamp, is_local(block.uri))
    return is_same and group.rows == block.group_rows


def _absence(block: Block, alike: str | None) -> str:
    """Describe what is known of a file that the source does not have."""
    if alike is not None:
        return (
            f"is gone; {alike} has its name, size and row groups, but another time of change, "
            "and its bytes are not known to be the same (copies keep their times with `cp -p` or "
            "`rsync -a`)"
        )
    try:
        is_there = stat_uri(block.uri) is not None
    except (DataError, OSError):
        is_there = False
    if is_there:
        return "is not among the files that are named now, although it is still there"
    return f"is gone, and no file of its name with {block.size} bytes is among those named now"


def _check_prefix(
    plan: Plan,
    groups: list[Group],
    versions: Mapping[str, Version],
    places: Mapping[str, str],
    doubtful: Mapping[str, str],
) -> None:
    """Refuse a source in which a row group of the plan is not what it was."""
    if change := _first_change(plan, groups, versions, places, doubtful):
        raise PlanError(
            f"{change}: the run has it in its stream, which new files can only follow. Put it back "
            "as it was, or name the place where all data are now, or start another run"
        )
