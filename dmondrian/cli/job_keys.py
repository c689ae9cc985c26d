"""The tables and keys of a job file: types, smallest values and meanings.

One row per key, so that checking, `--help` and documentation agree. The keys of
``[forest]`` are not here: they are the constructor parameters of the chosen estimator.
Relies on nothing; promises that every name here is understood by some command.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Key:
    """One key of a job file."""

    kind: str  # a name of KINDS
    meaning: str
    required: bool = False
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    unit: str = ""  # that a number given for a string lacks


KINDS: dict[str, str] = {
    "string": "a string",
    "integer": "an integer",
    "boolean": "true or false",
    "strings": "a list of strings",
    "paths": "a string or a list of strings",
    "labels": "a list of strings, integers or booleans",
    "counts": "an integer of at least 1 or a list of such integers",
}

TABLES: dict[str, dict[str, Key]] = {
    "data": {
        "path": Key(
            "paths", "Parquet: a file, folder, glob, Hive folder, URL, or a list", required=True
        ),
        "root": Key(
            "string", "folder or URL that relative paths are below; else the job file's folder"
        ),
        "target": Key("string", "the column to learn; of a density none", required=True),
        "exclude": Key("strings", "columns to leave out"),
        "include": Key("strings", "index columns of data frames to use; else they are left out"),
        "categorical": Key("strings", "columns to read as categories although they are numbers"),
        "text": Key("strings", "columns of strings whose words are features"),
        "text_features": Key(
            "integer",
            "features of a text, to which words are hashed (256)",
            minimum=2,
            maximum=4096,
        ),
        "text_words": Key(
            "integer", "words of the longest run that is a feature (1)", minimum=1, maximum=3
        ),
        "cyclic": Key("strings", "columns of times whose parts of the calendar are circles"),
        "weight": Key("string", "the column of row weights"),
        "time": Key("string", "the column of times, for a [forest] delay that is a time"),
        "shuffle": Key("boolean", "read the rows in random order, mixed over many row groups"),
        "seed": Key("integer", "seed of the shuffle", minimum=0),
        "max_categories": Key(
            "integer", "categories kept per column; the rest is <other>", minimum=1
        ),
        "infinite": Key(
            "string",
            'infinite features: "error", or "clip" to the bounds',
            choices=("error", "clip"),
        ),
        "null_target": Key(
            "string", 'rows without a target: "error" or "drop"', choices=("error", "drop")
        ),
        "classes": Key("labels", "all labels that may come, where the data lack some"),
    },
    "lags": {
        "columns": Key(
            "paths", "columns whose earlier values are columns of later rows", required=True
        ),
        "lags": Key("counts", "how many rows of the key to go back (1)"),
        "key": Key("string", "the column that names the series of a row; else all are one"),
        "differences": Key("boolean", "differences of numbers from each lag too (true)"),
        "n_rows": Key(
            "integer", "age in rows at which a value is forgotten (1,000,000)", minimum=1
        ),
    },
    "run": {
        "path": Key(
            "string",
            "run folder or URL, new or of this job: checkpoints and the model",
            required=True,
        ),
        "checkpoint_every": Key(
            "string", '"auto", or such as "100000 rows" or "5 min"', unit="rows"
        ),
        "keep": Key("integer", "newest checkpoints to keep; by default all", minimum=2),
        "n_shards": Key("integer", "parts the forest is cut into, fixed for the run", minimum=1),
        "first_tree": Key(
            "integer", "number of the first tree, for runs that will be merged", minimum=0
        ),
        "progressive": Key("boolean", "forecast each row before it is learned, for metrics"),
        "row_parts": Key(
            "integer",
            "parts of the rows that all trees learn at once, merged at the end, for more workers "
            "than trees: Mondrian forests on the cube",
            minimum=2,
            maximum=4096,
        ),
    },
    "validation": {
        "path": Key(
            "paths",
            "held-out Parquet of the same columns: each checkpoint is evaluated on it, RUN@best is "
            "the best one",
            required=True,
        ),
    },
    "alerts": {
        "when": Key(
            "paths",
            'conditions, each an alert once it holds: such as "log_loss_window > 0.5"',
        ),
        "events": Key("paths", 'kinds of events that are sent too, such as "worker_lost"'),
        "command": Key("strings", "a program and its arguments, called with each alert as JSON"),
        "url": Key("string", "gets each alert as JSON, by POST"),
        "timeout": Key("integer", "seconds that each call may take (10)", minimum=1),
    },
    "metrics": {
        "port": Key("integer", "serve metrics for Prometheus at this port", True, minimum=0),
        "host": Key("string", "address to serve them at; by default for this machine alone"),
    },
    "mlflow": {
        "uri": Key(
            "string", "of MLflow's tracking server or folder; by default what MLflow is set to"
        ),
        "experiment": Key("string", "its name"),
        "run_id": Key("string", "MLflow's run to go on with; by default a new one"),
    },
    "cluster": {
        "scheduler": Key("string", '"local", an address, or a scheduler file'),
        "workers": Key("integer", "local worker processes", minimum=1),
        "threads": Key("integer", "threads per worker process", minimum=1),
        "tls_ca": Key("string", "PEM file: whose certificates the cluster trusts"),
        "tls_cert": Key("string", "PEM file: the certificate shown to the cluster"),
        "tls_key": Key("string", "PEM file: its private key; all three, or none"),
    },
    "score": {
        "path": Key(
            "paths",
            "Parquet to score and evaluate after training; --detach only scores",
            required=True,
        ),
        "out": Key("string", "folder or URL for the scores", required=True),
        "keep": Key("strings", "columns of the input to copy beside the scores"),
        "details": Key("boolean", "add how sure the forest is: spread or std, and distance"),
        "delta": Key("boolean", "make a Delta table of the scores (extra lake)"),
        "memory_limit": Key("string", 'memory of a worker to plan with, such as "2GiB"'),
    },
    "follow": {
        "score": Key("paths", "where files come that `follow` scores, each once, as they come"),
        "scores": Key("string", "folder or URL for their scores: a folder in it for each file"),
        "keep": Key("strings", "columns of these files to copy beside the scores"),
        "details": Key("boolean", "add how sure the forest is: spread or std, and distance"),
        "delta": Key("boolean", "make one Delta table of all these scores (extra lake)"),
        "memory_limit": Key("string", 'memory of a worker to plan with, such as "2GiB"'),
        "export": Key("paths", "files that `follow` writes the newest model to, as ONNX"),
    },
    "labels": {
        "path": Key(
            "paths",
            "where files of labels come, later than their rows: of a key and the target; `follow` "
            "learns each row when its label has come",
            required=True,
        ),
        "key": Key("string", "the column that pairs labels with rows", required=True),
        "joined": Key("string", "folder or URL for the rows with their labels", required=True),
        "rows": Key("integer", "newest rows that wait for labels (10,000,000)", minimum=1),
    },
}

# The table of `dmondrian search`; its other keys are lists of values of the estimator's parameters.
SEARCH = "search"
SEARCH_KEYS: dict[str, Key] = {
    "rows": Key("integer", "rows of the stream that the last round ends at (100,000)", minimum=1),
    "candidates": Key(
        "integer", "most candidates, of the combinations drawn by the seed (64)", minimum=1
    ),
}

# What [forest] algorithm can be, and how `train --help` describes them.
ALGORITHMS: dict[str, str] = {
    "amf-classifier": "classes: aggregated Mondrian forest, needs no tuning",
    "amf-regressor": "numbers: aggregated Mondrian forest, needs no tuning",
    "mondrian-forest-classifier": "classes: Mondrian forest, whose depth a lifetime can bound",
    "mondrian-forest-regressor": "numbers: Mondrian forest, with prediction intervals",
    "generalized-mondrian-forest-classifier": "two classes: unequal costs, or a logistic loss",
    "generalized-mondrian-forest-regressor": "quantiles, counts, robust means: any convex loss",
    "mondrian-density": "how dense the rows lie; has no target",
    "mondrian-kernel-classifier": "classes: ridge regression with the Laplace kernel",
    "mondrian-kernel-regressor": "numbers: ridge regression with the Laplace kernel",
    "online-forest-classifier": "classes: splits chosen by labels, in bounded memory",
    "online-forest-regressor": "numbers: splits chosen by labels, in bounded memory",
}
WITHOUT_TARGET = "mondrian-density"
REQUIRED_TABLES = ("data", "forest", "run")


def is_classifier(algorithm: str) -> bool:
    """Whether an algorithm learns classes."""
    return algorithm.endswith("-classifier")
