"""Extension of a plan by the new files of its source.

Relies on the plan's schema, with which new rows are encoded: values that the training data did not
have are counted as unseen or clipped. Promises that the existing stream stays the same, block for
block, wherever new files sort among the old ones and wherever the data have moved; or an error that
names the missing or changed file.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from dmondrian._text.wording import counted
from dmondrian.data.block_table import Block, PartitionValue
from dmondrian.data.chunks import Band
from dmondrian.data.columns import check_file, partition_types
from dmondrian.data.constants import constants_of
from dmondrian.data.delta_table import about_table, version_note
from dmondrian.data.footers import Footer
from dmondrian.data.lake import Listing, list_data
from dmondrian.data.make import groups_of, warn_of_varied, with_rows
from dmondrian.data.moved import find_places, find_renamed, fingerprints_now, place
from dmondrian.data.paths import check_paths
from dmondrian.data.plan import (
    Group,
    Plan,
    TableState,
    arrange,
    arrange_mixed,
    mixed_note,
)
from dmondrian.data.source import Source, SourceFile, is_local, stat_uri
from dmondrian.data.version import Version
from dmondrian.errors import DataError, PlanError

GONE = "not among the data any more"
"""In notes on files that were learned and are gone."""

_STILL_THERE = "although it is still there"
_NEW_FILES = "files that came since continue the stream"


def extend_plan(
    plan: Plan, source: Source, learned: int = 0, among: Collection[str] | None = None
) -> Plan:
    """Return a plan extended by the files of a source that it does not have.

    Parameters
    ----------
    plan : Plan
    source : str, path or sequence of them
        Files of the plan that have rows at `learned` or behind, wherever they are now, and new
        ones.
    learned : int
        Rows of the stream that need not be read again. Files with no other rows may be gone or
        have other bytes now: `about_learned` of the plan has notes on these. A file with the bytes
        of one that is not in its place any more is that file, under whatever name.
    among : collection of str or None
        Uris of the files of the source to use, but for those of tables.

    Returns
    -------
    Plan
        The same plan if there are no new files, with the current places of its files. With a
        shuffle, the new row groups are permuted among themselves. Warns of columns left out as
        constant that vary in new files, and of learned files that have other bytes now.

    Raises
    ------
    PlanError
        A file of the plan that is needed is missing or changed.
    DataError, SchemaError
        New files cannot be read with the plan's schema, or one has the name of a learned file that
        has another name now.
    """
    check_paths(source)
    needed = set(plan.blocks_after(learned).uris())
    listing = list_data(source, plan, needed, among)
    matched = _match_files(plan, listing, needed)
    known_partitions = partition_types([footer.file for footer in matched.known], plan.schema)
    _check_prefix(
        plan, needed, groups_of(matched.known, known_partitions), matched.versions, matched.places,
        matched.doubtful,
    )  # fmt: skip
    about = (
        *chain.from_iterable(map(about_table, listing.tables)),
        *_about_learned(plan, matched.past, matched.again, matched.places, matched.doubtful),
    )
    if matched.past and not matched.places:
        _check_same_data(plan.blocks[-1])
    moves = {uri: now for uri, now in matched.places.items() if now in matched.versions}
    plan = place(plan, {uri: (now, matched.versions[now].stamp) for uri, now in moves.items()})
    plan = _with_tables(plan, listing.tables, about)
    _check_names(plan, matched.fresh)
    if moved := [uri for uri, now in moves.items() if now != uri]:
        note = f"{len(moved)} of the files moved: {moved[0]} is {matched.places[moved[0]]}"
        plan = replace(plan, notes=(*plan.notes, note)).with_digest_of(plan)
    return _with_new_files(plan, matched.fresh) if matched.fresh else plan


class _MatchedFiles(NamedTuple):
    """Which files of a source are those of a plan, and which are new."""

    past: list[str]  # uris of planned files that need not be read again
    places: dict[str, str]  # uri of each planned file that was found, and where it is now
    doubtful: dict[str, str]  # see :func:`dmondrian.data.moved.find_places`
    again: list[str]  # uris of learned files that have other bytes now
    known: list[Footer]  # of planned files
    fresh: list[Footer]  # of new ones, in the order of the source
    versions: dict[str, Version]  # of files that were read, by where they are now


def _match_files(plan: Plan, listing: Listing, needed: set[str]) -> _MatchedFiles:
    """Return which of the listed files are those of a plan, by their names or their bytes."""
    files = listing.files
    past = [uri for uri in dict.fromkeys(plan.table.uris()) if uri not in needed]
    listed = {file.uri: file for file in files}
    unread = {uri: listed[uri] for uri in past if uri in listed}
    varied = constants_of(plan.schema)
    footers = with_rows([file for file in files if file.uri not in unread], varied)
    versions = {footer.file.uri: footer.file.version for footer in footers}
    places, doubtful = find_places(plan, footers, {*unread, *listing.held}, past)
    old = set(places.values())
    spare = {
        footer.file.uri: footer.file.fingerprint for footer in footers if footer.file.uri not in old
    }
    prints = dict(plan.table.fingerprints())
    changed = _changed(plan, unread, set(spare.values()))
    same = {uri for uri, text in changed.items() if text and text == prints[uri]}
    changed = {uri: text for uri, text in changed.items() if uri not in same}
    gone = [uri for uri in past if uri not in places]
    renamed = find_renamed({uri: prints[uri] for uri in (*gone, *changed)}, changed, spare)
    places |= renamed
    old = set(places.values())
    touched = [uri for uri in same if is_local(uri)]
    versions |= {uri: unread[uri].version for uri in (*touched, *renamed.values()) if uri in unread}
    # Other files have the names of those that were renamed.
    footers += with_rows([unread[uri] for uri in changed if uri not in old], varied)
    versions |= {footer.file.uri: footer.file.version for footer in footers}
    order = {file.uri: number for number, file in enumerate(files)}
    footers.sort(key=lambda footer: order[footer.file.uri])
    known_prints = set(prints.values()) - {""}
    again = [uri for uri, text in changed.items() if uri in old and text not in known_prints]
    known = [footer for footer in footers if footer.file.uri in old]
    fresh = [footer for footer in footers if footer.file.uri not in old]
    return _MatchedFiles(past, places, doubtful, again, known, fresh, versions)


def _with_tables(plan: Plan, tables: Sequence[TableState], about: tuple[str, ...]) -> Plan:
    """Return a plan with the versions of tables that were read now, and notes on learned files."""
    other_tables = [
        state for state in plan.tables if state.id not in {table.id for table in tables}
    ]
    versions_then = {version_note(table) for table in plan.tables if table not in other_tables}
    kept = [note for note in plan.notes if note not in versions_then]
    return replace(
        plan,
        notes=(*kept, *map(version_note, tables)),
        about_learned=about,
        tables=(*other_tables, *tables),
    ).with_digest_of(plan)


def _with_new_files(plan: Plan, fresh: Sequence[Footer]) -> Plan:
    """Return a plan with the rows of new files behind its own."""
    partitions = partition_types([footer.file for footer in fresh], plan.schema)
    for footer in fresh:
        check_file(plan.schema, footer, partitions, ())
    added = groups_of(fresh, partitions)
    rows = sum(group.rows for group in added)
    note = f"{_NEW_FILES}: {len(fresh)} with {counted(rows, 'row')}"
    # One note, of the newest files: a stream may be continued for years.
    notes = [*(text for text in plan.notes if not text.startswith(_NEW_FILES)), note]
    bands: tuple[Band, ...] = ()
    if plan.bands:
        more, bands = arrange_mixed(added, plan.schema.n_features, plan.seed, plan.blocks)
        notes.append(f"{_NEW_FILES}, {mixed_note(more, bands)}")
    else:
        more = arrange(added, plan.shuffle, plan.seed, plan.blocks)
    warn_of_varied(plan.schema, fresh, notes, stacklevel=4)  # of the caller of extend_plan
    return replace(
        plan,
        blocks=plan.table + more,
        notes=tuple(notes),
        earlier=(*plan.earlier, (plan.n_rows, plan.digest)),
        bands=(*plan.bands, *bands),
    )


def _check_same_data(block: Block) -> None:
    """Refuse data that have none of the stream's files although the last of these is there."""
    absence = _absence(block, None)
    if absence.endswith(_STILL_THERE):
        raise PlanError(
            f"{block.uri} {absence}, and neither is any other file of the stream: these are other "
            "data than those of the run. Name its data too, or train another run"
        )


def _about_learned(
    plan: Plan,
    past: Sequence[str],
    again: Sequence[str],
    places: Mapping[str, str],
    doubtful: Mapping[str, str],
) -> Iterator[str]:
    """Yield notes on files that were learned and are gone or have other bytes now; warn of these.

    Raises
    ------
    PlanError
        A new file may be one that was learned, and nothing tells whether it is.
    """
    blocks = {block.uri: block for block in plan.table.of_files(doubtful)}
    n_files = plan.table.n_files
    gone = [uri for uri in past if uri not in places]
    for uri in gone:
        if uri in doubtful and not blocks[uri].fingerprint:
            raise PlanError(
                f"{uri} {_absence(blocks[uri], doubtful[uri])}: to learn it as a new file could "
                "learn its rows twice. Put the file back, or give the new one another name"
            )
    if gone:
        yield (
            f"{_of_files(len(gone), n_files)} {GONE}, the first "
            f"{gone[0]}: their rows were learned, and the run goes on without them"
        )
    if again:
        hold = "holds" if len(again) == 1 else "hold"
        note = (
            f"of the {counted(n_files, 'file')} of the stream {len(again):,} {hold} other "
            f"bytes than those that were learned, the first {again[0]}: the rows that they hold "
            "now are NOT learned; write rows that are to be learned to files of new names"
        )
        warnings.warn(note, UserWarning, stacklevel=3)
        yield note


def _changed(
    plan: Plan, unread: Mapping[str, SourceFile], spare: Collection[str]
) -> dict[str, str]:
    """Return the fingerprints now of learned files that may have other bytes; "" if unknown.

    They differ in size or, of local files, in time; or a new file has the bytes that were learned.
    """
    blocks = {block.uri: block for block in plan.table.of_files(unread)}
    differ = [
        uri
        for uri, file in unread.items()
        if file.size != blocks[uri].size
        or (is_local(uri) and file.stamp != blocks[uri].stamp)
        or (blocks[uri].fingerprint and blocks[uri].fingerprint in spare)
    ]
    return fingerprints_now(differ)


def _check_names(plan: Plan, fresh: Sequence[Footer]) -> None:
    """Refuse new files that have the name by which the plan knows another file."""
    names = {origin: uri for uri, (origin, _) in plan.origins.items()}
    for footer in fresh:
        if now := names.get(footer.file.uri):
            raise DataError(
                f"{footer.file.uri} is a new file with the name of one that was learned, which is "
                f"{now} now: the run cannot keep both by one name, and has learned nothing of the "
                "new one. Give it a name of its own, such as one with its date"
            )


def _of_files(n: int, n_all: int) -> str:
    return f"of the {counted(n_all, 'file')} of the stream {n:,} {'is' if n == 1 else 'are'}"


def _texts(partition: tuple[PartitionValue, ...]) -> list[tuple[str, str | None]]:
    """Return keys and values without types, which depend on the other files.

    Which columns a file lacks depends on those that its table has now.
    """
    return [(key, text) for key, _, text in partition if text is not None]


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
    return _first_change(then.blocks, groups, versions, {}, {}) or (fresh and f"{fresh} came since")


def _first_change(
    blocks: Iterable[Block],
    groups: Iterable[Group],
    versions: Mapping[str, Version],
    places: Mapping[str, str],
    doubtful: Mapping[str, str],
) -> str | None:
    """Return which file of some blocks is missing from row groups or changed, and how; or None.

    `versions` are by uri; `places` and `doubtful` are those of `find_places`.
    """
    there = {(group.uri, group.row_group): group for group in groups}
    for block in blocks:
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
    if not is_same and block.fingerprint:  # a copy that was put there again
        is_same = (group.size, group.fingerprint) == (block.size, block.fingerprint)
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
        return f"is not among the files that are named now, {_STILL_THERE}"
    return f"is gone, and no file of its name with {block.size} bytes is among those named now"


def _check_prefix(
    plan: Plan,
    needed: Collection[str],
    groups: list[Group],
    versions: Mapping[str, Version],
    places: Mapping[str, str],
    doubtful: Mapping[str, str],
) -> None:
    """Refuse a source in which a row group of the files that are needed is missing or changed."""
    blocks = plan.table.of_files(needed)
    if change := _first_change(blocks, groups, versions, places, doubtful):
        raise PlanError(
            f"{change}: the run has it in its stream, and has not learned all of its rows. Put it "
            "back as it was, or name the place where it is now, or start another run"
        )
