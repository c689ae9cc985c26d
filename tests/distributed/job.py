"""A training job in a process of its own, to be killed: job.py DATA RUN."""

from __future__ import annotations

import sys

from dmondrian import AMFClassifier
from dmondrian.distributed import train


def main() -> None:
    data, run = sys.argv[1:]
    estimator = AMFClassifier(n_estimators=6, random_state=7)
    train(
        estimator, data, target="income", run=run, n_workers=2, threads=1,
        checkpoint_every="500 rows",
    )  # fmt: skip


if __name__ == "__main__":
    main()
