"""Output of a command: results to stdout, progress and notes to stderr.

With ``--json`` stdout carries one JSON object per line, each with an ``event``, and nothing else;
without it stdout carries text for people. On a terminal progress is a bar that is redrawn;
elsewhere a line comes at intervals, and only if something has changed.
"""

from __future__ import annotations

import io
import json
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO, cast

from dmondrian._text.progress_bar import ProgressBar
from dmondrian._text.wording import on_one_line
from dmondrian.errors import StoreError

if TYPE_CHECKING:
    from dmondrian.distributed import Progress

_MOST_REMARKS = 1000  # that are remembered, so that none is made twice

# Control characters but line ends and tabs: names from outside shall not steer a terminal.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}


class Output:
    """The two streams of a command.

    Parameters
    ----------
    as_json : bool
        Write machine-readable lines to stdout.
    stdout, stderr : text streams, optional
        Default to those of the process.
    """

    def __init__(
        self, as_json: bool, stdout: TextIO | None = None, stderr: TextIO | None = None
    ) -> None:
        self.as_json = as_json
        self._stdout = stdout or sys.stdout
        self._stderr = cast("TextIO", _Notes(stderr or sys.stderr))
        self._bar = ProgressBar(self._stderr)
        self._remarks: dict[str, None] = {}  # made lately

    def event(self, event: str, values: Mapping[str, Any]) -> None:
        """Write one JSON line to stdout; nothing without ``--json``."""
        if self.as_json:
            line = {"event": event, **_finite(values)}
            self._write(json.dumps(line, allow_nan=False, default=str))

    def text(self, text: str) -> None:
        """Write text for people to stdout; nothing with ``--json``."""
        if not self.as_json:
            self._bar.make_way()
            self._write(printable(text.rstrip("\n")))

    def _write(self, line: str) -> None:
        """Write a line to stdout."""
        try:
            self._stdout.write(line + "\n")
            self._stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StoreError(
                f"results cannot be written to stdout: {error.strerror or error}. What is saved is "
                "kept: free some space there, and run the same command again"
            ) from error

    def note(self, text: str) -> None:
        """Write a line to stderr, whichever the format of stdout."""
        self._bar.make_way()
        self._stderr.write(printable(text.rstrip("\n")) + "\n")
        self._stderr.flush()

    def remark(self, text: str) -> None:
        """Write a note that may arrive several ways (a warning, a plan), but only once."""
        if text not in self._remarks:
            self._remarks[text] = None
            if len(self._remarks) > _MOST_REMARKS:  # a command may run for years
                del self._remarks[next(iter(self._remarks))]
            self.note(f"note: {text}")

    @contextmanager
    def logged(self) -> Iterator[None]:
        """Write what the library logs in this process, from INFO on, while the context lasts."""
        logger, handler = logging.getLogger("dmondrian"), _Logged(self)
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.setLevel(level)
            logger.removeHandler(handler)

    def progress(
        self, text: str, done: int = 0, total: int | None = None, *, important: bool = False
    ) -> None:
        """Show the state of the work on stderr: a bar on a terminal, else a line at intervals."""
        self._bar.show(text, done, total, now=important)

    def follow(self, progress: Progress) -> None:
        """Report a record of progress: on stderr, and as an event."""
        progress.show_on(self._bar)
        self.event("progress", asdict(progress))

    def happened(self, event: Mapping[str, Any]) -> None:
        """Write an event of the work: its "text" as a note, and all of it as a JSON line."""
        self.note(str(event.get("text", "")))
        self.event(str(event.get("event", "")), {k: v for k, v in event.items() if k != "event"})

    def close_bar(self) -> None:
        """End the line of a bar on a terminal."""
        self._bar.close()


class _Notes:
    """Stderr, without what cannot be written: no work ends as the disk with its log is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text if that is possible; return its length."""
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Write what waits, if that is possible."""
        self._try(self._stream.flush)

    @staticmethod
    def _try(action: Callable[[], object]) -> None:
        try:
            action()
        except BrokenPipeError:  # the reader went away
            raise
        except OSError:
            return


class _Logged(logging.Handler):
    """Log handler that writes to a command's output: news as notes, warnings as remarks.

    A record of an event (:mod:`dmondrian.distributed.cluster.events`) is a note, and a JSON line.
    """

    def __init__(self, output: Output) -> None:
        super().__init__(logging.INFO)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        event = getattr(record, "event", None)
        if isinstance(event, Mapping):
            self._output.happened(event)
            return
        is_remark = getattr(record, "is_remark", record.levelno >= logging.WARNING)
        write = self._output.remark if is_remark else self._output.note
        write(record.getMessage())


def escape_what_cannot_be_written() -> None:
    r"""Allow any text in the output: what the encoding lacks becomes an escape such as \u65e5.

    Names of columns, classes and files come from outside; terminals and pipes need not be UTF-8.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def printable(text: str) -> str:
    """Return a text with control characters escaped, except line ends and tabs."""
    return text.translate(_CONTROLS)


def table(rows: Iterable[tuple[str, Any]]) -> str:
    """Return names and values in two columns, one pair a line."""
    pairs = [(on_one_line(name), on_one_line(shown(value))) for name, value in rows]
    width = max((len(name) for name, _ in pairs), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in pairs)


def shown(value: Any) -> str:
    """Return a value as a person would write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) >= 1e6 else f"{value:.4f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {shown(item)}" for name, item in value.items())
    return str(value)


def candidates_table(records: list[dict[str, Any]]) -> str:
    """Return a line for each candidate, the best first: rank, rows, loss, settings."""
    rows = [["rank", "rows", "loss", "settings"]]
    for record in sorted(records, key=lambda one: one["rank"]):
        texts = [
            str(record["rank"]),
            f"{record['rows']:,}",
            shown(record["loss"]),
            written(record["settings"]),
        ]
        rows.append(texts)
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  " + "  ".join(text.ljust(n) for text, n in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def written(settings: Mapping[str, Any]) -> str:
    """Return settings as a job file has them, on one line, by name."""
    return ", ".join(_pair(name, settings[name]) for name in sorted(settings))


def _pair(name: str, value: Any) -> str:
    """Return a key and its value as TOML, on one line, where tomli_w breaks tables and lists."""
    import tomli_w

    if not isinstance(value, (Mapping, list, tuple)):
        return tomli_w.dumps({name: "none" if value is None else value}).strip()
    if isinstance(value, Mapping):
        inner = f"{{{', '.join(_pair(str(key), item) for key, item in value.items())}}}"
    else:
        inner = f"[{', '.join(_pair('_', item).removeprefix('_ = ') for item in value)}]"
    return f"{tomli_w.dumps({name: 0}).strip().removesuffix('0')}{inner}"


def _finite(value: Any) -> Any:
    """Replace what JSON does not have (nan, infinities) by null, NumPy scalars by Python's."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
