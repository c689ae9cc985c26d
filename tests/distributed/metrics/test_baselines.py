"""Baselines forecast as their definitions, row by row, and know no label too soon."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dmondrian.distributed.metrics.baselines import Baselines, baseline_in_words, is_of_key

Terms = list[list[tuple[float, float]]]


def slow_class_terms(
    y: list[int], w: list[float], k: int, turns: list[bool], has_delay: bool
) -> Terms:
    """Log loss and hit of each forecast, for each row, from the words of the module."""
    counts, leader, weight = [0.0] * k, 0, 0.0
    newest: int | None = None
    known: int | None = None
    repeats = {"last": [0.0, 0.0], "known": [0.0, 0.0]}
    result = []
    for label, own, is_turn in zip(y, w, turns, strict=True):
        if is_turn:
            known = newest
        share = (counts[label] + 0.5) / (weight + 0.5 * k)
        found = [(-math.log(share), float(leader == label))]
        for name, before in (("last", newest), ("known", known))[: 2 if has_delay else 1]:
            if before is None:
                found.append(found[0])
                continue
            rows, same = repeats[name]
            repeat = (same + 0.5) / (rows + 1.0)
            others = weight - counts[before] + 0.5 * (k - 1)
            one = repeat if label == before else (1.0 - repeat) * (counts[label] + 0.5) / others
            found.append((-math.log(one if k > 1 else 1.0), float(label == before)))
            repeats[name][0] += own
            repeats[name][1] += own * (label == before)
        result.append(found)
        counts[label] += own
        weight += own
        if counts[label] > counts[leader]:
            leader = label
        if own > 0.0:
            newest = label
    return result


def slow_number_terms(y: list[float], w: list[float], turns: list[bool], has_delay: bool) -> Terms:
    """Squared and absolute error of each forecast, for each row."""
    total = weight = 0.0
    newest: float | None = None
    known: float | None = None
    first = next((label for label, own in zip(y, w, strict=True) if own > 0.0), 0.0)
    result = []
    for label, own, is_turn in zip(y, w, turns, strict=True):
        if is_turn:
            known = newest
        mean = total / weight if weight else label
        forecasts = [mean, newest, known][: 3 if has_delay else 2]
        forecasts = [first if f is None else f for f in forecasts]
        errors = [f - label if weight else 0.0 for f in forecasts]
        result.append([(error * error, abs(error)) for error in errors])
        total, weight = total + own * label, weight + own
        if own > 0.0:
            newest = label
    return result


def rows_of(task: str, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels that repeat themselves at times, weights with zeros, and turns."""
    draw = np.random.default_rng(k)
    y = draw.integers(0, k, n).astype(float)
    for i in np.flatnonzero(draw.random(n) < 0.5):
        y[i] = y[i - 1] if i else y[i]
    w = draw.choice([0.0, 0.5, 1.0, 2.7], n)
    w[:3] = 0.0
    return (y if task == "classification" else 100.0 + y**2), w, draw.random(n) < 0.2


@pytest.mark.parametrize("has_delay", [False, True])
@pytest.mark.parametrize("k", [1, 2, 7])
def test_classes_are_forecast_as_defined_whatever_the_cuts(k: int, has_delay: bool) -> None:
    n = 500
    y, w, turns = rows_of("classification", n, k)
    wanted = slow_class_terms(y.astype(int).tolist(), w.tolist(), k, turns.tolist(), has_delay)
    parts = []
    for cuts in ([], [1, 3, 4, 250, 499], range(7, n, 7)):
        made, parts = Baselines("classification", has_delay), []
        for start, stop in itertools.pairwise([0, *cuts, n]):
            part = slice(start, stop)
            parts.append(made.terms(y[part], w[part], k, turns[part]))
            stored, made = json.loads(json.dumps(made.to_json())), Baselines(made.task, has_delay)
            made.load_json(stored)
        for f in range(2 + has_delay):
            for term in range(2):
                result = np.concatenate([part[f][term] for part in parts])
                np.testing.assert_allclose(result, [row[f][term] for row in wanted], rtol=1e-12)


@pytest.mark.parametrize("has_delay", [False, True])
def test_numbers_are_forecast_as_defined_whatever_the_cuts(has_delay: bool) -> None:
    n = 500
    y, w, turns = rows_of("regression", n, 9)
    wanted = slow_number_terms(y.tolist(), w.tolist(), turns.tolist(), has_delay)
    for cuts in ([], [1, 3, 4, 250, 499], range(7, n, 7)):
        made, parts = Baselines("regression", has_delay), []
        for start, stop in itertools.pairwise([0, *cuts, n]):
            part = slice(start, stop)
            parts.append(made.terms(y[part], w[part], 1, turns[part]))
            stored, made = json.loads(json.dumps(made.to_json())), Baselines(made.task, has_delay)
            made.load_json(stored)
        for f in range(2 + has_delay):
            for term in range(2):
                result = np.concatenate([part[f][term] for part in parts])
                np.testing.assert_allclose(result, [row[f][term] for row in wanted], atol=1e-7)


def slow_terms_of_key(task: str, y: np.ndarray, w: np.ndarray, earlier: np.ndarray, k: int) -> Any:
    """Two terms of the label of the same key, for each row, from the words of the module."""
    counts, weight, total, rows, same = [0.0] * k, 0.0, 0.0, 0.0, 0.0
    result = []
    for label, own, before in zip(y.tolist(), w.tolist(), earlier.tolist(), strict=True):
        if task == "regression":
            mean = total / weight if weight else label
            error = (mean if math.isnan(before) or not weight else before) - label
            error = error if weight else 0.0
            result.append((error * error, abs(error)))
            total += own * label
        else:
            code = int(label)
            share = (counts[code] + 0.5) / (weight + 0.5 * k)
            hit = float(counts.index(max(counts)) == code) if not math.isnan(before) else None
            if not math.isnan(before):
                repeat, hit = (same + 0.5) / (rows + 1.0), float(before == label)
                others = weight - counts[int(before)] + 0.5 * (k - 1)
                share = repeat if hit else (1.0 - repeat) * (counts[code] + 0.5) / others
                rows, same = rows + own, same + own * hit
            result.append((-math.log(share), hit))
            counts[code] += own
        weight += own
    return result


@pytest.mark.parametrize("has_delay", [False, True])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_labels_of_the_same_key_are_forecast_as_defined(task: str, has_delay: bool) -> None:
    n, k = 400, 3
    y, w, turns = rows_of(task, n, k)
    shop = np.random.default_rng(4).integers(0, 30, n)
    earlier = pd.Series(y).groupby(shop).shift(2).to_numpy()
    assert np.isnan(earlier).sum() > 30
    wanted = slow_terms_of_key(task, y, w, earlier, k)
    plain = Baselines(task, has_delay).terms(y, w, k, turns)
    for cuts in ([], [1, 3, 4, 250, 399], range(7, n, 7)):
        made, parts = Baselines(task, has_delay, 2), []
        for start, stop in itertools.pairwise([0, *cuts, n]):
            part = slice(start, stop)
            parts.append(made.terms(y[part], w[part], k, turns[part], earlier[part]))
            stored = json.loads(json.dumps(made.to_json()))
            made = Baselines(task, has_delay, 2)
            made.load_json(stored)
        assert made.names[-1] == "label_2_back_of_key"
        for f in range(len(plain)):  # the others stay what they are
            for term in range(2):
                found = np.concatenate([part[f][term] for part in parts])
                np.testing.assert_array_equal(found, plain[f][term])
        for term in range(2):
            found = np.concatenate([part[-1][term] for part in parts])
            known = [i for i, row in enumerate(wanted) if row[term] is not None]
            own = [wanted[i][term] for i in known]
            np.testing.assert_allclose(found[known], own, rtol=1e-9, atol=1e-7)


def test_the_last_label_of_the_same_key_by_hand() -> None:
    """Two shops in turns, whose labels are 10 and 20, and once 12."""
    y = np.array([10.0, 20.0, 10.0, 20.0, 12.0, 20.0, 12.0])
    earlier = np.array([np.nan, np.nan, 10.0, 20.0, 10.0, 20.0, 12.0])
    every = np.ones(len(y), np.bool_)
    found = Baselines("regression", lag_of_key=1).terms(y, np.ones(len(y)), 1, every, earlier)
    assert found[1][1].tolist() == [0.0, 10.0, 10.0, 10.0, 8.0, 8.0, 8.0]
    # A first row of a key is forecast as the mean: 10 before the second one.
    assert found[2][1].tolist() == [0.0, 10.0, 0.0, 0.0, 2.0, 0.0, 0.0]
    labels = Baselines("classification", lag_of_key=1)
    y, earlier = np.array([0.0, 1, 0, 1, 0]), np.array([np.nan, np.nan, 0, 1, 0])
    hits = labels.terms(y, np.ones(5), 2, every[:5], earlier)[2][1]
    assert hits.tolist() == [1.0, 0.0, 1.0, 1.0, 1.0]
    assert labels.to_json()["lag_of_key"] == 1
    for other in (None, 2):
        with pytest.raises(ValueError, match="baselines"):
            Baselines("classification", lag_of_key=other).load_json(labels.to_json())
    for wrong in (0, True, 1.5, "1"):
        with pytest.raises(ValueError, match="lag_of_key"):
            Baselines("regression", lag_of_key=wrong)


def test_names_in_words() -> None:
    assert baseline_in_words("last_label_of_key") == "last label of the same key"
    assert baseline_in_words("label_7_back_of_key") == "label 7 rows of the same key back"
    assert baseline_in_words("mean") == "mean so far"
    assert [is_of_key(name) for name in Baselines("regression", True, 7).names] == [
        False, False, False, True,
    ]  # fmt: skip
    assert is_of_key(Baselines("regression", lag_of_key=1).names[-1])


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_no_forecast_knows_a_label_of_its_own_row_or_a_later_one(task: str) -> None:
    n, k = 300, 3
    y, w, turns = rows_of(task, n, k)
    other = y.copy()
    other[200:] = y[200:][::-1]
    result = [Baselines(task, True).terms(labels, w, k, turns) for labels in (y, other)]
    for f in range(3):
        np.testing.assert_array_equal(result[0][f][0][:200], result[1][f][0][:200])
    assert not np.array_equal(result[0][0][0][200:], result[1][0][0][200:])


def test_labels_that_always_repeat_are_known_and_those_that_never_do_are_not() -> None:
    n = 2000
    sorted_labels, alternating = np.repeat([0.0, 1.0], n // 2), np.arange(n) % 2 * 1.0
    every = np.ones(n, np.bool_)
    for y, accuracy in ((sorted_labels, (n - 2) / n), (alternating, 0.0)):
        _, (loss, hits) = Baselines("classification").terms(y, np.ones(n), 2, every)
        assert hits[1:].mean() == pytest.approx(accuracy, abs=1e-3)
        assert loss[1:].mean() < 0.01  # that labels alternate is known as well


@pytest.mark.parametrize(
    "change",
    [
        {"weight": -1.0},
        {"weight": "x"},
        {"last": [0.0]},
        {"last": [7.0, None]},
        {"counts": [-1.0]},
        {"leader": 0.5},
        {"repeats": [[1.0, 2.0], [0.0, 0.0]]},
        {"repeats": [[1.0], [0.0, 0.0]]},
    ],
)
def test_damaged_baselines_are_refused(change: dict) -> None:
    made = Baselines("classification")
    y, w, turns = rows_of("classification", 50, 3)
    made.terms(y, w, 3, turns)
    Baselines("classification").load_json(made.to_json())
    with pytest.raises((KeyError, TypeError, ValueError)):
        Baselines("classification").load_json({**made.to_json(), **change})
