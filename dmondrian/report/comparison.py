"""Differences between runs, and which forecast better, where that can be known.

Relies on :mod:`dmondrian.report.facts`. Promises to call a run better only where the metrics are of
the same rows, with the same target and weights, forecast equally far ahead; else the reason stands
beside them.

Metrics are means over rows: of all rows of a run, of its last ones, and of the first rows that
runs of different length have in common, at a position that is a point of all of their curves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from dmondrian._text.wording import counted
from dmondrian.data import Column, common_rows
from dmondrian.data.schema import describe_encoding
from dmondrian.distributed.metrics.curve import NAMES
from dmondrian.errors import ParameterError
from dmondrian.prequential.forecast_lag import delay_in_words
from dmondrian.report.facts import Facts, gather
from dmondrian.report.rerun_job import job_tables

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Names of runs in a comparison."""

_METRICS = (*NAMES, "r2")
_HIGHER = ("accuracy", "r2")  # is better; of the others lower is
_CHOSEN = ("auto", "learned")  # values of parameters for which the forest chooses others
_TASKS = {"classifier": "classes", "regressor": "numbers", "density": "the density of rows"}


@dataclass
class _ComparableRuns:
    """Runs whose metrics are of the same rows, forecast equally far ahead.

    Attributes
    ----------
    runs : list of int
        Their places.
    rows : int
        First rows that all of them have in common.
    """

    runs: list[int]
    rows: int


def compare_runs(runs: Sequence[str | PathLike[str]]) -> dict[str, Any]:
    """Return what differs between runs, finished or in progress, and their metrics side by side.

    Parameters
    ----------
    runs : sequence of str or path
        Two to 26 run folders or URLs, or what ``save`` wrote; ``@position`` picks a checkpoint.

    Returns
    -------
    dict
        JSON values. Lists in it have a value for each run, None where a run has none:

        ``runs``
            ``name`` (A, B, ...), address, algorithm, target, rows learned and whether it is final.
        ``settings``, ``data``, ``versions``
            By ``key``, those that differ, with their ``values``. Settings are keys of job files.
            Data are rows and encodings: columns that one run left out by itself and another by its
            job are no difference.
        ``alike``
            Groups of ``runs`` (names) whose metrics are of the same first ``rows``, forecast
            ``delay`` ahead (None: by a mini-batch of unknown size).
        ``reasons``
            Why others cannot be compared with those, or have no metrics.
        ``metrics``
            Of each ``metric`` and ``span`` the ``values``, of how many ``rows``, and the names that
            are ``better`` than others of their group.
        ``curves``
            By metric, the ``rows`` that are points of all curves, and ``values`` there, by run.
        ``work``
            By ``key``, time and sizes.

    Raises
    ------
    CheckpointError
        There is no such run, or its checkpoint is damaged.
    ParameterError
        There is one run alone, or too many, or they do not forecast the same kind of thing.
    """
    return compared(gather_all(runs))


def gather_all(runs: Sequence[str | PathLike[str]]) -> list[Facts]:
    """Return the facts of runs that can be compared; raises as ``compare_runs`` does."""
    if not 2 <= len(runs) <= len(LETTERS):
        raise ParameterError(
            f"{counted(len(runs), 'run')} to compare; expected 2 to {len(LETTERS)}"
        )
    first, *others = all_facts = [gather(str(run)) for run in runs]
    for later in others:
        if _task(later) != _task(first):
            raise ParameterError(
                f"{first.name} forecasts {_task(first)}, and {later.name} {_task(later)}: "
                "runs of different tasks cannot be compared"
            )
    return all_facts


def compared(facts: Sequence[Facts]) -> dict[str, Any]:
    """Return the comparison of runs, as ``compare_runs`` does."""
    reports = [
        {} if of_run.progressive is None else of_run.progressive.report() for of_run in facts
    ]
    alike, reasons = _groups(facts, reports)
    return {
        "runs": [_about(name, of_run) for name, of_run in zip(LETTERS, facts, strict=False)],
        "settings": sorted(_differences([_settings(of_run) for of_run in facts]), key=_place),
        "data": [
            *_differences([_data(of_run) for of_run in facts]),
            *_rows(facts),
            *_columns(facts),
        ],
        "versions": _differences([of_run.run_json.get("created_by") or {} for of_run in facts]),
        "alike": [
            {
                "runs": [LETTERS[k] for k in group.runs],
                "rows": group.rows,
                "delay": reports[group.runs[0]]["delay"],
            }
            for group in alike
            if len(group.runs) > 1
        ],
        "reasons": reasons,
        "metrics": list(_metrics(reports, alike)),
        "curves": _curves(reports),
        "work": _as_rows([_work(of_run) for of_run in facts]),
    }


def better_runs(
    metric: str, values: Sequence[float | None], alike: Sequence[_ComparableRuns]
) -> list[str]:
    """Return the names of those runs whose value is the best of their group, unless all are."""
    sign = -1.0 if metric in _HIGHER else 1.0
    names: list[str] = []
    for group in alike:
        known = [(sign * value, k) for k in group.runs
                 if (value := values[k]) is not None and math.isfinite(value)]  # fmt: skip
        least = min(known, default=(math.nan, 0))[0]
        best = [k for value, k in known if value == least]
        if len(best) < len(known):
            names += [LETTERS[k] for k in best]
    return names


def _task(facts: Facts) -> str:
    kind = str(facts.run_json.get("algorithm")).rpartition("-")[2]
    return _TASKS.get(kind, kind)


def _about(name: str, facts: Facts) -> dict[str, Any]:
    manifest = facts.manifest
    return {
        "name": name,
        "run": facts.name,
        "algorithm": facts.run_json.get("algorithm"),
        "target": facts.run_json.get("target"),
        "rows": 0 if manifest is None else manifest.position - facts.n_waiting,
        "final": manifest is not None and manifest.final,
    }


def _settings(facts: Facts) -> dict[str, Any]:
    """Return keys of a job file that determine the forest, and what it chose for "auto"."""
    tables = job_tables(facts)
    if facts.plan is not None:  # all files, also those that came later
        files = facts.files
        tables["data"]["path"] = files[0] if len(files) == 1 else files
    settings = {
        f"{table}.{key}": value
        for table, keys in tables.items()
        for key, value in keys.items()
        if value is not None
    }
    for name, value in tables["forest"].items():
        used = facts.parameters.get(name)
        if value in _CHOSEN and used is not None:
            settings[f"forest.{name}, now"] = used
    if "random_state" not in tables["forest"]:
        settings["forest.random_state, drawn"] = (facts.run_json.get("parameters") or {}).get(
            "seed"
        )
    return settings


def _place(row: Mapping[str, Any]) -> tuple[str, bool, str]:
    """Return where a setting stands: by its table, the algorithm first."""
    table, _, key = row["key"].partition(".")
    return table, key != "algorithm", key


def _data(facts: Facts) -> dict[str, Any]:
    """Return what is learned of which stream."""
    manifest, plan, schema = facts.manifest, facts.plan, facts.schema
    values: dict[str, Any] = {
        "rows of the stream": None if plan is None else plan.n_rows,
        "rows learned": 0 if manifest is None else manifest.position - facts.n_waiting,
        "rows that wait for their labels": facts.n_waiting,
        "classes": facts.run_json.get("classes"),
    }
    if schema is not None:
        values["columns"] = len(schema.columns)
        values["features"] = schema.n_features
        values["rows without a target, dropped"] = facts.counts.get("null_target", 0)
    return values


def _rows(facts: Sequence[Facts]) -> list[dict[str, Any]]:
    """Return a row of how many first rows are those of the first run, unless all of each are.

    Digests of plans would not do: they have the reasons why columns are left out.
    """
    ends = [0 if of_run.manifest is None else of_run.manifest.position for of_run in facts]
    first = next((k for k, of_run in enumerate(facts) if of_run.plan is not None), None)
    if first is None:
        return []
    plan, values, are_all = facts[first].plan, [], True
    assert plan is not None
    for of_run, end in zip(facts, ends, strict=True):
        wanted = min(end, ends[first])
        rows = None if of_run.plan is None else min(common_rows(plan, of_run.plan), wanted)
        are_all = are_all and rows == wanted
        values.append(rows)
    return (
        [] if are_all else [{"key": f"first rows as those of {LETTERS[first]}", "values": values}]
    )


def _columns(facts: Sequence[Facts]) -> list[dict[str, Any]]:
    """Return rows of columns that not all runs use, or that they encode in other ways."""
    by_name = [
        {c.name: replace(c, type="") for c in of_run.schema.columns}
        for of_run in facts
        if of_run.schema is not None
    ]
    if len(by_name) < len(facts):
        return []
    rows = []
    for row in _differences(by_name):
        texts = [None if column is None else _encoding(column) for column in row["values"]]
        full = [None if c is None else describe_encoding(c) for c in row["values"]]
        if len(set(texts)) == 1 < len(set(full)):
            texts = full
        elif len(set(texts)) == 1:  # levels beyond the first, or last digits
            alike = [column == row["values"][0] for column in row["values"]]
            texts = [text if is_alike else f"{text}, not as of {LETTERS[0]}"
                     for text, is_alike in zip(texts, alike, strict=True)]  # fmt: skip
        rows.append({"key": f"column {row['key']}", "values": texts})
    names = [
        [name for name in columns if all(name in other_columns for other_columns in by_name)]
        for columns in by_name
    ]
    orders = _differences([{"order of the columns": order} for order in names])
    return rows + orders


def _encoding(column: Column) -> str:
    nulls = ", nulls" if column.has_nulls else ""
    if column.kind == "category":
        return f"category of {counted(len(column.levels), 'level')}{nulls}"
    if column.kind == "text":
        return f"text, {describe_encoding(column)}"
    return f"{column.kind}, {column.lower:g} to {column.upper:g}{nulls}" if (
        column.kind == "number" and column.lower is not None and column.upper is not None
    ) else f"{column.kind}{nulls}"  # fmt: skip


def _work(facts: Facts) -> dict[str, Any]:
    """Return time and sizes; the time at an earlier checkpoint is not known."""
    manifest = facts.manifest
    rows = 0 if manifest is None else manifest.position
    seconds = facts.seconds if facts.position is None and facts.seconds > 0.0 else None
    stored = None if manifest is None else manifest.stored_bytes
    return {
        "seconds of work": seconds,
        "rows a second": None if seconds is None else rows / seconds,
        "hosts": list(dict.fromkeys(holder.host for holder in facts.holders)),
        "trees": facts.n_trees,
        "nodes": facts.n_nodes,
        "bytes in memory": facts.n_bytes,
        "bytes stored": stored,
    }


def _as_rows(mappings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return mappings as rows: each key with the values of all runs."""
    keys = dict.fromkeys(key for mapping in mappings for key in mapping)
    return [{"key": key, "values": [mapping.get(key) for mapping in mappings]} for key in keys]


def _differences(mappings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows in which not all values are the same."""
    return [
        row
        for row in _as_rows(mappings)
        if any(_distinct(value) != _distinct(row["values"][0]) for value in row["values"])
    ]


def _distinct(value: Any) -> tuple[str, Any]:
    """Return a value that differs from those of other types: 1 is not true."""
    return type(value).__name__, value


def _groups(
    facts: Sequence[Facts], reports: Sequence[Mapping[str, Any]]
) -> tuple[list[_ComparableRuns], list[str]]:
    """Return groups of runs whose metrics can be compared, and why others cannot."""
    groups: list[_ComparableRuns] = []
    reasons: list[str] = []
    for k, of_run in enumerate(facts):
        if "curve" not in reports[k] or not reports[k]["curve"]:
            reasons.append(f"{LETTERS[k]} has no metrics: {_why_none(of_run)}")
            continue
        first = ""
        for group in groups:
            leader = group.runs[0]
            why, rows = _why_not(facts[leader], of_run, LETTERS[leader], LETTERS[k])
            rows = min(rows, group.rows)
            if not why and not _common_points([reports[i] for i in (*group.runs, k)], rows):
                why = (
                    f"{LETTERS[leader]} and {LETTERS[k]} have the first {counted(rows, 'row')} "
                    "alone in common, and their curves no point there"
                )
            if not why:
                group.runs.append(k)
                group.rows = rows
                break
            first = first or why
        else:
            rows = int(reports[k]["rows"])
            groups.append(_ComparableRuns([k], rows))
            if first:
                reasons.append(first)
    return groups, reasons


def _why_none(facts: Facts) -> str:
    if _task(facts) == _TASKS["density"]:
        return "a density forecasts no labels"
    if facts.schema is None:
        return "it was fitted on arrays"
    if facts.manifest is None:
        return "it has no checkpoint yet"
    if facts.run_json.get("row_parts") is not None:
        return "it learned parts of its rows side by side (row_parts)"
    if not facts.run_json.get("progressive", True):
        return "it was trained with progressive = false"
    return "no row was forecast before it was learned, as of a run that was merged"


def _why_not(first: Facts, second: Facts, a: str, b: str) -> tuple[str, int]:
    """Return why metrics of two runs cannot be compared, or "" and their common first rows."""
    p, q = first.progressive, second.progressive
    assert p is not None  # both have a curve
    assert q is not None
    targets = [facts.run_json.get("target") for facts in (first, second)]
    if targets[0] != targets[1]:
        return f"{a} and {b} have other targets: {targets[0]}, and {targets[1]}", 0
    if first.run_json.get("classes") != second.run_json.get("classes"):
        return f"{a} and {b} have other classes", 0
    weights = [
        None if facts.schema is None else (facts.schema.weight, facts.schema.class_weight)
        for facts in (first, second)
    ]
    if weights[0] != weights[1]:
        return f"{a} and {b} weigh rows in other ways: their metrics are of other means", 0
    if p.delay != q.delay:
        delays = f"{delay_in_words(p.delay)}, and {delay_in_words(q.delay)}"
        return f"{a} and {b} do not forecast equally far ahead: {delays}", 0
    if (p.start, p.exact_from) != (q.start, q.exact_from):
        return f"{a} and {b} do not forecast the same rows: {p.in_words}, and {q.in_words}", 0
    return _in_common(first, second, a, b)


def _in_common(first: Facts, second: Facts, a: str, b: str) -> tuple[str, int]:
    """Return why two runs have no first rows in common, or "" and how many they forecast both."""
    runs = first, second
    for facts, name in zip(runs, (a, b), strict=True):
        if facts.plan is None:
            return f"it is not known which rows {name} learned: its plan cannot be read", 0
    assert first.plan is not None
    assert second.plan is not None
    n_rows = common_rows(first.plan, second.plan)
    ends = [0 if facts.manifest is None else facts.manifest.position for facts in runs]
    counted_rows = [0 if facts.progressive is None else facts.progressive.rows for facts in runs]
    if n_rows >= min(ends):
        return "", min(counted_rows)
    if n_rows == 0:
        return f"{a} and {b} are not of the same rows: their streams differ from the first row", 0
    if any(facts.counts.get("null_target") for facts in runs):
        return (
            f"{a} and {b} are of the same rows up to {n_rows:,} alone, and how many of these had a "
            "target is not known"
        ), 0
    start = 0 if first.progressive is None else first.progressive.start
    return "", max(0, min(n_rows - start, *counted_rows))


def _common_points(reports: Sequence[Mapping[str, Any]], up_to: float = math.inf) -> list[int]:
    """Return the rows, ascending, at which all curves have a point."""
    rows_of_curves = [{int(point["rows"]) for point in report["curve"]} for report in reports]
    return sorted(rows for rows in set.intersection(*rows_of_curves) if rows <= up_to)


def _metrics(
    reports: Sequence[Mapping[str, Any]], alike: Sequence[_ComparableRuns]
) -> Iterator[dict[str, Any]]:
    """Yield each metric so far, at the end of the shortest run of a group, and of the last rows."""
    at_end = [group for group in alike if len({reports[k]["rows"] for k in group.runs}) == 1
              and group.rows == reports[group.runs[0]]["rows"]]  # fmt: skip
    has_others = any(group not in at_end for group in alike)
    shorter: list[tuple[int | None, Mapping[str, Any]]] = [(None, {})] * len(reports)
    for group in alike:
        points = _common_points([reports[k] for k in group.runs], group.rows)
        if len(group.runs) > 1 and points:
            for k in group.runs:
                by_rows = {int(point["rows"]): point for point in reports[k]["curve"]}
                shorter[k] = points[-1], by_rows[points[-1]]
    for metric in _METRICS:
        if all(metric not in report for report in reports):
            continue
        spans: list[
            tuple[str, list[tuple[int | None, Mapping[str, Any]]], Sequence[_ComparableRuns]]
        ] = [("so far", [(report.get("rows"), report) for report in reports], at_end)]
        if has_others and metric in NAMES and any(rows for rows, _ in shorter):
            spans.append(("first rows in common", shorter, alike))
        windows = [report.get("window") or {} for report in reports]
        if any(windows):
            spans.append(
                ("last rows", [(window.get("rows"), window) for window in windows], at_end)
            )
        for span, rows_and_reports, groups in spans:
            values = [report.get(metric) for _, report in rows_and_reports]
            yield {
                "metric": metric,
                "span": span,
                "rows": [rows for rows, _ in rows_and_reports],
                "values": values,
                "better": better_runs(metric, values, groups),
            }


def _curves(reports: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return learning curves at the points that all runs with one have."""
    curves = [report.get("curve") or None for report in reports]
    known = [report for report in reports if report.get("curve")]
    if len(known) < 2:
        return {}
    rows = _common_points(known)
    by_rows = [None if c is None else {int(point["rows"]): point for point in c} for c in curves]
    return {
        metric: {
            "rows": rows,
            "values": [
                None if points is None else [points[n][metric] for n in rows] for points in by_rows
            ],
        }
        for metric in NAMES
        if rows and all(metric in report["curve"][0] for report in known)
    }
