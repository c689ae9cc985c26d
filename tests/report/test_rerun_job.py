"""The job on the page trains the same forest, byte for byte."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestRegressor,
    MondrianForestRegressor,
    MondrianKernelRegressor,
    OnlineRandomForestClassifier,
    PowerLifetime,
)
from dmondrian.checkpoint import Run
from dmondrian.cli.job import build_estimator, read_job
from dmondrian.distributed import TrainedRun, grow, train
from dmondrian.estimators import ALGORITHMS
from dmondrian.estimators.save import plain_params
from dmondrian.frames import FrameModel
from dmondrian.report.facts import gather
from dmondrian.report.rerun_job import job_of
from tests.cli.command import call, digests
from tests.distributed.conftest import forest


def again(run: TrainedRun, tmp_path: Path) -> dict[str, str]:
    """Train by the job on the page, as it is; return the digests of its shards."""
    job = tmp_path / "again.toml"
    job.write_text(job_of(gather(run.run_url)))
    call("train", job)
    return digests(Path(f"{run.run_url}-again"))


def written(folder: Path, name: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    n = 400
    x = draw.random(n)
    x[3] = np.inf
    y = [None if k == 5 else bool(x[k] > 0.5) for k in range(n)]
    table = {
        "x": x, "code": draw.integers(0, 9, n), "text": draw.choice(list("abcdef"), n),
        "words": draw.choice(["one two", "two three", "four"], n),
        "when": np.arange(n).astype("datetime64[h]").astype("datetime64[us]"),
        "secret": draw.random(n), "weight": draw.integers(0, 3, n).astype(float), "y": y,
    }  # fmt: skip
    rows = pa.table({**table, "row": range(n)})
    rows = rows.replace_schema_metadata({"pandas": json.dumps({"index_columns": ["row"]})})
    pq.write_table(rows, folder / name, row_group_size=100)


def test_of_a_plain_run(classified, tmp_path) -> None:
    first = Run.open(classified.run_url).latest()
    wanted = {str(number): shard["digest"] for number, shard in first.shards.items()}
    assert again(classified, tmp_path) == wanted


def test_of_a_density_without_its_excluded_column(density, tmp_path) -> None:
    assert tomllib.loads(job_of(gather(density.run_url)))["data"]["exclude"] == ["y"]
    assert again(density, tmp_path) == digests(Path(density.run_url))


def test_of_all_that_shapes_a_stream(client, tmp_path) -> None:
    for number in range(3):
        written(tmp_path, f"{number}.parquet", number)
    run = train(
        forest(n_estimators=3), tmp_path / "*.parquet", target="y", run=tmp_path / "run",
        client=client, weight="weight", exclude=["secret"], include=["row"], categorical=["code"],
        shuffle=True, seed=7, max_categories=4, infinite="clip", null_target="drop",
        classes=[False, True], first_tree=5, n_shards=2, progressive=False, text=["words"],
        text_features=8, text_words=2, cyclic=["when"],
    )  # fmt: skip
    job = tomllib.loads(job_of(gather(run.run_url)))
    assert job["data"]["path"] == [str(tmp_path / f"{number}.parquet") for number in range(3)]
    assert (job["data"]["max_categories"], job["run"]["first_tree"]) == (4, 5)
    assert again(run, tmp_path) == digests(Path(run.run_url))


def test_of_a_stream_that_was_continued(client, tmp_path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    for number in range(2):
        written(lake, f"{number}.parquet", number)
        run = train(
            forest(n_estimators=2), lake, target="y", run=tmp_path / "run", client=client,
            exclude=["secret"], infinite="clip", null_target="drop",
        )  # fmt: skip
    text = job_of(gather(run.run_url))
    assert tomllib.loads(text)["data"]["path"] == str(lake / "0.parquet")
    _, _, files = text.partition("files appended:\n")
    appended = "".join(line.removeprefix("# ") for line in files.partition("\n\n")[0].splitlines())
    assert tomllib.loads(appended) == {"path": [str(lake / "1.parquet")]}
    again(run, tmp_path)
    files = f"data.path=['{lake / '0.parquet'}', '{lake / '1.parquet'}']"
    call("train", tmp_path / "again.toml", "--set", files)
    assert digests(Path(f"{run.run_url}-again")) == digests(Path(run.run_url))


def test_of_a_run_that_has_grown(client, numbers, tmp_path) -> None:
    given = {"random_state": 0, "feature_scales": None}
    few = AMFRegressor(n_estimators=2, **given)
    run = train(few, numbers, target="y", run=tmp_path / "run", client=client)
    grow(run.run_url, n_estimators=5, client=client)
    job = tomllib.loads(job_of(gather(run.run_url)))
    assert job["forest"]["n_estimators"] == 5
    assert "n_shards" not in job["run"]
    again(run, tmp_path)
    frame = pq.read_table(numbers)
    reported = [FrameModel(f"{run.run_url}{end}").predict(frame) for end in ("", "-again")]
    assert reported[0].equals(reported[1])


GIVEN = [
    AMFClassifier(feature_scales=None, max_nodes=100, calibrate=True),
    AMFClassifier(feature_scales=[1.0, 0.5], warmup_rows=512, random_state=3),
    MondrianForestRegressor(lifetime=None),
    MondrianForestRegressor(lifetime=PowerLifetime(2.0, 0.2)),
    OnlineRandomForestClassifier(max_fringe=None),
    MondrianKernelRegressor(lifetime=4.0, solver="sgd"),
    GeneralizedMondrianForestRegressor(loss="quantile", quantile=[0.1, 0.9]),
    *(kind() for kind in ALGORITHMS.values()),
]


@pytest.mark.parametrize("estimator", GIVEN, ids=str)
def test_all_parameters_come_back(classified, estimator, tmp_path) -> None:
    if estimator.random_state is None:
        estimator.set_params(random_state=0)  # that of a job; the page tells of seeds drawn
    facts = gather(classified.run_url)
    about = {"algorithm": estimator.algorithm, "estimator": plain_params(estimator)}
    facts.run_json = {**facts.run_json, **about}
    facts.n_trees = 0
    (tmp_path / "job.toml").write_text(job_of(facts))
    built = build_estimator(read_job(tmp_path / "job.toml"))
    assert (type(built), plain_params(built)) == (type(estimator), plain_params(estimator))


def test_a_model_of_arrays_has_none(tmp_path) -> None:
    AMFClassifier(n_estimators=1, random_state=0).fit([[0.0], [1.0]], [0, 1]).save(tmp_path / "m")
    assert job_of(gather(str(tmp_path / "m"))) == ""
