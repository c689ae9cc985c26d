"""Scores of feature scales: against the definition, and against forests of other scales."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import numpy as np
import pytest

from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.tree.nodes import fields
from dmondrian.tuning.scale_slopes import scores

ALPHA = 0.3


def rows(n: int, n_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns of all encodings: numbers, whole numbers, two values, one value."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 5)).astype(np.float32)
    X[:, 1] = np.rint(30 * X[:, 1])
    X[:, 2] = X[:, 2] > 0.7
    X[:, 3] = 2.5
    y = (X[:, 0] + X[:, 2] + 0.3 * rng.random(n)) / 1.1
    return X, np.floor(n_classes * y / 2.4) if n_classes else y, rng.integers(1, 4, n).astype(float)


def parameters(d: int, n_classes: int) -> ForestParameters:
    if n_classes:
        estimator = AMFClassifier(alpha=ALPHA, charge_opening=False, random_state=3)
        return estimator._forest_parameters(d, n_classes)
    return AMFRegressor(random_state=3)._forest_parameters(d)


def by_definition(
    forest: Ensemble, X: np.ndarray, y: np.ndarray, slopes: np.ndarray, w: np.ndarray
) -> np.ndarray:
    """Return what `scores` does, node by node in plain Python."""
    n_classes, sums = forest.parameters.n_classes, np.zeros((2, X.shape[1]))
    worth: dict[tuple[int, int], float] = defaultdict(float)
    weight: dict[tuple[int, int], float] = defaultdict(float)
    depth: dict[tuple[int, int], int] = {}
    trees = [fields(tree) for tree in forest.trees]

    def forecast(t: int, v: int, label: float) -> float:
        tree = trees[t]
        if n_classes:
            counts = tree["stat"][v]
            return (counts[1 + int(label)] + ALPHA) / (counts[0] + n_classes * ALPHA)
        n, total = tree["stat"][v][:2]
        return total / n  # less a constant, which no difference has

    for t, tree in enumerate(trees):
        root = int(np.flatnonzero(tree["parent"] < 0)[0])
        stop = tree["odds"] * 2.0 ** (256.0 * tree["odds_exponent"])
        stop = stop / (1.0 + stop)
        for r, x in enumerate(X):
            way, v = [], root
            while tree["left"][v] >= 0:
                way.append(v)
                goes_left = x[tree["feature"][v]] <= tree["threshold"][v]
                v = int(tree["left" if goes_left else "right"][v])
            mixed = [forecast(t, v, y[r])]
            for v in reversed(way):
                mixed.append(stop[v] * forecast(t, v, y[r]) + (1.0 - stop[v]) * mixed[-1])
            mixed.reverse()
            rest = 1.0
            for k, v in enumerate(way):
                rest *= 1.0 - stop[v]
                worth[t, v] += slopes[r] * rest * (mixed[k + 1] - forecast(t, v, y[r]))
                weight[t, v] += w[r] * rest
                depth[t, v] = k
    for key, gained in worth.items():
        t, v = key
        level = [other for other in worth if depth[other] == depth[key]]
        mean = sum(worth[other] for other in level) / sum(weight[other] for other in level)
        surplus = gained - mean * weight[key]
        extent = trees[t]["upper"][v].astype(float) - trees[t]["lower"][v]
        share = extent / extent.sum()
        sums[0] += surplus * ((np.arange(X.shape[1]) == trees[t]["feature"][v]) - share)
        sums[1] += surplus**2 * share * (1.0 - share)
    return sums


@pytest.mark.parametrize("n_classes", [0, 3])
def test_scores_are_those_of_their_definition(n_classes: int) -> None:
    X, y, w = rows(160, n_classes)
    forest = Ensemble(parameters(5, n_classes), range(3))
    forest.update(X[:120], y[:120], w[:120])
    slopes = np.random.default_rng(1).standard_normal(40)
    given = X[120:], y[120:], slopes, w[120:]
    found = scores(forest, *given)
    assert np.allclose(found, by_definition(forest, *given), rtol=1e-9, atol=1e-12)
    assert found[:, 3].tolist() == [0.0, 0.0]  # a column that does not vary is never split
    assert (found[:, :3] != 0.0).all()
    assert scores(forest, *given, n_threads=3).tobytes() == found.tobytes()


def test_a_score_is_the_derivative_of_what_trees_forecast() -> None:
    X, y, w = rows(200, 0, seed=2)
    drawn, n_trees, step = parameters(5, 0), 1000, 2.0**0.25

    def gain(scales: np.ndarray) -> tuple[float, Ensemble]:
        """The mean over trees of a sum of forecasts, weighted by whether they are too low."""
        own = dataclasses.replace(drawn, feature_scales=tuple(scales.tolist()))
        forest = Ensemble(own, range(n_trees))
        forest.update(X[:150], y[:150], w[:150])
        mean = forest.predict_sums(X[150:]).total[:, 0] / n_trees
        return float(slopes @ mean), forest

    slopes = y[150:] - y.mean()  # a forecast that follows the label gains
    ones = np.ones(5)
    _, forest = gain(ones)
    found = scores(forest, X[150:], y[150:], slopes, w[150:])[0]
    expected = np.zeros(5)
    for j in (0, 1, 2, 4):
        up, down = (np.where(np.arange(5) == j, by, ones) for by in (step, 1.0 / step))
        expected[j] = (gain(up)[0] - gain(down)[0]) / (2.0 * np.log(step))
    assert np.allclose(found / n_trees, expected, atol=0.1 * np.abs(expected).max())
