"""Windows are the last rows by number, and faded rows count half after as many as stated."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from dmondrian.distributed.metrics.windows import HALF_LIFE, PANE, WINDOW, Windows


def rows_of(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(n)
    y = 1e6 + np.cumsum(draw.normal(size=n))
    w = draw.choice([0.0, 0.5, 1.0, 3.0], n)
    return y, w, draw.exponential(size=(n, 4))


def spread_of(y: np.ndarray, w: np.ndarray) -> float:
    return float(w @ (y - np.average(y, weights=w)) ** 2)


@pytest.mark.parametrize("n", [1, 50, PANE, PANE + 1, WINDOW, WINDOW + 1, 3000, 5 * WINDOW + 77])
def test_sums_are_those_of_their_rows(n: int) -> None:
    y, w, terms = rows_of(n)
    w[-1] = 1.0
    windows = Windows(2)
    list(windows.add(y, w, terms, []))
    last, faded = windows.last(), windows.fade()
    assert last.rows == n if n <= WINDOW else WINDOW <= last.rows < WINDOW + PANE
    assert (n - last.rows) % PANE == 0
    columns = np.concatenate([w[:, None], w[:, None] * terms], axis=1)
    np.testing.assert_allclose(last.columns, columns[n - last.rows :].sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(windows.total, columns.sum(axis=0), rtol=1e-12)
    fading = 2.0 ** (-np.arange(n)[::-1] / HALF_LIFE)
    np.testing.assert_allclose(faded.columns, fading @ columns, rtol=1e-12)
    tail = slice(n - last.rows, n)
    assert last.spread[2] == pytest.approx(spread_of(y[tail], w[tail]), rel=1e-7, abs=1e-9)
    assert faded.spread[2] == pytest.approx(spread_of(y, fading * w), rel=1e-7, abs=1e-9)


def test_neither_cuts_nor_json_between_them_change_a_bit() -> None:
    n = 4000
    y, w, terms = rows_of(n)
    result, yielded = [], []
    for cuts in ([], [1, PANE, PANE + 1, 1000, 3999], range(37, n, 37)):
        windows, stops = Windows(2), []
        for start, stop in itertools.pairwise([0, *cuts, n]):
            part = slice(start, stop)
            wanted = [mark - start for mark in (500, 2500) if start < mark <= stop]
            found = list(windows.add(y[part], w[part], terms[part], wanted))
            stops += [start + place for place in found]
            stored, windows = json.loads(json.dumps(windows.to_json())), Windows(2)
            windows.load_json(stored)
        result.append(windows.to_json())
        yielded.append(stops)
    assert result[0] == result[1] == result[2]
    assert yielded[0] == yielded[1] == yielded[2] == sorted({*range(PANE, n, PANE), 500, 2500})


def test_rows_of_no_weight_at_all_sum_up_to_nothing() -> None:
    windows = Windows(1)
    list(windows.add(np.ones(300), np.zeros(300), np.ones((300, 2)), []))
    assert windows.last().rows == 300
    assert not windows.last().columns.any()
    assert windows.last().spread == windows.fade().spread == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": -1},
        {"rows": 2.0},
        {"rows": 200_000},
        {"total": [1.0]},
        {"pane": ["x"] * 5},
        {"panes": [[[0.0] * 4, [0.0] * 3]] * 8},
        {"panes": []},
        {"faded_spread": [0.0]},
        {"deviations": 1.0},
    ],
)
def test_damaged_sums_are_refused(change: dict) -> None:
    windows = Windows(2)
    list(windows.add(*rows_of(700), []))
    Windows(2).load_json(windows.to_json())
    with pytest.raises((KeyError, TypeError, ValueError)):
        Windows(2).load_json({**windows.to_json(), **change})
