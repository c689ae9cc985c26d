"""Differences between a job and the one of a run folder, as keys of a job file.

Relies on run.json and the plans of both. Promises to name the key that was changed, not its
consequences; and nothing for differences that no key makes, such as other files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dmondrian.data import Column, Plan
from dmondrian.data.arrow_values import CATEGORY, TEXT, TIME

_NOTHING = object()  # the value of a key unknown to that version
_LONGEST = 120  # characters of a value
_MOST_COLUMNS = 5  # most differently encoded columns that are named


def job_differences(
    there: Mapping[str, Any], here: Mapping[str, Any], then: Plan, now: Plan
) -> list[str]:
    """Return a line for each key of a job file that differs.

    Parameters
    ----------
    there, here : mapping
        run.json of the folder, and of the job.
    then, now : Plan
        Of the folder, and of the job.

    Returns
    -------
    list of str
        Such as ``[data] exclude: [] there, ["age"] here``. Keys of ``[forest]`` and ``[run]`` are
        those of the estimator and of :func:`dmondrian.distributed.train`.
    """
    pairs = [
        *_forest(there, here),
        *_data(then, now),
        *_run(there, here),
    ]
    lines = []
    for key, a, b in pairs:
        none = '"none"' if key.startswith("[forest]") else "nothing"
        if a != b:
            lines.append(f"{key}: {_shown(a, none)} there, {_shown(b, none)} here")
    return lines


_Pairs = Iterator[tuple[str, Any, Any]]


def _forest(there: Mapping[str, Any], here: Mapping[str, Any]) -> _Pairs:
    yield "[forest] algorithm", there.get("algorithm"), here.get("algorithm")
    if there.get("algorithm") == here.get("algorithm"):
        a, b = there.get("estimator") or {}, json.loads(json.dumps(here.get("estimator") or {}))
        for name in {**a, **b}:
            if a.get(name) != b.get(name):
                yield f"[forest] {name}", a.get(name, _NOTHING), b.get(name, _NOTHING)


def _data(then: Plan, now: Plan) -> _Pairs:
    a, b = then.schema, now.schema
    for name in ("target", "weight", "time", "infinite", "null_target"):
        yield f"[data] {name}", getattr(a, name), getattr(b, name)
    if a.target == b.target and a.task == b.task and a.classes != b.classes:
        yield "[data] classes", list(a.classes or ()), list(b.classes or ())
    yield "[data] exclude", sorted(then.excluded), sorted(now.excluded)
    if then.included is not None and now.included is not None:
        yield "[data] include", sorted(then.included), sorted(now.included)
    yield "[data] shuffle", then.shuffle, now.shuffle
    if then.shuffle and now.shuffle:
        yield "[data] seed", then.seed, now.seed
    excluded = {*then.excluded, *now.excluded}
    yield from _columns(*({c.name: c for c in s.columns if c.name not in excluded} for s in (a, b)))


def _columns(then: Mapping[str, Column], now: Mapping[str, Column]) -> _Pairs:
    """Yield keys, or columns of the data, whose change made columns be encoded differently."""
    both = [(before, now[name]) for name, before in then.items() if name in now]
    kinds = [
        (before.name, before.kind, after.kind)
        for before, after in both
        if before.kind != after.kind
    ]
    # Columns that were left out until an option named them, or are now.
    kinds += [
        (name, "", now[name].kind) for name in now if name not in then and _is_named(now[name])
    ]
    kinds += [
        (name, then[name].kind, "") for name in then if name not in now and _is_named(then[name])
    ]
    texts = [(name, a, b) for name, a, b in kinds if TEXT in (a, b)]
    if categories := [change for change in kinds if change not in texts]:
        yield "[data] categorical", *_named(categories, CATEGORY)
    if texts:
        yield "[data] text", *_named(texts, TEXT)
    hashed = next(((a.hashed, b.hashed) for a, b in both if a.kind == b.kind == TEXT), None)
    if hashed is not None:
        for at, name in enumerate(("text_features", "text_words")):
            yield f"[data] {name}", hashed[0][at], hashed[1][at]
    times = [(a, b) for a, b in both if a.kind == b.kind == TIME]
    yield (
        "[data] cyclic",
        [a.name for a, _ in times if a.is_cyclic],
        [b.name for _, b in times if b.is_cyclic],
    )
    cut = [
        (len(a.levels), len(b.levels))
        for a, b in both
        if a.n_distinct == b.n_distinct and len(a.levels) != len(b.levels)
    ]
    if cut:
        yield "[data] max_categories", max(a for a, _ in cut), max(b for _, b in cut)
    others = [
        (before, after)
        for before, after in both
        if before.kind == after.kind and (before.n_distinct != after.n_distinct or not cut)
    ]
    changed = [(a, b) for a, b in others if replace(a.as_cyclic(b.is_cyclic), hashed=b.hashed) != b]
    for before, after in changed[:_MOST_COLUMNS]:
        yield f"the data, in the column {before.name!r}", _values(before), _values(after)


def _is_named(column: Column) -> bool:
    """Whether a column is read because an option names it: a text, bytes as a category."""
    return column.kind == TEXT or (column.kind == CATEGORY and "binary" in column.type)


def _named(changes: Sequence[tuple[str, str, str]], kind: str) -> tuple[list[str], list[str]]:
    """Return the columns that were of a kind, and those that are."""
    return (
        [name for name, before, _ in changes if before == kind],
        [name for name, _, after in changes if after == kind],
    )


def _run(there: Mapping[str, Any], here: Mapping[str, Any]) -> _Pairs:
    yield "[run] progressive", there.get("progressive"), here.get("progressive")
    n_there, n_here = (len(run.get("row_parts") or ()) or None for run in (there, here))
    yield "[run] row_parts", n_there, n_here
    a, b = there.get("shards") or [], here.get("shards") or []
    if a and b:
        yield "[run] first_tree", a[0][0], b[0][0]
        if there.get("n_estimators") == here.get("n_estimators"):
            yield "[run] n_shards", len(a), len(b)


def _values(column: Column) -> str:
    if column.kind == CATEGORY:
        return f"{column.n_distinct} levels"
    nulls = ", and nulls" if column.has_nulls else ""
    return f"{column.type} from {column.lower} to {column.upper}{nulls}"


def _shown(value: Any, none: str) -> str:
    """Return a value as TOML has it."""
    text = "nothing" if value is _NOTHING else _in_toml(value, none)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _in_toml(value: Any, none: str) -> str:
    if value is None:
        return none
    if isinstance(value, list | tuple):
        return f"[{', '.join(_in_toml(item, none) for item in value)}]"
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(str(key))} = {_in_toml(item, none)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    return json.dumps(value, ensure_ascii=False, default=str)
