"""A job file that trains the forest of a run again.

Relies on run.json and the plan. Promises a job that `dmondrian train` takes; its shards have the
digests of the run's, where files, versions and the seed are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from dmondrian._text.wording import label_as_key
from dmondrian.data import Block, Plan, Schema
from dmondrian.data.lag_settings import without_lags
from dmondrian.report.facts import Facts

_TEXTS = ("string", "large_string", "string_view", "dictionary")  # read as categories anyway
_MOST_LEVELS = 64  # kept of a column by default


def job_of(facts: Facts) -> str:
    """Return the job file, as far as the run knows it; "" for a model fitted on arrays."""
    plan = facts.plan
    if facts.schema is None:
        return ""
    tables = job_tables(facts)
    parts = [_tables(data=tables["data"])]
    if facts.run_json.get("lags") is not None and "lags" not in tables:
        parts.append("# the rows of these files have their lags as columns\n")
    if plan is not None and plan.shuffle and not plan.bands:
        parts.append(
            "# an earlier version shuffled these rows: this one reads them in another order\n"
        )
    later: list[str] = []
    if plan is not None and facts.given is not None:
        later = _files(facts.given.blocks, _began_with(plan), plan.n_rows)
    if later:
        path = "".join(f"# {line}\n" for line in tomli_w.dumps({"path": later}).splitlines())
        parts.append(f"# then the same command with these files appended:\n{path}")
    settings = {"path": f"{facts.url}-again", **tables["run"]}
    lags = {"lags": tables["lags"]} if "lags" in tables else {}
    parts += ["\n", _tables(**lags, forest=tables["forest"], run=settings)]
    return "".join(parts)


def job_tables(facts: Facts) -> dict[str, dict[str, Any]]:
    """Return the tables of that job by name: what determines the forest; None for keys not given.

    A model that was fitted on arrays has ``forest`` alone.
    """
    run = facts.run_json
    forest = {"algorithm": run.get("algorithm"), **_given(run.get("estimator") or {})}
    if facts.schema is None:
        return {"forest": forest}
    shards: Sequence[Sequence[int]] = run.get("shards") or [[0, 0]]
    is_whole = facts.n_trees in (0, sum(stop - first for first, stop in shards))
    if not is_whole:  # the run could have begun with the trees that were added later
        forest["n_estimators"] = facts.n_trees
    settings: dict[str, Any] = {"n_shards": len(shards)} if is_whole else {}
    if shards[0][0]:
        settings["first_tree"] = shards[0][0]
    if run.get("target") is not None and not run.get("progressive", True):
        settings["progressive"] = False
    if (ranges := run.get("row_parts")) is not None:  # without metrics as it is
        settings.pop("progressive", None)
        settings["row_parts"] = len(ranges)
    schema, lags, added = facts.schema, run.get("lags"), {}
    if lags is not None and facts.given is not facts.plan:
        schema, added = without_lags(schema, lags), {"lags": lags}
    data = _data(schema, facts.plan, run.get("target"))
    if facts.plan is not None and facts.given is not None:
        files = _files(facts.given.blocks, 0, _began_with(facts.plan))
        data = {"path": files[0] if len(files) == 1 else files, **data}
    return {"data": data, **added, "forest": forest, "run": settings}


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as a job file has them: "none" is None, save for a seed."""
    parameters = {name: value for name, value in params.items() if name != "n_jobs"}
    seed = parameters.pop("random_state", None)
    if "class_weight" in parameters:  # pairs, as labels may be numbers; keys of TOML are texts
        parameters["class_weight"] = {
            label_as_key(label): w for label, w in parameters["class_weight"]
        }
    values = {name: "none" if value is None else value for name, value in parameters.items()}
    return values if seed is None else {**values, "random_state": seed}


def _data(schema: Schema, plan: Plan | None, target: str | None) -> dict[str, Any]:
    """Return the keys of ``[data]``: what determines the stream and its encoding."""
    table: dict[str, Any] = {}
    table |= {"target": target, "weight": schema.weight, "time": schema.time}
    if plan is not None:
        table["exclude"] = list(plan.excluded) or None
        table["include"] = list(plan.included or ()) or None
        table["shuffle"], table["seed"] = (True, plan.seed) if plan.shuffle else (None, None)
    levels = [column for column in schema.columns if column.kind == "category"]
    table["categorical"] = [c.name for c in levels if not c.type.startswith(_TEXTS)] or None
    texts = [column for column in schema.columns if column.kind == "text"]
    if texts:
        table["text"] = [column.name for column in texts]
        table["text_features"], table["text_words"] = texts[0].hashed
    table["cyclic"] = [column.name for column in schema.columns if column.is_cyclic] or None
    cut = [len(column.levels) for column in levels if column.n_distinct > len(column.levels)]
    most = max(cut or [len(column.levels) for column in levels], default=0)
    if most > _MOST_LEVELS or (cut and most != _MOST_LEVELS):
        table["max_categories"] = most
    for name in ("infinite", "null_target"):
        if getattr(schema, name) != "error":
            table[name] = getattr(schema, name)
    return table | {"classes": None if schema.classes is None else list(schema.classes)}


def _began_with(plan: Plan) -> int:
    """Return the rows of the stream that the run began with: they made the encoding."""
    return plan.earlier[0][0] if plan.earlier else plan.n_rows


def _files(blocks: Sequence[Block], first: int, stop: int) -> list[str]:
    """Return the files of a part of the stream, in the order in which they were listed."""
    part = [block for block in blocks if first <= block.position < stop]
    return list(dict.fromkeys(block.uri for block in sorted(part, key=lambda b: b.group)))


def _tables(**tables: Mapping[str, Any]) -> str:
    """Return tables as TOML, which has no null: such keys are left out."""
    return tomli_w.dumps(
        {name: {key: value for key, value in table.items() if value is not None}
         for name, table in tables.items()}
    )  # fmt: skip
