"""S3 servers on this machine's loopback: moto's, and a small one with chosen faults."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

SECRET = "wJalrXUtnFEMI-not-a-real-secret"
KEY_ID = "AKIA-not-a-real-key-id"
BUCKET = "forests"


def set_credentials(patch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Point the environment at a server; plain http is allowed because it is on loopback."""
    for name in ("AWS_ALLOW_HTTP", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL_S3"):
        patch.delenv(name, raising=False)
    patch.setenv("AWS_ENDPOINT_URL", endpoint)
    patch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    patch.setenv("AWS_REGION", "us-east-1")


def _one_write_at_a_time(app: Any) -> Any:
    """Return a server's application that looks whether an object is there and writes it at once.

    As S3 does. moto does one after the other, so two writers of a new object could both win.
    """
    writing = threading.Lock()

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        with writing if environ["REQUEST_METHOD"] == "PUT" else nullcontext():
            return app(environ, start_response)

    return answer


def _with_milliseconds_in_lists(app: Any) -> Any:
    """Return a server's application whose listings have finer times of change than its HEAD.

    Ceph's gateway and others do so; moto's times are whole seconds in both.
    """

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        if "list-type" not in environ.get("QUERY_STRING", ""):
            return app(environ, start_response)
        reported: list[Any] = []
        parts = app(environ, lambda status, headers, *_: reported.append((status, headers)))
        body = b"".join(parts).replace(b".000Z</LastModified>", b".123Z</LastModified>")
        start_response(*reported[0])
        return [body]

    return answer


@contextmanager
def moto_server(lists_milliseconds: bool = False) -> Iterator[str]:
    """Run moto's S3 server; yields its endpoint. HEAD can be made to round the times of lists."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    server._server.app = _one_write_at_a_time(server._server.app)
    if lists_milliseconds:
        server._server.app = _with_milliseconds_in_lists(server._server.app)
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    try:
        yield endpoint
    finally:
        server.stop()


PASSING = ("resets", "stalls", "slows down", "fails")
"""Faults that pass after some answers."""


class FaultyHandler(BaseHTTPRequestHandler):
    """S3's put, get, head and delete of whole objects, with the fault that the server has."""

    protocol_version = "HTTP/1.1"
    server: FaultyServer

    def _is_refused(self) -> bool:
        """Answer as a store that refuses everything: of the fault "answers STATUS CODE"."""
        word, _, answer = self.server.fault.partition(" ")
        if word != "answers":
            return False
        status, code = answer.split(" ")
        headers = {"x-amz-bucket-region": "eu-west-1"} if status == "301" else {}
        body = f"<Error><Code>{code}</Code><Region>eu-west-1</Region></Error>".encode()
        self._answer(int(status), body, headers)
        return True

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self._is_refused():
            return
        server, is_new = self.server, self.path not in self.server.objects
        server.conditions.append(self.headers.get("If-None-Match"))
        if server.fault == "refuses":
            self._answer(
                403,
                b"<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>"
                + KEY_ID.encode()
                + b"</AWSAccessKeyId></Error>",
            )
            return
        if self._stumbles():
            return
        is_conditional = self.headers.get("If-None-Match") == "*"
        if is_conditional and not is_new and server.fault != "ignores the condition":
            self._answer(412 if server.fault != "conflicts 409" else 409, b"<Error/>")
            return
        server.objects[self.path] = body
        if server.fault == "writes and fails" and server.failures > 0:
            server.failures -= 1
            self._answer(500, b"<Error><Code>InternalError</Code></Error>")
            return
        self._answer(200, b"", {"ETag": f'"{len(server.conditions)}"'})

    def _stumbles(self) -> bool:
        """Fail for a while, before anything was written: the faults that a retry outlives."""
        server = self.server
        if server.fault not in PASSING or server.failures <= 0:
            return False
        server.failures -= 1
        if server.fault == "resets":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif server.fault == "stalls":
            server.released.wait(60.0)
            self.close_connection = True
        else:
            code = 503 if server.fault == "slows down" else 500
            self._answer(code, b"<Error><Code>SlowDown</Code></Error>")
        return True

    def do_GET(self) -> None:
        if self._is_refused() or self._stumbles():
            return
        if self.server.fault == "breaks off" and self.server.failures > 0:
            self.server.failures -= 1
            body = self.server.objects[self.path]
            self.send_response(200)
            self.send_header("ETag", '"x"')
            self.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        body = self.server.objects.get(self.path)
        if body is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        headers = {"ETag": '"x"', "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
        self._answer(200, body, headers)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.server.objects.pop(self.path, None)
        self._answer(204, b"")

    def do_POST(self) -> None:
        # Multi-object delete: every key named in the body.
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        names = [part.split("</Key>")[0] for part in text.split("<Key>")[1:]]
        bucket = self.path.split("?")[0].rstrip("/")
        for name in names:
            self.server.objects.pop(f"{bucket}/{name}", None)
        gone = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
        self._answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the test's output is the test's."""

    def _answer(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class FaultyServer(ThreadingHTTPServer):
    """The objects of a server, and its fault."""

    daemon_threads = True

    def __init__(self, fault: str) -> None:
        super().__init__(("127.0.0.1", 0), FaultyHandler)
        self.fault = fault
        self.released = threading.Event()  # lets the answers go that stall
        self.failures = 1  # answers that are errors although the object was written
        self.objects: dict[str, bytes] = {}
        self.conditions: list[str | None] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def faulty_server(fault: str) -> Iterator[FaultyServer]:
    """Run a server that has one fault: see FaultyHandler."""
    server = FaultyServer(fault)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
