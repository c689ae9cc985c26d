"""A search finds what a plain loop over its candidates finds, wherever, and after kills."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client, wait

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    MondrianForestRegressor,
    MondrianKernelRegressor,
)
from dmondrian.checkpoint import document
from dmondrian.data import make_plan, read_chunk
from dmondrian.distributed import Searched, search, train
from dmondrian.distributed.searching import candidate_search
from dmondrian.distributed.searching.halving import dealt, going_on, rounds
from dmondrian.errors import CheckpointError, ParameterError
from tests.distributed.conftest import worker_threads, workers_of

PLAIN: dict[str, Any] = {
    "alpha": 0.5, "charge_opening": True, "feature_scales": None, "feature_units": None,
    "random_state": 3,
}  # fmt: skip
N = 300


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    X = rng.random((N, 3))
    y = np.where(X[:, 0] + 0.3 * rng.standard_normal(N) > 0.5, "yes", "no")
    table = pa.table({**{f"x{k}": X[:, k] for k in range(3)}, "y": y, "size": X[:, 1] + X[:, 0]})
    folder = tmp_path_factory.mktemp("search")
    pq.write_table(table, folder / "rows.parquet", row_group_size=70)
    return folder / "rows.parquet"


def candidates() -> list[AMFClassifier]:
    return [
        AMFClassifier(**{**PLAIN, "alpha": alpha, "n_estimators": trees})
        for trees in (1, 2)
        for alpha in (0.05, 0.5, 2.0)
    ]


def losses_by_row(forest: AMFClassifier, X: np.ndarray, y: np.ndarray) -> list[float]:
    """Minus the log of the probability of each label, just before its row is learned."""
    found = []
    for k in range(len(X)):
        share = 0.5
        if k:
            share = float(forest.predict_proba(X[k : k + 1])[0, int(y[k])])
        found.append(-math.log(share))
        forest.partial_fit(X[k : k + 1], y[k : k + 1], classes=[0.0, 1.0])
    return found


def test_the_winner_is_that_of_a_plain_loop(data: Path, client: Client, tmp_path: Path) -> None:
    found = search(
        candidates(), data, target="y", exclude=["size"], folder=tmp_path, rows=260, client=client
    )
    plan = make_plan(data, target="y", exclude=["size"], task="classification")
    read = [read_chunk(plan, chunk) for chunk in plan.chunks]
    X = np.concatenate([one.X for one in read])
    y = np.concatenate([one.y for one in read])
    each = [losses_by_row(forest, X[:260], y[:260]) for forest in candidates()]
    living, expected = list(range(6)), {}
    for end in (65, 130, 260):
        mean = {k: sum(each[k][:end]) / end for k in living}
        expected |= {k: (end, loss) for k, loss in mean.items()}
        living = sorted(sorted(living, key=mean.__getitem__)[: -(-len(living) // 2)])
        if end == 260:
            living = [min(mean, key=mean.__getitem__)]
    assert found.rounds == [65, 130, 260]
    assert found.winner == living[0]
    assert found.loss == "log_loss"
    assert [one["rows"] for one in found.candidates] == [expected[k][0] for k in range(6)]
    assert [one["loss"] for one in found.candidates] == pytest.approx(
        [expected[k][1] for k in range(6)], rel=1e-12
    )
    assert sorted(one["rank"] for one in found.candidates) == [1, 2, 3, 4, 5, 6]
    assert found.candidates[found.winner]["rank"] == 1
    assert not list((tmp_path / "states").glob("*"))


@pytest.mark.parametrize(
    ("estimators", "target", "loss"),
    [
        ([AMFClassifier(calibrate=flag, n_estimators=2, **PLAIN) for flag in (True, False)],
         "y", "log_loss"),
        ([AMFClassifier(drift=how, n_estimators=2, random_state=0) for how in ("follow", None)],
         "y", "log_loss"),
        pytest.param(
            [MondrianForestRegressor(aggregation=how, n_estimators=2, random_state=0)
             for how in ("hierarchy", "mean")], "size", "rmse", marks=pytest.mark.thorough),
        ([AMFRegressor(calibrate=flag, n_estimators=2, random_state=0) for flag in (True, False)],
         "size", "rmse"),
    ],
    ids=["calibrated", "stream", "slices", "numbers"],
)  # fmt: skip
def test_losses_are_the_progressive_ones_of_training(
    data: Path, client: Client, tmp_path: Path, estimators: list[Any], target: str, loss: str
) -> None:
    exclude = ["size" if target == "y" else "y"]
    found = search(
        estimators, data, target=target, exclude=exclude, folder=tmp_path / "s", client=client
    )
    assert (found.loss, found.rounds) == (loss, [N])
    for one, estimator in zip(found.candidates, estimators, strict=True):
        run = train(
            estimator, data, target=target, exclude=exclude, client=client,
            run=tmp_path / f"run{one['rank']}",
        )  # fmt: skip
        assert one["metrics"] == {name: run.metrics[name] for name in one["metrics"]}


class Interrupt(logging.Handler):
    """Raises KeyboardInterrupt after a round."""

    def emit(self, record: logging.LogRecord) -> None:
        if "the best with" in record.getMessage():
            raise KeyboardInterrupt


def test_a_search_that_was_stopped_goes_on_at_any_number_of_workers(
    data: Path, client: Client, tmp_path: Path
) -> None:
    def run(folder: str, own: Client) -> Searched:
        return search(
            candidates(), data, target="y", exclude=["size"], folder=tmp_path / folder, client=own
        )

    whole = run("whole", client)
    logger, handler = logging.getLogger("dmondrian"), Interrupt()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run("stopped", client)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    first = tmp_path / "stopped/rounds/00.json"
    written = os.stat(first).st_mtime_ns
    assert len(list((tmp_path / "stopped/states").glob("00-*.arrow"))) == 6
    with worker_threads(1) as (_, other):
        assert run("stopped", other) == whole
    assert os.stat(first).st_mtime_ns == written
    for name in ("00", "01", "02"):
        same = [(tmp_path / f / f"rounds/{name}.json").read_bytes() for f in ("whole", "stopped")]
        assert same[0] == same[1]
    assert run("whole", client) == whole  # a finished one is read


@pytest.mark.thorough
def test_a_search_goes_on_when_dask_has_given_up_all_workers(
    data: Path, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = search(candidates(), data, target="y", folder=tmp_path / "whole", client=client)
    lost: list[str] = []
    with worker_threads(2) as (cluster, own):

        def lose_all(*about: Any, **options: Any) -> Any:
            """Close all workers of the first round before its tasks are waited for."""
            if not lost:
                lost.extend(workers_of(own))
                for worker in dict(cluster.workers).values():
                    cluster.sync(worker.close)
            return wait(*about, **options)

        monkeypatch.setattr(candidate_search, "wait", lose_all)
        monkeypatch.setattr(candidate_search, "_TICK", 0.2)
        again = search(candidates(), data, target="y", folder=tmp_path / "lost", client=own)
        assert len(lost) == 2
        assert not set(lost) & set(workers_of(own))
    assert again == whole


def test_what_cannot_be_compared_is_refused(data: Path, client: Client, tmp_path: Path) -> None:
    def refused(estimators: list[Any], words: str, **options: Any) -> None:
        how = {"target": "y", "folder": tmp_path, "client": client, **options}
        with pytest.raises((ParameterError, CheckpointError), match=words):
            search(estimators, data, **how)

    refused([], "0 candidates")
    refused([AMFClassifier(), AMFRegressor()], "no one loss")
    refused([MondrianKernelRegressor()], "not searched", target="size")
    refused([AMFClassifier(class_weight=w) for w in (None, {"yes": 2.0})], "class_weight differs")
    refused(candidates()[:1], "rows is 0", rows=0)
    search(candidates()[:1], data, target="y", folder=tmp_path / "x", client=client)
    refused(candidates()[1:2], "other settings", folder=tmp_path / "x")
    refused(candidates()[:1], "other data", folder=tmp_path / "x", exclude=["size"])


def test_a_search_of_an_earlier_version_goes_on_without_calibration(
    data: Path, client: Client, tmp_path: Path
) -> None:
    def found(name: str, **settings: Any) -> Searched:
        one = AMFClassifier(2, **PLAIN, **settings)
        return search(
            [one], data, target="y", exclude=["size"], rows=100, folder=tmp_path / name,
            client=client,
        )  # fmt: skip

    plain = found("earlier", calibrate=False)
    assert found("earlier") == plain  # whose default was False
    next((tmp_path / "earlier" / "rounds").iterdir()).unlink()
    assert found("earlier") == plain != found("now")
    asked = document.unseal((tmp_path / "earlier/asked.json").read_bytes(), "asked.json")
    assert asked["estimators"][0][1]["calibrate"] is False


def test_halving() -> None:
    assert rounds(8, 4000) == [1000, 2000, 4000]
    assert rounds(5, 4000) == [1000, 2000, 4000]
    assert rounds(1, 10) == [10]
    assert rounds(1000, 3) == [1, 3]
    assert going_on({4: 1.0, 1: 1.0, 2: math.nan, 7: 0.5, 9: 3.0}, False) == [1, 4, 7]
    assert going_on({4: 1.0, 1: 1.0}, True) == [1]
    assert going_on({4: math.nan}, True) == [4]
    assert dealt([1, 2, 3, 4, 5], 2) == [[1, 3, 5], [2, 4]]
    assert dealt([1], 8) == [[1]]
