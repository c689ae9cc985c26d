"""The memory of this machine, which bounds what is read."""

from __future__ import annotations

import os

import psutil
import pytest

from dmondrian._memory_limit import usable_bytes


def test_it_is_at_most_that_of_the_machine() -> None:
    assert 0 < usable_bytes() <= psutil.virtual_memory().total


def test_it_is_the_same_where_the_system_has_no_sysconf(monkeypatch: pytest.MonkeyPatch) -> None:
    known = usable_bytes()
    monkeypatch.delattr(os, "sysconf")  # as on Windows
    assert usable_bytes() == known
