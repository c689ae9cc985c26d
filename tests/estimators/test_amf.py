"""AMFClassifier and AMFRegressor: labels, weights, streams, inspection."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import make_friedman1

from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.errors import DataError, ParameterError


def rows(n: int = 300, d: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((n, d)).astype(np.float32)


def same_forest(a, b) -> bool:
    pairs = zip(a.forest_.state()[1], b.forest_.state()[1], strict=True)
    return all(p[name].tobytes() == q[name].tobytes() for p, q in pairs for name in p)


@pytest.mark.parametrize(
    "labels", [["b", "a"], [3, -1], [True, False], [f"class {c:03d}" for c in range(300)]]
)
def test_labels_of_any_kind(labels) -> None:
    X = rows(900)
    y = np.array(labels)[X[:, 0].argsort().argsort() * len(labels) // 900]
    forest = AMFClassifier(n_estimators=3, charge_opening=False, random_state=0).fit(X, y)
    assert forest.classes_.tolist() == sorted(labels)
    assert (forest.predict(X) == y).mean() > 0.9
    proba = forest.predict_proba(X)
    assert proba.shape == (900, len(labels))
    assert (proba > 0).all()
    np.testing.assert_allclose(proba.sum(axis=1), 1, atol=1e-12)


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("size", [1, 7, 300])
@pytest.mark.parametrize("kind", [AMFClassifier, AMFRegressor])
def test_batches_and_threads_change_no_byte(kind, size, n_jobs) -> None:
    X, y = rows(), (rows(seed=1)[:, 0] > 0.5).astype(int)
    whole = kind(n_estimators=3, random_state=7).fit(X, y)
    parts = kind(n_estimators=3, random_state=7, n_jobs=n_jobs)
    for start in range(0, len(X), size):
        block = slice(start, start + size)
        more = {"classes": [0, 1]} if kind is AMFClassifier else {}
        parts.partial_fit(X[block], y[block], **more)
    assert same_forest(whole, parts)
    big = rows(9000, seed=5)  # several chunks of prediction
    assert np.array_equal(whole.predict(big), parts.predict(big))


def test_a_tree_depends_on_its_number_alone() -> None:
    X, y = rows(), rows(seed=1)[:, 0]
    few, many = (AMFRegressor(n, random_state=3).fit(X, y) for n in (2, 5))
    for tree in range(2):
        for name, array in few.nodes(tree).items():
            assert np.array_equal(array, many.nodes(tree)[name])
    assert not np.array_equal(many.nodes(0)["time"], many.nodes(1)["time"])


def test_whole_weights_equal_repeats() -> None:
    X, y = rows(), (rows(seed=1)[:, 0] > 0.5).astype(int)
    w = np.random.default_rng(0).integers(0, 4, 300)
    for kind in (AMFClassifier, AMFRegressor):
        weighted = kind(n_estimators=2, random_state=1).fit(X, y, sample_weight=w)
        repeated = kind(n_estimators=2, random_state=1).fit(np.repeat(X, w, 0), np.repeat(y, w))
        assert same_forest(weighted, repeated)


def test_large_and_fractional_weights_follow_the_closed_form() -> None:
    """1,000 repeats of a row, by the closed form and one by one; two halves near one whole."""
    X, y = rows(40), (rows(40, seed=1)[:, 0] > 0.5).astype(int)
    w = np.ones(40)
    w[[5, 11]] = 1000.0
    for kind, tolerance in ((AMFClassifier, 1e-9), (AMFRegressor, 1e-6)):
        # A calibration forecasts a row once, whatever its weight.
        given = {"n_estimators": 2, "random_state": 1, "charge_opening": True, "calibrate": False}
        closed, again = kind(**given).fit(X, y, w), kind(**given)
        again.fit(np.repeat(X, w.astype(int), 0), np.repeat(y, w.astype(int)))
        for tree in range(2):
            assert np.array_equal(closed.nodes(tree)["time"], again.nodes(tree)["time"])
        if kind is AMFClassifier:  # the regressor's rate is taken anew within the repeats
            found, expected = closed.predict_proba(X), again.predict_proba(X)
            np.testing.assert_allclose(found, expected, rtol=tolerance)


def test_weights_that_vanish_or_are_negative_are_refused() -> None:
    X, y = rows(3), [0, 1, 0]
    with pytest.raises(ParameterError, match="rescale the weights"):
        AMFClassifier().fit(X, y, sample_weight=[1e9, 1e-12, 1])
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        AMFClassifier().fit(X, y, sample_weight=[1, -1, 1])


def test_the_regressor_ignores_shift_and_scale() -> None:
    X, y = make_friedman1(1500, noise=1.0, random_state=0)
    base = AMFRegressor(random_state=0).fit(X[:1000], y[:1000])
    score = base.score(X[1000:], y[1000:])
    assert score > 0.6
    for shift, scale in ((0.0, 2.0**-20), (0.0, 2.0**30), (1e6, 1.0), (-3.0, 0.1)):
        moved = AMFRegressor(random_state=0).fit(X[:1000], shift + scale * y[:1000])
        back = (moved.predict(X[1000:]) - shift) / scale
        np.testing.assert_allclose(back, base.predict(X[1000:]), rtol=1e-6, atol=1e-6)


def test_outliers_far_beyond_the_range_of_a_float_are_survived() -> None:
    X, y = rows(200), rows(200, seed=1)[:, 0].astype(float)
    y[[50, 150]] = 1e12, -1e15
    found = AMFRegressor(n_estimators=2, random_state=0).fit(X, y).predict(X)
    assert np.isfinite(found).all()


def test_one_class_one_row_and_constant_columns() -> None:
    forest = AMFClassifier(n_estimators=2).fit(rows(20), ["only"] * 20)
    assert forest.predict_proba(rows(3)).tolist() == [[1.0]] * 3
    single = AMFRegressor(n_estimators=2).fit([[1.0, 2.0]], [5.0])
    assert single.predict([[9.0, 9.0]]) == [5.0]
    X = np.hstack([rows(), np.full((300, 1), 7.0, np.float32)])
    grown = AMFClassifier(n_estimators=2, split_pure=True).fit(X, np.arange(300) % 2)
    assert 4 not in grown.nodes(0)["feature"]


def test_new_labels_are_refused_and_nothing_is_learned() -> None:
    forest = AMFClassifier(n_estimators=2, random_state=0)
    with pytest.raises(ValueError, match="classes must be passed"):
        forest.partial_fit(rows(3), [0, 1, 0])
    with pytest.raises(DataError, match=r"labels \[2\].*classes="):
        forest.partial_fit(rows(3), [0, 1, 2], classes=[0, 1])
    forest.partial_fit(rows(3), [0, 1, 0], classes=[0, 1])
    before = forest.predict_proba(rows(9))
    with pytest.raises(DataError, match="labels"):
        forest.partial_fit(rows(3), [0, 5, 0])
    assert np.array_equal(forest.predict_proba(rows(9)), before)
    assert forest.forest_.total_weight == 3


def test_nodes_is_the_documented_dict() -> None:
    X, y = rows(), np.arange(300) % 3
    tree = AMFClassifier(n_estimators=1, random_state=0).fit(X, y).nodes(0)
    keys = ["left", "right", "parent", "feature", "threshold", "time", "n_rows"]
    keys += ["lower", "upper", "counts", "root"]
    assert sorted(tree) == sorted(keys)
    assert len({len(tree[key]) for key in keys if key != "root"}) == 1
    assert tree["counts"][tree["root"]].tolist() == [100, 100, 100]
    assert tree["n_rows"][tree["root"]] == 300
    assert np.array_equal(tree["lower"][tree["root"]], X.min(0))
    means = AMFRegressor(n_estimators=1, random_state=0).fit(X, y).nodes(0)
    assert means["mean"][means["root"]] == pytest.approx(1.0)
    with pytest.raises(ParameterError, match=r"0\.\.0"):
        AMFRegressor(n_estimators=1).fit(X, y).nodes(1)


def test_weighted_depth_rises_where_the_function_is_rough() -> None:
    X = rows(4000, 1)
    y = np.where(X[:, 0] < 0.5, 0.0, np.sin(60 * X[:, 0]))
    forest = AMFRegressor(random_state=0).fit(X, y + np.random.default_rng(1).normal(0, 0.1, 4000))
    smooth = forest.weighted_depth(np.linspace(0.1, 0.4, 50)[:, None]).mean()
    rough = forest.weighted_depth(np.linspace(0.6, 0.9, 50)[:, None]).mean()
    assert 0 < smooth < rough - 1


def test_expected_extension_knows_when_x_is_far() -> None:
    X, y = rows(500), (rows(500)[:, 0] > 0.5).astype(int)
    options = {"n_estimators": 5, "random_state": 0, "split_pure": True, "feature_scales": None}
    options |= {"calibrate": False}
    far = np.full((1, 4), 1e6)
    leaf = AMFClassifier(**options).fit(X, y).predict_proba(far)
    forest = AMFClassifier(predict_extension="expected", **options).fit(X, y)
    assert np.abs(forest.predict_proba(far) - 0.5).max() < np.abs(leaf - 0.5).max()
    assert np.array_equal(forest.predict_proba(far), forest.predict_proba(far))
    assert np.array_equal(
        forest.predict_proba(X[:9]), AMFClassifier(**options).fit(X, y).predict_proba(X[:9])
    )
