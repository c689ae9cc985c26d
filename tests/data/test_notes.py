"""What people should know of their data before anything is learned of them."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dmondrian import AMFClassifier
from dmondrian.data import make_plan
from dmondrian.data.make import MOST_NOTES
from dmondrian.distributed import train

from .conftest import Write

N = 3_000


def notes(path: Path, **options: object) -> str:
    return "\n".join(make_plan(path, **options).notes)


class Stopped(Exception):  # noqa: N818 - it is no error
    """Raised when the plan is known, before there is a run."""


def test_notes_are_logged_before_there_is_a_run(
    write: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write({"x": np.arange(8) / 3, "one": [1] * 8, "y": [0, 1] * 4})

    def stop(plan: object) -> None:
        raise Stopped

    forest = AMFClassifier(n_estimators=1, random_state=0)
    with caplog.at_level(logging.INFO, "dmondrian"), pytest.raises(Stopped):
        train(forest, path, target="y", run=tmp_path / "run", on_plan=stop)
    assert caplog.messages == ["'one' is left out: constant (1)"]
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize(
    ("labels", "reported"),
    [
        (np.arange(N), "3,000 classes in 3,000 rows (all different)"),
        (np.arange(N) // 2, "1,500 classes in 3,000 rows (2.0 a class)"),
        (np.arange(N) % 1_000, "1,000 classes in 3,000 rows (3.0 a class)"),
        (np.arange(600) % 70, "70 classes in 600 rows (8.6 a class)"),
        (np.arange(N) % 70, None),
        (np.arange(40), None),
    ],
    ids=str,
)
def test_a_target_of_many_classes_may_be_an_id(write: Write, labels, reported: str | None) -> None:
    draw = np.random.default_rng(0)
    mixed = draw.permutation(labels)
    found = notes(write({"x": draw.random(len(labels)), "y": mixed}), target="y")
    assert ("is it an id? A number to predict needs a regressor" in found) == (reported is not None)
    assert (reported or "") in found
    assert notes(write({"x": draw.random(len(labels)), "y": mixed}), target="y",
                 task="regression") == ""  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "is_noted"),
    [
        (np.arange(N), True),
        (np.arange(1, N + 1), True),
        (np.arange(N).astype(np.float64), False),
        (np.arange(N) * 2, False),
        (pa.array(np.arange(N), mask=np.arange(N) == 5), False),
    ],
    ids=["from 0", "from 1", "fractions", "even", "a null"],
)
def test_numbers_of_rows_are_noted_from_the_footers(write: Write, numbers, is_noted) -> None:
    x = np.random.default_rng(0).random(N)
    path = write({"id": numbers, "x": x}, row_group_size=1_000)
    found = notes(path)
    assert ("'id' goes from" in found) == is_noted
    assert ("consider excluding it" in found) == is_noted
    assert notes(path, exclude=["id"]) == ""
    few = write({"id": pa.array(np.arange(50)), "x": x[:50]}, "few.parquet")
    assert notes(few) == ""


def test_thousands_of_columns_left_out_have_some_notes(write: Write) -> None:
    columns = {f"c{i}": [1, 1] for i in range(MOST_NOTES + 2)}
    plan = make_plan(write({"x": [1, 2], **columns}))
    assert len(plan.schema.left_out) == MOST_NOTES + 2
    assert len(plan.notes) == MOST_NOTES + 1
    assert plan.notes[0] == "'c0' is left out: constant (1)"
    assert plan.notes[-1] == "2 more columns are left out; `dmondrian schema` lists them"


def test_free_text_gets_a_note(write: Write) -> None:
    draw = np.random.default_rng(0)
    words = np.array(["red", "green", "blue", "large", "small"])
    texts = [f"{' '.join(draw.choice(words, 4))} {i}" for i in range(N)]
    ids = [f"id {i}" for i in range(N)]
    path = write({"x": draw.random(N), "note": texts, "id": ids, "y": draw.integers(0, 2, N)})
    advice = "looks like free text: name it in `text`"
    assert f"'note' {advice}" in notes(path, target="y")
    assert f"'id' {advice}" not in notes(path, target="y")
    assert advice not in notes(path, target="y", text=["note"])
