"""A copy of a run that goes on meanwhile is whole, or an error names what went."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.copying import copy_model
from dmondrian.checkpoint.pruning import prune_while_training
from dmondrian.errors import CheckpointError
from dmondrian.store import Store
from tests.checkpoint.run_folders import ASKED, commit

LATER = [character * 64 for character in "bcd"]


def before_first(
    monkeypatch: pytest.MonkeyPatch, prefix: str, ending: str, act: Callable[[], object]
) -> None:
    """Have a run go on just before an object of a kind is read for the first time."""
    get, acts = Store.get, [act]

    def go_on(self: Store, name: str, *given: int) -> bytes:
        if acts and name.startswith(prefix) and name.endswith(ending):
            acts.pop()()
        return get(self, name, *given)

    monkeypatch.setattr(Store, "get", go_on)


def go_on(run: Run, number: int) -> None:
    """Extend the stream of a run, as each look at its data does that finds something."""
    run.stream.lead_to(LATER[number], b"plan %d" % number, [ASKED["plan"], *LATER[:number]])
    run.stream.drop([])


def test_plans_are_those_of_one_moment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on(run, 0)
    before_first(monkeypatch, "plans/", ".parquet", lambda: go_on(run, 1))
    copy = copy_model(run.url, tmp_path / "copy")
    assert copy.stream.digests()[-1] == LATER[1]
    assert copy.stream.read() == b"plan 1"


def test_a_checkpoint_that_goes_is_named_and_leaves_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_on() -> None:
        commit(run, 40, 30)
        commit(run, 50, 40)
        prune_while_training(run, 50, 1, ())

    before_first(monkeypatch, "blobs/", "", train_on)
    with pytest.raises(CheckpointError, match=r"went on meanwhile, and manifests/0*30\.json is"):
        copy_model(run.url, tmp_path / "copy", resumable=True)
    assert not [path for path in tmp_path.glob("copy/**/*") if path.is_file()]
    assert copy_model(run.url, tmp_path / "copy", resumable=True).manifests() == [50]
