"""Feature scales given as an array: what is taken, kept and shown."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dmondrian
from dmondrian import AMFClassifier, AMFRegressor, MondrianForestRegressor
from dmondrian.ensemble.settings.feature_units import round_to
from dmondrian.errors import ParameterError
from dmondrian.estimators import ALGORITHMS
from dmondrian.estimators.feature_scales import thresholds_of_given
from tests.estimators.test_amf import same_forest
from tests.estimators.test_scales import leaves_of

SCALES = [0.3, 7.0, 1e-3]


def rows(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.random((n, 3)).astype(np.float32)
    return X, (X[:, 0] > 0.5).astype(int)


@pytest.mark.parametrize(
    "kind", [k for k in ALGORITHMS.values() if "feature_scales" in k().get_params()]
)
def test_given_scales_multiply_the_columns(kind: type) -> None:
    X, y = rows()
    given = kind(3, feature_scales=SCALES, random_state=0).fit(X, y)
    outside = kind(3, feature_scales=None, random_state=0).fit(X * np.array(SCALES, np.float32), y)
    assert given.feature_scales_.tolist() == np.array(SCALES, np.float32).tolist()
    for mine, other in zip(given.forest_.state()[1], outside.forest_.state()[1], strict=True):
        assert all(mine[name].tobytes() == other[name].tobytes() for name in mine)
    found, expected = given.predict(X), outside.predict(X * np.array(SCALES, np.float32))
    assert (found == expected).all()


def test_given_scales_are_stored_and_compared(tmp_path: Path) -> None:
    X, y = rows()
    whole = AMFClassifier(2, feature_scales=SCALES, random_state=0).fit(X, y)
    for scales in (SCALES, tuple(SCALES), np.array(SCALES), pd.Series(SCALES)):
        begun = AMFClassifier(2, feature_scales=scales, random_state=0)
        begun.partial_fit(X[:100], y[:100], classes=[0, 1])
        folder = tmp_path / type(scales).__name__
        begun.save(folder)
        for again in (begun, dmondrian.load(folder), pickle.loads(pickle.dumps(begun))):
            assert same_forest(whole, again.partial_fit(X[100:], y[100:]))
    scales = np.array(SCALES)
    changed = AMFClassifier(2, feature_scales=scales, random_state=0).fit(X, y)
    scales[1] = 2.0
    with pytest.raises(ParameterError, match="feature_scales"):
        changed.partial_fit(X, y)


def test_learned_scales_can_be_given() -> None:
    rng = np.random.default_rng(1)
    X = rng.random((800, 3)).astype(np.float32)
    y = np.sin(20.0 * X[:, 0])
    learned = AMFRegressor(2, feature_scales="learned", warmup_rows=600, random_state=0)
    learned.fit(X, y)
    assert (learned.feature_scales_ != 1.0).any()
    given = AMFRegressor(2, feature_scales=learned.feature_scales_, random_state=0).fit(X, y)
    assert same_forest(learned, given)


@pytest.mark.parametrize(
    ("scales", "reported"),
    [
        ([1.0, 1.0], r"shape \(2,\), expected \(3,\)"),
        ([[1.0, 1.0, 1.0]], r"shape \(1, 3\)"),
        ([1.0, 0.0, 1.0], r"feature_scales\[1\] is"),
        ([1.0, 1.0, -2.0], r"feature_scales\[2\] is"),
        ([float("nan"), 1.0, 1.0], r"feature_scales\[0\] is"),
        ([1.0, float("inf"), 1.0], r"feature_scales\[1\] is"),
        ([1.0, 1e39, 1.0], r"feature_scales\[1\] is"),
        ([1.0, 1e-40, 1.0], r"feature_scales\[1\] is"),
        (["a", "b", "c"], "should be numbers"),
        (["a", 1.0, 1.0], "should be numbers"),
        ("lerned", "'feature_scales' parameter"),
        (2.0, "'feature_scales' parameter"),
    ],
)
def test_impossible_scales_are_refused(scales: object, reported: str) -> None:
    X, y = rows(20)
    forest = AMFRegressor(feature_scales=scales)
    with pytest.raises(ValueError, match=reported):
        forest.fit(X, y)
    assert not hasattr(forest, "forest_")


def test_a_product_beyond_float32_is_refused() -> None:
    X, y = rows(20)
    forest = MondrianForestRegressor(2, feature_scales=[1.0, 1e30, 1.0]).fit(X, y)
    X[3, 1] = 1e10
    for call in (forest.predict, lambda x: forest.partial_fit(x, y)):
        with pytest.raises(ParameterError, match="feature 1 times its feature scale, 1e"):
            call(X)


def test_a_row_goes_the_same_way_by_the_thresholds_that_are_reported() -> None:
    rng = np.random.default_rng(2)
    n = 20_000
    scales = (rng.random(n) * 10.0 ** rng.integers(-6, 7, n)).astype(np.float32)
    thresholds = (rng.standard_normal(n) * 10.0 ** rng.integers(-6, 7, n)).astype(np.float32)
    units = np.exp2(np.floor(np.log2(np.abs(thresholds))) - rng.integers(-1, 16, n))
    thresholds[::4] = np.rint(thresholds[::4] / units[::4]) * units[::4]  # multiples themselves
    thresholds[1::4] += np.float32(0.5) * units[1::4].astype(np.float32)
    units[::5] = 0.0
    for has_units in (False, True):
        given = dataclasses.replace(
            AMFRegressor(random_state=0)._forest_parameters(n),
            feature_scales=tuple(scales.tolist()),
            feature_units=tuple(units.tolist()) if has_units else None,
        )

        def seen(x: np.ndarray, is_rounded: bool = has_units) -> np.ndarray:
            scaled, each = x * scales, np.where(units > 0.0, units, 1.0)
            return np.where((units > 0.0) & is_rounded, round_to(scaled, each), scaled)

        reported = thresholds_of_given(thresholds, np.arange(n), given)
        assert reported.dtype == np.float32
        assert (seen(reported) <= thresholds).all()
        assert (seen(np.nextafter(reported, np.float32(np.inf))) > thresholds).all()
        assert (reported != thresholds / scales).any()  # else the quotient would do


def test_nodes_route_rows_in_the_units_of_the_data() -> None:
    X, y = rows(2000)
    given = {"feature_scales": SCALES, "use_aggregation": False, "random_state": 0}
    for units in (None, "auto"):
        forest = AMFRegressor(1, **given, feature_units=units).fit(X, y)
        nodes, wrong = forest.nodes(0), forest.feature_units_ / forest.feature_scales_ / 2.0
        apart = np.abs(nodes["lower"][nodes["root"]] - X.min(axis=0))
        assert (apart <= wrong + 1e-6 * np.abs(X.min(axis=0))).all()
        assert (nodes["mean"][leaves_of(nodes, X)] == forest.predict(X)).all()
