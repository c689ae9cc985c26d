"""`dmondrian search`: the run is that of `dmondrian train`, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from .command import SMALL_JOB, call, digests, events, train_words


@pytest.fixture
def job(tmp_path: Path) -> Path:
    text = SMALL_JOB.read_text().replace("../../", f"{SMALL_JOB.parents[2]}/")
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
    assert "found by a search, by log_loss" in call("describe", tmp_path / "run")[0]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("search.alpha=0.5", "expected a list of values"),
        ("search.alpha=[]", "expected a list of values"),
        ("search.alpha=[-1.0]", "alpha"),
        ("search.depth=[1]", "has no key 'depth'"),
        ("search.rows=0", "expected at least 1"),
        ("search.n_estimators=[2, 4]", "n_shards: expected at most 2"),
    ],
)
def test_mistakes_are_named(job: Path, override: str, words: str) -> None:
    _, stderr = call("search", job, "--set", override, code=2)
    assert words in stderr


def test_a_job_without_a_search_is_refused() -> None:
    assert "[search] is missing" in call("search", SMALL_JOB, code=2)[1]
