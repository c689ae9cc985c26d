"""A forest that follows a stream is a pure function of its rows in order, and honest about them."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import signal
import threading
from typing import Any

import numpy as np
import pytest

from dmondrian import AMFClassifier
from dmondrian.boosting.boosted_set import BoostedSet
from dmondrian.checkpoint import decode_forest, encode_forest
from dmondrian.drift import member as member_module
from dmondrian.drift import members as members_module
from dmondrian.drift.drift_forest import DriftForest, forest_from_state
from dmondrian.drift.guard import Guard, sum_shares
from dmondrian.drift.member import Ages, Member
from dmondrian.drift.members import Members
from dmondrian.ensemble.held_interrupts import interrupts_held
from dmondrian.ensemble.settings.drift_settings import DriftSettings
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.tree import nodes
from tests.drift.streams import CUTS, switching


def parameters(n_classes: int = 2, **others: Any) -> ForestParameters:
    return ForestParameters(
        "amf-classifier", 4, n_classes, 3, alpha=0.25, charge_opening=False, **others
    )


def forest_of(
    n_members: int = 5, delay: int = 1, n_classes: int = 2, boosted: bool = False
) -> DriftForest:
    drift = DriftSettings(5, 7, delay, boosted)
    return DriftForest(parameters(n_classes, drift=drift), range(n_members))


def learned(X: np.ndarray, y: np.ndarray, **settings: Any) -> tuple[DriftForest, np.ndarray]:
    forest = forest_of(**settings)
    return forest, forest.forecast_and_learn(X, y.astype(float))


def test_permanent_trees_are_those_of_a_forest_that_does_not_follow() -> None:
    X, y = switching(300)
    follows, _ = learned(X, y)
    plain = Forest(parameters(), range(5))
    plain.update(X, y.astype(float))
    for tree, other in zip(follows.trees, plain.trees, strict=True):
        ours, theirs = nodes.fields(tree), nodes.fields(other)
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("boosted", [False, True])
@pytest.mark.parametrize("delay", [1, 40, 500])
def test_neither_cuts_nor_threads_change_a_byte(delay: int, boosted: bool) -> None:
    X, y = switching(450)
    w = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], 450)
    whole, parts = (forest_of(delay=delay, boosted=boosted) for _ in range(2))
    forecasts = whole.forecast_and_learn(X, y.astype(float), w)
    found = [
        parts.forecast_and_learn(X[a:b], y[a:b].astype(float), w[a:b], n_threads=2) for a, b in CUTS
    ]
    np.testing.assert_array_equal(np.concatenate(found), forecasts)
    assert pickle.dumps(parts.state()) == pickle.dumps(whole.state())
    assert whole.position == (w > 0).sum() // delay * delay
    assert len(whole.waiting.y) == (w > 0).sum() % delay


def test_rows_of_weight_zero_are_as_if_they_had_not_come() -> None:
    X, y = switching(300)
    w = np.random.default_rng(1).choice([0.0, 1.0], 300)
    some, kept = forest_of(), w > 0
    some.update(X, y.astype(float), w)
    others, _ = learned(X[kept], y[kept])
    assert pickle.dumps(some.state()) == pickle.dumps(others.state())


def test_a_forecast_is_what_the_forest_predicts_before_it_learns_the_row() -> None:
    X, y = switching(150)
    forest, forecasts = learned(X, y)
    again = forest_of()
    again.update(X[:1], y[:1].astype(float))
    for t in range(1, 150):
        np.testing.assert_array_equal(again.predict_proba(X[t : t + 1]), forecasts[t : t + 1])
        again.update(X[t : t + 1], y[t : t + 1].astype(float))
    assert pickle.dumps(again.state()) == pickle.dumps(forest.state())


@pytest.mark.parametrize("boosted", [False, True])
@pytest.mark.parametrize("delay", [1, 40])
def test_forecasts_know_no_label_of_their_block_or_later(delay: int, boosted: bool) -> None:
    X, y = switching(400)
    settings: Any = {"delay": delay, "boosted": boosted}
    _, forecasts = learned(X, y, **settings)
    start = 200
    _, other = learned(X, np.where(np.arange(400) < start, y, 1 - y), **settings)
    np.testing.assert_array_equal(other[: start + delay], forecasts[: start + delay])
    assert not np.array_equal(other[start + delay :], forecasts[start + delay :])
    later = X.copy()
    later[start + 1 :] = 1 - X[start + 1 :]
    np.testing.assert_array_equal(
        learned(later, y, **settings)[1][: start + 1], forecasts[: start + 1]
    )


def test_a_block_is_forecast_by_the_state_before_it() -> None:
    X, y = switching(160)
    _, forecasts = learned(X, y, delay=40)
    before = forest_of(delay=40)
    before.update(X[:120], y[:120].astype(float))
    np.testing.assert_array_equal(before.predict_proba(X[120:]), forecasts[120:])


def test_of_the_sets_born_in_a_block_the_last_alone_is_fitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y = switching(4100)  # blocks of several pieces
    fitted, fit = [], BoostedSet.fit
    monkeypatch.setattr(BoostedSet, "fit", lambda *its: fitted.append(len(its[0])) or fit(*its))
    learned(X, y, n_members=1, delay=2000, boosted=True)
    assert fitted == [1792, 3584]


@pytest.mark.parametrize(("delay", "boosted"), [(1, False), (40, False), (40, True)])
def test_members_in_shards_with_a_guard_apart_are_the_forest(delay: int, boosted: bool) -> None:
    X, y = switching(330)
    w = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], 330)
    whole = forest_of(delay=delay, boosted=boosted)
    forecasts = whole.forecast_and_learn(X, y.astype(float), w)
    settings = whole.parameters
    shards = [Members(settings, numbers) for numbers in ([0, 3], [4], [1, 2])]
    guard, found = Guard(settings, range(5)), []
    for a, b in itertools.pairwise([0, 7, 64, 65, 70, 230, 330]):
        rows = X[a:b], y[a:b].astype(float), w[a:b]
        shares = sum_shares([shard.share_and_learn(*rows) for shard in shards])
        kept = rows[2] > 0.0
        found.append(guard.mix_and_step(shares, rows[1][kept], rows[2][kept]))
    np.testing.assert_array_equal(np.concatenate(found), forecasts)
    stored = [encode_forest(*shard.stored()) for shard in shards]
    read: Any = [forest_from_state(*decode_forest(data)) for data in stored]
    assert [type(one) for one in read] == [Members] * 3
    joined = DriftForest.of(Members.join(read), json.loads(json.dumps(guard.to_json())))
    assert pickle.dumps(joined.state()) == pickle.dumps(whole.state())
    np.testing.assert_array_equal(joined.predict_proba(X), whole.predict_proba(X))
    with pytest.raises(CorruptError, match="guard"):
        DriftForest.of(Members.join(read), {**guard.to_json(), "position": 3})
    shards[0].update(X, y.astype(float))
    with pytest.raises(ParameterError, match="other rows"):
        Members.join(shards)


@pytest.mark.parametrize("boosted", [False, True])
def test_members_in_shards_whose_labels_come_by_time_are_the_forest(boosted: bool) -> None:
    X, y = switching(330)
    rng = np.random.default_rng(1)
    w, times = rng.choice([0.0, 0.5, 1.0, 3.0], 330), np.cumsum(rng.integers(-3, 6, 330)) * 1.0
    settings = parameters(drift=DriftSettings(5, 7, boosted=boosted, period="40"))
    whole = DriftForest(settings, range(5))
    forecasts = whole.forecast_and_learn(X, y.astype(float), w, times=times)
    shards = [Members(settings, numbers) for numbers in ([0, 3], [4], [1, 2])]
    guard, found = Guard(settings, range(5)), []
    for a, b in itertools.pairwise([0, 7, 64, 65, 70, 230, 330]):
        rows = X[a:b], y[a:b].astype(float), w[a:b]
        shares = sum_shares([shard.share_and_learn(*rows, times=times[a:b]) for shard in shards])
        kept = rows[2] > 0.0
        found.append(guard.mix_and_step(shares, rows[1][kept], rows[2][kept], times[a:b][kept]))
    np.testing.assert_array_equal(np.concatenate(found), forecasts)
    stored = [encode_forest(*shard.stored()) for shard in shards]
    read: Any = [forest_from_state(*decode_forest(data)) for data in stored]
    joined = DriftForest.of(Members.join(read), json.loads(json.dumps(guard.to_json())))
    assert pickle.dumps(joined.state()) == pickle.dumps(whole.state())
    assert joined.rows_so_far == guard.rows_so_far == copy.deepcopy(whole).rows_so_far
    assert 0 < guard.rows_so_far["waiting"] < 60
    np.testing.assert_array_equal(joined.age_shares(), whole.age_shares())
    other = guard.to_json()
    other["clock"][2] -= 1
    with pytest.raises(CorruptError, match="the block of time that members are in"):
        DriftForest.of(Members.join(read), other)


@pytest.mark.parametrize(("delay", "boosted"), [(1, False), (40, False), (1, True), (40, True)])
def test_the_size_of_pieces_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, delay: int, boosted: bool
) -> None:
    X, y = switching(200)
    forest, forecasts = learned(X, y, delay=delay, boosted=boosted)
    monkeypatch.setattr(members_module, "_LEAST_ROWS", 7)
    monkeypatch.setattr(members_module, "_MOST_ROWS", 7)
    other, found = learned(X, y, delay=delay, boosted=boosted)
    np.testing.assert_array_equal(found, forecasts)
    assert pickle.dumps(other.state()) == pickle.dumps(forest.state())


def test_trees_younger_than_the_delay_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = switching(256)
    forest, _ = learned(X, y, delay=64)
    assert Ages(5, 7).n_younger_than(64) == 1
    forecasts = forest.predict_proba(X[:5])
    forecast = Member.forecast

    def without_the_youngest(self: Member, inputs: np.ndarray, *others: Any) -> None:
        forecast(self, inputs, *others)
        assert not np.array_equal(inputs[1], inputs[0])
        inputs[1] = np.nan

    monkeypatch.setattr(Member, "forecast", without_the_youngest)
    np.testing.assert_array_equal(forest.predict_proba(X[:5]), forecasts)


def test_permuted_labels_cost_their_entropy() -> None:
    X, _ = switching(2000)
    y = (np.random.default_rng(4).random(2000) < 0.3).astype(int)
    _, forecasts = learned(X, y)
    entropy = -(0.3 * np.log(0.3) + 0.7 * np.log(0.7))
    loss = -np.log(forecasts[np.arange(2000), y]).mean()
    assert entropy * 0.97 < loss < entropy * 1.06


def test_it_follows_a_change() -> None:
    X, y = switching(3000)
    _, forecasts = learned(X, y)
    plain = AMFClassifier(10, random_state=0, feature_scales=None)
    late = np.arange(2300, 3000)
    plain.fit(X[:2300], y[:2300])
    assert (forecasts[late].argmax(axis=1) == y[late]).mean() > 0.88
    assert plain.score(X[late], y[late]) < 0.8


@pytest.mark.parametrize(
    ("delay", "boosted"), [(64, False), (256, False), (2048, False), (2048, True)]
)
def test_no_delay_makes_it_worse_than_the_forest_that_never_forgets(
    delay: int, boosted: bool
) -> None:
    """Two rules by turns, which change within the blocks: the last block shows nothing of the next.

    At the longest delay the last of four blocks is the first that weights could be learned for.
    """
    rng, n = np.random.default_rng(0), 8192
    X = rng.random((n, 4)).astype(np.float32)
    is_reversed = np.arange(n) * 7 // n % 2 == 1
    y = ((X[:, 0] + X[:, 1] > 1.0) != is_reversed).astype(int)
    forest = DriftForest(parameters(drift=DriftSettings(delay=delay, boosted=boosted)), range(4))
    forecasts = forest.forecast_and_learn(X, y.astype(float))
    plain, rows = Forest(parameters(), range(4)), np.arange(n)
    expected = np.full((n, 2), 0.5)
    for start in range(0, n, delay):
        part = slice(start, start + delay)
        if start:
            expected[part] = plain.predict_sums(X[part]).mean
        plain.update(X[part], y[part].astype(float))
    ours, theirs = (-np.log(q[rows, y]).mean() for q in (forecasts, expected))
    assert ours <= (1.01 if delay > 1000 else 0.9) * theirs, (ours, theirs)


def test_nodes_are_no_more_than_the_ages_of_trees_allow() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.random((1500, 4)).astype(np.float32), rng.integers(0, 2, 1500).astype(float)
    forest = forest_of(2)
    for start in range(0, 1500, 50):
        forest.update(X[start : start + 50], y[start : start + 50])
        for member in forest.members:
            n_nodes = sum(int(tree.head_i[nodes.N_NODES]) for tree in member.trees)
            assert n_nodes <= 2 ** (member.ages.last + 3) + 2 ** (member.ages.first + 1)


def test_a_thousand_classes_in_bounded_memory() -> None:
    X, y = switching(400, n_classes=1000)
    forest, forecasts = learned(X, y, n_members=2, n_classes=1000)
    np.testing.assert_allclose(forecasts.sum(axis=1), 1.0)
    for member in forest.members:
        assert (member.caps < 2**24 // (8 * 3 * 1000)).all()
        assert member.n_bytes <= len(member.trees) * 2**24
        for tree, cap in zip(member.trees, member.caps, strict=True):
            assert tree.head_i[nodes.N_NODES] <= cap


def test_many_classes_and_one() -> None:
    X, y = switching(120, n_classes=300)
    forest, forecasts = learned(X, y, n_members=2, n_classes=300)
    np.testing.assert_allclose(forecasts.sum(axis=1), 1.0)
    assert forest.predict_proba(X[:3]).shape == (3, 300)
    one = AMFClassifier(2, drift="follow", random_state=0).fit(X, np.zeros(120))
    np.testing.assert_allclose(one.predict_proba(X), 1.0)


def test_memory_is_bounded_and_that_of_dead_trees_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member_module, "MOST_BYTES", 2**13)
    rng = np.random.default_rng(0)
    X = rng.random((2000, 4)).astype(np.float32)
    y = rng.integers(0, 2, 2000).astype(float)
    forest, sizes = forest_of(2), []
    for start in range(0, 2000, 250):
        forest.update(X[start : start + 250], y[start : start + 250])
        sizes.append(sum(member.n_bytes for member in forest.members))
        for member in forest.members:
            for tree, cap in zip(member.trees, member.caps, strict=True):
                assert tree.head_i[nodes.N_NODES] <= cap <= 2**13 // 100
    assert max(sizes[3:]) == sizes[3]


def test_an_interrupted_forest_refuses_and_a_copy_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = switching(300)
    forest, _ = learned(X[:200], y[:200])
    before = copy.deepcopy(forest)
    learn, n_calls = Member.learn, []

    def stop(*args: Any) -> None:
        n_calls.append(1)
        if len(n_calls) == 3:
            raise KeyboardInterrupt
        learn(*args)

    monkeypatch.setattr(Member, "learn", stop)
    with pytest.raises(KeyboardInterrupt):
        forest.update(X[200:], y[200:].astype(float))
    with pytest.raises(ParameterError, match="interrupted"):
        forest.predict_proba(X[:1])
    monkeypatch.undo()
    before.update(X[200:], y[200:].astype(float))
    assert pickle.dumps(before.state()) == pickle.dumps(learned(X, y)[0].state())


@pytest.mark.parametrize(("delay", "at"), [(1, 0), (1, 4), (40, 1), (40, 3)])
def test_a_ctrl_c_waits_for_the_end_of_a_piece_and_costs_no_row(
    monkeypatch: pytest.MonkeyPatch, delay: int, at: int
) -> None:
    """The signal comes amid a row of a member; another thread's would come between any two."""
    X, y = switching(450)
    w = np.random.default_rng(1).choice([0.0, 1.0, 2.0], 450)
    settings: dict[str, Any] = {"drift": "follow", "delay": delay, "random_state": 0}
    whole = AMFClassifier(3, **settings)
    whole.partial_fit(X[:5], y[:5], classes=[0, 1])
    model = copy.deepcopy(whole)
    whole.partial_fit(X, y, sample_weight=w)
    learn, n_calls = Member.learn, itertools.count()

    def interrupted(*args: Any) -> None:
        if next(n_calls) == at:
            signal.raise_signal(signal.SIGINT)
        learn(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Member, "learn", interrupted)
        patch.setattr(members_module, "_MOST_ROWS", 64)
        with pytest.raises(KeyboardInterrupt) as stopped:
            model.partial_fit(X, y, sample_weight=w)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    (note,) = stopped.value.__notes__
    n = int(note.split(" first ")[1].split()[0])
    assert 0 < n < 450
    assert note == f"the forest has learned the first {n} of the 450 rows"
    assert len(model.predict(X[:3])) == 3
    model.partial_fit(X[n:], y[n:], sample_weight=w[n:])
    assert pickle.dumps(model.forest_.state()) == pickle.dumps(whole.forest_.state())


def test_an_error_amid_a_piece_still_tears_and_other_threads_are_let_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y = switching(100)
    model = AMFClassifier(2, drift="follow", random_state=0).fit(X, y)

    def fail(*args: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Member, "learn", fail)
        with pytest.raises(KeyboardInterrupt) as stopped:
            model.partial_fit(X, y)
    assert isinstance(stopped.value.__context__, MemoryError)
    with pytest.raises(ParameterError, match="interrupted"):
        model.predict(X)
    found: list[Any] = []

    def elsewhere() -> None:
        with interrupts_held():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_each_signal_that_came_meanwhile_is_handled_once(first: signal.Signals) -> None:
    order = [signal.SIGTERM, signal.SIGINT]
    calls: list[int] = []

    def step() -> None:
        with interrupts_held():
            for number in (first, *order, *order):
                signal.raise_signal(number)
            assert calls == []

    before = signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    try:
        with pytest.raises(KeyboardInterrupt):
            step()
        assert calls == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
