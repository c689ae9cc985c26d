"""Schema: the fixed encoding of a data set's columns as features.

Relies on nothing but the standard library (no Arrow: a model can be described without it).
Promises: everything needed to encode another file the same way is in a `Schema`, it survives
`to_json`/`from_json` unchanged, and feature names are unique.

How columns become features:

* number: one feature, ``(x - lower) / (upper - lower)``, so training values lie in [0, 1];
  booleans are 0 and 1, durations and times of day are seconds;
* category: one feature per level (``name=level``), one for rarer and unseen values
  (``name=<other>``); 0, or 1 / (levels met in training). A Mondrian tree splits columns in
  proportion to their ranges: with indicators of 1 a column of 42 countries would be split 42
  times as often as an age. So each source column, number or category, has total range 1
  (held-out losses of adult are in benchmarks/reports/encoding.md);
* text: one feature per hash of its words (``name~0`` to ``name~255``, by default); 0, or one over
  their number, for the same reason (:mod:`dmondrian.data.text_words`);
* time: ``name`` (linear, scaled like a number), ``name.hour`` (fraction of the day passed),
  ``name.weekday`` (Monday 0, Sunday 1) and ``name.month`` (January 0, December 1), all in UTC;
  parts that do not vary in the training data are left out; of a cyclic time, points of circles
  instead (:mod:`dmondrian.data.cyclic_parts`): ``name.hour_sin`` and ``name.hour_cos``, those of
  ``weekday``, and of ``yearday``, the day of the year, in place of the month;
* null and NaN: ``name=<null>`` is 1 (a category's like its levels) if the training data had nulls
  there; the column's numeric features are then 0.5, the middle of the range, its levels all 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from dmondrian._text.wording import counted, on_one_line
from dmondrian.errors import SchemaError

NULL_LEVEL = "<null>"
OTHER_LEVEL = "<other>"
PARTS = ("value", "linear", "hour", "weekday", "month")
CYCLIC_PARTS = {
    "hour": ("hour_sin", "hour_cos"),
    "weekday": ("weekday_sin", "weekday_cos"),
    "month": ("yearday_sin", "yearday_cos"),
}
"""The parts of a cyclic time, by what other times have in their place."""
_KNOWN_PARTS = {*PARTS, *(part for pair in CYCLIC_PARTS.values() for part in pair)}
FORMAT = 1
_SHOWN = 60  # letters of a level, which may be a text of any length
_ERA = 146_097 * 86_400_000_000  # microseconds of 400 years, after which the calendar repeats

Label = str | int | bool


@dataclass(frozen=True)
class Column:
    """One column that is read, and how it is encoded."""

    name: str
    kind: str  # "number", "time", "category" or "text"
    type: str  # Arrow type in the first training file
    lower: float | None = None  # least training value (time: microseconds since 1970)
    upper: float | None = None  # greatest training value
    parts: tuple[str, ...] = ()  # numeric features: "value"; or "linear", "hour", ...
    levels: tuple[str, ...] = ()  # levels of a category, sorted
    n_distinct: int = 0  # distinct values of a category in training, rarer ones included
    has_nulls: bool = False  # whether the column has an indicator for null
    hashed: tuple[int, ...] = ()  # of a text: its features, words of the longest run that is one

    @property
    def width(self) -> int:
        """Number of features this column makes."""
        n_levels = len(self.levels) + 1 if self.kind == "category" else 0
        n_words = self.hashed[0] if self.kind == "text" else 0
        return len(self.parts) + n_levels + n_words + int(self.has_nulls)

    @property
    def level_value(self) -> float:
        """Value of a level's feature for rows of that level, null included."""
        n_met = len(self.levels) + int(self.n_distinct > len(self.levels)) + int(self.has_nulls)
        return 1.0 / n_met if self.kind == "category" else 1.0

    @property
    def is_cyclic(self) -> bool:
        """Whether parts of the calendar are points of circles."""
        return any(pair[0] in self.parts for pair in CYCLIC_PARTS.values())

    def as_cyclic(self, is_cyclic: bool = True) -> Column:
        """Return a time with cyclic parts, or without them; another column as it is."""
        if self.is_cyclic == is_cyclic:
            return self
        plain = {first: part for part, (first, _) in CYCLIC_PARTS.items()}
        seconds = {second for _, second in CYCLIC_PARTS.values()}
        changed = (
            CYCLIC_PARTS.get(part, (part,)) if is_cyclic else (plain.get(part, part),)
            for part in self.parts
            if part not in seconds
        )
        return replace(self, parts=tuple(part for parts in changed for part in parts))

    def features(self) -> Iterator[str]:
        """Names of the features, in order: parts, levels, other, null."""
        for part in self.parts:
            yield self.name if part in ("value", "linear") else f"{self.name}.{part}"
        if self.kind == "category":
            for level in self.levels:
                # a level that is literally "<null>" or "<other>" must not take the special name
                plain = level not in (NULL_LEVEL, OTHER_LEVEL)
                yield f"{self.name}={level}" if plain else f"{self.name}={level!r}"
            yield f"{self.name}={OTHER_LEVEL}"
        if self.kind == "text":
            yield from (f"{self.name}~{number}" for number in range(self.hashed[0]))
        if self.has_nulls:
            yield f"{self.name}={NULL_LEVEL}"


_FIELDS = tuple(part.name for part in fields(Column))


@dataclass(frozen=True)
class Schema:
    """The encoding learned from the training data."""

    columns: tuple[Column, ...]
    target: str | None = None
    task: str = "classification"  # or "regression"
    classes: tuple[Label, ...] | None = None  # sorted labels; None for regression
    weight: str | None = None  # column of row weights
    infinite: str = "error"  # or "clip": infinities become the nearer bound
    null_target: str = "error"  # or "drop": rows without a target are dropped and counted
    left_out: tuple[tuple[str, str], ...] = field(default=())  # (column, why)
    target_range: tuple[float, float] | None = None  # of a regression target, where known
    time: str | None = None  # column of the rows' times, by which labels come
    time_kind: str = "time"  # or "number"
    class_weight: tuple[float, ...] | None = None  # [K], what weights of rows are multiplied by

    def __repr__(self) -> str:
        """Return one line; `describe` lists the columns."""
        parts = [counted(len(self.columns), "column"), counted(self.n_features, "feature")]
        if self.target is not None:
            parts.append(f"target={self.target!r}")
        return f"Schema({', '.join(parts)})"

    @cached_property
    def feature_names(self) -> list[str]:
        """Names of the encoded features, [d] in order."""
        names: list[str] = []
        seen: dict[str, int] = {}
        for column in self.columns:
            for name in column.features():
                seen[name] = seen.get(name, 0) + 1
                names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
        return names

    @property
    def n_features(self) -> int:
        """Number d of encoded features."""
        return sum(column.width for column in self.columns)

    @property
    def n_classes(self) -> int:
        """Number of classes; 0 for regression."""
        return len(self.classes) if self.classes is not None else 0

    def without_target(self) -> Schema:
        """Return the same encoding without target, weights and times."""
        return replace(self, target=None, weight=None, time=None, class_weight=None)

    @property
    def has_weights(self) -> bool:
        """Whether rows have weights: by a column, or by their classes."""
        return self.weight is not None or self.class_weight is not None

    @property
    def weight_in_words(self) -> str:
        """Description of where weights of rows come from, for people."""
        parts = [] if self.weight is None else [repr(self.weight)]
        return " and ".join(parts if self.class_weight is None else [*parts, "class_weight"])

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON-able values, with keys in a fixed order."""
        columns = [
            {
                key: list(value) if isinstance(value, tuple) else value
                for key in _FIELDS
                for value in (getattr(column, key),)
                if key != "hashed" or value  # earlier versions had no texts
            }
            for column in self.columns
        ]
        values: dict[str, Any] = {
            "format": FORMAT,
            "columns": columns,
            "target": self.target,
            "task": self.task,
            "classes": None if self.classes is None else list(self.classes),
            "weight": self.weight,
            "infinite": self.infinite,
            "null_target": self.null_target,
            "left_out": [list(pair) for pair in self.left_out],
            "target_range": None if self.target_range is None else list(self.target_range),
        }
        if self.time is not None:
            values["time"] = [self.time, self.time_kind]
        if self.class_weight is not None:
            values["class_weight"] = list(self.class_weight)
        return values

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        """Return the schema that `to_json` wrote.

        Raises
        ------
        SchemaError
            The mapping was not written by `to_json` or by a newer format.
        """
        format_there = data.get("format") if isinstance(data, Mapping) else type(data).__name__
        if type(format_there) is not int or format_there != FORMAT:
            raise SchemaError(f"expected a schema of format {FORMAT}, got {format_there!r}")
        try:
            columns = tuple(
                Column(
                    **{
                        **column,
                        "parts": tuple(column["parts"]),
                        "levels": tuple(column["levels"]),
                        "hashed": tuple(column.get("hashed", ())),
                    }
                )
                for column in data["columns"]
            )
            limits, classes = data["target_range"], data["classes"]
            time, time_kind = data.get("time", (None, "time"))
            of_classes = data.get("class_weight")
            schema = cls(
                columns=columns,
                target=data["target"],
                task=data["task"],
                classes=None if classes is None else tuple(classes),
                weight=data["weight"],
                infinite=data["infinite"],
                null_target=data["null_target"],
                left_out=tuple((name, why) for name, why in data["left_out"]),
                target_range=None if limits is None else (limits[0], limits[1]),
                time=time,
                time_kind=time_kind,
                class_weight=None if of_classes is None else tuple(of_classes),
            )
            _check(schema)
            return schema
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            text = repr(error)[:400]
            raise SchemaError(f"the stored schema is not whole: {text}") from error

    def describe(self) -> str:
        """Return a table of the columns: name, kind, number of features, and encoding."""
        rows = [("column", "kind", "type", "features", "encoding")]
        rows += [
            (
                column.name,
                column.kind,
                column.type.partition("<")[0],  # dictionary<values=...> would fill the line
                str(column.width),
                describe_encoding(column),
            )
            for column in self.columns
        ]
        rows += [(name, "-", "-", "0", f"left out: {why}") for name, why in self.left_out]
        rows = [tuple(on_one_line(cell) for cell in row) for row in rows]  # type: ignore[misc]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [
            "  ".join(
                [*(cell.ljust(size) for cell, size in zip(row, widths, strict=False)), row[4]]
            )
            for row in rows
        ]
        lines.append(
            f"{counted(len(self.columns), 'column')}, {counted(self.n_features, 'feature')}"
        )
        if self.target is not None:
            lines.append(f"target {self.target!r}: {self._describe_target()}")
        if self.weight is not None:
            lines.append(f"weight {self.weight!r}")
        if self.class_weight is not None and self.classes is not None:
            pairs = zip(self.classes, self.class_weight, strict=True)
            shown = ", ".join(f"{label!r} {weight:g}" for label, weight in [*pairs][:8])
            more = ", ..." if len(self.classes) > 8 else ""
            lines.append(f"weights of classes: {shown}{more}")
        if self.time is not None:
            lines.append(f"time {self.time!r}, by which labels come")
        return "\n".join(line.rstrip() for line in lines)

    def _describe_target(self) -> str:
        if self.classes is None:
            limits = self.target_range
            return "regression" + (f", {limits[0]:g} to {limits[1]:g}" if limits else "")
        shown = ", ".join(repr(label) for label in self.classes[:8])
        more = ", ..." if len(self.classes) > 8 else ""
        return f"{len(self.classes)} classes ({shown}{more})"


def _check(schema: Schema) -> None:
    """Raise ValueError unless data can be encoded with a stored schema."""
    for column in schema.columns:
        _check_column(column)
    for name in (schema.target, schema.weight, schema.time):
        _expect(name is None or isinstance(name, str), "target, weight or time", name)
    _expect(schema.time_kind in ("time", "number"), "kind of the time", schema.time_kind)
    _expect(schema.task in ("classification", "regression"), "task", schema.task)
    _expect(schema.infinite in ("error", "clip"), "infinite", schema.infinite)
    _expect(schema.null_target in ("error", "drop"), "null_target", schema.null_target)
    classes = schema.classes
    are_labels = classes is None or all(type(label) in (str, int, bool) for label in classes)
    _expect(are_labels and classes != (), "classes", classes)
    are_texts = all(isinstance(text, str) for pair in schema.left_out for text in pair)
    _expect(are_texts, "left_out", schema.left_out)
    weights = schema.class_weight
    are_weights = weights is None or (
        classes is not None
        and len(weights) == len(classes)
        and all(_is_number(weight) and weight >= 0.0 for weight in weights)
    )
    _expect(are_weights, "class_weight", weights)
    limits = schema.target_range
    _expect(limits is None or all(map(_is_number, limits)), "target_range", limits)


def _check_column(column: Column) -> None:
    name, bounds = column.name, (column.lower, column.upper)
    _expect(isinstance(name, str), "name", name)
    kinds = ("number", "time", "category", "text")
    _expect(column.kind in kinds, f"kind of {name!r}", column.kind)
    are_counts = all(type(number) is int and number >= 1 for number in column.hashed)
    is_hashed = are_counts and len(column.hashed) == 2 * (column.kind == "text")
    _expect(is_hashed, f"features of the words of {name!r}", column.hashed)
    _expect(isinstance(column.type, str), f"type of {name!r}", column.type)
    _expect(all(b is None or _is_number(b) for b in bounds), f"bounds of {name!r}", bounds)
    is_known = all(isinstance(part, str) and part in _KNOWN_PARTS for part in column.parts)
    _expect(is_known, f"parts of {name!r}", column.parts)
    if column.lower is None or column.upper is None or not column.lower < column.upper:
        _expect(not {"value", "linear"} & set(column.parts), f"bounds of {name!r}", bounds)
    are_texts = all(isinstance(level, str) for level in column.levels)
    _expect(are_texts, f"levels of {name!r}", column.levels)
    _expect(type(column.has_nulls) is bool, f"has_nulls of {name!r}", column.has_nulls)
    least = max(len(column.levels), 1 - int(column.has_nulls)) if column.kind == "category" else 0
    is_count = type(column.n_distinct) is int and least <= column.n_distinct < 2**62
    _expect(is_count, f"n_distinct of {name!r}", column.n_distinct)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _expect(is_so: bool, what: str, came: Any) -> None:
    if not is_so:
        raise ValueError(f"{str(what)[:80]} cannot be {str(came)[:80]!r}")


def describe_encoding(column: Column) -> str:
    """Return a short description of a column's encoding."""
    null = ", null indicator" if column.has_nulls else ""
    if column.kind == "category":
        some = [
            level if len(level) <= _SHOWN else f"{level[:_SHOWN]}..." for level in column.levels[:4]
        ]
        some = [f'"{level}"' if "," in level else level for level in some]
        shown = ", ".join(some) + (", ..." if len(column.levels) > 4 else "")
        return f"{counted(len(column.levels), 'level')} ({shown}) and other{null}"
    if column.kind == "text":
        longest = column.hashed[1]
        runs = f" and of runs of up to {longest}" if longest > 1 else ""
        return f"{counted(column.hashed[0], 'hash', 'hashes')} of words{runs}{null}"
    if column.lower is None or column.upper is None or not column.parts:
        return "null indicator only (the value is constant)"
    if column.kind == "time":
        low, high = (_date(bound) for bound in (column.lower, column.upper))
        return f"{low} to {high}: {', '.join(column.parts)}{null}"
    return f"{column.lower:.7g} to {column.upper:.7g}{null}"  # 1484705 is better than 1.4847e+06


def _date(micros: float) -> str:
    """Return a time as text; Python's hold four digits of a year, so count eras of 400 apart."""
    eras, rest = divmod(int(micros), _ERA)
    text = (datetime(1970, 1, 1) + timedelta(microseconds=rest)).isoformat(sep=" ")
    return f"{int(text[:4]) + 400 * eras:04d}{text[4:]}"
