"""Sections of the page: each turns facts into a heading, words, tables and charts.

Relies on :mod:`dmondrian.report.facts`. Promises that what is not known is said to be so, and that
all text from a run is escaped.
"""

from __future__ import annotations

import math
import time
from html import escape
from typing import Any

import numpy as np

from dmondrian._text.wording import counted, size
from dmondrian.distributed.cluster.progress import clock
from dmondrian.distributed.metrics.curve import NAMES, band_of
from dmondrian.distributed.metrics.progressive import WORSE
from dmondrian.report.charts import Line, bar_chart, line_chart, matrix_chart
from dmondrian.report.facts import Facts
from dmondrian.report.markup import (
    figure,
    grid,
    metric,
    missing,
    number,
    percent,
    short,
    table,
)
from dmondrian.report.rerun_job import job_of

_SHOWN_COLUMNS = 200  # rows of a table of columns
_SHOWN_BARS = 15


def overview(facts: Facts) -> str:
    """Say what was trained on what, and how far it is."""
    run = facts.run_json
    learned = 0 if facts.manifest is None else facts.manifest.position
    tiles = [
        (f"{learned:,}", f"of {counted(facts.n_rows, 'row')} learned"),
        (f"{facts.n_trees or run.get('n_estimators', 0):,}", "trees"),
        (f"{facts.n_nodes:,}", "nodes"),
        (size(facts.n_bytes), "in memory"),
    ]
    if facts.progressive is not None:
        told = facts.progressive.totals()
        tiles += [(metric(told[name]), f"{NAMES[name]}, {facts.progressive.in_words}")
                  for name in NAMES if name in told]  # fmt: skip
    shown = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for value, name in tiles
    )
    return f'<p class="lead">{_state(facts)}</p><div class="tiles">{shown}</div>'


def _state(facts: Facts) -> str:
    algorithm = escape(str(facts.run_json.get("algorithm")))
    target = facts.run_json.get("target")
    of = f" of <b>{escape(target)}</b>" if target else ""
    if facts.is_working:
        beat = facts.holders[-1].beat or {}
        told = beat.get("told") or {}
        rows = f": {told['rows']:,} of {told['n_rows']:,} rows" if told.get("n_rows") else ""
        return f"<code>{algorithm}</code>{of}, in progress{rows}."
    if facts.manifest is None:
        return f"<code>{algorithm}</code>{of}. There is no checkpoint yet, and nobody works on it."
    end = "finished" if facts.manifest.final else "stopped before the end of its stream"
    return f"<code>{algorithm}</code>{of}, {end}."


def learning(facts: Facts) -> str:
    """Draw the learning curve."""
    if _is_density(facts):
        return ""
    if facts.manifest is None:
        return missing("It will be drawn from the first checkpoint on.")
    if facts.progressive is None or not facts.progressive.curve:
        return missing(
            "There is no learning curve: the run was trained with "
            "<code>progressive = false</code>, or merged, or fitted on arrays."
        )
    curve = facts.progressive.report()["curve"]
    charts = []
    for name in (name for name in NAMES if name in curve[0]):
        values = (
            np.array([point["rows"] for point in curve], np.float64),
            np.array([point[name] for point in curve], np.float64),
        )
        rows, mean, low, high = band_of([values], name)
        points = list(zip(rows.tolist(), mean.tolist(), strict=True))
        band = list(zip(low.tolist(), high.tolist(), strict=True))
        line = Line(NAMES[name], points, band)
        chart = line_chart([line], "rows", short, number, log_x=True)
        charts.append(figure(f"{NAMES[name]} of the rows so far", chart))
    how = facts.progressive.in_words
    words = (
        f"{how[0].upper()}{how[1:]}: no held-out rows are needed. The band is two standard errors "
        "of the mean so far, from how much neighbouring stretches of the stream differ."
    )
    if facts.progressive.totals().get("r2", 0.0) < 0.0:
        words += f" {WORSE[0].upper()}{WORSE[1:]}."
    return f"<p>{words}</p>{grid(charts)}"


def _is_density(facts: Facts) -> bool:
    return bool(facts.run_json.get("algorithm") == "mondrian-density")


def outcomes(facts: Facts) -> str:
    """Draw calibration and confusion, or the sizes of errors."""
    if _is_density(facts):
        return missing(
            "A density forecasts no labels, so it has no learning curve, no confusion and no "
            "importances. <code>dmondrian evaluate</code> tells the log likelihood of other rows."
        )
    if facts.manifest is None:
        return ""
    found = None if facts.progressive is None else facts.progressive.outcomes
    if found is None or not found.rows:
        return missing("Nothing is known of single forecasts: the run kept no sums over them.")
    assert facts.progressive is not None  # it has these outcomes
    words = f"Of {found.rows:,} rows, {facts.progressive.in_words}"
    if found.rows < facts.progressive.rows:
        words += " (the rows before were learned by a version that kept no such sums)"
    if found.reliability is not None:
        return f"<p>{words}.</p>" + grid(_class_charts(facts, found))
    whole, total = found.bias
    words += f". The mean error (forecast less label) is {metric(total / whole)}"
    words += "" if facts.calibrated is None else f". Calibrated: {facts.calibrated}"
    line = Line("share of rows", _from_where_it_rises(found.shares()))
    chart = line_chart([line], "size of the error", number, percent, from_zero=True, log_x=True)
    return f"<p>{words}.</p>" + grid([figure("Rows with an error of at most this size", chart)])


def _from_where_it_rises(shares: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Leave out sizes that fewer than one row in a thousand is below, but the last of them."""
    n_tiny = sum(share < 0.001 for _, share in shares)
    return shares[max(0, n_tiny - 1) :]


def _class_charts(facts: Facts, found: Any) -> list[str]:
    told = found.reliability.report()
    bins = told["reliability"]
    lines = [
        Line("right", [(b["confidence"], b["accuracy"]) for b in bins]),
        Line("calibrated", [(0.0, 0.0), (1.0, 1.0)], is_dashed=True),
    ]
    chart = line_chart(lines, "how sure", percent, percent, ends=(0.0, 1.0))
    calibrated = "" if facts.calibrated is None else f"; calibrated: {facts.calibrated}"
    charts = [
        figure(f"How often right, by how sure (ECE {told['ece']:.4f}{calibrated})", chart),
        figure("Share of the rows, by how sure", bar_chart(
            [(f"{b['above']:.0%} to {b['up_to']:.0%}", b["share"]) for b in bins], percent)),
    ]  # fmt: skip
    if found.confusion is not None:
        names = [str(label) for label in facts.run_json.get("classes") or []]
        names = names or [str(number) for number in range(len(found.confusion))]
        shares = matrix_chart(names, found.confusion.tolist())
        charts.append(figure("Labels (rows) and predictions (columns), shares of a row", shares))
    return charts


def inputs(facts: Facts) -> str:
    """Say which columns were read, how they were encoded, and what was left out or moved."""
    if facts.schema is None:
        names = facts.run_json.get("feature_names")
        told = "no names" if names is None else ", ".join(map(str, names[:_SHOWN_COLUMNS]))
        return f"<p>Fitted on arrays: the columns have {escape(told)}.</p>"
    from dmondrian.data.schema import describe_encoding

    columns = [
        (column.name, column.kind, f"{column.width:,}", describe_encoding(column))
        for column in facts.schema.columns[:_SHOWN_COLUMNS]
    ]
    columns += [(name, "left out", "0", why) for name, why in facts.schema.left_out]
    if facts.plan is not None:
        columns += [(name, "left out", "0", "excluded by the job") for name in facts.plan.excluded]
    n_more = len(facts.schema.columns) - _SHOWN_COLUMNS
    more = f"<p>and {counted(n_more, 'more column')}</p>" if n_more > 0 else ""
    parts = [_source(facts), table(("column", "kind", "features", "encoding"), columns), more]
    if facts.counts:
        parts.append("<h3>Values met</h3>")
        parts.append(
            table(("what", "rows"), [(_event(k), f"{v:,}") for k, v in facts.counts.items()])
        )
    if facts.plan is not None and facts.plan.notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in facts.plan.notes)
        parts.append(f"<h3>Notes</h3><ul>{items}</ul>")
    return "".join(parts)


def _source(facts: Facts) -> str:
    plan = facts.plan
    if plan is None:
        return missing("The plan of the stream cannot be read.")
    files = list(dict.fromkeys(block.uri for block in plan.blocks))
    some = ", ".join(f"<code>{escape(file)}</code>" for file in files[:3])
    more = f" and {len(files) - 3:,} more" if len(files) > 3 else ""
    order = f"shuffled by seed {plan.seed}" if plan.shuffle else "in the order of the files"
    return f"<p>{counted(plan.n_rows, 'row')} {order}, from {some}{more}.</p>"


def _event(name: str) -> str:
    kind, _, column = name.partition(":")
    told = {
        "outside": "beyond the training range",
        "clipped": "infinite, clipped",
        "unseen": "a level that training did not have",
        "other": "a rare level",
        "null": "null where training had none",
        "null_target": "dropped: no target",
    }.get(kind, kind)
    return f"{column}: {told}" if column else told


def importance(facts: Facts) -> str:
    """Draw what the splits on each column are worth."""
    some = [pair for pair in facts.importances[:_SHOWN_BARS] if pair[1] > 0.0]
    if _is_density(facts) or facts.manifest is None:
        return ""
    if facts.no_importances is not None:
        return missing(f"There are none: {escape(facts.no_importances)}.")
    if not some:
        return missing("No split is worth anything yet.")
    rest = [pair for pair in facts.importances[len(some) :] if pair[1] > 0.0]
    if rest:
        some.append((f"{len(rest):,} others", math.fsum(share for _, share in rest)))
    words = "Share of each column in how much better labels are forecast on the sides of splits."
    return f"<p>{words}</p>{grid([figure('Shares of the columns', bar_chart(some, percent))])}"


def work(facts: Facts) -> str:
    """Draw growth, throughput, workers and recoveries."""
    charts = []
    for place, name, shown in ((1, "Nodes", short), (2, "Bytes stored", size)):
        points = [(float(row[0]), float(row[place])) for row in facts.growth]
        if points:
            chart = line_chart([Line(name, points)], "rows learned", short, shown, from_zero=True)
            charts.append(figure(f"{name} at checkpoints", chart))
    charts += _over_time(facts)
    rows = [_attempt_row(number, one) for number, one in enumerate(facts.holders, 1)]
    head = ("attempt", "began (UTC)", "host", "took", "rows", "workers", "recovered", "outcome")
    told = table(head, rows) if rows else missing("Nobody has worked on it, as far as is known.")
    return grid(charts) + told


def _over_time(facts: Facts) -> list[str]:
    """Return charts over the seconds of work; attempts follow each other."""
    series: dict[str, list[tuple[float, float]]] = {"rows": [], "workers": [], "recoveries": []}
    offset, recovered = 0.0, 0.0
    for holder in facts.holders:
        timeline = (holder.beat or {}).get("timeline") or []
        for seconds, rows, workers, recoveries, _ in timeline:
            series["rows"].append((offset + seconds, rows))
            series["workers"].append((offset + seconds, workers))
            series["recoveries"].append((offset + seconds, recovered + recoveries))
        if timeline:
            offset += timeline[-1][0]
            recovered += timeline[-1][3]
    if len(series["rows"]) < 2:
        return []
    both = [
        Line("workers", series["workers"], is_stepped=True),
        Line("shards recovered", series["recoveries"], is_stepped=True),
    ]
    drawn = line_chart([Line("rows", series["rows"])], "time", clock, short, from_zero=True)
    hands = line_chart(both, "time", clock, short, from_zero=True, counts=True)
    return [
        figure("Rows learned", drawn),
        figure("Workers, and shards recovered after a loss", hands, [line.name for line in both]),
    ]


def _attempt_row(number: int, holder: Any) -> tuple[str, ...]:
    beat = holder.beat or {}
    told, timeline = beat.get("told") or {}, beat.get("timeline") or []
    outcome = beat.get("outcome") or ("ended without a word" if holder.is_over else "in progress")
    if beat.get("error"):
        outcome = f"{outcome}: {beat['error']}"
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(holder.began))
    rows = f"{timeline[-1][1] - timeline[0][1]:,.0f}" if timeline else "0"
    took = clock(timeline[-1][0]) if timeline else "0:00"
    return (str(number), began, holder.host, took, rows, str(told.get("workers", 0)),
            str(told.get("recoveries", 0)), outcome)  # fmt: skip


def reproduce(facts: Facts) -> str:
    """Say how to train the same forest again, and how to see that it is the same."""
    run, manifest = facts.run_json, facts.manifest
    seed = (run.get("parameters") or {}).get("seed")
    words = ["The forest is a function of the settings, the seed and the numbered rows alone."]
    if (run.get("estimator") or {}).get("random_state") is None:
        words.append(
            "No <code>random_state</code> was given, so the same job in another folder draws "
            f"another seed than this run's {seed}."
        )
    job = job_of(facts)
    if job:
        words.append(
            "Save this as <code>again.toml</code> and run <code>dmondrian train again.toml</code>: "
            "with the same files, seed and versions its shards have the digests below."
        )
    else:
        words.append("It was fitted on arrays in Python, which no job file tells.")
    parts = [f"<p>{' '.join(words)}</p>", f"<pre>{escape(job)}</pre>" if job else ""]
    if facts.plan is not None and facts.plan.earlier:
        n_rows = facts.plan.earlier[0][0]
        parts.append(
            f"<p>Files that came later continued the stream: its first {n_rows:,} rows made the "
            "encoding, so they are trained first.</p>"
        )
    digests = [("seed", str(seed)), ("plan", str(run.get("plan")))]
    if manifest is not None:
        digests.append(("position", f"{manifest.position:,}"))
        digests += [(f"shard {n}", str(s["digest"])) for n, s in manifest.shards.items()]
    versions = run.get("created_by") or {}
    digests += [(f"version of {name}", str(version)) for name, version in versions.items()]
    return "".join(parts) + table(("what", "value"), digests, is_code=True)
