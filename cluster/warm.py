"""Compile the kernels that training, scoring and evaluating use, into the image's cache.

`python warm.py` runs small jobs of every algorithm on worker processes of this machine, through the
public API alone; `python warm.py --check` runs them again and fails when anything had to be
compiled. Relies on DMONDRIAN_CACHE_DIR as the library does. Numba's cache is keyed by the
processor: set NUMBA_CPU_NAME and NUMBA_CPU_FEATURES where other machines will use it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.distributed import evaluate, score, train

ROWS = 6000  # more than the rows from which open settings are chosen


def main() -> int:
    """Run the jobs; return the exit code."""
    cache = Path(os.environ["DMONDRIAN_CACHE_DIR"])
    before = compiled(cache)
    with tempfile.TemporaryDirectory() as folder:
        data = write_rows(Path(folder))
        for number, (estimator, target) in enumerate(forests()):
            run = f"{folder}/run-{number}"
            train(
                estimator, data, target=target, run=run, n_workers=1, threads=1,
                exclude=[{"label": "value", "value": "label"}[target]],
            )  # fmt: skip
            score(run, data, f"{folder}/scores-{number}", n_workers=1, threads=1)
            evaluate(run, data, n_workers=1, threads=1)
    new = compiled(cache) - before
    sys.stdout.write(f"{len(new)} files compiled, {len(before)} were there in {cache}\n")
    return int("--check" in sys.argv[1:] and bool(new))


def write_rows(folder: Path) -> str:
    """Write rows with both kinds of target as Parquet."""
    random = np.random.default_rng(0)
    X = random.random((ROWS, 2))
    labels = np.where(X[:, 0] > X[:, 1], "right", "left")
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "label": labels, "value": X.sum(axis=1)})
    file = folder / "rows.parquet"
    pq.write_table(table, file)
    return str(file)


def forests() -> list[tuple[AMFClassifier | AMFRegressor, str]]:
    """Return forests of every specialisation of the kernels, and their targets."""
    return [
        (kind(n_estimators=2, random_state=0, use_aggregation=is_mixed), target)
        for kind, target in ((AMFClassifier, "label"), (AMFRegressor, "value"))
        for is_mixed in (True, False)
    ]


def compiled(cache: Path) -> set[str]:
    """List the files of Numba's cache."""
    return {str(file) for file in cache.rglob("*.nb[ic]")}


if __name__ == "__main__":
    sys.exit(main())
