"""Scores: every row once, in order, whatever is killed, repeated or run twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from distributed import Client
from sklearn import metrics as sk

from dmondrian import AMFClassifier, AMFRegressor, MondrianForestRegressor
from dmondrian.data import make_scoring_plan, read_block
from dmondrian.distributed import TrainedRun, evaluate, score
from dmondrian.distributed.cluster.workers import Workers
from dmondrian.distributed.scoring.memory_plan import VALUE_BYTES
from dmondrian.distributed.scoring.model_info import open_model
from dmondrian.distributed.scoring.score import ScorePart, _needs
from dmondrian.errors import (
    CheckpointError,
    ClusterError,
    CorruptError,
    DataError,
    ParameterError,
    SchemaError,
)
from tests.distributed.conftest import ROWS, Fit, Grow, forest, giving_up_after, resize, table_of
from tests.flipped import carries_checksums

pytestmark = pytest.mark.usefixtures("small_files")


def test_scores_are_the_estimator_s_in_the_order_of_the_rows(
    adult: Path, client: Client, tmp_path: Path, undisturbed: TrainedRun
) -> None:
    reported = score(
        undisturbed.run_url, adult, tmp_path / "out", keep=["age", "sex"], client=client
    )
    assert (reported["rows"], reported["files"], reported["written"]) == (ROWS, 6, 6)
    assert carries_checksums((tmp_path / "out/part-000000.parquet").read_bytes())
    scores = table_of(tmp_path / "out")
    expected_names = ["age", "sex", "prediction", "proba_<=50K", "proba_>50K", "spread", "distance"]
    assert scores.column_names == expected_names
    source = pyarrow.dataset.dataset(sorted(adult.iterdir())).to_table()
    assert scores.column("age").to_pylist() == source.column("age").to_pylist()
    assert scores.column("sex").to_pylist() == source.column("sex").to_pylist()
    estimator = undisturbed.to_local()
    plan = make_scoring_plan(adult, undisturbed.plan.schema)
    X = np.concatenate([read_block(plan, block).X for block in plan.blocks])
    frame = pd.DataFrame(X, columns=plan.schema.feature_names)
    proba = estimator.predict_proba(frame)
    assert np.array_equal(scores.column("proba_>50K").to_numpy(), proba[:, 1])
    assert scores.column("prediction").to_pylist() == list(estimator.predict(frame))
    each = np.stack([_one_tree(estimator, t).predict_sums(X).total for t in range(6)])
    spread = each[:, np.arange(ROWS), proba.argmax(axis=1)].std(axis=0)
    assert scores.column("spread").to_numpy() == pytest.approx(spread, abs=1e-7)
    assert scores.column("distance").to_numpy().max() < 1e-5  # all rows were learned


def _one_tree(estimator: AMFClassifier, tree: int) -> Any:
    from dmondrian.forest.forest import Forest

    return Forest(estimator.forest_.parameters, [tree], trees=[estimator.forest_.trees[tree]])


def test_memory_is_planned_for_all_columns_that_are_read(
    adult: Path, undisturbed: TrainedRun
) -> None:
    model = open_model(undisturbed.run_url)
    plan = make_scoring_plan(adult, model.schema)
    n_rows = max(block.rows for block in plan.blocks)

    def planned(*keep: str) -> int:
        parts = [
            ScorePart("", "", "", "", i, i + 1, keep, None, (), None, model.parameters)
            for i in range(len(plan.blocks))
        ]
        return _needs(model, plan, parts).task

    read = 2 * max(block.group_rows for block in plan.blocks) * VALUE_BYTES
    assert planned("age") - planned() == read + 3 * n_rows * 8 * 2  # it is also written
    assert planned() > len(plan.schema.columns) * read


def test_regression_scores_have_no_probabilities(
    adult: Path, fit: Fit, client: Client, tmp_path: Path
) -> None:
    given = {"learning_rate": 1.0, "feature_scales": None}  # nothing to choose
    estimator = AMFRegressor(n_estimators=3, random_state=1, **given)
    run = fit(estimator=estimator, target="age", exclude=["income"])
    score(run.run_url, adult, tmp_path / "out", client=client)
    scores = table_of(tmp_path / "out")
    assert scores.column_names == ["prediction", "spread", "distance"]
    assert 17 < np.median(scores.column("prediction").to_numpy()) < 60


def test_a_gaussian_hierarchy_forecasts_the_deviation_of_the_label(
    adult: Path, fit: Fit, client: Client, tmp_path: Path
) -> None:
    estimator = MondrianForestRegressor(n_estimators=3, aggregation="hierarchy", random_state=1)
    run = fit(estimator=estimator, target="age", exclude=["income"])
    score(run.run_url, adult, tmp_path / "out", client=client)
    scores = table_of(tmp_path / "out")
    assert scores.column_names == ["prediction", "std", "distance"]
    plan = make_scoring_plan(adult, run.plan.schema)
    X = read_block(plan, plan.blocks[0]).X
    frame = pd.DataFrame(X, columns=plan.schema.feature_names)
    mean, std = run.to_local().predict(frame, return_std=True)
    assert np.array_equal(scores.column("prediction").to_numpy()[: len(X)], mean)
    assert np.array_equal(scores.column("std").to_numpy()[: len(X)], std)


def test_a_row_outside_the_cube_is_refused_with_its_column(
    adult: Path, fit: Fit, client: Client, tmp_path: Path
) -> None:
    estimator = MondrianForestRegressor(2, domain="cube", lifetime=2.0, random_state=1)
    run = fit(estimator=estimator, target="age", exclude=["income"], progressive=False)
    frame = pd.read_parquet(sorted(adult.iterdir())[0])
    frame.loc[7, "hours-per-week"] = 1000
    frame.to_parquet(tmp_path / "rows.parquet")
    for ask in (
        lambda: score(run.run_url, tmp_path / "rows.parquet", tmp_path / "out", client=client),
        lambda: evaluate(run.run_url, tmp_path / "rows.parquet", client=client),
    ):
        with pytest.raises(DataError, match="column 'hours-per-week' has values in"):
            ask()


@pytest.mark.parametrize("label", [3, True], ids=["integers", "booleans"])
def test_labels_keep_their_type(
    label: int | bool, client: Client, tmp_path: Path, fit: Fit
) -> None:
    labels = [label, type(label)(0)] * 50
    data = tmp_path / "data.parquet"
    pq.write_table(pa.table({"a": np.linspace(0, 1, 100), "y": labels}), data)
    run = fit(data=data, target="y")
    score(run.run_url, data, tmp_path / "out", client=client)
    scores = table_of(tmp_path / "out")
    assert type(scores.column("prediction")[0].as_py()) is type(label)
    assert f"proba_{label}" in scores.column_names


class StopAfter:
    """Kills a job, as a signal would, when some files are written."""

    def __init__(self, out: Path, n: int) -> None:
        self.out, self.n = out, n

    def __call__(self, progress: object) -> None:
        if len(list(self.out.glob("part-*.parquet"))) >= self.n:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("talkative")
def test_a_killed_job_is_finished_by_repeating_it(
    adult: Path, client: Client, tmp_path: Path, undisturbed: TrainedRun
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    score(undisturbed.run_url, adult, whole, client=client)
    with pytest.raises(KeyboardInterrupt):
        score(undisturbed.run_url, adult, out, client=client, progress=StopAfter(out, 2))
    assert not (out / "_manifest.json").exists()
    there = len(list(out.glob("part-*.parquet")))
    reported = score(undisturbed.run_url, adult, out, client=client)
    assert reported["written"] <= 6 - 2
    assert there >= 2
    assert table_of(out).equals(table_of(whole))
    assert (out / "_manifest.json").read_bytes() == (whole / "_manifest.json").read_bytes()


def test_a_finished_job_is_checked_and_not_written_again(
    adult: Path, client: Client, tmp_path: Path, undisturbed: TrainedRun
) -> None:
    out = tmp_path / "out"
    score(undisturbed.run_url, adult, out, client=client)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert score(undisturbed.run_url, adult, out)["written"] == 0
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    file = out / "part-000003.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptError, match=r"part-000003\.parquet.*changed"):
        score(undisturbed.run_url, adult, out)


def test_two_jobs_at_once_end_with_every_row_once(
    adult: Path, client: Client, tmp_path: Path, undisturbed: TrainedRun
) -> None:
    out = tmp_path / "out"

    class Rival:
        """Another person's job, run to its end while this one is on its way."""

        def __init__(self) -> None:
            self.is_done = False

        def __call__(self, progress: object) -> None:
            if not self.is_done:
                self.is_done = True
                score(undisturbed.run_url, adult, out, client=client)

    score(undisturbed.run_url, adult, out, client=client, progress=Rival())
    assert table_of(out).num_rows == ROWS
    listed = json.loads((out / "_manifest.json").read_text())
    assert sum(entry["rows"] for entry in listed["files"]) == ROWS


def test_worker_processes_write_the_same_files(
    adult: Path, client: Client, pair: Client, tmp_path: Path, undisturbed: TrainedRun
) -> None:
    score(undisturbed.run_url, adult, tmp_path / "a", client=pair)
    score(undisturbed.run_url, adult, tmp_path / "b", client=client)
    assert (tmp_path / "a/_manifest.json").read_bytes() == (
        tmp_path / "b/_manifest.json"
    ).read_bytes()


LOADED = """
import sys
from dmondrian.distributed import evaluate, score
run, data, out = sys.argv[1:]
score(run, data, out, progress=False)
assert "auc" in evaluate(run, data)
print(*{"pandas", "sklearn"} & set(sys.modules))
"""


def test_neither_pandas_nor_scikit_learn_is_loaded(
    adult: Path, tmp_path: Path, undisturbed: TrainedRun
) -> None:
    command = [sys.executable, "-c", LOADED, undisturbed.run_url, adult, tmp_path / "out"]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"\n"


@pytest.mark.usefixtures("talkative")
def test_workers_that_join_and_leave_change_no_file(
    adult: Path, cluster: Grow, client: Client, tmp_path: Path, undisturbed: TrainedRun
) -> None:
    workers, own = cluster(1)
    sizes = [2, 1]

    def change(progress: object) -> None:
        if sizes:
            resize(workers, own, sizes.pop(0))

    reported = score(undisturbed.run_url, adult, tmp_path / "a", client=own, progress=change)
    assert sizes == []
    assert reported["files"] == 6
    assert reported["written"] in (5, 6)  # a worker that left may have written a part unheard
    score(undisturbed.run_url, adult, tmp_path / "b", client=client)
    manifests = [(tmp_path / name / "_manifest.json").read_bytes() for name in "ab"]
    assert manifests[0] == manifests[1]


def test_a_cluster_without_workers_is_reported_after_a_while(
    adult: Path, cluster: Grow, tmp_path: Path, undisturbed: TrainedRun,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(Workers, "__init__", giving_up_after(0.5))
    with pytest.raises(ClusterError, match="has no workers"):
        score(undisturbed.run_url, adult, tmp_path / "out", client=cluster(0)[1])


@pytest.mark.parametrize("change", ["model", "data", "keep"])
def test_a_folder_with_other_scores_is_refused_and_the_difference_named(
    adult: Path, client: Client, tmp_path: Path, undisturbed: TrainedRun, change: str
) -> None:
    out = tmp_path / "out"
    score(undisturbed.run_url, adult, out, client=client)
    model, data, keep = undisturbed.run_url, adult, ()
    if change == "model":
        model = f"{model}@1000"
    elif change == "data":
        data = adult / "part-0.parquet"
    else:
        keep = ("age",)
    with pytest.raises(CheckpointError, match=f"other scores(.|\n)*{change}") as caught:
        score(model, data, out, keep=keep, client=client)
    words = {
        "model": "\n  model: another model, or checkpoint of it\nChoose",
        "data": "\n  data: other files, or rows of them: ",
        "keep": '\n  keep: [] there, ["age"] here\nChoose',
    }
    assert words[change] in str(caught.value)


@pytest.mark.parametrize("change", ["touched", "gone", "new"])
def test_scores_of_data_that_changed_since_are_refused_with_the_name_of_the_file(
    adult: Path, client: Client, tmp_path: Path, undisturbed: TrainedRun, change: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in ("part-0.parquet", "part-1.parquet"):
        shutil.copy(adult / name, data / name)
    score(undisturbed.run_url, data, tmp_path / "out", client=client)
    last = data / "part-1.parquet"
    reported = rf"{last} changed \({last.stat().st_size} bytes then, written again since\)"
    if change == "touched":
        os.utime(last, (1.0e9, 1.0e9))
    elif change == "gone":
        last.unlink()
        reported = f"{last} is gone"
    else:
        shutil.copy(last, data / "part-2.parquet")
        reported = f"{data / 'part-2.parquet'} came since"
    with pytest.raises(CheckpointError, match=f"(?s)other scores.*data: .*{reported}"):
        score(undisturbed.run_url, data, tmp_path / "out", client=client)


def test_a_folder_with_other_parquet_is_refused(
    adult: Path, client: Client, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "mine.parquet")
    with pytest.raises(CheckpointError, match=r"mine\.parquet"):
        score(undisturbed.run_url, adult, tmp_path, client=client)


def test_a_damaged_plan_is_named_and_made_again(
    adult: Path, client: Client, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    begun, out = tmp_path / "begun", tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        score(undisturbed.run_url, adult, begun, client=client, progress=StopAfter(begun, 1))
    begun.rename(out)  # plans are read once per process and folder
    stored = (out / "_score.plan").read_bytes()
    (out / "_score.plan").write_bytes(stored[:100])
    with pytest.raises(CorruptError, match=r"_score\.plan in .*delete it and run the same"):
        score(undisturbed.run_url, adult, out, client=client)
    (out / "_score.plan").unlink()
    score(undisturbed.run_url, adult, out, client=client)
    assert (out / "_score.plan").read_bytes() == stored
    assert table_of(out).num_rows == ROWS


def test_columns_missing_renamed_or_of_another_type_are_named(
    adult: Path, client: Client, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    table = pq.read_table(adult / "part-0.parquet")
    as_text = table.column("age").cast(pa.string())
    bad = {
        "dropped": table.drop_columns(["age"]),
        "renamed": table.rename_columns(["Age", *table.column_names[1:]]),
        "typed": table.set_column(0, "age", pa.array([f"{v}y" for v in as_text.to_pylist()])),
    }
    for name, other in bad.items():
        pq.write_table(other, tmp_path / f"{name}.parquet")
        with pytest.raises(SchemaError, match="age"):
            score(undisturbed.run_url, tmp_path / f"{name}.parquet", tmp_path / "o", client=client)
    assert not (tmp_path / "o").exists()


def test_columns_in_another_order_are_read_by_name(
    adult: Path, client: Client, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    table = pq.read_table(adult / "part-0.parquet")
    pq.write_table(table.select(table.column_names[::-1]), tmp_path / "other.parquet")
    score(undisturbed.run_url, tmp_path / "other.parquet", tmp_path / "a", client=client)
    score(undisturbed.run_url, adult / "part-0.parquet", tmp_path / "b", client=client)
    assert table_of(tmp_path / "a").equals(table_of(tmp_path / "b"))


@pytest.mark.parametrize("keep", [("age", "age"), ("prediction",)])
def test_kept_columns_must_not_clash(
    adult: Path, client: Client, undisturbed: TrainedRun, tmp_path: Path, keep: tuple[str, ...]
) -> None:
    data = tmp_path / "data.parquet"
    table = pq.read_table(adult / "part-0.parquet")
    pq.write_table(table.append_column("prediction", table.column("age")), data)
    with pytest.raises(ParameterError, match=keep[0]):
        score(undisturbed.run_url, data, tmp_path / "out", keep=keep, client=client)


def test_a_model_fitted_on_arrays_cannot_read_files(
    adult: Path, client: Client, tmp_path: Path
) -> None:
    forest().fit(np.eye(3), [0, 1, 0]).save(tmp_path / "model")
    with pytest.raises(DataError, match="fitted on arrays"):
        score(tmp_path / "model", adult, tmp_path / "out", client=client)


def test_evaluation_is_scikit_learn_s(
    adult: Path, client: Client, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    data = adult / "part-1.parquet"
    found = evaluate(f"{undisturbed.run_url}@3000", data, client=client)
    score(f"{undisturbed.run_url}@3000", data, tmp_path / "out", keep=["income"], client=client)
    scores = table_of(tmp_path / "out").to_pandas()
    truth, share = scores["income"] == ">50K", scores["proba_>50K"]
    bins = found.pop("reliability")
    gaps = [b["share"] * abs(b["confidence"] - b["accuracy"]) for b in bins]
    assert sum(b["share"] * b["confidence"] for b in bins) == pytest.approx(
        np.maximum(share, 1.0 - share).mean()
    )
    assert found.pop("delay") == 3000
    assert found.pop("forecast") == "all forecast by the model as it is"
    assert found.pop("learned") == (
        "The model learned none of these files. Whether it learned the same rows from other files "
        "is not known."
    )
    assert found == {
        "rows": 3000,
        "ece": pytest.approx(sum(gaps)),
        "log_loss": pytest.approx(sk.log_loss(truth, share), rel=1e-12),
        "accuracy": pytest.approx((scores["prediction"] == scores["income"]).mean(), rel=1e-12),
        "auc": pytest.approx(sk.roc_auc_score(truth, share), rel=1e-12),
    }


def test_evaluation_recognises_a_copy_of_a_learned_file_and_not_rows_written_anew(
    adult: Path, client: Client, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    learned = adult / "part-0.parquet"
    shutil.copy(learned, tmp_path / "copy.parquet")
    pq.write_table(pq.read_table(learned), tmp_path / "anew.parquet", compression="gzip")
    found = evaluate(undisturbed.run_url, tmp_path / "copy.parquet", client=client)
    assert found["learned"] == "The model learned 3,000 of these rows."
    found = evaluate(undisturbed.run_url, tmp_path / "anew.parquet", client=client)
    assert found["learned"].startswith("The model learned none of these files. Whether it")


def test_evaluation_without_a_plan_does_not_know_learned_rows(
    adult: Path, client: Client, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    """Every row was learned, and the words were that none was."""
    run = shutil.copytree(undisturbed.run_url, tmp_path / "run")
    for damage in (lambda path: path.write_bytes(b""), Path.unlink):
        damage(run / "plan.parquet")
        found = evaluate(run, adult / "part-0.parquet", client=client)
        assert found["learned"] == (
            "Whether the model learned these rows is not known: its plan cannot be read."
        )


def test_evaluation_of_a_label_never_seen_is_refused_by_name(
    adult: Path, client: Client, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    table = pq.read_table(adult / "part-0.parquet")
    labels = ["a third", *table.column("income").to_pylist()[1:]]
    index = table.column_names.index("income")
    pq.write_table(table.set_column(index, "income", pa.array(labels)), tmp_path / "new.parquet")
    with pytest.raises(DataError, match="a third"):
        evaluate(undisturbed.run_url, tmp_path / "new.parquet", client=client)
