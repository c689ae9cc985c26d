"""A training job in a process of its own, to be killed: job.py DATA RUN GO [ALGORITHM].

It waits after its first commit until the file GO is there, so that it is not done before.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dmondrian import AMFClassifier, MondrianForestClassifier, OnlineRandomForestClassifier
from dmondrian.distributed import Progress, train
from dmondrian.distributed.cluster import progress

FOLLOWING = {"drift": "follow", "delay": 64, "random_state": 7}
IN_PARTS = {"domain": "cube", "lifetime": 3.0, "random_state": 7}
BOUNDED = {"max_fringe": 40, "min_samples_leaf": 3.0, "random_state": 7}


def main() -> None:
    data, run, go, *algorithm = sys.argv[1:]
    end = time.monotonic() + 600.0

    def listen(reported: Progress) -> None:
        while reported.durable and not Path(go).exists() and time.monotonic() < end:
            time.sleep(0.01)

    progress.ProgressReporter.interval = 0.0  # listen at every turn
    estimator = AMFClassifier(  # as `forest()`
        6, alpha=0.25, charge_opening=True, feature_scales=None, calibrate=False, random_state=7
    )
    if algorithm == ["online-forest-classifier"]:
        estimator = OnlineRandomForestClassifier(4, **BOUNDED)
    if algorithm == ["following"]:
        estimator = AMFClassifier(5, **FOLLOWING)
    row_parts = None
    if algorithm == ["parts"]:
        estimator, row_parts = MondrianForestClassifier(2, **IN_PARTS), 3
    train(
        estimator, data, target="income", run=run, n_workers=1, threads=1,
        checkpoint_every="500 rows", progress=listen, row_parts=row_parts,
    )  # fmt: skip


if __name__ == "__main__":
    main()
