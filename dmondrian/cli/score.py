"""`dmondrian score` and `dmondrian evaluate`: use a model on a data set.

Relies on `dmondrian.distributed` for all the work; `run_score` and `run_evaluate` are also what a
job file's ``[score]`` table runs after training.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from dmondrian._text.wording import counted
from dmondrian.cli.cluster import connected
from dmondrian.cli.output import Output, shown, table
from dmondrian.cli.tls import tls_of_arguments

# Metrics by their names in results, and how a person calls them.
_METRICS = {
    "rows": "rows",
    "log_loss": "log loss",
    "accuracy": "accuracy",
    "auc": "AUC",
    "ece": "ECE",
    "rmse": "RMSE",
    "mae": "MAE",
    "pinball": "pinball loss",
    "log_likelihood": "log likelihood",
    "r2": "R2",
    "nll": "Gaussian log loss",
    "coverage_90": "labels within 90 %",
}


def score(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian score --help`."""
    keep = [name for names in arguments.keep for name in names.split(",") if name]
    with _cluster(arguments) as cluster:
        flags = {"details": arguments.details, "delta": arguments.delta}
        how = {"keep": tuple(keep), **flags, **cluster}
        run_score(arguments.model, one_or_list(arguments.data), arguments.out, output, how)
    return 0


def evaluate(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian evaluate --help`."""
    with _cluster(arguments) as cluster:
        run_evaluate(arguments.model, one_or_list(arguments.data), output, cluster)
    return 0


def _cluster(arguments: argparse.Namespace) -> Any:
    from dmondrian.distributed.scoring.memory_plan import parse_limit

    tls, limit = tls_of_arguments(arguments), parse_limit(arguments.memory_limit)
    return connected(arguments.scheduler, arguments.workers, arguments.threads, tls, limit)


def run_score(
    model: str,
    data: str | list[str],
    out: str,
    output: Output,
    how: Mapping[str, Any],
) -> None:
    """Score a data set with these options, and report what was written."""
    from dmondrian import distributed

    result = distributed.score(model, data, out, progress=output.follow, **how)
    output.event("scored", {"model": model, **result})
    _report_groups(result, output)
    output.text(f"scored {_named(data)}: {counted(result['rows'], 'row')} in {out}")


def run_evaluate(
    model: str, data: str | list[str], output: Output, cluster: Mapping[str, Any]
) -> None:
    """Measure a model on a data set and report the metrics."""
    from dmondrian import distributed

    metrics = distributed.evaluate(model, data, **cluster)
    _report_groups(metrics, output)
    output.event("evaluated", {"model": model, "metrics": metrics})
    how = f" ({metrics_title(metrics)})" if "forecast" in metrics else ""
    output.text(f"evaluated {model} on {_named(data)}{how}:\n{metrics_table(metrics, '  ')}")
    if "learned" in metrics:
        output.text(metrics["learned"])
    if "reliability" in metrics:
        output.text(
            "how sure, the share of rows, how often right:\n" + _diagram(metrics["reliability"])
        )


def _report_groups(result: Mapping[str, Any], output: Output) -> None:
    groups = result.get("trees_sharded", 1)
    if groups > 1:
        output.remark(
            f"no worker could hold the whole model: its trees were used in {groups} groups"
        )


def metrics_title(metrics: Mapping[str, Any]) -> str:
    """Return how the rows of a run's metrics were forecast, and how far ahead."""
    from dmondrian.prequential.forecast_lag import delay_in_words

    return f"{metrics['forecast']}, {delay_in_words(metrics['delay'])}"


def remarks_on(
    metrics: Mapping[str, Any], algorithm: str | None, is_following: bool
) -> Iterator[str]:
    """Yield what a person should know of a run's metrics: that a stream drifts, say."""
    from dmondrian.distributed.metrics.drift_test import drift_advice
    from dmondrian.distributed.metrics.progressive import WORSE
    from dmondrian.drift.waiting_rows import known_at_once

    if metrics.get("r2", 0.0) < 0.0:
        yield WORSE
    if text := metrics.get("drift", {}).get("text"):
        yield text + drift_advice(algorithm, is_following)
    if is_following and metrics["delay"] == 1:
        yield known_at_once(metrics["rows"])


def metrics_table(metrics: Mapping[str, Any], indent: str = "") -> str:
    """Return the common metrics, one a line; of a stream in columns, with baselines below each."""
    lines = _stream_lines(metrics) if metrics.get("window") else _plain_lines(metrics)
    return "\n".join(indent + line for line in lines)


def held_out_lines(held_out: Mapping[str, Any]) -> str:
    """Return the newest and the best checkpoint by held-out data; empty where there are none."""
    known = held_out.get("checkpoints") or []
    if not known:
        return ""
    newest, best = known[-1], held_out["best"]
    files = counted(len(held_out["files"]), "file")
    title = f"held-out metrics ({counted(held_out['rows'], 'row')} in {files}):\n"
    chosen = [checkpoint for checkpoint in known if checkpoint["position"] == best]
    if best == newest["position"] or not chosen:
        heads = [newest]
    else:
        heads = [newest, chosen[0]]
    rows = [["", *(f"at row {head['position']:,}" for head in heads)]]
    if len(heads) == 2:
        rows[0][2] += ", @best"
    elif chosen:
        rows[0][1] += ", @best"
    for name, label in _METRICS.items():
        if name in newest and name != "rows":
            values = [head.get(name) for head in heads]
            rows.append([label, *("" if value is None else shown(value) for value in values)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return title + "\n".join(
        "  " + "  ".join(text.ljust(n) for text, n in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _plain_lines(metrics: Mapping[str, Any]) -> list[str]:
    rows = [(label, metrics[name]) for name, label in _METRICS.items() if name in metrics]
    return table(rows).split("\n")


def _stream_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Return a table: metrics so far, of the last rows and faded; baselines below each."""
    from dmondrian.distributed.metrics.baselines import baseline_in_words

    window, faded = metrics["window"], metrics["faded"]
    spans = [metrics, window, faded]
    heads = ["so far", f"last {counted(window['rows'], 'row')}",
             f"faded, half after {faded['half_life']:,} rows"]  # fmt: skip
    rows = [["", *heads], ["rows", shown(metrics["rows"]), shown(window["rows"]), ""]]
    for name, label in _METRICS.items():
        if name == "rows" or name not in metrics:
            continue
        rows.append([label, *(shown(span.get(name, "")) for span in spans)])
        for baseline in window["baselines"]:
            of = [span.get("baselines", {}).get(baseline, {}).get(name) for span in spans]
            values = ["" if value is None else shown(value) for value in of]
            rows.append([f"  baseline: {baseline_in_words(baseline)}", *values])
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _diagram(bins: list[dict[str, float]]) -> str:
    """Return a reliability diagram: a line per bin of confidence."""
    rows = []
    for bin_ in bins:
        text = f"right {bin_['accuracy']:.3f}, sure {bin_['confidence']:.3f}"
        rows.append(
            (f"{bin_['above']:.1f} to {bin_['up_to']:.1f}", f"{bin_['share']:6.1%}: {text}")
        )
    return "\n".join("  " + line for line in table(rows).split("\n"))


def one_or_list(data: list[str]) -> str | list[str]:
    """Return the data of a command line: a single path is not a list."""
    return data[0] if len(data) == 1 else data


def _named(data: str | list[str]) -> str:
    return data if isinstance(data, str) else f"{len(data)} paths"
