"""A run that follows its stream records how far back it looks, as an estimator would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib import pyplot

from dmondrian import AMFClassifier, ParameterError
from dmondrian.displays import AgeWeightsDisplay, LearningCurveDisplay
from dmondrian.distributed import train
from dmondrian.drift.age_weights import cut_at_marks
from dmondrian.estimators.stream_following import EXPERTS
from dmondrian.report import write_report
from tests.cli.command import call

N = 2304  # the last mark


def rows() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    X = draw.random((N, 3)).astype(np.float32)
    return X, np.where(np.arange(N) < 1024, X[:, 0] > 0.5, X[:, 1] > 0.5)


@pytest.mark.parametrize(("delay", "experts"), [(1, EXPERTS[:1]), (50, EXPERTS[:1]), (50, EXPERTS)])
@pytest.mark.thorough(but="50-experts2")
def test_a_run_records_what_an_estimator_has_at_the_same_rows(
    client, tmp_path, delay, experts
) -> None:
    settings = {"n_estimators": 3, "drift": "follow", "delay": delay, "experts": experts}
    X, y = rows()
    table = pa.table({f"x{j}": X[:, j].astype(float) for j in range(3)} | {"y": y})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=300)
    forest = AMFClassifier(**settings, random_state=0)
    result = []
    for n_shards, every in ((1, None), (3, "500 rows")):
        run = train(
            forest, tmp_path / "rows.parquet", target="y", run=tmp_path / f"run{n_shards}",
            client=client, n_shards=n_shards, checkpoint_every=every,
        )  # fmt: skip
        result.append(run.metrics)
    assert result[0] == result[1]
    assert result[0]["delay"] == delay
    ages = result[0]["ages"]
    by_hand = AMFClassifier(**settings, random_state=0)
    marks = []
    for part, is_mark in cut_at_marks(0, N):
        by_hand.partial_fit(X[part], y[part], classes=[False, True])
        if is_mark:
            marks.append((part.stop, by_hand.age_weights_))
    assert [point["rows"] for point in ages] == [rows for rows, _ in marks]
    for point, (_, shares) in zip(ages, marks, strict=True):
        np.testing.assert_allclose(point["shares"], shares, atol=1e-3)  # encoded rows are rounded
    local = run.to_local()  # whose forecasts know the rows that waited at the end
    np.testing.assert_array_equal(ages[-1]["shares"], local.forest_.age_shares())
    assert np.array_equal(ages[-1]["shares"], local.age_weights_) == (delay == 1)
    shown = AgeWeightsDisplay.from_run(tmp_path / "run1")
    assert shown.rows.tolist() == [rows for rows, _ in marks]
    is_boosted = experts == EXPERTS
    assert ("boosted sets" in shown.names) is ("scaled trees" in shown.names) is is_boosted
    assert shown.names[11] == "32,768 to 65,536 rows"
    assert len(shown.names) == shown.shares.shape[1] == len(shown.areas_) == 12 + 2 * is_boosted
    pyplot.close(shown.figure_)
    curve = LearningCurveDisplay.from_runs(tmp_path / "run1")
    words = "delay 1 row" if delay == 1 else "delay up to 50 rows"
    assert curve.ax_.get_ylabel() == f"log loss of the rows so far, {words}"
    pyplot.close(curve.figure_)
    page = write_report(tmp_path / "run1", tmp_path / "page.html").read_text()
    assert "How far back the forest looks" in page
    assert f"so far, {words}" in page
    assert ("boosted sets" in page) is is_boosted
    text, remarks = call("describe", tmp_path / "run1")
    assert f"{words}):" in text
    advice = "for such files train with [forest] delay = 256, and the metrics"
    assert (advice in page) is (advice in remarks) is (delay == 1)
    share = ages[-1]["shares"][-1]
    assert (f"{share:.0%} at row 2,304\n" in text) is is_boosted
    assert ("weight of boosted sets" in text) is is_boosted
    assert ("last label known" in text) is (delay > 1)


def test_a_run_that_never_forgets_has_none(client, tmp_path: Path) -> None:
    X, y = rows()
    pq.write_table(pa.table({"x": X[:400, 0].astype(float), "y": y[:400]}), tmp_path / "r.parquet")
    forest = AMFClassifier(n_estimators=1, random_state=0)
    run = train(forest, tmp_path / "r.parquet", target="y", run=tmp_path / "run", client=client)
    assert "ages" not in run.metrics
    with pytest.raises(ParameterError, match="no weights of ages"):
        AgeWeightsDisplay.from_run(tmp_path / "run")
