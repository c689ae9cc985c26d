"""A job with lags in a process of its own, killed at an object: lagged_job.py DATA RUN N."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from dmondrian.data import lagged_files
from dmondrian.distributed import train
from dmondrian.store import Store
from tests.distributed.training.test_lagged_runs import FILE_ROWS, GIVEN, small_forest


def main() -> None:
    data, run, n = sys.argv[1:]
    lagged_files.FILE_ROWS = FILE_ROWS
    left, put = int(n), Store._put

    def dying(store: Store, name: str, *arguments: Any) -> None:
        nonlocal left
        left -= name.startswith(("0", "_s"))
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        put(store, name, *arguments)

    Store._put = dying  # type: ignore[method-assign]  # it ends this process
    train(small_forest(), data, run=run, n_workers=1, threads=1, **GIVEN)


if __name__ == "__main__":
    main()
