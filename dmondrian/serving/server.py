"""The server: one process that listens, answers, looks for newer checkpoints, and ends in order.

Relies on uvicorn (extra ``serve``), imported here when it starts. Promises that a port which is
taken is an error before anything is read; that a newer checkpoint is taken between two answers, and
one that cannot be read leaves the one before in use; and that requests which have come are answered
before the end, and what was learned is saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmondrian._memory_limit import raise_limit
from dmondrian._optional import require
from dmondrian._text.wording import EACH_TIME
from dmondrian.errors import OutageError, ParameterError
from dmondrian.serving.asgi import Application
from dmondrian.serving.learner import Learner
from dmondrian.serving.request_queue import RequestQueue
from dmondrian.serving.served_model import Address, ServedModel
from dmondrian.serving.serving_metrics import ServingMetrics

_log = logging.getLogger("dmondrian")

GRACE_SECONDS = 10
"""For requests that are being answered when the end comes."""

_BACKLOG = 2048
_MOST_FILES = 65_536  # of which each connection is one, as far as the system allows
_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Seconds without a word after which a peer is asked for a sign of life, seconds between two
questions, and how many are left unanswered before its connection is closed."""
_NICENESS = 15
"""Of the thread that reads a newer checkpoint, above that of the others."""

_SWITCH_SECONDS = 0.001
"""For which that thread keeps the interpreter's lock where another wants it; Python has five times
as many."""


@dataclass(frozen=True)
class Options:
    """Options of a server.

    Attributes
    ----------
    host, port : str, int
        Where to listen; port 0 is any free one.
    learn : bool
        Whether labels are learned.
    max_body : int
        Bytes of a request's body.
    reload_seconds : float
        Between two looks for a newer checkpoint; 0 for none.
    most_waiting, save_rows, save_seconds
        As of :class:`dmondrian.serving.learner.Learner`.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    learn: bool = False
    max_body: int = 8 * 2**20
    reload_seconds: float = 1.0
    most_waiting: int = 100_000
    save_rows: int = 10_000
    save_seconds: float = 60.0


_FLAGS = {
    "max_body": "--max-body",
    "most_waiting": "--waiting",
    "save_rows": "--save-rows",
    "save_seconds": "--save-every",
    "reload_seconds": "--reload-every",
}


def serve(model: str, options: Options, on_start: Callable[[str, Mapping[str, Any]], None]) -> None:
    """Serve a model until the process is asked to end.

    Parameters
    ----------
    model : str
        Run folder or URL, or what ``save`` wrote; ``@position`` and ``@best`` pick a checkpoint.
    options : Options
    on_start : callable
        Called once requests are answered, with the server's URL and what is served.

    Raises
    ------
    MissingPackageError
        The extra ``serve`` is not installed.
    ParameterError
        The port is taken, or the model cannot be served so.
    CheckpointError
        There is no model.
    """
    require("uvicorn", "serve", "serving a model")
    check_options(options)
    raise_limit(_MOST_FILES)
    listening = _listen(options.host, options.port)
    try:
        served = ServedModel(Address.find(model))
        learner = None
        if options.learn:
            learner = Learner(served, options.most_waiting, options.save_rows, options.save_seconds)
        try:
            _warm(served)
        except BaseException:
            if learner is not None:
                learner.close()
            raise
        gc.collect()
        gc.freeze()  # the model stays: to look for garbage in it would hold requests up
        with _switching_soon(), asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(model, served, learner, options, listening, on_start))
    finally:
        listening.close()


def check_options(options: Options) -> None:
    """Refuse options that cannot work.

    Raises
    ------
    ParameterError
        With what was expected.
    """
    if not 0 <= options.port < 2**16:
        raise ParameterError(f"--port {options.port}: expected 0 to 65535")
    for name in ("max_body", "most_waiting", "save_rows"):
        if getattr(options, name) < 1:
            raise ParameterError(f"{_FLAGS[name]} {getattr(options, name)}: expected at least 1")
    for name in ("reload_seconds", "save_seconds"):
        if not getattr(options, name) >= 0.0:
            raise ParameterError(f"{_FLAGS[name]} {getattr(options, name)}: expected at least 0")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ParameterError(f"{host} is no address to listen at: {error}") from error
    try:
        if os.name == "posix":  # elsewhere another server could take the port as well
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _ask_for_life(listening)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise ParameterError(
            f"nothing can listen at {host}:{port} ({error.strerror}): choose another --port, or "
            "stop what uses it"
        ) from error
    return listening


def _ask_for_life(listening: socket.socket) -> None:
    """Have connections closed whose peer is gone without a word; Linux hands this on to each."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ALIVE.items():
        if hasattr(socket, name):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _warm(model: ServedModel) -> None:
    """Have kernels compiled, or read from their cache, before the first request."""
    row = np.full((2, model.parameters.n_features), 0.5, np.float32)
    for details in (True, False):
        for rows in (row, row[:1]):
            model.answer(rows, details)


@contextlib.contextmanager
def _switching_soon() -> Iterator[None]:
    """Have threads switch soon, while the context lasts."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes a loop of uvloop; None where it is not there, as on Windows."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(
    name: str,
    model: ServedModel,
    learner: Learner | None,
    options: Options,
    listening: socket.socket,
    on_start: Callable[[str, Mapping[str, Any]], None],
) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        """A server whose signals are handled here."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            on_start(url_of(listening), {**model.describe(), "learns": learner is not None})

    metrics = ServingMetrics()
    queue = RequestQueue(model, learner, metrics)
    reloading = Reloading(name, queue, metrics)
    app = Application(queue, metrics, options.max_body, reloading.about)
    config = uvicorn.Config(
        app,
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        ws="none",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = Server(config)

    ending: list[asyncio.Task[None]] = []

    async def end() -> None:
        await queue.finish_learn_requests()
        server.should_exit = True

    def stop() -> None:
        if ending:  # asked for the second time
            server.should_exit = True
        else:
            ending.append(asyncio.get_running_loop().create_task(end()))

    def fail(_: object) -> None:
        server.should_exit = True

    tasks = [asyncio.create_task(queue.work())]
    if learner is None and options.reload_seconds > 0.0:
        tasks.append(asyncio.create_task(reloading.look(options.reload_seconds)))
    for task in tasks:
        task.add_done_callback(fail)  # one that ends by itself has failed
    try:
        with _stopping(stop):
            await server.serve(sockets=[listening])
        failed = [task for task in tasks if task.done() and task.exception() is not None]
    finally:
        for task in (*tasks, *ending):
            task.cancel()
        await asyncio.gather(*tasks, *ending, return_exceptions=True)
        await queue.close()
    for task in failed:
        task.result()


@contextlib.contextmanager
def _stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at SIGINT, SIGTERM and SIGHUP, while the context lasts."""
    loop = asyncio.get_running_loop()
    numbers = [
        getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
    ]
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        try:
            loop.add_signal_handler(number, stop)
        except (NotImplementedError, RuntimeError):  # of Windows, or another thread
            with contextlib.suppress(ValueError):
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop))
    try:
        yield
    finally:
        for number, handler in before.items():
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.remove_signal_handler(number)
            with contextlib.suppress(ValueError, TypeError):
                signal.signal(number, handler)


def url_of(listening: socket.socket) -> str:
    """Return the URL of a server that listens at a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _lower_priority() -> None:
    """Lower the priority of this thread, where threads have their own.

    Kernels that read a checkpoint release the interpreter's lock, so where the process has one core
    the scheduler shares it out. Not the lowest priority: this thread holds the lock at times, and
    beside other work it would not get on to release it.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):
            priority = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, priority + _NICENESS)


class Reloading:
    """Looks for newer checkpoints, and puts them in the place of the one that answers.

    Parameters
    ----------
    name : str
        Address of the model, as it was given.
    queue : RequestQueue
    metrics : ServingMetrics
    """

    def __init__(self, name: str, queue: RequestQueue, metrics: ServingMetrics) -> None:
        self._name, self._queue, self._metrics = name, queue, metrics
        self._error: str | None = None
        self._is_out = False  # whether that was a store which does not answer

    def about(self) -> Mapping[str, Any]:
        """Return why a newer checkpoint was not taken, as JSON values; nothing if all is well."""
        return {} if self._error is None else {"reload_error": self._error}

    async def look(self, seconds: float) -> None:
        """Look again and again, until cancelled."""
        pool = ThreadPoolExecutor(1, "dmondrian-reload", initializer=_lower_priority)
        try:
            await self._look(seconds, pool)
        finally:
            pool.shutdown(wait=False)  # who is answered now does not wait for what is read

    async def _look(self, seconds: float, pool: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(seconds)
            try:
                newer = await loop.run_in_executor(pool, self._newer)
            except Exception as error:  # noqa: BLE001  # the model in use goes on answering
                is_out = isinstance(error, OutageError)  # its text has how long no answer came
                if self._error != str(error) and not (is_out and self._is_out):
                    _log.warning("a newer checkpoint was not taken: %s", error, extra=EACH_TIME)
                self._error, self._is_out = str(error) or type(error).__name__, is_out
                self._metrics.count_reload(failed=True)
                continue
            self._error, self._is_out = None, False
            if newer is not None:
                self._queue.model = newer
                self._metrics.count_reload(failed=False)
                _log.info("now at row %s of %s", f"{newer.position:,}", newer.address.url)

    def _newer(self) -> ServedModel | None:
        address = Address.find(self._name)
        if address == self._queue.model.address:
            return None
        model = ServedModel(address)
        _warm(model)
        return model
