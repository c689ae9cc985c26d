"""Boosted sets of a stream: born by row number, fitted to rows before, stored to the byte."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmondrian.boosting.boosted_set import BoostedSet
from dmondrian.boosting.boosted_stream import (
    AS_THEY_CAME,
    ROUNDS_FOUND,
    BoostedStream,
    most_rounds_of,
    next_birth,
    previous_birth,
    settings_of,
)
from dmondrian.boosting.boosting_kernels import BoostingSettings
from dmondrian.errors import CorruptError
from dmondrian.forest.packed_arrays import packed, unpacked
from tests.drift.streams import numbers, switching
from tests.reference.boosting import births_until


def test_births_are_four_in_each_doubling_and_then_at_every_so_many_rows() -> None:
    found, position = [], 0
    while (position := next_birth(position)) <= 90_000:
        found.append(position)
    assert found == births_until(90_000)
    assert next_birth(10**6) - 10**6 <= 16_384
    assert [previous_birth(birth) for birth in found[1:]] == found[:-1]
    assert [next_birth(n) for n in range(64)] == [64] * 64


def test_the_trees_of_a_set_are_bounded_where_there_are_many_classes() -> None:
    rounds = [settings_of(k).n_rounds for k in (2, 9, 10, 30, 90, 1000)]
    assert rounds == [60, 60, 30, 30, 10, 5]
    most = [most_rounds_of(k, 64) for k in (0, 2, 3, 9, 10, 30, 90, 1000)]
    assert most == [400, 400, 400, 133, 120, 40, 13, 5]
    assert [most_rounds_of(10, d) for d in (128, 256, 1000)] == [60, 30, 30]
    X, y = switching(70, n_classes=300)
    stream = BoostedStream(4, 300, 1)
    stream.learn(X, y.astype(float), np.empty(0))
    forecasts = stream.answer(X)
    assert forecasts is not None
    np.testing.assert_allclose(forecasts.sum(axis=1), 1.0)
    assert forecasts.min() > 0.0


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_set_is_fitted_to_the_rows_before_its_birth(n_classes: int) -> None:
    X, y = switching(200, n_classes)
    w = np.random.default_rng(0).choice([0.5, 1.0, 3.0], 200)
    stream = BoostedStream(4, n_classes, 3)
    stream.learn(X[:63], y[:63].astype(float), w[:63])
    assert stream.answer(X) is None
    stream.learn(X[63:], y[63:].astype(float), w[63:])
    assert stream.newest is not None
    rounds = stream.newest.n_rounds
    fitted = BoostedSet.fit(
        X[:192], y[:192].astype(float), w[:192], n_classes,
        settings_of(n_classes)._replace(n_rounds=rounds),
    )  # fmt: skip
    np.testing.assert_array_equal(stream.answer(X), fitted.answer(X))


@settings(max_examples=25)
@given(n=st.integers(0, 150), n_classes=st.sampled_from([0, 3]), data=st.data())
def test_neither_cuts_nor_a_copy_in_between_change_a_byte(
    n: int, n_classes: int, data: st.DataObject
) -> None:
    X, y = switching(150, n_classes) if n_classes else numbers(150)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=5)))
    whole, parts = BoostedStream(4, n_classes, 1), BoostedStream(4, n_classes, 1)
    for c, e in at_births(0, n):
        whole.learn(X[c:e], y[c:e].astype(float), np.empty(0))
    copied = data.draw(st.integers(0, len(cuts)))
    for number, (a, b) in enumerate(itertools.pairwise([0, *cuts, n])):
        if number == copied:
            stored = json.loads(json.dumps(parts.to_json()))
            parts = BoostedStream(4, n_classes, 1)
            parts.load_json(stored, a)
        for c, e in at_births(a, b):
            parts.learn(X[c:e], y[c:e].astype(float), np.ones(e - c))
    assert parts.to_json() == whole.to_json()


def at_births(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Pieces of rows that end where sets are born, as where each set answers rows."""
    births = [b for b in births_until(stop) if start < b < stop]
    return itertools.pairwise([start, *births, stop])


def test_one_class_of_those_that_may_come_is_forecast_by_its_share() -> None:
    X, _ = switching(40)
    for n_classes in (2, 3):
        fitted = BoostedSet.fit(X, np.ones(40), np.ones(40), n_classes, settings_of(n_classes))
        assert len(fitted.trees.outputs) == 0
        others = 0.5 / (40 + 0.5 * n_classes)
        expected = np.full(n_classes, others)
        expected[1] = 1.0 - others * (n_classes - 1)
        np.testing.assert_allclose(fitted.answer(X[:1])[0], expected, rtol=1e-12)


def test_it_finds_what_columns_do_together() -> None:
    rng = np.random.default_rng(0)
    X = rng.random((2000, 10)).astype(np.float32)
    y = ((X[:, 2] > 0.5) ^ (X[:, 7] > 0.5)).astype(float)
    fitted = BoostedSet.fit(X[:1500], y[:1500], np.ones(1500), 2, settings_of(2))
    forecasts = fitted.answer(X[1500:])
    assert (forecasts.argmax(axis=1) == y[1500:]).mean() > 0.97


def test_weights_are_as_repeated_rows() -> None:
    X, y = switching(80)
    w = np.random.default_rng(0).integers(1, 4, 80)
    growing = settings_of(2)._replace(least_rows=1, n_rounds=3)
    weighted = BoostedSet.fit(X, y.astype(float), w.astype(float), 2, growing)
    rows = np.repeat(np.arange(80), w)
    repeated = BoostedSet.fit(X[rows], y[rows].astype(float), np.ones(len(rows)), 2, growing)
    np.testing.assert_allclose(weighted.answer(X), repeated.answer(X), rtol=1e-9)


def test_a_sum_of_weights_of_any_size_is_exact() -> None:
    X, y = switching(60)
    growing = BoostingSettings(3, 4, 0.3, 0.0, 2, 0.0, 10.0)
    for scale in (2.0**-300, 2.0**300):
        scaled = BoostedSet.fit(X, y.astype(float), np.full(60, scale), 2, growing)
        assert scaled.trees.n_splits.all()
        assert np.isfinite(scaled.answer(X)).all()


@pytest.mark.parametrize("weight", [1.0, 100.0, 1e4, 1e12])
def test_rare_labels_of_large_weights_are_no_leap(weight: float) -> None:
    rng = np.random.default_rng(0)
    X = rng.random((4000, 3)).astype(np.float32)
    y = ((X[:, 0] > 0.99) & (rng.random(4000) < 0.5)).astype(float)
    stream = BoostedStream(3, 2, 0)
    stream.learn(X, y, np.full(4000, weight))
    assert stream.newest is not None
    assert (stream.newest.answer(X) > 0.0).all()
    again = BoostedStream(3, 2, 0)
    again.load_json(json.loads(json.dumps(stream.to_json())), 4000)
    np.testing.assert_array_equal(again.answer(X), stream.answer(X))


def test_sets_that_would_answer_no_row_are_not_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = switching(1000)
    fitted, fit = [], BoostedSet.fit
    monkeypatch.setattr(BoostedSet, "fit", lambda *its: fitted.append(len(its[0])) or fit(*its))
    whole, parts = (BoostedStream(4, 2, 1, fitting=AS_THEY_CAME) for _ in range(2))
    whole.learn(X, y.astype(float), np.empty(0))
    assert fitted == [896]
    for rows in np.split(np.arange(1000), [100, 600, 897]):
        parts.learn(X[rows], y[rows].astype(float), np.empty(0))
    assert fitted == [896, 96, 512, 896]
    assert parts.to_json() == whole.to_json()


@pytest.mark.parametrize(
    ("d", "fitting", "life"),
    [(1, 3, 16384), (64, 3, 16384), (65, 3, 8192), (300, 3, 4096), (1, 1, 4096), (300, 2, 4096)],
)
def test_sets_of_long_streams_live_half_as_long_as_the_newest_rows_are_kept(
    d: int, fitting: int, life: int
) -> None:
    stream = BoostedStream(d, 0, 1, fitting)
    assert [stream.next_birth(n) - n for n in (2**20, 2**21)] == [life] * 2


def test_streams_that_earlier_versions_began_keep_as_many_rows_as_these() -> None:
    n = 20_000
    X = np.random.default_rng(0).random((n, 1), dtype=np.float32)
    y = (X[:, 0] > 0.5).astype(float)
    for fitting, kept in ((AS_THEY_CAME, 2 * 8192 + n % 1024), (ROUNDS_FOUND, n)):
        stream = BoostedStream(1, 2, 1, fitting)
        stream.learn(X, y, np.empty(0))
        assert len(stream.kept_rows().y) == kept
        again = BoostedStream(1, 2, 1, fitting)
        again.load_json(json.loads(json.dumps(stream.to_json())), n)
        assert again.digest == stream.digest


def damaged(name: str, change: Callable[[np.ndarray], Any]) -> Callable[[dict[str, Any]], None]:
    def damage(stored: dict[str, Any]) -> None:
        n = stored["set"]["n"]
        shapes = {
            "outputs": ((n,), np.int64), "n_splits": ((n,), np.int64),
            "columns": ((n, 14), np.int32), "thresholds": ((n, 14), np.float32),
            "children": ((n, 14, 2), np.int32), "answers": ((n, 15), np.float64),
            "first_scores": ((3,), np.float64),
        }  # fmt: skip
        array = unpacked(stored["set"][name], *shapes[name])
        change(array)
        stored["set"][name] = packed(array)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        damaged("outputs", lambda a: a.__setitem__(0, 3)),
        damaged("outputs", lambda a: a.__setitem__(0, -1)),
        damaged("n_splits", lambda a: a.__setitem__(0, 15)),
        damaged("n_splits", lambda a: a.__setitem__(0, -1)),
        damaged("columns", lambda a: a.__setitem__((0, 0), 4)),
        damaged("columns", lambda a: a.__setitem__((0, 0), -1)),
        damaged("children", lambda a: a.__setitem__((0, 0, 0), 0)),  # for ever
        damaged("children", lambda a: a.__setitem__((0, 0, 1), 14)),
        damaged("children", lambda a: a.__setitem__((0, 0, 1), -16)),
        damaged("thresholds", lambda a: a.__setitem__((0, 0), np.nan)),
        damaged("answers", lambda a: a.__setitem__((0, 0), np.inf)),
        damaged("answers", lambda a: a.__setitem__((0, 0), 1e9)),
        damaged("first_scores", lambda a: a.__setitem__(0, -1e9)),
        lambda stored: stored.update(set=None),
        lambda stored: stored.update(more=1),
        lambda stored: stored["set"].update(n=stored["set"]["n"] + 1),
        lambda stored: stored["set"].update(n=3 * most_rounds_of(3, 4) + 1),
        lambda stored: stored["set"].update(n="1"),
        lambda stored: stored["set"].pop("n"),
        lambda stored: stored["kept"].pop("y"),
    ],
)
def test_a_set_that_no_rows_could_make_is_refused(damage: Callable[[Any], None]) -> None:
    X, y = switching(200, 3)
    stream = BoostedStream(4, 3, 1)
    stream.learn(X, y.astype(float), np.empty(0))
    stored = json.loads(json.dumps(stream.to_json()))
    BoostedStream(4, 3, 1).load_json(stored, 200)
    damage(stored)
    with pytest.raises(CorruptError):
        BoostedStream(4, 3, 1).load_json(stored, 200)


def test_the_second_of_two_classes_alone_has_trees() -> None:
    X, y = switching(100)
    stream = BoostedStream(4, 2, 1)
    stream.learn(X, y.astype(float), np.empty(0))
    stored = stream.to_json()
    outputs = unpacked(stored["set"]["outputs"], (stored["set"]["n"],), np.int64)
    assert set(outputs.tolist()) == {1}
    stored["set"]["outputs"] = packed(0 * outputs)
    with pytest.raises(CorruptError):
        BoostedStream(4, 2, 1).load_json(stored, 100)


def test_numbers_are_fitted_wherever_they_lie_and_however_large_they_are() -> None:
    """Units are powers of two, so that scaled labels make scaled answers, to the bit."""
    X, y = numbers(400)
    w = np.ones(300)
    fitted = BoostedSet.fit(X[:300], y[:300], w, 0, settings_of(0))
    forecasts = fitted.answer(X)[:, 0]
    errors = [((forecasts - y)[rows] ** 2).mean() for rows in (slice(300), slice(300, 400))]
    assert errors[0] < 0.2 * y.var()
    for factor in (2.0**-400, -1.0, 2.0**400):
        scaled = BoostedSet.fit(X[:300], factor * y[:300], w, 0, settings_of(0)).answer(X)[:, 0]
        np.testing.assert_allclose(scaled, factor * forecasts, rtol=1e-9)
    moved = BoostedSet.fit(X[:300], y[:300] + 1e9, w, 0, settings_of(0)).answer(X)[:, 0]
    np.testing.assert_allclose(moved - 1e9, forecasts, atol=0.1)
    constant = BoostedSet.fit(X, np.full(400, 7.0), np.ones(400), 0, settings_of(0))
    assert len(constant.trees.outputs) == 0
    np.testing.assert_array_equal(constant.answer(X), 7.0)


@pytest.mark.parametrize("far", [1e3, 1e12, 1e139])
def test_a_number_far_off_leaves_the_answers_of_others(far: float) -> None:
    X, y = numbers(400)
    near, streams = np.delete(np.arange(400), 200), []
    for label in (y[200], far):
        y[200] = label
        streams.append(stream := BoostedStream(4, 0, 1))
        stream.learn(X, y, np.empty(0))
    answers, usual = (stream.answer(X) for stream in streams[::-1])
    assert answers is not None
    assert usual is not None
    errors = [((found[near, 0] - y[near]) ** 2).mean() for found in (answers, usual)]
    assert errors[0] < 1.1 * errors[1] < 0.7 * y[near].var()
    assert np.abs(answers).max() < 3.0 * np.abs(y[near]).max()
    again = BoostedStream(4, 0, 1)
    again.load_json(json.loads(json.dumps(stream.to_json())), 400)
    np.testing.assert_array_equal(again.answer(X), answers)


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: stored["set"].update(scale=0.0),
        lambda stored: stored["set"].update(scale=3.0),
        lambda stored: stored["set"].update(scale=-2.0),
        lambda stored: stored["set"].update(scale=2.0**1000),
        lambda stored: stored["set"].update(scale=float("inf")),
        lambda stored: stored["set"].update(scale=1),
        lambda stored: stored["set"].pop("scale"),
        lambda stored: stored["set"].update(first_scores=packed(np.array([np.nan]))),
        lambda stored: stored["set"].update(first_scores=packed(np.array([1e141]))),
        lambda stored: stored["set"].update(first_scores=packed(np.zeros(2))),
        lambda stored: stored["set"].update(n=401),
        lambda stored: stored["kept"].update(y=packed(np.full(200, np.inf))),
        lambda stored: stored["kept"].update(y=packed(np.full(200, 1e141))),
    ],
)
def test_a_set_of_numbers_that_no_rows_could_make_is_refused(
    damage: Callable[[Any], None],
) -> None:
    stream = BoostedStream(4, 0, 1)
    stream.learn(*numbers(200), np.empty(0))
    stored = json.loads(json.dumps(stream.to_json()))
    BoostedStream(4, 0, 1).load_json(stored, 200)
    damage(stored)
    with pytest.raises(CorruptError):
        BoostedStream(4, 0, 1).load_json(stored, 200)
    with pytest.raises(CorruptError):
        BoostedStream(4, 3, 1).load_json(stored, 200)
