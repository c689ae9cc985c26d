"""Selection of the columns of a source, and checks of files against a schema.

Relies on footers only. Promises: columns are matched by name, never by position; a column that a
file lacks, types differently or has more than once is a `SchemaError` naming column and file;
columns left out are returned with the reason.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

import pyarrow as pa

from dmondrian._text.wording import counted
from dmondrian.data.arrow_values import CATEGORY, NUMBER, TEXT, TIME, is_bytes, kind_of
from dmondrian.data.block_table import PartitionValue
from dmondrian.data.footers import Footer
from dmondrian.data.schema import Column, Schema
from dmondrian.data.source import SourceFile, partition_keys
from dmondrian.errors import DataError, SchemaError

# Types of partition columns that a table may say.
_TABLE_TYPES = {
    str(kind): kind
    for kind in (
        pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us"),
    )
}  # fmt: skip

INDEX = "the index of a data frame, written along with its columns; `include` names those to use"
NULL = "null"  # type of a column of folders that has no value, or of a table that a file lacks

_NO_TIMES = "bool", "time32", "time64"  # types of numbers whose order is not that of a stream


@dataclass(frozen=True)
class Draft:
    """A column before its values are known."""

    name: str
    kind: str  # "number", "time", "category" or "text"
    type: pa.DataType  # in the first file that knows it
    is_floating: bool = False  # some file stores it as floats, so NaN may hide in it


def partition_types(
    files: Sequence[SourceFile], schema: Schema | None = None
) -> dict[str, pa.DataType]:
    """Return the types of partition columns: int64 or date if all values are, else string.

    Those of a table have its types. Text categories of the schema stay text, whatever
    values these files have.
    """
    kinds: dict[str, pa.DataType] = {}
    columns = () if schema is None else schema.columns
    texts = {
        column.name
        for column in columns
        if column.kind in (CATEGORY, TEXT) and "string" in column.type
    }
    typed = {key: kind for file in files for key, kind in file.types}
    for key in partition_keys(files):
        if key in typed:
            kinds[key] = _TABLE_TYPES[typed[key]]
            continue
        if key in texts:
            kinds[key] = pa.string()
            continue
        values = [value for file in files if (value := dict(file.partition)[key]) is not None]
        kinds[key] = pa.string() if values else pa.null()
        if values and all(_is_integer(value) for value in values):
            kinds[key] = pa.int64()
        elif values and all(_is_date(value) for value in values):
            kinds[key] = pa.date32()
    return kinds


def partition_values(file: SourceFile, kinds: dict[str, pa.DataType]) -> tuple[PartitionValue, ...]:
    """Return a file's partition values with their types, for its blocks."""
    values = dict(file.partition)
    return tuple((key, str(kind), values[key]) for key, kind in kinds.items())


def partition_array(value: PartitionValue, rows: int) -> pa.Array:
    """Return a constant column of a partition value."""
    _, kind, text = value
    if kind == NULL:
        return pa.nulls(rows)
    if kind == "int64":
        return pa.repeat(pa.scalar(None if text is None else int(text), pa.int64()), rows)
    if kind.startswith("date32"):
        day = None if text is None else date.fromisoformat(text)
        return pa.repeat(pa.scalar(day, pa.date32()), rows)
    if kind == "double":
        return pa.repeat(pa.scalar(None if text is None else float(text), pa.float64()), rows)
    if kind == "bool":
        return pa.repeat(pa.scalar(None if text is None else text == "true", pa.bool_()), rows)
    if kind.startswith("timestamp"):
        time = None if text is None else datetime.fromisoformat(text)
        return pa.repeat(pa.scalar(time, pa.timestamp("us")), rows)
    # Arrow joins no dictionaries that hold a null.
    dictionary = pa.array([] if text is None else [text], type=pa.string())
    code = pa.scalar(None if text is None else 0, pa.int32())
    return pa.DictionaryArray.from_arrays(pa.repeat(code, rows), dictionary)


def choose_columns(
    footers: Sequence[Footer],
    partitions: dict[str, pa.DataType],
    skip: Iterable[str],
    categorical: Iterable[str],
    index: Iterable[str] = (),
    texts: Iterable[str] = (),
) -> tuple[dict[str, Draft], list[tuple[str, str]]]:
    """Return drafts of the columns to use, and the columns left out, with the reason.

    The first file decides which columns there are; columns in `skip` are ignored, and those in
    `index` are left out, whether all files have them or not.

    Raises
    ------
    SchemaError
        Columns differ between files, or a file lacks one that is not null in its table.
    """
    skipped = set(skip)
    asked = dict.fromkeys(categorical, CATEGORY) | dict.fromkeys(texts, TEXT)
    drafts: dict[str, Draft] = {}
    left_out = [
        (name, "two columns of the file have this name")
        for name in dict.fromkeys(name for footer in footers for name in footer.repeated)
        if name not in skipped
    ]
    repeated = {name for name, _ in left_out}
    indices = [name for name in dict.fromkeys(index) if name not in skipped | repeated]
    left_out += [(name, INDEX) for name in indices]
    skipped.update(indices)
    for footer in footers:
        if elsewhere := [name for name in footer.elsewhere if name not in skipped]:
            raise SchemaError(
                f"{footer.file.uri} lacks {_list(elsewhere)}, which its table has as the values of "
                "partitions, or by a default, and these are not read: write the files anew with "
                "all columns, or exclude those"
            )
    # Of many small files most have the same columns: the first of each kind decides.
    distinct: dict[int, Footer] = {}
    for footer in footers:
        distinct.setdefault(id(footer.types), footer)
    footers = list(distinct.values())
    for name in {**footers[0].types, **partitions}:
        if name in skipped or name in repeated:
            continue
        draft = _draft(name, footers, partitions.get(name), asked.get(name))
        if isinstance(draft, str):
            left_out.append((name, draft))
        else:
            drafts[name] = draft
    known = {*drafts, *skipped, *(name for name, _ in left_out)}
    for footer in footers[1:]:
        extra = [name for name in footer.types if name not in known]
        known.update(extra)
        left_out += [
            (name, f"in {footer.file.uri} but not in {footers[0].file.uri}") for name in extra
        ]
    return drafts, left_out


def kind_of_times(
    name: str, footers: Sequence[Footer], partitions: Mapping[str, pa.DataType]
) -> str:
    """Return the kind of a column of times, "time" or "number".

    Raises
    ------
    DataError
        It cannot be used.
    SchemaError
        It has neither times, dates nor numbers, or differs between files.
    """
    draft = _draft(name, footers, partitions.get(name), None)
    if isinstance(draft, str):
        raise DataError(f"the time {name!r} cannot be used: {draft}")
    if draft.kind not in (NUMBER, TIME) or str(draft.type).startswith(_NO_TIMES):
        raise SchemaError(
            f"the time {name!r} must be of times, dates or numbers, its type is {draft.type}"
        )
    return draft.kind


def require(names: Iterable[str], known: Iterable[str], role: str) -> None:
    """Refuse names that no column has, and suggest the nearest ones."""
    columns = dict.fromkeys(known)
    for name in names:
        if name not in columns:
            near = _nearest(name, list(columns))
            hint = (
                f" Did you mean {near}?"
                if near
                else f" There are: {', '.join(list(columns)[:20])}."
            )
            raise SchemaError(f"no column is called {name!r} (given as {role}).{hint}")


def check_once(names: Iterable[str | None], footer: Footer) -> None:
    """Refuse names that several columns of a file have."""
    several = [name for name in dict.fromkeys(names) if name in footer.repeated]
    if several:
        raise SchemaError(
            f"{footer.file.uri} has {_list(several)} more than once: expected one column of each "
            "name that is read; rename or remove the others"
        )


def check_plain(names: Iterable[str | None], footer: Footer) -> None:
    """Refuse names of columns that are encrypted in a file."""
    hidden = [name for name in dict.fromkeys(names) if name in footer.encrypted]
    if hidden:
        raise DataError(
            f"{footer.file.uri}: {_list(hidden)} {'is' if len(hidden) == 1 else 'are'} encrypted, "
            "and keys cannot be given here: put the names into `exclude`, or decrypt the file first"
        )


def check_file(
    schema: Schema, footer: Footer, partitions: dict[str, pa.DataType], keep: Sequence[str]
) -> None:
    """Refuse a file that lacks a column the schema reads, or has it in another kind of type.

    One that has such a column more than once is refused too.
    """
    named = [column.name for column in schema.columns]
    read = [*named, schema.target, schema.weight, schema.time, *keep]
    check_once(read, footer)
    check_plain(read, footer)
    check_types(schema, {**partitions, **footer.types}, footer.file.uri, keep)


def check_types(
    schema: Schema, types: dict[str, pa.DataType], source: str, keep: Sequence[str] = ()
) -> None:
    """Refuse sources whose columns do not fit those of the schema."""
    wanted = {column.name: column for column in schema.columns}
    roles = schema.target, schema.weight, schema.time, *keep
    named_roles = [name for name in roles if name is not None]
    missing = [name for name in dict.fromkeys([*wanted, *named_roles]) if name not in types]
    not_kept = [name for name in missing if name in keep and name not in wanted]
    if missing and missing == not_kept:
        raise SchemaError(
            f"{source} lacks {_list(missing)}, asked for to be kept: it has {_list(list(types))}"
        )
    if missing:
        spare = [name for name in types if name not in wanted]
        near = [f"{name!r} may be {hit}" for name in missing if (hit := _nearest(name, spare))]
        likely = f" ({'; '.join(near)})" if near else ""
        if any(name in wanted for name in missing):
            raise SchemaError(
                f"{source} lacks {_list(missing)}: expected the {counted(len(wanted), 'column')} "
                f"of the training data by name{likely}; rename or add them"
            )
        titles = {schema.time: "the time", schema.weight: "the weight", schema.target: "the target"}
        lacking = [f"{name!r}, {titles.get(name, 'asked for to be kept')}" for name in missing]
        raise SchemaError(
            f"{source} lacks {'; '.join(lacking)}{likely}: it has the columns of features, and no "
            "more is needed to score rows, by `score`; to learn or to evaluate them, rename or add "
            "what lacks"
        )
    wrong = [
        f"{column.name!r}: expected {column.kind} ({column.type}), got {types[column.name]}"
        for column in wanted.values()
        if not _fits(column, types[column.name])
    ]
    if schema.time is not None and kind_of(types[schema.time])[0] != schema.time_kind:
        wrong.append(f"{schema.time!r}: expected a {schema.time_kind}, got {types[schema.time]}")
    if wrong:
        raise SchemaError(
            f"{source} has columns of other types than the training data: "
            f"{'; '.join(wrong)}; convert them"
        )


def check_kept(keep: Iterable[str], footers: Sequence[Footer]) -> None:
    """Refuse a column to be kept that files have in different types: their rows share a file."""
    for name in keep:
        typed = [(f.file.uri, f.types[name]) for f in footers if name in f.types]
        for uri, kind in typed:
            if kind != typed[0][1]:
                raise SchemaError(
                    f"the column {name!r}, asked for to be kept, is {typed[0][1]} in {typed[0][0]} "
                    f"but {kind} in {uri}: expected one type in all files; convert it"
                )


def _draft(
    name: str, footers: Sequence[Footer], partition: pa.DataType | None, asked: str | None
) -> Draft | str:
    typed_footers: list[tuple[Footer, pa.DataType]] = []
    for footer in footers:
        if name in footer.types:
            typed_footers.append((footer, footer.types[name]))
        elif partition is not None:
            typed_footers.append((footer, partition))
        else:
            raise SchemaError(
                f"{footer.file.uri} has no column {name!r}, which {footers[0].file.uri} has: all "
                "files of a source need the same columns; add it or put its name in `exclude`"
            )
    typed = [(footer, type_) for footer, type_ in typed_footers if not pa.types.is_null(type_)]
    if not typed:
        return "all null"
    first, type_ = typed[0]
    kinds = [_kind(type_, asked) for _, type_ in typed]
    for (footer, other_type), kind in zip(typed, kinds, strict=True):
        if kind[0] != kinds[0][0]:
            raise SchemaError(
                f"the column {name!r} is {type_} in {first.file.uri} but {other_type} in "
                f"{footer.file.uri}: expected one kind of type; convert it, put its name in "
                "`exclude`"
                + (", or take it out of `text`" if asked == TEXT else ", or in `categorical`")
            )
    if asked == TEXT and kinds[0][0] != TEXT:
        raise SchemaError(
            f"the text {name!r} is {type_} in {first.file.uri}: expected strings; take its name "
            "out of `text`, or convert it"
        )
    if kinds[0][0] is None:
        return kinds[0][1]
    floating = any(pa.types.is_floating(type_there) for _, type_there in typed)
    return Draft(name, kinds[0][0], type_, floating)


def _kind(type_: pa.DataType, asked: str | None) -> tuple[str | None, str]:
    kind, why = kind_of(type_)
    if asked == CATEGORY and (kind is not None or is_bytes(type_)):
        return CATEGORY, ""
    if asked == TEXT and (kind == CATEGORY or is_bytes(type_)):
        return TEXT, ""
    return kind, why


def _fits(column: Column, type_: pa.DataType) -> bool:
    if pa.types.is_null(type_):
        return True
    kind, _ = kind_of(type_)
    if column.kind == TEXT:
        return kind == CATEGORY or is_bytes(type_)
    if column.kind != CATEGORY:
        return kind == column.kind
    return kind == CATEGORY or is_bytes(type_) or (kind is not None and not was_text(column))


def was_text(column: Column) -> bool:
    """Whether values of a category were texts in training; no others are taken then."""
    return column.type.startswith(("string", "large_string", "dictionary", "string_view"))


def has_times(column: Column) -> bool:
    """Whether values of a column are times, also where each is a category."""
    return column.kind == TIME or (column.kind == CATEGORY and column.type.startswith("timestamp"))


def _nearest(name: str, columns: Sequence[str]) -> str:
    folded = {column.lower().strip(): column for column in columns}
    hits = difflib.get_close_matches(name.lower().strip(), list(folded), n=1)
    return repr(folded[hits[0]]) if hits else ""


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    return f"the column{'s' if len(names) > 1 else ''} {shown}" + (
        f" and {len(names) - 8} more" if len(names) > 8 else ""
    )


def _is_integer(text: str) -> bool:
    # a leading zero is part of a code ("007"), not of a number
    digits = text[1:] if text.startswith("-") else text
    plain = digits.isascii() and digits.isdigit() and (digits == "0" or digits[0] != "0")
    return plain and len(digits) < 19


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
