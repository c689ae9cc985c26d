"""Start a peer's worker under its own interpreter and collect what it measures.

Relies on an environment built by `benchmarks.peers.build` for peers that cannot share this
package's. Promises one thread per worker (through the environment variables of the thread pools)
and that predictions and times come from the same run.

As a script it runs one peer on one npz file and prints JSON::

    python -m benchmarks.peers.runner onelearn rows.npz --peers <cache folder>
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import metrics
from benchmarks.datasets import Dataset

WORKER = Path(__file__).with_name("worker.py")
ROOT = Path(__file__).parents[2]
# Which environment a peer lives in; the others run in this one.
ENVIRONMENTS = {
    "onelearn": "onelearn",
    "river_amf": "river",
    "river_arf": "river",
    "river_hoeffding": "river",
    "river_hat": "river",
    "river_srp": "river",
    "capymoa_arf": "capymoa",
    "capymoa_leveraging": "capymoa",
    "capymoa_srp": "capymoa",
    "lightgbm": "lightgbm",
    "xgboost": "xgboost",
    "catboost": "catboost",
    "scikit_garden": "scikit-garden",
}
OWN = ("dmondrian", "mondrian_forest", "online_forest")
# Of CapyMOA's machine: one thread collects garbage, and what it leaves is bounded.
JAVA = {"CAPYMOA_JVM_ARGS": "-Xmx2g -Xss10M -XX:+UseSerialGC"}
POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
ONE_THREAD = dict.fromkeys(POOLS, "1")


class PeerFailedError(RuntimeError):
    """A worker ended without an answer; its last words are in the message."""


def interpreter(peer: str, peers: str | Path | None) -> Path | None:
    """Python of the peer's environment, or None when it has not been built."""
    if peer not in ENVIRONMENTS:
        return Path(sys.executable)
    if peers is None:
        return None
    python = Path(peers) / ENVIRONMENTS[peer] / "bin" / "python"
    return python if python.exists() else None


def save_input(dataset: Dataset, path: Path) -> None:
    """Write the npz that a worker reads."""
    np.savez(
        path,
        X_train=dataset.X_train,
        y_train=dataset.y_train,
        X_test=dataset.X_test,
        y_test=dataset.y_test,
        n_classes=dataset.n_classes,
    )


class Worker:
    """A warm worker: `measure` as often as wanted, `predictions` at the end.

    Returns once the worker has compiled what it needs and waits, so that several workers can take
    turns without disturbing each other.
    """

    def __init__(self, python: Path, peer: str, rows: Path, output: Path, options: list[str]):
        self.peer = peer
        self.output = output
        self.log = output.with_suffix(".log").open("w+")
        paths = [str(ROOT)] if peer in OWN else []
        paths += [p for p in [os.environ.get("PYTHONPATH")] if p and peer not in ENVIRONMENTS]
        self.process = subprocess.Popen(
            [str(python), str(WORKER), peer, str(rows), str(output), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **ONE_THREAD, **JAVA, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self.warm_seconds = self._answer()["warm_seconds"]

    def measure(self) -> dict[str, float]:
        """Fit and predict once more; times in seconds."""
        return self._go("go\n")

    def score(self, rows: Path, seed: int) -> dict[str, float]:
        """Fit to the rows of another npz file and predict; metrics and times in seconds."""
        wanted = {"input": str(rows), "output": str(self.output), "seed": seed}
        times = self._go(f"go {json.dumps(wanted)}\n")
        data, measure = np.load(rows), metrics.regression
        if int(data["n_classes"]):
            measure = metrics.classification
        return {**measure(data["y_test"], np.load(self.output)["predictions"]), **times}

    def _go(self, line: str) -> dict[str, float]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
        except BrokenPipeError:
            self._fail()
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self._fail()
        return json.loads(line)

    def predictions(self) -> dict[str, np.ndarray]:
        """End the worker and return the predictions of its last run.

        "predictions" of the test rows; with ``--progressive`` also "before", of the last training
        rows before they were learned, and with ``--delay`` of all of them.
        """
        assert self.process.stdin is not None
        self.process.stdin.close()
        if self.process.wait():
            self._fail()
        return dict(np.load(self.output))

    def stop(self) -> None:
        """End the worker whatever it is doing."""
        self.process.kill()
        self.process.wait()
        self.log.close()

    def _fail(self) -> None:
        self.process.wait()
        self.log.seek(0)
        raise PeerFailedError(f"{self.peer} ended with no answer:\n{self.log.read()[-2000:]}")


@contextmanager
def started(
    peer: str, rows: Path, *, peers: str | Path | None, trees: int, **options: Any
) -> Iterator[Worker]:
    """Yield a worker for the length of a ``with`` block; `options` are the worker's own flags."""
    python = interpreter(peer, peers)
    if python is None:
        raise PeerFailedError(f"no environment for {peer}: build it with benchmarks.peers.build")
    flags = ["--trees", str(trees)]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            flags.append(flag)
        elif value is not None:
            flags += [flag, str(value)]
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(python, peer, rows, Path(folder) / "predictions.npz", flags)
        try:
            yield worker
        finally:
            worker.stop()


def score(peer: str, rows: Path, *, peers: str | Path | None = None, **options: Any) -> dict:
    """Run a peer once on the rows of an npz file; its metrics and times."""
    data = np.load(rows)
    with started(peer, rows, peers=peers, **options) as worker:
        times = worker.measure()
        reported = worker.predictions()
    measure = metrics.classification if int(data["n_classes"]) else metrics.regression
    found = measure(data["y_test"][: len(reported["predictions"])], reported["predictions"])
    if "before" in reported:
        late = measure(data["y_train"][-len(reported["before"]) :], reported["before"])
        found |= {f"progressive_{name}": value for name, value in late.items()}
    return {**found, **times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer")
    parser.add_argument("rows", type=Path, help="npz: X_train, y_train, X_test, y_test, n_classes")
    parser.add_argument("--peers", help="folder of the peers' environments")
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = score(args.peer, args.rows, peers=args.peers, trees=args.trees, seed=args.seed)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
