"""Columns are rounded to units of their first rows, the same whatever comes how."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path

import numba
import numpy as np
import pytest
from sklearn.base import is_classifier

import dmondrian
from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestClassifier,
    GeneralizedMondrianForestRegressor,
    MondrianForestClassifier,
    MondrianForestRegressor,
    OnlineRandomForestRegressor,
)
from dmondrian.ensemble.settings.feature_units import are_units, round_to, units_of
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CorruptError
from dmondrian.estimators.base import BaseForest
from dmondrian.estimators.load import estimator_of
from dmondrian.estimators.save import plain_params
from dmondrian.forest.forest import Forest
from dmondrian.tree.quantization import round_rows, rounded
from dmondrian.tuning.auto_settings import UNIT_ROWS
from tests.estimators.test_amf import same_forest
from tests.estimators.test_scales import leaves_of

N = 900
FIXED = {"alpha": 0.25, "charge_opening": False, "feature_scales": None}


def rows(n: int = N) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 6)) * np.exp2(rng.integers(-9, 9, 6))
    X[:, 2] = np.exp(4.0 * rng.normal(size=n))  # most of its values lie in a few steps
    X[:, 3] = rng.integers(0, 50, n)
    X[:, 4] = rng.integers(0, 2, n)
    X[:, 5] = 0.3
    return X.astype(np.float32), (X[:, 0] > 0.1 * X[:, 1]).astype(int)


def test_units_are_fine_and_leave_a_margin() -> None:
    X, _ = rows()
    units = np.array(units_of(X))
    span = np.ptp(X.astype(float), axis=0)
    assert (units > 0.0).tolist() == [True, True, False, True, False, False]
    steps = span[units > 0.0] / units[units > 0.0]
    assert (steps > 2**13).all()
    assert (steps <= 2**14).all()
    assert (round_to(X[:, 3], units[3]) == X[:, 3]).all()  # whole numbers stay
    assert are_units(tuple(units), 6)
    assert np.array_equal(units_of(X * np.float32(2.0**20)), units * 2.0**20)


@pytest.mark.parametrize(
    ("draw", "is_rounded"),
    [
        (lambda rng: rng.random(UNIT_ROWS), True),
        (lambda rng: rng.normal(size=UNIT_ROWS), True),
        (lambda rng: rng.exponential(size=UNIT_ROWS), True),
        (lambda rng: rng.lognormal(sigma=3.0, size=UNIT_ROWS), False),
        (lambda rng: rng.standard_cauchy(UNIT_ROWS), False),
        (lambda rng: rng.choice([0.0, 1e-6, 1.0], UNIT_ROWS), False),  # made equal
        (lambda rng: rng.choice([0.0, 1e-3, 1.0], UNIT_ROWS), True),  # not so
        (
            lambda rng: np.where(
                rng.random(UNIT_ROWS) < 0.05, rng.integers(0, 99_999, UNIT_ROWS), 0
            ),
            True,
        ),
    ],
)
def test_columns_of_few_values_far_out_are_not_rounded(draw, is_rounded: bool) -> None:
    for seed in range(5):
        X = draw(np.random.default_rng(seed)).astype(np.float32)[:, None]
        assert (units_of(X) is not None) == is_rounded


def test_most_features_are_rounded_or_none() -> None:
    X, _ = rows()
    assert units_of(X[:, [0, 2]]) is not None
    assert units_of(X[:, [0, 2, 2]]) is None
    assert units_of(X[:, [0, 2, 2, 4, 4]]) is None  # two values do not count
    assert units_of(X[:, [5, 5]]) is None
    assert units_of(X[:1]) is None
    huge = np.array([[-3e38, 1e-40], [3e38, 3e-40], [0.0, 0.0]], np.float32)
    assert units_of(huge) is None  # beyond the units that kernels use


@numba.njit
def compiled(value, unit, per_unit):  # type: ignore[no-untyped-def]  # compiled for what it is given
    return rounded(value, unit, per_unit)


def test_values_are_rounded_to_the_even_of_two_multiples() -> None:
    given = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.4999, 7.3, -7.3, 1e-40, 3e38, -3e38, 2.0**24]
    values, units = np.array(given, np.float32), np.array([0.0, 1.0, 0.25, 2.0**-100, 2.0**100])
    X, out = np.repeat(values[:, None], len(units), axis=1), np.empty((len(values), 5), np.float32)
    round_rows(X, units, out)
    assert out[:, 0].tobytes() == values.tobytes()
    assert out[:, 1].tolist()[:11] == [0, 0, 0, 2, 2, 0, -2, 0, 7, -7, 0]
    assert not np.signbit(out[:, 1:][out[:, 1:] == 0.0]).any()
    for j, unit in enumerate(units[1:], 1):
        assert out[:, j].tobytes() == round_to(values, units[j]).tobytes()
        for way in (compiled, rounded):
            assert [way(value, unit, 1.0 / unit) for value in values] == out[:, j].tolist()
    assert np.isfinite(out).all()


@pytest.mark.parametrize(
    "kind",
    [
        lambda: AMFClassifier(2, **FIXED, random_state=0),
        lambda: AMFClassifier(2, random_state=0, warmup_rows=600),
        lambda: AMFClassifier(2, **FIXED, predict_extension="expected", random_state=0),
        lambda: AMFRegressor(2, feature_scales=[3.0, 1.0, 0.5, 1.0, 1.0, 7.0], random_state=0),
        lambda: AMFRegressor(2, feature_scales=None, calibrate=True, random_state=0),
        lambda: MondrianForestClassifier(2, calibrate=True, random_state=0),
        lambda: MondrianForestRegressor(2, aggregation="hierarchy", lifetime=None, random_state=0),
        lambda: GeneralizedMondrianForestClassifier(2, lifetime="prequential", random_state=0),
        pytest.param(
            lambda: GeneralizedMondrianForestRegressor(
                2, loss="quantile", feature_scales="learned", warmup_rows=600, random_state=0
            ),
            marks=pytest.mark.thorough,
        ),
    ],
    ids=[
        *("fixed", "all auto", "expected", "scaled", "calibrated"),
        *("shares", "hierarchy", "prequential", "median of learned scales"),
    ],
)
def test_cuts_between_calls_and_storing_change_no_byte(kind, tmp_path: Path) -> None:
    X, y = rows()
    whole, parts = kind().fit(X, y), kind()
    more = {"classes": [0, 1]} if is_classifier(whole) else {}
    ends = (0, 300, UNIT_ROWS, UNIT_ROWS + 1, 700)
    for start, stop in itertools.pairwise(ends):
        parts.partial_fit(X[start:stop], y[start:stop], **more)
        assert (parts.feature_units_ > 0.0).any() == (stop > UNIT_ROWS)
        if stop == 300:
            parts.save(tmp_path / "model")
            parts = dmondrian.load(tmp_path / "model")
    parts = pickle.loads(pickle.dumps(parts))
    for r in range(700, N):
        parts.partial_fit(X[r : r + 1], y[r : r + 1])
    assert same_forest(whole, parts)
    assert np.array_equal(whole.feature_units_, parts.feature_units_)
    assert whole.forest_.parameters == parts.forest_.parameters
    stepped = set(whole.forest_.trees[0].columns.stepped.tolist())
    if (whole.feature_scales_ == np.exp2(np.rint(np.log2(whole.feature_scales_)))).all():
        assert stepped >= {0, 1, 3}
    answer = whole.predict_proba if more else whole.predict
    together = answer(X[:40])
    assert (together == np.concatenate([answer(X[r : r + 1]) for r in range(40)])).all()


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (AMFClassifier, FIXED),
        (MondrianForestClassifier, {"aggregation": "hierarchy"}),
        (MondrianForestRegressor, {}),
        (GeneralizedMondrianForestClassifier, {"lifetime": "validation"}),
        pytest.param(
            GeneralizedMondrianForestRegressor,
            {"loss": "huber", "lifetime": "penalized"},
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_forest_of_units_is_one_of_rounded_rows(kind: type, given: dict) -> None:
    X, y = rows()
    forest = kind(2, **given, random_state=0).fit(X, y)
    units = forest.feature_units_
    reported = np.where(units > 0.0, round_to(X, np.where(units > 0.0, units, 1.0)), X)
    assert (reported != X).any()
    plain = kind(2, **given, feature_units=None, random_state=0)
    plain.fit(reported.astype(np.float32), y)
    for mine, other in zip(forest.forest_.state()[1], plain.forest_.state()[1], strict=True):
        assert all(mine[name].tobytes() == other[name].tobytes() for name in mine)
    answer, others = (getattr(f, "predict_proba", f.predict) for f in (forest, plain))
    assert (answer(X) == others(reported.astype(np.float32))).all()
    assert (plain.feature_units_ == 0.0).all()


def test_boxes_of_rounded_rows_take_half_the_memory() -> None:
    X = np.random.default_rng(0).random((3000, 20)).astype(np.float32)
    y = (X[:, 0] > X[:, 1]).astype(int)
    given = {"split_pure": True, "random_state": 0, **FIXED}
    trees = [AMFClassifier(1, **given, feature_units=u).fit(X, y).forest_.trees[0]
             for u in ("auto", None)]  # fmt: skip
    assert [tree.box.shape[1] * 4 for tree in trees] == [20 * 4, 20 * 8]


def test_nodes_and_rows_go_the_same_way() -> None:
    X, y = rows()
    forest = AMFRegressor(1, feature_scales=None, use_aggregation=False, random_state=0)
    nodes = forest.fit(X, y).nodes(0)
    asked = np.concatenate([X, X + np.float32(0.3) * X[::-1]])
    assert (nodes["mean"][leaves_of(nodes, asked)] == forest.predict(asked)).all()


def test_few_rows_and_the_cube_have_no_units() -> None:
    X, y = rows(UNIT_ROWS)
    assert (AMFRegressor(1, feature_scales=None).fit(X, y).feature_units_ == 0.0).all()
    X, y = np.random.default_rng(0).random((600, 2)).astype(np.float32), np.arange(600) % 2
    on_cube = AMFClassifier(1, domain="cube", calibrate=False).fit(X, y)
    assert (on_cube.feature_units_ == 0.0).all()
    other: BaseForest = MondrianForestRegressor(1, domain="cube").fit(X, y)
    assert other.feature_units_.tolist() == [0.0, 0.0]
    other = OnlineRandomForestRegressor(1).fit(X, y)  # its nodes have no boxes
    assert other.feature_units_.tolist() == [0.0, 0.0]


def test_a_column_that_outgrows_16_bits_goes_on_as_floats() -> None:
    X, y = rows()
    X[UNIT_ROWS + 200 :, 0] *= 50.0
    whole = AMFClassifier(2, **FIXED, random_state=0).fit(X, y)
    parts = AMFClassifier(2, **FIXED, random_state=0).fit(X[:600], y[:600])
    assert 0 in parts.forest_.trees[0].columns.stepped
    for start in range(600, N, 50):
        parts.partial_fit(X[start : start + 50], y[start : start + 50])
    assert 0 not in parts.forest_.trees[0].columns.stepped
    assert same_forest(whole, parts)


@pytest.mark.parametrize("kind", [AMFRegressor, MondrianForestRegressor])
def test_models_of_before_there_were_units_have_none(kind: type[BaseForest]) -> None:
    params = plain_params(kind(random_state=0))
    assert estimator_of(kind.algorithm, dict(params)).feature_units == "auto"
    assert params.pop("feature_units") == "auto"
    assert estimator_of(kind.algorithm, params).feature_units is None


@pytest.mark.parametrize(
    "units", [[0.5, 0.3], [0.5, -0.5], [0.5], [0.5, 2.0**101], [0.5, float("nan")], [1, 0.5], "x"]
)
def test_stored_units_that_are_none_are_refused(units: object) -> None:
    X = np.random.default_rng(0).random((600, 2)).astype(np.float32)
    header, trees = AMFRegressor(1, feature_scales=None).fit(X, X[:, 0]).forest_.state()
    assert ForestParameters.from_json(header["parameters"]).feature_units is not None
    header["parameters"]["feature_units"] = units
    with pytest.raises(CorruptError):
        Forest.from_state(header, trees)


def test_parameters_without_units_are_stored_as_before() -> None:
    reported = AMFRegressor(1, random_state=0)._forest_parameters(2).to_json()
    assert "feature_units" not in reported
    assert ForestParameters.from_json(json.loads(json.dumps(reported))).feature_units is None
