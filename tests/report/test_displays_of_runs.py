"""The pictures of a report are displays, with its numbers: of runs, of streams and of arrays."""

from __future__ import annotations

import html
import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client
from matplotlib import pyplot
from sklearn.metrics import average_precision_score, confusion_matrix, roc_auc_score

from dmondrian import AMFClassifier, AMFRegressor, MondrianForestRegressor, ParameterError
from dmondrian.displays import (
    ColumnDependenceDisplay,
    ConfusionDisplay,
    CoverageDisplay,
    ForecastErrorDisplay,
    ImportancesDisplay,
    PrecisionRecallDisplay,
    ReliabilityDisplay,
    RocDisplay,
    stream_predictions,
)
from dmondrian.distributed import TrainedRun, train
from dmondrian.report.dependence_charts import find_dependence
from dmondrian.report.facts import gather
from dmondrian.report.number_format import percent
from dmondrian.report.sections import outcomes

mpl.use("Agg")

OF_CLASSES = [RocDisplay, PrecisionRecallDisplay, ReliabilityDisplay, ConfusionDisplay]
OF_NUMBERS = [ForecastErrorDisplay, CoverageDisplay]


@pytest.fixture
def axes():
    figure, axes = pyplot.subplots()
    yield axes
    pyplot.close(figure)


@pytest.fixture
def page():
    """Return what the report writes of a run's forecasts, as text."""
    return lambda run: html.unescape(str(outcomes(gather(run.run_url))))


def stream(k: int, n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(k)
    X = draw.random((n, 2)).astype(np.float32)
    return X, np.minimum((k * X[:, 0] + 0.4 * draw.normal(size=n)).clip(0.0), k - 1).astype(int)


def test_curves_of_a_run_are_those_of_its_report(classified: TrainedRun, axes, page) -> None:
    text, run = page(classified), classified.run_url
    roc = RocDisplay.from_run(run, ax=axes)
    assert roc.ax_ is axes
    ((name, area),) = roc.areas.items()
    assert f"ROC curve of {name}: area {area:.4f}" in text
    curve = PrecisionRecallDisplay.from_run(run)
    assert f"Precision against recall of {name}: average {curve.averages[name]:.4f}" in text
    assert curve.chance_.get_ydata().tolist() == [curve.shares[name]] * 2
    for display in (roc, curve):
        np.testing.assert_array_equal(display.lines_[0].get_xydata().T, display.curves[name])
    sure = ReliabilityDisplay.from_run(run)
    assert f"(ECE {sure.ece:.4f}" in text
    for above, up_to, share in sure.bins:
        assert f"<title>{above:.0%} to {up_to:.0%}: {percent(share)}</title>" in text
    assert [bar.get_height() for bar in sure.bars_] == sure.bins[:, 2].tolist()
    table = ConfusionDisplay.from_run(run)
    for i, own in enumerate(table.names):
        for j, other in enumerate(table.names):
            count = table.confusion[i, j]
            share = count / table.confusion[i].sum()
            words = f"{own} predicted as {other}: {count:,.0f} rows, {share:.1%} of its own"
            assert words in text
            assert table.text_[i, j].get_text() == f"{share:.0%}"
    pyplot.close("all")


def test_errors_of_a_run_are_those_of_its_report(of_numbers: TrainedRun, axes, page) -> None:
    text, run = page(of_numbers), of_numbers.run_url
    found = ForecastErrorDisplay.from_run(run, ax=axes)
    assert f"Labels against forecasts ({len(found.labels):,} of 2,000 rows, chosen" in text
    np.testing.assert_array_equal(
        found.drawn_.get_offsets(), np.stack([found.forecasts, found.labels], axis=1)
    )
    assert text.count("<circle") >= len(found.labels)
    errors = ForecastErrorDisplay.from_run(run, kind="errors")
    assert [bar.get_height() for bar in errors.drawn_] == found.bars[:, 2].tolist()
    assert found.bars[:, 2].sum() == pytest.approx(1.0)
    shares = re.findall(r"<title>[^<]*: ([\d.]+%) of the rows</title>", text)
    assert shares == [f"{share:.2%}" for share in found.bars[:, 2]]
    sizes = ForecastErrorDisplay.from_run(run, kind="sizes")
    np.testing.assert_array_equal(sizes.drawn_.get_xydata(), found.sizes)
    with pytest.raises(ParameterError, match="run has no intervals: forecasts have no standard"):
        CoverageDisplay.from_run(run)
    pyplot.close("all")


def test_coverage_of_a_run_is_that_of_its_report(
    client: Client, numbers: Path, tmp_path: Path, axes, page
) -> None:
    estimator = AMFRegressor(n_estimators=2, random_state=0, feature_scales=None, calibrate=True)
    run = train(estimator, numbers, target="y", run=tmp_path / "run", client=client)
    cover, text = CoverageDisplay.from_run(run.run_url, ax=axes), page(run)
    np.testing.assert_array_equal(cover.line_.get_ydata(), cover.shares)
    pairs = zip(cover.levels, cover.shares, strict=True)
    assert "(" + ", ".join(f"{level:.4g}: {share:.3f}" for level, share in pairs) + ")" in text
    assert cover.kind == "intervals"


def test_importances_of_a_run_are_those_of_its_report(classified: TrainedRun, axes) -> None:
    shown = ImportancesDisplay.from_run(classified.run_url, ax=axes)
    facts = gather(classified.run_url)
    pairs = zip(shown.feature_names, shown.importances.tolist(), strict=True)
    assert list(pairs) == facts.importances
    assert sum(shown.importances) == pytest.approx(1.0)
    assert shown.bars_[0].get_width() == facts.importances[0][1]


@pytest.fixture(scope="module")
def of_times(client: Client, tmp_path_factory) -> TrainedRun:
    """A run of three classes with a category, a number and a time with parts."""
    draw, n = np.random.default_rng(0), 900
    when = np.datetime64("2024-01-01", "ms") + draw.integers(0, 400 * 86_400_000, n)
    kind, x = draw.choice(["a", "b", "c"], n), draw.normal(size=n)
    label = np.where(kind == "a", "one", np.where(x > 0.0, "two", "three"))
    folder = tmp_path_factory.mktemp("of_times")
    rows = pa.table({"kind": kind, "x": x, "when": when, "y": label})
    pq.write_table(rows, folder / "rows.parquet")
    forest = AMFClassifier(n_estimators=2, random_state=0, feature_scales=None, calibrate=False)
    return train(forest, folder / "rows.parquet", target="y", run=folder / "run", client=client)


def test_dependence_of_a_run_is_that_of_its_report(of_times: TrainedRun) -> None:
    facts = gather(of_times.run_url)
    (found, *_), reason = find_dependence(facts, 10)
    assert reason == ""
    classes = facts.run_json["classes"]
    seen = set()
    for one in found:
        part = one.part or None
        shown = ColumnDependenceDisplay.from_run(of_times.run_url, one.column.name, part=part)
        np.testing.assert_array_equal(shown.means, one.means)
        assert shown.names == classes
        assert shown.ends == one.ends
        if one.shares is None:
            assert shown.shares is None
            assert shown.rows_ is None
        else:
            np.testing.assert_array_equal(shown.shares, one.shares)
            assert [bar.get_height() for bar in shown.rows_] == one.shares.tolist()
        if isinstance(shown.values[0], str):
            heights = [[bar.get_height() for bar in bars] for bars in shown.drawn_]
            np.testing.assert_array_equal(heights, one.means.T)
        else:
            drawn = [line.get_ydata() for line in shown.drawn_]
            np.testing.assert_array_equal(drawn, one.means.T)
        seen.add((one.column.name, one.part))
        pyplot.close("all")
    assert {("kind", ""), ("x", ""), ("when", "date"), ("when", "hour")} <= seen


def test_dependence_of_numbers_and_of_what_is_refused(of_numbers, kernel, density, axes) -> None:
    name = "a column with quite a long name, number 0"
    shown = ColumnDependenceDisplay.from_run(of_numbers.run_url, name, ax=axes)
    assert shown.names == ["mean forecast"]
    assert shown.means[-1, 0] > shown.means[0, 0] + 1e4  # the label is a square of it
    assert shown.ax_ is axes
    with pytest.raises(ParameterError, match="has no column 'x': it has"):
        ColumnDependenceDisplay.from_run(of_numbers.run_url, "x")
    with pytest.raises(ParameterError, match=r"part is 'hour'; .* has \[''\]"):
        ColumnDependenceDisplay.from_run(of_numbers.run_url, name, part="hour")
    with pytest.raises(ParameterError, match="cells of a Mondrian kernel are fitted together"):
        ImportancesDisplay.from_run(kernel.run_url)
    with pytest.raises(ParameterError, match="no importances: a density has no labels"):
        ImportancesDisplay.from_run(density.run_url)


@pytest.mark.parametrize("k", [2, 3, 6])
def test_streams_and_arrays_have_what_scikit_learn_finds_of_them(k: int) -> None:
    X, y = stream(k)
    forest = AMFClassifier(n_estimators=2, random_state=0, feature_scales=None)
    proba = np.floor(stream_predictions(forest, X, y) * 8.0) / 8.0  # bounds of bins
    proba[:, 0] += 1.0 - proba.sum(axis=1)
    words = np.array([f"class {c}" for c in range(k)])
    roc = RocDisplay.from_predictions(words[y], proba)
    precise = PrecisionRecallDisplay.from_predictions(y, proba, labels=range(k))
    drawn = [1] if k == 2 else sorted(np.argsort(-np.bincount(y), kind="stable")[:4].tolist())
    assert list(roc.areas) == [words[c] for c in drawn]
    for c in drawn:
        assert roc.areas[words[c]] == pytest.approx(roc_auc_score(y == c, proba[:, c]))
        wanted = average_precision_score(y == c, proba[:, c])
        assert precise.averages[str(c)] == pytest.approx(wanted)
    table = ConfusionDisplay.from_predictions(y, proba)
    np.testing.assert_array_equal(table.confusion, confusion_matrix(y, proba.argmax(axis=1)))
    own = ConfusionDisplay.from_estimator(forest, X, words[y])
    assert own.names == words.tolist()
    exact = stream_predictions(forest, X, y)
    np.testing.assert_array_equal(own.confusion, confusion_matrix(y, exact.argmax(axis=1)))
    sure, hit = exact.max(axis=1), exact.argmax(axis=1) == y
    found = ReliabilityDisplay.from_estimator(forest, X, y)
    low, high, share = found.bins[-1]
    some = (sure > low) & (sure <= high)
    assert share == some.mean()
    assert found.accuracy[-1] == pytest.approx(hit[some].mean())
    assert found.confidence[-1] == pytest.approx(sure[some].mean())
    if k == 2:
        one = RocDisplay.from_predictions(y, exact[:, 1])
        assert one.areas == RocDisplay.from_estimator(forest, X, y).areas
    pyplot.close("all")


def test_numbers_of_streams_and_arrays() -> None:
    X, y = stream(6)
    forest = AMFRegressor(n_estimators=2, random_state=0, feature_scales=None)
    forecast = stream_predictions(forest, X, y)
    found = ForecastErrorDisplay.from_estimator(forest, X, y)
    again = ForecastErrorDisplay.from_predictions(y, forecast)
    for name in ("forecasts", "labels", "bars", "sizes"):
        np.testing.assert_array_equal(getattr(found, name), getattr(again, name))
    np.testing.assert_array_equal(found.labels, y)  # all of few rows
    np.testing.assert_array_equal(found.forecasts, forecast)
    for size, share in found.sizes:
        assert share == pytest.approx((np.abs(forecast - y) < size).mean())
    for low, high, share in found.bars:
        error = forecast - y
        between = (
            ((error >= low) & (error < high)) if low >= 0 else ((error > low) & (error <= high))
        )
        if low < 0.0 <= high:  # errors of 0 are in the bar above it
            between &= error < 0.0
        assert share == pytest.approx(between.mean())
    fitted = MondrianForestRegressor(n_estimators=2, random_state=0).fit(X[:300], y[:300])
    mean, std = fitted.predict(X[300:], return_std=True)
    cover = CoverageDisplay.from_estimator(fitted, X[300:], y[300:])
    assert cover.levels.tolist() == [0.5, 0.8, 0.9, 0.95, 0.99]
    assert cover.shares[2] == (np.abs(mean - y[300:]) <= 1.6448536269514722 * std).mean()
    levels = [0.1, 0.5, 0.9]
    cover = CoverageDisplay.from_estimator(fitted, X[300:], y[300:], levels=levels)
    below = y[300:, None] <= fitted.predict_quantiles(X[300:], levels)
    np.testing.assert_allclose(cover.shares, below.mean(axis=0))
    weight = np.arange(100) % 3.0
    cover = CoverageDisplay.from_predictions(y[300:], mean, std=std, sample_weight=weight)
    inside = np.abs(mean - y[300:]) <= 0.6744897501960817 * std
    assert cover.shares[0] == pytest.approx(np.average(inside, weights=weight))
    pyplot.close("all")


@pytest.mark.parametrize("display", OF_CLASSES + OF_NUMBERS)
def test_what_cannot_be_drawn_is_refused(display, classified, of_numbers) -> None:
    other = of_numbers if display in OF_CLASSES else classified
    what = "numbers" if display in OF_CLASSES else "classes"
    with pytest.raises(ParameterError, match=f"forecasts {what}, and {display.__name__} is of"):
        display.from_run(other.run_url)
    if display in OF_CLASSES:
        with pytest.raises(ParameterError, match=r"there are 2 classes .*a column for each"):
            display.from_predictions([0, 1], [[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]])
        with pytest.raises(ParameterError, match="y_true has 2, which is none of the labels"):
            display.from_predictions([0, 2], [0.2, 0.3], labels=[0, 1])
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            display.from_predictions([0, 1], [0.2, 0.3, 0.5])
    if display in OF_CLASSES[:2]:
        with pytest.raises(ParameterError, match="y_prob has no curves: one class alone"):
            display.from_predictions([0, 0], [0.2, 0.3], labels=[0, 1])
    if display is CoverageDisplay:
        with pytest.raises(ParameterError, match="either std, or levels"):
            display.from_predictions([0.0], [1.0])
    if display is ForecastErrorDisplay:
        with pytest.raises(ParameterError, match=r"kind is 'x'; expected one of \['labels'"):
            display.from_predictions([0.0], [1.0], kind="x")
