"""The ASGI application: paths, limits of bodies, and errors as JSON.

Relies on a queue of requests. Promises that an error names what was wrong in the words of the
library, with a status of 4xx where the request is to blame, and that no more of a body is kept than
its limit.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from dmondrian.errors import DataError, MissingPackageError, ParameterError, SchemaError
from dmondrian.serving.answer_body import POSITION
from dmondrian.serving.learner import learn_request_of
from dmondrian.serving.openapi import openapi
from dmondrian.serving.request_queue import BusyError, RequestQueue
from dmondrian.serving.request_rows import (
    ARROW,
    JSON,
    BodyError,
    keys_of,
    read_json,
    request_of_arrow,
    request_of_json,
)
from dmondrian.serving.serving_metrics import ServingMetrics
from dmondrian.serving.waiting_keys import KeyedError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Reply = tuple[int, str, bytes, list[tuple[bytes, bytes]]]

_log = logging.getLogger("dmondrian")

_STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (BodyError, 400),
    (KeyedError, 409),
    (BusyError, 503),
    (MissingPackageError, 501),
    (SchemaError, 422),
    (DataError, 422),
    (ParameterError, 422),
    (ValueError, 422),  # of scikit-learn's checks
)
_SILENT_SECONDS = 60.0  # for which a body may stop coming
_PASSED, _PASSED_SECONDS = 32, 2.0  # of a body that is too long: times its limit, and how long
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class _Refused(Exception):  # noqa: N818  # it is an answer
    def __init__(
        self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind
        self.headers = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]


class Application:
    """An ASGI application that serves a model.

    Parameters
    ----------
    queue : RequestQueue
    metrics : ServingMetrics
    max_body : int
        Bytes of a request's body.
    status : callable
        Returns more entries of ``/health``.
    """

    def __init__(
        self,
        queue: RequestQueue,
        metrics: ServingMetrics,
        max_body: int,
        status: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._queue, self._metrics = queue, metrics
        self._max_body, self._status = max_body, status
        self._paths: dict[str, tuple[str, Callable[[Scope, Receive], Awaitable[Reply]]]] = {
            "/predict": ("POST", self._predict),
            "/learn": ("POST", self._learn),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._scrape),
            "/openapi.json": ("GET", self._openapi),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        started = time.perf_counter()
        path = scope["path"] if scope["path"] in self._paths else "other"
        try:
            status, kind, body, headers = await self._reply(scope, receive)
        except _Gone:
            return
        except asyncio.CancelledError:  # the server ends, and has waited long enough
            status, kind, body, headers = _error(BusyError("the server ends: ask the next one"))
        except Exception as error:  # noqa: BLE001  # the edge: every error becomes an answer
            status, kind, body, headers = _error(error)
        head = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body)), *headers]
        await send({"type": "http.response.start", "status": status, "headers": head})
        is_head = scope["method"] == "HEAD"
        await send({"type": "http.response.body", "body": b"" if is_head else body})
        self._metrics.count_request(path, status, time.perf_counter() - started)

    async def _reply(self, scope: Scope, receive: Receive) -> Reply:
        if scope["path"] not in self._paths:
            raise _Refused(404, "NotFound", f"there are {', '.join(self._paths)}")
        method, answer = self._paths[scope["path"]]
        if scope["method"] not in ((method, "HEAD") if method == "GET" else (method,)):
            raise _Refused(
                405, "MethodNotAllowed", f"{scope['path']} takes {method}", {"allow": method}
            )
        return await answer(scope, receive)

    async def _predict(self, scope: Scope, receive: Receive) -> Reply:
        kind = _kind_of(scope, (JSON, ARROW))
        body = await self._body(scope, receive)
        model = self._queue.model
        if kind == ARROW:
            request = request_of_arrow(body)
        else:
            request = request_of_json(read_json(body), model.names, model.n_columns)
            if request.keys is not None and self._queue.learner is None:
                raise ParameterError(
                    "keys are for labels that come later, and this server does not learn: start "
                    "it with --learn"
                )
        answer = await self._queue.forecast(request)
        position = (POSITION.encode(), b"%d" % answer.position)
        return 200, kind, answer.body, [position]

    async def _learn(self, scope: Scope, receive: Receive) -> Reply:
        _kind_of(scope, (JSON,))
        learner = self._queue.learner
        if learner is None:
            raise _Refused(
                403, "NotLearning", "this server does not learn: `dmondrian serve --learn` does, "
                "for an estimator that was saved",
            )  # fmt: skip
        value = read_json(await self._body(scope, receive))
        if not isinstance(value, dict) or set(value) - {"rows", "columns", "keys", "labels"}:
            raise BodyError("expected an object of labels, with keys or rows or columns, or both")
        labels, model = value.pop("labels", None), self._queue.model
        if "rows" in value or "columns" in value:
            request = request_of_json(value, model.names, model.n_columns)
            if not request.n:
                raise DataError("there are no rows: expected at least one")
            table = model.reader.table([request])
            model.rows(table)  # refuses what the model cannot take
            learn_request = learn_request_of(labels, request.keys, model.frames.numbers(table))
        else:
            learn_request = learn_request_of(labels, keys_of(value.get("keys"), None), None)
        return 200, JSON, _json(await self._queue.learn(learn_request)), []

    async def _health(self, scope: Scope, receive: Receive) -> Reply:
        learner = self._queue.learner
        about: dict[str, Any] = {"status": "ok", **self._queue.model.describe(), **self._status()}
        about["learns"] = learner is not None
        if learner is not None:
            about |= learner.about()
        is_well = learner is None or learner.failure is None
        if not is_well:
            about["status"] = "learns no more"
        return 200 if is_well else 503, JSON, _json(about), []

    async def _scrape(self, scope: Scope, receive: Receive) -> Reply:
        learner, values = self._queue.learner, {"position": self._queue.model.position}
        if learner is not None:
            values["saved_position"] = learner.saved
            values["waiting_rows"] = len(learner.keys)
            values["given_up_rows"] = learner.keys.given_up
        return 200, _TEXT, self._metrics.page(**values), []

    async def _openapi(self, scope: Scope, receive: Receive) -> Reply:
        document = openapi(self._queue.model, self._queue.learner is not None)
        return 200, JSON, _json(document), []

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Return the body of a request; refuse one that is too long as soon as that is known."""
        length = _header(scope, b"content-length")
        if length.isdigit() and int(length) > self._max_body:
            await self._pass_over(receive)
            raise self._too_long()
        parts, n = [], 0
        while True:
            try:
                async with asyncio.timeout(_SILENT_SECONDS):
                    message = await receive()
            except TimeoutError:
                text = f"no more of the body came for {_SILENT_SECONDS:.0f} seconds: send it again"
                raise _Refused(408, "RequestTimeout", text, {"connection": "close"}) from None
            if message["type"] == "http.disconnect":
                raise _Gone
            part = message.get("body", b"")
            n += len(part)
            if n > self._max_body:
                await self._pass_over(receive)
                raise self._too_long()
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _pass_over(self, receive: Receive) -> None:
        """Read on for a while: some clients look for the answer only after their whole body."""
        n = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(_PASSED_SECONDS):
                while n < _PASSED * self._max_body:
                    message = await receive()
                    n += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    def _too_long(self) -> _Refused:
        text = f"the body has more than {self._max_body:,} bytes: send fewer rows at once"
        return _Refused(413, "TooLarge", text, {"connection": "close"})


class _Gone(Exception):  # noqa: N818  # whoever asked has hung up
    pass


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _kind_of(scope: Scope, kinds: tuple[str, ...]) -> str:
    """Return the type of a body; refuse others."""
    kind = _header(scope, b"content-type").partition(";")[0].strip().lower()
    if kind not in kinds:
        raise _Refused(
            415, "UnsupportedMediaType", f"content-type is {kind!r}; expected {' or '.join(kinds)}"
        )
    return kind


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _error(error: Exception) -> Reply:
    """Return the answer that an error becomes."""
    if isinstance(error, _Refused):
        status, kind, headers = error.status, error.kind, error.headers
    else:
        status = next((code for error_type, code in _STATUS if isinstance(error, error_type)), 500)
        kind, headers = type(error).__name__, []
        if status == 503:
            headers = [(b"retry-after", b"1")]
    message = str(error)
    if status == 500:
        _log.error("a request failed: %s: %s", kind, error, exc_info=error)
        message = "an unexpected error: the log of the server has it"
    return status, JSON, _json({"error": {"type": kind, "message": message}}), headers
