"""The queue of requests: those that wait are answered together, from one state of the model.

Relies on asyncio: one task alone uses the model, so no answer falls between two states. Promises
that forecasts which wait are one call, of at most `TOGETHER` rows or a single request; that a batch
of many rows, and a save, leave the loop free for others; and that no more wait than `MOST_WAITING`
rows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from dmondrian.errors import DataError, DMondrianError
from dmondrian.serving.answer_body import arrow_body, as_lists, json_body
from dmondrian.serving.learner import SLICE, Learner, LearnRequest
from dmondrian.serving.request_rows import PredictRequest
from dmondrian.serving.served_model import ServedModel
from dmondrian.serving.serving_metrics import ServingMetrics

TOGETHER = 1024
"""Rows of several requests that are forecast in one call."""

INLINE = 256
"""Rows that are forecast in the loop itself: another thread would take longer to be called."""

MOST_WAITING = 200_000
"""Rows of requests that wait; more are refused at once."""

_SAVE_SECONDS = 0.2  # between two looks whether a save is due
_TICK = 0.02  # between two looks whether a learn request is over
_ENDING = "the server ends: nothing was learned, send the labels to the one that follows"


class BusyError(DMondrianError):
    """The queue is full."""


@dataclass
class Answer:
    """The answer to a request.

    Attributes
    ----------
    body : bytes
    position : int
        Weight that the state had learned.
    """

    body: bytes
    position: int


_Prepared = tuple[np.ndarray, np.ndarray | None] | Exception
"""Rows of a request, for the forest and, where they are kept, as they are learned; or its error."""

_Result = tuple[Answer, np.ndarray | None] | Exception
"""The answer to a request, and the rows that are kept; or its error."""


@dataclass
class _Queued:
    """A request in the queue, and where its answer goes."""

    request: Any  # PredictRequest or LearnRequest
    answer: asyncio.Future[Any]
    n_learned: int = 0  # rows of a learn request that were learned
    begun: Any = field(default=None)  # what `Learner.begin` returned of it; None before


class RequestQueue:
    """Requests that wait for the model.

    Parameters
    ----------
    model : ServedModel
        Another one may be put in its place at any time, if there is no learner.
    learner : Learner or None
        Of that model.
    metrics : ServingMetrics
    """

    def __init__(
        self, model: ServedModel, learner: Learner | None, metrics: ServingMetrics
    ) -> None:
        self.model, self.learner = model, learner
        self._metrics = metrics
        self._predict_requests: deque[_Queued] = deque()
        self._learn_requests: deque[_Queued] = deque()
        self._n_rows = 0
        self._some = asyncio.Event()
        self._pool = ThreadPoolExecutor(1, "dmondrian-forecast")
        self._saver = ThreadPoolExecutor(1, "dmondrian-save")
        self._save: asyncio.Future[None] | None = None
        self._is_ending = False

    async def forecast(self, request: PredictRequest) -> Answer:
        """Return the answer to a request.

        Raises
        ------
        BusyError
            Too many rows wait.
        DMondrianError, ValueError
            Rows that the model refuses.
        """
        answer: Answer = await self._put(self._predict_requests, request, request.n)
        return answer

    async def learn(self, request: LearnRequest) -> dict[str, Any]:
        """Learn labels; return how many were, as JSON values.

        Raises
        ------
        BusyError, KeyedError, DataError
            Nothing was learned.
        """
        result: dict[str, Any] = await self._put(self._learn_requests, request, len(request.labels))
        return result

    async def _put(self, queue: deque[_Queued], request: Any, n: int) -> Any:
        if self._is_ending and queue is self._learn_requests:
            raise BusyError(_ENDING)
        if self._n_rows + n > MOST_WAITING and self._n_rows:
            raise BusyError(f"{self._n_rows:,} rows wait already: try again in a moment")
        queued = _Queued(request, asyncio.get_running_loop().create_future())
        queue.append(queued)
        self._n_rows += n
        self._some.set()
        try:
            return await queued.answer
        finally:
            self._n_rows -= n

    async def work(self) -> None:
        """Answer what comes, until cancelled."""
        ticks = asyncio.create_task(self._look_for_saves())
        try:
            while True:
                await self._some.wait()
                self._some.clear()
                while self._predict_requests or (self._learn_requests and self._save is None):
                    await self._answer_some()
                    self._learn_some()
                    self._save_if_due()
                    await asyncio.sleep(0)  # for requests that have come, to wait together
                self._save_if_due()
        finally:
            ticks.cancel()

    async def finish_learn_requests(self) -> None:
        """Learn the rest of a learn request that has begun; refuse those that wait, and more."""
        self._is_ending = True
        waiting = [queued for queued in self._learn_requests if queued.begun is None]
        self._learn_requests = deque(
            queued for queued in self._learn_requests if queued.begun is not None
        )
        for queued in waiting:
            if not queued.answer.done():
                queued.answer.set_exception(BusyError(_ENDING))
        while self._learn_requests:
            await asyncio.sleep(_TICK)

    async def close(self) -> None:
        """Save what was learned, whole learn requests, and give the model up."""
        if self._save is not None:
            await asyncio.wait([self._save])
            self._save = None
        learner = self.learner
        while self._learn_requests and self._learn_requests[0].begun is not None:
            self._learn_some()
        try:
            if learner is not None and not learner.is_saved and learner.failure is None:
                keys = learner.freeze_keys()
                await asyncio.get_running_loop().run_in_executor(self._saver, learner.save, keys)
        finally:
            if learner is not None:
                learner.close()
            self._pool.shutdown()
            self._saver.shutdown()

    async def _look_for_saves(self) -> None:
        while self.learner is not None:
            await asyncio.sleep(_SAVE_SECONDS)
            if self.learner.is_due:
                self._some.set()

    async def _answer_some(self) -> None:
        some: list[_Queued] = []
        n = 0
        while self._predict_requests and (
            not some or n + self._predict_requests[0].request.n <= TOGETHER
        ):
            queued = self._predict_requests.popleft()
            if not queued.answer.done():  # whoever asked may have gone
                some.append(queued)
                n += queued.request.n
        if not some:
            return
        requests, model = [queued.request for queued in some], self.model
        if n <= INLINE:
            results = answers(model, requests, self.learner is not None)
        else:
            loop = asyncio.get_running_loop()
            results = await loop.run_in_executor(
                self._pool, answers, model, requests, self.learner is not None
            )
        self._metrics.count_batch(n)
        for queued, result in zip(some, results, strict=True):
            if queued.answer.done():
                continue
            outcome = (
                result if isinstance(result, Exception) else self._kept(queued.request, result)
            )
            if isinstance(outcome, Exception):
                queued.answer.set_exception(outcome)
            else:
                queued.answer.set_result(outcome)

    def _kept(
        self, request: PredictRequest, result: tuple[Answer, np.ndarray | None]
    ) -> Answer | Exception:
        """Return the answer, after keeping the rows whose labels will come."""
        answer, rows = result
        if request.keys is not None and self.learner is not None:
            assert rows is not None  # asked for
            try:
                self.learner.wait_for_labels(request.keys, rows)
            except DMondrianError as error:
                return error
        return answer

    def _learn_some(self) -> None:
        """Learn some rows of the request that came first."""
        learner = self.learner
        if not self._learn_requests or self._save is not None or learner is None:
            return
        queued = self._learn_requests[0]
        try:
            if learner.failure is not None:
                raise BusyError(learner.failure)
            if queued.begun is None:
                queued.begun = learner.begin(queued.request)
            rows, labels, passed = queued.begun
            part = slice(queued.n_learned, queued.n_learned + SLICE)
            if len(rows[part]):
                learner.learn(rows[part], labels[part])
            queued.n_learned += SLICE
            if queued.n_learned < len(rows):
                return
            result = {"learned": len(rows), "passed": passed, "position": self.model.position}
            result["saved"] = learner.saved
        except Exception as error:  # noqa: BLE001  # the sender gets it, whatever it is
            self._learn_requests.popleft()
            if not queued.answer.done():
                queued.answer.set_exception(error)
            return
        self._learn_requests.popleft()
        self._metrics.count_learned(len(rows))
        if not queued.answer.done():
            queued.answer.set_result(result)

    def _save_if_due(self) -> None:
        """Begin a save between two learn requests."""
        learner = self.learner
        is_amid = bool(self._learn_requests) and self._learn_requests[0].begun is not None
        if learner is None or self._save is not None or is_amid or not learner.is_due:
            return
        keys = learner.freeze_keys()
        loop = asyncio.get_running_loop()
        self._save = loop.run_in_executor(self._saver, learner.save, keys)
        self._save.add_done_callback(self._saved)

    def _saved(self, save: asyncio.Future[None]) -> None:
        self._save = None
        if not save.cancelled():
            save.exception()  # the learner knows it
        self._some.set()


def answers(
    model: ServedModel, requests: Sequence[PredictRequest], keeps_rows: bool
) -> list[_Result]:
    """Return the answer to each request, or the error that refuses it, from one state of a model.

    Parameters
    ----------
    model : ServedModel
    requests : sequence of PredictRequest
    keeps_rows : bool
        Whether rows with keys are returned as the estimator learns them.
    """
    all_prepared: list[_Prepared] = [DataError("")] * len(requests)
    groups: dict[tuple[int | None, bool], list[int]] = {}
    for number, request in enumerate(requests):
        keeps = request.keys is not None and keeps_rows
        alone = None if model.reader.is_plain(request) else number
        groups.setdefault((alone, keeps), []).append(number)
    for (alone, keeps), numbers in groups.items():
        prepared = _prepared(model, [requests[number] for number in numbers], alone is None, keeps)
        for number, rows_or_error in zip(numbers, prepared, strict=True):
            all_prepared[number] = rows_or_error
    results: list[_Result] = [
        rows_or_error if isinstance(rows_or_error, Exception) else DataError("")
        for rows_or_error in all_prepared
    ]
    for details in (True, False):
        ready = [
            (number, *rows_or_error)
            for number, rows_or_error in enumerate(all_prepared)
            if not isinstance(rows_or_error, Exception) and requests[number].details is details
        ]
        if ready:
            for number, result in _scored(model, requests, ready, details):
                results[number] = result
    return results


def _prepared(
    model: ServedModel, requests: Sequence[PredictRequest], are_plain: bool, keeps_rows: bool
) -> list[_Prepared]:
    """Return the rows of requests, as the forest takes them and as the estimator learns them."""
    try:
        if not all(request.n for request in requests):
            raise DataError("there are no rows: expected at least one")
        reader, learnable = model.reader, None
        features = reader.features(requests) if are_plain and not keeps_rows else None
        if are_plain and model.takes_numbers:
            features = learnable = reader.matrix(requests)
        if features is not None:
            X = model.checked(features)
            learnable = X if learnable is not None else None
        else:
            table = reader.table(requests)
            X = model.rows(table)
            learnable = model.frames.numbers(table) if keeps_rows else None
    except Exception as error:  # noqa: BLE001  # the sender gets it, whatever it is
        if len(requests) == 1:
            return [error]
        return [_prepared(model, [request], are_plain, keeps_rows)[0] for request in requests]
    ends = np.cumsum([request.n for request in requests]).tolist()
    parts = [slice(end - request.n, end) for request, end in zip(requests, ends, strict=True)]
    return [(X[part], None if learnable is None else learnable[part]) for part in parts]


def _scored(
    model: ServedModel,
    requests: Sequence[PredictRequest],
    ready: Sequence[tuple[int, np.ndarray, np.ndarray | None]],
    details: bool,
) -> list[tuple[int, _Result]]:
    """Forecast rows together; return the answer of each request, by its number."""
    X = (
        ready[0][1]
        if len(ready) == 1
        else np.concatenate([X_of_request for _, X_of_request, _ in ready])
    )
    try:
        columns = model.answer(np.ascontiguousarray(X), details)
    except Exception as error:  # noqa: BLE001  # as above
        if len(ready) == 1:
            return [(ready[0][0], error)]
        return [_scored(model, requests, [request_rows], details)[0] for request_rows in ready]
    is_json = any(requests[number].form != "arrow" for number, _, _ in ready)
    lists = as_lists(columns) if is_json else {}
    made: list[tuple[int, _Result]] = []
    start = 0
    for number, X_of_request, rows in ready:
        part = slice(start, start + len(X_of_request))
        start = part.stop
        body = _body(requests[number], columns, lists, part, model.position)
        made.append((number, (Answer(body, model.position), rows)))
    return made


def _body(
    request: PredictRequest,
    columns: Mapping[str, pa.Array],
    lists: Mapping[str, list[Any]],
    part: slice,
    position: int,
) -> bytes:
    if request.form == "arrow":
        n = part.stop - part.start
        answered = {name: values.slice(part.start, n) for name, values in columns.items()}
        return arrow_body(answered, position)
    return json_body(request, {name: values[part] for name, values in lists.items()}, position)
