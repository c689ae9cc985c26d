"""Job files: reading, overriding and checking them before any work.

A job file is TOML with the tables of `job_keys` and a table ``[forest]``: `algorithm` and the
constructor parameters of its estimator. `read_job` checks all but ``[forest]`` without importing
anything heavy, so a mistake is reported at once; `build_estimator` checks ``[forest]``.

Relative paths in a job file are relative to the folder of the job file, so a job does the same from
wherever it is started; relative paths in an override are relative to the current folder, as typed
at a shell.
"""

from __future__ import annotations

import codecs
import difflib
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dmondrian._atomic_write import NO_HOME
from dmondrian.cli.cluster import LOCAL
from dmondrian.cli.job_keys import (
    ALGORITHMS,
    KINDS,
    REQUIRED_TABLES,
    SEARCH,
    SEARCH_KEYS,
    TABLES,
    WITHOUT_TARGET,
    Key,
    is_classifier,
)
from dmondrian.cli.other_names import algorithm_meant, key_meant
from dmondrian.cli.tls import KEYS as TLS_KEYS
from dmondrian.cli.tls import tls_mistakes
from dmondrian.cli.toml_lines import line_of
from dmondrian.cli.toml_words import in_toml
from dmondrian.errors import JobError, ParameterError

# Keys whose relative paths are resolved against the place where they were written.
_PATH_KEYS = (
    ("data", "path"),
    ("run", "path"),
    ("validation", "path"),
    ("score", "path"),
    ("score", "out"),
    ("follow", "score"),
    ("follow", "scores"),
    ("follow", "export"),
    ("labels", "path"),
    ("labels", "joined"),
    *(("cluster", name) for name in TLS_KEYS),
)
# A job without a seed is still reproducible: the same file gives the same bytes, and can resume.
_DEFAULT_RANDOM_STATE = 0
_SQLITE = "sqlite:///"  # before a path, for MLflow
_MLFLOW_SERVERS = ("databricks", "databricks-uc", "uc")  # any other name without a colon is a path
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # what Windows calls "Unicode"


@dataclass(frozen=True)
class Source:
    """Where the values of a job were written, for messages about them."""

    path: Path
    text: str
    overrides: dict[tuple[str, str], str]  # (table, key) -> the override as typed

    def place(self, *keys: str) -> str:
        """Return the line, or the override, that sets a key."""
        if len(keys) == 2 and (keys[0], keys[1]) in self.overrides:
            return f"--set {self.overrides[keys[0], keys[1]]}"
        line = line_of(self.text, keys)
        return str(self.path) if line is None else f"{self.path}:{line}"

    def place_of_table(self, table: str) -> str:
        """Return the line, or the first override, that sets a table."""
        if line_of(self.text, (table,)) is None:
            for override in (text for (name, _), text in self.overrides.items() if name == table):
                return f"--set {override}"
        return self.place(table)

    def folder(self, table: str, key: str) -> Path:
        """Return the folder to which a relative path in that key refers."""
        return Path.cwd() if (table, key) in self.overrides else self.path.parent


@dataclass(frozen=True)
class Job:
    """A checked job: one dict of keys per table, paths resolved."""

    data: dict[str, Any]
    forest: dict[str, Any]
    run: dict[str, Any]
    cluster: dict[str, Any]
    score: dict[str, Any] | None
    follow: dict[str, Any]
    source: Source
    validation: Any = None  # held-out data
    alerts: dict[str, Any] | None = None
    labels: dict[str, Any] | None = None
    lags: dict[str, Any] | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    mlflow: dict[str, Any] | None = None
    search: dict[str, Any] | None = None


def read_job(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Job:
    """Read and check a job file.

    Parameters
    ----------
    path : str or path
        The TOML file.
    overrides : sequence of str
        ``table.key=value``; the value is TOML, and a bare word is a string. Later ones win.

    Raises
    ------
    JobError
        Naming every mistake with its line (or override) and the nearest valid name.
    """
    file = Path(path)
    tables, text = _parse(file)
    source = Source(file, text, {})
    for override in overrides:
        table, key, value = _parse_override(override)
        keys = tables.setdefault(table, {})
        if isinstance(keys, dict):  # else the check below refuses the table as a whole
            keys[key] = value
        source.overrides[table, key] = override
    mistakes = list(_check_tables(tables, source))
    if mistakes:
        raise JobError("\n".join(mistakes))
    if "root" in tables["data"]:
        _lay_below_root(tables["data"], source)
    for table, key in _PATH_KEYS:
        if key in tables.get(table, {}):
            named = _named(source, table, key)
            tables[table][key] = _resolve(tables[table][key], source.folder(table, key), named)
    _resolve_tracking(tables.get("mlflow", {}), source)
    cluster = tables.get("cluster", {})
    if cluster.get("scheduler", LOCAL) != LOCAL:
        # An address, or a file: beside the job file, or as it is written.
        beside = source.folder("cluster", "scheduler") / cluster["scheduler"]
        if os.path.isfile(beside):  # Path.is_file raises where an address is too long for a name
            cluster["scheduler"] = os.path.normpath(beside)
    mistakes = list(tls_mistakes(cluster, lambda name: _named(source, "cluster", name)))
    mistakes += _follow_mistakes(tables.get("follow", {}), source)
    mistakes += _alert_mistakes(tables, source)
    mistakes += _find_command(tables.get("alerts", {}), source)
    if mistakes:
        raise JobError("\n".join(mistakes))
    return Job(
        data=tables["data"],
        forest=tables["forest"],
        run=tables["run"],
        cluster=cluster,
        score=tables.get("score"),
        follow=tables.get("follow", {}),
        labels=tables.get("labels"),
        lags=tables.get("lags"),
        source=source,
        validation=tables.get("validation", {}).get("path"),
        alerts=tables.get("alerts"),
        metrics=tables.get("metrics", {}),
        mlflow=tables.get("mlflow"),
        search=tables.get(SEARCH),
    )


def build_estimator(job: Job) -> Any:
    """Return the estimator that ``[forest]`` describes; "none" stands for None, which TOML lacks.

    Raises
    ------
    JobError
        For an unknown algorithm, an unknown parameter, or values the estimator refuses, alone or
        together.
    """
    from dmondrian.estimators import ALGORITHMS
    from dmondrian.estimators._sklearn_private import constraints_of

    parameters = dict(job.forest)
    algorithm = parameters.pop("algorithm")
    place = job.source.place
    if algorithm not in ALGORITHMS:
        raise JobError(
            f"{place('forest', 'algorithm')}: [forest] algorithm: expected one of "
            f"{_listed(ALGORITHMS)}, got {algorithm!r}{_nearest_algorithm(algorithm)}"
        )
    valid = ALGORITHMS[algorithm]().get_params(deep=False)
    mistakes = [
        _unknown_key(job.source, "forest", name, ["algorithm", *valid])
        for name in parameters
        if name not in valid
    ]
    for name, value in parameters.items():
        if value == "none" and None in constraints_of(ALGORITHMS[algorithm]).get(name, ()):
            value = parameters[name] = None
        if name in valid and (refusal := _refusal(ALGORITHMS[algorithm], name, value)):
            mistakes.append(f"{place('forest', name)}: [forest] {name}: {refusal}")
    if mistakes:
        raise JobError("\n".join(mistakes))
    if "random_state" in valid:
        parameters.setdefault("random_state", _DEFAULT_RANDOM_STATE)
    estimator = ALGORITHMS[algorithm](**parameters)
    try:
        estimator._check_run()
        estimator._check_time(job.data.get("time"))
    except ParameterError as error:
        name = str(error).partition("=")[0]
        table = "data" if name in job.data else "forest"
        key = (table, name) if name in {**job.data, **parameters} else (table,)
        raise JobError(f"{place(*key)}: [{table}] {in_toml(str(error))}") from error
    return estimator


def metrics_options(job: Job, port: int | None) -> dict[str, Any]:
    """Return where metrics are served, as keyword arguments; a port of the command wins."""
    options = {f"metrics_{name}": value for name, value in job.metrics.items()}
    return options if port is None else {**options, "metrics_port": port}


def check_lags(job: Job, estimator: Any) -> None:
    """Check that ``[lags]`` goes with the rest of a job.

    Raises
    ------
    JobError
        With the line.
    """
    if job.lags is None:
        return
    from dmondrian.data.lag_settings import checked_lags
    from dmondrian.distributed.training.lagged_data import WHY

    tables = {"labels": job.labels, "validation": job.validation}
    for table in (name for name, value in tables.items() if value is not None):
        place = job.source.place_of_table(table)
        raise JobError(f"{place}: [{table}] does not go with [lags]: {WHY[table]}")
    try:
        delay, is_shuffled = getattr(estimator, "delay", 1), bool(job.data.get("shuffle"))
        checked_lags(job.lags, job.data.get("target"), delay, is_shuffled)
    except ParameterError as error:
        name = re.split(r"\W", str(error), maxsplit=1)[0]
        place = job.source.place("lags", name) if name in job.lags else ""
        place = place or job.source.place_of_table("lags")
        raise JobError(f"{place}: [lags] {in_toml(str(error))}") from error


def check_row_parts(job: Job, estimator: Any) -> None:
    """Check that ``[run] row_parts`` goes with the rest of a job.

    Raises
    ------
    JobError
        With the line.
    """
    if "row_parts" not in job.run:
        return
    from dmondrian.distributed.training import merged_ranges

    place = job.source.place("run", "row_parts")
    try:
        merged_ranges.check_row_parts(estimator, job.run["row_parts"])
    except ParameterError as error:
        raise JobError(f"{place}: [run] {in_toml(str(error))}") from error
    if job.run.get("progressive"):
        raise JobError(
            f"{place}: [run] row_parts does not go with progressive = true: no part has learned "
            "the rows before a row of another; leave progressive out, and evaluate on held-out rows"
        )


def check_amounts(job: Job) -> None:
    """Check ``checkpoint_every``, ``memory_limit``, and how large a local cluster is.

    Raises
    ------
    JobError
        With the line.
    """
    from dmondrian.distributed.cluster.client import local_size
    from dmondrian.distributed.scoring.memory_plan import parse_limit
    from dmondrian.distributed.training.checkpoint_schedule import parse_every

    checks = (
        ("cluster", job.cluster, "workers", partial(local_size, threads=None)),
        ("cluster", job.cluster, "threads", partial(local_size, None)),
        ("run", job.run, "checkpoint_every", parse_every),
        ("score", job.score or {}, "memory_limit", parse_limit),
        ("follow", job.follow, "memory_limit", parse_limit),
    )
    for table, keys, key, parse in checks:
        try:
            parse(keys.get(key))
        except ParameterError as error:
            raise JobError(f"{job.source.place(table, key)}: [{table}] {error}") from error


def _parse(file: Path) -> tuple[dict[str, Any], str]:
    try:
        data = file.read_bytes()
        # Without the byte order mark that some editors write, and with one kind of line end, so
        # that our line numbers are an editor's.
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise JobError(
            f"{file}: cannot read the job file ({error.strerror}); "
            f"give the path of a TOML file{_other_jobs(file)}"
        ) from error
    except UnicodeDecodeError as error:
        how = "UTF-16 text" if data.startswith(_UTF_16) else f"other bytes ({error})"
        advice = "; save it as UTF-8" if data.startswith(_UTF_16) else ""
        raise JobError(f"{file}: expected UTF-8 text, got {how}{advice}") from error
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        has_null = re.search(r"=\s*(null|None|nil)\b", text)
        advice = '; TOML has no null: "none", in quotes, stands for None' if has_null else ""
        raise JobError(f"{file}: not valid TOML: {error}{advice}") from error


def _other_jobs(file: Path) -> str:
    folder = file.parent
    names = sorted(p.name for p in folder.glob("*.toml")) if folder.is_dir() else []
    near = difflib.get_close_matches(file.name, names, n=1)
    return f"; did you mean {str(folder / near[0])!r}?" if near else ""


def _parse_override(override: str) -> tuple[str, str, Any]:
    name, equals, text = override.partition("=")
    table, dot, key = name.strip().partition(".")
    if not (equals and dot and table and key):
        raise JobError(
            f"--set {override}: expected table.key=value, such as --set forest.n_estimators=20"
        )
    return table, key, _override_value(text.strip())


def _override_value(text: str) -> Any:
    """Return a value read as TOML, else as a string (a bare word, a path, "5 min")."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _check_tables(tables: dict[str, Any], source: Source) -> Iterable[str]:
    known = ["data", "forest", *(name for name in TABLES if name != "data"), SEARCH]
    forest = tables.get("forest")
    is_density = isinstance(forest, dict) and forest.get("algorithm") == WITHOUT_TARGET
    needless = ("target",) if is_density else ()
    for name, keys in tables.items():
        if name not in known:
            yield (
                f"{source.place_of_table(name)}: no such table [{name}]"
                f"{_nearest(name, known)} (tables: {_listed(known)})"
            )
        elif not isinstance(keys, dict):
            yield f"{source.place(name)}: {name}: expected a table [{name}], got {_shown(keys)}"
        elif name == "forest":
            yield from _check_algorithm(keys, source)
        elif name == SEARCH:
            yield from _check_search(keys, source)
        else:
            yield from _check_keys(name, keys, source, needless)
    for name in REQUIRED_TABLES:
        if name not in tables:
            yield f"{source.path}: the table [{name}] is missing; add it"


def _check_algorithm(keys: dict[str, Any], source: Source) -> Iterable[str]:
    if "algorithm" not in keys:
        yield (
            f"{source.place('forest')}: [forest] algorithm is missing; "
            'add a line such as algorithm = "amf-classifier"'
        )
    elif not isinstance(keys["algorithm"], str):
        yield (
            f"{source.place('forest', 'algorithm')}: [forest] algorithm: expected a string, "
            f"got {_shown(keys['algorithm'])}"
        )


def _check_search(keys: dict[str, Any], source: Source) -> Iterable[str]:
    for name, value in keys.items():
        if name in SEARCH_KEYS:
            if mistake := _mistake(SEARCH_KEYS[name], value):
                yield f"{_named(source, SEARCH, name)}: {mistake}"
        elif not isinstance(value, list) or not value:
            yield (
                f"{_named(source, SEARCH, name)}: expected a list of values of the estimator's "
                f"parameter, got {_shown(value)}"
            )


def _check_keys(
    table: str, keys: dict[str, Any], source: Source, needless: Collection[str]
) -> Iterable[str]:
    model = TABLES[table]
    for name, value in keys.items():
        if name not in model:
            yield _unknown_key(source, table, name, model)
        elif mistake := _mistake(model[name], value):
            yield f"{source.place(table, name)}: [{table}] {name}: {mistake}"
        elif name in ("text_features", "text_words") and not keys.get("text"):
            yield (
                f"{_named(source, table, name)}: given without text; add it "
                f"({model['text'].meaning})"
            )
    for name, key in model.items():
        if key.required and name not in keys and name not in needless:
            yield (
                f"{source.place(table)}: [{table}] {name} is missing; add it "
                f"({KINDS[key.kind]}: {key.meaning})"
            )


def _follow_mistakes(keys: dict[str, Any], source: Source) -> Iterable[str]:
    """Yield which keys of ``[follow]`` need others that are not there."""
    for name, needed in (
        ("score", "scores"),
        ("scores", "score"),
        *((name, "score") for name in ("keep", "details", "delta", "memory_limit")),
    ):
        if name in keys and needed not in keys:
            yield (
                f"{_named(source, 'follow', name)}: given without {needed}; add it "
                f"({TABLES['follow'][needed].meaning})"
            )


def _alert_mistakes(tables: Mapping[str, Any], source: Source) -> Iterable[str]:
    """Yield what is wrong with ``[alerts]``."""
    from dmondrian.distributed.cluster.alerts import (
        NOWHERE,
        check_command,
        check_kind,
        check_url,
        parse_condition,
    )

    keys, algorithm = tables.get("alerts", {}), str(tables["forest"]["algorithm"])
    task: str | None = "classification" if is_classifier(algorithm) else "regression"
    task = "density" if algorithm == WITHOUT_TARGET else task
    task = task if algorithm in ALGORITHMS else None
    when = keys.get("when", [])
    checks: list[tuple[str, Callable[[], object]]] = [
        ("when", partial(parse_condition, text, task))
        for text in ([when] if isinstance(when, str) else when)
    ]
    kinds = keys.get("events", [])
    checks += [
        ("events", partial(check_kind, kind))
        for kind in ([kinds] if isinstance(kinds, str) else kinds)
    ]
    checks += [("command", partial(check_command, keys["command"]))] if "command" in keys else []
    checks += [("url", partial(check_url, keys["url"]))] if "url" in keys else []
    for name, check in checks:
        try:
            check()
        except ParameterError as error:
            yield f"{_named(source, 'alerts', name)}: {error}"
    if kinds and not {"command", "url"} & set(keys):
        yield f"{_named(source, 'alerts', 'events')}: {NOWHERE}"
    if keys and not when and not kinds:
        yield f"{source.place_of_table('alerts')}: [alerts] expects when or events, and has neither"
    texts = [when] if isinstance(when, str) else when
    if "validation" not in tables and any("_held_out" in text for text in texts):
        yield (
            f"{_named(source, 'alerts', 'when')}: a condition is about held-out data, and there "
            "are none; add [validation] path"
        )


def _find_command(keys: dict[str, Any], source: Source) -> Iterable[str]:
    """Resolve the program of ``[alerts] command`` as other paths are; yield why it is none."""
    command = keys.get("command")
    if not isinstance(command, list) or not command or not command[0]:
        return  # `_alert_mistakes` has it
    program = command[0]
    if os.path.dirname(program):
        program = os.path.join(source.folder("alerts", "command").resolve(), program)
    if shutil.which(program) is None:
        yield (
            f"{_named(source, 'alerts', 'command')}: there is no program {program!r} that may be "
            "run; with a folder before its name, that is relative to the job file's"
        )
    keys["command"] = [program, *command[1:]]


def _named(source: Source, table: str, key: str) -> str:
    return f"{source.place(table, key)}: [{table}] {key}"


def _unknown_key(source: Source, table: str, name: str, valid: Iterable[str]) -> str:
    names = list(valid)
    meant = key_meant(table, name)
    if name == "task" and table in ("data", "forest"):
        advice = "; the algorithm decides it: one that ends in -classifier or in -regressor"
    else:
        advice = f"; did you mean {meant!r}?" if meant in names else _nearest(name, names)
    return (
        f"{source.place(table, name)}: [{table}] has no key {name!r}"
        f"{advice} (keys: {_listed(names)})"
    )


def _nearest_algorithm(name: str) -> str:
    """Return a similar algorithm: by its class, another library's name, or its spelling."""
    from dmondrian.estimators import ALGORITHMS

    classes = {kind.__name__.lower(): algorithm for algorithm, kind in ALGORITHMS.items()}
    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    meant = classes.get(plain) or algorithm_meant(plain)
    return f"; did you mean {meant!r}?" if meant else _nearest(plain, ALGORITHMS)


def _mistake(key: Key, value: Any) -> str:
    """Return what is wrong with a value, or an empty string."""
    fits = {
        "string": isinstance(value, str),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "boolean": isinstance(value, bool),
        "strings": _are_strings(value),
        "paths": isinstance(value, str) or (_are_strings(value) and len(value) > 0),
        "labels": isinstance(value, list) and all(isinstance(v, (str, int)) for v in value),
        "counts": _are_counts(value if isinstance(value, list) else [value]),
    }[key.kind]
    if not fits:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        advice = f'; write "{value} {key.unit}"' if key.unit and is_number else ""
        return f"expected {KINDS[key.kind]}, got {_shown(value)}{advice}"
    if key.minimum is not None and value < key.minimum:
        return f"expected at least {key.minimum}, got {value}"
    if key.maximum is not None and value > key.maximum:
        return f"expected at most {key.maximum:,}, got {value:,}"
    if key.choices and value not in key.choices:
        return (
            f"expected one of {_listed(key.choices)}, got {value!r}{_nearest(value, key.choices)}"
        )
    if key.kind in ("string", "paths") and not value:
        return "expected a value, got an empty string"
    return ""


def _are_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _are_counts(values: list[Any]) -> bool:
    are = (
        isinstance(value, int) and not isinstance(value, bool) and value >= 1 for value in values
    )
    return bool(values) and all(are)


class _NoNumber:
    """Stands for a boolean where only other values are taken, for the error that lists these."""

    def __init__(self, value: bool) -> None:
        self._value = value

    def __repr__(self) -> str:
        return _shown(self._value)


def _refusal(estimator: type, name: str, value: Any) -> str:
    """Return the estimator's error about one parameter; empty if it accepts the value."""
    from dmondrian.estimators._sklearn_private import check_parameters, constraints_of

    takes_boolean = "boolean" in constraints_of(estimator)[name]
    if isinstance(value, bool) and not takes_boolean:
        value = _NoNumber(value)  # Python takes true for 1; in a job file it is a mistake
    try:
        check_parameters(estimator(**{name: value}))
    except (ValueError, TypeError) as error:
        return in_toml(str(error))
    return ""


def _lay_below_root(data: dict[str, Any], source: Source) -> None:
    """Put the root of the data before their relative paths."""
    from dmondrian.data.paths import rooted

    named = _named(source, "data", "root")
    # Absolute, as what is below a relative root would be looked for below the job's folder again.
    root = _resolve(data.pop("root"), source.folder("data", "root").absolute(), named)
    try:
        data["path"] = rooted(data["path"], root)
    except ParameterError as error:
        raise JobError(f"{named}: {error}") from error


def _resolve_tracking(mlflow: dict[str, Any], source: Source) -> None:
    """Resolve the folder or file of MLflow's tracking, as other paths of a job."""
    uri = str(mlflow.get("uri", ""))
    path = uri.removeprefix(_SQLITE)
    if path and ":" not in path and path not in _MLFLOW_SERVERS:
        named, folder = _named(source, "mlflow", "uri"), source.folder("mlflow", "uri").absolute()
        mlflow["uri"] = uri[: -len(path)] + _resolve(path, folder, named)


def _resolve(value: Any, folder: Path, named: str) -> Any:
    if isinstance(value, list):
        return [_resolve(item, folder, named) for item in value]
    if "://" in value:
        return value
    try:
        return os.path.normpath(folder / Path(value).expanduser())
    except RuntimeError as error:
        raise JobError(f"{named}: {NO_HOME.format(value)}") from error


def _nearest(name: str, valid: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(valid), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _shown(value: Any) -> str:
    kind = {bool: "boolean", int: "integer", float: "float", str: "string", dict: "table"}
    return f"the {kind.get(type(value), type(value).__name__)} {value!r}"
