"""`dmondrian cluster`: an encrypted scheduler and workers on one machine, to try a job with.

A command and not a shell script: it is installed with the package on every system, its scheduler
and workers are child processes that end with it, and its errors are reported as those of the other
commands.

Relies on `dmondrian.cli.encrypted_cluster` for the processes. Promises that the scheduler refuses
whoever does not hold the key, and that all processes and temporary files are gone after Ctrl-C,
SIGTERM or SIGHUP.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dmondrian._atomic_write import NO_HOME
from dmondrian._text.wording import counted
from dmondrian.cli.certificates import make_certificates, tls_in
from dmondrian.cli.output import Output
from dmondrian.cli.tls import Tls, tls_mistakes, tls_of_arguments
from dmondrian.errors import JobError

SCHEDULER_FILE = "scheduler.json"
_N_WORKERS = 2  # the fewest that show what a cluster does
_TICK = 0.2  # seconds between two looks for a signal


def cluster(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian cluster --help`."""
    given_tls = tls_of_arguments(arguments)
    if arguments.certificates_only:
        if arguments.folder is None or given_tls is not None:
            raise JobError(
                "--certificates-only writes new certificates into a folder: expected --folder and "
                "no --tls-ca, --tls-cert, --tls-key"
            )
        tls = _certificates(_private(Path(arguments.folder)), output)
        output.text(_job_lines({"tls_ca": tls.ca, "tls_cert": tls.cert, "tls_key": tls.key}))
        return 0
    from dmondrian.cli.encrypted_cluster import local_size, running, warm_kernels
    from dmondrian.distributed.cluster.interrupt import Interrupts

    wanted = _N_WORKERS if arguments.workers is None else arguments.workers
    n_workers, threads = local_size(wanted, arguments.threads)
    own_folder = _private(Path(arguments.folder)) if arguments.folder else None
    with ExitStack() as stack:
        if own_folder is not None:
            stack.enter_context(_alone_in(own_folder))
        output.note("compiling kernels, if they are not yet (about half a minute)")
        warm_kernels()
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dmondrian-")))
        folder = own_folder or temporary
        tls = given_tls or _certificates(folder, output)
        interrupts = stack.enter_context(Interrupts("stopped in the middle of stopping"))
        started = stack.enter_context(
            running(n_workers, threads, tls, folder / SCHEDULER_FILE, temporary / "kernels")
        )
        keys = {
            "scheduler": str(folder / SCHEDULER_FILE),
            "tls_ca": tls.ca,
            "tls_cert": tls.cert,
            "tls_key": tls.key,
        }
        event = {
            "address": started.address,
            "workers": n_workers,
            "dashboard": started.dashboard,
            **keys,
        }
        output.event("cluster", event)
        workers = f"{counted(n_workers, 'worker')} of {counted(threads, 'thread')}"
        output.text(
            f"a scheduler at {started.address} with {workers}{' each' if n_workers > 1 else ''}\n"
            f"{_dashboard(started.dashboard)}\nfor a job file:\n\n{_job_lines(keys)}\n"
            "Ctrl-C ends all of it."
        )
        while not interrupts.is_requested:
            time.sleep(_TICK)
            started.restart_lost()
        output.note("stopping the scheduler and its workers")
    return 0


def _private(folder: Path) -> Path:
    """Return a folder that its owner alone can enter; an existing one is checked."""
    try:
        folder = folder.expanduser().absolute()
    except RuntimeError as error:
        raise JobError(f"--folder {NO_HOME.format(folder)}") from error
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise JobError(f"--folder {folder}: cannot be made ({error.strerror})") from error
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise JobError(f"--folder {folder}: cannot be written ({error.strerror})") from error
    if os.name == "posix" and folder.stat().st_mode & 0o077:
        raise JobError(
            f"--folder {folder}: others on this machine can enter it, and it would hold a private "
            f"key; expected a new folder or one of mode 700: chmod 700 {folder}"
        )
    return folder


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Refuse a folder of another such command: both would write, and remove, one scheduler file."""
    from dmondrian._numba.cache import locked

    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / "lock", 0.0))
        except TimeoutError as error:
            raise JobError(
                f"--folder {folder}: another `dmondrian cluster` is running in it; stop that one "
                "(Ctrl-C), or give another folder"
            ) from error
        except OSError as error:
            raise JobError(f"--folder {folder}: cannot be locked ({error.strerror})") from error
        yield


def _certificates(folder: Path, output: Output) -> Tls:
    """Return the certificates of a folder, made now where it has none."""
    tls = tls_in(folder)
    files = {"tls_ca": tls.ca, "tls_cert": tls.cert, "tls_key": tls.key}
    if any(os.path.exists(file) for file in files.values()):
        mistakes = list(tls_mistakes(files, lambda name: f"{files[name]}"))
        if mistakes:
            raise JobError("\n".join([*mistakes, "remove these files to have new ones made"]))
        output.note(f"using the certificates in {folder}")
        return tls
    make_certificates(folder)
    output.note(
        f"made a temporary certificate authority and a certificate in {folder}; whoever can read "
        "key.pem there can run any code on this cluster"
    )
    return tls


def _dashboard(address: str | None) -> str:
    """Return where the cluster's dashboard is."""
    if address is None:
        return "no dashboard: it needs the package bokeh (`pip install bokeh`)"
    return f"dashboard: {address} (on this machine alone, for whoever can open it)"


def _job_lines(keys: dict[str, str]) -> str:
    import tomli_w

    return tomli_w.dumps({"cluster": keys})
