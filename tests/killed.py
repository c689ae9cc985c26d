"""A process that is killed between two objects of a store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from dmondrian.store import Store


class KilledError(BaseException):
    """The process is gone."""


def kill_at(patch: pytest.MonkeyPatch, n: int) -> None:
    """Have this thread end before its n-th object is written or deleted; it does no more then."""
    left, own, delete = [n], threading.current_thread(), Store.delete

    def count() -> None:
        if threading.current_thread() is own:
            if left[0] <= 0:
                raise KilledError
            left[0] -= 1

    def counted(original: Callable[..., None]) -> Callable[..., None]:
        def put(store: Store, name: str, data: bytes) -> None:
            count()
            original(store, name, data)

        return put

    def delete_one_by_one(store: Store, names: Any) -> None:
        for name in [names] if isinstance(names, str) else list(names):
            count()
            delete(store, name)

    for method in ("put", "put_new"):
        patch.setattr(Store, method, counted(getattr(Store, method)))
    patch.setattr(Store, "delete", delete_one_by_one)
