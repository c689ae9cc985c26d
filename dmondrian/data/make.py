"""Making of plans: lists files, reads footers, learns the encoding, numbers the rows.

Relies on the other modules of this package. Promises: one metadata pass; a data pass only over
columns whose footers are not enough (levels of categories, labels, NaN in a float target, missing
statistics) and over a sample of float columns to find NaN; equal sources and options give equal
plans.
"""

from __future__ import annotations

import inspect
import json
import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from dmondrian._text.wording import counted
from dmondrian.data.arrow_values import TIME
from dmondrian.data.columns import (
    NULL,
    Draft,
    check_file,
    check_kept,
    check_once,
    check_plain,
    choose_columns,
    kind_of_times,
    partition_types,
    partition_values,
    require,
)
from dmondrian.data.constants import constants_of, note_of_varied
from dmondrian.data.footers import Footer, read_footers
from dmondrian.data.lake import list_data
from dmondrian.data.learn import Learner
from dmondrian.data.paths import check_paths
from dmondrian.data.plan import Group, Plan, TableState, arrange, arrange_mixed, mixed_note
from dmondrian.data.schema import Label, Schema
from dmondrian.data.source import Source, SourceFile, partition_keys
from dmondrian.data.text_words import LONGEST_RUN, MOST_FEATURES
from dmondrian.errors import DataError, ParameterError, SchemaError


class NoRowsError(DataError):
    """The files of a source have no row, or a table has no file."""


_NOT_ASKED = ("source", "among", "is_mixed")  # parameters of `make_plan` that no job sets

MOST_NOTES = 20  # most columns left out that have a note each

CONTENT_BYTES = 128 << 20
"""Bytes of small files that are kept between reading their footers and scanning their values."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "task": ("classification", "regression"),
    "infinite": ("error", "clip"),
    "null_target": ("error", "drop"),
}


def make_plan(
    source: Source,
    *,
    target: str | None = None,
    task: str = "classification",
    exclude: Iterable[str] = (),
    categorical: Iterable[str] = (),
    text: Iterable[str] = (),
    text_features: int = 256,
    text_words: int = 1,
    cyclic: Iterable[str] = (),
    weight: str | None = None,
    time: str | None = None,
    shuffle: bool = False,
    seed: int = 0,
    max_categories: int = 64,
    infinite: str = "error",
    null_target: str = "error",
    classes: Sequence[Label] | None = None,
    among: Collection[str] | None = None,
    include: Iterable[str] | None = (),
    is_mixed: bool = True,
) -> Plan:
    """Return a plan for training on a source.

    Parameters
    ----------
    source : str, path or sequence of them
        Parquet file, folder, glob or URL. ``key=value`` folders become columns.
    target : str, optional
        Column to predict. Without it the plan has features only.
    task : {"classification", "regression"}
    exclude : iterable of str
        Columns not to use.
    categorical : iterable of str
        Columns to treat as categories whatever their type (strings and dictionaries always are).
    text : iterable of str
        Columns of strings whose words are features, each by its presence in the row: words are
        hashed, so that new ones may come for ever (Weinberger et al., 2009).
    text_features : int
        Features of each text, 2 to 4096; words of one hash share one.
    text_words : int
        1 to 3; with 2, two words in a row are a feature too.
    cyclic : iterable of str
        Columns of times or dates whose hour of the day, day of the week and day of the year are
        points of circles, by sine and cosine, so that 23:00 is near 01:00; in UTC, as all times.
    weight : str, optional
        Column of row weights, finite and not negative.
    time : str, optional
        Column of the rows' times, by which labels come: times, dates or numbers, one in each row.
        It stays a feature unless it is excluded.
    shuffle : bool
        Read the rows in a random order fixed by `seed`, mixed over as many row groups at a time as
        memory allows; a note of the plan has the number.
    seed : int
        In [0, 2**64).
    max_categories : int
        Levels kept per category; the most frequent, ties broken by value.
    infinite : {"error", "clip"}
        What to do with an infinite feature: refuse it, or put it at the nearer finite bound.
    null_target : {"error", "drop"}
        What to do with rows whose target is null, NaN or infinite.
    classes : sequence, optional
        All possible labels; by default those of the data. Sorted in the schema.
    among : collection of str, optional
        URIs of the files of the source to use, but for those of tables: of a plan made before
        others were added, or of those that are whole.
    include : iterable of str, or None
        Index columns of data frames to use; others are left out unless they are the target, the
        weight or in `categorical`. None uses all, as earlier versions did.
    is_mixed : bool
        False shuffles as earlier versions did, for their runs: row groups, and the rows within
        each row group.

    Returns
    -------
    Plan
        Its `notes` list columns left out and oddities of the data. Warns of a target that looks
        sorted.

    Raises
    ------
    DataError
        No rows, unreadable files, unusable values.
    SchemaError
        Columns are missing, have repeated names, or differ between files.
    ParameterError
        An option outside its range.
    """
    options_given = given_options(locals())
    exclude, categorical = options_given.get("exclude", ()), options_given.get("categorical", ())
    include = options_given.get("include", ())
    text, cyclic = options_given.get("text", ()), options_given.get("cyclic", ())
    options: dict[str, Any] = {"task": task, "infinite": infinite, "null_target": null_target}
    _check_options(options, seed, max_categories)
    if classes is not None and (target is None or task != "classification"):
        raise ParameterError("classes are for classification alone: leave them out")
    hashed = _checked_hashing(text_features, text_words)
    footers, notes, tables = footers_of(source, True, among, CONTENT_BYTES)
    partitions = partition_types([footer.file for footer in footers])
    roles = _Roles(
        target=target,
        exclude=_names(exclude, "exclude"),
        categorical=_names(categorical, "categorical"),
        text=_names(text, "text"),
        cyclic=_names(cyclic, "cyclic"),
        weight=weight,
        time=time,
        include=None if include is None else _names(include, "include"),
    )
    _check_roles(roles, footers, partitions, shuffle)
    included, excluded, categories = roles.include, roles.exclude, roles.categorical
    texts, circles, index = roles.text, roles.cyclic, _index_of(footers)
    if included is not None:
        _check_included(included, index, excluded)
    wanted = {*(included or ()), *categories, *texts, *circles}
    used = [name for name in index if included is None or name in wanted]
    spare = [name for name in index if name not in (*used, target, weight, time)]
    drafts, left_out = choose_columns(footers, partitions, excluded, categories, spare, texts)
    for footer in footers:
        check_plain((*drafts, target, weight, time), footer)
    learner = Learner(footers, partitions, drafts, left_out, target, weight)
    schema, findings = learner.learn(
        max_categories, classes, shuffle=shuffle, hashed=hashed, **options
    )
    _check_cyclic(circles, drafts)
    columns = (
        column.as_cyclic() if column.name in circles else column for column in schema.columns
    )
    schema = replace(schema, columns=tuple(columns))
    if time is not None:
        schema = replace(schema, time=time, time_kind=kind_of_times(time, footers, partitions))
    groups = groups_of(footers, partitions)
    if shuffle and is_mixed:
        blocks, bands = arrange_mixed(groups, schema.n_features, seed)
        notes.append(f"shuffle: {mixed_note(blocks, bands)}")
    else:
        blocks, bands = arrange(groups, shuffle, seed), ()
    notes += _left_out_notes(schema)
    for text in findings.warnings:
        warnings.warn(text, UserWarning, stacklevel=2)
    all_notes = tuple(notes + findings.notes + findings.warnings)
    return Plan(
        schema,
        blocks,
        shuffle,
        seed,
        all_notes,
        excluded=tuple(excluded),
        bands=bands,
        included=None if included is None else tuple(used),
        asked=asked_text(options_given),
        tables=tuple(tables),
    )


class _Roles(NamedTuple):
    """Names of columns, by what they are given for."""

    include: list[str] | None  # None for all
    target: str | None
    exclude: list[str]
    categorical: list[str]
    text: list[str]
    cyclic: list[str]
    weight: str | None
    time: str | None


def _index_of(footers: Sequence[Footer]) -> dict[str, None]:
    """Return the columns that data frames have as their index, in order, once each."""
    return dict.fromkeys(name for footer in footers for name in footer.index)


def _check_roles(
    roles: _Roles, footers: Sequence[Footer], partitions: Mapping[str, pa.DataType], shuffle: bool
) -> None:
    """Refuse names that no column has, and columns that are given for two things.

    Raises
    ------
    SchemaError, ParameterError
    """
    target, weight, time = roles.target, roles.weight, roles.time
    known = [*footers[0].types, *footers[0].repeated, *partitions]
    elsewhere = dict.fromkeys(name for footer in footers for name in footer.elsewhere)
    for role, names in roles._asdict().items():
        given = names if isinstance(names, list) else [] if names is None else [names]
        require(given, [*known, *elsewhere] if role == "exclude" else known, role)
    for footer in footers:
        check_once((target, weight, time), footer)
    if target is not None and target in (*roles.exclude, weight):
        raise ParameterError(f"the target {target!r} is also given as excluded or as the weight")
    if both := sorted({*roles.text} & {*roles.exclude, *roles.categorical, target, weight, time}):
        raise ParameterError(
            f"the column {both[0]!r} is given as `text`, and as exclude, categorical, target, "
            "weight or time: leave one of both out"
        )
    if both := sorted(
        {*roles.cyclic} & {*roles.exclude, *roles.categorical, *roles.text, target, weight}
    ):
        raise ParameterError(
            f"the column {both[0]!r} is given as `cyclic`, and as exclude, categorical, text, "
            "target or weight: leave one of both out"
        )
    if time is not None and time in (target, weight):
        raise ParameterError(f"the time {time!r} is also given as the target or the weight")
    if time is not None and shuffle:
        raise ParameterError(
            f"labels come by the time {time!r}, and shuffle would mix the rows of all times: leave "
            "one of both out"
        )


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options of `make_plan` that differ from its defaults, collections as lists."""
    defaults = option_defaults()
    listed = {name: _listed(options[name]) for name in defaults if name in options}
    return {name: value for name, value in listed.items() if value != defaults[name]}


def option_defaults() -> dict[str, Any]:
    """Return the defaults of the options of `make_plan` that a job sets, collections as lists."""
    parameters = inspect.signature(make_plan).parameters.items()
    return {
        name: _listed(parameter.default) for name, parameter in parameters if name not in _NOT_ASKED
    }


def asked_text(options: Mapping[str, Any]) -> str:
    """Return what `given_options` returned as text, equal for equal options."""
    return json.dumps(options, sort_keys=True, separators=(",", ":"), default=repr)


def _listed(value: Any) -> Any:
    is_plain = isinstance(value, str) or not isinstance(value, Iterable)
    return value if is_plain else list(value)


def make_scoring_plan(
    source: Source, schema: Schema, keep: Sequence[str] = (), *, target: bool = False
) -> Plan:
    """Return a plan for reading other data with the encoding of a model.

    Parameters
    ----------
    source : str, path or sequence of them
    schema : Schema
        Of the model.
    keep : sequence of str
        Columns to copy; must be in every file, with one type.
    target : bool
        Whether to read target and weights, if the model has them, for evaluation; otherwise they
        may be missing.

    Returns
    -------
    Plan
        In the order of the source, without shuffle. Warns of columns left out as constant that
        have other values here.

    Raises
    ------
    DataError
        No rows, or unreadable files.
    SchemaError
        Columns missing or of another kind of type than the training data's.
    """
    used = replace(schema, time=None) if target else schema.without_target()
    footers, notes, _ = footers_of(source, with_bounds=constants_of(schema))
    files = [footer.file for footer in footers]
    partitions = partition_types(files, used)
    for footer in footers:
        check_file(used, footer, partitions, keep)
    check_kept(keep, footers)
    warn_of_varied(schema, footers, notes)
    return Plan(used, arrange(groups_of(footers, partitions), False, 0), notes=tuple(notes))


def _check_options(options: dict[str, Any], seed: int, max_categories: int) -> None:
    for name, value in options.items():
        if value not in _CHOICES[name]:
            expected = " or ".join(map(repr, _CHOICES[name]))
            raise ParameterError(f"{name} must be {expected}, got {value!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ParameterError(f"seed must be an integer in [0, 2**64), got {seed!r}")
    if isinstance(max_categories, bool) or not isinstance(max_categories, int):
        raise ParameterError(f"max_categories must be an integer, got {max_categories!r}")
    if max_categories < 1:
        raise ParameterError(f"max_categories must be at least 1, got {max_categories}")


def _checked_hashing(n_features: int, longest: int) -> tuple[int, int]:
    """Return how the words of texts are hashed, or refuse it."""
    for name, value, least, most in (
        ("text_features", n_features, 2, MOST_FEATURES),
        ("text_words", longest, 1, LONGEST_RUN),
    ):
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not least <= value <= most:
            raise ParameterError(f"{name} must be an integer in [{least}, {most}], got {value!r}")
    return n_features, longest


def _check_cyclic(names: Iterable[str], drafts: Mapping[str, Draft]) -> None:
    for name in names:
        if name in drafts and drafts[name].kind != TIME:
            raise SchemaError(
                f"{name!r} is named in `cyclic`, which is for times and dates, and has the type "
                f"{drafts[name].type}: convert it, or take its name out of `cyclic`"
            )


def _left_out_notes(schema: Schema) -> list[str]:
    """Return a note for each column that is left out, and one for all beyond the first."""
    notes = [f"{name!r} is left out: {why}" for name, why in schema.left_out[:MOST_NOTES]]
    if rest := len(schema.left_out) - len(notes):
        columns = "column is" if rest == 1 else "columns are"
        notes.append(f"{rest:,} more {columns} left out; `dmondrian schema` lists them")
    return notes


def _check_included(included: Iterable[str], index: Collection[str], excluded: list[str]) -> None:
    for name in included:
        if name in excluded:
            raise ParameterError(f"the column {name!r} is both in `include` and in `exclude`")
        if name not in index:
            raise ParameterError(
                f"`include` names {name!r}, which is used anyway: it is for columns that a data "
                f"frame wrote as its index ({', '.join(map(repr, index)) or 'here none'}); to use "
                "some columns only, put the others in `exclude`"
            )


def _names(names: Iterable[str], role: str) -> list[str]:
    listed = [names] if isinstance(names, str) else list(names)
    if not all(isinstance(name, str) for name in listed):
        raise ParameterError(f"{role} must be a list of column names, got {listed!r}")
    return listed


def footers_of(
    source: Source,
    with_bounds: bool | Collection[str],
    among: Collection[str] | None = None,
    content_bytes: int = 0,
) -> tuple[list[Footer], list[str], list[TableState]]:
    """Return the footers of the files that have rows, notes on skipped ones, and the tables.

    Contents of small files are kept as by `read_footers`.
    """
    check_paths(source)
    listed = list_data(source, among=among)
    files, notes = listed.files, listed.notes
    footers = read_footers(files, with_bounds, content_bytes)
    empty = [footer.file.uri for footer in footers if not footer.rows]
    footers = [footer for footer in footers if footer.rows]
    if not footers:
        raise NoRowsError(_no_rows(source, empty))
    if empty:
        more = ", ..." if len(empty) > 3 else ""
        notes.append(f"files without rows are passed over: {', '.join(empty[:3])}{more}")
    shared = set(partition_keys([footer.file for footer in footers]))
    spare = {key for footer in footers for key, _ in footer.file.partition} - shared
    if spare:
        notes.append(f"folder keys that not every path has are passed over: {sorted(spare)}")
    return footers, notes, listed.tables


def _no_rows(source: Source, empty: Sequence[str]) -> str:
    """Return the message that a source has no rows, with the files that have none."""
    items = [source] if isinstance(source, (str, os.PathLike)) else source
    named = ", ".join(str(os.fspath(item)) for item in items)
    if not empty:
        return f"no rows in {named}: there is no Parquet file in it yet; expected at least one row"
    more = ", ..." if len(empty) > 3 else ""
    return (
        f"no rows in {named}: {counted(len(empty), 'Parquet file')} found, none with a row "
        f"({', '.join(empty[:3])}{more}); expected at least one row"
    )


def with_rows(files: Sequence[SourceFile], with_bounds: Collection[str]) -> list[Footer]:
    """Return the footers of those files that have rows; there may be none."""
    return [footer for footer in read_footers(files, with_bounds) if footer.rows]


def warn_of_varied(
    schema: Schema, footers: Sequence[Footer], notes: list[str], stacklevel: int = 3
) -> None:
    """Warn of columns left out as constant that vary in these files, and add a note."""
    if note := note_of_varied(schema, footers):
        notes.append(note)
        warnings.warn(note, UserWarning, stacklevel=stacklevel)


def groups_of(footers: Sequence[Footer], partitions: dict[str, Any]) -> list[Group]:
    """Return the row groups of files, in their order."""
    return [
        Group(
            uri=footer.file.uri,
            size=footer.file.size,
            stamp=footer.file.stamp,
            row_group=number,
            rows=rows,
            partition=(
                *partition_values(footer.file, partitions),
                *((name, NULL, None) for name in footer.absent),
            ),
            fingerprint=footer.file.fingerprint,
        )
        for footer in footers
        for number, rows in enumerate(footer.group_rows)
        if rows
    ]
