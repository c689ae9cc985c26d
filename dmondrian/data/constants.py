"""Columns that a schema leaves out as constant, but that vary in other files.

Relies on footers only. Promises that a column is named only if its values prove that it varies, or
differs from the training data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from dmondrian.data.footers import Footer
from dmondrian.data.schema import Schema

MOST_NAMED = 8  # most columns named in a note
_CONSTANT = re.compile(r"constant \((.*)\)", re.DOTALL)
_NO_VALUE, _ONE_MOMENT = "all null", "one moment"


def constants_of(schema: Schema) -> dict[str, str]:
    """Return the one value, as text, of each column that is left out as constant or all null."""
    constants = {}
    for name, why in schema.left_out:
        if why == _NO_VALUE:
            constants[name] = _NO_VALUE
        elif matched := _CONSTANT.fullmatch(why):
            constants[name] = matched[1]
    return constants


def note_of_varied(schema: Schema, footers: Sequence[Footer]) -> str | None:
    """Return a note on columns left out as constant that have other values in these files.

    Parameters
    ----------
    schema : Schema
        Of the training data.
    footers : sequence of Footer
        Of other files, with the bounds of such columns where they are known.
    """
    varied = [
        f"{name!r} ({value if value == _NO_VALUE else f'always {value}'}; {place})"
        for name, value in constants_of(schema).items()
        if (place := _first_other(name, value, footers)) is not None
    ]
    if not varied:
        return None
    more = f" and {len(varied) - MOST_NAMED:,} more" if len(varied) > MOST_NAMED else ""
    which, they, have, them = ("a column", "it", "has", "it")
    if len(varied) > 1:
        which, they, have, them = ("columns", "they", "have", "them")
    return (
        f"{which} left out because {they} never varied in the training data {have} other values "
        f"now: {', '.join(varied[:MOST_NAMED])}{more}; the model does not look at {them}, a new "
        "run from all files would"
    )


def _first_other(name: str, value: str, footers: Iterable[Footer]) -> str | None:
    """Return the first file in which a column has another value than in training."""
    moments: set[object] = set()
    for footer in footers:
        ends = list(_ends(name, footer))
        if value == _ONE_MOMENT:  # the schema does not have its value
            moments.update(ends)
            is_other = len(moments) > 1
        elif value == _NO_VALUE:
            is_other = bool(ends) or _has_values(name, footer)
        else:
            is_other = any(_is_other(end, value) for end in ends)
        if is_other:
            return footer.file.uri
    return None


def _ends(name: str, footer: Footer) -> Iterator[float | str]:
    """Yield the smallest and largest value of each row group that the footer has."""
    partition = dict(footer.file.partition)
    if name not in footer.types and partition.get(name) is not None:
        yield str(partition[name])
    for chunk in footer.bounds.get(name, ()):
        ends = chunk.texts or (chunk.lower, chunk.upper)
        yield from (end for end in ends if end is not None)


def _has_values(name: str, footer: Footer) -> bool:
    """Return whether a footer proves non-null values; NaN counts as null."""
    if name not in footer.types or pa.types.is_floating(footer.types[name]):
        return False
    return any(
        chunk.nulls is not None and not chunk.all_null for chunk in footer.bounds.get(name, ())
    )


def _is_other(end: float | str, value: str) -> bool:
    """Return whether a value differs from that of a reason, which has category texts in quotes."""
    is_quoted = value[:1] in ("'", '"')
    if isinstance(end, str):
        return repr(end) != value if is_quoted else end != value
    return not is_quoted and f"{end + 0.0:g}" != value
