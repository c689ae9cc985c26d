"""Time to learn rows, and to choose the settings that are left to them."""

from __future__ import annotations

from history.rows import SETS, SIZES, Timed, bring_memory, learn, left_open, load, settled


class Learning(Timed):
    """The rows of a set in batches, by a forest whose settings are given."""

    params = SETS
    param_names = ("rows",)

    def setup(self, name: str) -> None:
        self.dataset = load(name)
        self.forest = settled(self.dataset)
        bring_memory()

    def time_batches(self, name: str) -> None:
        learn(self.forest, self.dataset)


class Choosing(Timed):
    """The first rows of a forest as it is by default, up to the row at which it has chosen.

    Most of it is the choice of feature scales. The choice looks at the first 4,096 rows, and is
    made when one more has come.
    """

    params = ("synthetic_d20", "adult")
    param_names = ("rows",)
    repeat = (2, 5, 5.0)  # seconds each

    def setup(self, name: str) -> None:
        dataset = load(name)
        n = SIZES.warmup + 1
        self.rows = dataset.X_train[:n], dataset.y_train[:n]
        self.forest = left_open(dataset)
        bring_memory()

    def time_defaults(self, name: str) -> None:
        self.forest.fit(*self.rows)
