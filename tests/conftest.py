"""What holds for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Fail a test that leaves another answer to Ctrl-C behind, for itself or by an import."""
    before = signal.getsignal(signal.SIGINT)
    yield
    after = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)
    assert after is before, f"SIGINT is left with {after}, was {before}"
