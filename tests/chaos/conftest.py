"""The data and patience of the tests of clusters."""

from __future__ import annotations

from tests.distributed.conftest import adult, patience

__all__ = ["adult", "patience"]
