"""A real headless Chromium, spoken to in its own protocol over a pair of pipes.

It is looked for by the names that Debian and others install it under, or in `CHROMIUM`. Where there
is none `.ci/run` installs it; `NAMES` has which.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
          "--disable-background-networking", "--disable-component-update", "--disable-sync",
          "--hide-scrollbars", "--remote-debugging-pipe")  # fmt: skip
# The protocol wants descriptors 3 and 4. What is forked to run Python code may hang, as its parent
# has threads, and then holds the pipes by which the end of the parent is noticed: so it is begun.
_HAND_OVER = """
import os, sys
ends = [os.dup(int(end)) for end in sys.argv[1:3]]
for number, end in zip((3, 4), ends):
    os.dup2(end, number)
    os.set_inheritable(number, True)
os.execv(sys.argv[3], sys.argv[3:])
"""


def browser() -> str | None:
    """Path of a Chromium, or None."""
    named = os.environ.get("CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One page of a browser that is open."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._rest = to, os.fdopen(back, "rb", buffering=0), b""
        self._number, self._session = 0, None
        self.complaints: list[str] = []  # errors and warnings of the console, and failed requests
        self.requests: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command; return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, file: Path, width: int, *, is_dark: bool = False) -> None:
        """Load a file in a window of a width; wait until it is drawn."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900,
                 deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        self.ask("Page.navigate", url=file.resolve().as_uri())
        while (event := self._next()).get("method") != "Page.loadEventFired":
            self._note(event)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        reported = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in reported, reported
        return reported["result"].get("value")

    def screenshot(self, file: Path) -> None:
        """Write the whole page as a PNG."""
        height = self.evaluate("document.documentElement.scrollHeight")
        width = self.evaluate("window.innerWidth")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        data = self.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        file.write_bytes(base64.b64decode(data))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = self._back.read(1 << 16)
            assert data, "the browser went away"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded",
                        "Network.loadingFailed"):  # fmt: skip
            self.complaints.append(json.dumps(params)[:400])


@contextmanager
def open_browser(profile: Path) -> Iterator[Page]:
    """Start a browser with an empty profile; ends it in the end."""
    found = browser()
    assert found is not None
    to_read, to_write = os.pipe()
    back_read, back_write = os.pipe()

    process = subprocess.Popen(
        [sys.executable, "-c", _HAND_OVER, str(to_read), str(back_write), found, *_FLAGS,
         f"--user-data-dir={profile}", "about:blank"],
        pass_fds=(to_read, back_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_read)
    os.close(back_write)
    try:
        yield Page(to_write, back_read)
    finally:
        process.kill()
        process.wait()
        os.close(to_write)
