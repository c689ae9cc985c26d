"""Run folders: one run each, commits that stand, resume, addresses with a position."""

from __future__ import annotations

import json
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

from dmondrian.checkpoint import Run, document
from dmondrian.checkpoint.new_folder import refuse_folder_of_data
from dmondrian.errors import (
    CheckpointError,
    CorruptError,
    FencedError,
    NotFoundError,
    ParameterError,
)
from dmondrian.store import open_store
from tests.checkpoint.run_folders import ASKED, PLAN, SHARD, commit, file_of
from tests.store.servers import KEY_ID, SECRET


class RunContract:
    """What a run folder promises on every store. Subclass it and give a fixture `url`."""

    def test_layout(self, url: str) -> None:
        run = Run.create(url, ASKED, PLAN)
        manifest = commit(run, 12345)
        run.attempt({"host": "a"})
        digests = sorted(shard["digest"] for shard in manifest.shards.values())
        names = run.store.list()
        assert [name for name in names if not name.startswith("attempts/")] == [
            *(f"blobs/{digest}" for digest in digests),
            "manifests/000000012345.json",
            "plan.parquet",
            "run.json",
        ]

    def test_resume_finds_what_was_there(self, url: str) -> None:
        first = Run.create(url, ASKED, PLAN)
        commit(first, 10)
        written = commit(first, 20, 10, final=True)
        again = Run.create(url, {**ASKED, "created_by": "another version"}, PLAN)
        assert again.run_json == first.run_json == Run.open(url).run_json
        assert again.latest() == written == Run.open(url).latest(verify=False)
        assert again.manifests() == [10, 20]
        assert again.stream.read() == PLAN

    def test_places_of_files_are_kept(self, url: str) -> None:
        run = Run.create(url, ASKED, PLAN)
        assert run.stream.places() == (None, {})  # as earlier versions left it
        run.stream.note_places({})
        assert run.stream.places() == (run.url, {})
        places = {"/old/a.parquet": ("/new/ü.parquet", "17")}
        run.stream.note_places(places)
        assert Run.open(url).stream.places() == (run.url, places)
        for content in ({}, {"run": 1, "files": {}}, {"run": "x", "files": {"a": ["b"]}}):
            run.store.put("places.json", document.seal(content))
            with pytest.raises(CorruptError, match=r"places\.json in .*Delete it"):
                run.stream.places()
        run.store.put("places.json", b"{")
        with pytest.raises(CorruptError, match=r"places\.json in .*Delete it"):
            run.stream.places()
        run.stream.note_places(places)
        assert run.stream.places() == (run.url, places)

    def test_another_job_is_refused_by_name_of_what_differs(self, url: str) -> None:
        Run.create(url, ASKED, PLAN)
        other = {"plan": "p" * 64, "parameters": {"seed": 2, "alpha": 0.1}, "target": "y"}
        with pytest.raises(CheckpointError, match="belongs to another job") as caught:
            Run.create(url, other, b"PAR1 others PAR1")
        text = str(caught.value)
        assert "parameters.seed: 1 there, 2 here" in text
        assert 'target: nothing there, "y" here' in text
        assert "shards: [[0, 2], [2, 3]] there, nothing here" in text
        assert "alpha" not in text
        assert Run.open(url).stream.read() == PLAN

    @pytest.mark.parametrize(
        ("name", "shown"),
        [("a.parquet", "a.parquet"), ("plan.PQ", "plan.PQ"), ("year=2026/a.parquet", "year=2026/")],
    )
    def test_a_folder_of_data_is_left_alone(self, url: str, name: str, shown: str) -> None:
        open_store(url).put(name, b"mine")
        with pytest.raises(CheckpointError, match=f"holds {shown}, which is not of a run"):
            refuse_folder_of_data(url)
        assert open_store(url).list() == [name]
        refuse_folder_of_data(url, own_files=[shown])

    def test_what_a_killed_start_left_is_begun_again(self, url: str) -> None:
        store = open_store(url)
        there = ["_lags/000000000000000.parquet", "_probe-0a", "search/asked.json", ".hidden"]
        there += ["batches/0000000001.parquet", "stream/part-000000.parquet"]
        there += ["rows/joined.parquet", "notes.txt"]  # not of the run, and not read with it
        for name in there:
            store.put(name, b"")
        refuse_folder_of_data(url)
        Run.create(url, ASKED, PLAN)
        refuse_folder_of_data(url)
        assert set(there) < set(store.list())
        assert Run.create(url, ASKED, PLAN).stream.read() == PLAN

    def test_commit_twice_is_one_commit(self, url: str) -> None:
        run = Run.create(url, ASKED)
        assert commit(run, 10) == commit(run, 10)

    def test_another_state_at_a_position_is_fenced(self, url: str) -> None:
        run = Run.create(url, ASKED)
        first = commit(run, 10)
        shards = {0: first.shards[0], 1: first.shards[0]}
        with pytest.raises(FencedError, match=r"Position 10 .*another state"):
            run.commit(10, shards, {"loss": 10 / 7})
        assert run.latest() == first

    def test_position_in_the_address(self, url: str) -> None:
        run = Run.create(url, ASKED)
        commit(run, 10)
        commit(run, 20, 10)
        picked = Run.open(f"{url}@10")
        assert picked.position == 10
        assert picked.url == run.url
        assert picked.latest() == run.manifest(10)
        assert pickle.loads(pickle.dumps(picked)).latest() == run.manifest(10)
        with pytest.raises(CheckpointError, match=r"position 15 .*expected one of 10, 20"):
            Run.open(f"{url}@15")

    def test_an_at_sign_in_the_name(self, url: str) -> None:
        run = Run.create(f"{url}@7", ASKED)
        commit(run, 3)
        assert Run.open(f"{url}@7").position is None
        assert Run.open(f"{url}@7").manifests() == [3]
        assert Run.open(f"{url}@7@3").position == 3

    def test_blobs_are_checked(self, url: str) -> None:
        run = Run.create(url, ASKED)
        digest = run.put_blob(b"state")
        assert run.put_blob(b"state") == digest
        assert run.get_blob(digest, 5) == b"state"
        run.store.put(f"blobs/{digest}", b"stale")
        with pytest.raises(CorruptError, match=rf"blobs/{digest} .*damaged.*earlier checkpoint"):
            run.get_blob(digest)
        with pytest.warns(UserWarning, match="written again"):
            run.put_blob(b"state")
        assert run.get_blob(digest) == b"state"
        with pytest.raises(CorruptError, match="at most 4"):
            run.get_blob(digest, 4)
        run.store.delete(f"blobs/{digest}")
        with pytest.raises(CorruptError, match="missing"):
            run.get_blob(digest)

    def test_equal_runs_have_equal_manifests(self, url: str) -> None:
        found = []
        for name in ("a", "b"):
            run = Run.create(f"{url}/{name}", ASKED)
            run.attempt({"host": name})
            commit(run, 10)
            commit(run, 20, 10)
            found.append([run.store.get(n) for n in run.store.list("manifests")])
        assert found[0] == found[1]
        assert len(found[0]) == 2


class TestLocalRun(RunContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "run")


class TestFileUrlRun(RunContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/my%20run"


class TestMemoryRun(RunContract):
    @pytest.fixture
    def url(self, request: pytest.FixtureRequest) -> str:
        return f"memory://run/{request.node.name}"


class TestS3Run(RunContract):
    @pytest.fixture
    def url(self, s3_url: str) -> str:
        return s3_url

    def test_no_secret_in_the_run(self, url: str) -> None:
        run = Run.create(url, ASKED, PLAN)
        commit(run, 10)
        run.attempt({"host": "a"})
        stored = [run.store.get(name) for name in run.store.list()]
        for text in [*stored, pickle.dumps(run), repr(run).encode(), repr(run.store).encode()]:
            assert SECRET.encode() not in text
            assert KEY_ID.encode() not in text


def test_the_same_state_by_another_way_is_no_conflict(run: Run) -> None:
    there = run.manifest(30)
    assert commit(run, 30, 10) == there
    assert commit(run, 30, 20, final=True) == there


def test_names_that_are_no_manifests_are_left_alone(run: Run) -> None:
    folder = file_of(run, 10).parent
    for name in ("latest.json", "0.json", "00000000000000000030.json", "000000000099.json.bak"):
        (folder / name).write_text("{}")
    assert run.manifests() == [10, 20, 30]


def test_numbers_that_cannot_be_committed(run: Run) -> None:
    for arguments in (
        (-1, {}),
        (40, {0: {"digest": "short", "bytes": 1}}),
        (40, {-1: SHARD}),
        (40, {0: SHARD}, {}, 40),
    ):
        with pytest.raises(ParameterError, match="cannot be committed"):
            run.commit(*arguments)  # type: ignore[arg-type]  # of mixed types by intent
    assert run.manifests() == [10, 20, 30]


def test_metrics_are_strict_json_with_exact_numbers(run: Run) -> None:
    metrics = {"n": np.int64(3), "sum": np.float64(0.1) + 0.2, "auc": float("nan"), "c": [np.inf]}
    written = run.commit(40, {0: SHARD}, metrics)
    assert written.metrics == {"n": 3, "sum": 0.1 + 0.2, "auc": None, "c": [None]}
    assert run.manifest(40) == written

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(file_of(run, 40).read_bytes(), parse_constant=refuse)


@pytest.mark.parametrize("form", [4, 1.0, [1], {}])
def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path, form: object) -> None:
    Run.create(tmp_path, {**ASKED, "format": form})
    with pytest.raises(CheckpointError, match="upgrade"):
        Run.open(tmp_path)


def test_a_model_without_a_plan(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"plan\.parquet"):
        Run.create(tmp_path, {**ASKED, "plan": None}).stream.read()


def test_opening_creates_nothing(tmp_path: Path) -> None:
    for name in ("none", "none@5"):
        with pytest.raises(CheckpointError, match="no folder"):
            Run.open(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_attempts_are_kept_out_of_the_state(run: Run) -> None:
    before = {p: p.read_bytes() for p in Path(run.url).rglob("*") if p.is_file()}
    ids = {run.attempt({"host": "h", "seconds": np.float32(1.5)}) for _ in range(3)}
    assert len(ids) == 3
    after = {p: p.read_bytes() for p in Path(run.url).rglob("*") if p.is_file()}
    assert len(after) == len(before) + 3
    assert before.items() <= after.items()


def test_two_jobs_at_once_in_one_folder_one_is_refused(tmp_path: Path) -> None:
    outcomes: list[str] = []
    barrier = threading.Barrier(2)

    def start(seed: int) -> None:
        barrier.wait()
        try:
            Run.create(tmp_path, {**ASKED, "seed": seed}, PLAN)
            outcomes.append("made")
        except CheckpointError:
            outcomes.append("refused")

    threads = [threading.Thread(target=start, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made", "refused"]
