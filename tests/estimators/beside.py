"""What threads may do with a forest beside its learner, and what that must look like.

A stream of calls learns a few rows at a time. Alone it tells what each method answers after every
row that others may see; beside readers each of their answers must be one of these.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator

from dmondrian.ensemble import threads

ROWS, PART = 48, 6  # learned in all; trees times rows of a part
Answer = Callable[[Any], Any]
Call = Callable[[Any], Any]


def answered(value: Any) -> Any:
    """Return an answer as something that is equal where its bytes are."""
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return value.tolist()
        return value.shape, value.dtype.str, value.tobytes()
    if isinstance(value, csr_matrix):
        return [answered(part) for part in (value.data, value.indices, value.indptr)], value.shape
    if isinstance(value, BaseEstimator):
        return answered(value.__getstate__())
    if isinstance(value, dict):
        return [(key, answered(value[key])) for key in sorted(value)]
    if isinstance(value, (str, bytes, int, float, type(None))):
        return value
    if isinstance(value, Iterable):
        return [answered(part) for part in value]
    return repr(value)


def answer(ask: Answer, estimator: Any) -> Any:
    """Return what a method answers, or how it refuses."""
    try:
        return repr(answered(ask(estimator)))
    except (ValueError, AttributeError) as refused:
        return type(refused).__name__, str(refused)


@contextmanager
def switching_often() -> Iterator[None]:
    """Let threads switch at almost any step, and learners let others in at almost any row."""
    before = sys.getswitchinterval(), threads._MOST_AT_ONCE, threads._MOST_WHERE_SHARED
    sys.setswitchinterval(1e-5)
    threads._MOST_AT_ONCE = threads._MOST_WHERE_SHARED = PART
    try:
        yield
    finally:
        sys.setswitchinterval(before[0])
        threads._MOST_AT_ONCE, threads._MOST_WHERE_SHARED = before[1:]


def together(works: list[Callable[[], None]]) -> None:
    """Do works at the same time; raise what one of them raises."""
    begin, errors = threading.Barrier(len(works)), []

    def run(work: Callable[[], None]) -> None:
        try:
            begin.wait()
            work()
        except BaseException as error:  # noqa: BLE001  # raised again below
            errors.append(error)

    started = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if errors:
        raise errors[0]


def read_beside(
    estimator: Any, work: Callable[[Any], None], asks: dict[str, Answer], n_readers: int = 2
) -> dict[str, set[Any]]:
    """Let threads ask while one works; return all answers by name."""
    found: dict[str, set[Any]] = {name: set() for name in asks}
    is_done = threading.Event()

    def learn() -> None:
        try:
            work(estimator)
        finally:
            is_done.set()

    def read(seed: int) -> None:
        order = random.Random(seed)
        names = list(asks)
        while not is_done.is_set():
            order.shuffle(names)
            for name in names:
                found[name].add(answer(asks[name], estimator))
                if is_done.is_set():
                    break

    with switching_often():
        together([learn, *(lambda seed=seed: read(seed) for seed in range(n_readers))])
    return found


def stream(X: np.ndarray, y: np.ndarray, first: dict[str, Any]) -> list[Call]:
    """Return calls that learn the rows: the first, then some alone and some at a time."""
    calls: list[Call] = []
    start = 0
    for size in [6, *[1, 1, 1, 1, 10] * 3]:
        part, named = slice(start, start + size), {} if start else first
        calls.append(lambda one, part=part, named=named: one.partial_fit(X[part], y[part], **named))
        start += size
    assert start == len(X) == ROWS
    return calls


def states(estimator: Any, calls: list[Call], asks: dict[str, Answer]) -> dict[str, set[Any]]:
    """Do the calls; return all answers in the states that readers beside them may see."""
    seen: dict[str, set[Any]] = {name: set() for name in asks}
    alone, n_parts = threads.Turns.alone, 0

    def look() -> None:
        for name, ask in asks.items():
            seen[name].add(answer(ask, estimator))

    @contextmanager
    def looking(turns: threads.Turns) -> Iterator[None]:
        nonlocal n_parts
        with alone(turns):
            yield
        if turns is estimator._turns and turns._alone is None:  # others may read now
            n_parts += 1
            look()

    with switching_often():
        look()
        threads.Turns.alone = looking  # type: ignore[method-assign]  # put back below
        try:
            for call in calls:
                before = n_parts
                call(estimator)
                if n_parts == before:  # one row alone
                    look()
        finally:
            threads.Turns.alone = alone  # type: ignore[method-assign]  # as it was
    return seen
