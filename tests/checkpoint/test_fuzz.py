"""Files that mean harm are refused, or are forests like others: bytes, states, documents, plans.

DMONDRIAN_FUZZ=50 tries fifty times as much, and compiled code with bounds checks too. What once
broke a reader is kept in corpus/, by the name of what it did.
"""

from __future__ import annotations

import copy
import faulthandler
import functools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dmondrian import AMFClassifier, load
from dmondrian.checkpoint import Run, encode_forest
from dmondrian.checkpoint.document import seal, unseal
from dmondrian.cli.describe import _facts
from dmondrian.data import Plan, Schema, make_plan
from dmondrian.distributed.scoring.model_info import open_model
from dmondrian.distributed.training.attempt import Attempt, attempt_options
from dmondrian.distributed.training.resolve_settings import resolve_parameters
from dmondrian.distributed.training.run_setup import _about, _trees
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import DataError, DMondrianError
from dmondrian.forest.forest import Forest
from tests.checkpoint import hostile
from tests.checkpoint.hostile import SOUND, blob, change_json, changed, react, sound

CORPUS = Path(__file__).parent / "corpus"
MORE = float(os.environ.get("DMONDRIAN_FUZZ", "1"))


@functools.cache
def stored(name: str) -> bytes:
    return blob(sound(name))


def fuzz(examples: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=max(1, int(examples * MORE)),
        derandomize=MORE <= 1.0,  # the suite's examples are always the same
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


@pytest.fixture(autouse=True)
def hangs_end() -> Iterator[None]:
    """Kernels cannot be interrupted: a test that hangs ends the process, and shows where."""
    faulthandler.dump_traceback_later(hostile.HANG_SECONDS * max(1.0, MORE), exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def test_sound_states_are_used() -> None:
    assert {name: react(stored(name)) for name in SOUND} == dict.fromkeys(SOUND, "used")


@fuzz(150)
@given(
    st.sampled_from(sorted(SOUND)),
    st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_flipped_bytes(name: str, changes: list[tuple[int, int]]) -> None:
    data = bytearray(stored(name))
    for at, value in changes:
        data[at % len(data)] = value
    react(bytes(data))


@fuzz(100)
@given(
    st.sampled_from(sorted(SOUND)),
    st.sampled_from(sorted(SOUND)),
    st.floats(0, 1),
    st.floats(0, 1),
    st.binary(max_size=16),
)
def test_splices(first: str, second: str, end: float, start: float, between: bytes) -> None:
    a, b = stored(first), stored(second)
    react(a[: int(end * len(a))] + between + b[int(start * len(b)) :])


@fuzz(200)
@given(st.sampled_from(sorted(SOUND)), st.integers(0, 2**32))
def test_changed_states_under_right_digests(name: str, seed: int) -> None:
    before = pa.total_allocated_bytes()
    react(changed(sound(name), random.Random(seed)))
    assert pa.total_allocated_bytes() - before <= hostile.MAX_BYTES


# Plain Python checks all bounds, in a second for a hundred states; to compile the kernels with
# checks takes a minute.
SWITCHES = ["NUMBA_DISABLE_JIT", *(["NUMBA_BOUNDSCHECK"] if MORE > 1.0 else [])]


@pytest.mark.slow
@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.thorough
def test_changed_states_with_bounds_checks(switch: str, tmp_path: Path) -> None:
    n = int(600 * MORE)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.checkpoint.hostile", "11", str(n)],
        env={**os.environ, switch: "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=1800 * max(1.0, MORE),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    used, refused = map(int, done.stdout.split())
    assert min(used, refused) > n // 20


@pytest.mark.parametrize("file", sorted(CORPUS.glob("*.arrow")), ids=lambda file: file.stem)
def test_corpus_of_states(file: Path) -> None:
    is_sound = file.stem == "hang-empty-tree-learns"  # what hung was the forest, not its reader
    assert react(file.read_bytes()) == ("used" if is_sound else "refused")


def folder_of(path: Path) -> str:
    """A small run, as training leaves it, without a cluster."""
    rng = np.random.default_rng(0)
    a = rng.random(40)
    table = pa.table({"a": a, "b": rng.choice(["x", "y"], 40), "y": np.where(a > 0.5, "hi", "lo")})
    pq.write_table(table, path / "data.parquet")
    plan = make_plan(str(path / "data.parquet"), target="y")
    estimator = AMFClassifier(n_estimators=2, random_state=0)
    url = str(path / "run")
    about = {**_about(estimator, plan, url), **_trees(estimator, 2, 0, True)}
    (path / "about.json").write_text(json.dumps(about))
    run = Run.create(url, about, plan.to_parquet())
    made = Forest(ForestParameters.from_json(about["parameters"]), range(2))
    shards = {}
    for number in range(2):
        part = Forest(made.parameters, [number])
        part.update(rng.random((40, plan.schema.n_features)).astype(np.float32), np.zeros(40))
        data = encode_forest(*part.state())
        shards[number] = {"digest": run.put_blob(data), "bytes": len(data)}
    totals = {
        "task": "classification", "rows": 40, "weight": 40.0, "sums": [1.0, 2.0],
        "moments": [0.0, 0.0], "stride": 1, "slice": 1, "curve": [[40, 0.5, 0.5]],
    }  # fmt: skip
    run.commit(40, shards, {"counts": {"clipped": 1}, "progressive": totals}, final=True)
    return url


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(folder_of(tmp_path_factory.mktemp("fuzzed")))


def read_all(folder: Path) -> list[str]:
    """All that reads a run folder, each with an error of this package or none."""
    url, answers = str(folder), []

    def resume() -> None:
        plan = Plan.from_parquet(Run.open(url).stream.read())
        ForestParameters.from_json(resolve_parameters(AMFClassifier(random_state=0), plan, url))
        run = Run.create(url, json.loads((folder.parent / "about.json").read_text()))
        Attempt(run, plan, attempt_options(None, 4, None)).open(run.latest())

    def predict() -> None:
        estimator = load(url)
        zeros = np.zeros((2, estimator.n_features_in_), np.float32)
        names = getattr(estimator, "feature_names_in_", None)
        estimator.predict(zeros if names is None else pd.DataFrame(zeros, columns=names))

    for action in (
        predict,
        lambda: json.dumps(_facts(url, with_importances=True)),
        lambda: open_model(url),
        resume,
    ):
        try:
            action()
            answers.append("used")
        except DMondrianError:
            answers.append("refused")
    return answers


def test_the_sound_folder_is_used(folder: Path) -> None:
    assert read_all(folder) == ["used"] * 4


@pytest.mark.filterwarnings("ignore:The checkpoint at position")
@fuzz(30)
@given(st.sampled_from(["run.json", "manifests/000000000040.json"]), st.integers(0, 2**32))
def test_changed_documents_under_right_digests(folder: Path, name: str, seed: int) -> None:
    path, rng = folder / name, random.Random(seed)
    before = path.read_bytes()
    content = unseal(before, name)
    for _ in range(rng.randint(1, 2)):
        change_json(content, rng)
    try:
        path.write_bytes(seal(content))
        read_all(folder)
    finally:
        path.write_bytes(before)


@fuzz(60)
@given(st.binary(max_size=40), st.integers(0, 2**20), st.integers(0, 12))
def test_changed_bytes_of_documents_and_plans(
    folder: Path, noise: bytes, at: int, cut: int
) -> None:
    for name in ("run.json", "plan.parquet"):
        path = folder / name
        before = path.read_bytes()
        start = at % len(before)
        try:
            path.write_bytes(before[:start] + noise + before[start + cut :])
            Plan.from_parquet(path.read_bytes())
        except DMondrianError:
            pass
        finally:
            path.write_bytes(before)


Change = Callable[[dict[str, Any], dict[str, list[Any]]], None]


def plan_with(folder: Path, change: Change) -> bytes:
    """The folder's plan with something changed, and its own digest right again if it can be."""
    table = pq.read_table(folder / "plan.parquet")
    header = json.loads(table.schema.metadata[b"dmondrian.plan"])
    columns = table.to_pydict()
    change(header, columns)
    made = pa.table(columns)
    made = made.cast(table.schema.remove_metadata())
    made = made.replace_schema_metadata({b"dmondrian.plan": json.dumps(header)})
    sink = pa.BufferOutputStream()
    pq.write_table(made, sink)
    return sink.getvalue().to_pybytes()


@fuzz(80)
@given(st.integers(0, 2**32))
def test_changed_plans(folder: Path, seed: int) -> None:
    rng = random.Random(seed)

    def change(header: dict[str, Any], columns: dict[str, list[Any]]) -> None:
        if rng.random() < 0.6:
            change_json(header, rng)
        else:
            column = rng.choice(sorted(columns))
            numbers: list[Any] = [-1, 0, 1, 2**31, 2**53, 2**63 - 1, -(2**63)]
            texts: list[Any] = ["", "../x", "file:///etc/passwd", "[" * 5000, "[[1,2,3]]", "1"]
            is_text = isinstance(columns[column][0], str)
            columns[column] = [rng.choice(texts if is_text else numbers)]

    data = plan_with(folder, change)
    try:
        Plan.from_parquet(data)
    except DMondrianError:
        return


def test_positions_and_row_counts_of_a_plan_must_fit(folder: Path) -> None:
    for name, value in (
        ("index", 1), ("position", 7), ("rows", 2**53), ("rows", 0), ("rows", 41), ("offset", 1),
        ("offset", -1), ("group_rows", 2**53), ("group", -1), ("row_group", 2**40), ("size", -1),
    ):  # fmt: skip

        def change(header: Any, columns: Any, name: str = name, value: int = value) -> None:
            columns[name] = [value]

        with pytest.raises(DMondrianError, match=r"block 0|altered"):
            Plan.from_parquet(plan_with(folder, change))


def test_another_plan_in_the_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    from dmondrian.distributed.worker.tasks import HeldRun

    other = folder_of(tmp_path)
    path = folder / "plan.parquet"
    before = path.read_bytes()
    order: Any = SimpleNamespace(attempt="1", run=str(folder), floor=0)
    HeldRun(order)
    try:
        path.write_bytes((Path(other) / "plan.parquet").read_bytes())
        with pytest.raises(DMondrianError, match=r"not the one that run\.json"):
            HeldRun(order)
    finally:
        path.write_bytes(before)


@fuzz(100)
@given(st.integers(0, 2**32))
def test_changed_schemas(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    content = copy.deepcopy(Run.open(str(folder)).run_json["schema"])
    change_json(content, rng)
    try:
        schema = Schema.from_json(content)
    except DataError:
        return
    assert len(schema.feature_names) == schema.n_features
    schema.describe()
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


@pytest.mark.filterwarnings("ignore:The checkpoint at position")
@pytest.mark.parametrize("file", sorted(CORPUS.glob("*.json")), ids=lambda file: file.stem)
def test_corpus_of_documents(folder: Path, file: Path) -> None:
    """`run-*.json` and `manifest-*.json` hold entries that replace those of a sound document."""
    name = "run.json" if file.stem.startswith("run-") else "manifests/000000000040.json"
    path = folder / name
    before = path.read_bytes()
    text = file.read_text()
    try:
        path.write_bytes(resealed(before, text))
        assert "refused" in read_all(folder)
    finally:
        path.write_bytes(before)


def resealed(before: bytes, text: str) -> bytes:
    try:
        return seal({**unseal(before, "sound"), **json.loads(text)})
    except RecursionError:
        return text.encode()


@pytest.mark.parametrize("file", sorted(CORPUS.glob("*.parquet")), ids=lambda file: file.stem)
def test_corpus_of_plans(file: Path) -> None:
    with pytest.raises(DMondrianError):
        Plan.from_parquet(file.read_bytes())
