"""Streams of numbers are the same everywhere, and no forecast knows its label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.drift import numbers
from benchmarks.records import Records

GENERATED = ("Friedman, abrupt", "plane", "Friedman, gradual", "Friedman", "centres")


@pytest.mark.parametrize("name", GENERATED)
def test_a_stream_depends_on_its_name_and_rows_alone(name: str) -> None:
    X, y = numbers.load(name, None, 400)
    again = numbers.load(name, None, 400)
    assert X.dtype == np.float32
    assert (X.min(), X.max()) == (0.0, 1.0)
    assert len(X) == len(y) == 400
    np.testing.assert_array_equal(again[0], X)
    np.testing.assert_array_equal(again[1], y)


def test_baselines_know_the_labels_before_alone() -> None:
    y = np.array([4.0, 2.0, 6.0])
    assert numbers.mean_of_labels(y).tolist() == [0.0, 4.0, 3.0]
    assert numbers.last_label(y).tolist() == [0.0, 4.0, 2.0]


@pytest.mark.parametrize(
    "name",
    ["AMF follow 4", pytest.param("AMF plain 10", marks=pytest.mark.thorough), "last label"],
)
def test_a_learner_is_measured_and_shown(tmp_path: Path, name: str) -> None:
    X, y = numbers.load("Friedman", None, 300)
    found = numbers.measure(name, X, y, None)
    assert -2.0 < found["r2"] < 1.0
    assert found["cpu_seconds"] >= 0.0
    records = Records(tmp_path / "records.json", numbers.IDENTITY)
    records.add({"stream": "Friedman", "learner": name, "rows": 300, "d": 10, **found})
    assert f"**{found['r2']:.4f} / " in numbers.body(records)
