"""`dmondrian search`: the run is that of `dmondrian train`, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dmondrian.checkpoint import document
from dmondrian.checkpoint.search_record import ASKED, FOLDER, ROUNDS
from dmondrian.cli.found_settings import combinations, estimator_of, with_found
from dmondrian.cli.job import read_job
from dmondrian.cli.output import Output
from dmondrian.errors import JobError
from dmondrian.estimators.save import plain_params
from dmondrian.store import open_store

from .command import ADULT, SMALL_JOB, call, digests, events, manifests, train_words


@pytest.fixture
def job(tmp_path: Path) -> Path:
    table = pq.read_table(ADULT / "part-0001-test.parquet")
    for name, first, n in (("a", 0, 3000), ("b", 3000, 2000)):
        pq.write_table(table.slice(first, n), tmp_path / f"{name}.parquet")
    there = "../../jobs/data/adult/part-0001-test.parquet"
    text = SMALL_JOB.read_text().replace(there, str(tmp_path / "a.parquet"))
    file = tmp_path / "job.toml"
    file.write_text(
        text + "\n[search]\nrows = 2000\nalpha = [0.05, 0.5]\ncalibrate = [true, false]\n"
    )
    return file


def test_the_run_of_the_winner_is_that_of_train(job: Path, shared: str, tmp_path: Path) -> None:
    words = ["--set", f"run.path={tmp_path / 'run'}", "--set", f"cluster.scheduler={shared}"]
    found = {one["event"]: one for one in events(call("search", job, *words, "--json")[0])}
    best = found["searched"]["winner"]
    ranks = {one["rank"]: one for one in found["searched"]["candidates"]}
    assert (len(ranks), ranks[1]["settings"]) == (4, best)
    assert ranks[1]["rows"] == ranks[2]["rows"] == 2000 > ranks[3]["rows"]
    given = [f"forest.{name}={str(value).lower()}" for name, value in best.items()]
    given += [f"cluster.scheduler={shared}"]
    _, stderr = call(*train_words(tmp_path / "trained", *given, job=job))
    assert "[search] is for `dmondrian search`" in stderr
    assert digests(tmp_path / "run") == digests(tmp_path / "trained")
    (described,) = events(call("describe", tmp_path / "run", "--json")[0])
    assert described["search"]["candidates"] == found["searched"]["candidates"]
    text = call("describe", tmp_path / "run")[0]
    assert "found by a search, by log_loss" in text
    assert f"alpha = {best['alpha']}, calibrate = {str(best['calibrate']).lower()}" in text
    # The job goes on with what was found, and with more rows.
    more = [f"{tmp_path}/b.parquet", f"{tmp_path}/a.parquet"]
    words += ["--set", "data.path=" + str(more)]
    assert "`dmondrian train` or" in call("search", job, *words, code=4)[1]
    for command in (["train", job], ["follow", job, "--once"]):
        _, stderr = call(*command, *words)
        assert "with the settings that the search found: alpha = " in stderr
    assert manifests(tmp_path / "run")[-1]["position"] == 5000
    _, stderr = call("train", job, *words, "--set", "search.alpha=[0.05, 0.4]", code=2)
    assert "write these into [forest] and remove [search]" in stderr
    max((tmp_path / "run" / "search" / "rounds").iterdir()).unlink()
    assert "is not over: `dmondrian search" in call("train", job, *words, code=2)[1]


def test_a_search_of_an_earlier_version_is_that_of_its_job(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    text = SMALL_JOB.read_text().replace("../../", f"{SMALL_JOB.parents[2]}/")
    file.write_text(text + "\n[search]\nalpha = [0.05, 0.5]\n")
    job = read_job(file, [f"run.path={tmp_path / 'run'}"])
    estimators = [estimator_of(job, one) for one in combinations(job)]
    stored = [[one.algorithm, {**plain_params(one), "calibrate": False}] for one in estimators]
    for _, params in stored:
        del params["experts"]  # of a later version
    store = open_store(tmp_path / "run" / FOLDER)
    store.put_same(ASKED, document.seal({"estimators": stored}))
    store.put_same(f"{ROUNDS}/00.json", document.seal({"is_last": True, "going_on": [1]}))
    output = Output(as_json=False)
    assert with_found(job, output).forest == {**job.forest, "alpha": 0.5}
    for given in ("calibrate=true", "split_pure=true"):
        other = read_job(file, [f"run.path={tmp_path / 'run'}", f"forest.{given}"])
        with pytest.raises(JobError, match="differ from those of the search"):
            with_found(other, output)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("search.alpha=0.5", "expected a list of values"),
        ("search.alpha=[]", "expected a list of values"),
        ("search.alpha=[-1.0]", "alpha"),
        ("search.depth=[1]", "has no key 'depth'"),
        ("search.random_state=[1, 2]", "several seeds is chance"),
        ("search.rows=0", "expected at least 1"),
        ("search.n_estimators=[2, 4]", "n_shards: expected at most 2"),
    ],
)
def test_mistakes_are_named(job: Path, override: str, words: str) -> None:
    _, stderr = call("search", job, "--set", override, code=2)
    assert words in stderr


def test_a_job_without_a_search_is_refused() -> None:
    assert "[search] is missing" in call("search", SMALL_JOB, code=2)[1]


def test_the_folder_of_another_run_is_left_as_it_is(job: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    _, stderr = call("search", job, "--set", f"run.path={tmp_path / 'run'}", code=4)
    assert "a run that no search made" in stderr
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["run.json"]


def test_a_folder_of_something_else_is_refused_before_the_search(job: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "a.parquet").rename(tmp_path / "data/a.parquet")
    words = ["--set", f"run.path={tmp_path}/data", "--set"]
    _, stderr = call("search", job, *words, f"data.path={tmp_path}/none", code=4)
    assert f"{tmp_path}/data holds a.parquet, which is not of a" in stderr
    _, stderr = call("search", job, *words, f"data.path={tmp_path}/data/", code=2)
    assert "[run] path and [data] path" in stderr
    assert [file.name for file in (tmp_path / "data").iterdir()] == ["a.parquet"]


def test_combinations_are_drawn_without_a_list_of_all(job: Path) -> None:
    tenths = [k / 10 for k in range(1, 11)]
    words = [f"search.{name}={tenths}" for name in ("alpha", "eta", "step", "beta", "gamma", "x")]
    drawn = list(combinations(read_job(job, [*words, "search.candidates=5"])))
    assert len({repr(one) for one in drawn}) == 5
    few = ["search.alpha=[1.0, 2.0, 3.0]", "search.candidates=6"]
    assert list(combinations(read_job(job, few))) == [
        {"alpha": alpha, "calibrate": calibrate}
        for alpha in (1.0, 2.0, 3.0)
        for calibrate in (True, False)
    ]
