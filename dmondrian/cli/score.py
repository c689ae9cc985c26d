"""`dmondrian score` and `dmondrian evaluate`: use a model on a data set.

Relies on `dmondrian.distributed` for all the work; `run_score` and `run_evaluate` are also what a
job file's ``[score]`` table runs after training.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from dmondrian._text.wording import counted
from dmondrian.cli.cluster import connected
from dmondrian.cli.output import Output, table
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
        how = {"keep": tuple(keep), "details": arguments.details, **cluster}
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
    output.text(f"evaluated {model} on {_named(data)}:\n{metrics_table(metrics, '  ')}")
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


def metrics_table(metrics: Mapping[str, Any], indent: str = "") -> str:
    """Return the common metrics, one a line."""
    rows = [(label, metrics[name]) for name, label in _METRICS.items() if name in metrics]
    return "\n".join(indent + line for line in table(rows).split("\n"))


def _diagram(bins: list[dict[str, float]]) -> str:
    """Return a reliability diagram: a line per bin of confidence."""
    rows = []
    for one in bins:
        text = f"right {one['accuracy']:.3f}, sure {one['confidence']:.3f}"
        rows.append((f"{one['above']:.1f} to {one['up_to']:.1f}", f"{one['share']:6.1%}: {text}"))
    return "\n".join("  " + line for line in table(rows).split("\n"))


def one_or_list(data: list[str]) -> str | list[str]:
    """Return the data of a command line: a single path is not a list."""
    return data[0] if len(data) == 1 else data


def _named(data: str | list[str]) -> str:
    return data if isinstance(data, str) else f"{len(data)} paths"
