"""Losses of the user's own: they equal the built-in ones, and what is no loss is refused."""

from __future__ import annotations

import math
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from numba import config
from scipy.optimize import minimize_scalar

from dmondrian import ConvexLoss, GeneralizedMondrianForestRegressor
from dmondrian.errors import ParameterError
from tests.estimators.test_amf import rows, same_forest

DELTA = 0.7


def huber(z: float, y: float) -> float:
    error = abs(y - z)
    return 0.5 * error * error if error <= DELTA else DELTA * (error - 0.5 * DELTA)


def huber_slope(z: float, y: float) -> float:
    return min(max(z - y, -DELTA), DELTA)


def expectile(z: float, y: float) -> float:
    return (0.9 if y > z else 0.1) * (y - z) ** 2


def expectile_slope(z: float, y: float) -> float:
    return -2.0 * (0.9 if y > z else 0.1) * (y - z)


def poisson(z: float, y: float) -> float:
    return math.exp(z) - y * z


def poisson_slope(z: float, y: float) -> float:
    return math.exp(z) - y


def waves(z: float, y: float) -> float:
    return math.cos(3.0 * (z - y))


def waves_slope(z: float, y: float) -> float:
    return -3.0 * math.sin(3.0 * (z - y))


def labels() -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.sin(6.0 * rows()[:, 0]) + rng.standard_t(2, 300)


def forest(loss: Any, **options: Any) -> GeneralizedMondrianForestRegressor:
    given = {"lifetime": 5.0, "random_state": 0, "n_estimators": 3, **options}
    return GeneralizedMondrianForestRegressor(loss=loss, delta=DELTA, **given)


@pytest.mark.parametrize("size", [8, 512])
@pytest.mark.parametrize("empty", ["parent", "prior"])
@pytest.mark.thorough
def test_huber_s_loss_written_by_hand_is_the_built_in_one(size: int, empty: str) -> None:
    options = {"max_rows_per_leaf": size, "domain": "cube", "empty_cell": empty}
    X, y, query = rows(), labels(), rows(200, seed=9)
    own = forest(ConvexLoss(huber, huber_slope), **options).fit(X, y)
    built_in = forest("huber", **options).fit(X, y)
    assert same_forest(own, built_in)
    np.testing.assert_allclose(own.predict(query), built_in.predict(query), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        own.nodes(1)["risk"], built_in.nodes(1)["risk"], rtol=1e-9, atol=1e-9
    )
    staged = zip(
        own.staged_predict(query, [1.0, 3.0]), built_in.staged_predict(query, [1.0, 3.0]),
        strict=True,
    )  # fmt: skip
    for mine, other in staged:
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-9)
    own.partial_fit(X[:50], y[:50] + 3.0)
    built_in.partial_fit(X[:50], y[:50] + 3.0)
    np.testing.assert_allclose(own.predict(query), built_in.predict(query), rtol=1e-9, atol=1e-9)


def test_the_root_may_lie_far_from_the_labels_and_within_a_bound() -> None:
    X = np.zeros((3, 1), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = forest(ConvexLoss(poisson, poisson_slope)).fit(X, [3e5, 4e5, 5e5])
    assert own.predict(X[:1])[0] == pytest.approx(np.log(4e5), rel=1e-14)
    bounded = forest(ConvexLoss(poisson, poisson_slope), bound=2.0).fit(X, [3e5, 4e5, 5e5])
    assert bounded.predict(X[:1])[0] == pytest.approx(2.0, rel=1e-14)


def test_a_solution_of_the_mean_keeps_no_labels() -> None:
    y = np.exp(labels())
    own = forest(ConvexLoss(poisson, solution=math.log)).fit(rows(), y)
    assert own.forest_.parameters.n_stats == 4
    built_in = forest("poisson", bound=100.0).fit(rows(), y)
    query = rows(100, seed=3)
    np.testing.assert_allclose(own.predict(query), built_in.predict_link(query), rtol=1e-12)


def test_expectiles_and_held_out_lifetimes() -> None:
    loss = ConvexLoss(expectile, expectile_slope)
    own = forest(loss, lifetime="validation", max_rows_per_leaf=512).fit(rows(), labels())
    assert own.lifetime_ == own.lifetime_path_.chosen[0] > 0.0
    reported = own.nodes(0)
    root = reported["root"]
    mine = labels()[np.arange(1, 301) % 10 != 0]
    assert reported["n_rows"][root] == len(mine) == 270
    z = reported["forecast"][root, 0]
    assert (np.where(mine > z, 0.9, 0.1) * (mine - z)).sum() == pytest.approx(0.0, abs=1e-9)
    again = pickle.loads(pickle.dumps(own))
    assert np.array_equal(again.predict(rows()), own.predict(rows()))


def test_a_loss_that_is_not_convex_is_reported() -> None:
    with pytest.warns(UserWarning, match="curved downwards at z = "):
        forest(ConvexLoss(waves, waves_slope)).fit(rows(), labels())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for price, slope in ((huber, huber_slope), (expectile, expectile_slope)):
            forest(ConvexLoss(price, slope)).fit(rows(), labels())


def test_what_a_loss_of_your_own_cannot_do(tmp_path) -> None:
    own = ConvexLoss(huber, huber_slope)
    for options in (
        {"lifetime": "prequential"},
        {"aggregation": "aggregate", "lifetime": None, "bound": 1.0},
        {"feature_scales": "learned"},
        {"predict_extension": "expected"},
    ):
        with pytest.raises(ParameterError, match="not with a loss of your own"):
            forest(own, **options).fit(rows(), labels())
    with pytest.raises(ParameterError, match="cannot be saved"):
        forest(own).fit(rows(), labels()).save(tmp_path / "m")
    with pytest.raises(ParameterError, match="give one of the two"):
        ConvexLoss(huber)
    with pytest.raises(ParameterError, match="hold no functions"):
        forest(own)._check_run()


def brute_force(reported: dict[str, Any], X: np.ndarray, y: np.ndarray, least: Any) -> Any:
    """Return all split times of a tree, and the mean loss of its pruning at each, cell by cell.

    ``least`` returns the least total loss of a constant over labels.
    """

    def total(v: int, rows: np.ndarray, lifetime: float) -> float:
        if reported["left"][v] < 0 or reported["time"][v] > lifetime:
            return float(least(y[rows])) if len(rows) else 0.0
        goes_left = X[rows, reported["feature"][v]] <= reported["threshold"][v]
        return total(reported["left"][v], rows[goes_left], lifetime) + total(
            reported["right"][v], rows[~goes_left], lifetime
        )

    times = np.sort(reported["time"][np.isfinite(reported["time"])])
    times = np.concatenate([[0.0], times])
    return times, np.array([total(reported["root"], np.arange(len(y)), at) for at in times]) / len(
        y
    )


def least_expectile(y: np.ndarray) -> float:
    best = minimize_scalar(
        lambda z: (np.where(y > z, 0.9, 0.1) * (y - z) ** 2).sum(),
        bounds=(y.min() - 1.0, y.max() + 1.0),
        method="bounded",
        options={"xatol": 1e-12},
    )
    return float(best.fun)


def least_poisson(y: np.ndarray) -> float:
    z = np.log(y.mean())
    return float((np.exp(z) - y * z).sum())


@pytest.mark.parametrize(
    "penalty",
    [*(pytest.param(p, marks=pytest.mark.thorough) for p in (0.0, 0.1)), 0.01, None],
)
@pytest.mark.parametrize("domain", ["range", pytest.param("cube", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", ["expectile", "poisson"])
def test_penalized_lifetimes_are_those_of_brute_force(name: str, domain: str, penalty) -> None:
    X = rows()[:40]
    y = labels()[:40] if name == "expectile" else np.exp(labels()[:40].clip(-2.0, 2.0))
    loss, least = {
        "expectile": (ConvexLoss(expectile, expectile_slope), least_expectile),
        "poisson": (ConvexLoss(poisson, solution=math.log), least_poisson),
    }[name]
    options = {"lifetime": "penalized", "max_lifetime": 6.0, "domain": domain, "penalty": penalty}
    own = forest(loss, max_rows_per_leaf=512, **options).fit(X, y)
    path = own.lifetime_path_
    z = np.zeros(40)
    for t, chosen in enumerate(own.lifetimes_):
        reported = own.nodes(t)
        times, risks = brute_force(reported, X, y, least)
        if penalty is not None:
            (at,) = np.flatnonzero(times == chosen)
            objective = risks + penalty * times
            assert at == objective.argmin()
        shift = 0.0 if name == "expectile" else risks[0]  # trees of means know differences
        mine = risks[np.searchsorted(times, path.lifetimes, side="right") - 1] - shift
        np.testing.assert_allclose(path.risks[t], mine, rtol=0.0, atol=1e-9)
        for i, x in enumerate(X):
            v = reported["root"]
            while reported["left"][v] >= 0 and reported["time"][v] <= chosen:
                goes_left = x[reported["feature"][v]] <= reported["threshold"][v]
                v = reported["left"][v] if goes_left else reported["right"][v]
            z[i] += reported["forecast"][v, 0] / 3.0
    np.testing.assert_allclose(own.predict(X), z, rtol=1e-12, atol=1e-12)
    assert path.chosen.tolist() == own.lifetimes_.tolist()


@pytest.mark.parametrize("own", [True, False], ids=["labels", "means"])
def test_penalized_lifetimes_of_a_built_in_loss_written_by_hand(own: bool) -> None:
    loss, built_in = ConvexLoss(huber, huber_slope), "huber"
    if not own:
        loss, built_in = ConvexLoss(square, solution=float), "squared"
    options = {"lifetime": "penalized", "max_lifetime": 20.0, "max_rows_per_leaf": 512}
    X, y, query = rows(), labels(), rows(100, seed=9)
    mine, other = forest(loss, **options).fit(X, y), forest(built_in, **options).fit(X, y)
    assert np.array_equal(mine.lifetimes_, other.lifetimes_)
    assert (mine.lifetimes_ > 0.0).any()
    np.testing.assert_allclose(mine.predict(query), other.predict(query), rtol=1e-9, atol=1e-9)
    if not own:  # depths by the same code, compiled anew where cells keep labels
        assert np.array_equal(mine.weighted_depth(query), other.weighted_depth(query))
    again = pickle.loads(pickle.dumps(mine))
    assert np.array_equal(again.lifetimes_, mine.lifetimes_)
    mine.partial_fit(X[:50], y[:50] + 3.0)
    other.partial_fit(X[:50], y[:50] + 3.0)
    assert np.array_equal(mine.lifetimes_, other.lifetimes_)
    assert not np.array_equal(again.lifetimes_, mine.lifetimes_)
    loose = again.forest_.from_state(*again.forest_.state())
    with pytest.raises(ParameterError, match="ask the estimator that was fitted"):
        loose.tree_lifetimes()


def test_penalized_lifetimes_after_a_merge() -> None:
    options = {"lifetime": "penalized", "max_lifetime": 8.0, "domain": "cube"}
    loss, X = ConvexLoss(square, solution=float), rows()
    y = np.round(labels())
    whole = forest(loss, **options).fit(X, y)
    parts = [
        forest(loss, **options).fit(X[part], y[part]) for part in (slice(140), slice(140, 300))
    ]
    np.testing.assert_allclose(parts[0].merge(parts[1]).lifetimes_, whole.lifetimes_, rtol=1e-12)


def test_a_loss_that_is_not_finite_chooses_no_lifetime() -> None:
    loss = ConvexLoss(one_sided, solution=math.sin)  # whose price needs z > 0
    y = 4.0 + labels().clip(-0.5, 0.5)  # the sine of the mean is negative
    with pytest.warns(UserWarning, match="are no minimum"):
        own = forest(loss, lifetime="penalized", max_lifetime=4.0).fit(rows(), y)
    with pytest.raises(ParameterError, match="loss of the rows learned is not a finite number"):
        own.predict(rows())


def one_sided(z: float, y: float) -> float:
    return z - y * math.log(z)


def one_sided_slope(z: float, y: float) -> float:
    return 1.0 - y / z if z != 0.0 else math.nan


def test_a_derivative_that_falls_is_reported() -> None:
    X, y = np.zeros((3, 1), np.float32), [1.0, 2.0, 3.0]
    with pytest.warns(UserWarning, match="the derivative falls before z = "):
        own = forest(ConvexLoss(one_sided, one_sided_slope)).fit(X, y)
    with pytest.raises(ParameterError, match="no z is best: give a bound"):
        own.predict(X)


def log(mean: float) -> float:
    return math.log(mean)


def test_cells_without_a_best_constant_are_reported() -> None:
    X, y = np.zeros((3, 1), np.float32), [0.0, 0.0, 0.0]
    with pytest.raises(ParameterError, match="no z is best: give a bound"):
        forest(ConvexLoss(poisson, poisson_slope)).fit(X, y).predict(X)
    with pytest.raises(ParameterError, match=r"solution\(0\) is -inf, expected a finite"):
        forest(ConvexLoss(poisson, solution=log)).fit(X, y).predict(X)
    for loss in (ConvexLoss(poisson, poisson_slope), ConvexLoss(poisson, solution=log)):
        reported = forest(loss, bound=2.0).fit(X, y).predict(X)
        assert reported == pytest.approx(np.full(3, -2.0), rel=1e-14)


def test_held_out_rows_choose_by_finite_losses_only() -> None:
    own = ConvexLoss(one_sided, solution=math.sin)
    X, y = rows(), 4.0 + labels().clip(-0.5, 0.5)  # sin of the mean is negative
    with (
        pytest.warns(UserWarning, match="are no minimum"),
        pytest.raises(ParameterError, match="not a finite number at lifetime"),
    ):
        forest(own, lifetime="validation").fit(X, y)


def half_expectile_slope(z: float, y: float) -> float:
    return -(0.9 if y > z else 0.1) * (y - z)


def too_large(mean: float) -> float:
    return mean + 0.5


def square(z: float, y: float) -> float:
    return (y - z) ** 2


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_a_derivative_of_another_price_is_reported(shift: float) -> None:
    y = shift + labels()
    with pytest.warns(UserWarning, match="the derivative is not that of the price: at y = "):
        forest(ConvexLoss(expectile, half_expectile_slope)).fit(rows(), y)
    with pytest.warns(UserWarning, match="no minimum; correct it"):
        forest(ConvexLoss(square, solution=too_large)).fit(rows(), y)
    with pytest.warns(UserWarning, match="where the mean label is not enough"):
        forest(ConvexLoss(expectile, solution=float)).fit(rows(), y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forest(ConvexLoss(expectile, expectile_slope)).fit(rows(), y)
        forest(ConvexLoss(square, solution=float)).fit(rows(), y)
        forest(ConvexLoss(poisson, solution=math.log)).fit(rows(), labels().clip(0.0) + 0.1)
        forest(ConvexLoss(poisson, poisson_slope)).fit(rows(), np.exp(labels()))


def lists(z: float, y: float) -> Any:
    return [z, y]


def fails(z: float, y: float) -> float:
    if z > 0.0:
        raise ValueError("only below zero")
    return z - y


def never(z: float, y: float) -> float:
    return math.nan


def test_functions_that_are_no_losses_are_reported() -> None:
    X, y = rows(), labels()
    compiled = "cannot be compiled" if not config.DISABLE_JIT else "failed for some floats"
    with pytest.raises(ParameterError, match=f"your function lists {compiled}"):
        forest(ConvexLoss(lists, huber_slope)).fit(X, y)
    with pytest.raises(ParameterError, match=r"your function fails failed.*only below zero"):
        forest(ConvexLoss(huber, fails)).fit(X, y)
    with pytest.raises(ParameterError, match="not a finite number for any z tried"):
        forest(ConvexLoss(never, huber_slope)).fit(X, y)
    for wrong in (3, too_large):
        with pytest.raises(ParameterError, match="price should be a function of two numbers"):
            ConvexLoss(wrong, huber_slope)  # type: ignore[arg-type]  # that is the mistake


def test_what_is_set_after_learning_changes_no_prediction() -> None:
    X, y, own = rows(), labels(), ConvexLoss(huber, huber_slope)
    for before, after in (
        (own, "huber"),
        ("huber", own),
        (own, ConvexLoss(square, solution=float)),
    ):
        fitted = forest(before).fit(X, y)
        reported, nodes = fitted.predict(X), fitted.nodes(0)
        fitted.set_params(loss=after, bound=0.1, empty_cell="prior")
        assert np.array_equal(fitted.predict(X), reported)
        assert np.array_equal(fitted.nodes(0)["forecast"], nodes["forecast"])
        with pytest.raises(ParameterError, match="parameters changed"):
            fitted.partial_fit(X, y)
        assert not np.array_equal(fitted.fit(X, y).predict(X), reported)
