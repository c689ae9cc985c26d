"""Entropies that stand in a table."""

from __future__ import annotations

import numpy as np

from dmondrian.stats.impurity import _BITS, _SCALE, ENTROPY, concave, rise
from dmondrian.tree.keyed_random import log


def test_entropies_in_the_table_are_those_that_are_computed() -> None:
    own = [np.rint(n * log(n) * _SCALE) if n > 0.0 else 0.0 for n in map(float, range(len(_BITS)))]
    assert own == list(_BITS)
    after = float(len(_BITS))
    beyond = np.rint(after * log(after) * _SCALE)
    assert concave(ENTROPY, after) == beyond
    assert rise(ENTROPY, after - 1.0, 1.0) == beyond - own[-1]


def test_no_entropy_in_the_table_depends_on_a_last_bit() -> None:
    n = np.arange(1.0, len(_BITS))
    exact = n * np.log(n) * _SCALE
    from_half = np.abs(exact % 1.0 - 0.5)
    assert (from_half > 100.0 * np.spacing(exact)).all()
