"""The test for drift keeps its rate of false alarms, and finds rises soon and where they are."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from dmondrian.distributed.metrics.drift_test import (
    FALSE_ALARMS,
    LEAST_PANES,
    DriftTest,
    drift_advice,
    drift_in_words,
)

PANE = 128


def found_in(means: np.ndarray) -> DriftTest:
    test = DriftTest(PANE)
    for mean in means.tolist():
        test.add(mean)
    return test


def pane_means(draw: np.random.Generator, n: int, kind: str) -> np.ndarray:
    """Means of panes of independent losses of one distribution."""
    if kind == "log loss":  # of a binary label that is forecast with its probability
        share = draw.beta(0.5, 0.5, (n, PANE))
        right = draw.random((n, PANE)) < share
        return -np.log(np.clip(np.where(right, share, 1.0 - share), 1e-15, 1.0)).mean(axis=1)
    if kind == "error":
        return (draw.random((n, PANE)) < 0.05).mean(axis=1)
    if kind == "heavy":  # absolute errors without a third moment
        return np.abs(draw.standard_t(2.5, (n, PANE))).mean(axis=1)
    return draw.exponential(1.0, (n, PANE)).mean(axis=1)


@pytest.mark.parametrize("kind", ["exponential", "log loss", "error", "heavy"])
def test_of_stationary_streams_at_most_the_stated_share_gives_an_alarm(kind: str) -> None:
    n_runs, draw = 400, np.random.default_rng(3)
    runs = [found_in(pane_means(draw, 400, kind)) for _ in range(n_runs)]
    alarms = sum(test.n_found > 0 for test in runs)
    assert alarms <= stats.binom.ppf(0.999, n_runs, FALSE_ALARMS)


def test_the_level_is_reached_and_not_just_kept_by_never_speaking() -> None:
    """Of many short streams some give an alarm: the test is not far below its level."""
    draw = np.random.default_rng(0)
    n_runs = 20_000
    some = draw.normal(1.0, 0.3, (n_runs, 3 * LEAST_PANES))
    # The first test of a stream is at FALSE_ALARMS / 4, and there is one in each of these.
    alarms = sum(found_in(means).n_found > 0 for means in some)
    low, high = stats.binom.ppf([0.0005, 0.9995], n_runs, FALSE_ALARMS / 4)
    assert low <= alarms <= high


def test_a_loss_that_falls_is_no_drift() -> None:
    draw = np.random.default_rng(1)
    means = pane_means(draw, 2000, "exponential") * (0.2 + 1.0 / np.sqrt(1.0 + np.arange(2000)))
    assert found_in(means).n_found == 0


@pytest.mark.parametrize("at", [64, 100, 517])
def test_a_rise_is_found_within_some_windows_and_where_it_is(at: int) -> None:
    draw = np.random.default_rng(at)
    means = pane_means(draw, at + 64, "log loss")
    means[at:] += 0.4
    test = DriftTest(PANE)
    when = next(i for i, mean in enumerate(means.tolist()) if test.add(mean) is not None)
    assert when < at + 4 * LEAST_PANES
    assert test.n_found == 1
    (rise,) = test.rises
    assert rise.before_stop <= at * PANE < rise.stop
    assert rise.after - rise.before > 0.2
    for mean in means[when + 1 :].tolist():
        assert test.add(mean) is None  # it is one rise
    assert test.n_found == 1


def test_a_slow_rise_is_found_by_long_windows_and_a_slight_one_is_not_called_clear() -> None:
    draw = np.random.default_rng(0)
    noise = pane_means(draw, 4000, "log loss") - 0.4
    slow = found_in(0.4 + noise + np.linspace(0.0, 0.1, 4000))
    assert slow.n_found >= 1
    assert slow.rises[0].stop - slow.rises[0].start > 2 * LEAST_PANES * PANE
    assert found_in(10.0 + noise + np.linspace(0.0, 0.1, 4000)).n_found == 0


def test_each_drift_is_counted_once() -> None:
    draw = np.random.default_rng(5)
    means = pane_means(draw, 1200, "log loss")
    for start in (200, 600, 1000):
        means[start : start + 100] += 0.5  # and the forest learns it
    test = found_in(means)
    assert test.n_found == 3
    starts = [rise.start for rise in test.rises]
    assert [start // PANE // 100 for start in starts] == [2, 6, 10]
    assert "(the last of 3 such rises)" in drift_in_words(test, "classification")


def test_losses_without_spread_are_not_compared() -> None:
    assert found_in(np.repeat([0.0, 1.0], 2 * LEAST_PANES)).n_found == 0
    assert found_in(np.repeat([1e-200, 2e-200], 80) * np.linspace(1.0, 1.1, 160)).n_found <= 1


def test_it_goes_on_from_json_to_the_byte() -> None:
    means = pane_means(np.random.default_rng(2), 600, "log loss")
    means[300:] += 0.3
    whole, resumed = found_in(means), DriftTest(PANE, 0)
    for mean in means.tolist():
        resumed.add(mean)
        stored, resumed = json.loads(json.dumps(resumed.to_json())), DriftTest(PANE)
        resumed.load_json(stored)
    assert resumed.to_json() == whole.to_json()
    assert whole.n_found == 1


@pytest.mark.parametrize(
    "change",
    [
        {"n_panes": -1},
        {"open": [0.0] * LEAST_PANES},
        {"levels": [[1, 8, 0.0, 0.0, 8, 0.0]]},
        {"levels": [[1, 9, 0.0, 0.0, 9, 0.0, 0.0]]},
        {"levels": [[0, 8, 0.0, 0.0, 8, 0.0, 0.0]]},
        {"rises": [[0, 1, 2, 3, 0.0, 0.0]]},
        {"n_found": "x"},
    ],
)
def test_damaged_states_are_refused(change: dict) -> None:
    stored = found_in(np.ones(100)).to_json()
    DriftTest(PANE).load_json(stored)
    with pytest.raises((KeyError, TypeError, ValueError)):
        DriftTest(PANE).load_json({**stored, **change})


def test_advice_is_given_where_it_can_be_followed() -> None:
    import inspect

    import dmondrian
    from dmondrian.distributed.metrics.drift_test import FOLLOWING

    names = [name for name in dmondrian.__all__ if hasattr(getattr(dmondrian, name), "algorithm")]
    estimators = [getattr(dmondrian, name) for name in names]
    able = {e.algorithm for e in estimators if "drift" in inspect.signature(e).parameters}
    assert able == set(FOLLOWING)
    assert 'drift="follow"' in drift_advice("amf-classifier", is_following=False)
    assert drift_advice("amf-classifier", is_following=True) == ""
    assert drift_advice("mondrian-classifier", is_following=False) == ""
