"""A server as a process, and requests to it over HTTP as any client makes them."""

from __future__ import annotations

import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
TIMEOUT = 300  # seconds; kernels may be compiled on the way


@dataclass
class Reply:
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return f"{self.json['error']['type']}: {self.json['error']['message']}"


@dataclass
class Server:
    process: subprocess.Popen[str]
    about: dict[str, Any]
    port: int

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)

    def ask(
        self,
        path: str,
        value: Any = None,
        method: str | None = None,
        kind: str = "application/json",
        connection: http.client.HTTPConnection | None = None,
    ) -> Reply:
        """Send a value as JSON, or bytes as they are, and return the reply."""
        own = connection or self.connect()
        body = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
        headers = {} if body is None else {"content-type": kind}
        own.request(method or ("GET" if body is None else "POST"), path, body, headers)
        reply = own.getresponse()
        found = Reply(reply.status, reply.read(), {k.lower(): v for k, v in reply.getheaders()})
        if connection is None:
            own.close()
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT)


@contextmanager
def serving(model: Path | str, *words: str) -> Iterator[Server]:
    """Serve a model at a free port while the context lasts."""
    command = [sys.executable, "-m", "dmondrian.cli", "serve", str(model), "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, *words],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    errors: list[str] = []
    printed: queue.Queue[str] = queue.Queue()
    readers = [
        threading.Thread(target=lambda: errors.extend(process.stderr or ()), daemon=True),
        threading.Thread(
            target=lambda: [*map(printed.put, process.stdout or ()), printed.put("")], daemon=True
        ),
    ]
    for reader in readers:
        reader.start()
    try:
        line = printed.get(timeout=TIMEOUT)
        assert line, f"no start: {process.wait(TIMEOUT)} {''.join(errors)}"
        about = json.loads(line)
        assert about["event"] == "serving", line
        yield Server(process, about, int(about["url"].rpartition(":")[2]))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(TIMEOUT)
        for reader in readers:
            reader.join(TIMEOUT)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
