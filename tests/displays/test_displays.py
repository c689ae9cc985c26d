"""Displays hold the numbers they draw, and draw what they are given."""

from __future__ import annotations

import itertools
import sys

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from sklearn.calibration import CalibrationDisplay
from sklearn.inspection import PartialDependenceDisplay
from sklearn.metrics import (
    ConfusionMatrixDisplay,
    PrecisionRecallDisplay,
    PredictionErrorDisplay,
    RocCurveDisplay,
    roc_auc_score,
)

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestRegressor,
    MissingPackageError,
    MondrianForestClassifier,
    MondrianKernelRegressor,
    ParameterError,
)
from dmondrian.displays import (
    AgeWeightsDisplay,
    ImportancesDisplay,
    LearningCurveDisplay,
    LifetimePathDisplay,
    PartitionDisplay,
    WeightedDepthDisplay,
    stream_predictions,
)
from dmondrian.distributed.metrics.curve import band_of, standard_errors

mpl.use("Agg")


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).random((600, 2)).astype(np.float32)
    return X, (X[:, 0] + 0.1 * X[:, 1] > 0.5).astype(int)


@pytest.fixture
def axes():
    figure, axes = pyplot.subplots()
    yield axes
    pyplot.close(figure)


@pytest.mark.parametrize(
    "forest",
    [
        AMFClassifier(n_estimators=1, random_state=0, split_pure=True, feature_scales=[1.0, 3.1]),
        MondrianForestClassifier(n_estimators=1, random_state=0, lifetime=6.0, clip=True),
        MondrianForestClassifier(n_estimators=1, random_state=0, lifetime=4.0, domain="cube"),
    ],
    ids=lambda forest: f"{type(forest).__name__}-{forest.domain}",
)
def test_cells_part_the_frame_and_each_is_answered_by_one_leaf(rows, axes, forest) -> None:
    X, y = rows
    shown = PartitionDisplay.from_estimator(forest.fit(X, y), X, resolution=30, ax=axes)
    left, right, bottom, top = shown.cells.T
    frame = np.ptp(shown.xx0) * np.ptp(shown.xx1)
    assert np.isclose(((right - left) * (top - bottom)).sum(), frame)
    assert len(shown.cells) > 10
    inside = np.random.default_rng(1).uniform(0.01, 0.99, (20, len(left), 2))
    points = np.stack([left, bottom], -1) + inside * np.stack([right - left, top - bottom], -1)
    reported = forest.predict_proba(points.reshape(-1, 2).astype(np.float32))[:, 1]
    if forest.domain == "range":  # on the cube a leaf may hold cells that no row opened yet
        assert (np.ptp(reported.reshape(20, -1), axis=0) == 0.0).all()
    assert shown.ax_ is axes
    assert (shown.xx0.shape, shown.response.shape) == ((30, 30), (30, 30))
    np.testing.assert_array_equal(shown.surface_.get_array().ravel(), shown.response.ravel())
    assert len(shown.cells_.get_paths()) == len(shown.cells)


def test_a_partition_needs_two_features(rows) -> None:
    X, y = rows
    forest = AMFClassifier(n_estimators=1, random_state=0).fit(X[:50, :1], y[:50])
    with pytest.raises(ParameterError, match="this forest has 1"):
        PartitionDisplay.from_estimator(forest, X)


def test_importances_are_sorted_named_and_summed_up(rows, axes) -> None:
    X, y = rows
    frame = pd.DataFrame(np.column_stack([X, X[:, ::-1]]), columns=list("abcd"))
    forest = AMFClassifier(n_estimators=2, random_state=0).fit(frame, y)
    shown = ImportancesDisplay.from_estimator(forest, max_features=2, ax=axes, color="red")
    widths = [bar.get_width() for bar in shown.bars_]
    ranked = np.sort(forest.feature_importances_)[::-1]
    np.testing.assert_allclose(widths, [*ranked[:2], ranked[2:].sum()])
    reported = [label.get_text() for label in axes.get_yticklabels()]
    best = frame.columns[np.argsort(-forest.feature_importances_, kind="stable")[:2]]
    assert reported == [*best, "2 others"]
    assert shown.bars_[0].get_facecolor() == (1.0, 0.0, 0.0, 1.0)


def test_weighted_depth_is_that_of_the_forest_along_a_feature(rows, axes) -> None:
    X, y = rows
    forest = AMFRegressor(n_estimators=2, random_state=0).fit(X, y)
    shown = WeightedDepthDisplay.from_estimator(forest, X, feature=1, ax=axes)
    x, depth = shown.line_.get_data()
    order = np.argsort(X[:, 1])
    np.testing.assert_array_equal(x, X[order, 1].astype(np.float64))
    np.testing.assert_array_equal(depth, forest.weighted_depth(X)[order])
    with pytest.raises(ParameterError, match="0 to 1, got 2"):
        WeightedDepthDisplay.from_estimator(forest, X, feature=2)


def test_the_lifetime_path_marks_what_was_chosen(rows, axes) -> None:
    X, y = rows
    forest = GeneralizedMondrianForestRegressor(
        n_estimators=3, lifetime="penalized", random_state=0
    ).fit(X, y)
    shown = LifetimePathDisplay.from_estimator(forest, ax=axes)
    assert len(shown.lines_) == 4
    chosen, heights = shown.points_.get_offsets().T
    np.testing.assert_array_equal(chosen, forest.lifetime_path_.chosen)
    np.testing.assert_allclose(heights, forest.lifetime_path_.objective.min(axis=1))
    with pytest.raises(ParameterError, match="has no lifetime_path_"):
        LifetimePathDisplay.from_estimator(AMFRegressor(n_estimators=1).fit(X, y))


@pytest.mark.parametrize(
    ("by", "of", "name"),
    [
        ("validation", "validation_errors", "squared error"),
        ("marginal_likelihood", "log_likelihoods", "log likelihood"),
        ("average", "shares", "posterior probability"),
    ],
)
def test_lifetimes_of_a_kernel_are_drawn(rows, axes, by, of, name) -> None:
    X, _ = rows
    machine = MondrianKernelRegressor(
        n_estimators=3,
        lifetime=by,
        max_lifetime=2.0,
        solver="cholesky",
        domain="cube",
        random_state=0,
    ).fit(X[:200], X[:200, 0])
    shown = LifetimePathDisplay.from_estimator(machine, ax=axes)
    path = machine.lifetime_path_
    (line,) = shown.lines_
    seen, values = line.get_data()
    assert (seen > 0).all()
    np.testing.assert_array_equal(seen, path.lifetimes[path.lifetimes > 0])
    np.testing.assert_array_equal(values, getattr(path, of)[path.lifetimes > 0])
    assert shown.points_.get_offsets()[0, 0] == path.chosen
    assert name in axes.get_ylabel()


def test_stream_predictions_are_made_before_their_rows_are_learned(rows) -> None:
    X, y = rows
    forest = AMFClassifier(n_estimators=2, random_state=0)
    reported = stream_predictions(forest, X, y)
    assert not hasattr(forest, "classes_")
    assert (reported[0] == 0.5).all()
    for row in (1, 33, len(y) - 1):
        by_hand = AMFClassifier(n_estimators=2, random_state=0)
        by_hand.partial_fit(X[:row], y[:row], classes=[False, True])
        np.testing.assert_array_equal(reported[row], by_hand.predict_proba(X[row : row + 1])[0])
    shown = CalibrationDisplay.from_predictions(y, reported[:, 1], n_bins=5)
    assert len(shown.prob_true) > 2
    pyplot.close(shown.figure_)


def test_a_learning_curve_is_the_mean_loss_so_far(rows, axes) -> None:
    X, y = rows
    forest = AMFClassifier(n_estimators=2, random_state=0)
    shown = LearningCurveDisplay.from_estimator(forest, X, y, metric="accuracy", ax=axes)
    reported = stream_predictions(forest, X, y)
    hits = reported.argmax(axis=1) == y
    seen, values = shown.lines_[0].get_data()
    np.testing.assert_allclose(values, [hits[: int(n)].mean() for n in seen])
    assert seen[-1] == len(y)
    assert len(shown.bands_) == 1
    numbers = LearningCurveDisplay.from_estimator(
        AMFRegressor(n_estimators=1, random_state=0), X, y, ax=axes
    )
    assert numbers.metric == "rmse"
    with pytest.raises(ParameterError, match="has no 'rmse'"):
        LearningCurveDisplay.from_estimator(forest, X, y, metric="rmse")


def test_standard_errors_cover_the_mean_of_independent_losses() -> None:
    draw = np.random.default_rng(0)
    at = np.cumsum(draw.integers(5, 60, 80)).astype(np.float64)
    covered = []
    for _ in range(400):
        losses = draw.exponential(1.0, int(at[-1]))
        means = (np.cumsum(losses) / np.arange(1, len(losses) + 1))[at.astype(int) - 1]
        error = standard_errors(at, means)
        assert np.isnan(error[:2]).all()
        covered.append(np.abs(means - 1.0)[2:] < 2.0 * error[2:])
    assert 0.93 < np.mean(np.array(covered)[:, 40:]) < 0.97


def test_learning_does_not_widen_the_band() -> None:
    at = np.arange(100.0, 5001.0, 100.0)
    slow = np.array([np.mean(5.0 / np.sqrt(np.arange(1.0, n + 1.0))) for n in at])
    own = np.diff(at * slow, prepend=0.0) / 100.0
    naive = own.std(ddof=1) * np.sqrt(100.0 / at[-1])
    assert standard_errors(at, slow)[-1] < 0.6 * naive


def test_several_runs_are_drawn_as_their_mean() -> None:
    first = np.array([10.0, 20.0, 30.0]), np.array([3.0, 2.0, 1.0])
    second = np.array([10.0, 20.0, 30.0, 40.0]), np.array([5.0, 4.0, 3.0, 2.0])
    rows, mean, low, high = band_of([first, second], "log_loss")
    np.testing.assert_array_equal(rows, [10.0, 20.0, 30.0])
    np.testing.assert_array_equal(mean, [4.0, 3.0, 2.0])
    np.testing.assert_allclose([low, high], [mean - 2.0, mean + 2.0])


def test_without_matplotlib_the_extra_is_named(rows, monkeypatch) -> None:
    forest = AMFClassifier(n_estimators=1, random_state=0).fit(*rows)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackageError, match=r"dmondrian\[plots\]"):
        ImportancesDisplay.from_estimator(forest)


def test_a_forest_with_a_delay_is_asked_for_a_block_before_it_knows_a_label_of_it(
    rows, axes
) -> None:
    X, y = rows
    forest = AMFClassifier(n_estimators=2, drift="follow", delay=64, random_state=0)
    reported = stream_predictions(forest, X, y)
    assert (reported[:64] == 0.5).all()
    for block in (1, 5):
        by_hand = AMFClassifier(n_estimators=2, drift="follow", delay=64, random_state=0)
        by_hand.partial_fit(X[: 64 * block], y[: 64 * block], classes=[0, 1])
        part = slice(64 * block, 64 * block + 64)
        np.testing.assert_array_equal(reported[part], by_hand.predict_proba(X[part]))
    shown = LearningCurveDisplay.from_estimator(forest, X, y, ax=axes)
    assert shown.delays == {"AMFClassifier": 64}
    assert axes.get_ylabel() == "log loss of the rows so far, delay up to 64 rows"
    assert shown.lines_[0].get_data()[0][-1] == len(y)
    late = AMFClassifier(n_estimators=1, drift="follow", delay=1000, random_state=0)
    assert (stream_predictions(late, X, y) == 0.5).all()  # no block is ever full


def test_a_curve_by_window_has_baselines_and_one_that_fades_forgets(rows, axes) -> None:
    X, y = rows
    forest = AMFClassifier(n_estimators=2, random_state=0)
    shown = LearningCurveDisplay.from_estimator(
        forest, X, y, metric="accuracy", span="window", baselines=True, ax=axes
    )
    reported = stream_predictions(forest, X, y).argmax(axis=1) == y
    seen, values = shown.lines_[0].get_data()
    bounds = [0, *seen.astype(int).tolist()]
    wanted = [reported[a:b].mean() for a, b in itertools.pairwise(bounds)]
    np.testing.assert_allclose(values, wanted)
    assert list(shown.curves) == ["AMFClassifier", "class frequencies", "last label"]
    assert shown.bands_ == []
    assert axes.get_ylabel() == "accuracy by window of the stream, delay 1 row"
    faded = LearningCurveDisplay.from_estimator(forest, X, y, span="faded", ax=axes)
    assert faded.lines_[0].get_data()[0][-1] <= len(y)
    with pytest.raises(ParameterError, match="expected one of"):
        LearningCurveDisplay.from_estimator(forest, X, y, span="all")
    with pytest.raises(ParameterError, match="span='window' too"):
        LearningCurveDisplay.from_estimator(forest, X, y, baselines=True)
    with pytest.raises(ParameterError, match="no metrics by window"):
        LearningCurveDisplay.from_estimator(forest, X[:20], y[:20], span="window")


def test_delays_that_differ_are_kept_apart() -> None:
    curve = np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.4, 0.3])
    shown = LearningCurveDisplay({"a": [curve], "b": [curve]}, "log_loss", delays={"a": 1, "b": 9})
    shown.plot()
    labels = [text.get_text() for text in shown.ax_.get_legend().get_texts()]
    assert labels == ["a, delay 1 row", "b, delay up to 9 rows"]
    assert shown.ax_.get_ylabel() == "log loss of the rows so far"
    pyplot.close(shown.figure_)


def test_weights_of_ages_are_drawn_as_areas_that_fill_the_axes(rows, axes) -> None:
    X, y = rows
    forest = AMFClassifier(n_estimators=2, drift="follow", random_state=0)
    shown = AgeWeightsDisplay.from_estimator(forest, X, y, ax=axes)
    assert shown.rows.tolist() == [256, 512, 600]
    by_hand = AMFClassifier(n_estimators=2, drift="follow", random_state=0)
    by_hand.fit(X[:512], y[:512])
    np.testing.assert_array_equal(shown.shares[1], by_hand.age_weights_)
    np.testing.assert_allclose(shown.shares.sum(axis=1), 1.0)
    assert len(shown.areas_) == shown.shares.shape[1]
    tops = shown.areas_[0].get_paths()[0].vertices[:, 1]  # the youngest on top
    assert tops.max() == pytest.approx(1.0)
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend[0] == "32 to 64 rows"
    assert legend[-1] == "all rows"
    with pytest.raises(ParameterError, match='drift="follow"'):
        AgeWeightsDisplay.from_estimator(AMFRegressor(), X, y)


def test_displays_of_scikit_learn_draw_fitted_forests() -> None:
    draw = np.random.default_rng(0)
    X = draw.random((200, 2))
    y = (X[:, 0] > 0.5).astype(int)
    of_classes = AMFClassifier(n_estimators=2, random_state=0).fit(X, y)
    of_numbers = AMFRegressor(n_estimators=2, random_state=0).fit(X, X[:, 0])
    new = draw.random((100, 2))
    labels = (new[:, 0] > 0.5).astype(int)
    drawn = RocCurveDisplay.from_estimator(of_classes, new, labels)
    area = roc_auc_score(labels, of_classes.predict_proba(new)[:, 1])
    assert np.trapezoid(drawn.tpr, drawn.fpr) == pytest.approx(area)
    PrecisionRecallDisplay.from_estimator(of_classes, new, labels)
    matrix = ConfusionMatrixDisplay.from_estimator(of_classes, new, labels).confusion_matrix
    assert np.trace(matrix) == np.sum(of_classes.predict(new) == labels)
    errors = PredictionErrorDisplay.from_estimator(of_numbers, new, new[:, 0], subsample=None)
    assert (errors.y_pred == of_numbers.predict(new)).all()
    dependence = PartialDependenceDisplay.from_estimator(of_numbers, X, [0, 1])
    low, high = dependence.pd_results[0]["average"][0][[0, -1]]
    assert high - low > 0.5
    pyplot.close("all")
