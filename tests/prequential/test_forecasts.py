"""Each row is forecast just before it is learned: against a forest that is asked row by row.

Shards are forests of this process here, and answers go through the ledger as those of workers do.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss, mean_absolute_error, root_mean_squared_error

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestClassifier,
    GeneralizedMondrianForestRegressor,
    MondrianForestClassifier,
    MondrianForestRegressor,
    OnlineRandomForestClassifier,
    OnlineRandomForestRegressor,
    PowerLifetime,
)
from dmondrian.distributed.metrics.progressive import Progressive
from dmondrian.distributed.training.ledger import Ledger
from dmondrian.distributed.worker.messages import OK, Answer, ChunkAnswer
from dmondrian.distributed.worker.work_units import Unit
from dmondrian.forest.forest import Forest
from dmondrian.prequential import forecasts
from dmondrian.prequential.forecast_lag import kind_of as kind_of_forecasts
from dmondrian.prequential.forecast_lag import marks, slices
from dmondrian.prequential.forecasts import forecast_and_learn_all
from dmondrian.uncertainty.temperature_scaling import Calibration, kind_of

N, TREES = 400, 5
DRAW = np.random.default_rng(0)
X = DRAW.random((N, 3), dtype=np.float32)
X[:, 2] = X[:, 2] > 0.5
CLASSES = np.digitize(X[:, 0] + 0.3 * DRAW.normal(size=N), [0.3, 0.7]).astype(np.float64)
COUNTS = DRAW.poisson(np.exp(2.0 * X[:, 0])).astype(np.float64)
NUMBERS = 100.0 + X[:, 0] + 0.1 * DRAW.normal(size=N)
FIXED: dict[str, Any] = {"n_estimators": TREES, "random_state": 3}
PLAIN: dict[str, Any] = {"feature_scales": None, "feature_units": None, **FIXED}
AMF: dict[str, Any] = {"alpha": 0.2, "charge_opening": True, "calibrate": False, **PLAIN}
ROW_BY_ROW = {
    "amf": (AMFClassifier(**AMF), CLASSES),
    "amf, expected": (AMFClassifier(predict_extension="expected", **AMF), CLASSES),
    "amf regressor": (AMFRegressor(**PLAIN), NUMBERS),
    "vote": (MondrianForestClassifier(aggregation="vote", **PLAIN), CLASSES),
    "hierarchy": (MondrianForestClassifier(aggregation="hierarchy", **PLAIN), CLASSES),
    "lifetime grows": (
        MondrianForestRegressor(aggregation="mean", lifetime=PowerLifetime(1.0, 0.3), **PLAIN),
        NUMBERS,
    ),
    "cube": (
        MondrianForestRegressor(aggregation="mean", lifetime=4.0, domain="cube", **FIXED),
        NUMBERS,
    ),
    "quantiles": (
        GeneralizedMondrianForestRegressor(
            loss="quantile", quantile=[0.1, 0.5, 0.9], lifetime=3.0, **PLAIN
        ),
        NUMBERS,
    ),
    "counts": (GeneralizedMondrianForestRegressor(loss="poisson", lifetime=3.0, **PLAIN), COUNTS),
    "costs": (
        GeneralizedMondrianForestClassifier(loss="logistic", lifetime=3.0, **PLAIN),
        np.minimum(CLASSES, 1.0),
    ),
    "online": (OnlineRandomForestClassifier(**FIXED), CLASSES),
    "online regressor": (OnlineRandomForestRegressor(**FIXED), NUMBERS),
}
# Other kinds compile kernels of their own, for seconds each; the thorough run has all.
COMPILED = ("amf, expected", "amf regressor", "online")


def parameters_of(estimator: Any, y: np.ndarray) -> Any:
    """Parameters of the forest that an estimator fits to such rows."""
    return estimator.__sklearn_clone__().fit(X, y).forest_.parameters


def metrics_of(
    estimator: Any,
    y: np.ndarray,
    shards: Sequence[Sequence[int]],
    cuts: Sequence[int],
    w: np.ndarray | None = None,
    n_threads: int = 1,
    calibrate: bool = False,
    rows: np.ndarray = X,
) -> dict[str, Any]:
    """What a run forecasts of the rows, cut into blocks, its trees into shards."""
    its = parameters_of(estimator, y)
    bounds = list(itertools.pairwise([0, *cuts, N]))
    units = [Unit(i, *ends) for i, ends in enumerate(bounds)]
    task = "classification" if its.n_classes else "regression"
    ledger = Ledger(
        units,
        len(shards),
        TREES,
        Progressive(task, kind_of_forecasts(its)),
        kind_of(its.gives_label_variance)() if calibrate else None,
        {},
        0,
        its,
    )
    for number, trees in enumerate(shards):
        forest = Forest(its, trees)
        for unit, (start, stop) in zip(units, bounds, strict=True):
            own = None if w is None else w[start:stop]
            reported = forecast_and_learn_all(
                forest, rows[start:stop], y[start:stop], own, n_threads,
                position=start, n_trees=TREES, samples=calibrate,
            )  # fmt: skip
            chunk = ChunkAnswer(start, *reported)
            if number == 0:
                chunk.y, chunk.weight = y[start:stop], own
            answer = Answer(OK, number, "here", stop, [chunk])
            ledger.take(number, unit.index, answer)
    while ledger.settled < len(units):
        ledger.settle()
    return ledger.metrics()


CUTS: list[tuple[list[list[int]], list[int], int]] = [
    ([[0, 1, 2, 3, 4]], [], 1),
    ([[0, 1], [2, 3, 4]], [1, 33, 300], 2),
    ([[0], [1], [2], [3], [4]], list(range(100, N, 100)), 1),
]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in COMPILED else pytest.mark.thorough) for n in ROW_BY_ROW],
)
def test_metrics_are_those_of_a_forest_that_is_asked_before_each_row(name: str) -> None:
    estimator, y = ROW_BY_ROW[name]
    reported = [metrics_of(estimator, y, shards, cuts, None, n) for shards, cuts, n in CUTS]
    assert reported[0] == reported[1] == reported[2]  # to the last bit
    slow, answers = estimator.__sklearn_clone__(), []
    is_class = reported[0]["progressive"]["task"] == "classification"
    classes = np.unique(y)
    for i in range(N):
        row, label = X[i : i + 1], y[i : i + 1]
        if is_class:
            answers.append(slow.predict_proba(row)[0] if i else np.full(len(classes), 1.0))
            slow.partial_fit(row, label, classes=classes)
        else:
            answers.append(np.atleast_1d(slow.predict(row)[0]) if i else label)
            slow.partial_fit(row, label)
    if is_class:
        proba = np.array([answer / answer.sum() for answer in answers])
        wanted = {
            "log_loss": log_loss(y, proba, labels=classes),
            "accuracy": accuracy_score(y, proba.argmax(axis=1)),
        }
    else:
        mean = np.array([answer[len(answer) // 2] for answer in answers])
        wanted = {
            "rmse": root_mean_squared_error(y, mean), "mae": mean_absolute_error(y, mean),
            "r2": 1.0 - ((y - mean) ** 2).sum() / ((y - y.mean()) ** 2).sum(),
        }  # fmt: skip
    # Sums over trees are rounded in another order here.
    assert reported[0]["totals"] == pytest.approx(wanted, rel=1e-9)


def test_weights_count_and_rows_of_none_at_the_start_are_forecast_by_nobody() -> None:
    w = DRAW.integers(0, 3, N) * 0.5
    w[:40] = 0.0
    y = NUMBERS
    reported = [metrics_of(AMFRegressor(**PLAIN), y, shards, cuts, w) for shards, cuts, _ in CUTS]
    assert reported[0] == reported[1] == reported[2]
    forest, error = Forest(parameters_of(AMFRegressor(**PLAIN), y), range(TREES)), np.zeros(N)
    for i in range(N):
        if forest.total_weight > 0.0:
            error[i] = forest.predict_sums(X[i : i + 1]).mean[0, 0] - y[i]
        forest.update(X[i : i + 1], y[i : i + 1], w[i : i + 1])
    assert reported[0]["totals"]["rmse"] == pytest.approx(np.sqrt(np.average(error**2, weights=w)))


def test_a_calibrated_forecast_knows_the_exponent_of_the_rows_before_it() -> None:
    y = CLASSES
    reported = [metrics_of(AMFClassifier(**AMF), y, *cut, calibrate=True) for cut in with_samples()]
    assert reported[0] == reported[1] == reported[2]
    slow = AMFClassifier(**{**AMF, "calibrate": True})
    loss = np.full(N, np.log(3.0))
    for i in range(N):
        if i:
            loss[i] = -np.log(slow.predict_proba(X[i : i + 1])[0, int(y[i])])
        slow.partial_fit(X[i : i + 1], y[i : i + 1], classes=np.unique(y))
    assert reported[0]["calibration"] == slow.forest_.calibration.to_json()
    assert reported[0]["totals"]["log_loss"] == pytest.approx(loss.mean(), rel=1e-9)
    assert Calibration.from_json(reported[0]["calibration"]).exponent != 1.0


def with_samples() -> list[tuple[list[list[int]], list[int], None, int]]:
    return [(shards, cuts, None, n) for shards, cuts, n in CUTS]


def test_the_factor_of_a_regressor_is_fitted_beside_the_metrics() -> None:
    given = AMFRegressor(calibrate=True, **PLAIN)
    reported = [metrics_of(given, NUMBERS, *cut, calibrate=True) for cut in with_samples()]
    assert reported[0] == reported[1] == reported[2]
    assert reported[0]["totals"] == metrics_of(given, NUMBERS, *CUTS[0][:2])["totals"]
    fitted = given.__sklearn_clone__().fit(X, NUMBERS).forest_.calibration
    assert reported[0]["calibration"] == fitted.to_json()


def test_a_hierarchy_of_numbers_is_forecast_in_slices_and_its_lag_has_it() -> None:
    estimator = MondrianForestRegressor(aggregation="hierarchy", lifetime=None, **PLAIN)
    one, other = (metrics_of(estimator, NUMBERS, shards, []) for shards, _, _ in CUTS[:2])
    assert one == other
    forest, mean = Forest(parameters_of(estimator, NUMBERS), range(TREES)), np.empty(N)
    for start, stop in slices(0, N):
        mean[start:stop] = forest.predict_sums(X[start:stop]).mean[:, 0] if start else NUMBERS[0]
        forest.update(X[start:stop], NUMBERS[start:stop])
    assert one["totals"]["mae"] == pytest.approx(mean_absolute_error(NUMBERS, mean), rel=1e-12)
    assert one["progressive"]["kind"] == "slice"
    assert "up to 4,096 rows before" in Progressive.from_json(one["progressive"]).in_words


def test_lifetimes_that_trees_choose_are_those_before_a_slice_and_cells_those_before_the_row() -> (
    None
):
    estimator = GeneralizedMondrianForestRegressor(
        loss="squared", lifetime="prequential", max_lifetime=5.0, **PLAIN
    )
    one, other = (metrics_of(estimator, NUMBERS, shards, []) for shards, _, _ in CUTS[:2])
    assert one == other
    assert one["progressive"]["kind"] == "lifetime"
    forest, mean = Forest(parameters_of(estimator, NUMBERS), range(TREES)), np.empty(N)
    for start, stop in slices(0, N):
        lives = forest.tree_lifetimes()[:, 0]
        for i in range(start, stop):
            row, own = X[i : i + 1], NUMBERS[:1]
            if i:
                given = np.unique(lives)
                each = forest.answers(row, forest.policies, given, 1)[:, 0, :, 0]
                places = np.searchsorted(given, lives)
                own = np.array([reported[at] for reported, at in zip(each, places, strict=True)])
            mean[i] = own.mean()
            forest.update(row, NUMBERS[i : i + 1])
    assert one["totals"]["mae"] == pytest.approx(mean_absolute_error(NUMBERS, mean), rel=1e-9)


def test_pieces_of_a_call_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    estimators = AMFClassifier(**AMF), AMFRegressor(**PLAIN)
    for estimator, y in zip(estimators, (CLASSES, NUMBERS), strict=True):
        whole = metrics_of(estimator, y, *CUTS[0][:2], calibrate=True)
        with monkeypatch.context() as patch:
            patch.setattr(forecasts, "_ROWS", 37)
            assert metrics_of(estimator, y, *CUTS[1][:2], calibrate=True) == whole


@pytest.mark.parametrize("position", [0, 1, 500, 10**9])
@pytest.mark.parametrize("n", [0, 1, 31, 5000])
def test_slices_cover_rows_once_and_end_at_the_same_positions(position: int, n: int) -> None:
    cuts = list(slices(position, n))
    assert [row for start, stop in cuts for row in range(start, stop)] == list(range(n))
    ends = set(marks(0, position + n, 1)) if position < 10**6 else {0}
    assert position > 10**6 or {position + stop for _, stop in cuts[:-1]} <= ends


def test_no_row_is_forecast_long_after_the_last_one_learned() -> None:
    for start, stop in slices(0, 100_000):
        assert stop - start <= min(max(1, start // 8), 4096)
