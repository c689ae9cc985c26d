"""Scores without what tells how sure the forest is: the other columns, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import (
    GeneralizedMondrianForestClassifier,
    GeneralizedMondrianForestRegressor,
    MondrianForestRegressor,
    OnlineRandomForestClassifier,
)
from dmondrian.distributed import TrainedRun, score
from dmondrian.distributed.scoring import memory_plan
from dmondrian.distributed.scoring.model_info import open_model
from dmondrian.errors import CheckpointError, ParameterError
from tests.distributed.conftest import ROWS, Fit, forest, table_of
from tests.distributed.scoring.test_tree_pipeline import limit_of, manifest, plan_small
from tests.distributed.training.job import BOUNDED

DETAILS = {"spread", "std", "distance"}
QUANTILES = {"loss": "quantile", "quantile": [0.1, 0.9], "lifetime": "penalized"}


@pytest.mark.parametrize(
    ("estimator", "target", "n_details"),
    [
        pytest.param(forest(n_estimators=3, calibrate=True), "income", 2, id="classes"),
        pytest.param(
            MondrianForestRegressor(3, aggregation="hierarchy", random_state=0), "age", 2,
            id="labels", marks=pytest.mark.thorough,
        ),
        pytest.param(
            GeneralizedMondrianForestRegressor(3, **QUANTILES, max_lifetime=2.0), "age", 2,
            id="quantiles", marks=pytest.mark.thorough,
        ),
        pytest.param(
            GeneralizedMondrianForestClassifier(3, loss="exponential"), "income", 2,
            id="decisions", marks=pytest.mark.thorough,
        ),
        pytest.param(OnlineRandomForestClassifier(3, **BOUNDED), "income", 1, id="no boxes"),
    ],
)  # fmt: skip
def test_the_other_columns_are_the_same(
    estimator: Any, target: str, n_details: int, fit: Fit, adult: Path, client: Client,
    tmp_path: Path,
) -> None:  # fmt: skip
    run = fit("run", estimator=estimator, target=target)
    score(run.run_url, adult, tmp_path / "all", client=client)
    reported = score(run.run_url, adult, tmp_path / "plain", client=client, details=False)
    whole, plain = table_of(tmp_path / "all"), table_of(tmp_path / "plain")
    assert reported["rows"] == plain.num_rows == ROWS
    assert len(DETAILS & set(whole.column_names)) == n_details
    assert plain.equals(whole.drop_columns([*DETAILS & set(whole.column_names)]))


def test_they_are_other_scores(
    undisturbed: TrainedRun, adult: Path, client: Client, tmp_path: Path
) -> None:
    url, out = undisturbed.run_url, tmp_path / "out"
    score(url, adult, out, client=client, details=False)
    with pytest.raises(CheckpointError, match="details"):
        score(url, adult, out, client=client)
    assert score(url, adult, out, client=client, details=False)["written"] == 0


@pytest.mark.parametrize("details", ["no", 0, None])
def test_yes_or_no(
    details: Any, undisturbed: TrainedRun, adult: Path, client: Client, tmp_path: Path
) -> None:
    with pytest.raises(ParameterError, match="details must be True or False"):
        score(undisturbed.run_url, adult, tmp_path / "out", client=client, details=details)
    assert not (tmp_path / "out").exists()


def test_they_are_not_planned_for(
    undisturbed: TrainedRun, adult: Path, client: Client, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    planned = []

    def note(*given: Any) -> memory_plan.Needs:
        planned.append(memory_plan.row_needs(*given))
        return planned[-1]

    monkeypatch.setattr("dmondrian.distributed.scoring.score.row_needs", note)
    for details in (True, np.False_):
        out = tmp_path / str(details)
        score(undisturbed.run_url, adult, out, client=client, details=details)
    whole, plain = planned
    assert plain.task < whole.task
    assert 2.0 < whole.sums / plain.sums <= 2.5  # two classes: of 2 + 2 + 1 numbers 2


def test_their_names_are_free(
    undisturbed: TrainedRun, adult: Path, client: Client, tmp_path: Path
) -> None:
    rows = pq.read_table(sorted(adult.iterdir())[0])
    named = rows.append_column("spread", rows.column("age"))
    pq.write_table(named, tmp_path / "rows.parquet")
    asked = (undisturbed.run_url, tmp_path / "rows.parquet", tmp_path / "out")
    with pytest.raises(ParameterError, match=r"\['spread'\] cannot be kept"):
        score(*asked, keep=["spread"], client=client)
    score(*asked, keep=["spread"], client=client, details=False)
    kept = table_of(tmp_path / "out").column("spread")
    assert kept.equals(pa.chunked_array(rows.column("age").chunks))


def test_sharded_trees_say_the_same(
    undisturbed: TrainedRun, adult: Path, client: Client, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    plan_small(monkeypatch)
    url = undisturbed.run_url
    limit = limit_of(open_model(url, measures_distance=False), 2)
    plain = {"client": client, "details": False}
    whole = score(url, adult, tmp_path / "whole", **plain)
    parts = score(url, adult, tmp_path / "parts", memory_limit=limit, **plain)
    assert (whole["trees_sharded"], parts["trees_sharded"] > 1) == (1, True)
    assert manifest(tmp_path / "whole") == manifest(tmp_path / "parts")
