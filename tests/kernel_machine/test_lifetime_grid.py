"""A grid of lifetimes ends where errors rise, or where cells are as many as rows can tell apart."""

from __future__ import annotations

import numpy as np

from dmondrian.kernel_machine.lifetime_grid import held_out_errors
from tests.joint_fit.test_minibatch import SGD
from tests.reference.test_ridge import data, parameters


def test_the_grid_stops_when_errors_rise() -> None:
    X, y = data(400)
    weights = np.ones(400)
    held = np.arange(0, 400, 4)
    weights[held] = 0.0
    times, columns, errors = held_out_errors(
        parameters("range", **SGD), 5, (X, y, weights), held, 1, 500.0
    )
    assert (np.diff(times) > 0.0).all()
    assert (np.diff(columns) >= 0).all()
    assert columns[0] < 10
    assert times[-1] < 500.0
    assert errors.min() < 0.3 * errors[0]


def test_the_grid_ends_with_half_as_many_cells_as_rows_or_where_rows_are_equal() -> None:
    X, y = data(20)
    weights, held = np.ones(20), np.arange(0, 20, 4)
    weights[held] = 0.0
    given = parameters("range", **SGD)
    _, columns, _ = held_out_errors(given, 5, (X, y, weights), held, 1, None)
    assert columns[-2] <= 7 * 5 < columns[-1]
    same = np.repeat(X[:1], 20, axis=0)
    same[0] = X[1]
    times, columns, errors = held_out_errors(given, 5, (same, y, weights), held, 1, None)
    assert len(times) == 1
    assert columns.tolist() == [5]
    assert np.isfinite(errors).all()
