"""Online random forests on a cluster: the bytes of one process, scores without a distance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import OnlineRandomForestClassifier, OnlineRandomForestRegressor, load
from dmondrian.checkpoint import Run
from dmondrian.distributed import evaluate, grow, score
from dmondrian.distributed.scoring.model_info import open_model
from dmondrian.errors import ParameterError
from tests.distributed.conftest import ROWS, Fit
from tests.distributed.scoring.test_tree_pipeline import limit_of, manifest, plan_small
from tests.distributed.training.job import BOUNDED
from tests.distributed.training.test_generalized import rows_of
from tests.estimators.test_amf import same_forest


def test_a_run_is_the_forest_of_one_process(
    fit: Fit, adult: Path, client: Client, tmp_path: Path
) -> None:
    run = fit("online", estimator=OnlineRandomForestClassifier(4, **BOUNDED))
    X, y = rows_of(run)
    alone = OnlineRandomForestClassifier(4, **BOUNDED).fit(X, y)
    shared = run.to_local()
    assert same_forest(alone, shared)
    assert alone.nodes(0)["fringe"].sum() == 40
    out = tmp_path / "out"
    assert score(run.run_url, adult, out, client=client, keep=["age"])["rows"] == ROWS
    table = pa.concat_tables([pq.read_table(file) for file in sorted(out.glob("part-*.parquet"))])
    assert table.column_names == ["age", "prediction", "proba_<=50K", "proba_>50K", "spread"]
    reported = table.column("proba_>50K").to_numpy()
    assert np.array_equal(reported, shared.predict_proba(X)[:, 1])
    measured = evaluate(run.run_url, adult, client=client)
    accuracy = (shared.predict(X) == shared.classes_[y.astype(int)]).mean()
    assert measured["accuracy"] == pytest.approx(accuracy, abs=1e-12)
    assert 0.0 < run.metrics["log_loss"] < 1.0
    # Any checkpoint goes on: its candidates are stored with the nodes.
    before = load(f"{run.run_url}@{sorted(Run.open(run.run_url).manifests())[0]}")
    learned = int(before.forest_.total_weight)
    assert 0 < learned < ROWS
    before.partial_fit(X[learned:], before.classes_[y[learned:].astype(int)])
    assert same_forest(before, alone)
    grown = grow(run.run_url, 5, client=client).to_local()
    assert same_forest(OnlineRandomForestClassifier(5, **BOUNDED).fit(X, y), grown)


@pytest.mark.parametrize("aggregation", ["mean", "vote"])
@pytest.mark.thorough(but="mean")
def test_scores_under_a_limit_of_memory_are_the_same(
    fit: Fit, adult: Path, client: Client, tmp_path: Path, aggregation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    plan_small(monkeypatch)
    run = fit("run", estimator=OnlineRandomForestClassifier(4, aggregation=aggregation, **BOUNDED))
    limit = limit_of(open_model(run.run_url), 1)
    whole = score(run.run_url, adult, tmp_path / "whole", client=client)
    parts = score(run.run_url, adult, tmp_path / "parts", client=client, memory_limit=limit)
    assert (whole["trees_sharded"], parts["trees_sharded"]) == (1, 4)
    assert manifest(tmp_path / "whole") == manifest(tmp_path / "parts")
    at_once = evaluate(run.run_url, adult, client=client)
    in_parts = evaluate(run.run_url, adult, client=client, memory_limit=limit)
    assert in_parts.pop("trees_sharded") > 1
    assert in_parts == at_once


@pytest.mark.parametrize("progressive", [True, False])
@pytest.mark.thorough(but="False")
def test_numbers_are_learned_and_impossible_settings_refused(fit: Fit, progressive: bool) -> None:
    estimator = OnlineRandomForestRegressor(2, random_state=7)
    run = fit("online-age", estimator=estimator, target="age", progressive=progressive)
    assert same_forest(OnlineRandomForestRegressor(2, random_state=7).fit(*rows_of(run)),
                       run.to_local())  # fmt: skip
    if progressive:
        assert 0.0 < run.metrics["mae"] < 20.0
    with pytest.raises(ParameterError, match="must_split_ratio"):
        fit("impossible", estimator=OnlineRandomForestClassifier(must_split_ratio=0.5))
