"""Generalised forests on a cluster: the bytes of one process, and scores by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import (
    ConvexLoss,
    GeneralizedMondrianForestClassifier,
    GeneralizedMondrianForestRegressor,
    MondrianDensity,
)
from dmondrian.data import read_block
from dmondrian.distributed import TrainedRun, evaluate, score
from dmondrian.errors import DataError, ParameterError
from tests.distributed.conftest import ROWS, Fit
from tests.estimators.test_amf import same_forest


def rows_of(run: TrainedRun) -> tuple[pd.DataFrame, np.ndarray]:
    encoded = [read_block(run.plan, block) for block in run.plan.blocks]
    X = np.concatenate([e.X for e in encoded])
    y = np.concatenate([e.y for e in encoded if e.y is not None])
    return pd.DataFrame(X, columns=run.plan.schema.feature_names), y


def scores_of(run: TrainedRun, data: Path, out: Path, client: Client) -> pa.Table:
    assert score(run.run_url, data, out, client=client)["rows"] == ROWS
    return pa.concat_tables([pq.read_table(file) for file in sorted(out.glob("part-*.parquet"))])


def test_quantiles_have_columns_of_their_own(
    fit: Fit, adult: Path, client: Client, tmp_path: Path
) -> None:
    estimator = GeneralizedMondrianForestRegressor(
        3, loss="quantile", quantile=[0.95, 0.05, 0.5], max_rows_per_leaf=16,
        lifetime="penalized", max_lifetime=4.0, random_state=7,
    )  # fmt: skip
    run = fit("quantiles", estimator=estimator, target="age")
    X, y = rows_of(run)
    alone = GeneralizedMondrianForestRegressor(**estimator.get_params()).fit(X, y)
    shared = run.to_local()
    assert same_forest(alone, shared)
    assert np.array_equal(alone.lifetimes_, shared.lifetimes_)
    assert shared.quantile == [0.95, 0.05, 0.5]
    table = scores_of(run, adult, tmp_path / "out", client)
    assert table.column_names == ["q_0.05", "q_0.5", "q_0.95", "spread", "distance"]
    reported = np.stack([table.column(k).to_numpy() for k in range(3)], axis=1)
    assert np.array_equal(reported, alone.predict(X)[:, [1, 2, 0]])
    measured = evaluate(run.run_url, adult, client=client)
    errors = alone.predict(X)[:, 2] - y
    assert measured["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-12)
    losses = [
        np.maximum(level * (y - q), (level - 1.0) * (y - q)).mean()
        for level, q in zip(shared.quantile, alone.predict(X).T, strict=True)
    ]
    assert measured["pinball"] == pytest.approx(np.mean(losses), rel=1e-12)
    assert 0.0 < run.metrics["mae"] < 2.0 * y.std()


@pytest.mark.thorough
def test_binary_costs_give_decisions_and_probabilities(
    fit: Fit, adult: Path, client: Client, tmp_path: Path
) -> None:
    estimator = GeneralizedMondrianForestClassifier(3, loss="exponential", random_state=7)
    run = fit("binary", estimator=estimator)
    shared = run.to_local()
    table = scores_of(run, adult, tmp_path / "out", client)
    assert table.column_names == [
        "prediction", "proba_<=50K", "proba_>50K", "decision", "spread", "distance"
    ]  # fmt: skip
    X, y = rows_of(run)
    assert np.array_equal(table.column("decision").to_numpy(), shared.decision_function(X))
    np.testing.assert_allclose(
        table.column("proba_>50K").to_numpy(), shared.predict_proba(X)[:, 1], rtol=1e-12
    )
    assert table.column("prediction").to_pylist() == shared.predict(X).tolist()
    measured = evaluate(run.run_url, adult, client=client)
    accuracy = (shared.predict(X) == shared.classes_[y.astype(int)]).mean()
    assert measured["accuracy"] == pytest.approx(accuracy, abs=1e-12)
    share = np.clip(shared.predict_proba(X)[np.arange(ROWS), y.astype(int)], 2.3e-16, 1.0)
    assert measured["log_loss"] == pytest.approx(-np.log(share).mean(), rel=1e-9)
    assert 0.0 < run.metrics["log_loss"] < 1.0


@pytest.mark.parametrize(
    "options",
    [
        {"lifetime": 6.0},
        {"lifetime": "penalized", "max_lifetime": 20.0, "cell_value": "minimizer"},
    ],
    ids=["fixed", "penalized"],
)
@pytest.mark.thorough(but="fixed")
def test_a_density_is_trained_scored_and_evaluated(
    fit: Fit, client: Client, tmp_path: Path, options: dict[str, Any]
) -> None:
    rng, data = np.random.default_rng(0), tmp_path / "data"
    data.mkdir()
    for part in range(2):
        table = {"a": rng.beta(2.0, 5.0, 900), "b": rng.random(900), "id": np.arange(900)}
        pq.write_table(pa.table(table), data / f"part-{part}.parquet", row_group_size=300)
    estimator = MondrianDensity(4, n_draws=400, random_state=3, **options)
    run = fit("density", estimator=estimator, data=data, target=None, exclude=["id"])
    assert run.metrics == {}
    X = np.concatenate([read_block(run.plan, block).X for block in run.plan.blocks])
    alone, shared = MondrianDensity(**estimator.get_params()).fit(X), run.to_local()
    assert same_forest(alone, shared)
    assert np.array_equal(alone.lifetimes_, shared.lifetimes_)
    reported = score(run.run_url, data, tmp_path / "out", keep=["id"], client=client)
    assert reported["rows"] == 1800
    files = sorted((tmp_path / "out").glob("part-*.parquet"))
    scores = pa.concat_tables([pq.read_table(file) for file in files])
    assert scores.column_names == ["id", "log_density"]
    assert np.array_equal(scores.column("log_density").to_numpy(), alone.score_samples(X))
    bare = score(run.run_url, data, tmp_path / "out", keep=["id"], client=client, details=False)
    assert bare["written"] == 0  # a density has no details that could be left out
    measured = evaluate(run.run_url, data, client=client)
    assert measured["rows"] == 1800
    assert measured["log_likelihood"] == pytest.approx(alone.score(X) / 1800, rel=1e-12)


def abs_error(z: float, y: float) -> float:
    return abs(y - z)


def test_what_a_stream_cannot_do_is_refused(fit: Fit) -> None:
    held = GeneralizedMondrianForestRegressor(lifetime="validation")
    with pytest.raises(ParameterError, match="holds out rows of a fit"):
        fit("held", estimator=held, target="age")
    with pytest.raises(ParameterError, match="learns all columns alike: leave it out"):
        fit("density", estimator=MondrianDensity(), target="age")
    with pytest.raises(ParameterError, match="expected the name of the column to learn"):
        fit("no target", target=None)
    own = GeneralizedMondrianForestRegressor(loss=ConvexLoss(abs_error, solution=float))
    with pytest.raises(ParameterError, match="hold no functions"):
        fit("own", estimator=own, target="age")


def test_negative_counts_end_a_run_with_their_reason(fit: Fit, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = tmp_path / "data"
    data.mkdir()
    y = rng.poisson(2.0, 600)
    y[450] = -3
    pq.write_table(pa.table({"x": rng.random(600), "y": y}), data / "part-0.parquet")
    estimator = GeneralizedMondrianForestRegressor(2, loss="poisson", random_state=0)
    with pytest.raises(DataError, match="expected labels >= 0, got -3"):
        fit("counts", estimator=estimator, data=data, target="y", progressive=False)
