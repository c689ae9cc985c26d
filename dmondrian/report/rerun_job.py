"""A job file that trains the forest of a run again.

Relies on run.json and the plan. Promises a job that `dmondrian train` takes; its shards have the
digests of the run's, where files, versions and the seed are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dmondrian._text.toml_values import toml_value
from dmondrian.data import Block, Plan, Schema
from dmondrian.report.facts import Facts

_TEXTS = ("string", "large_string", "string_view", "dictionary")  # read as categories anyway
_MOST_LEVELS = 64  # kept of a column unless a job says otherwise


def job_of(facts: Facts) -> str:
    """Return the job file, as far as the run knows it; "" for a model fitted on arrays."""
    run, plan = facts.run_json, facts.plan
    if facts.schema is None:
        return ""
    lines = ["[data]", *_lines(_data(facts.schema, plan, run.get("target")))]
    if plan is not None and plan.shuffle and not plan.bands:
        lines.append(
            "# an earlier version shuffled these rows: this one reads them in another order"
        )
    later = [] if plan is None else _files(plan.blocks, _began_with(plan), plan.n_rows)
    if later:
        lines.append(f"# then the same command with these files behind: {toml_value(later)}")
    estimator = _asked(run.get("estimator") or {})
    shards: Sequence[Sequence[int]] = run.get("shards") or [[0, 0]]
    is_whole = facts.n_trees in (0, sum(stop - first for first, stop in shards))
    if not is_whole:  # trees that came later are those that it could have begun with
        estimator["n_estimators"] = facts.n_trees
    lines += ["", "[forest]", *_lines({"algorithm": run.get("algorithm"), **estimator})]
    settings: dict[str, Any] = {"path": f"{facts.url}-again"}
    if is_whole:
        settings["n_shards"] = len(shards)
    if shards[0][0]:
        settings["first_tree"] = shards[0][0]
    if run.get("target") is not None and not run.get("progressive", True):
        settings["progressive"] = False
    return "\n".join([*lines, "", "[run]", *_lines(settings)])


def _asked(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as a job file has them: "none" is None, save for a seed."""
    asked = {name: value for name, value in params.items() if name != "n_jobs"}
    seed = asked.pop("random_state", None)
    some = {name: "none" if value is None else value for name, value in asked.items()}
    return some if seed is None else {**some, "random_state": seed}


def _data(schema: Schema, plan: Plan | None, target: str | None) -> dict[str, Any]:
    """Return the table of the data: what shapes the stream and its encoding."""
    told: dict[str, Any] = {}
    if plan is not None:
        files = _files(plan.blocks, 0, _began_with(plan))
        told["path"] = files[0] if len(files) == 1 else files
    told |= {"target": target, "weight": schema.weight}
    if plan is not None:
        told["exclude"] = list(plan.excluded) or None
        told["include"] = list(plan.included or ()) or None
        told["shuffle"], told["seed"] = (True, plan.seed) if plan.shuffle else (None, None)
    levels = [column for column in schema.columns if column.kind == "category"]
    told["categorical"] = [c.name for c in levels if not c.type.startswith(_TEXTS)] or None
    cut = [len(column.levels) for column in levels if column.n_distinct > len(column.levels)]
    most = max(cut or [len(column.levels) for column in levels], default=0)
    if most > _MOST_LEVELS or (cut and most != _MOST_LEVELS):
        told["max_categories"] = most
    for name in ("infinite", "null_target"):
        if getattr(schema, name) != "error":
            told[name] = getattr(schema, name)
    return told | {"classes": None if schema.classes is None else list(schema.classes)}


def _began_with(plan: Plan) -> int:
    """Return the rows of the stream that the run began with: they made the encoding."""
    return plan.earlier[0][0] if plan.earlier else plan.n_rows


def _files(blocks: Sequence[Block], first: int, stop: int) -> list[str]:
    """Return the files of a part of the stream, in the order in which they were listed."""
    some = [block for block in blocks if first <= block.position < stop]
    return list(dict.fromkeys(block.uri for block in sorted(some, key=lambda b: b.group)))


def _lines(table: Mapping[str, Any]) -> Iterator[str]:
    return (f"{key} = {toml_value(value)}" for key, value in table.items() if value is not None)
