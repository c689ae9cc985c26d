"""Extension of a plan by the new files of its source.

Relies on the plan's schema, with which new rows are encoded: values that the training data did not
have are counted as unseen or clipped. Promises that the existing stream stays the same, block for
block, wherever new files sort among the old ones and wherever the data have moved; or an error that
names the missing or changed file.
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
    """Return a plan extended by the files of a source that it does not have.

    Parameters
    ----------
    plan : Plan
    source : str, path or sequence of them
        All files: those of the plan, wherever they are now, and new ones.

    Returns
    -------
    Plan
        The same plan if there are no new files, with the current places of its files. With a
        shuffle, the new row groups are permuted among themselves. Warns of columns left out as
        constant that vary in new files.

    Raises
    ------
    PlanError
        A file of the plan is missing or changed.
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
    """Return keys and values without types, which depend on the other files."""
    return [(key, text) for key, _, text in partition]


def change_between(then: Plan, now: Plan) -> str | None:
    """Return which file differs between two plans of the same data, and how; None if none does.

    Parameters
    ----------
    then, now : Plan
        The earlier and the current plan.

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
            # Earlier versions recorded the time of change, this one the ETag: compare times.
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
    """Return which file of a plan is missing from these row groups or changed, and how; or None.

    `versions` are by uri; `places` and `doubtful` are those of `find_places`.
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
    """Describe why a file of the plan is missing."""
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
    """Refuse a source in which a row group of the plan is missing or changed."""
    if change := _first_change(plan, groups, versions, places, doubtful):
        raise PlanError(
            f"{change}: the run has it in its stream, which new files can only follow. Put it back "
            "as it was, or name the place where all data are now, or start another run"
        )
