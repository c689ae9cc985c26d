"""Learning of the schema: bounds, levels, labels and parts, from footers if they suffice.

Relies on `footers` for bounds and on `scan` for the rest. Promises: a column is read only if its
footers lack what its kind needs; columns that do not vary are left out with the reason; the result
depends on the values only, not on how they are distributed over files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from dmondrian.data.arrow_values import CATEGORY, MICROS_PER_DAY, NUMBER, TEXT, TIME
from dmondrian.data.columns import Draft
from dmondrian.data.footers import Bounds, Footer
from dmondrian.data.scan import (
    MAX_DISTINCT,
    CategoryScan,
    NumberScan,
    Scan,
    TextScan,
    TimeScan,
    scan,
)
from dmondrian.data.schema import Column, Label, Schema
from dmondrian.data.target import (
    MIN_GROUP,
    LabelScan,
    ValueScan,
    bounds_look_sorted,
    ranges_look_pure,
)
from dmondrian.errors import DataError, SchemaError

SAMPLE_ROWS = 1_000_000  # rows scanned for NaN in float columns and for times of day
MIN_ROW_NUMBERS = 100  # with fewer rows, integers may well count something else
MANY_CLASSES = 1_000  # a target with as many gets a note
FEW_CLASSES, ROWS_PER_CLASS = 50, 10  # as does one with more, and fewer rows per class
LOW_COVER = 0.5  # a category whose kept levels cover a smaller share gets a note


@dataclass
class Findings:
    """Notes and warnings about the data."""

    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Learner:
    """Learns one schema from one source."""

    def __init__(
        self,
        footers: Sequence[Footer],
        partitions: Mapping[str, pa.DataType],
        drafts: Mapping[str, Draft],
        left_out: Sequence[tuple[str, str]],
        target: str | None,
        weight: str | None,
    ) -> None:
        self._footers = footers
        self._partitions = partitions
        self._drafts = dict(drafts)
        self._left_out = list(left_out)
        self._target = target
        self._weight = weight
        self._findings = Findings()
        self._rows = sum(footer.rows for footer in footers)
        self._bounds: dict[str, tuple[float, float, int] | None] = {}  # by column
        for name, role in ((target, "target"), (weight, "weight")):
            if name is not None and name not in self._drafts:
                why = dict(self._left_out).get(name, "excluded")
                raise DataError(f"the {role} {name!r} cannot be used: {why}")
        if weight is not None and self._drafts[weight].kind != NUMBER:
            kind = self._drafts[weight].type
            raise SchemaError(f"the weight {weight!r} must be a number, its type is {kind}")

    def learn(
        self,
        max_categories: int,
        classes: Sequence[Label] | None,
        *,
        task: str,
        infinite: str,
        null_target: str,
        shuffle: bool,
        hashed: tuple[int, int],
    ) -> tuple[Schema, Findings]:
        """Scan the columns that need it; return the schema and the findings."""
        features = {
            name: draft
            for name, draft in self._drafts.items()
            if name not in (self._target, self._weight)
        }
        makers, sampled = self._plan_scans(features)
        target_maker = self._target_maker(task)
        if self._target is not None and target_maker is not None:
            makers[self._target] = target_maker
        scans = scan(self._footers, self._partitions, makers, sampled, SAMPLE_ROWS)
        columns = []
        for name, draft in features.items():
            made = self._make_column(draft, scans.get(name), max_categories, infinite, hashed)
            if isinstance(made, str):
                self._left_out.append((name, made))
            else:
                columns.append(made)
        if not columns:
            raise DataError(
                "no column is left to learn from: "
                + "; ".join(f"{name!r}: {why}" for name, why in self._left_out)
            )
        limits: tuple[float, float] | None = None
        labels: tuple[Label, ...] | None = None
        if self._target is not None:
            labels, limits = self._resolve_target(scans, task, null_target, classes, shuffle)
        return Schema(
            columns=tuple(columns),
            target=self._target,
            task=task,
            classes=labels,
            weight=self._weight,
            infinite=infinite,
            null_target=null_target,
            left_out=tuple(self._left_out),
            target_range=limits,
        ), self._findings

    def _plan_scans(
        self, features: Mapping[str, Draft]
    ) -> tuple[dict[str, Callable[[], Scan]], dict[str, Callable[[], Scan]]]:
        """Return the columns to scan whole, and those to sample."""
        whole: dict[str, Callable[[], Scan]] = {}
        sampled: dict[str, Callable[[], Scan]] = {}
        for name, draft in features.items():
            if draft.kind == CATEGORY:
                whole[name] = CategoryScan
            elif draft.kind == TEXT:
                whole[name] = TextScan
            elif draft.kind == NUMBER:
                bounds = self._merged(name)
                if bounds is None or not (math.isfinite(bounds[0]) and math.isfinite(bounds[1])):
                    whole[name] = NumberScan
                elif draft.is_floating:
                    sampled[name] = NumberScan
            elif self._merged(name) is None:
                whole[name] = TimeScan
            elif not pa.types.is_date(draft.type):
                sampled[name] = TimeScan
        return whole, sampled

    def _target_maker(self, task: str) -> Callable[[], Scan] | None:
        if self._target is None:
            return None
        draft = self._drafts[self._target]
        if task == "classification":
            return partial(LabelScan, self._target)
        if draft.kind != NUMBER:
            raise SchemaError(
                f"the target {self._target!r} is {draft.type}: a regression needs a number; for "
                'labels use a classifier, such as algorithm = "amf-classifier" in a job file '
                '(task="classification" of a plan or of `dmondrian schema`)'
            )
        if draft.is_floating or self._merged(self._target) is None:
            return partial(ValueScan, self._target)
        return None

    def _chunks(self, name: str) -> list[Bounds] | None:
        """Return the footer bounds of all row groups with rows; None if a file lacks the column."""
        chunks: list[Bounds] = []
        for footer in self._footers:
            if name not in footer.types:
                return None
            if pa.types.is_null(footer.types[name]):
                chunks += [
                    Bounds(None, None, rows, all_null=True) for rows in footer.group_rows if rows
                ]
                continue
            bounds = footer.bounds.get(name)
            if bounds is None:
                return None
            chunks += [chunk for chunk, rows in zip(bounds, footer.group_rows, strict=True) if rows]
        return chunks

    def _merged(self, name: str) -> tuple[float, float, int] | None:
        """Return bounds and nulls over all row groups; None if a footer lacks them."""
        if name not in self._bounds:
            self._bounds[name] = self._merge(name)
        return self._bounds[name]

    def _merge(self, name: str) -> tuple[float, float, int] | None:
        chunks = self._chunks(name)
        if chunks is None:
            return None
        lower, upper, nulls = math.inf, -math.inf, 0
        for chunk in chunks:
            if chunk.nulls is None:
                return None
            nulls += chunk.nulls
            if chunk.all_null:
                continue
            if chunk.lower is None or chunk.upper is None:
                return None
            lower, upper = min(lower, chunk.lower), max(upper, chunk.upper)
        return (lower, upper, nulls) if lower <= upper else None

    def _make_column(
        self,
        draft: Draft,
        scanned: Scan | None,
        max_categories: int,
        infinite: str,
        hashed: tuple[int, int],
    ) -> Column | str:
        """Return the column, or the reason why it is left out."""
        if isinstance(scanned, TextScan):
            if not scanned.has_words:
                return "no text has a word"
            nulls = scanned.nulls > 0
            return Column(draft.name, TEXT, str(draft.type), has_nulls=nulls, hashed=hashed)
        if isinstance(scanned, CategoryScan):
            return self._category_column(draft, scanned, max_categories)
        if draft.kind == TIME:
            return self._time_column(
                draft, scanned if isinstance(scanned, TimeScan) else None, infinite
            )
        return self._number_column(
            draft, scanned if isinstance(scanned, NumberScan) else None, infinite
        )

    def _number_column(
        self, draft: Draft, scanned: NumberScan | None, infinite: str
    ) -> Column | str:
        name = draft.name
        _refuse_infinities(draft, scanned, infinite)
        merged = self._merged(name)
        nulls = 0 if scanned is None else scanned.nulls
        if merged is None or not (math.isfinite(merged[0]) and math.isfinite(merged[1])):
            assert scanned is not None  # such columns are always scanned
            lower, upper = scanned.lower, scanned.upper
        else:
            lower, upper = merged[0], merged[1]
            nulls = max(nulls, merged[2])
        if lower > upper:
            return "without a finite value" if scanned and scanned.infinities else "all null"
        lower, upper = lower + 0.0, upper + 0.0  # no -0
        if pa.types.is_integer(draft.type) and not nulls and self._rows > MIN_ROW_NUMBERS:
            self._note_row_numbers(name, lower, upper)
        if lower == upper and not nulls:
            return f"constant ({lower:g})"
        parts = ("value",) if lower < upper else ()
        return Column(name, NUMBER, str(draft.type), lower, upper, parts, has_nulls=nulls > 0)

    def _note_row_numbers(self, name: str, lower: float, upper: float) -> None:
        if lower in (0.0, 1.0) and upper - lower + 1.0 == self._rows:
            self._findings.notes.append(
                f"{name!r} goes from {lower:,.0f} to {upper:,.0f} in {self._rows:,} rows: if it "
                "numbers them, it has no information on later rows; consider excluding it"
            )

    def _time_column(self, draft: Draft, scanned: TimeScan | None, infinite: str) -> Column | str:
        _refuse_infinities(draft, scanned, infinite)
        merged = self._merged(draft.name)
        nulls = 0 if scanned is None else scanned.nulls
        if merged is not None:
            lower, upper = int(merged[0]), int(merged[1])
            nulls = max(nulls, merged[2])
        elif scanned is None or scanned.lower is None or scanned.upper is None:
            return "without a finite value" if scanned and scanned.infinities else "all null"
        else:
            lower, upper = scanned.lower, scanned.upper
        if lower == upper and not nulls:
            return "constant (one moment)"
        parts = ["linear"] if float(lower) < float(upper) else []  # the encoding is float
        # bounds that are not midnight prove hours even where the sample shows none
        has_hours = scanned is not None and scanned.has_hours
        if lower < upper and (has_hours or lower % MICROS_PER_DAY or upper % MICROS_PER_DAY):
            parts.append("hour")
        if lower // MICROS_PER_DAY < upper // MICROS_PER_DAY:
            parts.append("weekday")
        if _month(lower) < _month(upper):
            parts.append("month")
        kind = str(draft.type)
        return Column(draft.name, TIME, kind, lower, upper, tuple(parts), has_nulls=nulls > 0)

    def _category_column(self, draft: Draft, scanned: CategoryScan, most: int) -> Column | str:
        name, counts = draft.name, scanned.counts
        if scanned.is_overfull:
            self._note_free_text(name, scanned)
            return f"more than {MAX_DISTINCT} different values, so an identifier"
        rows = sum(counts.values())
        if not counts:
            return "all null"
        if len(counts) == 1 and not scanned.nulls:
            return f"constant ({next(iter(counts))!r})"
        if len(counts) == rows and rows > most:
            self._note_free_text(name, scanned)
            return f"an identifier: {rows} rows, all different"
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]
        if len(counts) > most:
            covered = sum(count for _, count in ranked) / rows
            hint = "; consider excluding it" if covered < LOW_COVER else ""
            self._findings.notes.append(
                f"{name!r} has {len(counts)} levels: the {most} most frequent "
                f"({covered:.1%} of its rows) are kept, the others share one{hint}"
            )
            self._note_free_text(name, scanned)
        levels = tuple(sorted(level for level, _ in ranked))
        return Column(
            name,
            CATEGORY,
            str(draft.type),
            levels=levels,
            n_distinct=len(counts),
            has_nulls=scanned.nulls > 0,
        )

    def _note_free_text(self, name: str, scanned: CategoryScan) -> None:
        if scanned.looks_like_text:
            self._findings.notes.append(
                f"{name!r} looks like free text: name it in `text` to learn its words"
            )

    def _resolve_target(
        self,
        scans: Mapping[str, Scan],
        task: str,
        null_target: str,
        classes: Sequence[Label] | None,
        shuffle: bool,
    ) -> tuple[tuple[Label, ...] | None, tuple[float, float] | None]:
        name = str(self._target)
        scanned = scans.get(name)
        if isinstance(scanned, LabelScan):
            self._refuse_missing(scanned.nulls, scanned.first_null, "null", null_target)
            labels = _classes(name, scanned, classes)
            self._note_classes(len(scanned.counts), sum(scanned.counts.values()))
            self._note_order(scanned.looks_sorted(), scanned.groups_look_pure(), shuffle)
            return labels, None
        if isinstance(scanned, ValueScan):
            self._refuse_missing(scanned.nulls, scanned.first_null, "null or NaN", null_target)
            self._refuse_missing(
                scanned.infinities, scanned.first_infinity, "infinite", null_target
            )
            lower, upper, is_sorted = scanned.lower, scanned.upper, scanned.looks_sorted()
            ranges = scanned.ranges
        else:
            merged = self._merged(name)
            assert merged is not None  # otherwise it was scanned
            lower, upper = merged[0], merged[1]
            self._refuse_missing(merged[2], "", "null", null_target)
            chunks = self._chunks(name) or []
            is_sorted = bounds_look_sorted(
                [(c.lower, c.upper) for c in chunks if c.lower is not None and c.upper is not None]
            )
            group_rows = [n for footer in self._footers for n in footer.group_rows if n]
            ranges = [
                (chunk.lower, chunk.upper)
                for chunk, n in zip(chunks, group_rows, strict=True)
                if n >= MIN_GROUP and chunk.lower is not None and chunk.upper is not None
            ]
        if lower > upper:
            raise DataError(f"the target {name!r} has no finite value: there is nothing to learn")
        self._note_order(is_sorted, ranges_look_pure(ranges), shuffle)
        return None, (lower, upper)

    def _note_classes(self, classes: int, rows: int) -> None:
        """Add a note for a target with so many classes that it may be an id or a number."""
        is_sparse = classes > FEW_CLASSES and rows < ROWS_PER_CLASS * classes
        if classes < MANY_CLASSES and not is_sparse:
            return
        every = "all different" if classes == rows else f"{rows / classes:.1f} a class"
        self._findings.notes.append(
            f"the target {self._target!r} has {classes:,} classes in {rows:,} rows ({every}), and "
            "nodes of trees count each of them: is it an id? A number to predict needs a regressor"
        )

    def _refuse_missing(self, number: int, first: str, what: str, null_target: str) -> None:
        if not number:
            return
        rows = "row" if number == 1 else "rows"
        if null_target == "drop":
            self._findings.notes.append(
                f"{number} {rows} with a target {self._target!r} that is {what}: dropped"
            )
            return
        place = f", first at {first}" if first else ""
        raise DataError(
            f"the target {self._target!r} is {what} in {number} {rows}{place}: fill them in, or "
            'drop such rows with null_target="drop"'
        )

    def _note_order(self, rows_sorted: bool, groups_pure: bool, shuffle: bool) -> None:
        if rows_sorted and not shuffle:
            self._findings.warnings.append(
                f"the rows look sorted by the target {self._target!r} (neighbours nearly always "
                "agree), which misleads a forest that learns row by row: use shuffle=True (in a "
                "job file: shuffle = true) unless the order is the point"
            )
        elif groups_pure and not shuffle:
            self._findings.warnings.append(
                f"whole row groups hold nearly one value of the target {self._target!r}, which "
                "misleads a forest that learns row by row: use shuffle=True (in a job file: "
                "shuffle = true) unless the order is the point"
            )


def _classes(name: str, scanned: LabelScan, classes: Sequence[Label] | None) -> tuple[Label, ...]:
    rows = sum(scanned.counts.values())
    labels: set[Label] = set(scanned.counts)
    if classes is not None:
        unknown = sorted(map(repr, labels - set(classes)))
        if unknown:
            raise DataError(
                f"the target {name!r} has labels that `classes` does not list: "
                f"{', '.join(unknown[:8])}; list them too"
            )
        labels = set(classes)
    if len(labels) < 2:
        which = f"only {next(iter(labels))!r}, in all {rows} rows" if labels else "none"
        raise DataError(
            f"the target {name!r} needs at least two classes, got {which}: check the column, or "
            "name all labels that may come in `classes`"
        )
    if len({type(label) for label in labels}) > 1:
        kinds = sorted({type(label).__name__ for label in labels})
        raise DataError(f"the labels of {name!r} are of several types ({', '.join(kinds)})")
    return tuple(sorted(labels))


def _refuse_infinities(draft: Draft, scanned: NumberScan | TimeScan | None, infinite: str) -> None:
    if scanned is None or not scanned.infinities or infinite == "clip":
        return
    values = "infinite values" if scanned.infinities > 1 else "infinite value"
    raise DataError(
        f"the column {draft.name!r} holds {scanned.infinities} {values}, the first at "
        f"{scanned.first_infinity}: expected finite {draft.kind}s; correct them, exclude the "
        'column, or use infinite="clip"'
    )


def _month(micros: float) -> int:
    """Return the months since 1970."""
    return int(np.datetime64(int(micros), "us").astype("datetime64[M]").astype(int))
