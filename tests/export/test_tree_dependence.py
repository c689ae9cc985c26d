"""How much features act together: in exact fractions, and where the answer is known."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dmondrian.export.tree_arrays import PlainTree
from dmondrian.export.tree_dependence import Factor, dependence_of, interaction_of


def stump_pair(values: list[float]) -> PlainTree:
    """Return a tree that splits on feature 0, then on feature 1, with four leaves of one row."""
    value = np.array([[0.0], [0.0], [0.0], *([v] for v in values)])
    links = np.array([1, 3, 5, -1, -1, -1, -1]), np.array([2, 4, 6, -1, -1, -1, -1])
    feature = np.array([0, 1, 1, -1, -1, -1, -1])
    threshold = np.array([0.5, 0.5, 0.5, 0, 0, 0, 0], np.float32)
    return PlainTree(*links, feature, threshold, value, np.array([4.0, 2, 2, 1, 1, 1, 1]))


ENDS = np.array([[0.0], [1.0]], np.float32)
EVEN = Factor([0], ENDS, np.ones(2)), Factor([1], ENDS, np.ones(2))


@pytest.mark.parametrize(
    ("values", "share", "size"),
    [
        ([0.0, 1.0, 2.0, 3.0], 0.0, 0.0),  # a sum
        ([0.0, 1.0, 1.0, 0.0], 1.0, 0.5),  # one or the other
        ([0.0, 0.0, 0.0, 1.0], 1 / 3, 0.25),  # both
        ([2.0, 2.0, 2.0, 2.0], 0.0, 0.0),  # nothing
    ],
)
def test_known_effects(values: list[float], share: float, size: float) -> None:
    assert interaction_of([stump_pair(values)], *EVEN) == pytest.approx((share, size))


def test_it_is_the_part_of_the_variance_that_no_sum_has() -> None:
    rng = np.random.default_rng(0)
    trees = [stump_pair(rng.integers(0, 9, 4).tolist()) for _ in range(3)]
    weights = rng.integers(1, 5, 2).astype(float), rng.integers(1, 5, 3).astype(float)
    first = Factor([0], ENDS, weights[0])
    second = Factor([1], np.array([[0.2], [0.5], [0.9]], np.float32), weights[1])
    joint = [
        [
            Fraction(float(dependence_of(trees, [0, 1], np.array([[*a, *b]], np.float32))[0, 0]))
            for b in second.values.tolist()
        ]
        for a in first.values.tolist()
    ]
    p, q = ([Fraction(int(w), int(each.sum())) for w in each] for each in weights)
    of_first = [sum(q[j] * row[j] for j in range(3)) for row in joint]
    of_second = [sum(p[i] * joint[i][j] for i in range(2)) for j in range(3)]
    mean = sum(p[i] * of_first[i] for i in range(2))
    cells = [(i, j) for i in range(2) for j in range(3)]
    whole = sum(p[i] * q[j] * (joint[i][j] - mean) ** 2 for i, j in cells)
    own = sum(
        p[i] * q[j] * (joint[i][j] - of_first[i] - of_second[j] + mean) ** 2 for i, j in cells
    )
    assert own > 0
    share, size = interaction_of(trees, first, second)
    assert share == pytest.approx(float(own / whole), rel=1e-12)
    assert size == pytest.approx(float(own) ** 0.5, rel=1e-12)
    assert interaction_of(trees, second, first) == pytest.approx((share, size), rel=1e-12)
