"""Alerts call what they name once for each crossing, and never stand in the way."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from dmondrian.checkpoint.raised_alerts import MOST, NAME, read_alerts
from dmondrian.distributed.cluster.alerts import Alerts, names_for, parse_condition, values_of
from dmondrian.distributed.cluster.events import CALLED, Event, Events
from dmondrian.distributed.cluster.progress import Progress
from dmondrian.errors import ParameterError
from dmondrian.store import open_store

WRITE = "import sys; open(sys.argv[1], 'ab').write(sys.stdin.buffer.read() + b'\\n')"


class Server(HTTPServer):
    """Keeps what is posted to it; answers with an error below /broken, a redirect below /moved."""

    posted: list[dict[str, Any]]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append(json.loads(body))  # type: ignore[attr-defined]  # of `Server`
        if self.path.startswith("/moved"):
            self.send_response(int(self.path[6:9]))
            self.send_header("Location", "/in?token=secret")
        else:
            self.send_response(500 if self.path.startswith("/broken") else 204)
        self.end_headers()

    def do_GET(self) -> None:  # a page, as many addresses answer who looks at them
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.posted = []
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def address(server: Server, path: str = "/in?token=secret") -> str:
    return f"http://127.0.0.1:{server.server_address[1]}{path}"


def look(alerts: Alerts, losses: list[float], start: int = 0) -> list[Event]:
    """Look at losses of rows 1, 2, ...; return the events."""
    seen: list[Event] = []
    events = Events(seen.append)
    for row, loss in enumerate(losses, start + 1):
        alerts.look({"log_loss_window": loss}, row, "the-run", events)
    alerts.close(events)
    return seen


def test_each_crossing_is_one_event_and_one_call(tmp_path: Path, server: Server) -> None:
    out = tmp_path / "out"
    alerts = Alerts(
        ["log_loss_window > 0.5", "log_loss_window<=0.25"],
        [sys.executable, "-c", WRITE, str(out)], address(server), timeout=60,
    )  # fmt: skip
    seen = look(alerts, [0.4, 0.5, 0.6, 0.7, 0.5, float("nan"), 0.55, 0.25, 0.25])
    kinds = [(event.kind, event.values["when"], event.values["row"]) for event in seen]
    high, low = "log_loss_window > 0.5", "log_loss_window <= 0.25"
    assert kinds == [
        ("alert", high, 3), ("alert_over", high, 5), ("alert", high, 7),
        ("alert_over", high, 8), ("alert", low, 8),
    ]  # fmt: skip
    written = [json.loads(line) for line in out.read_text().splitlines()]
    for got in (written, server.posted):
        assert sorted((one["when"], one["row"], one["value"]) for one in got) == [
            (low, 8, 0.25), (high, 3, 0.6), (high, 7, 0.55),
        ]  # fmt: skip
        assert {(one["event"], one["run"]) for one in got} == {("alert", "the-run")}


def test_what_holds_when_a_run_stops_is_not_raised_anew(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    def opened() -> Alerts:
        alerts = Alerts("log_loss_window > 0.5")
        alerts.open(store)
        return alerts

    assert [event.kind for event in look(opened(), [0.6])] == ["alert"]
    assert [one["row"] for one in read_alerts(store)["on"]] == [1]
    again = opened()
    assert look(again, [0.7], 1) == []
    assert [event.kind for event in look(again, [0.1, 0.9], 2)] == ["alert_over", "alert"]
    known = read_alerts(store)
    assert [one["row"] for one in known["on"]] == [4]
    assert [one["row"] for one in known["raised"]] == [1, 4]
    look(again, [0.1, 0.9] * (MOST + 5), 4)
    assert len(read_alerts(store)["raised"]) == MOST
    (tmp_path / NAME).write_bytes(b"broken")
    assert read_alerts(store) == {"on": [], "raised": []}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"command": ["/no/such/program"]}, "FileNotFoundError"),
        ({"command": [sys.executable, "-c", "raise SystemExit('so it is')"]}, "code 1: so it is"),
        (
            {
                "command": [
                    sys.executable, "-c",
                    "import subprocess, sys, time\n"
                    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
                    "time.sleep(600)",
                ],
                "timeout": 0.5,
            },
            "took more than 0.5 seconds",
        ),
        ({"url": "http://127.0.0.1:9/closed?token=secret"}, "127.0.0.1: "),
    ],
)  # fmt: skip
def test_a_call_that_fails_is_a_warning(
    options: dict[str, Any], match: str, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    seen = look(Alerts("log_loss_window > 0.5", **options), [0.9])
    assert time.monotonic() - began < 500.0  # not as long as what it started
    assert [event.kind for event in seen] == ["alert", "alert_failed"]
    assert match in seen[-1].text
    assert "secret" not in seen[-1].text
    assert caplog.records[-1].levelno == logging.WARNING


def test_only_events_that_are_wanted_are_sent(tmp_path: Path, server: Server) -> None:
    alerts = Alerts(events=["worker_lost", "checkpoint"], url=address(server), timeout=60)
    alerts.open(open_store(tmp_path))
    events = Events(alerts.send)
    events.add("worker_lost", "worker a is lost", worker="a")
    events.add("worker_joined", "worker b", False, worker="b")
    events.notify("window", "the last rows", row=5)
    events.add("checkpoint", "checkpoint", False, position=7)
    alerts.close(events)
    by_kind = {one["event"]: one for one in server.posted}
    assert set(by_kind) == {"worker_lost", "checkpoint"}
    assert len(server.posted) == 2
    assert by_kind["worker_lost"]["worker"] == "a"
    assert by_kind["worker_lost"]["text"].endswith("worker a is lost")
    assert by_kind["checkpoint"]["position"] == 7
    assert {one["run"] for one in server.posted} == {open_store(tmp_path).url}


def test_events_of_runs_are_those_that_can_be_sent_and_those_of_alerts() -> None:
    about = Event.__doc__ or ""
    others = {"window", "alert", "alert_over", "alert_failed"}
    assert set(re.findall(r'"([a-z_]+)"', about)) - {"row", "metrics", "position", "is_final"} == {
        *CALLED, *others,
    }  # fmt: skip


def test_an_answer_that_is_an_error_is_a_warning(server: Server) -> None:
    alerts = Alerts("log_loss_window > 0.5", url=address(server, "/broken?token=secret"))
    seen = look(alerts, [0.9])
    assert seen[-1].kind == "alert_failed"
    assert "secret" not in seen[-1].text
    assert len(server.posted) == 1


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_taken_for_an_alert_that_was_sent(server: Server, code: int) -> None:
    alerts = Alerts("log_loss_window > 0.5", url=address(server, f"/moved{code}?token=secret"))
    seen = look(alerts, [0.9])
    assert seen[-1].kind == "alert_failed"
    assert "a redirect" in seen[-1].text
    assert "secret" not in seen[-1].text


@pytest.mark.parametrize(
    ("text", "task", "match"),
    [
        ("log_loss_window", None, "no condition"),
        ("log_loss_window > high", None, "no condition"),
        ("log_loss_window > inf", None, "no condition"),
        ("log_loss_window == 0.5", None, "no condition"),
        ("log_los_window > 0.5", "classification", "did you mean 'log_loss_window'"),
        ("rmse_window > 0.5", "classification", "not measured"),
        ("accuracy < 0.5", "regression", "not measured"),
        ("rmse > 1", "density", "not measured"),
    ],
)
def test_what_is_no_condition_is_refused(text: str, task: str | None, match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        parse_condition(text, task)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"url": "https://host"}, {"events": "checkpoint"},
        *({"events": events, "url": "https://host"} for events in ("window", ["alert"], 3)),
        {"when": "lag > 1", "shell": "x"}, {"when": "lag > 1", "command": "notify me"},
        {"when": "lag > 1", "command": [""]}, {"when": "lag > 1", "url": "ftp://host/x"},
        {"when": "lag > 1", "url": "file:///etc/passwd"}, {"when": "lag > 1", "url": "https://"},
        {"when": "lag > 1", "url": "http://host/a b"}, {"when": "lag > 1", "url": "http://h:99999/"},
        {"when": "lag > 1", "url": "http://host/\u00e4"}, {"when": "lag > 1", "url": "http://h:x/"},
        {"when": "lag > 1", "url": "http://user@host/x"},
        {"when": "lag > 1", "url": "http://user:word@host/x"},
        {"when": "lag > 1", "timeout": 0}, {"when": "lag > 1", "timeout": True},
    ],
)  # fmt: skip
def test_other_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        Alerts.of(options)


def test_all_names_but_those_of_following_are_in_a_record_of_progress() -> None:
    span = {"rows": 5.0, "log_loss": 0.1, "accuracy": 0.9}
    held_out = {"log_loss": 0.1, "accuracy": 0.9, "ece": 0.1, "auc": 0.8, "position": 5.0}
    progress = Progress(
        5, 9, 1.0, 0, None, 2, 1, {"log_loss": 0.1, "accuracy": 0.9},
        window=span, faded=span, has_drifted=True, waiting=3, held_out=held_out,
    )  # fmt: skip
    values = values_of(progress)
    assert set(names_for("classification")) - set(values) == {"lag"}
    assert (values["drift"], values["workers"], values["accuracy_window"]) == (1.0, 2.0, 0.9)
