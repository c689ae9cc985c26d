"""Shares of ages are what the mixtures give the trees of each age, and move where a stream does."""

from __future__ import annotations

import numpy as np
import pytest

from dmondrian import AMFClassifier
from dmondrian.drift.age_weights import age_shares, exponents_of
from dmondrian.drift.drift_forest import DriftForest, make_guard
from dmondrian.drift.member import KINDS, Ages
from dmondrian.drift.mixer import Expert, Mixer
from tests.drift.streams import switching
from tests.drift.test_drift_forest import forest_of

AGES = Ages(5, 7)


def slow_shares(forest: DriftForest) -> list[float]:
    """The sum over the ways from a tree through member, expert and guard, of their weights."""
    n_inputs, guard = 1 + forest.ages.n_octaves, forest.guard
    total = [0.0] * n_inputs
    numbers = forest.tree_numbers.tolist()
    kinds = sorted({number % len(KINDS) for number in numbers})
    for e in range(len(guard.outer)):
        for g, group in enumerate([*kinds, "permanent", "everyone"]):
            weight = guard.outer[e] * guard.weights[e, g]
            if group == "permanent":
                total[0] += weight
                continue
            some = [
                n for n in range(len(numbers)) if group in ("everyone", numbers[n] % len(KINDS))
            ]
            for n in some:
                mixer = forest.members[n].mixer
                for expert in range(len(mixer.outer)):
                    for i in range(n_inputs):
                        own = mixer.outer[expert] * mixer.weights[expert, i]
                        total[i] += weight * own / len(some)
    for i in range(1, n_inputs):
        first = 2 ** (forest.ages.first + i - 1)
        if first > forest.position or first < forest.delay:
            total[0] += total[i]
            total[i] = 0.0
    clipped = [max(value, 0.0) for value in total]
    if not any(clipped):
        return [1.0, *clipped[1:]]
    return [value / sum(clipped) for value in clipped]


@pytest.mark.parametrize("delay", [1, 40])
@pytest.mark.parametrize("n", [10, 33, 100, 450])
def test_shares_are_sums_over_all_ways_through_the_mixtures(n: int, delay: int) -> None:
    X, y = switching(n)
    forest = forest_of(n_members=6, delay=delay)
    forest.forecast_and_learn(X, y.astype(float))
    told = forest.age_shares()
    np.testing.assert_allclose(told, slow_shares(forest), rtol=1e-12)
    assert told.sum() == pytest.approx(1.0)
    assert (told >= 0.0).all()


def test_a_mixture_of_one_age_has_that_age_alone() -> None:
    for g in range(4):
        mixer = Mixer(4, [Expert((g,), (0.7,), 0.0)])
        guard = make_guard(2)
        guard.weights[:] = 0.0
        guard.weights[0, -1] = 1.0  # all members
        own = np.stack([exponents_of(mixer)] * 2)
        shares = age_shares(own, [0, 1], guard, AGES, 1000)
        assert shares.tolist() == np.eye(4)[g].tolist()
        guard.weights[:] = 0.0
        guard.weights[0, -2] = 1.0  # permanent trees
        assert age_shares(own, [0, 1], guard, AGES, 1000).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_weights_below_zero_alone_leave_what_never_forgets() -> None:
    mixer = Mixer(4, [Expert((1,), (-1.0,), 0.0)])
    shares = age_shares(exponents_of(mixer)[None], [0], make_guard(1), AGES, 1000)
    assert shares.tolist() == [1.0, 0.0, 0.0, 0.0]


def test_weight_moves_to_young_trees_where_the_stream_changes() -> None:
    draw = np.random.default_rng(0)
    X = draw.random((3000, 3)).astype(np.float32)
    y = np.where(np.arange(3000) < 2048, X[:, 0] > 0.5, X[:, 1] > 0.5)
    forest = AMFClassifier(n_estimators=4, drift="follow", random_state=0)
    forest.partial_fit(X[:2048], y[:2048], classes=[False, True])
    before = forest.age_weights_
    forest.partial_fit(X[2048:2548], y[2048:2548])
    after = forest.age_weights_
    # Trees older than 512 rows know what was before: ages from 512 on, and those that never forget.
    assert before[[0, 5, 6]].sum() > 0.3
    assert after[[0, 5, 6]].sum() < 0.5 * before[[0, 5, 6]].sum()
    assert before.shape == (1 + Ages().n_octaves,)


def test_forests_that_do_not_follow_have_no_ages() -> None:
    forest = AMFClassifier(n_estimators=1, random_state=0)
    assert not hasattr(forest, "age_weights_")
    forest.fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(AttributeError, match='drift="follow"'):
        _ = forest.age_weights_
