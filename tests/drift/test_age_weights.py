"""Shares of ages are what the mixtures give the trees of each age, and move where a stream does."""

from __future__ import annotations

import numpy as np
import pytest

from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.drift.age_weights import cut_at_marks, exponents_of, shares_of_ages
from dmondrian.drift.drift_forest import DriftForest
from dmondrian.drift.member import MEMBER_KINDS, Ages
from dmondrian.drift.mixer import Expert, Mixer
from dmondrian.errors import ParameterError
from tests.drift.streams import switching
from tests.drift.test_drift_forest import forest_of


def slow_shares(forest: DriftForest) -> list[float]:
    """The sum over the ways from a tree through member, expert and guard, of their weights."""
    n_inputs, guard = 1 + forest.ages.n_octaves, forest.guard.mixer.weights
    total = [0.0] * n_inputs
    numbers = forest.tree_numbers.tolist()
    kinds = sorted({number % len(MEMBER_KINDS) for number in numbers})
    for e in range(len(guard.experts)):
        for g, group in enumerate([*kinds, "permanent", "everyone"]):
            weight = guard.experts[e] * guard.inputs[e, g]
            if group == "permanent":
                total[0] += weight
                continue
            some = [
                n
                for n in range(len(numbers))
                if group in ("everyone", numbers[n] % len(MEMBER_KINDS))
            ]
            for n in some:
                mixer = forest.members[n].mixer.weights
                for expert in range(len(mixer.experts)):
                    for i in range(n_inputs):
                        own = mixer.experts[expert] * mixer.inputs[expert, i]
                        total[i] += weight * own / len(some)
    for i in range(1, n_inputs):
        first = 2 ** (forest.ages.first + i - 1)
        if first > forest.guard.position or first < forest.blocks.delay:
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
    result = forest.age_shares()
    np.testing.assert_allclose(result, slow_shares(forest), rtol=1e-12)
    assert result.sum() == pytest.approx(1.0)
    assert (result >= 0.0).all()


def test_a_mixture_of_one_age_has_that_age_alone() -> None:
    kinds = np.array([0, 1])
    members, permanent = np.array([0.0, 0.0, 0.0, 1.0]), np.array([0.0, 0.0, 1.0, 0.0])
    for g in range(4):
        own = np.stack([exponents_of(Mixer(4, [Expert((g,), (0.7,), 0.0)]))] * 2)
        every = np.ones(4, np.bool_)
        assert shares_of_ages(own, kinds, members, every).tolist() == np.eye(4)[g].tolist()
        assert shares_of_ages(own, kinds, permanent, every).tolist() == [1.0, 0.0, 0.0, 0.0]
        # Where there is no such tree yet, or it is not mixed, that which never forgets stands in.
        wanted = np.eye(4)[g if g == 2 else 0].tolist()
        some = np.array([True, False, True, False])
        assert shares_of_ages(own, kinds, members, some).tolist() == wanted


def test_weights_below_zero_alone_leave_what_never_forgets() -> None:
    own = exponents_of(Mixer(4, [Expert((1,), (-1.0,), 0.0)]))[None]
    shares = shares_of_ages(own, np.array([0]), np.array([0.0, 0.0, 1.0]), np.ones(4, np.bool_))
    assert shares.tolist() == [1.0, 0.0, 0.0, 0.0]


def test_rows_are_cut_at_marks_wherever_they_begin() -> None:
    whole = {part.stop for part, is_mark in cut_at_marks(0, 9000) if is_mark}
    assert sorted(whole)[:3] == [256, 512, 768]
    found, position = set(), 0
    for n in (1, 255, 1, 0, 700, 8043):
        parts = list(cut_at_marks(position, n))
        assert sum(part.stop - part.start for part, _ in parts) == n
        found |= {position + part.stop for part, is_mark in parts if is_mark}
        position += n
    assert found == whole


@pytest.mark.parametrize("delay", [1, 100])
def test_what_is_noted_at_marks_does_not_depend_on_cuts(delay: int) -> None:
    X, y = switching(1100)
    w = np.random.default_rng(0).choice([0.0, 1.0, 2.0], 1100)
    whole, parts = forest_of(delay=delay), forest_of(delay=delay)
    whole.forecast_and_learn(X, y.astype(float), w)
    found = {}
    for start in range(0, 1100, 90):
        part = slice(start, start + 90)
        parts.forecast_and_learn(X[part], y[part].astype(float), w[part])
        found |= parts.exponents_at_marks
    assert sorted(found) == sorted(whole.exponents_at_marks) == [256, 512]
    for number, exponents in found.items():
        np.testing.assert_array_equal(exponents, whole.exponents_at_marks[number])


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


def test_forests_of_numbers_have_ages_too() -> None:
    draw = np.random.default_rng(0)
    X = draw.random((900, 3)).astype(np.float32)
    forest = AMFRegressor(n_estimators=3, drift="follow", random_state=0).fit(X, X[:, 0])
    result = forest.age_weights_
    assert result.sum() == pytest.approx(1.0)
    assert (result >= 0.0).all()
    assert result[1:6].sum() > 0.0  # of 32 to 1,024 rows
    assert not result[6:].any()  # there are no older ones


def test_forests_that_do_not_follow_have_no_ages() -> None:
    forest = AMFClassifier(n_estimators=1, random_state=0)
    assert not hasattr(forest, "age_weights_")
    forest.fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(AttributeError, match='drift="follow"'):
        _ = forest.age_weights_


def test_a_forest_whose_learning_was_interrupted_has_no_ages() -> None:
    forest = AMFClassifier(n_estimators=1, random_state=0, drift="follow")
    forest.fit([[0.0], [1.0]], [0, 1])
    forest.forest_.store.is_torn = True
    with pytest.raises(ParameterError, match="learning was interrupted"):
        _ = forest.age_weights_
