"""A cluster that the commands of a module share, so that not every one starts its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.conftest import worker_processes


@pytest.fixture(scope="module")
def shared() -> Iterator[str]:
    """Address of a scheduler with one worker process, which no test may hurt."""
    with worker_processes(1) as client:
        assert client.scheduler is not None
        yield client.scheduler.address
