"""Four comparisons at once say what one after the other would."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from dmondrian.core.lanes import LANES, first_apart


@numba.njit
def compiled(words, row, x):  # type: ignore[no-untyped-def]  # compiled for what it is given
    return first_apart(words, row, x)


def one_by_one(words: np.ndarray, row: int, x: np.ndarray) -> int:
    features, thresholds, sides = np.split(words[row, : 2 * LANES + 1], [LANES, 2 * LANES])
    for k in range(LANES):
        is_right = x[features[k]] > thresholds.view(np.float32)[k]
        if is_right != bool(sides[0] >> k & 1):
            return k
    return LANES


@pytest.mark.parametrize("width", [9, 16])
def test_the_first_condition_that_parts(width: int) -> None:
    rng = np.random.default_rng(width)
    words = np.zeros((500, width), np.int32)
    words[:, :LANES] = rng.integers(0, 7, (500, LANES))
    few = np.array([-np.inf, -1.5, -0.0, 0.0, 1e-45, 1.5, np.inf], np.float32)  # ties, subnormals
    words[:, LANES : 2 * LANES] = rng.choice(few, (500, LANES)).view(np.int32)
    words[:, 2 * LANES] = rng.integers(0, 16, 500)
    found = []
    for row in range(500):
        x = rng.choice(few, 7).astype(np.float32)
        found.append(one_by_one(words, row, x))
        assert compiled(words, np.uint64(row), x) == found[-1]
        assert first_apart(words, row, x) == found[-1]
    assert set(found) == set(range(LANES + 1))
