"""MondrianForestClassifier and MondrianForestRegressor: lifetimes, domains, what is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

import dmondrian
from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    MondrianForestClassifier,
    MondrianForestRegressor,
    PowerLifetime,
)
from dmondrian.errors import DataError, ParameterError
from tests.estimators.test_amf import rows, same_forest

KINDS = [MondrianForestClassifier, MondrianForestRegressor]
WAYS = [
    (MondrianForestClassifier, {"aggregation": "mean"}),
    (MondrianForestClassifier, {"aggregation": "vote"}),
    (MondrianForestClassifier, {"aggregation": "hierarchy", "lifetime": 5.0}),
    (MondrianForestRegressor, {"domain": "cube", "lifetime": PowerLifetime(1.5, 0.25)}),
    (MondrianForestRegressor, {"aggregation": "hierarchy"}),
]


def labels() -> np.ndarray:
    return (rows(seed=1)[:, 0] > 0.5).astype(int)


@pytest.mark.parametrize(("kind", "options"), WAYS)
def test_batches_weights_and_files_keep_every_byte(kind, options, tmp_path) -> None:
    X, y = rows(), labels()
    w = np.random.default_rng(0).integers(0, 4, 300)
    whole = kind(n_estimators=3, random_state=7, **options).fit(X, y, w)
    parts = kind(n_estimators=3, random_state=7, n_jobs=2, **options)
    more = {"classes": [0, 1]} if kind is MondrianForestClassifier else {}
    X_long, y_long = np.repeat(X, w, 0), np.repeat(y, w)
    for start in range(0, len(X_long), 50):
        parts.partial_fit(X_long[start : start + 50], y_long[start : start + 50], **more)
        if start == 150:
            parts.predict(X)
            parts.save(tmp_path / "model")
            parts = dmondrian.load(tmp_path / "model")
            assert parts.get_params()["lifetime"] == whole.lifetime
    assert same_forest(whole, parts)
    assert np.array_equal(whole.predict(X), parts.predict(X))


@pytest.mark.parametrize(("kind", "options"), WAYS)
def test_stages_are_the_predictions_one_by_one(kind, options) -> None:
    forest = kind(n_estimators=3, random_state=0, **options).fit(rows(), labels())
    query, lifetimes = rows(20, seed=3), [0.1, 1.0, 4.5]
    staged = list(forest.staged_predict(query, lifetimes))
    assert len(staged) == 3
    assert not np.array_equal(staged[0], staged[2])
    for lifetime, found in zip(lifetimes, staged, strict=True):
        assert np.array_equal(found, forest.predict(query, lifetime=lifetime))
    own = forest.predict(query, lifetime=forest.lifetime_)
    assert np.array_equal(own, forest.predict(query))
    if kind is MondrianForestClassifier:
        for found, lifetime in zip(
            forest.staged_predict_proba(query, lifetimes), lifetimes, strict=True
        ):
            assert np.array_equal(found, forest.predict_proba(query, lifetime=lifetime))
            np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)


def test_a_growing_lifetime_follows_the_rows() -> None:
    X, y = rows(), labels()
    forest = MondrianForestRegressor(2, random_state=0).fit(X, y)
    assert forest.lifetime_ == pytest.approx(300.0 ** (1.0 / 6.0), rel=1e-14)
    forest.partial_fit(X, y)
    assert forest.lifetime_ == pytest.approx(600.0 ** (1.0 / 6.0), rel=1e-14)
    other = MondrianForestRegressor(2, lifetime=PowerLifetime(2.0, 0.5)).fit(X, y)
    assert other.lifetime_ == pytest.approx(2.0 * 300.0**0.5, rel=1e-14)
    assert MondrianForestRegressor(2, lifetime=None).fit(X, y).lifetime_ == np.inf
    table = MondrianForestRegressor(2, lifetime={"c": 2, "p": 0.5}).fit(X, y)
    assert table.lifetime_ == other.lifetime_
    for kind in (np.float64, np.float32, np.int64):
        grid = PowerLifetime(kind(2), np.float32(0.5))
        assert grid == PowerLifetime(2.0, 0.5)
        assert type(grid.c) is type(grid.p) is float
    with pytest.raises(ParameterError, match="keys c, p"):
        MondrianForestRegressor(2, lifetime={"c": 2, "power": 0.5}).fit(X, y)


@pytest.mark.parametrize("kind", KINDS)
def test_without_an_end_rows_are_remembered(kind) -> None:
    forest = kind(2, lifetime=None, random_state=0).fit(rows(), labels())
    assert np.array_equal(forest.predict(rows()), labels())


@pytest.mark.parametrize(
    "lifetimes", [[0.0], [-1.0], [2.0, 1.0], [1.0, 1.0], [np.inf, np.inf], [], ["much"], [np.nan]]
)
def test_impossible_lifetimes_are_refused(lifetimes) -> None:
    forest = MondrianForestClassifier(2, random_state=0).fit(rows(), labels())
    with pytest.raises(ParameterError, match="lifetimes should"):
        forest.staged_predict(rows(3), lifetimes)
    with pytest.raises(ParameterError, match="lifetimes should"):
        forest.staged_predict_proba(rows(3), lifetimes)


@pytest.mark.parametrize("lifetime", [0.0, -2.0, "much", True])
def test_an_impossible_lifetime_is_refused(lifetime) -> None:
    for kind in KINDS:
        forest = kind(2, random_state=0).fit(rows(), labels())
        with pytest.raises(ParameterError, match="lifetime"):
            forest.predict(rows(3), lifetime=lifetime)
        if lifetime is not True:  # scikit-learn takes it for the number 1
            with pytest.raises(ValueError, match="lifetime"):
                kind(2, lifetime=lifetime).fit(rows(), labels())
    with pytest.raises(ParameterError, match="should be > 0"):
        PowerLifetime(1.0, -0.5)
    with pytest.raises(ParameterError, match="should be > 0"):
        PowerLifetime(True, 0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_horizon_cannot_be_passed(kind) -> None:
    forest = kind(2, lifetime=3.0, random_state=0).fit(rows(), labels())
    forest.predict(rows(3), lifetime=3.0)
    with pytest.raises(ParameterError, match="realised up to 3 only"):
        forest.predict(rows(3), lifetime=3.5)


@pytest.mark.parametrize("kind", [*KINDS, AMFClassifier, AMFRegressor])
def test_rows_outside_the_cube_are_named_or_moved(kind) -> None:
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame(rows(), columns=list("abcd"))
    outside = X.copy()
    outside.loc[7, "c"] = 1.5
    options = {"domain": "cube", "random_state": 0}
    options |= {"calibrate": False} if kind is AMFClassifier else {}
    forest = kind(2, **options).fit(X, labels())
    for call in (forest.predict, lambda x: forest.partial_fit(x, labels()), forest.weighted_depth):
        with pytest.raises(DataError, match=r"column 'c' has values in .*1\.5\]"):
            call(outside)
    with pytest.raises(DataError, match="column 2 "):
        forest.forest_.predict_sums(outside.to_numpy())
    clipped = kind(2, clip=True, **options).fit(outside, labels())
    assert clipped.n_clipped_ == 1
    outside.loc[7, "c"] = 1.0
    moved = kind(2, **options).fit(outside, labels())
    assert moved.n_clipped_ == 0
    assert same_forest(moved, clipped)


def test_scales_are_of_the_range_only() -> None:
    with pytest.raises(ParameterError, match="feature_scales"):
        AMFClassifier(domain="cube", feature_scales="learned").fit(rows(), labels())


def test_the_hierarchy_knows_how_sure_it_is() -> None:
    rng = np.random.default_rng(0)
    X = rng.random((2000, 2)).astype(np.float32)
    y = np.sin(6.0 * X[:, 0]) + rng.normal(0.0, 0.2, 2000)
    forest = MondrianForestRegressor(aggregation="hierarchy", lifetime=30.0, random_state=0)
    mean, std = forest.fit(X[:1500], y[:1500]).predict(X[1500:], return_std=True)
    assert np.array_equal(mean, forest.predict(X[1500:]))
    assert (std > np.sqrt(y[:1500].var() / 500.0)).all()  # the noise, and what is not known
    far = forest.predict([[50.0, -50.0]], return_std=True)[1]
    assert far[0] > 1.5 * std.mean()
    at = forest.predict(X[:3], lifetime=2.0, return_std=True)
    assert np.array_equal(at[0], forest.predict(X[:3], lifetime=2.0))
    cells = MondrianForestRegressor(5, lifetime=5.0, random_state=0).fit(X, y)
    mean, std = cells.predict(X[:9], return_std=True)
    assert np.array_equal(mean, cells.predict(X[:9]))
    assert (std > 0.0).all()
    assert std.mean() < y.std()  # cells tell labels apart


def test_amf_learns_on_the_cube() -> None:
    X, y = rows(2000), rows(2000)[:, 0] > 0.5
    given = {"domain": "cube", "calibrate": False, "random_state": 0}
    forest = AMFClassifier(**given).fit(X[:1500], y[:1500])
    assert forest.score(X[1500:], y[1500:]) > 0.9
    smooth = AMFRegressor(**given).fit(X[:1500], X[:1500, 0])
    assert smooth.score(X[1500:], X[1500:, 0]) > 0.8
    with pytest.raises(ParameterError, match="own lifetime"):
        forest.forest_.predict_sums(X, lifetimes=np.array([1.0]))


@pytest.mark.thorough
def test_amf_calibrates_on_the_cube() -> None:
    X, y = rows(2000), rows(2000)[:, 0] > 0.5
    forest = AMFClassifier(domain="cube", random_state=0).fit(X[:1500], y[:1500])
    assert forest.score(X[1500:], y[1500:]) > 0.9


def test_merged_estimators_are_the_one_that_learned_all_rows() -> None:
    X, y = rows(), labels()
    given = {"n_estimators": 3, "domain": "cube", "random_state": 5}
    whole = MondrianForestClassifier(**given).fit(X, y)
    parts = [MondrianForestClassifier(**given).fit(X[k::3], y[k::3]) for k in range(3)]
    merged = parts[0].merge(*parts[1:])
    assert merged.classes_.tolist() == whole.classes_.tolist()
    assert merged.lifetime_ == whole.lifetime_ > parts[0].lifetime_
    assert (merged.predict_proba(X) == whole.predict_proba(X)).all()
    merged.partial_fit(X, y)
    whole.partial_fit(X, y)
    assert (merged.predict_proba(X) == whole.predict_proba(X)).all()


def test_estimators_that_cannot_be_merged_say_why() -> None:
    X, y = rows(), labels()
    one = MondrianForestClassifier(domain="cube", random_state=5).fit(X, y)
    other_classes = MondrianForestClassifier(domain="cube", random_state=5).fit(X, y + 1)
    with pytest.raises(ParameterError, match="name all classes"):
        one.merge(other_classes)
    with pytest.raises(ParameterError, match="got MondrianForestRegressor"):
        one.merge(MondrianForestRegressor(domain="cube", random_state=5).fit(X, y))
    with pytest.raises(ParameterError, match="parameters or trees"):
        one.merge(MondrianForestClassifier(domain="cube", random_state=6).fit(X, y))
    ranged = MondrianForestClassifier(random_state=5).fit(X, y)
    with pytest.raises(ParameterError, match="on the cube"):
        ranged.merge(ranged)
    with pytest.raises(NotFittedError):
        one.merge(MondrianForestClassifier(domain="cube", random_state=5))


def test_forests_of_other_columns_or_changed_parameters_are_not_merged() -> None:
    X, y = rows(), labels()
    frame = pd.DataFrame(X, columns=[f"c{j}" for j in range(X.shape[1])])
    named, plain, turned = (
        MondrianForestClassifier(domain="cube", random_state=5).fit(one, y)
        for one in (frame, X, frame.iloc[:, ::-1])
    )
    with pytest.raises(ParameterError, match="the same names in the same order"):
        named.merge(plain, turned)
    for one, other in ((named, plain), (plain, named)):
        assert one.merge(other).feature_names_in_.tolist() == frame.columns.tolist()
    with pytest.raises(ParameterError, match="parameters changed after the first rows"):
        plain.merge(named.set_params(lifetime=50.0))


def test_a_table_of_the_lifetime_that_was_changed_in_place_is_noticed() -> None:
    table = {"c": 1.0, "p": 0.2}
    forest = MondrianForestClassifier(lifetime=table, random_state=5).fit(rows(), labels())
    table["c"] = 9.0
    with pytest.raises(ParameterError, match=r"lifetime=.*9\.0"):
        forest.partial_fit(rows(), labels())


def test_no_classes_are_refused() -> None:
    with pytest.raises(ParameterError, match="classes is empty"):
        MondrianForestClassifier(random_state=5).partial_fit(rows(), labels(), classes=[])
