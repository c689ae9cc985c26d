"""What trained forests take to answer, to learn one by one, and in memory and on disk.

Each commit trains and stores its own forests, once in a round: formats differ.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from history.rows import SETS, SIZES, Timed, bring_memory, learn, load, settled

import dmondrian

Bytes = dict[str, dict[str, float]]  # by set, then by where, per node


def stored(name: str) -> Any:
    """Return a forest as it was stored in the folder that asv starts all these benchmarks in."""
    return dmondrian.load(f"{name}.model")


class Trained:
    """Forests of all sets, stored in a folder of asv's; how many bytes they take."""

    def setup_cache(self) -> Bytes:
        taken = {}
        for name in SETS:
            forest = settled(load(name))
            learn(forest, load(name))
            folder = Path(f"{name}.model")
            grown = forest.forest_
            taken[name] = {"memory": grown.n_bytes / grown.n_nodes}
            forest.save(folder)
            files = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            taken[name]["disk"] = files / grown.n_nodes
        return taken


class NodeSize(Trained):
    """Bytes per node, spare memory included, and on disk all that is stored beside nodes."""

    params = (SETS, ("memory", "disk"))
    param_names = ("rows", "where")
    unit = "bytes"

    def track_bytes_per_node(self, taken: Bytes, name: str, where: str) -> float:
        return taken[name][where]


class Batches(Timed, Trained):
    """Probabilities, or labels, of rows that were held out: few by trees as they learn, or all."""

    params = (SETS, ("as they learn", "frozen"))
    param_names = ("rows", "trees")

    def setup(self, taken: Bytes, name: str, trees: str) -> None:
        self.forest = stored(name)
        self.ask = getattr(self.forest, "predict_proba", self.forest.predict)
        self.X = load(name).X_test
        if trees == "frozen":
            if not hasattr(self.forest.forest_, "freeze"):
                # asv's way to tell that there is nothing to measure: a table shows n/a
                raise NotImplementedError("trees of this commit are not frozen")
            self.forest.forest_.freeze()
            self.ask(self.X)  # once, as it is in memory that was not touched before
        else:
            self.X = self.X[: SIZES.few]

    def time_batch(self, taken: Bytes, name: str, trees: str) -> None:
        self.ask(self.X)


class Singles(Timed, Trained):
    """One row after the other, through the estimator: the time of a thousand calls."""

    def setup(self, taken: Bytes) -> None:
        self.dataset = load(SETS[0])
        self.forest = stored(SETS[0])
        bring_memory()

    def time_learned(self, taken: Bytes) -> None:
        X, y, learn = self.dataset.X_test, self.dataset.y_test, self.forest.partial_fit
        for r in range(SIZES.singles):
            learn(X[r : r + 1], y[r : r + 1])

    def time_predicted(self, taken: Bytes) -> None:
        """Of a forest at rest, which freezes its trees on the way."""
        X, ask = self.dataset.X_test, self.forest.predict_proba
        for r in range(SIZES.singles):
            ask(X[r : r + 1])

    def time_predicted_then_learned(self, taken: Bytes) -> None:
        X, y, forest = self.dataset.X_test, self.dataset.y_test, self.forest
        for r in range(SIZES.singles):
            forest.predict_proba(X[r : r + 1])
            forest.partial_fit(X[r : r + 1], y[r : r + 1])


class Storage(Timed, Trained):
    """A forest is saved to an empty folder, and loaded; a wait for the disk is not in it."""

    params = SETS
    param_names = ("rows",)

    def setup(self, taken: Bytes, name: str) -> None:
        self.forest = stored(name)
        self.folder = tempfile.TemporaryDirectory()

    def teardown(self, taken: Bytes, name: str) -> None:
        self.folder.cleanup()

    def time_save(self, taken: Bytes, name: str) -> None:
        self.forest.save(Path(self.folder.name) / "model")

    def time_load(self, taken: Bytes, name: str) -> None:
        stored(name)
