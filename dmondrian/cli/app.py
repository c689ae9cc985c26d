"""The `dmondrian` command: its arguments, its exit codes, and the one place that catches errors."""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module

from dmondrian import __version__
from dmondrian.cli.job_keys import ALGORITHMS
from dmondrian.cli.output import Output, escape_what_cannot_be_written
from dmondrian.cli.signals import ending_in_order
from dmondrian.cli.tls import add_tls_arguments
from dmondrian.cli.warm import CHOICES, DOMAINS
from dmondrian.errors import (
    CheckpointError,
    ClusterError,
    DataError,
    DMondrianError,
    JobError,
    MissingPackageError,
    ParameterError,
    StoreError,
)

# First match wins: the order follows the exception tree from the leaves up.
_EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (JobError, 2),
    (ParameterError, 2),
    (MissingPackageError, 2),
    (DataError, 3),
    (CheckpointError, 4),
    (StoreError, 4),
    (ClusterError, 5),
)
_UNTIL_ASKED = "follow", "serve"  # commands for which that is the way to end, whenever it comes
_INTERRUPTED = 130  # 128 + SIGINT, as shells report it

_EXIT_CODES_HELP = """\
exit codes:
  0    done
  1    an unexpected error (a bug: set DMONDRIAN_TRACEBACK=1 and report what it shows)
  2    wrong arguments, job file or parameters; nothing was done
  3    data that cannot be read, learned or scored, or that changed under a run
  4    a run folder, checkpoint or store that cannot be used
  5    workers lost beyond recovery, or a cluster that did not answer in time
  130  interrupted (Ctrl-C, SIGTERM, SIGHUP); run the same command again to go on;
       `follow` without --once and `serve` end with 0
"""

_MODEL_HELP = "run folder or URL; add @POSITION for an earlier checkpoint, @best for the best"
_DATA_HELP = "Parquet: files, folders, globs, URLs, Delta or Iceberg tables"

Command = Callable[[argparse.Namespace, Output], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the program's name; default those of the process.

    Returns
    -------
    int
        The exit code, as listed by ``dmondrian --help``.
    """
    escape_what_cannot_be_written()
    atexit.register(gc.freeze)  # otherwise Python looks for garbage in all modules, as it ends
    parser = _parser()
    arguments = parser.parse_args(argv)
    output = Output(as_json=arguments.json)
    try:
        with ending_in_order(), warnings.catch_warnings(), output.logged():
            warnings.showwarning = lambda message, *_, **__: output.remark(str(message))
            try:
                return _command(arguments.command)(arguments, output)
            finally:
                output.close_bar()
    except KeyboardInterrupt as stop:
        # Where it came through an `exec`, as of a dataclass that is made, Python notes it as one
        # that nobody caught and ends a module run by -m by SIGINT; the next `exec` forgets that.
        exec("")
        return _report_stop(stop, output, arguments)
    except BrokenPipeError:
        # The reader of stdout went away (`| head`); point stdout at nothing for the exit flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001  # the edge of the program: every error gets a code
        if isinstance(error.__cause__, KeyboardInterrupt):  # as an extension module was loaded
            return _report_stop(error.__cause__, output, arguments)
        return _report(error, output)


def _report_stop(stop: KeyboardInterrupt, output: Output, arguments: argparse.Namespace) -> int:
    """Report that the command was asked to end; return its exit code."""
    if arguments.command in _UNTIL_ASKED and not getattr(arguments, "once", False):
        output.note(str(stop) or "stopped; what is saved is kept")
        return 0
    output.note(f"interrupted: {str(stop) or 'run the same command again to go on'}")
    output.event("error", {"error": "KeyboardInterrupt", "exit_code": _INTERRUPTED})
    return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--json", action="store_true", help="one JSON object per line on stdout; progress on stderr"
    )
    parser = argparse.ArgumentParser(
        prog="dmondrian",
        description="Online Mondrian forests: train, checkpoint and score on Dask from Parquet.",
        epilog=_EXIT_CODES_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, summary: str, epilog: str = "") -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=epilog or _EXIT_CODES_HELP,
            parents=[common],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    train = add("train", "train a forest by a job file, or resume it", _train_epilog())
    train.add_argument("job", metavar="JOB.toml", help="the job file")
    _add_overrides(train)
    _add_metrics_port(train)
    train.add_argument(
        "--detach",
        action="store_true",
        help="hand the job to the cluster of [cluster] scheduler and return; watch it with "
        "`describe --follow`, stop it with `cancel`",
    )
    search = add("search", "find settings by progressive loss, then train with the best")
    search.add_argument("job", metavar="JOB.toml", help="a job file with a table [search]")
    _add_overrides(search)
    _add_follow(
        add("follow", "keep learning the files that come to a job's data, until Ctrl-C or SIGTERM")
    )
    _add_init(add("init", "write a job file for a data set, commented and ready to run"))
    _add_managing(add)
    score = add("score", "write predictions for a data set as Parquet")
    score.add_argument("model", metavar="MODEL", help=_MODEL_HELP)
    score.add_argument("data", nargs="+", metavar="DATA", help=_DATA_HELP)
    score.add_argument("out", metavar="OUT", help="folder or URL for the scores")
    score.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="COLUMN[,COLUMN]",
        help="copy these columns of DATA beside the scores; repeatable",
    )
    score.add_argument(
        "--no-details",
        dest="details",
        action="store_false",
        help="leave out the columns of how sure the forest is (spread or std, distance): "
        "scores are written sooner",
    )
    score.add_argument(
        "--delta", action="store_true", help="make a Delta table of the scores (extra lake)"
    )
    evaluate = add("evaluate", "measure a model on a data set that has its target")
    evaluate.add_argument("model", metavar="MODEL", help=_MODEL_HELP)
    evaluate.add_argument("data", nargs="+", metavar="DATA", help=_DATA_HELP)
    for command in (score, evaluate):
        _add_cluster_arguments(command)
    _add_serve(add("serve", "answer forecasts over HTTP, and learn labels that come later"))
    _add_inspecting(add)
    warm = add("warm", "compile all kernels for this machine, so that no job has to wait for them")
    warm.add_argument(
        "--algorithm",
        action="append",
        default=[],
        choices=tuple(CHOICES),
        help="only those of this one; repeatable",
    )
    warm.add_argument("--domain", choices=DOMAINS, help="only those of forests on this domain")
    _add_try_cluster(
        add("cluster", "start an encrypted cluster on this machine, to try a job with")
    )
    return parser


def _add_follow(command: argparse.ArgumentParser) -> None:
    command.add_argument("job", metavar="JOB.toml", help="the job file, as of train")
    _add_overrides(command)
    _add_metrics_port(command)
    command.add_argument(
        "--interval",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="from the end of a look at the data to the next one (default: 2)",
    )
    command.add_argument(
        "--once", action="store_true", help="look once, learn what is there, and end"
    )
    command.add_argument(
        "--keep",
        type=int,
        default=3,
        metavar="K",
        help="newest checkpoints to keep, of which each look saves one (default: 3)",
    )


def _add_serve(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL", help=f"{_MODEL_HELP}; or a saved estimator")
    command.add_argument("--host", default="127.0.0.1", help="address (default: this machine only)")
    command.add_argument("--port", type=int, default=8000, help="default: 8000; 0 for any free one")
    command.add_argument(
        "--learn",
        action="store_true",
        help="learn labels (POST /learn) and save; only for a model written by `save`",
    )
    command.add_argument(
        "--save-rows",
        type=int,
        default=10_000,
        metavar="N",
        help="with --learn: save after so many rows (default: 10,000)",
    )
    command.add_argument(
        "--save-every",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="with --learn: save so long after the first row that is not saved (default: 60)",
    )
    command.add_argument(
        "--waiting",
        type=int,
        default=100_000,
        metavar="N",
        help="with --learn: newest rows that wait for labels, and keys of rows learned that are "
        "remembered (default: 100,000)",
    )
    command.add_argument(
        "--max-body",
        type=int,
        default=8 * 2**20,
        metavar="BYTES",
        help="longest body of a request (default: 8 MiB)",
    )
    command.add_argument(
        "--reload-every",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="between two looks for a newer checkpoint, 0 for none (default: 1)",
    )


def _add_metrics_port(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve metrics for Prometheus at this port, 0 for any; as [metrics] port",
    )


def _add_overrides(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="TABLE.KEY=VALUE",
        help="override one key; the value is TOML, a bare word is a string; repeatable",
    )


def _add_init(command: argparse.ArgumentParser) -> None:
    command.add_argument("data", metavar="DATA", help=_DATA_HELP)
    command.add_argument(
        "--target", metavar="COLUMN", help="the column to learn (without it: the rows' density)"
    )
    command.add_argument(
        "--algorithm",
        choices=tuple(ALGORITHMS),
        metavar="NAME",
        help="as `dmondrian train --help` lists them (default: by the values of the target, "
        "amf-classifier or amf-regressor)",
    )
    command.add_argument(
        "-o", "--out", metavar="FILE", help="a new file to write (default: standard output)"
    )


def _add_inspecting(add: Callable[[str, str], argparse.ArgumentParser]) -> None:
    describe = add("describe", "show what a model is: parameters, size, metrics, checkpoints")
    describe.add_argument("model", metavar="MODEL", help=_MODEL_HELP)
    describe.add_argument(
        "--follow", action="store_true", help="report the progress of a run until it ends"
    )
    describe.add_argument(
        "--features",
        action="store_true",
        help="also show the scale of each feature, and what its values are rounded to",
    )
    describe.add_argument(
        "--importances",
        action="store_true",
        help="also show what the splits on each column are worth, as shares of 1",
    )
    export = add("export", "write a model as a file for other programs")
    export.add_argument("model", metavar="MODEL", help=_MODEL_HELP)
    export.add_argument(
        "--to",
        choices=("onnx", "c"),
        help="the format (default: what the file ends in; another ending needs it)",
    )
    export.add_argument("-o", "--out", required=True, metavar="FILE", help="the file to write")
    export.add_argument(
        "--name", default="forest", help="what names in C source begin with (default: forest)"
    )
    export.add_argument(
        "--encoded",
        action="store_true",
        help="take one matrix of encoded features, as `dmondrian schema` lists them; else the "
        "columns of the training data, whose encoding becomes part of the file; C source always "
        "takes features",
    )
    report = add("report", "write a run, finished or in progress, as a page of one file")
    report.add_argument("model", metavar="RUN", help=_MODEL_HELP)
    report.add_argument(
        "-o", "--out", default="report.html", metavar="FILE", help="default: report.html"
    )
    report.add_argument(
        "--partial-dependence",
        type=int,
        metavar="N",
        help="draw how the mean forecast depends on the N most important columns, and where rows "
        "lie on them; loads the trees, and reads some of the data if they are there, neither with "
        "0; default: 6, where it takes seconds",
    )
    compare = add("compare", "show what differs between runs, and their metrics side by side")
    compare.add_argument("runs", nargs="+", metavar="RUN", help=f"two or more; {_MODEL_HELP}")
    compare.add_argument(
        "--html", metavar="FILE", help="also write a page of one file, with curves in one chart"
    )
    schema = add("schema", "show how columns are encoded, for a data set or as stored in a model")
    schema.add_argument(
        "data", nargs="+", metavar="DATA|MODEL", help=f"{_DATA_HELP}; or a run folder or URL"
    )
    schema.add_argument("--target", metavar="COLUMN", help="the column to learn (DATA only)")
    schema.add_argument(
        "--task",
        choices=("classification", "regression"),
        default="classification",
        help="what the target is (DATA only; default: classification)",
    )


def _out_help(what: str) -> str:
    return f"new folder or URL; or that of an interrupted {what}, to go on with it"


def _add_managing(add: Callable[[str, str], argparse.ArgumentParser]) -> None:
    grow = add("grow", "add trees to a finished run by streaming its data to them alone")
    grow.add_argument("model", metavar="RUN", help="run folder or URL")
    grow.add_argument(
        "--n-estimators",
        type=int,
        required=True,
        metavar="N",
        help="total number of trees afterwards",
    )
    grow.add_argument("--shards", type=int, metavar="N", help="parts the new trees are cut into")
    _add_cluster_arguments(grow)
    merge = add("merge", "join runs of one job and stream with other trees (see first_tree)")
    merge.add_argument("runs", nargs="+", metavar="RUN", help="run folders or URLs, two or more")
    merge.add_argument("--out", required=True, metavar="OUT", help="folder or URL of the new run")
    prune = add(
        "prune", "delete old checkpoints of a run, and files that no checkpoint needs any more"
    )
    prune.add_argument("model", metavar="RUN", help="run folder or URL")
    prune.add_argument(
        "--keep", type=int, default=3, metavar="K", help="newest checkpoints to keep (default: 3)"
    )
    prune.add_argument("--dry-run", action="store_true", help="show what it would delete")
    copy = add("copy", "copy a checkpoint of a run, all that it needs to load, score and go on")
    copy.add_argument("model", metavar="RUN", help="run folder or URL, or RUN@POSITION")
    copy.add_argument("out", metavar="OUT", help=_out_help("copy"))
    forget = add("forget", "train a run again without the rows of some keys, with a certificate")
    forget.add_argument("model", metavar="RUN", help="run folder or URL, finished, with its data")
    forget.add_argument("out", metavar="OUT", help=_out_help("forgetting"))
    forget.add_argument(
        "--keys",
        required=True,
        metavar="FILE",
        help="Parquet with the key column, or text with a key in each line",
    )
    forget.add_argument(
        "--key", required=True, metavar="COLUMN", help="column that tells whose a row is"
    )
    _add_cluster_arguments(forget)
    migrate = add("migrate", "write a checkpoint of an earlier version in the format of this one")
    migrate.add_argument("model", metavar="MODEL", help=_MODEL_HELP)
    migrate.add_argument("out", metavar="OUT", help=_out_help("migration"))
    cancel = add("cancel", "stop a training at a checkpoint, or a scoring after its current file")
    cancel.add_argument("model", metavar="RUN", help="run folder or URL")


def _add_try_cluster(command: argparse.ArgumentParser) -> None:
    command.add_argument("--workers", type=int, metavar="N", help="worker processes (default: 2)")
    command.add_argument("--threads", type=int, metavar="N", help="threads per worker process")
    command.add_argument(
        "--folder",
        metavar="FOLDER",
        help="private folder that keeps certificates and the scheduler file, so that the lines of "
        "a job file hold for the next time (default: a temporary one)",
    )
    command.add_argument(
        "--certificates-only",
        action="store_true",
        help="make certificates in --folder for a cluster started otherwise, and stop",
    )
    add_tls_arguments(command)


def _add_cluster_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--scheduler",
        default="local",
        metavar="ADDRESS",
        help='"local" (default), a scheduler address, or a scheduler file',
    )
    command.add_argument("--workers", type=int, metavar="N", help="local worker processes")
    command.add_argument("--threads", type=int, metavar="N", help="threads per worker process")
    command.add_argument(
        "--memory-limit",
        metavar="BYTES",
        help='memory of a worker, such as "2GiB"; a model that does not fit is used with its trees '
        "sharded",
    )
    add_tls_arguments(command)


def _train_epilog() -> str:
    from dmondrian.cli.job_keys import SEARCH, SEARCH_KEYS, TABLES

    width = max(map(len, ALGORITHMS))
    lines = [
        "job file (TOML; relative paths are relative to its folder, in --set to the current one);",
        "`dmondrian init DATA` writes one:",
        "  [forest]",
        "    algorithm         one of these, as a string (required):",
        *(f"      {name:<{width}}  {meaning}" for name, meaning in ALGORITHMS.items()),
        '    ...               the estimator\'s parameters by their Python names; "none" is None',
    ]
    for name, keys in TABLES.items():
        lines.append(f"  [{name}]")
        for key, model in keys.items():
            needed = " (required)" if model.required else ""
            lines.append(f"    {key:<17} {model.meaning}{needed}")
    lines.append(f"  [{SEARCH}]  (of `dmondrian search`)")
    for key, model in SEARCH_KEYS.items():
        lines.append(f"    {key:<17} {model.meaning}")
    lines.append("    ...               parameters of the estimator, each a list of values to try")
    return "\n".join(lines) + "\n\n" + _EXIT_CODES_HELP


_MODULES = {  # of dmondrian.cli, where the function of a command is
    "train": "train",
    "search": "search",
    "follow": "follow",
    "init": "init",
    "score": "score",
    "evaluate": "score",
    "serve": "serve",
    "warm": "warm",
    "cluster": "try_cluster",
    "cancel": "watch",
    "grow": "manage",
    "merge": "manage",
    "prune": "manage",
    "copy": "manage",
    "migrate": "manage",
    "forget": "manage",
    "report": "report",
    "compare": "compare",
    "export": "export",
    "describe": "describe",
    "schema": "describe",
}


def _command(name: str) -> Command:
    """Import the one module that a command needs."""
    command: Command = getattr(import_module(f"dmondrian.cli.{_MODULES[name]}"), name)
    return command


def _report(error: Exception, output: Output) -> int:
    code = next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)
    if os.environ.get("DMONDRIAN_TRACEBACK"):
        output.note("".join(traceback.format_exception(error)))
    known = isinstance(error, DMondrianError)
    message = str(error) if known else f"unexpected {type(error).__name__}: {error}"
    output.note(f"dmondrian: error: {message}")
    with suppress(StoreError):  # where stdout cannot be written, which is the error
        about = {"error": type(error).__name__, "message": str(error), "exit_code": code}
        output.event("error", about)
    return code
