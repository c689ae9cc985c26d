"""Runs with weights of classes: the forest of rows with these weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian import AMFClassifier, AMFRegressor, CheckpointError, ParameterError
from dmondrian.distributed import evaluate, train
from dmondrian.report.facts import gather
from dmondrian.report.rerun_job import job_of
from tests.cli.command import call
from tests.distributed.conftest import digests

N = 600


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with labels 0 and 1, weights, and weights that are those of classes too."""
    draw = np.random.default_rng(0)
    x, w = draw.random(N), draw.integers(0, 3, N).astype(float)
    y = (x + draw.normal(0.0, 0.3, N) > 0.8).astype(int)
    by_class = np.where(y == 1, 2.5, 1.0)
    table = {"x": x, "z": draw.random(N), "y": y, "w": w, "c": by_class, "cw": w * by_class}
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(pa.table(table), path, row_group_size=150)
    return path


def run_of(client: Any, rows: Path, folder: Path, weight: str | None, **settings: Any) -> Any:
    forest = AMFClassifier(2, random_state=0, **settings)
    others = [name for name in ("w", "c", "cw") if name != weight]
    return train(
        forest, rows, target="y", run=folder, client=client, exclude=others, weight=weight,
        checkpoint_every="200 rows",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "weight", "known"),
    [
        ({}, None, "c"),
        ({"calibrate": True}, "w", "cw"),
        ({"drift": "follow", "delay": 7}, "w", "cw"),
        pytest.param({}, "w", "cw", marks=pytest.mark.thorough),
        pytest.param({"calibrate": True}, None, "c", marks=pytest.mark.thorough),
        pytest.param({"drift": "follow", "delay": 7}, None, "c", marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_it_multiplies_weights_of_rows(
    client: Any, rows: Path, tmp_path: Path, settings: Any, weight: str | None, known: str
) -> None:
    own = run_of(client, rows, tmp_path / "own", weight, class_weight={1: 2.5}, **settings)
    other = run_of(client, rows, tmp_path / "other", known, **settings)
    assert digests(own) == digests(other)
    assert own.metrics == other.metrics  # which are weighted as rows are
    # and of other rows, as with a column of weights
    measured = evaluate(tmp_path / "own", rows, client=client)
    assert measured == evaluate(tmp_path / "other", rows, client=client)


def test_the_same_weights_resume_however_they_are_written(
    client: Any, rows: Path, tmp_path: Path
) -> None:
    first = run_of(client, rows, tmp_path / "run", None, class_weight={1: 2.5})
    stored = json.loads((tmp_path / "run" / "run.json").read_text())
    assert stored["estimator"]["class_weight"] == [[0, 1.0], [1, 2.5]]
    assert stored["schema"]["class_weight"] == [1.0, 2.5]
    for given in ({"1": 2.5}, {0: 1, 1: 2.5}, {"0": 1, "1": 2.5}):
        again = run_of(client, rows, tmp_path / "run", None, class_weight=given)
        assert again.summary["rows"] == 0
        assert again.metrics == first.metrics
    for other in ({1: 3}, None):
        with pytest.raises(CheckpointError, match=r"\[forest\] class_weight: .*2.5.* there"):
            run_of(client, rows, tmp_path / "run", None, class_weight=other)
    assert first.to_local().class_weight == {0: 1.0, 1: 2.5}
    text, _ = call("describe", tmp_path / "run")
    assert "'0' 1, '1' 2.5" in text
    assert "[forest.class_weight]\n0 = 1.0\n1 = 2.5\n" in job_of(gather(first.run_url))


def test_a_run_without_it_is_stored_as_before(client: Any, rows: Path, tmp_path: Path) -> None:
    run_of(client, rows, tmp_path / "run", None)
    assert "class_weight" not in (tmp_path / "run" / "run.json").read_text()
    ones = run_of(client, rows, tmp_path / "run", None, class_weight={1: 1.0})
    assert ones.summary["rows"] == 0  # the same job
    with pytest.raises(CheckpointError, match=r"\[forest\] class_weight: nothing there"):
        run_of(client, rows, tmp_path / "run", None, class_weight={1: 2.0})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("balanced", "only fit knows"),
        ({"yes": 2}, "not among the 2 classes"),
        ({1: -1.0}, "finite number >= 0"),
        ({0: 0.0, 1: 0.0}, "positive weight .*class_weight"),
    ],
)
def test_what_a_run_cannot_weigh_is_refused(
    client: Any, rows: Path, tmp_path: Path, given: Any, message: str
) -> None:
    with pytest.raises((ParameterError, ValueError), match=message):
        run_of(client, rows, tmp_path / "run", None, class_weight=given)


def test_numbers_have_no_classes() -> None:
    assert "class_weight" not in AMFRegressor().get_params()
