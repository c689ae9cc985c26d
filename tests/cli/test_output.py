"""What a command writes: JSON that any reader takes, and one progress line."""

from __future__ import annotations

import io
import json
import logging

import numpy as np

from dmondrian.cli.output import Output, table


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_json_lines_hold_no_nan_and_no_numpy():
    stdout = io.StringIO()
    values = {"nan": float("nan"), "inf": [np.float64(np.inf)], "n": np.int64(3), "a": np.ones(2)}
    Output(True, stdout).event("x", values)
    told = json.loads(stdout.getvalue(), parse_constant=lambda name: 1 / 0)
    assert told == {"event": "x", "nan": None, "inf": [None], "n": 3, "a": [1.0, 1.0]}


def test_tables_tell_values_as_a_person_would_write_them():
    rows = [("a", {"c": 1.0, "p": 0.25}), ("b", (1, 2)), ("c", None), ("d", True), ("e", 12345)]
    told = [line.split(maxsplit=1)[1] for line in table(rows).splitlines()]
    assert told == ["c = 1.0000, p = 0.2500", "1, 2", "none", "yes", "12,345"]


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


def test_a_terminal_sees_one_line_rewritten():
    stderr = Terminal()
    output = Output(False, io.StringIO(), stderr)
    output.progress("a longer line")
    output.progress("short")
    output.note("end")
    assert stderr.getvalue() == "\ra longer line\rshort        \nend\n"


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


def test_what_the_library_logs_is_remarked_on():
    stderr, logger = io.StringIO(), logging.getLogger("dmondrian")
    with Output(False, io.StringIO(), stderr).logged():
        for _ in range(2):  # a warning is told once, news each time
            logger.warning("compiling %s", "kernels")
            logger.info("choosing alpha")
        logger.debug("not for people")
    logger.warning("later")
    assert stderr.getvalue() == "note: compiling kernels\nchoosing alpha\nchoosing alpha\n"


def test_what_comes_as_a_warning_and_in_the_log_is_told_once() -> None:
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
