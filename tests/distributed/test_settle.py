"""The parameters of a run: the ones that the estimator itself comes to, and kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian import AMFClassifier
from dmondrian.checkpoint import Run
from dmondrian.data import Plan, make_plan, read_block
from dmondrian.distributed.settle import SAMPLED_BLOCKS, first_rows, settle
from dmondrian.parameters import ForestParameters
from dmondrian.warmup import LAST

GROUP = 300  # rows of a row group


@pytest.fixture
def source(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    x = rng.random((6000, 2))
    table = pa.table({"a": x[:, 0], "b": x[:, 1], "y": (x[:, 0] > 0.5) ^ (rng.random(6000) < 0.2)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=GROUP)
    return str(tmp_path / "rows.parquet")


def rows_of(plan: Plan, n: int) -> tuple[np.ndarray, np.ndarray]:
    blocks = [read_block(plan, block) for block in plan.blocks]
    X = np.concatenate([block.X for block in blocks])
    return X[:n], np.concatenate([block.y for block in blocks if block.y is not None])[:n]


def test_the_first_rows_are_the_streams(source: str) -> None:
    plan = make_plan(source, target="y", task="classification")
    X, y, w = first_rows(plan)
    assert len(X) == LAST + 1
    expected = rows_of(plan, len(X))
    assert (expected[0] == X).all()
    assert (y == expected[1]).all()
    assert (w == 1.0).all()


def test_row_groups_of_a_shuffled_plan_give_rows_in_turn(source: str) -> None:
    plan = make_plan(source, target="y", task="classification", shuffle=True, seed=3)
    X, y, _ = first_rows(plan)
    n = SAMPLED_BLOCKS * GROUP
    expected = rows_of(plan, n)
    in_turn = np.arange(n).reshape(SAMPLED_BLOCKS, GROUP).T.ravel()
    assert (expected[0][in_turn] == X).all()
    assert (y == expected[1][in_turn]).all()


def test_a_run_has_the_parameters_that_the_estimator_comes_to(source: str, tmp_path: Path) -> None:
    plan = make_plan(source, target="y", task="classification")
    estimator = AMFClassifier(3, random_state=8, feature_scales="learned")
    settled = settle(estimator, plan, str(tmp_path / "run"))
    X, y = rows_of(plan, 6000)
    fitted = estimator.fit(X, y)
    assert ForestParameters.from_json(settled) == fitted.forest_.parameters
    assert settled["feature_scales"] is not None
    assert settled["alpha"] == fitted.alpha_


def test_a_job_that_is_run_again_keeps_its_parameters(source: str, tmp_path: Path) -> None:
    plan = make_plan(source, target="y", task="classification")
    estimator, url = AMFClassifier(3), str(tmp_path / "run")  # the seed is drawn
    settled = settle(estimator, plan, url)
    Run.create(url, {"plan": plan.digest, "parameters": settled}, b"plan")
    assert settle(estimator, plan, url) == settled
    assert settle(estimator, plan, str(tmp_path / "other"))["seed"] != settled["seed"]
