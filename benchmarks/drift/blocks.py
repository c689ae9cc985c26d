"""Losses of a stream by blocks of rows, and what they say of the difference of two learners.

Log loss is in nats, of probabilities that sum to one, that of the true class no less than
`FLOOR`: a peer that gives 0 to a class pays as much for it as the smallest forecast of a mixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

FLOOR = 1e-5
BLOCK = 500  # rows
DIGITS = 5  # kept of a block's mean loss


class Difference(NamedTuple):
    """The mean difference over blocks, and the ends of its 95 % interval."""

    mean: float
    low: float
    high: float


def losses(y: np.ndarray, forecasts: np.ndarray) -> np.ndarray:
    """Return the log loss of each row, float64 [n], of forecasts [n, K] of classes y [n]."""
    return -np.log(np.clip(forecasts[np.arange(len(y)), y], FLOOR, 1.0))


def scores(y: np.ndarray, forecasts: np.ndarray) -> dict[str, object]:
    """Return log loss and accuracy over all rows, and the mean losses of the whole blocks."""
    own = losses(y, forecasts)
    n_blocks = len(y) // BLOCK
    by_block = own[: n_blocks * BLOCK].reshape(n_blocks, BLOCK).mean(axis=1)
    return {
        "log_loss": float(own.mean()),
        "accuracy": float((forecasts.argmax(axis=1) == y).mean()),
        "block_losses": np.round(by_block, DIGITS).tolist(),
    }


def difference(own: Sequence[float], other: Sequence[float]) -> Difference | None:
    """Return how far the losses of one learner are above those of another, block by block.

    The interval is Student's, of the paired differences. Blocks that follow a change are not
    draws of one law: it shows how far the difference is one of all parts of the stream, and not of
    a few. None with fewer than two blocks.
    """
    each = np.subtract(own, other)
    if len(each) < 2:
        return None
    mean, error = float(each.mean()), float(each.std(ddof=1)) / len(each) ** 0.5
    reach = float(student.ppf(0.975, len(each) - 1)) * error
    return Difference(mean, mean - reach, mean + reach)
