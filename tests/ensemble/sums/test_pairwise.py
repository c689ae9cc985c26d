"""Sums in pairs: the same to the last bit however trees are cut into shards."""

from __future__ import annotations

import numpy as np
import pytest

from dmondrian.ensemble.sums.pairwise import joined, partial_sums, total


@pytest.mark.parametrize(("first", "n"), [(0, 10), (3, 17), (5, 1), (7, 33)])
def test_pairwise_sums_do_not_know_how_trees_were_cut(first: int, n: int) -> None:
    draw = np.random.default_rng(n)
    answers = [draw.normal(size=4) * 10.0 ** draw.integers(-8, 8) for _ in range(n)]
    wanted = total(partial_sums(range(first, first + n), answers))
    assert np.allclose(wanted, np.sum(answers, axis=0))
    for n_shards in range(1, n + 1):
        cut = np.array_split(np.arange(n), n_shards)
        parts = [partial_sums((first + t).tolist(), [answers[i] for i in t]) for t in cut]
        draw.shuffle(parts)  # type: ignore[arg-type]  # a list of dicts is shuffled as any other
        assert (total(joined(parts)) == wanted).all()
