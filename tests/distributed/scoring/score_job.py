"""A scoring job in processes of its own, to be killed: score_job.py MODEL DATA OUT LIMIT GO.

LIMIT is bytes for trees alone; 0 leaves the model whole. After its first file the job writes the
file GO-<its process> and waits until the file GO is there, so that it is not done before.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from distributed import Client, LocalCluster

from dmondrian.distributed import Progress, score
from dmondrian.distributed.cluster import progress
from dmondrian.distributed.scoring import memory_plan
from dmondrian.distributed.scoring import score as scoring


def main() -> None:
    model, data, out, limit, go = sys.argv[1:]
    end = time.monotonic() + 600.0

    def listen(reported: Progress) -> None:
        Path(f"{go}-{os.getpid()}").touch()
        while not Path(go).exists() and time.monotonic() < end:
            time.sleep(0.01)

    progress.ProgressReporter.interval = 0.0  # listen at every turn
    scoring.FILE_ROWS = 500
    if int(limit):
        memory_plan.PROCESS_BYTES, memory_plan.USABLE = 0, 1.0
        scoring.row_needs = lambda *_: memory_plan.Needs(0, 1)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as own,
        Client(own) as client,
    ):
        reported = score(
            model, data, out, client=client, progress=listen, memory_limit=int(limit) or None
        )
    assert reported["trees_sharded"] != (1 if int(limit) else 6)  # 0 where another job did it all


if __name__ == "__main__":
    main()
