"""Sections of the page: each turns facts into what its template shows.

Relies on :mod:`dmondrian.report.facts`. Promises that a page states what is not known.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from dmondrian._text.wording import counted, size
from dmondrian.checkpoint.held_out import HeldOutRecord
from dmondrian.checkpoint.row_ranges import in_words, unmerged_in_words
from dmondrian.data import ROWS_READ, events_of, missing_shares
from dmondrian.distributed.cluster.progress import clock
from dmondrian.distributed.metrics.age_curve import FOREVER, others_of, span_of_ages
from dmondrian.distributed.metrics.baselines import baseline_in_words
from dmondrian.distributed.metrics.curve import NAMES, band_of, points_by_window
from dmondrian.distributed.metrics.drift_test import FALSE_ALARMS, drift_advice
from dmondrian.distributed.metrics.progressive import WORSE
from dmondrian.distributed.metrics.windows import HALF_LIFE
from dmondrian.drift.waiting_rows import known_at_once
from dmondrian.report.charts import Line, area_chart, bar_chart, line_chart, matrix_chart
from dmondrian.report.facts import Facts
from dmondrian.report.forecast_figures import CLASS_HEAD, auc_tiles, class_figures, number_figures
from dmondrian.report.number_format import metric, number, percent, short
from dmondrian.report.rendering import Figure, render
from dmondrian.report.rerun_job import job_of

METRICS = (*NAMES.items(), ("r2", "R2"))
_SHOWN_COLUMNS = 500  # rows of a table of columns
_UNFOLDED = 20  # of these, without a click
_SHOWN_BARS = 15
_SHOWN_CLASSES = 6


class Tile(NamedTuple):
    """A number of the run, what it is, and others to compare it with."""

    value: str
    name: str
    others: tuple[tuple[str, str], ...] = ()


def overview(facts: Facts) -> Markup:
    """Show what was trained on what, and its progress."""
    run = facts.run_json
    learned = facts.learned_of_parts or 0
    if facts.manifest is not None:
        learned = facts.manifest.position
    waiting = facts.n_waiting
    tiles = [
        Tile(f"{learned - waiting:,}", f"of {counted(facts.n_rows, 'row')} learned"),
        *([Tile(f"{waiting:,}", "rows wait for their labels")] if waiting else []),
        Tile(f"{facts.n_trees or run.get('n_estimators', 0):,}", "trees"),
        Tile(f"{facts.n_nodes:,}", "nodes"),
        Tile(size(facts.n_bytes), "in memory"),
    ]
    measured: list[Tile] = []
    if facts.progressive is not None:
        measured = _metric_tiles(facts.progressive.report(), facts.progressive.delay_in_words)
        measured += [
            Tile(value, f"{name} so far", ((baseline, of_baseline),))
            for value, name, baseline, of_baseline in auc_tiles(
                facts.progressive.outcomes, _class_names(facts)
            )
        ]
    beat = (facts.holders[-1].beat or {}) if facts.is_working else {}
    return render(
        "overview.html",
        algorithm=run.get("algorithm"),
        target=run.get("target"),
        is_working=facts.is_working,
        current={"rows": 0, "n_rows": 0, **(beat.get("told") or {})},
        has_checkpoint=facts.manifest is not None,
        is_final=facts.manifest is not None and facts.manifest.final,
        tiles=tiles,
        measured=measured,
        about=_about(facts),
    )


def _about(facts: Facts) -> list[tuple[str, str]]:
    """Return when and how long was worked on the run, on which data, and by which versions."""
    rows: list[tuple[str, str]] = []
    if facts.holders:
        n_attempts, began = len(facts.holders), facts.holders[0].began
        if facts.earlier is not None:
            n_attempts, began = facts.earlier.attempts, facts.earlier.began or began
        took = f"{clock(facts.seconds)} of work in {counted(n_attempts, 'attempt')}"
        rows.append(("trained", f"from {_moment(began)} UTC on, {took}"))
    if (ranges := facts.run_json.get("row_parts")) is not None:
        text = in_words(ranges)
        if facts.learned_of_parts is not None:
            text = unmerged_in_words(facts.run_json, facts.learned_of_parts)
        rows.append(("row parts", text))
    schema, plan = facts.schema, facts.plan
    if schema is not None:
        width = counted(schema.n_features, "feature")
        columns = f"{counted(len(schema.columns), 'column')} encoded as {width}"
        files = "" if plan is None else _from_files(plan, facts.files)
        rows.append(("data", f"{counted(facts.n_rows, 'row')} of {columns}{files}"))
    names, confusion = _class_names(facts), None
    if facts.progressive is not None:
        confusion = facts.progressive.outcomes.confusion
    if names:
        rows.append(("classes", _classes(names, confusion)))
    elif schema is not None and schema.target_range is not None:
        low, high = schema.target_range
        rows.append(("target", f"{number(low)} to {number(high)}"))
    if facts.alerts:
        last = facts.alerts[-1]
        what = f"{last['when']} at row {int(last['row']):,}"
        texts = [f"{counted(len(facts.alerts), 'alert')}, the last {what}"]
        texts += [f"{counted(facts.n_alerts, 'condition')} still true"] if facts.n_alerts else []
        rows.append(("alerts", "; ".join(texts)))
    if facts.held_out is not None and facts.held_out.evaluated:
        rows.append(("held out", _held_out(facts, facts.held_out)))
    if versions := facts.run_json.get("created_by"):
        rows.append(
            ("versions", ", ".join(f"{name} {version}" for name, version in versions.items()))
        )
    return rows


def _held_out(facts: Facts, record: HeldOutRecord) -> str:
    """Return the loss on held-out rows of the newest checkpoint, and of the best."""
    newest = record.evaluated[-1]
    shown = [
        newest,
        *(checkpoint for checkpoint in record.evaluated if checkpoint.position == facts.best),
    ]
    texts: list[str] = []
    for checkpoint, what in zip(shown, ("", "the best, "), strict=False):
        if checkpoint is newest and what:
            texts[0] += ", the best"
            break
        value = checkpoint.metrics.get(checkpoint.loss)
        known = "not finite" if value is None else metric(value)
        loss = checkpoint.loss.replace("_", " ")
        texts.append(f"{what}{loss} {known} at row {checkpoint.position:,}")
    return f"{counted(record.n_rows, 'row')}: {'; '.join(texts)}"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def _from_files(plan: Any, files: Sequence[str]) -> str:
    order = f"shuffled by seed {plan.seed}" if plan.shuffle else "in the order of the files"
    named = files[0] if len(files) == 1 else f"{len(files):,} files, {files[0]} first"
    return f", from {named}, {order}"


def _class_names(facts: Facts) -> list[str]:
    return [str(label) for label in facts.run_json.get("classes") or []]


def _classes(names: list[str], confusion: Any) -> str:
    """Return the classes with their shares, the most frequent first, as far as they are known."""
    shown = names[:_SHOWN_CLASSES]
    if confusion is not None and len(confusion) == len(names) and confusion.sum() > 0.0:
        shares = confusion.sum(axis=1) / confusion.sum()
        order = np.argsort(-shares, kind="stable")[:_SHOWN_CLASSES].tolist()
        shown = [f"{names[k]} {shares[k]:.1%}" for k in order]
    n_more = len(names) - len(shown)
    more = f" and {n_more:,} more" if n_more > 0 else ""
    return f"{len(names):,}: {', '.join(shown)}{more}"


def _metric_tiles(report: dict[str, Any], delay: str) -> list[Tile]:
    """Return the metrics so far, each above the last rows and the baselines."""
    tiles = []
    for name, label in METRICS:
        if name not in report:
            continue
        window = report.get("window", {})
        lines = [
            (baseline_in_words(baseline), metric(metrics[name]))
            for baseline, metrics in report.get("baselines", {}).items()
            if name in metrics
        ]
        if name in window and window["rows"] < report["rows"]:
            lines.append((f"forest, last {window['rows']:,} rows", metric(window[name])))
        tiles.append(Tile(metric(report[name]), f"{label} so far, {delay}", tuple(lines)))
    return tiles


def learning(facts: Facts) -> Markup:
    """Draw the learning curve, so far and by window, and show metrics beside baselines."""
    if _is_density(facts):
        return Markup()
    progressive, figures, worse, drift, ahead = facts.progressive, [], "", "", ""
    head: list[str] = []
    rows: list[tuple[str, ...]] = []
    if progressive is not None and progressive.curve:
        report = progressive.report()
        figures = [
            *curve_figures({"": report["curve"]}),
            *_window_curves(report),
            *_ages(facts, report),
        ]
        worse = WORSE if report.get("r2", 0.0) < 0.0 else ""
        head, rows = _metrics_table(report)
        drift = _drift(facts, report)
        if _is_following(facts) and report["delay"] == 1:
            ahead = known_at_once(report["rows"])
    return render(
        "learning.html",
        has_checkpoint=facts.manifest is not None,
        figures=figures,
        how="" if progressive is None else progressive.in_words,
        delay="" if progressive is None else progressive.delay_in_words,
        ahead=ahead,
        worse=worse,
        drift=drift,
        false_alarms=f"{FALSE_ALARMS:.0%}",
        half_life=f"{HALF_LIFE:,}",
        head=head,
        rows=rows,
    )


def _drift(facts: Facts, report: dict[str, Any]) -> str:
    """Return that the stream drifts, and what to do; "" if it does not."""
    text = report.get("drift", {}).get("text", "")
    algorithm = facts.run_json.get("algorithm")
    return text + drift_advice(algorithm, _is_following(facts)) if text else ""


def _is_following(facts: Facts) -> bool:
    """Return whether the run's forest follows the stream."""
    return (facts.run_json.get("estimator") or {}).get("drift") is not None


def _metrics_table(report: dict[str, Any]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return a table's head and rows: metrics so far, of the last rows and faded, by forecaster."""
    window, faded = report.get("window"), report.get("faded")
    if not window or not faded:
        return [], []
    head = ["", "so far", f"last {window['rows']:,} rows", "faded"]
    spans, rows = (report, window, faded), []
    for name, label in METRICS:
        if name not in report:
            continue
        rows.append((label, *(_value(span.get(name)) for span in spans)))
        for baseline in window["baselines"]:
            of = (span.get("baselines", {}).get(baseline, {}).get(name) for span in spans)
            rows.append((f"{label}, {baseline_in_words(baseline)}", *map(_value, of)))
    return head, rows


def _value(value: float | None) -> str:
    return "" if value is None else metric(value)


_AGE_GROUPS = (2, 2, 2, 2, 3)  # octaves put together, from the youngest on: fewer colours


def _ages(facts: Facts, report: dict[str, Any]) -> list[Figure]:
    """Return a picture of how far back a forest that follows the stream looks."""
    points_there = report.get("ages", [])
    if len(points_there) < 2:
        return []
    other_names = others_of(facts.run_json["parameters"])
    n_octaves = len(points_there[0]["shares"]) - 1 - len(other_names)
    starts = [sum(_AGE_GROUPS[:i]) for i in range(len(_AGE_GROUPS))]
    groups = [
        range(first, min(first + size, n_octaves))
        for first, size in zip(starts, _AGE_GROUPS, strict=True)
        if first < n_octaves
    ]
    groups[-1] = range(groups[-1].start, n_octaves)
    names = [span_of_ages(group.start, group.stop) for group in groups]
    names += [FOREVER, *other_names]
    points = [
        (
            float(point["rows"]),
            [
                *(math.fsum(point["shares"][1 + k] for k in group) for group in groups),
                point["shares"][0],
                *point["shares"][1 + n_octaves :],
            ],
        )
        for point in points_there
    ]
    chart = area_chart(names, points, "rows", short)
    return [
        Figure(
            "How far back the forest looks: shares of trees of the last", chart, tuple(names), "a"
        )
    ]


def _window_curves(report: dict[str, Any]) -> list[Figure]:
    """Return curves of windows for each metric: of the forest and of the baselines."""
    windows = report.get("windows", [])
    places = [
        (float(rise["start"]), f"a drift is found in the rows from {rise['start'] + 1:,} on")
        for rise in report.get("drift", {}).get("rises", [])
    ]
    if len(windows) < 2:
        return []
    figures = []
    for name in (name for name in NAMES if name in windows[0]):
        lines = [Line("forest", points_by_window(windows, name))]
        lines += [
            Line(baseline_in_words(baseline), points_by_window(windows, name, baseline))
            for baseline in windows[0]["baselines"]
        ]
        keys = tuple(line.name for line in lines)
        label = f"{NAMES[name]} by window of the stream: {', '.join(keys)}"
        chart = line_chart(lines, "rows", short, number, places=places, label=label)
        figures.append(Figure(f"{NAMES[name]} by window of the stream", chart, keys))
    return figures


def window_figures(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Figure]:
    """Return a chart of metrics by window of the stream, for each metric, of runs by label."""
    figures = []
    for name in NAMES:
        lines = [
            Line(label, points_by_window(windows, name))
            for label, windows in curves.items()
            if len(windows) > 1 and name in windows[0]
        ]
        if lines:
            chart = line_chart(lines, "rows", short, number, y_name=NAMES[name])
            keys = tuple(line.name for line in lines)
            figures.append(Figure(f"{NAMES[name]} by window of the stream", chart, keys))
    return figures


def curve_figures(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Figure]:
    """Return a chart of learning curves for each metric, with their bands.

    ``curves`` are those of runs by label; the line of one alone is named by its metric.
    """
    figures, is_alone = [], len(curves) == 1
    for name in NAMES:
        lines = [
            _curve(NAMES[name] if is_alone else label, curve, name)
            for label, curve in curves.items()
            if name in curve[0]
        ]
        if lines:
            of_metric = "" if is_alone else NAMES[name]
            chart = line_chart(lines, "rows", short, number, log_x=True, y_name=of_metric)
            keys = () if is_alone else tuple(line.name for line in lines)
            figures.append(Figure(f"{NAMES[name]} of the rows so far", chart, keys))
    return figures


def _curve(label: str, curve: Sequence[Mapping[str, Any]], metric: str) -> Line:
    values = (
        np.array([point["rows"] for point in curve], np.float64),
        np.array([point[metric] for point in curve], np.float64),
    )
    rows, mean, low, high = band_of([values], metric)
    points = list(zip(rows.tolist(), mean.tolist(), strict=True))
    return Line(label, points, list(zip(low.tolist(), high.tolist(), strict=True)))


def _is_density(facts: Facts) -> bool:
    return bool(facts.run_json.get("algorithm") == "mondrian-density")


def outcomes(facts: Facts) -> Markup:
    """Draw calibration and confusion, or the sizes of errors."""
    is_density, progressive = _is_density(facts), facts.progressive
    if facts.manifest is None and not is_density:
        return Markup()
    sums = None if progressive is None else progressive.outcomes
    if is_density or progressive is None or sums is None or not sums.rows:
        return render("outcomes.html", is_density=is_density, figures=[])
    bias, classes, table = None, _class_names(facts), []
    if sums.reliability is not None:
        n_classes = 2 if sums.confusion is None else len(sums.confusion)
        of_classes = class_figures(sums, classes or [str(k) for k in range(n_classes)])
        figures = [*of_classes.figures, *_sureness(facts, sums)]
        table, notes = of_classes.table, of_classes.notes
    else:
        whole, total = sums.bias
        bias = metric(total / whole)
        line = Line("share of rows", sums.rising_shares())
        chart = line_chart([line], "size of the error", number, percent, from_zero=True, log_x=True)
        of_rows = Figure("Rows with an error of at most this size", chart)
        figures, notes = number_figures(sums)
        figures = [*figures[:2], of_rows, *figures[2:]] if sums.residuals.rows else [
            of_rows, *figures
        ]  # fmt: skip
    return render(
        "outcomes.html",
        is_density=False,
        figures=figures,
        rows=sums.rows,
        how=progressive.in_words,
        delay=progressive.delay_in_words,
        is_partial=sums.rows < progressive.rows,
        bias=bias,
        calibrated=facts.calibrated,
        head=CLASS_HEAD,
        classes=table,
        notes=notes,
    )


def _sureness(facts: Facts, sums: Any) -> list[Figure]:
    """Return reliability, shares of rows by how sure forecasts are, and confusion."""
    report = sums.reliability.report()
    bins = report["reliability"]
    lines = [
        Line("right", sums.reliability.points()),
        Line("calibrated", [(0.0, 0.0), (1.0, 1.0)], is_dashed=True),
    ]  # fmt: skip
    chart = line_chart(lines, "how sure", percent, percent, ends=(0.0, 1.0))
    title = f"How often right, by how sure (ECE {report['ece']:.4f})"
    calibrated = "" if facts.calibrated is None else f"Calibrated: {facts.calibrated}"
    figures = [
        Figure(title, chart, caption=calibrated),
        Figure("Share of the rows, by how sure", bar_chart(
            [(f"{b['above']:.0%} to {b['up_to']:.0%}", b["share"]) for b in bins], percent)),
    ]  # fmt: skip
    if sums.confusion is not None:
        names = _class_names(facts) or [str(number) for number in range(len(sums.confusion))]
        shares = matrix_chart(names, sums.confusion.tolist())
        figures.append(Figure("Labels (rows) and predictions (columns), shares of a row", shares))
    return figures


def inputs(facts: Facts) -> Markup:
    """Show which columns were read, how they were encoded, and what was left out or moved."""
    schema, plan = facts.schema, facts.plan
    if schema is None:
        names = facts.run_json.get("feature_names")
        shown = "no names" if names is None else ", ".join(map(str, names[:_SHOWN_COLUMNS]))
        return render("inputs.html", has_schema=False, names=shown)
    from dmondrian.data.schema import describe_encoding

    missing = missing_shares(schema, facts.counts)
    shares = dict(facts.importances)
    ranked = sorted(schema.columns, key=lambda column: -shares.get(column.name, 0.0))
    columns = [
        (
            column.name,
            column.kind,
            f"{column.width:,}",
            percent(shares[column.name]) if column.name in shares else "",
            _missing(missing.get(column.name)),
            describe_encoding(column),
        )
        for column in ranked[:_SHOWN_COLUMNS]
    ]
    columns += [(name, "left out", "0", "", "", why) for name, why in schema.left_out]
    if plan is not None:
        columns += [
            (name, "left out", "0", "", "", "excluded by the job") for name in plan.excluded
        ]
    n_more = len(schema.columns) - _SHOWN_COLUMNS
    return render(
        "inputs.html",
        has_schema=True,
        plan=plan,
        rows="" if plan is None else counted(plan.n_rows, "row"),
        files=facts.files,
        columns=columns[:_UNFOLDED],
        folded=columns[_UNFOLDED:],
        more=counted(n_more, "more column") if n_more > 0 else "",
        events=[(_event(name), f"{rows:,}") for name, rows in events_of(facts.counts).items()],
        n_counted=counted(n, "row") if (n := facts.counts.get(ROWS_READ, 0)) else "",
    )


def _missing(share: float | None) -> str:
    if share is None:
        return "some"
    return percent(share) if share == 0.0 or share >= 0.001 else "<0.1%"


def _event(name: str) -> str:
    kind, _, column = name.partition(":")
    meaning = {
        "outside": "beyond the range by which the column is encoded",
        "clipped": "infinite, clipped",
        "unseen": "a level that training did not have",
        "other": "a rare level",
        "null": "null where training had none",
        "null_target": "dropped: no target",
        "late_rows": "rows that came after those of their time had their labels",
    }.get(kind, kind)
    return f"{column}: {meaning}" if column else meaning


def importance(facts: Facts) -> Markup:
    """Draw what the splits on each column are worth."""
    if _is_density(facts) or facts.manifest is None:
        return Markup()
    bars = [pair for pair in facts.importances[:_SHOWN_BARS] if pair[1] > 0.0]
    rest = [pair for pair in facts.importances[len(bars) :] if pair[1] > 0.0]
    if rest:
        bars.append((f"{len(rest):,} others", math.fsum(share for _, share in rest)))
    figures = [Figure("Shares of the columns", bar_chart(bars, percent))] if bars else []
    return render(
        "importance.html", reason=facts.no_importances, figures=figures, bound=facts.bound
    )


def work(facts: Facts) -> Markup:
    """Draw growth, throughput, workers and recoveries."""
    figures = []
    for place, name, shown in ((1, "Nodes", short), (2, "Bytes stored", size)):
        points = [(float(row[0]), float(row[place])) for row in facts.growth]
        if points:
            chart = line_chart([Line(name, points)], "rows learned", short, shown, from_zero=True)
            figures.append(Figure(f"{name} at checkpoints", chart))
    attempts = [_attempt_row(number, holder) for number, holder in enumerate(facts.holders, 1)]
    return render("work.html", figures=figures + _over_time(facts), attempts=attempts)


def _over_time(facts: Facts) -> list[Figure]:
    """Return charts over the seconds of work, attempt after attempt."""
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
        Figure("Rows learned", drawn),
        Figure(
            "Workers, and shards recovered after a loss", hands, tuple(line.name for line in both)
        ),
    ]


def _attempt_row(number: int, holder: Any) -> tuple[str, ...]:
    beat = holder.beat or {}
    last, timeline = beat.get("told") or {}, beat.get("timeline") or []
    outcome = beat.get("outcome") or ("ended without a word" if holder.is_over else "in progress")
    if beat.get("error"):
        outcome = f"{outcome}: {beat['error']}"
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(holder.began))
    rows = f"{timeline[-1][1] - timeline[0][1]:,.0f}" if timeline else "0"
    took = clock(timeline[-1][0]) if timeline else "0:00"
    return (str(number), began, holder.host, took, rows, str(last.get("workers", 0)),
            str(last.get("recoveries", 0)), outcome)  # fmt: skip


def reproduce(facts: Facts) -> Markup:
    """Show how to train the same forest again, and how to check that it is the same."""
    run, manifest, plan = facts.run_json, facts.manifest, facts.plan
    seed = (run.get("parameters") or {}).get("seed")
    values = [("seed", str(seed)), ("plan", str(run.get("plan")))]
    if manifest is not None:
        values.append(("position", f"{manifest.position:,}"))
        values += [(f"shard {n}", str(s["digest"])) for n, s in manifest.shards.items()]
    versions = run.get("created_by") or {}
    values += [(f"version of {name}", str(version)) for name, version in versions.items()]
    return render(
        "reproduce.html",
        seed=seed,
        is_seed_drawn=(run.get("estimator") or {}).get("random_state") is None,
        job=job_of(facts),
        n_rows_first=plan.earlier[0][0] if plan is not None and plan.earlier else None,
        facts=values,
    )
