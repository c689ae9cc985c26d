"""A proxy in front of an S3 server that is slow, fails or breaks off for a while.

Relies on the server answering whole requests. Promises that a request reaches the server at most
once, that an answer that was spoilt shows nothing of whether the server did what was asked, and
that without a fault it changes nothing.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

FAULTS = ("slow", "errors", "ambiguous", "cut")
SLOW_SECONDS = 0.3
SECONDS = 60.0  # for the server to answer
_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_BROKEN = b"<Error><Code>InternalError</Code><Message>We are sorry.</Message></Error>"
_OWN = ("connection", "transfer-encoding", "content-length", "date", "server")


class _Handler(BaseHTTPRequestHandler):
    """Hands a request on, unless the server has a fault that forbids it."""

    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.fault()
        if fault == "slow":
            time.sleep(SLOW_SECONDS)
        if fault == "errors":
            self._answer(503, {"Content-Type": "application/xml"}, _BUSY)
            return
        code, headers, content = self._ask(body)
        if fault == "cut":
            self.close_connection = True
        elif fault == "ambiguous" and self.command != "GET":
            self._answer(500, {"Content-Type": "application/xml"}, _BROKEN)
        else:
            self._answer(code, headers, content)

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        link = http.client.HTTPConnection(self.server.upstream, timeout=SECONDS)
        try:
            link.request(self.command, self.path, body=body, headers=dict(self.headers))
            answer = link.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            link.close()

    def _answer(self, code: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(code)
        reported = {name.lower(): value for name, value in headers.items()}
        for name, value in reported.items():
            if name not in _OWN:
                self.send_header(name, value)
        is_head = self.command == "HEAD"
        length = reported.get("content-length") if is_head else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if not is_head:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the test's output is the test's."""


class Proxy(ThreadingHTTPServer):
    """The fault of the moment, and how many requests met one."""

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(endpoint).netloc
        self.met = 0  # requests that met a fault
        self._fault: tuple[str, float] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def suffer(self, fault: str, seconds: float) -> None:
        """Have one of `FAULTS` for some seconds, from now."""
        self._fault = fault, time.monotonic() + seconds

    def recover(self) -> None:
        """Have no fault."""
        self._fault = None

    def fault(self) -> str | None:
        """Return the fault of this moment, counting the request that asks."""
        if self._fault is None or time.monotonic() >= self._fault[1]:
            return None
        self.met += 1
        return self._fault[0]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that was killed in the middle."""


@contextmanager
def proxy(endpoint: str) -> Iterator[Proxy]:
    """Run a proxy in front of the server at `endpoint`."""
    server = Proxy(endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Forwarder(_Handler):
    """Hands a request on to the host that it names, as a web proxy does."""

    server: ForwardProxy

    def _serve(self) -> None:
        split = urlsplit(self.path)
        if not split.netloc:
            self._answer(400, {}, b"this is a proxy")
            return
        self.server.asked.append((self.command, split.netloc))
        self.path = f"{split.path}?{split.query}" if split.query else split.path
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        del self.headers["Host"]  # that of the server is another
        self._answer(*self._ask(body))

    def do_CONNECT(self) -> None:
        self.server.asked.append((self.command, self.path))
        self._answer(502, {}, b"")


class ForwardProxy(Proxy):
    """What programs that follow HTTP_PROXY send their requests to."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.RequestHandlerClass = _Forwarder
        self.asked: list[tuple[str, str]] = []  # method and host of each request


@contextmanager
def forward_proxy(endpoint: str) -> Iterator[ForwardProxy]:
    """Run a web proxy through which a server can be reached under any name."""
    server = ForwardProxy(endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
