"""Costs of two classes of the user's own: they equal the built-in ones; what is none is refused."""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dmondrian import ConvexLoss, GeneralizedMondrianForestClassifier
from dmondrian.errors import DataError, ParameterError
from tests.estimators.test_amf import rows, same_forest

LN_2 = math.log(2.0)


def labels() -> np.ndarray:
    return np.where(np.random.default_rng(1).random(300) < rows()[:, 0] ** 2, "yes", "no")


def forest(loss: Any, **options: Any) -> GeneralizedMondrianForestClassifier:
    given = {"lifetime": 5.0, "random_state": 0, "n_estimators": 3, **options}
    return GeneralizedMondrianForestClassifier(loss=loss, **given)


def logistic(z: float, y: float) -> float:
    return math.log1p(math.exp(-y * z)) / LN_2


def logistic_slope(z: float, y: float) -> float:
    return -y / (1.0 + math.exp(y * z)) / LN_2


def exponential(z: float, y: float) -> float:
    return math.exp(-y * z)


def exponential_slope(z: float, y: float) -> float:
    return -y * math.exp(-y * z)


def square(z: float, y: float) -> float:
    return (1.0 - y * z) ** 2


def square_slope(z: float, y: float) -> float:
    return -2.0 * y * (1.0 - y * z)


def modified(z: float, y: float) -> float:
    return max(1.0 - y * z, 0.0) ** 2


def modified_slope(z: float, y: float) -> float:
    return -2.0 * y * max(1.0 - y * z, 0.0)


def smoothed(z: float, y: float) -> float:
    v = -y * z
    return 0.5 + v if v >= 0.0 else 0.5 * max(1.0 + v, 0.0) ** 2


def smoothed_slope(z: float, y: float) -> float:
    return -y * min(max(1.0 - y * z, 0.0), 1.0)


def hinge(z: float, y: float) -> float:
    return max(1.0 - y * z, 0.0)


def hinge_slope(z: float, y: float) -> float:
    return -y if y * z < 1.0 else 0.0


BY_HAND: dict[str, tuple[Callable, Callable]] = {
    "logistic": (logistic, logistic_slope),
    "exponential": (exponential, exponential_slope),
    "square": (square, square_slope),
    "modified_square": (modified, modified_slope),
    "smoothed_hinge": (smoothed, smoothed_slope),
    "hinge": (hinge, hinge_slope),
}
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


@pytest.mark.parametrize("loss", sorted(BY_HAND))
def test_a_cost_written_by_hand_is_the_built_in_one(loss: str) -> None:
    X, y, query = rows(), labels(), rows(200, seed=9)
    domain = "cube" if loss in ("logistic", "hinge") else "range"
    bound = 2.0 if loss == "exponential" else None
    options = {"domain": domain, "bound": bound}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = forest(ConvexLoss(*BY_HAND[loss]), **options).fit(X, y)
    built_in = forest(loss, **options).fit(X, y)
    assert same_forest(own, built_in)
    for _ in range(2):
        z, its = own.decision_function(query), built_in.decision_function(query)
        np.testing.assert_allclose(z, its, **CLOSE)
        is_sure = np.abs(z) > 1e-9
        assert is_sure.sum() > 100
        assert np.array_equal(own.predict(query)[is_sure], built_in.predict(query)[is_sure])
        cells, others = own.nodes(1), built_in.nodes(1)
        np.testing.assert_allclose(cells["forecast"], others["forecast"], **CLOSE)
        np.testing.assert_allclose(cells["risk"], others["risk"], rtol=1e-9, atol=1e-9)
        staged = (f.staged_decision_function(query, [1.0, 3.0]) for f in (own, built_in))
        for ours, other in zip(*staged, strict=True):
            np.testing.assert_allclose(ours, other, **CLOSE)
        assert hasattr(own, "predict_proba") == (loss != "hinge")
        if loss != "hinge":
            np.testing.assert_allclose(
                own.predict_proba(query), built_in.predict_proba(query), **CLOSE
            )
        for each in (own, built_in):  # beta_n grows: forecasts of before do not last
            each.partial_fit(X[:50], labels()[::-1][:50])


def test_held_out_rows_choose_as_by_the_built_in_cost() -> None:
    X, y = rows(), labels()
    own = forest(ConvexLoss(logistic, logistic_slope), lifetime="validation").fit(X, y)
    built_in = forest("logistic", lifetime="validation").fit(X, y)
    assert own.lifetime_ == built_in.lifetime_ > 0.0
    np.testing.assert_allclose(own.lifetime_path_.risks, built_in.lifetime_path_.risks, rtol=1e-9)
    again = pickle.loads(pickle.dumps(own))
    assert np.array_equal(again.predict_proba(X), own.predict_proba(X))
    again.partial_fit(X, y)
    assert same_forest(again, own.partial_fit(X, y))


def test_weights_and_parts_that_are_merged_are_one_stream() -> None:
    X, y, w = rows(), labels(), np.random.default_rng(3).integers(0, 4, 300)
    cost, options = ConvexLoss(exponential, exponential_slope), {"domain": "cube"}
    whole = forest(cost, **options).fit(X, y, w)
    assert same_forest(whole, forest(cost, **options).fit(np.repeat(X, w, 0), np.repeat(y, w)))
    one, two = (
        forest(cost, **options).partial_fit(X[at], y[at], whole.classes_, sample_weight=w[at])
        for at in (slice(0, 90), slice(90, 300))
    )
    np.testing.assert_allclose(one.merge(two).predict_proba(X), whole.predict_proba(X), **CLOSE)
    other = forest(ConvexLoss(square, square_slope), **options).fit(X, y)
    with pytest.raises(ParameterError, match="other losses"):
        one.merge(other)


def weighted(z: float, y: float) -> float:
    return (5.0 if y > 0.0 else 1.0) * math.log1p(math.exp(-y * z))


def weighted_slope(z: float, y: float) -> float:
    return -y * (5.0 if y > 0.0 else 1.0) / (1.0 + math.exp(y * z))


def weighted_solution(mean: float) -> float:
    return math.log(5.0 * (1.0 + mean) / (1.0 - mean)) if abs(mean) < 1.0 else 1e3 * mean


def test_classes_of_other_prices_move_the_sign_and_not_the_probabilities() -> None:
    X, y, query = rows(), labels(), rows(200, seed=9)
    dear = forest(ConvexLoss(weighted, weighted_slope)).fit(X, y)
    z = dear.decision_function(query)
    by_hand = 1.0 / (1.0 + 5.0 * np.exp(-z))
    np.testing.assert_allclose(dear.predict_proba(query)[:, 1], by_hand, rtol=1e-12)
    assert np.array_equal(dear.predict(query) == "yes", by_hand > 1.0 / 6.0)
    assert (dear.predict(query) == "yes").sum() > (by_hand > 0.5).sum()
    solved = forest(ConvexLoss(weighted, solution=weighted_solution)).fit(X, y)
    np.testing.assert_allclose(solved.decision_function(query), z, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(solved.predict_proba(query), dear.predict_proba(query), **CLOSE)
    np.testing.assert_allclose(solved.nodes(0)["risk"], dear.nodes(0)["risk"], **CLOSE)


def kinked(z: float, y: float) -> float:
    return math.log1p(math.exp(-y * z)) + 0.1 * abs(z)


def kinked_slope(z: float, y: float) -> float:
    return -y / (1.0 + math.exp(y * z)) + math.copysign(0.1, z)


def linear(z: float, y: float) -> float:
    return -y * z


def linear_slope(z: float, y: float) -> float:
    return -y


def sign(mean: float) -> float:
    return math.copysign(1.0, mean) if mean != 0.0 else 0.0


@pytest.mark.parametrize(
    ("cost", "bound", "reason"),
    [
        (ConvexLoss(hinge, hinge_slope), None, "the best z of other probabilities too"),
        (ConvexLoss(hinge, solution=sign), None, "the best z of other probabilities too"),
        (ConvexLoss(kinked, kinked_slope), None, "the best z of other probabilities too"),
        (ConvexLoss(linear, linear_slope), None, "no z is best"),
        (ConvexLoss(linear, linear_slope), 1.0, "hardly any probability"),
        (ConvexLoss(logistic, logistic_slope), 1e-3, "hardly any probability"),
    ],
)
def test_probabilities_are_refused_where_the_loss_has_none(cost, bound, reason) -> None:
    fitted = forest(cost, bound=bound).fit(rows(), labels())
    assert set(fitted.predict(rows())) <= {"yes", "no"}
    for ask in ("predict_proba", "predict_log_proba"):
        assert not hasattr(fitted, ask)
        with pytest.raises(AttributeError) as caught:
            getattr(fitted, ask)
        assert reason in str(caught.value.__cause__)
    fitted.set_params(loss="logistic")  # of what was learned, not of what is set
    assert not hasattr(fitted, "predict_proba")


def ramp(z: float, y: float) -> float:
    return min(max(1.0 - y * z, 0.0), 2.0)


def ramp_slope(z: float, y: float) -> float:
    return -y if abs(z) < 1.0 else 0.0


def turned(z: float, y: float) -> float:
    return math.exp(y * z)


def turned_slope(z: float, y: float) -> float:
    return y * math.exp(y * z)


def half_slope(z: float, y: float) -> float:
    return -0.5 * y * math.exp(-y * z)


def never(z: float, y: float) -> float:
    return math.nan


def lists(z: float, y: float) -> Any:
    return [z, y]


def of_one(z: float) -> float:
    return z


def test_what_is_no_cost_of_classes_is_reported() -> None:
    X, y = rows(), labels()
    for cost, match in (
        (ConvexLoss(ramp, ramp_slope), "curved downwards at z = "),
        (ConvexLoss(turned, turned_slope), "the sign of z is the class"),
        (ConvexLoss(exponential, half_slope), "the derivative is not that of the price"),
        (ConvexLoss(square, solution=weighted_solution), "are no minimum"),
    ):
        with pytest.warns(UserWarning, match=match):
            forest(cost).fit(X, y)
    with pytest.raises(ParameterError, match="not a finite number for any z tried"):
        forest(ConvexLoss(never, logistic_slope)).fit(X, y)
    with pytest.raises(ParameterError, match="your function lists"):
        forest(ConvexLoss(lists, logistic_slope)).fit(X, y)
    with pytest.raises(ParameterError, match="expected a finite"):
        forest(ConvexLoss(logistic, solution=nowhere)).fit(X, y).predict(X)
    for wrong in (3, of_one, None):
        with pytest.raises(ParameterError, match="price should be a function of two numbers"):
            ConvexLoss(wrong, logistic_slope)  # type: ignore[arg-type]  # that is the mistake
    for name in ("own binary", "huber", logistic, [logistic, logistic_slope]):
        with pytest.raises(ValueError, match="'loss' parameter"):
            forest(name).fit(X, y)


def nowhere(mean: float) -> float:
    return math.nan


def test_what_a_cost_of_your_own_cannot_do(tmp_path) -> None:
    X, y, own = rows(), labels(), ConvexLoss(logistic, logistic_slope)
    for options in (
        {"lifetime": "prequential"},
        {"aggregation": "aggregate", "lifetime": None, "bound": 1.0},
        {"feature_scales": "learned"},
        {"predict_extension": "expected"},
    ):
        with pytest.raises(ParameterError, match="not with a loss of your own"):
            forest(own, **options).fit(X, y)
    for several in (np.arange(300) % 3, np.zeros(300, int)):
        with pytest.raises(DataError, match="binary costs are of two classes"):
            forest(own).fit(X, several)
    with pytest.raises(ParameterError, match="cannot be saved"):
        forest(own).fit(X, y).save(tmp_path / "m")
    with pytest.raises(ParameterError, match="hold no functions"):
        forest(own)._check_run()
