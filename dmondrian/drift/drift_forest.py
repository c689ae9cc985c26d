"""A forest that follows the stream: members, and a guard over all.

Relies on :mod:`dmondrian.drift.members` and :mod:`dmondrian.drift.guard`. Promises that the state
is a pure function of the parameters, the seed, the numbers of the members and the rows in order,
whatever the cuts between calls and the number of threads, and equal to that of members which
learned the rows in shards, with a guard that got the sum of their shares.

Shapes: n rows, d features, k outputs: K classes, or mean and variance of the label.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import numpy as np

from dmondrian.drift.drift_state import FOLLOWING, check_alike, has_guard
from dmondrian.drift.guard import Guard, Shares
from dmondrian.drift.members import Members
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.forest.state import FieldsOfTrees
from dmondrian.tree import nodes


class DriftForest(Members):
    """Members that follow a stream, and their guard.

    Parameters
    ----------
    parameters, numbers, trees
        As of :class:`dmondrian.drift.members.Members`.

    Attributes
    ----------
    guard : Guard
    """

    guard: Guard

    def __init__(
        self,
        parameters: ForestParameters,
        numbers: Iterable[int],
        trees: list[nodes.Tree] | None = None,
    ) -> None:
        super().__init__(parameters, numbers, trees)
        self.guard = Guard(parameters, self.tree_numbers.tolist())

    @classmethod
    def of(cls, members: Members, guard: Any) -> DriftForest:
        """Return the forest of members, which will learn no more, and the JSON of their guard.

        Raises
        ------
        CorruptError
            If it is not that of a guard of such members, after as many rows.
        """
        made = cls(members.parameters, [])
        made.predictor, made.members = members.predictor, members.members
        made.position, made.waiting = members.position, members.waiting
        made.boosted, made.blocks = members.boosted, members.blocks
        made.scaled = members.scaled
        made.guard = Guard(members.parameters, members.tree_numbers.tolist())
        made.guard.load_json(guard, made.position + len(made.waiting.y))
        check_alike(made)
        return made

    @classmethod
    def join(cls, forests: Any) -> Members:
        """Refuse: members of other forests learned other weights beside theirs."""
        raise ParameterError(
            "forests that follow a stream cannot be joined: their guards learned from the "
            "forecasts of their own members alone. Fit one forest of more members."
        )

    def predict_mixture(self, X: np.ndarray | PreparedRows, n_threads: int = 1) -> np.ndarray:
        """Return the outputs, float64 [n, k], of rows X float32 [n, d].

        Rows that wait for their block are not known yet, unless the forest ``labels_are_known``.

        Raises
        ------
        ParameterError
            If no row was learned.
        """
        forest = self.caught_up(n_threads)
        return forest.guard.mix(forest.share(X, n_threads))

    def learn_waiting(self, n_threads: int = 1) -> None:
        """Let trees and guard learn the rows that wait; see :class:`Members`."""
        super().learn_waiting(n_threads)
        self.guard.learn_waiting()

    def age_shares(self) -> np.ndarray:
        """Return the share of each age in the forecasts, float64 [G], sum 1.

        The first is of the trees that never forget, the next of the youngest octave; the last of
        scaled trees, and of boosted sets, where there are such.
        """
        return self.guard.age_shares(self.input_exponents(), self.position)

    def predict_proba(self, X: np.ndarray | PreparedRows, n_threads: int = 1) -> np.ndarray:
        """Return class probabilities, float64 [n, K]; see :meth:`predict_mixture`."""
        return self.predict_mixture(X, n_threads)

    def forecast_and_learn(
        self,
        X: np.ndarray | PreparedRows,
        y: np.ndarray,
        w: np.ndarray | None = None,
        n_threads: int = 1,
        times: np.ndarray | None = None,
    ) -> np.ndarray:
        """Learn rows in order; return the forecasts that were made of them before.

        Parameters
        ----------
        X, y, w, n_threads
            As in :meth:`dmondrian.ensemble.ensemble.Ensemble.update`.
        times
            As in :meth:`dmondrian.drift.members.Members.share_and_learn`.

        Returns
        -------
        float64 [n', k]
            Rows of weight 0 are left out.
        """
        self.check_sizes(y, w)
        self.check_times(w, times, len(y))
        forecasts = list(self._follow((X, y, w), n_threads, nullcontext, times))
        return (
            np.concatenate(forecasts) if forecasts else np.empty((0, self.label_policies.n_outputs))
        )

    def _finish_shares(
        self, shares: Shares, y: np.ndarray, w: np.ndarray, times: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the forest's forecasts of rows; let the guard learn their labels ``y``."""
        return self.guard.mix_and_step(shares, y, w, times)


def forest_from_state(
    header: dict[str, Any],
    trees: FieldsOfTrees,
    other_shard: Forest | None = None,
    with_boxes: bool = True,
) -> Forest:
    """Return the forest of a state, one that follows a stream or another, checked.

    The state of a shard of a run that follows the stream gives members without a guard.
    ``other_shard`` and ``with_boxes`` as in :meth:`dmondrian.forest.forest.Forest.from_state`.

    Raises
    ------
    CorruptError
        If the state is not one that a forest can have.
    """
    form = header.get("format") if isinstance(header, dict) else None
    if type(form) is not int or form != FOLLOWING:
        return Forest.from_state(header, trees, other_shard, with_boxes)
    kind = DriftForest if has_guard(header) else Members
    return kind.from_state(header, trees, other_shard, with_boxes)


def empty_shard(parameters: ForestParameters, numbers: Iterable[int]) -> Forest:
    """Return the trees of a shard that has learned no row."""
    return (Members if parameters.follows_stream else Forest)(parameters, numbers)
