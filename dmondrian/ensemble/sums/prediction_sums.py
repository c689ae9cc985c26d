"""Sums of trees' predictions, which can be gone on from.

Relies on nothing. Promises that sums which go on are to the last bit those made at once.

Shapes: n rows, k outputs, L lifetimes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dmondrian.errors import ParameterError


class Sums(NamedTuple):
    """Predictions summed over trees in the order of their numbers."""

    total: np.ndarray  # float64 [n, k], or [L, n, k] where lifetimes were asked for
    square: np.ndarray | None  # same shape, sums of second moments about the origin
    distance: np.ndarray | None  # float64 [n], sum of extensions to the leaf's box
    n_trees: int
    origin: float = 0.0  # near the labels, so that a large common shift costs no digits
    shares: Mapping[int, np.ndarray] | None = None  # more sums, of a forest that has a guard

    @property
    def mean(self) -> np.ndarray:
        """Mean over trees, float64 of the shape of the sums."""
        return self.total / self.n_trees

    @property
    def variance(self) -> np.ndarray:
        """Variance by the law of total variance, float64 of the shape of the sums."""
        assert self.square is not None  # asked for
        center = self.mean - self.origin
        return np.maximum(self.square / self.n_trees - center * center, 0.0)

    def of(self, rows: slice) -> Sums:
        """Return the sums of some rows, of sums at one lifetime."""
        square = None if self.square is None else self.square[rows]
        distance = None if self.distance is None else self.distance[rows]
        shares = None if self.shares is None else {k: v[rows] for k, v in self.shares.items()}
        return self._replace(
            total=self.total[rows], square=square, distance=distance, shares=shares
        )

    def beside(self) -> Sums:
        """Return two sums in one, [n, 2]: of a mean, and of second moments."""
        return self._replace(total=np.concatenate([self.total, self.square], axis=1), square=None)

    def apart(self) -> Sums:
        """Return the sums that are :meth:`beside` each other, both [n, 1]."""
        return self._replace(total=self.total[:, :1].copy(), square=self.total[:, 1:].copy())


def sums_to_add_to(sums: np.ndarray | None, shape: tuple[int, ...], is_new: bool) -> np.ndarray:
    """Return zeros, or a copy of sums that trees may be added to."""
    if is_new:
        return np.zeros(shape)
    if sums is None or len(sums) != shape[0] or sums.size != np.prod(shape):
        shape_before = None if sums is None else sums.shape
        raise ParameterError(f"sums to go on from should have shape {shape}, got {shape_before}")
    return np.array(sums, np.float64, order="C").reshape(shape)


def joined(parts: Sequence[Sums]) -> Sums:
    """Return sums of consecutive rows, over the same trees, as one."""
    if len(parts) == 1:
        return parts[0]
    squares = [part.square for part in parts if part.square is not None]
    distances = [part.distance for part in parts if part.distance is not None]
    shares = [part.shares for part in parts if part.shares is not None]
    keys = shares[0] if shares else ()
    joint = {
        key: np.concatenate([shares_of_part[key] for shares_of_part in shares]) for key in keys
    }
    return parts[0]._replace(
        shares=joint if shares else None,
        total=np.concatenate([part.total for part in parts]),
        square=np.concatenate(squares) if squares else None,
        distance=np.concatenate(distances) if distances else None,
    )


def stacked(stages: list[Sums]) -> Sums:
    """Return the sums of one lifetime each as those of all."""
    total = np.concatenate([stage.total for stage in stages])
    squares = [stage.square for stage in stages if stage.square is not None]
    last = stages[-1]
    return last._replace(total=total, square=np.concatenate(squares) if squares else None)
