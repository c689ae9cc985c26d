"""`dmondrian init`: a commented job file for a data set, ready to run.

Relies on :mod:`dmondrian.data` for what is in the data; starts no cluster, and writes nothing but
the file that was asked for. Promises that `dmondrian train` takes the file as it is.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dmondrian._text.wording import counted, label_as_key
from dmondrian.cli.job_keys import ALGORITHMS, WITHOUT_TARGET, is_classifier
from dmondrian.cli.output import Output
from dmondrian.errors import DataError, JobError

if TYPE_CHECKING:
    from dmondrian.data import Plan

_MOST_INTEGER_CLASSES = 20  # distinct whole numbers up to which a target is taken for labels
_SHOWN_COLUMNS = 60
# Ways to read data that cannot be read as they are, in the order in which they are tried.
_ALLOWANCES: tuple[dict[str, str], ...] = (
    {},
    {"null_target": "drop"},
    {"infinite": "clip"},
    {"null_target": "drop", "infinite": "clip"},
)
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


def init(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian init --help`."""
    target, algorithm = arguments.target, arguments.algorithm
    if algorithm == WITHOUT_TARGET and target is not None:
        raise JobError(f"--target {target}: {WITHOUT_TARGET} has no target; leave one of them out")
    if algorithm not in (None, WITHOUT_TARGET) and target is None:
        raise JobError(f"--algorithm {algorithm}: it learns a column; expected --target with it")
    file = None if arguments.out is None else Path(arguments.out)
    if file is not None and os.path.lexists(file):
        raise JobError(f"{file} is there already and is not overwritten; give another file")
    if algorithm is None:
        algorithm = WITHOUT_TARGET if target is None else _algorithm(arguments.data, target)
    plan, allowances = _plan(arguments.data, target, algorithm)
    text = _job(arguments.data, file, plan, algorithm, allowances)
    output.event("job", {"out": arguments.out, "algorithm": algorithm, "text": text})
    if target is None:
        output.remark("no --target was given: the job learns the density of the rows, not a column")
    if file is None:
        output.text(text)
        return 0
    _write_new(file, text)
    output.text(f"{file}: read it, then run `dmondrian train {shlex.quote(str(file))}`")
    return 0


def _algorithm(data: str, target: str) -> str:
    """Return the algorithm for a target: a classifier for labels, a regressor for other numbers."""
    import pyarrow as pa

    from dmondrian.data import make_plan

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the plan that is used are reported
        plan = make_plan(data, infinite="clip")
        types = {column.name: column.type for column in plan.schema.columns}
        kind = types.get(target, "")
        is_integer = re.fullmatch(r"u?int\d+", kind) is not None
        is_number = is_integer or kind in map(str, (pa.float16(), pa.float32(), pa.float64()))
        if not is_number and not kind.startswith("decimal"):
            return "amf-classifier"
        if not is_integer:
            return "amf-regressor"
        try:
            labels = make_plan(data, target=target, infinite="clip", null_target="drop")
        except DataError:  # too many of them, or one
            return "amf-regressor"
    return "amf-classifier" if labels.schema.n_classes <= _MOST_INTEGER_CLASSES else "amf-regressor"


def _plan(data: str, target: str | None, algorithm: str) -> tuple[Plan, dict[str, str]]:
    """Return a plan of the data, and the options that it needs."""
    from dmondrian.data import make_plan

    task = "classification" if is_classifier(algorithm) else "regression"
    refusal: DataError | None = None
    for allowances in _ALLOWANCES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # they are among the plan's notes
            try:
                plan = make_plan(data, target=target, task=task, **allowances)  # type: ignore[arg-type]  # texts
            except DataError as error:
                refusal = refusal or error
                continue
        return plan, allowances
    assert refusal is not None
    raise refusal


def _job(
    data: str, file: Path | None, plan: Plan, algorithm: str, allowances: Mapping[str, str]
) -> str:
    """Return the text of the job file."""
    folder = Path.cwd() if file is None else file.absolute().parent
    name = str(file) if file is not None else "JOB.toml"
    n_files = plan.table.n_files
    files = counted(n_files, "file")
    schema = plan.schema
    is_mixed = _advises_shuffle(plan)
    run = _run_name(data, folder)
    lines = [
        *_comment(
            f"Made by `dmondrian init` of {counted(plan.n_rows, 'row')} in {files}.",
            f"Train, resume or continue with it: dmondrian train {shlex.quote(name)}",
            "Relative paths are relative to this file. `dmondrian train --help` lists all keys.",
        ),
        "",
        "[data]",
        _key(path=_relative(data, folder)),
        *_target_lines(plan),
        '# exclude = ["COLUMN"] # columns to leave out: ids, and what is not known beforehand',
        '# categorical = ["COLUMN"] # numbers that are names, such as codes',
        '# text = ["COLUMN"] # columns of free text, whose words become features',
        '# cyclic = ["COLUMN"] # times by which things come round: hour, weekday, day of the year',
        '# weight = "COLUMN" # how much each row counts',
        '# time = "COLUMN" # of rows in their order, for a [forest] delay that is a time: "7 days"',
        f"{'' if is_mixed else '# '}shuffle = true # mix rows whose order is of no meaning",
        *(f'{key} = "{value}" # {_REASONS[key]}' for key, value in allowances.items()),
        *(
            f'# {key} = "{value}" # {_REASONS[key]}'
            for key, value in _ALLOWANCES[-1].items()
            if key not in allowances and not (key == "null_target" and schema.target is None)
        ),
        "",
        *_comment("The columns:", *_columns(plan)),
        *(_comment("", *(f"Note: {note}" for note in plan.notes)) if plan.notes else ()),
        "",
        "# [lags] # earlier values of a series, as columns of its later rows",
        '# columns = ["COLUMN"] # whose values, in the order of the files',
        "# lags = [1] # how many rows of the key to go back",
        '# key = "COLUMN" # names the series of a row: a shop, a device',
        "",
        "[forest]",
        f"{_key(algorithm=algorithm)} # {ALGORITHMS[algorithm]}",
        "n_estimators = 10 # trees: more are more accurate, and take more time and memory",
        "random_state = 0 # the seed: the same job gives the same forest, byte for byte",
        *_class_weight_lines(plan),
        *_drift_lines(algorithm),
        *_calibration_lines(algorithm),
        "",
        "[run]",
        f"{_key(path=run)} # checkpoints, and in the end the model",
        '# checkpoint_every = "auto" # or such as "100000 rows", "5 min"; never changes the forest',
        "",
        "[cluster]",
        'scheduler = "local" # or an address, or the scheduler file of a cluster that runs',
        "# workers = 2 # processes of a local cluster; default: by the cores and memory",
        "",
        "# [score] # after training: predictions for other rows, and metrics where these have "
        "the target",
        f"# {_key(path='OTHER.parquet')}",
        f"# {_key(out=run + '-scores')}",
    ]
    return "\n".join(lines) + "\n"


def _calibration_lines(algorithm: str) -> list[str]:
    """Return a line on how sure numbers are, of the estimator that learns it in the stream."""
    if algorithm != "amf-regressor":
        return []
    return ['# calibrate = true # scores have "std": how far off a number may be']


_REASONS = {
    "null_target": "leave out rows whose target is missing",
    "infinite": "put infinite numbers at the nearest finite bound of their column",
}


def _class_weight_lines(plan: Plan) -> list[str]:
    """Return a line about weights of classes, where there are two or more of them."""
    classes = plan.schema.classes or ()
    if len(classes) < 2:
        return []
    last = label_as_key(classes[-1])
    weights = f"class_weight = {{{_key(**{last: 2})}}}"
    return [f"# {_one_line(weights)} # weights of rows times this, for a class"]


def _drift_lines(algorithm: str) -> list[str]:
    """Return lines about streams that change, where the algorithm can follow them."""
    if algorithm not in ("amf-classifier", "amf-regressor"):
        return []
    return [
        '# drift = "follow" # where the world changes along the rows; takes much longer',
        "# delay = 64 # with it: rows whose labels come together; 1 where each is known at once",
        '# experts = ["mondrian", "boosted", "scaled"] # with it: mixes boosted, scaled trees',
    ]


def _advises_shuffle(plan: Plan) -> bool:
    """Whether the target is sorted by rows that have no time."""
    is_timed = any(column.kind == "time" for column in plan.schema.columns)
    return not is_timed and any("shuffle = true" in note for note in plan.notes)


def _target_lines(plan: Plan) -> list[str]:
    schema = plan.schema
    if schema.target is None:
        return [
            '# target = "COLUMN" # to learn a column, with another algorithm; a density has none'
        ]
    if schema.classes is None:
        limits = schema.target_range
        kind = "numbers" + (f" from {limits[0]:g} to {limits[1]:g}" if limits else "")
    else:
        shown = ", ".join(map(str, schema.classes[:8])) + (", ..." if schema.n_classes > 8 else "")
        kind = f"{schema.n_classes:,} classes: {shown}"
    return [f"{_key(target=schema.target)} # {_one_line(kind)}"]


def _columns(plan: Plan) -> list[str]:
    """Return a line for each column: its name, and how it is encoded."""
    from dmondrian.data.schema import describe_encoding

    columns = plan.schema.columns
    shown = [
        (_one_line(column.name), f"{column.kind}, {_one_line(describe_encoding(column))}")
        for column in columns[:_SHOWN_COLUMNS]
    ]
    shown += [
        (_one_line(name), f"left out: {_one_line(why)}")
        for name, why in plan.schema.left_out[:_SHOWN_COLUMNS]
    ]
    width = max((len(name) for name, _ in shown), default=0)
    lines = [f"  {name:<{width}}  {how}" for name, how in shown]
    n_more = len(columns) + len(plan.schema.left_out) - len(shown)
    return [*lines, f"  and {n_more:,} more: see `dmondrian schema`"] if n_more else lines


def _key(**keys: str | int) -> str:
    """Return a key and its value as TOML."""
    import tomli_w

    return tomli_w.dumps(keys).rstrip("\n")


def _comment(*lines: str) -> list[str]:
    return [f"# {_one_line(line)}".rstrip() for line in lines]


def _one_line(text: str) -> str:
    """Return a text for a comment, without control characters: names come from outside."""
    safe = text.translate(_CONTROLS)
    return safe.encode("utf-8", "backslashreplace").decode("utf-8")


def _relative(data: str, folder: Path) -> str:
    """Return a path as a job file in a folder names it; a URL as it is."""
    if "://" in data:
        return data
    return Path(os.path.relpath(os.path.expanduser(data), folder)).as_posix()


def _run_name(data: str, folder: Path) -> str:
    """Return a new folder for the run, named after the data."""
    parts = [part for part in data.rstrip("/").split("/") if part and not set(part) & set("*?[")]
    stem = re.sub(r"\.(parquet|parq|pq)$", "", parts[-1]) if parts else ""
    name = re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "run"
    number, path = 1, f"runs/{name}"
    while (folder / path).exists():
        number += 1
        path = f"runs/{name}-{number}"
    return path


def _write_new(file: Path, text: str) -> None:
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise JobError(
            f"{file}: cannot be written ({error.strerror}); give another file"
        ) from error
