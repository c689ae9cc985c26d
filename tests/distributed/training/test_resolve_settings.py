"""The parameters of a run: the ones that the estimator itself comes to, and kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dmondrian import AMFClassifier
from dmondrian.checkpoint import Run, document
from dmondrian.data import Plan, make_plan, read_block, read_chunk
from dmondrian.distributed.training.resolve_settings import (
    SAMPLED_BLOCKS,
    first_rows,
    resolve_parameters,
    summary_of,
)
from dmondrian.distributed.training.run_setup import prepare_run
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CheckpointError
from dmondrian.tuning.auto_settings import LAST

GROUP = 300  # rows of a row group


@pytest.fixture
def source(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    x = rng.random((6000, 2))
    y = (np.sin(25.0 * x[:, 0]) > 0.0) ^ (rng.random(6000) < 0.05)  # many splits of one column
    table = pa.table({"a": x[:, 0], "b": x[:, 1], "y": y})
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


def test_the_first_rows_of_a_mixed_stream_are_its_own(source: str) -> None:
    plan = make_plan(source, target="y", task="classification", shuffle=True, seed=3)
    X, y, _ = first_rows(plan)
    (chunk,) = plan.chunks
    read = read_chunk(plan, chunk)
    assert read.y is not None
    assert (read.X[: LAST + 1] == X).all()
    assert (read.y[: LAST + 1] == y).all()


def test_row_groups_of_an_earlier_versions_shuffle_give_rows_in_turn(source: str) -> None:
    plan = make_plan(
        source, target="y", task="classification", shuffle=True, seed=3, is_mixed=False
    )
    X, y, _ = first_rows(plan)
    n = SAMPLED_BLOCKS * GROUP
    expected = rows_of(plan, n)
    in_turn = np.arange(n).reshape(SAMPLED_BLOCKS, GROUP).T.ravel()
    assert (expected[0][in_turn] == X).all()
    assert (y == expected[1][in_turn]).all()


def test_a_run_has_the_parameters_that_the_estimator_comes_to(source: str, tmp_path: Path) -> None:
    plan = make_plan(source, target="y", task="classification")
    estimator = AMFClassifier(2, random_state=8, feature_scales="learned", warmup_rows=1000)
    settled = resolve_parameters(estimator, plan, str(tmp_path / "run"))
    X, y = rows_of(plan, 6000)
    fitted = estimator.fit(X, y)
    assert ForestParameters.from_json(settled) == fitted.forest_.parameters
    assert settled["feature_scales"] is not None
    assert settled["alpha"] == fitted.alpha_


def messages_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Messages of this package; clusters of other tests may still be closing."""
    return [record.getMessage() for record in caplog.records if record.name == "dmondrian"]


def test_a_choice_is_announced_and_reported(
    source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan, shuffled = (
        make_plan(source, target="y", task="classification", shuffle=shuffle, is_mixed=False)
        for shuffle in (False, True)
    )
    given: dict[str, Any] = {"warmup_rows": 3000, "random_state": 8}
    url = str(tmp_path / "run")
    with caplog.at_level("INFO", "dmondrian"):
        settled = resolve_parameters(AMFClassifier(3, feature_scales="learned", **given), plan, url)
        given["feature_scales"] = None
        resolve_parameters(AMFClassifier(3, alpha=0.25, feature_units=None, **given), shuffled, url)
        fixed = {"alpha": 0.25, "charge_opening": True}
        resolve_parameters(AMFClassifier(3, **fixed, **given), plan, url)
        resolve_parameters(AMFClassifier(3, **fixed, feature_units=None, **given), plan, url)
    before, after, other, _, third, last = messages_of(caplog)  # nothing where nothing is open
    assert before == (
        "choosing alpha, charge opening, feature scales, feature units from 3,000 rows of the "
        "stream"
    )
    assert third == "choosing feature units from 512 rows of the stream"
    assert last.endswith("seconds: 2 of 2 columns rounded to 16 bits")
    assert other == (
        f"choosing charge opening from 3,000 rows of the first {SAMPLED_BLOCKS} row groups"
    )
    of_a, of_b = settled["feature_scales"]
    assert of_a == 1.0 > of_b
    assert after.startswith("chosen in ")
    assert f" seconds: alpha = {settled['alpha']:.3g}, charge_opening = " in after
    assert f"largest feature scales of 2: a 1, b {of_b:.3g}, 2 of 2 columns rounded" in after


def test_what_was_chosen_is_reported_in_words() -> None:
    drawn = AMFClassifier(random_state=0)._forest_parameters(3, 2)
    auto = ("alpha", "charge_opening", "feature_scales")
    reported = summary_of(drawn, auto, ["a", "b", "c"], np.ones(3, bool))
    assert reported == "alpha = 0.25, charge_opening = false, no feature scales"
    scaled = dataclasses.replace(drawn, feature_scales=(0.25, 1.0, 0.5))
    assert summary_of(scaled, auto[2:], ["a", "b", "c"], np.ones(3, bool)) == (
        "largest feature scales of 3: b 1, c 0.5, a 0.25"
    )
    rounded = dataclasses.replace(drawn, feature_units=(0.0, 0.5, 0.25))
    for one, n in ((rounded, 2), (drawn, 0)):
        reported = summary_of(one, ("feature_units",), ["a", "b", "c"], np.ones(3, bool))
        assert reported == f"{n} of 3 columns rounded to 16 bits"
    without_b = np.array([True, False, True])
    assert summary_of(scaled, auto[2:], ["a", "b", "c"], without_b).endswith("3: c 0.5, a 0.25")


def test_units_of_a_column_change_no_scale(source: str, tmp_path: Path) -> None:
    estimator = AMFClassifier(2, random_state=8, feature_scales="learned", warmup_rows=1000)
    table = pq.read_table(source)
    other = table.set_column(0, "a", pc.multiply(table["a"], 1024.0))
    pq.write_table(other, tmp_path / "other.parquet", row_group_size=GROUP)
    plans = [
        make_plan(str(tmp_path / f"{name}.parquet"), target="y", task="classification")
        for name in ("rows", "other")
    ]
    assert (rows_of(plans[0], 6000)[0] == rows_of(plans[1], 6000)[0]).all()
    first, second = (resolve_parameters(estimator, plan, str(tmp_path / "run")) for plan in plans)
    assert first["feature_scales"] is not None
    assert first == second


def test_a_warmup_is_as_long_as_asked(source: str, tmp_path: Path) -> None:
    plan = make_plan(source, target="y", task="classification")
    estimator = AMFClassifier(2, random_state=8, feature_scales="learned", warmup_rows=1000)
    settled = resolve_parameters(estimator, plan, str(tmp_path / "run"))
    X, y = rows_of(plan, 6000)
    assert ForestParameters.from_json(settled) == estimator.fit(X, y).forest_.parameters
    assert settled["feature_scales"] is not None
    longer = AMFClassifier(2, random_state=8, feature_scales="learned", warmup_rows=LAST + 100)
    settled = resolve_parameters(longer, plan, str(tmp_path / "run"))
    assert ForestParameters.from_json(settled) == longer.fit(X, y).forest_.parameters
    given = AMFClassifier(3, random_state=8, feature_scales=[0.5, 2.0], alpha=0.1)
    assert resolve_parameters(given, plan, str(tmp_path / "run"))["feature_scales"] == [0.5, 2.0]


def test_a_job_that_is_run_again_keeps_its_parameters(
    source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = make_plan(source, target="y", task="classification")
    estimator, url = AMFClassifier(2, warmup_rows=1000), str(tmp_path / "run")  # its seed is drawn
    settled = resolve_parameters(estimator, plan, url)
    Run.create(url, {"plan": plan.digest, "parameters": settled}, b"plan")
    with caplog.at_level("INFO", "dmondrian"):
        assert resolve_parameters(estimator, plan, url) == settled
        assert messages_of(caplog) == []  # nothing was chosen
    assert resolve_parameters(estimator, plan, str(tmp_path / "other"))["seed"] != settled["seed"]


def test_a_run_that_knew_fewer_parameters_goes_on(source: str, tmp_path: Path) -> None:
    run_options: dict[str, Any] = {"n_shards": None, "first_tree": 0, "progressive": True}
    url = str(tmp_path / "run")
    forest = AMFClassifier(3, random_state=8, alpha=0.1, charge_opening=True)
    prepare_run(forest, source, "y", url, run_options, {})
    file = tmp_path / "run" / "run.json"
    reported = document.unseal(file.read_bytes(), "run.json")
    del reported["estimator"]["warmup_rows"]
    file.write_bytes(document.seal(reported))
    run, _ = prepare_run(forest, source, "y", url, run_options, {})
    assert "warmup_rows" not in run.run_json["estimator"]
    with pytest.raises(CheckpointError, match="warmup_rows: nothing there, 1000 here"):
        prepare_run(forest.set_params(warmup_rows=1000), source, "y", url, run_options, {})
