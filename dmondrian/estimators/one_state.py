"""Answers of one state: what a method reads of an estimator together, no thread changes meanwhile.

Relies on :class:`dmondrian.ensemble.threads.Turns`, of which each estimator has one. Promises that
what is marked here answers as the forest was before or after some row of what other threads learn,
and as one fit left the estimator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from dmondrian.ensemble.threads import reading_all

_Method = TypeVar("_Method", bound=Callable[..., Any])


def one_state(*estimators: Any) -> AbstractContextManager[None]:
    """Return a context in which other threads leave estimators as they are."""
    if len(estimators) == 1:
        kept: AbstractContextManager[None] = estimators[0]._turns.reading()
        return kept
    turns: Sequence[Any] = [estimator._turns for estimator in estimators]
    return reading_all(turns)


def in_one_state(method: _Method) -> _Method:
    """Let a method see an estimator in one state."""

    @functools.wraps(method)
    def read(self: Any, *args: Any, **named: Any) -> Any:
        with self._turns.reading():
            return method(self, *args, **named)

    return read  # type: ignore[return-value]  # of the same signature


def of_one_fit(method: _Method) -> _Method:
    """Let a method see an estimator as one fit left it, where it asks the forest no more than once.

    That costs less than to keep the state: the method is called again where another fit ended
    meanwhile.
    """

    @functools.wraps(method)
    def read(self: Any, *args: Any, **named: Any) -> Any:
        own = self.__dict__
        forest = own.get("forest_")
        try:
            told = method(self, *args, **named)
        except Exception:
            if own.get("forest_") is forest:
                raise
        else:
            if own.get("forest_") is forest:
                return told
        with self._turns.reading():
            return method(self, *args, **named)

    return read  # type: ignore[return-value]  # likewise
