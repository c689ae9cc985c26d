"""Stored kernels: every number that becomes an index or a count is looked at first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dmondrian.ensemble.settings.kernel_settings import Joint
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.stats.cell_values import MARK, WEIGHT
from dmondrian.tree import nodes


def forest(solver: str, n: int = 40) -> Forest:
    parameters = ForestParameters(
        "mondrian-kernel-regressor", 2, 0, 1, aggregation="mean", lifetime=3.0,
        joint=Joint(1, solver),
    )  # fmt: skip
    made = Forest(parameters, range(3))
    X, y = rows(n)
    made.update(X, y)
    return made


def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).random((n, 2), np.float32)
    return X, X[:, 0].astype(np.float64)


@pytest.mark.parametrize("solver", ["sgd", "cholesky"])
@pytest.mark.parametrize("n", [0, 1, 40])
def test_kernels_are_restored(solver: str, n: int) -> None:
    made = forest(solver, n)
    again = Forest.from_state(*made.state())
    X, y = rows(60)
    for each in (made, again):
        each.update(X[n:], y[n:])
    np.testing.assert_array_equal(made.predict_sums(X).total, again.predict_sums(X).total)


@pytest.mark.parametrize("solver", ["sgd", "cholesky"])
@pytest.mark.parametrize("mark", [-1.0, -1e9, 0.25, 1e300, 2.0**60])
def test_marks_are_counts(solver: str, mark: float) -> None:
    header, trees = forest(solver).state()
    stat = trees[1]["stat"]
    stat[np.flatnonzero(stat[:, MARK - nodes.STAT] > 0)[-1], MARK - nodes.STAT] = mark
    with pytest.raises(CorruptError, match="tree 1: its cells' marks"):
        Forest.from_state(header, trees)


@pytest.mark.parametrize("by", [-1.0, 0.5, 1.0, 1e7])
def test_columns_are_those_of_cells(by: float) -> None:
    header, trees = forest("cholesky").state()
    marks = trees[0]["stat"][:, MARK - nodes.STAT]
    marks[np.flatnonzero(marks > 0)[-1]] += by
    with pytest.raises(CorruptError, match="columns that are not those of cells"):
        Forest.from_state(header, trees)
    header, trees = forest("cholesky").state()
    header["exact"] = forest("cholesky", 20).state()[0]["exact"]
    with pytest.raises(CorruptError, match="columns that are not those of cells"):
        Forest.from_state(header, trees)


@pytest.mark.parametrize(
    ("place", "value"), [(nodes.N_ROWS, "inf"), (nodes.N_ROWS, 1.5), (nodes.UNIT, "inf")]
)
def test_counts_of_rows_are_counts(place: int, value: Any) -> None:
    header, trees = forest("sgd").state()
    header["trees"][0]["floats"][place] = value
    with pytest.raises(CorruptError, match="tree 0: its cells' marks and rows"):
        Forest.from_state(header, trees)


def test_no_cell_has_rows_below_zero() -> None:
    header, trees = forest("sgd").state()
    trees[0]["stat"][1, WEIGHT - nodes.STAT] = -1.0
    with pytest.raises(CorruptError, match="tree 0: its cells' marks and rows"):
        Forest.from_state(header, trees)


@pytest.mark.parametrize("domain", ["range", "cube"])
def test_a_ridge_that_roundings_take_is_refused(domain: str) -> None:
    parameters = ForestParameters(
        "mondrian-kernel-regressor", 2, 0, 1, aggregation="mean", lifetime=2.0, domain=domain,
        joint=Joint(1, "cholesky", ridge=1e-6),
    )  # fmt: skip
    made = Forest(parameters, range(4))
    X, y = rows(300)
    made.update(X[:100], y[:100])
    with pytest.raises(ParameterError, match=r"ridge=1e-06 is lost .* larger ridge"):
        made.update(X[100:], y[100:], np.full(200, 1e12))  # the factor is made anew
    assert np.isfinite(made.predict_sums(X).total).all()
    Forest.from_state(*made.state())  # checks what is stored
