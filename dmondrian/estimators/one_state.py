"""Consistent reads of an estimator that other threads may be training.

Relies on :class:`dmondrian.ensemble.threads.Turns`, of which each estimator has one. Promises that
decorated methods see the forest as it is between two rows that other threads learn, and the
attributes of a single fit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from dmondrian.ensemble.threads import reading_all

_Method = TypeVar("_Method", bound=Callable[..., Any])


def one_state(*estimators: Any) -> AbstractContextManager[None]:
    """Return a context manager in which no other thread changes the estimators."""
    if len(estimators) == 1:
        kept: AbstractContextManager[None] = estimators[0]._turns.reading()
        return kept
    turns: Sequence[Any] = [estimator._turns for estimator in estimators]
    return reading_all(turns)


def in_one_state(method: _Method) -> _Method:
    """Decorate a method so that no other thread changes its estimator during the call."""

    @functools.wraps(method)
    def read(self: Any, *args: Any, **named: Any) -> Any:
        with self._turns.reading():
            return method(self, *args, **named)

    return read  # type: ignore[return-value]  # of the same signature


def of_one_fit(method: _Method) -> _Method:
    """Decorate a method that reads the forest at most once, so that it sees the result of one fit.

    Cheaper than `in_one_state`: the method is called again if another fit ended during the call.
    """

    @functools.wraps(method)
    def read(self: Any, *args: Any, **named: Any) -> Any:
        attributes = self.__dict__
        forest = attributes.get("forest_")
        try:
            result = method(self, *args, **named)
        except Exception:
            if attributes.get("forest_") is forest:
                raise
        else:
            if attributes.get("forest_") is forest:
                return result
        with self._turns.reading():
            return method(self, *args, **named)

    return read  # type: ignore[return-value]  # of the same signature
