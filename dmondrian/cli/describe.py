"""`dmondrian describe` and `dmondrian schema`: what a model is, and how columns are encoded.

Relies on `dmondrian.checkpoint` and `dmondrian.data`; starts no cluster and changes nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmondrian._text.wording import counted, on_one_line, size
from dmondrian.cli.output import Output, candidates_table, shown, table
from dmondrian.cli.score import (
    held_out_lines,
    metrics_table,
    metrics_title,
    one_or_list,
    remarks_on,
)
from dmondrian.errors import CheckpointError, StoreError

if TYPE_CHECKING:
    from dmondrian.checkpoint import Run

# Longer lists (hundreds of classes, thousands of checkpoints) are cut in the text, not in --json.
_SHOWN_ITEMS = 8
_SHOWN_ALERTS = 5  # that are over


def describe(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian describe --help`."""
    if arguments.follow:
        from dmondrian.cli.watch import follow

        return follow(arguments, output)
    facts = _facts(arguments.model, arguments.importances)
    output.event("model", facts)
    output.text(table(_rows_about_model(facts)))
    _show_parameters(facts, arguments.features, output)
    _show_importances(facts, output)
    _show_metrics(facts, output)
    if facts["search"] is not None:
        candidates = candidates_table(facts["search"]["candidates"])
        output.text(f"found by a search, by {facts['search']['loss']}:\n{candidates}")
    for note in (facts["data"] or {}).get("notes", ()):
        output.remark(note)
    if facts["counts"]:
        output.text("values met:\n" + _indented(table(facts["counts"].items())))
    return 0


def _rows_about_model(facts: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the rows of the table of a model: what it is, and how it came about."""
    about = facts["size"]
    at_most = "" if facts["is_recorded"] else "at most "
    rows: list[tuple[str, Any]] = [
        ("model", facts["model"]),
        ("algorithm", facts["algorithm"]),
        *_rows_about_data(facts),
        ("rows learned", _rows_learned(facts)),
        ("features", facts["features"]),
        ("trees", _trees(about, facts["mixed_beside"])),
        ("nodes", f"{about['nodes']:,}{_per_tree(about)}"),
        ("in memory", at_most + _bytes_and_per_node(about["memory_bytes"], about["nodes"])),
        ("stored", _bytes_and_per_node(about["stored_bytes"], about["nodes"])),
        ("on disk", f"{size(about['on_disk_bytes'])}, with all checkpoints"),
    ]
    if facts["row_parts"] is not None:
        from dmondrian.checkpoint.row_ranges import in_words as parts_in_words

        rows.append(("row parts", parts_in_words(facts["row_parts"])))
    if facts["created_by"]:
        by = ", ".join(f"{name} {version}" for name, version in facts["created_by"].items())
        rows.append(("written by", by))
    if facts["classes"] is not None:
        rows.append(("classes", f"{len(facts['classes']):,}: {_some(facts['classes'])}"))
    if facts["target"] is not None:
        rows.append(("target", facts["target"]))
    for part in facts["parts"]:
        first, stop = part["trees"]
        at = counted(part["rows"], "row") + ("" if part["final"] else ": not yet used")
        rows.append(("grown", f"trees {first:,} to {stop - 1:,}, {at}"))
    if facts["calibrated"] is not None:
        rows.append(("calibrated", facts["calibrated"]))
    if facts["mixed_beside"] and (ages := facts["metrics"].get("ages")):
        from dmondrian.distributed.metrics.age_curve import share_in_words

        for place, name in enumerate(facts["mixed_beside"], -len(facts["mixed_beside"])):
            rows.append((f"weight of {name}", share_in_words(ages, place)))
    rows.append(("checkpoints", f"at {_some(facts['checkpoints'])} rows"))
    return rows


def _rows_about_data(facts: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the rows of that table about when, and on what, a model was trained."""
    rows: list[tuple[str, Any]] = []
    data = facts["data"]
    if facts["trained"] is not None:
        rows.append(("trained", _when(facts["trained"])))
    if data is not None:
        rows.append(("data", f"{counted(data['rows'], 'row')} in {_files(data['files'])}"))
    if facts["data_error"] is not None:
        rows.append(("data", f"their plan cannot be read: {facts['data_error']}"))
    if facts["lags"] is not None:
        from dmondrian.data.lag_settings import in_words

        rows.append(("lags", in_words(facts["lags"])))
    if data is not None and data["label_delay"] is not None:
        from dmondrian.cli.follow import delay_in_words

        later = delay_in_words(**data["label_delay"])
        rows.append(("labels came", f"{later} after their rows, the median of the last file"))
    return rows


def _show_parameters(facts: Mapping[str, Any], all_features: bool, output: Output) -> None:
    """Print the parameters, with those chosen from the data, and the scales of features."""
    parameters, in_use = _of_use(facts["parameters"]), dict(facts["in_use"])
    scales = in_use.pop("feature_scales", None)
    if isinstance(parameters.get("feature_scales"), list):
        scales, parameters["feature_scales"] = parameters["feature_scales"], "given"
    units = in_use.pop("feature_units", None)
    chosen = {
        name: f"{parameters[name]}, now {shown(value)}"
        for name, value in in_use.items()
        if name in parameters
    }
    if units is not None:
        rounded = f"{sum(unit > 0.0 for unit in units):,} of {counted(len(units), 'feature')}"
        chosen["feature_units"] = f"{parameters['feature_units']}, now {rounded} rounded"
    output.text("parameters:\n" + _indented(table({**parameters, **chosen}.items())))
    names = facts["feature_names"] or [str(number) for number in range(facts["features"])]
    if all_features:
        output.text("features in use:\n" + _indented(_features(names, scales, units)))
    elif scales is not None:
        widest = sorted(zip(scales, names, strict=True), key=lambda pair: -pair[0])
        output.text(
            f"feature scales, the {min(_SHOWN_ITEMS, len(widest))} largest:\n"
            + _indented(table([(name, scale) for scale, name in widest[:_SHOWN_ITEMS]]))
        )


def _show_importances(facts: Mapping[str, Any], output: Output) -> None:
    """Print the importances of columns, or why there are none, if they are wanted."""
    if facts["no_importances"] is not None:
        output.text(f"importances: none; {facts['no_importances']}")
    elif facts["importances"] is not None:
        ranked = sorted(facts["importances"].items(), key=lambda pair: -pair[1])
        lines = [(name, f"{share:.4f}") for name, share in ranked]
        output.text("importances of the columns:\n" + _indented(table(lines)))
        if monotone := facts["monotone_columns"]:
            output.text(
                f"  0 of {', '.join(monotone)}: trees that never forget, whose splits these are, "
                "do not see columns of monotonic_cst; boosted sets alone do"
            )


def _show_metrics(facts: Mapping[str, Any], output: Output) -> None:
    """Print metrics, alerts and the scores of held-out data, with remarks on them."""
    parameters = facts["parameters"]
    if facts["waiting"] and not facts["learned"]:
        from dmondrian.drift.waiting_rows import nothing_learned
        from dmondrian.ensemble.settings.drift_settings import DriftSettings

        settings = DriftSettings.of_delay(parameters.get("delay", 1))
        output.remark(nothing_learned(facts["waiting"], settings))
    if facts["metrics"]:
        title = f"metrics ({metrics_title(facts['metrics'])}):\n"
        output.text(title + metrics_table(facts["metrics"], "  "))
        is_following = parameters.get("drift") is not None
        for remark in remarks_on(facts["metrics"], facts["algorithm"], is_following):
            output.remark(remark)
    if alerts := _alert_lines(facts["alerts"]):
        output.text("alerts:\n" + _indented(table(alerts)))
    if held_out := held_out_lines(facts["held_out"]):
        output.text(held_out)


def schema(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian schema --help`."""
    from dmondrian.data import Schema, make_plan

    data = one_or_list(arguments.data)
    if isinstance(data, str) and _is_model(data):
        from dmondrian.checkpoint import Run

        stored = Run.open(data).run_json
        if stored.get("schema") is None:
            return _show_plain_features(stored, output)
        schema_found = Schema.from_json(stored["schema"])
        notes: tuple[str, ...] = ()
    else:
        plan = make_plan(data, target=arguments.target, task=arguments.task)
        schema_found, notes = plan.schema, plan.notes
    output.event("schema", {**schema_found.to_json(), "notes": list(notes)})
    output.text(schema_found.describe())
    for note in notes:
        output.remark(note)
    return 0


def _facts(model: str, with_importances: bool) -> dict[str, Any]:
    """Return all that `describe` shows, as JSON values."""
    from dmondrian.checkpoint import Run, known_trees
    from dmondrian.checkpoint.model import summary_from_trees
    from dmondrian.checkpoint.parts import parts_of
    from dmondrian.checkpoint.search_record import searched
    from dmondrian.distributed.metrics.age_curve import others_of
    from dmondrian.ensemble.feature_importances import why_none
    from dmondrian.ensemble.settings.stored_parameters import mixes_boosted_sets

    trees, stored, manifest = known_trees(model)
    run = Run.open(model)
    summary, rows = trees.summary, trees.summary.rows
    parameters = stored.get("estimator", {})
    why = why_none(trees.parameters) if with_importances else None
    shares = None
    if with_importances and why is None:
        shares = (summary if trees.is_recorded else summary_from_trees(model)).importances()
        why = None if shares is not None else "the gains of splits are too large to be added up"
    calibration = _calibration(trees.calibration)
    data, data_error = _data(run)
    return {
        "model": model,
        "is_recorded": trees.is_recorded,
        "algorithm": trees.parameters["algorithm"],
        "parameters": parameters,
        "in_use": _in_use(trees.parameters, parameters),
        "rows": manifest.position,
        "learned": None if rows is None else rows["learned"],
        "waiting": None if rows is None else rows["waiting"],
        "final": manifest.final,
        "target": stored.get("target"),
        "lags": stored.get("lags"),
        "row_parts": stored.get("row_parts"),
        "mixes_boosted_sets": mixes_boosted_sets(trees.parameters),
        "mixed_beside": others_of(trees.parameters),
        "features": trees.parameters["n_features"],
        "classes": stored.get("classes"),
        "feature_names": stored.get("feature_names"),
        "data": data,
        "data_error": data_error,
        "trained": _trained(run),
        "created_by": stored.get("created_by"),
        "calibration_exponent": getattr(calibration, "exponent", None),
        "variance_factor": getattr(calibration, "factor", None),
        "calibrated": None if calibration is None else calibration.in_words,
        "importances": None if shares is None else _importances(shares, stored),
        "no_importances": why,
        "monotone_columns": _monotone(trees.parameters, stored),
        "size": {
            "trees": trees.n_trees,
            "covering": None if summary.covering is None else dict(summary.covering),
            "nodes": summary.nodes,
            "memory_bytes": summary.memory_bytes,
            "stored_bytes": manifest.stored_bytes,
            "on_disk_bytes": sum(run.store.sizes().values()),
            "bytes_per_node": summary.memory_bytes / max(1, summary.nodes),
        },
        "metrics": _metrics(manifest.metrics),
        "counts": _counts(manifest.metrics),
        "held_out": _held_out(run),
        "alerts": _alerts(run),
        "search": searched(run.store),
        "checkpoints": run.manifests(),
        "parts": [_part(part) for part in parts_of(run)],
    }


def _data(run: Run) -> tuple[dict[str, Any] | None, str | None]:
    """Return what a run was trained on, or why that is not known.

    Neither for a model that was fitted on arrays.
    """
    from dmondrian.data import stored_plan
    from dmondrian.data.joined_files import label_delay
    from dmondrian.data.lagged_files import plan_of_data

    if run.run_json.get("plan") is None:
        return None, None
    try:
        plan = stored_plan(run.stream)
    except (CheckpointError, StoreError) as error:
        return None, str(error)  # what is shown of the model does not depend on it
    files = list(dict.fromkeys(plan.table.uris()))
    try:
        notes = run.stream.notes()
    except (CheckpointError, StoreError):
        notes = []
    delay = label_delay(files[-1]) if files else None
    about = {
        "rows": plan.n_rows,
        "files": list(dict.fromkeys(plan_of_data(run, plan).table.uris())),
        "shuffle": plan.shuffle,
        "notes": notes,
        "label_delay": None
        if delay is None
        else dict(zip(("rows", "seconds"), delay, strict=True)),
    }
    return about, None


def _trained(run: Run) -> dict[str, Any] | None:
    """Return when and how long a run was worked on, from the records of attempts that ended."""
    work = run.work()
    return None if work is None else work.to_json()


def _of_use(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of an estimator that mean something beside its ``drift``."""
    weights = parameters.get("class_weight")
    if weights is not None and not isinstance(weights, str):
        pairs = (f"{on_one_line(str(label))!r} {w:g}" for label, w in weights)
        parameters = {**parameters, "class_weight": ", ".join(pairs)}
    if "drift" not in parameters:
        return dict(parameters)
    without = (
        ("delay", "experts") if parameters["drift"] is None else ("learning_rate", "warmup_rows")
    )
    return {name: value for name, value in parameters.items() if name not in without}


def _rows_learned(facts: Mapping[str, Any]) -> str:
    """Return how many rows trees have learned, and how many wait for their labels."""
    end, waiting = "" if facts["final"] else " (unfinished)", facts["waiting"] or 0
    if not waiting:
        return f"{facts['rows']:,}{end}"
    delay = facts["parameters"].get("delay", 1)
    verb = "waits for its label" if waiting == 1 else "wait for their labels"
    delay = delay if isinstance(delay, str) else f"{delay:,}"
    return f"{facts['learned']:,}; {waiting:,} more {verb} (delay {delay}){end}"


def _when(trained: Mapping[str, Any]) -> str:
    from dmondrian.distributed.cluster.progress import clock

    began, ended = (
        time.strftime("%Y-%m-%d %H:%M", time.gmtime(float(trained[name] or 0.0)))
        for name in ("began", "ended")
    )
    until = "" if ended == began else f" to {ended}"
    seconds = trained["seconds"]
    work = f"{seconds:.1f} s of work" if seconds < 60.0 else f"{clock(seconds)} of work"
    attempts = counted(trained["attempts"], "attempt")
    return f"{began}{until} UTC, {work} in {attempts}"


def _files(files: list[str]) -> str:
    return files[0] if len(files) == 1 else f"{len(files):,} files, {files[0]} first"


def _features(names: list[str], scales: list[float] | None, units: list[float] | None) -> str:
    """Return a table of each feature's scale, and of the unit that it is rounded to."""
    scales = [1.0] * len(names) if scales is None else scales
    units = [0.0] * len(names) if units is None else units
    rows = [("feature", f"{'scale':<13}  rounded to multiples of")]
    for name, scale, unit in zip(names, scales, units, strict=True):
        rows.append((name, f"{scale:<13g}  {f'{unit:g}' if unit else 'not rounded'}"))
    return table(rows)


def _calibration(stored: Any) -> Any:
    """Return the calibration of a manifest, or None."""
    if stored is None:
        return None
    from dmondrian.uncertainty.temperature_scaling import kind_of

    return kind_of(isinstance(stored, dict) and "squares" in stored).from_json(stored)


def _importances(shares: list[float], stored: dict[str, Any]) -> dict[str, float]:
    """Return the importance of each column; features of one column are summed."""
    from dmondrian.data import Schema

    if stored.get("schema") is None:
        names = stored.get("feature_names") or [str(number) for number in range(len(shares))]
        return dict(zip(names, shares, strict=True))
    sums, start = {}, 0
    for column in Schema.from_json(stored["schema"]).columns:
        sums[column.name] = math.fsum(shares[start : start + column.width])
        start += column.width
    return sums


def _monotone(parameters: Mapping[str, Any], stored: dict[str, Any]) -> list[str]:
    """Return the columns with which forecasts rise or fall."""
    directions = (parameters.get("drift") or {}).get("monotone") or []
    if not directions:
        return []
    sizes = _importances([float(abs(direction)) for direction in directions], stored)
    return [name for name, size in sizes.items() if size]


def _part(part: Run) -> dict[str, Any]:
    """Return the trees that were added to the run later."""
    from dmondrian.checkpoint.parts import tree_range

    newest = part.latest(verify=False)
    rows = 0 if newest is None else newest.position
    is_final = newest is not None and newest.final
    return {"trees": list(tree_range(part)), "rows": rows, "final": is_final}


def _in_use(used: Mapping[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the values in use of parameters that the estimator chose itself."""
    known = {
        name: used.get(name) for name, value in parameters.items() if value in ("auto", "learned")
    }
    return {name: value for name, value in known.items() if value is not None}


def _metrics(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of a run; a model from `save` has none."""
    if not stored.get("progressive"):
        return {}
    from dmondrian.distributed.metrics.progressive import Progressive

    return Progressive.from_json(stored["progressive"]).report()


def _held_out(run: Run) -> dict[str, Any]:
    """Return the held-out metrics of checkpoints; empty where none was evaluated."""
    from dmondrian.checkpoint.held_out import read_record

    record = read_record(run.store)
    return {} if record is None else record.report(run.manifests())


def _alerts(run: Run) -> dict[str, Any]:
    """Return the conditions that hold, and the alerts raised last."""
    from dmondrian.checkpoint.raised_alerts import read_alerts

    return read_alerts(run.store)


def _alert_lines(alerts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the conditions that hold now, and the newest alerts that are over."""
    on = [(alert["when"], alert["at"]) for alert in alerts["on"]]
    over = [alert for alert in alerts["raised"] if (alert["when"], alert["at"]) not in on]
    rows = [(alert, "holds since") for alert in alerts["on"]]
    rows += [(one, "over; began") for one in over[-_SHOWN_ALERTS:]]
    lines = []
    for alert, state in rows:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(float(alert["at"])))
        text = f"{state} row {int(alert['row']):,}, {at} UTC, at {float(alert['value']):.4g}"
        lines.append((alert["when"], text))
    return lines


def _counts(stored: dict[str, Any]) -> dict[str, int]:
    if not stored.get("counts"):
        return {}
    from dmondrian.data import events_of
    from dmondrian.distributed.metrics.progressive import read_counts

    return events_of(read_counts(stored))


def _show_plain_features(stored: dict[str, Any], output: Output) -> int:
    """Show a model that was fitted on arrays: its names, or its number of features."""
    names = stored.get("feature_names")
    n_features = stored.get("parameters", {}).get("n_features")
    output.event("schema", {"feature_names": names, "n_features": n_features})
    output.text(
        f"{counted(n_features or 0, 'feature')}, as given to fit: there is no encoding of columns "
        "in this model"
    )
    if names is not None:
        output.text(_indented("\n".join(names)))
    return 0


def _is_model(text: str) -> bool:
    """Whether a path or URL is a run folder, rather than Parquet."""
    folder = re.sub(r"@([0-9]+|best)$", "", text)
    if "://" not in text:
        names = [Path(os.path.expanduser(name)) for name in (text, folder)]
        return any((name / "run.json").is_file() for name in names)
    if folder.endswith(".parquet") or "*" in folder:
        return False
    from dmondrian.checkpoint import Run

    try:
        Run.open(text)
    except CheckpointError:
        return False
    return True


def _trees(about: Mapping[str, Any], beside: Sequence[str]) -> str:
    """Return how many trees there are, and how many of all ages around them."""
    covering = about["covering"]
    if covering is None:
        return str(about["trees"])
    from dmondrian.distributed.metrics.age_curve import SCALED

    part = counted(covering["nodes"], "node")
    which = "of all ages, or scaled," if SCALED in beside else "of all ages"
    return (
        f"{about['trees']} that never forget, and {covering['trees']:,} {which} that follow "
        f"the stream, with {part} in {size(covering['memory_bytes'])}"
    )


def _per_tree(about: Mapping[str, Any]) -> str:
    """Return how many nodes a tree has, where trees are alike."""
    alike = about["covering"] is None
    return f" ({about['nodes'] / about['trees']:,.0f} per tree)" if alike else ""


def _bytes_and_per_node(n_bytes: int, n_nodes: int) -> str:
    return f"{size(n_bytes)} ({n_bytes / max(1, n_nodes):,.0f} bytes per node)"


def _some(items: list[Any]) -> str:
    texts = [f"{item:,}" if type(item) is int else str(item) for item in items]
    half = _SHOWN_ITEMS // 2
    return ", ".join(
        texts if len(texts) <= _SHOWN_ITEMS else [*texts[:half], "...", *texts[-half:]]
    )


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))
