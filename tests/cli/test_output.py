"""What a command writes: JSON that any reader takes, and one progress line."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import re
import struct
import subprocess
import sys
import termios
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TextIO

import numpy as np
import pytest

from dmondrian._text.progress_bar import LOG_SECONDS, ProgressBar
from dmondrian.cli import main
from dmondrian.cli.output import Output, table, written
from dmondrian.distributed import Progress
from tests.cli.command import ADULT, TIMEOUT


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_json_lines_hold_no_nan_and_no_numpy():
    stdout = io.StringIO()
    values = {"nan": float("nan"), "inf": [np.float64(np.inf)], "n": np.int64(3), "a": np.ones(2)}
    Output(True, stdout).event("x", values)
    reported = json.loads(stdout.getvalue(), parse_constant=lambda name: 1 / 0)
    assert reported == {"event": "x", "nan": None, "inf": [None], "n": 3, "a": [1.0, 1.0]}


def test_tables_have_values_as_a_person_would_write_them():
    rows = [("a", {"c": 1.0, "p": 0.25}), ("b", (1, 2)), ("c", None), ("d", True), ("e", 12345)]
    reported = [line.split(maxsplit=1)[1] for line in table(rows).splitlines()]
    assert reported == ["c = 1.0000, p = 0.2500", "1, 2", "none", "yes", "12,345"]


def test_with_json_stdout_has_nothing_but_events():
    stdout, stderr = io.StringIO(), io.StringIO()
    output = Output(True, stdout, stderr)
    output.text("for people")
    output.progress("10 rows")
    output.note("a note")
    assert stdout.getvalue() == ""
    assert stderr.getvalue() == "10 rows\na note\n"


def test_without_json_there_are_no_events():
    stdout = io.StringIO()
    Output(False, stdout).event("x", {})
    assert stdout.getvalue() == ""


def test_a_terminal_sees_one_bar_and_notes_above_it():
    stderr = Terminal()
    output = Output(False, io.StringIO(), stderr)
    output.progress("first", 1, 4)
    output.progress("second", 2, 4)
    output.note("a note")
    output.progress("third", 3, 4)
    output.progress("last", 4, 4)
    output.note("end")
    lines = stderr.getvalue().split("\n")
    assert len(lines) == 4  # two notes, the bar that ended, nothing after it
    assert [re.sub(r"\|.*\|", "", state).strip() for state in lines[0].split("\r")] == [
        "", "25% first", "50% second", "", "a note"
    ]  # fmt: skip
    assert lines[1].rstrip().endswith("| last")
    assert lines[2:] == ["end", ""]


def test_text_without_a_total_has_no_bar():
    stderr = Terminal()
    output = Output(False, io.StringIO(), stderr)
    output.progress("looking")
    output.note("end")
    assert stderr.getvalue().rstrip() == "\rlooking\rlooking\nend"


LARGE = Progress(
    1_234_567_890,
    2_345_678_901,
    123_456.7,
    1_234_000_000,
    98_765.0,
    12,
    3,
    {"log_loss": 0.12345, "accuracy": 0.98765},
    tree_groups=2,
)


@contextmanager
def terminal(columns: int) -> Iterator[tuple[TextIO, Callable[[], str]]]:
    """A real terminal of that width: what to write to; and, when all is written, what came."""
    outer, inner = os.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    stream = os.fdopen(inner, "w")

    def shown() -> str:
        stream.close()
        read = b""
        with suppress(OSError):  # what Linux raises at the end
            while more := os.read(outer, 1 << 16):
                read += more
        return read.decode().replace("\r\n", "\n")

    with stream:
        yield stream, shown
    os.close(outer)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_bar_fits_the_terminal_and_what_is_most_wanted_is_not_cut(columns):
    with terminal(columns) as (stream, shown):
        output = Output(False, io.StringIO(), stream)
        output.follow(replace(LARGE, seconds_left=None))
        output.follow(LARGE)
        output.follow(replace(LARGE, is_stopping=True, stopping_at=12, stops_at_once=True))
        output.close_bar()
        first, second, third, _ = shown().removeprefix("\r").split("\r")
    assert max(map(len, (first, second, third))) < columns
    assert all("53%|" in state for state in (first, second, third))
    assert "| 123,457 rows/s, 27:26:05 left, " in second
    assert "| stopping at row 12" in third
    assert ("1,234,567,890 of 2,345,678,901 rows" in second) is (columns >= 80)
    assert ("(Ctrl-C again: at once)" in third) is (columns >= 80)
    assert ("3 shards recovered" in second) is (columns == 200)


def test_a_terminal_that_is_made_narrower_gets_narrower_bars():
    with terminal(80) as (stream, shown):
        output = Output(False, io.StringIO(), stream)
        output.follow(LARGE)
        fcntl.ioctl(stream, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
        output.follow(LARGE)
        output.close_bar()
        lines = shown().removeprefix("\r").split("\r")
    assert 30 < len(lines[0]) < 80
    assert len(lines[1].rstrip()) == 29


def test_wide_characters_count_twice():
    with terminal(12) as (stream, shown):
        output = Output(False, io.StringIO(), stream)
        output.progress("行数行数行数行数")
        output.close_bar()
        assert shown().removeprefix("\r").split("\r")[0].rstrip() == "行数行数行"


def test_an_interrupted_command_ends_its_bar_before_its_message(monkeypatch):
    def command(arguments, output):
        output.progress("working", 1, 2)
        raise KeyboardInterrupt

    stderr = Terminal()
    monkeypatch.setattr("dmondrian.cli.app._command", lambda name: command)
    monkeypatch.setattr("sys.stderr", stderr)
    assert main(["warm"]) == 130
    *_, bar, note, end = stderr.getvalue().split("\n")
    assert bar.rstrip().endswith("| working")
    assert note.startswith("interrupted")
    assert end == ""


def test_a_bar_starts_no_thread_and_no_process(monkeypatch):
    code = (
        "import io, multiprocessing.synchronize as s, threading\n"
        "class Terminal(io.StringIO):\n"
        "    isatty = lambda self: True\n"
        "def refuse(*_, **__): raise AssertionError\n"
        "s.SemLock.__init__ = refuse\n"
        "from dmondrian._text.progress_bar import ProgressBar\n"
        "bar = ProgressBar(Terminal())\n"
        "bar.show('working', 1, 2)\n"
        "assert threading.active_count() == 1\n"
        "bar.close()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_off_a_terminal_no_line_comes_twice():
    now = [0.0]
    stderr = io.StringIO()
    bar = ProgressBar(stderr, lambda: now[0])
    output = Output(True, io.StringIO(), stderr)
    output._bar = bar
    for rows in (0, 0, 0, 10, 10, 20, 20):
        output.follow(Progress(rows, 20, 1.0 + now[0], 0, 20.0 - now[0], 1, 0))
        now[0] += 2 * LOG_SECONDS
    assert [text.split(",")[0] for text in stderr.getvalue().splitlines()] == [
        "0 of 20 rows (0%)",
        "10 of 20 rows (50%)",
        "20 of 20 rows (100%)",
    ]


def test_a_log_sees_few_lines_and_the_last_one():
    stderr = io.StringIO()
    output = Output(False, io.StringIO(), stderr)
    for i in range(5):
        output.progress(f"{i} rows")
    output.progress("all rows", important=True)
    assert stderr.getvalue() == "0 rows\nall rows\n"


def test_a_remark_is_made_once():
    stderr = io.StringIO()
    output = Output(False, io.StringIO(), stderr)
    output.remark("the target looks sorted")
    output.remark("the target looks sorted")
    assert stderr.getvalue() == "note: the target looks sorted\n"


def test_an_event_is_a_note_and_a_json_line_each_time_it_happens():
    stdout, stderr, logger = io.StringIO(), io.StringIO(), logging.getLogger("dmondrian")
    event = {"event": "worker_lost", "text": "lost worker a", "workers": 1}
    with Output(True, stdout, stderr).logged():
        for _ in range(2):
            logger.warning("%s", event["text"], extra={"event": event})
    assert stderr.getvalue() == "lost worker a\nlost worker a\n"
    assert [json.loads(line) for line in stdout.getvalue().splitlines()] == [event, event]


def test_tables_line_up():
    assert table([("a", 1234), ("longer", 0.5)]) == "a       1,234\nlonger  0.5000"


@pytest.mark.parametrize(
    "settings",
    [
        {"monotonic_cst": {"age": 1, "hours per week": -1}, "alpha": 0.5},
        {"class_weight": {"<=50K": 1.0}, "experts": ["mondrian", "boosted"]},
        {"monotonic_cst": {}, "quantile": [], "delay": "7 days", "clip": True},
    ],
)
def test_settings_of_a_candidate_are_on_one_line(settings: dict[str, Any]) -> None:
    line = written(settings)
    assert "\n" not in line
    assert tomllib.loads(f"all = {{{line}}}") == {"all": settings}


def test_what_the_library_logs_is_remarked_on():
    stderr, logger = io.StringIO(), logging.getLogger("dmondrian")
    with Output(False, io.StringIO(), stderr).logged():
        for _ in range(2):  # a warning is shown once, news each time
            logger.warning("compiling %s", "kernels")
            logger.info("choosing alpha")
        logger.debug("not for people")
    logger.warning("later")
    assert stderr.getvalue() == "note: compiling kernels\nchoosing alpha\nchoosing alpha\n"


def test_what_comes_as_a_warning_and_in_the_log_is_reported_once() -> None:
    stderr = io.StringIO()
    output = Output(False, io.StringIO(), stderr)
    with output.logged():
        output.remark("rows look sorted")  # a warning
        log = logging.getLogger("dmondrian")
        log.info("rows look sorted", extra={"is_remark": True})
        log.info("'one' is left out", extra={"is_remark": True})
        log.info("choosing alpha")
    assert stderr.getvalue().splitlines() == [
        "note: rows look sorted",
        "note: 'one' is left out",
        "choosing alpha",
    ]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_full_disk_of_the_log_ends_no_work_and_one_of_results_is_named(words: list[str]) -> None:
    command = [sys.executable, "-m", "dmondrian.cli", "schema", str(ADULT / "missing"), *words]
    with open("/dev/full", "w") as full:
        of_notes = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=full, check=False, timeout=TIMEOUT
        )
        command[4] = str(ADULT)
        of_results = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=TIMEOUT
        )
    assert of_notes.returncode == 3
    assert of_results.returncode == 4
    assert "results cannot be written to stdout: No space left on device" in of_results.stderr
    assert "Traceback" not in of_results.stderr
