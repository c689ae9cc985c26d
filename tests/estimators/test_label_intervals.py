"""Quantiles and intervals from the labels of cells: a slow mixture, coverage, what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dmondrian
from dmondrian import (
    ConvexLoss,
    GeneralizedMondrianForestRegressor,
    MondrianForestRegressor,
)
from dmondrian.errors import DataError, ParameterError
from tests.estimators.test_amf import rows

Regressor = GeneralizedMondrianForestRegressor


def labels(X: np.ndarray, seed: int = 1) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_t(3, len(X))
    return np.round(np.sin(6.0 * X[:, 0]) + (0.2 + X[:, 1]) * noise, 1)


def fitted(**options: Any) -> Regressor:
    given = {"loss": "quantile", "max_rows_per_leaf": 512, "random_state": 0, **options}
    return Regressor(4, **given).fit(rows(), labels(rows()))


def slow_mixture(forest: Regressor, x: np.ndarray, levels: list[float]) -> list[float]:
    """Return quantiles from the rows below the cell of ``x`` in each tree, routed one by one."""
    X, y = rows(), labels(rows())
    values: list[float] = []
    shares: list[float] = []
    for t, lifetime in enumerate(forest.lifetimes_):
        reported = forest.nodes(t)

        def cell(row: np.ndarray, reported: dict = reported, at: float = lifetime) -> int:
            v = reported["root"]
            while reported["left"][v] >= 0 and reported["time"][v] <= at:
                goes_left = row[reported["feature"][v]] <= reported["threshold"][v]
                v = reported["left"][v] if goes_left else reported["right"][v]
            return int(v)

        mine = [label for row, label in zip(X, y, strict=True) if cell(row) == cell(x)]
        values += mine
        shares += [1.0 / (4.0 * len(mine))] * len(mine)
    order = np.argsort(values)
    upto, found = np.cumsum(np.array(shares)[order]), []
    for level in levels:
        first = np.array(values)[order][upto >= level - 1e-12][0]
        behind = np.array(values)[order][upto > level + 1e-12][0]
        found.append(0.5 * (first + behind))
    return found


@pytest.mark.parametrize("lifetime", [3.0, "penalized"])
def test_quantiles_are_those_of_the_labels_of_all_cells(lifetime: Any) -> None:
    forest, levels = fitted(lifetime=lifetime, penalty=0.002, max_lifetime=20.0), [0.1, 0.5, 0.75]
    found = forest.predict_quantiles(rows(40, seed=5), levels)
    expected = [slow_mixture(forest, x, levels) for x in rows(40, seed=5)]
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-12)
    assert len(np.unique(found[:, 0])) > 5
    threads = forest.set_params(n_jobs=2)
    assert np.array_equal(threads.predict_quantiles(rows(40, seed=5), levels), found)
    alone = [forest.predict_quantiles(rows(40, seed=5)[i : i + 1], levels)[0] for i in range(3)]
    assert np.array_equal(alone, found[:3])


def test_one_tree_predicts_what_its_cells_hold() -> None:
    X, levels = rows(), [0.05, 0.5, 0.9]
    forest = Regressor(1, loss="quantile", quantile=levels, lifetime=4.0, random_state=0)
    forest.fit(X, labels(X))
    query = rows(100, seed=3)
    assert np.array_equal(forest.predict_quantiles(query, levels), forest.predict(query))
    at = forest.predict_quantiles(query, levels, lifetime=1.0)
    assert np.array_equal(at, forest.predict(query, lifetime=1.0))


def test_calibrated_intervals_cover(tmp_path) -> None:
    X, more, new = rows(1500, seed=1), rows(900, seed=2), rows(2000, seed=3)
    for lifetime in (40.0, 2.0):
        forest = Regressor(
            8, loss="quantile", max_rows_per_leaf=16, lifetime=lifetime, random_state=0
        ).fit(X, labels(X))
        forest.calibrate_intervals(more, labels(more, 4), coverage=0.8)
        lower, upper = forest.predict_interval(new, coverage=0.8, calibrated=True)
        y = labels(new, 5)
        assert 0.76 < ((lower <= y) & (y <= upper)).mean() < 0.85
        assert (lower <= upper).all()
    with pytest.raises(ParameterError, match=r"coverage 0\.9 are not calibrated"):
        forest.predict_interval(new, coverage=0.9, calibrated=True)
    forest.save(tmp_path / "m")
    again = dmondrian.load(tmp_path / "m").predict_interval(new, coverage=0.8, calibrated=True)
    assert np.array_equal(again, (lower, upper))
    few = forest.calibrate_intervals(more[:3], labels(more)[:3], coverage=0.8)
    assert np.isinf(few.predict_interval(new, coverage=0.8, calibrated=True)).all()
    few.partial_fit(X[:1], [0.0])
    with pytest.raises(ParameterError, match="are not calibrated, or rows were learned since"):
        few.predict_interval(new, coverage=0.8, calibrated=True)


def test_empty_cells_that_say_zero_are_labels_of_zero() -> None:
    X = np.array([[0.1, 0.1], [0.12, 0.1]], np.float32)
    options = {"loss": "quantile", "lifetime": 6.0, "domain": "cube", "random_state": 0}
    prior = Regressor(3, empty_cell="prior", **options).fit(X, [5.0, 5.0])
    query = rows(200, seed=2)[:, :2]
    share = 1.0 - prior.predict(query) / 5.0  # of trees that say 0
    for level in (0.2, 0.5, 0.9):
        reported = prior.predict_quantiles(query, [level])[:, 0]
        assert np.array_equal(reported, np.where(share > level, 0.0, 5.0))


def test_losses_without_labels_have_no_quantiles() -> None:
    with pytest.raises(ParameterError, match="cells keep labels for quantiles"):
        fitted(loss="squared").predict_quantiles(rows(), [0.5])
    with pytest.raises(ParameterError, match="that increase"):
        fitted().predict_quantiles(rows(), [0.5, 0.2])
    own = ConvexLoss(lambda z, y: abs(z - y), lambda z, y: 1.0 if z > y else -1.0)
    mine, built_in = fitted(loss=own, lifetime=3.0), fitted(lifetime=3.0)
    reported = mine.predict_quantiles(rows(), [0.3])
    assert np.array_equal(reported, built_in.predict_quantiles(rows(), [0.3]))


def test_held_out_rows_are_frames_as_they_were_learned() -> None:
    """With categories, missing values and names, which are checked once."""
    x, towns = rows(200)[:, 0], pd.CategoricalDtype(["Graz", "Linz", "Wien"])
    town = pd.Series(np.array(towns.categories)[np.arange(200) % 3], dtype=towns)
    frame = pd.DataFrame({"town": town, "x": np.where(x < 0.1, np.nan, x)})
    y = x + (frame["town"] == "Wien")
    forest = GeneralizedMondrianForestRegressor(
        3, loss="quantile", categorical_features="from_dtype", missing_values="encode",
        random_state=0,
    ).fit(frame[:100], y[:100])  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forest.calibrate_intervals(frame[100:], y[100:], 0.8)
    lower, upper = forest.predict_interval(frame[100:], 0.8)
    outside = np.maximum(lower - y[100:], y[100:] - upper)
    assert forest.interval_scores_.tolist() == sorted(outside)


@pytest.mark.parametrize(
    "forest",
    [GeneralizedMondrianForestRegressor(2, loss="quantile"), MondrianForestRegressor(2)],
)
def test_held_out_labels_are_numbers(forest: Any) -> None:
    X = rows(50)
    forest.fit(X, X[:, 0])
    with pytest.raises(DataError, match="a regressor learns numbers"):
        forest.calibrate_intervals(X, ["low"] * 50)
