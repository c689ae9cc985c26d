"""Members as the predictor of a part of a model: sums of what they forecast, to be gone on from.

Relies on :mod:`dmondrian.drift.members`. Promises sums that do not depend, to the last bit, on how
members are cut into groups.

Shapes: n rows, d features, k outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dmondrian.drift.guard import sum_shares
from dmondrian.drift.members import Members
from dmondrian.ensemble.sums.prediction_sums import Sums, sums_to_add_to


class MemberSums:
    """Members that predict for the guard of their forest, which others hold.

    Members of a part of a run, which have no guard, are asked alone, and know all labels from now
    on: those that wait are learned.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        if members.guard is None:
            members.learn_waiting()

    def check_domain(self, X: np.ndarray, names: Sequence[str] | None = None) -> None:
        """Refuse no row: trees split the range of their rows."""
        self._members.check_domain(X, names)

    def predict_sums(
        self,
        X: np.ndarray,
        n_threads: int = 1,
        spread: bool = False,
        distance: bool = False,
        onto: Sums | None = None,
        labels: bool = False,
    ) -> Sums:
        """Sum what members forecast, in the order of their numbers, and what the guard needs.

        Parameters
        ----------
        X : float32 [n, d], C-contiguous
        n_threads : int
        spread : bool
            Also sum squares of the members' forecasts.
        distance : bool
            Also sum the extensions to the leaves' boxes of the trees that never forget, in the
            columns that these see.
        onto : Sums, optional
            Sums over members with lower numbers, to go on from.
        labels : bool
            Not asked for: the guard knows the variance of labels.
        """
        members = self._members.caught_up(n_threads)
        answers = members.share_each(X, n_threads)
        shape, is_new = answers.of_members.shape[1:], onto is None
        total = sums_to_add_to(onto and onto.total, shape, is_new)
        square = sums_to_add_to(onto and onto.square, shape, is_new) if spread else None
        for each in answers.of_members:
            total += each
            if square is not None:
                square += each * each
        far = None
        if distance:
            none = Sums(np.zeros(shape), None, onto and onto.distance, 0)
            far = members.predictor.predict_sums(
                members.for_trees(members.prepare(X)), n_threads, distance=True,
                onto=None if is_new else none,
            ).distance  # fmt: skip
        shares = (
            answers.shares
            if onto is None
            else sum_shares([dict(onto.shares or {}), answers.shares])
        )
        n_members = len(answers.of_members) + (0 if onto is None else onto.n_trees)
        return Sums(total, square, far, n_members, shares=shares)
