"""Alerts: conditions on a run's metrics, and the command or URL that is called once they hold.

It can be called with other events of the run too, as a webhook. Relies on records of progress.
Promises one call for each crossing, also across restarts, and for each event; that a call is made
beside the training, with a time limit, without a shell; and that its failure is reported and ends
nothing.
"""

from __future__ import annotations

import difflib
import http.client
import json
import logging
import math
import operator
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dmondrian.checkpoint.raised_alerts import read_alerts, write_alerts
from dmondrian.distributed.cluster.events import CALLED
from dmondrian.errors import ParameterError, StoreError

if TYPE_CHECKING:
    from dmondrian.distributed.cluster.events import Event, Events
    from dmondrian.distributed.cluster.progress import Progress
    from dmondrian.store import Store

_log = logging.getLogger("dmondrian")

OF_TASK = {"classification": ("log_loss", "accuracy"), "regression": ("rmse", "mae", "r2")}
HELD_OUT = {
    "classification": ("log_loss", "accuracy", "ece", "auc"),
    "regression": ("rmse", "mae", "r2", "pinball", "nll", "coverage_90"),
    "density": ("log_likelihood",),
}
OTHERS = ("drift", "lag", "memory", "recoveries", "waiting", "workers")
OPTIONS = ("when", "events", "command", "url", "timeout")
TIMEOUT = 10.0
"""Seconds that a command or URL may take, by default."""

NOWHERE = "events are sent nowhere: expected a command or a url beside them"

_SIGNS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_CONDITION = re.compile(r"\s*(\w+)\s*(>=|<=|>|<)\s*(\S+)\s*")
_SHOWN = 200  # characters of what a command that failed wrote


def names_for(task: str) -> list[str]:
    """Return what conditions may be about, of "classification", "regression" or "density"."""
    metrics = OF_TASK.get(task, ())
    spans = [name + span for name in metrics for span in ("", "_window", "_faded")]
    return [*spans, *(f"{name}_held_out" for name in HELD_OUT[task]), *OTHERS]


@dataclass(frozen=True)
class Condition:
    """A condition such as ``log_loss_window > 0.5``."""

    text: str
    name: str
    sign: str
    bound: float

    def holds(self, value: float) -> bool:
        """Return whether it holds for a value."""
        return _SIGNS[self.sign](value, self.bound)


def parse_condition(text: str, task: str | None = None) -> Condition:
    """Read a condition: a name, one of ``> >= < <=``, and a number.

    Parameters
    ----------
    text : str
    task : str or None
        As of `names_for`; None accepts the names of all tasks.

    Raises
    ------
    ParameterError
    """
    match = _CONDITION.fullmatch(text)
    try:
        bound = math.nan if match is None else float(match[3])
    except ValueError:
        bound = math.nan
    if match is None or not math.isfinite(bound):
        raise ParameterError(
            f"{text!r} is no condition; expected a name, one of > >= < <=, and a number, such as "
            '"log_loss_window > 0.5"'
        )
    names = [name for each in HELD_OUT for name in names_for(each)] if task is None else []
    names += [] if task is None else names_for(task)
    if match[1] not in names:
        near = difflib.get_close_matches(match[1], names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        known = ", ".join(dict.fromkeys(names))
        raise ParameterError(f"{text!r} is about {match[1]!r}, which is not measured{hint} "
                             f"(names: {known})")  # fmt: skip
    return Condition(" ".join(match.groups()), match[1], match[2], bound)


def values_of(progress: Progress) -> dict[str, float]:
    """Return what conditions are about, as far as a record of progress has it."""
    values: dict[str, float] = dict(progress.metrics)
    for span in ("window", "faded"):
        values |= {f"{name}_{span}": value for name, value in getattr(progress, span).items()}
    values |= held_out_values(progress.held_out)
    counts = ("memory", "recoveries", "waiting", "workers")
    values |= {name: float(getattr(progress, name)) for name in counts}
    return {**values, "drift": float(progress.has_drifted)}


def held_out_values(held_out: Mapping[str, float]) -> dict[str, float]:
    """Return what conditions are about of `Progress.held_out`."""
    return {f"{name}_held_out": value for name, value in held_out.items()}


class Alerts:
    """Conditions of a run, and what is called once one of them holds.

    Parameters
    ----------
    when : str or sequence of str
        Conditions, see `parse_condition`.
    command : sequence of str
        A program and its arguments, which gets the alert as JSON on its standard input.
    url : str or None
        Gets the alert as JSON by POST.
    timeout : float
        Seconds that each call may take.
    events : str or sequence of str
        Kinds of events, of `CALLED`, that they are called with too.

    Raises
    ------
    ParameterError
    """

    def __init__(
        self,
        when: Any = (),
        command: Any = (),
        url: str | None = None,
        timeout: float = TIMEOUT,
        events: Any = (),
    ) -> None:
        texts = [when] if isinstance(when, str) else list(when)
        self.conditions = [parse_condition(text) for text in texts]
        kinds = list(events) if isinstance(events, (list, tuple)) else [events]
        self._kinds = frozenset(check_kind(kind) for kind in kinds)
        self._command = [str(word) for word in check_command(command)]
        self._url = None if url is None else check_url(url)
        if self._kinds and not self._command and self._url is None:
            raise ParameterError(NOWHERE)
        is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
        if not is_number or not 0.0 < timeout < 1e6:
            raise ParameterError(
                f"timeout is {timeout!r}; expected seconds, more than 0 and below 1,000,000"
            )
        self._timeout = float(timeout)
        self._store: Store | None = None
        self._on: dict[str, dict[str, Any]] = {}
        self._raised: list[dict[str, Any]] = []
        self._calls: list[_Call] = []

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> Alerts | None:
        """Return the alerts of an ``[alerts]`` table; None without one.

        Raises
        ------
        ParameterError
        """
        if options is None:
            return None
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown or not {"when", "events"} & set(options):
            raise ParameterError(
                f"alerts has {', '.join(map(repr, options)) or 'nothing'}; expected 'when' or "
                "'events', and of 'command', 'url' and 'timeout' those that are wanted"
            )
        return cls(**options)

    def check(self, task: str) -> None:
        """Refuse conditions on what is not measured in a task; see `names_for`.

        Raises
        ------
        ParameterError
        """
        for condition in self.conditions:
            parse_condition(condition.text, task)

    def open(self, store: Store) -> None:
        """Take up the alerts of a run, where it stopped."""
        if self._store is not None:
            return
        self._store, there = store, read_alerts(store)
        texts = {condition.text for condition in self.conditions}
        self._on = {alert["when"]: alert for alert in there["on"] if alert["when"] in texts}
        self._raised = there["raised"]

    def look(self, values: Mapping[str, float], row: int, run: str, events: Events) -> None:
        """Raise the alerts whose conditions began to hold, and note those that hold no more.

        Parameters
        ----------
        values : mapping of str to float
            What is measured; conditions on what is not there stay as they are.
        row : int
            How far the run is.
        run : str
            Its URL.
        events : Events
        """
        self._report(events)
        is_changed = False
        for condition in self.conditions:
            value = values.get(condition.name)
            if value is None or math.isnan(value):
                continue
            text, was_on = condition.text, condition.text in self._on
            if condition.holds(value) and not was_on:
                is_changed = True
                about = {"when": text, "value": value, "row": row, "at": time.time()}
                self._on[text] = about
                self._raised.append(about)
                line = f"alert: {text} ({value:.4g}) at row {row:,}"
                events.add("alert", line, when=text, value=value, row=row)
                self._call({"event": "alert", "run": run, **about, "text": line})
            elif was_on and not condition.holds(value):
                is_changed = True
                del self._on[text]
                line = f"no longer: {text} ({value:.4g}) at row {row:,}"
                events.add("alert_over", line, False, when=text, value=value, row=row)
        if is_changed and self._store is not None:
            try:
                write_alerts(self._store, list(self._on.values()), self._raised)
            except StoreError as error:
                _log.warning("alerts of %s were not stored: %s", run, error)

    def send(self, event: Event) -> None:
        """Call with an event, where its kind is wanted."""
        if event.kind in self._kinds:
            run = None if self._store is None else self._store.url
            about = {"event": event.kind, "run": run, "at": event.at, "text": event.text}
            self._call({**event.values, **about})

    def close(self, events: Events) -> None:
        """Wait for calls under way, each up to its time limit, and report failures."""
        for call in self._calls:
            call.join(self._timeout + 1.0)
        self._report(events)

    def _call(self, about: Mapping[str, Any]) -> None:
        body = json.dumps(about, default=str).encode()
        if self._command:
            self._begin("command", lambda: run_command(self._command, body, self._timeout))
        if (url := self._url) is not None:
            self._begin("url", lambda: post(url, body, self._timeout))

    def _begin(self, what: str, make: Callable[[], None]) -> None:
        call = _Call(what, make)
        self._calls.append(call)
        call.start()

    def _report(self, events: Events) -> None:
        """Report the calls that failed since the last time."""
        done = [call for call in self._calls if not call.is_alive()]
        self._calls = [call for call in self._calls if call not in done]
        for call in done:
            if call.failure is not None:
                text = f"the {call.what} of [alerts] failed: {call.failure}"
                events.add("alert_failed", text, what=call.what, error=call.failure)


class _Call(threading.Thread):
    """A call of a command or URL."""

    def __init__(self, what: str, make: Callable[[], None]) -> None:
        super().__init__(name="dmondrian-alert", daemon=True)
        self.what, self._make = what, make
        self.failure: str | None = None

    def run(self) -> None:
        """Make the call, and keep why it failed."""
        try:
            self._make()
        except Exception as error:  # noqa: BLE001 - reported by `Alerts`; it must end nothing
            self.failure = f"{type(error).__name__}: {error}"


def run_command(command: list[str], body: bytes, seconds: float) -> None:
    """Run a program with some bytes on its standard input, for at most some seconds.

    Files instead of pipes: what it starts and leaves behind cannot keep this waiting.

    Raises
    ------
    OSError
        It cannot be started.
    RuntimeError
        It failed, or took too long and was killed.
    """
    with tempfile.TemporaryFile() as standard_input, tempfile.TemporaryFile() as errors:
        standard_input.write(body)
        standard_input.seek(0)
        process = subprocess.Popen(
            command,
            stdin=standard_input,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(seconds)
            raise RuntimeError(f"{command[0]} took more than {seconds:g} seconds") from None
        if code != 0:
            errors.seek(0)
            lines = errors.read(2**16).decode(errors="replace").strip().splitlines()
            why = f": {lines[-1][:_SHOWN]}" if lines else ""
            raise RuntimeError(f"{command[0]} ended with code {code}{why}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: it would ask the other address by GET, and call that sent."""

    def redirect_request(self, *answer: Any) -> None:
        """Return no request, so that the answer is an error."""


def post(url: str, body: bytes, seconds: float) -> None:
    """Send some JSON to a URL by POST, within some seconds for each answer of the network.

    Raises
    ------
    OSError
        It cannot be reached, or refused; the message has no more of the URL than its host.
    """
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=seconds):
            pass
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        if 300 <= getattr(error, "code", 0) < 400:
            reason = f"{reason}, a redirect, which loses what is posted; give the address it names"
        raise OSError(f"{urlsplit(url).hostname}: {reason}") from None


def check_kind(kind: Any) -> str:
    """Return a kind of events that can be called with.

    Raises
    ------
    ParameterError
    """
    if kind not in CALLED:
        near = difflib.get_close_matches(str(kind), CALLED, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ParameterError(
            f"events has {kind!r}, with which nothing is called{hint} (kinds: {', '.join(CALLED)})"
        )
    return str(kind)


def check_command(command: Any) -> Any:
    """Return a command: a program and its arguments, as texts.

    Raises
    ------
    ParameterError
    """
    is_list = isinstance(command, (list, tuple)) and all(isinstance(w, str) for w in command)
    if not is_list or (command and not command[0]):
        raise ParameterError(
            f"command is {command!r}; expected a list of a program and its arguments, such as "
            '["notify", "--loud"]: no shell reads it'
        )
    return command


def check_url(url: Any) -> str:
    """Return a URL of the web.

    Raises
    ------
    ParameterError
        The message does not have it: it may be secret.
    """
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_sound = is_sound and parts.port != 0 and url.isascii() and url.isprintable()
        is_sound = is_sound and " " not in url
    except ValueError:  # of a port, too
        is_sound = False
    if not is_sound:
        raise ParameterError(
            "url is no address of the web; expected one like https://host/path, with other "
            "characters than those of ASCII, and blanks, as %20"
        )
    if "@" in parts.netloc:
        raise ParameterError(
            "url has a user or a password, which are not sent: call a command that sends them"
        )
    return str(url)
