"""Runs, models and pickles of each stored format are read, described, scored, continued, migrated.

`stored_formats/FORMAT` was written by ``stored_formats/write.py`` with the package at the commit
that `FORMATS` names, in an environment with today's dependencies. `stored_formats/digests.json` has
what this version made of each; it does not change, but for formats that are added::

    python -m tests.distributed.test_stored_formats  # adds what is not in it
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import AMFClassifier, CheckpointError, CorruptError, ParameterError, load
from dmondrian.checkpoint import Run, migrating
from dmondrian.checkpoint.copying import copy_model
from dmondrian.checkpoint.migrating import NAME, migrate
from dmondrian.checkpoint.model import load_model
from dmondrian.checkpoint.raised_alerts import read_alerts
from dmondrian.checkpoint.stream import PLACES_NAME
from dmondrian.data import Plan
from dmondrian.distributed import score, train
from tests.cli.command import call, events
from tests.distributed.conftest import worker_threads
from tests.distributed.stored_formats.write import (
    FOLLOWING,
    OTHERS,
    SETTLED,
    answers,
    arrays,
    frame,
    labels_for,
    look,
    put_rows,
    rows_for,
)
from tests.distributed.test_copying import stop_at

HERE = Path(__file__).parent / "stored_formats"
DIGESTS = HERE / "digests.json"
FORMATS = {
    "forest_1": "1825f09: forests of format 1, whose weights were powers of another polynomial",
    "forest_2": "bd53edd: forests of format 2, boxes as they are",
    "forest_3": "97582bf: boxes as differences, a summary of the trees in manifests",
    "fingerprints": "d834ec9: plans with fingerprints, modules in other places",
    "follow_2": "0c97ba9: forests that follow a stream, a plan that is mixed, metrics of windows",
    "version_0_1_0": "a437a45: what the version 0.1.0 writes",
    "version_1_0_0": "bab0a90: what the version 1.0.0 writes",
    "sparse_rows": "4e4ad11: boxes and statistics without zeros, with LEAST_SPARSE = 0",
}
DIGITS = {"MondrianDensity": 9}
"""Decimal places of forecasts whose last bits depend on the processor and on NumPy's version, by
whose exponentials, logarithms and sums they are made."""
BOOSTED = {"boosted-classifier", "boosted-regressor"}
LATER = {"follow-classifier", "follow-regressor", *BOOSTED}
MISSING: dict[str, set[str]] = {  # models that the code of a format did not have
    "forest_1": OTHERS.keys() - {"MondrianForestClassifier", "MondrianForestRegressor"},
    "forest_2": LATER,
    "forest_3": LATER,
    "fingerprints": LATER,
    "follow_2": LATER - {"follow-classifier"},
    "version_0_1_0": set(),
    "version_1_0_0": set(),
    "sparse_rows": set(),
}
OLD = {  # formats of blobs that this version writes otherwise: of small trees, with their zeros
    "model": {"forest_1", "forest_2", "sparse_rows"},
    "run": {"forest_1", "forest_2", "sparse_rows"},
    "drift": {"follow_2"},
}
FOLLOWED = {"version_1_0_0": "bab0a90: a run with late labels, held-out rows and alerts"}
FORESTS = {"run": {"n_estimators": 2, "random_state": 7, **SETTLED}, "drift": FOLLOWING}


def some(*names: str) -> list[Any]:
    """Return the formats, of which only these are read in each run of the tests."""
    return [pytest.param(n, marks=() if n in names else pytest.mark.thorough) for n in FORMATS]


@pytest.fixture(params=some("forest_1", "follow_2", "version_1_0_0", "sparse_rows"))
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return copied(request.param, tmp_path)


def copied(name: str, folder: Path) -> Path:
    """Copy what a version has written, with its data, which are in one place for all."""
    there = folder / name
    shutil.copytree(HERE / name, there)
    shutil.copytree(HERE / "data", there / "data")
    plan = Plan.from_parquet((there / "run/plan.parquet").read_bytes())
    for block in plan.blocks:  # plans without fingerprints know files that moved by their times
        file, stamp = there / "data" / Path(block.uri).name, int(block.stamp)
        os.utime(file, ns=(stamp, stamp))
    return there


def continued(client: Client, stored: Path, kind: str, run: str) -> dict[str, str]:
    """Learn a third file; return the digests of all that this leaves."""
    options: dict[str, Any] = {"target": "y", "client": client, "n_shards": 2}
    options["shuffle"] = kind == "drift"
    trained = train(AMFClassifier(**FORESTS[kind]), stored / "data", run=stored / run, **options)
    manifest = Run.open(trained.run_url).latest()
    assert manifest is not None
    assert manifest.final
    shards = {f"shard {n}": shard["digest"] for n, shard in manifest.shards.items()}
    return {**shards, "log_loss": repr(trained.metrics["log_loss"])}


def learned_on(estimator: Any) -> dict[str, str]:
    """Learn more rows; return the digest of what is forecast of others."""
    X, y = arrays()
    classes = getattr(estimator, "classes_", None)
    estimator.partial_fit(X[::2] * 0.5, (y > 1.0)[::2] if classes is not None else y[::2])
    found = estimator.predict(X) if classes is None else estimator.predict_proba(X)
    return {"forecasts": hashlib.sha256(np.ascontiguousarray(found).tobytes()).hexdigest()}


def made_of(client: Client, stored: Path, prefix: str = "") -> dict[str, Any]:
    """Return digests of all that is made of what a version has written."""
    made: dict[str, Any] = {"model": learned_on(load(stored / f"{prefix}model"))}
    for kind in kinds(stored):
        run, scores = f"{prefix}{kind}", stored / f"{prefix}{kind}-scores"
        score(stored / run, stored / "data" / "2.parquet", scores, client=client)
        (part,) = scores.rglob("part-*.parquet")
        made[f"scores of {kind}"] = hashlib.sha256(text_of(part)).hexdigest()
        made[kind] = continued(client, stored, kind, run)
    return made


def kinds(stored: Path) -> list[str]:
    return [kind for kind in FORESTS if (stored / kind).exists()]


def text_of(part: Path) -> bytes:
    """The values of a file of scores, whatever wrote the file."""
    return repr(pq.read_table(part).to_pydict()).encode()


def test_stored_formats_are_read_and_go_on(client: Client, stored: Path) -> None:
    X, _ = arrays()
    predicted = load(stored / "model").predict(X)
    np.testing.assert_allclose(predicted, np.load(stored / "predicted.npy"), rtol=1e-12)
    classifier = pickle.loads((stored / "classifier.pickle").read_bytes())
    there = np.load(stored / "probabilities.npy")
    np.testing.assert_allclose(classifier.predict_proba(X), there, rtol=1e-12)
    for name in ("model", *kinds(stored)):
        (described,) = events(call("describe", stored / name, "--json")[0])
        position = 60 if name == "model" else 120
        assert described["rows"] == position
        (done,) = events(call("migrate", stored / name, stored / f"migrated-{name}", "--json")[0])
        is_old = stored.name in OLD[name]
        expected = {"position": position, "blobs": 1 if name == "model" else 2}
        assert expected.items() <= done.items()
        assert (done["rewritten"] == done["blobs"]) if is_old else done["rewritten"] == 0
    expected = json.loads(DIGESTS.read_text())[stored.name]
    made = made_of(client, stored)
    expected.pop("others", None)
    assert {**made, "pickle": learned_on(classifier)} == expected
    assert made_of(client, stored, "migrated-") == made


def others_made_of(stored: Path, names: Collection[str] | None = None) -> dict[str, str]:
    """Check forecasts of models of other algorithms; return digests of them after more rows."""
    made = {}
    for there in sorted((stored / "others").glob("*.npy")):
        if names is not None and there.stem not in names:
            continue
        X, y = rows_for(there.stem)
        models = [there.with_suffix(""), stored / "migrated-others" / there.stem]
        migrate(*models)
        found = [load(model) for model in models]
        for one in found:
            before = answers(one, X[:24])
            np.testing.assert_allclose(before, np.load(there), rtol=1e-9, atol=1e-12)
            one.partial_fit(X[:24] * 0.5, *labels_for(there.stem, y[:24]))
        forecasts = [answers(one, X[:24]).tobytes() for one in found]
        assert forecasts[0] == forecasts[1]
        again = stored / "saved-others" / there.stem
        found[0].save(again)
        assert answers(load(again), X[:24]).tobytes() == forecasts[0]
        if there.stem in DIGITS:
            forecasts[0] = np.round(answers(found[0], X[:24]), DIGITS[there.stem]).tobytes()
        made[there.stem] = hashlib.sha256(forecasts[0]).hexdigest()
    return made


@pytest.mark.parametrize("name", some("forest_1", "version_1_0_0"))
def test_models_of_other_algorithms_are_read_and_go_on(tmp_path: Path, name: str) -> None:
    known = json.loads(DIGESTS.read_text())[name]["others"]
    assert others_made_of(copied(name, tmp_path)) == known
    assert known.keys() == OTHERS.keys() - MISSING[name]


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_followed_run_goes_on(client: Client, tmp_path: Path, name: str) -> None:
    stored, fresh = tmp_path / "stored", tmp_path / "fresh"
    shutil.copytree(HERE / "followed" / name, stored)
    fresh.mkdir()
    pq.write_table(frame(9), fresh / "held.parquet")
    for number in range(3):
        put_rows(fresh, number)
        expected = look(fresh, client)
    put_rows(stored, 2)
    found = look(stored, client)
    runs = [Run.open(one.run_url) for one in (found, expected)]
    kept = [run.latest() for run in runs]
    assert kept[0] is not None
    assert kept[1] is not None
    assert kept[0].position == 180
    assert [one["digest"] for one in kept[0].shards.values()] == [
        one["digest"] for one in kept[1].shards.values()
    ]
    assert found.metrics == expected.metrics
    held = found.held_out["checkpoints"]  # of the first look no more: held-out rows have moved
    assert [one["position"] for one in held] == [120, 180]
    assert held == expected.held_out["checkpoints"][1:]
    assert [[one["row"] for one in read_alerts(run.store)["raised"]] for run in runs] == [[60]] * 2


def test_all_that_is_stored_is_tested() -> None:
    assert {path.name for path in (HERE / "followed").iterdir()} == FOLLOWED.keys()
    there = {path.name for path in HERE.iterdir() if (path / "run").is_dir()}
    assert there == set(FORMATS) == set(json.loads(DIGESTS.read_text()))


def test_a_migration_that_was_killed_goes_on(tmp_path: Path) -> None:
    old = copied("forest_2", tmp_path)
    whole = migrate(old / "run", tmp_path / "whole").run
    assert not whole.store.exists(NAME)
    names = [name for name in whole.store.list() if name != PLACES_NAME]
    for n in range(1, len(whole.store.list()) + 1):
        broken = tmp_path / f"broken-{n}"
        with pytest.MonkeyPatch.context() as patch:
            stop_at(patch, n, is_killed=True)
            with pytest.raises(KeyboardInterrupt):
                migrate(old / "run", broken)
        with pytest.raises(CheckpointError):
            load_model(broken)
        with pytest.raises(ParameterError, match="is not empty"):  # it is of another checkpoint
            migrate(f"{old / 'run'}@90", broken)
        again = migrate(old / "run", broken).run
        assert [name for name in again.store.list() if name != PLACES_NAME] == names
        assert all(whole.store.get(name) == again.store.get(name) for name in names)
    done = migrate(old / "run", again.url)  # nothing is overwritten
    assert done.was_there
    assert [name for name in again.store.list() if name != PLACES_NAME] == names
    copied_only = copy_model(old / "run", tmp_path / "copied").url
    for there in (copied_only, old):
        with pytest.raises(ParameterError, match="is not empty"):
            migrate(old / "run", there)
    for there in (old / "run", old / "run/new"):
        with pytest.raises(ParameterError, match="or within it"):
            migrate(old / "run", there)


def test_a_migration_that_reads_otherwise_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = copied("forest_2", tmp_path)
    read, times = migrating.read_state, [0]

    def wrong(*blob: Any, **options: Any) -> Any:
        state = read(*blob, **options)
        times[0] += 1
        state = state._replace(trees=list(state.trees))
        if times[0] == 2:  # what was written
            state.trees[0]["time"] = state.trees[0]["time"] * (1.0 + 2.0**-52)
        return state

    monkeypatch.setattr(migrating, "read_state", wrong)
    with pytest.raises(CorruptError, match="reads otherwise after it was written"):
        migrate(old / "run", tmp_path / "new")
    with pytest.raises(CheckpointError):
        load_model(tmp_path / "new")


if __name__ == "__main__":
    known = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
    with tempfile.TemporaryDirectory() as below, worker_threads(2) as (_, workers):
        for name in FORMATS:
            its = copied(name, Path(below))
            others = known.setdefault(name, {}).setdefault("others", {})
            others |= others_made_of(its, OTHERS.keys() - others)
            if "run" in known[name]:
                continue
            pickled = learned_on(pickle.loads((its / "classifier.pickle").read_bytes()))
            known[name] |= {**made_of(workers, its), "pickle": pickled}
    DIGESTS.write_text(json.dumps(known, sort_keys=True, indent=1) + "\n")
