"""Frames and arrays with values that are no numbers."""

from __future__ import annotations

import datetime
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dmondrian import AMFClassifier, AMFRegressor, CorruptError, load
from dmondrian.checkpoint import document
from dmondrian.errors import DataError, ParameterError

n = 60
x = np.random.default_rng(0).random(n)
label = (x > 0.5).astype(int)
days = pd.Series(pd.to_datetime(np.arange(n) % 5, unit="D"))
late = days.where(x > 0.3)  # NaT elsewhere


def frames_of_times(times: pd.Series) -> list[Any]:
    """Return what NumPy turns into numbers since 1970 without a word."""
    return [
        times.to_numpy()[:, None],
        (times - times.min()).to_numpy()[:, None],
        pd.DataFrame({"t": times}),
        pl.DataFrame({"t": times}),
        pa.table({"t": pa.array(times), "x": x}),
    ]


@pytest.mark.parametrize("k", range(5))
def test_a_missing_time_is_a_missing_value(k: int) -> None:
    """Not the number -2^63, which NumPy makes of it."""
    given, whole = frames_of_times(late)[k], frames_of_times(days)[k]
    with pytest.raises(ParameterError, match="stands for missing values"):
        AMFClassifier(2, random_state=0).fit(given, label)
    with pytest.raises(ParameterError, match="stands for missing values"):
        AMFClassifier(2, random_state=0).fit(whole, label).predict(given)
    forest = AMFClassifier(2, missing_values="encode", random_state=0).fit(given, label)
    tree = forest.nodes(0)
    assert tree["lower"][tree["root"], 0] >= 0.0
    assert tree["upper"][tree["root"], 1] == 1.0  # some are missing
    assert AMFClassifier(2, random_state=0).fit(whole, label).score(whole, label) > 0.5


@pytest.mark.parametrize(
    "column",
    [
        days,
        days - days.min(),
        days.dt.tz_localize("UTC"),
        pd.Series(pd.period_range("2026-01", periods=n)),
        pd.Series([datetime.date(2026, 1, 1)] * n, dtype="date32[pyarrow]"),
    ],
    ids=lambda column: str(column.dtype),
)
def test_times_beside_numbers_are_named(column: pd.Series) -> None:
    frame = pd.DataFrame({"booked": column, "x": x})
    with pytest.raises(ParameterError, match=r"column 'booked' of X has times"):
        AMFClassifier(2, random_state=0).fit(frame, label)
    forest = AMFClassifier(2, random_state=0).fit(frame.assign(booked=x), label)
    with pytest.raises(ParameterError, match=r"column 'booked' of X has times"):
        forest.predict(frame)


def test_texts_of_arrow_are_named() -> None:
    texts = pa.array(["a", "b"] * (n // 2))
    for column in (texts, texts.dictionary_encode()):
        with pytest.raises(ParameterError, match=r"column 'town' of X has texts .*from_dtype"):
            AMFClassifier(2).fit(pa.table({"town": column, "x": x}), label)


def test_objects_that_are_no_numbers_are_named() -> None:
    frame = pd.DataFrame({"x": x, "z": pd.Series([1.0, pd.NA] * (n // 2), dtype=object)})
    with pytest.raises(ParameterError, match=r"column 'z' of X has values that are no numbers"):
        AMFClassifier(2).fit(frame, label)


@pytest.mark.parametrize("span", [False, True])
def test_times_in_another_unit_than_the_first_rows_are_refused(span: bool, tmp_path: Path) -> None:
    """A forest of nanoseconds took seconds for moments long before, without a word."""
    at = pd.Series(pd.date_range("2026-01-01", periods=n, freq="h"))
    frames = [
        pd.DataFrame({"at": (at - at.min() if span else at).dt.as_unit(unit)})
        for unit in ("ns", "us", "s")
    ]
    model = AMFRegressor(2, random_state=0).fit(frames[0], label)
    model.save(tmp_path)
    known = model.predict(frames[0])
    for asked in (model, load(tmp_path), pickle.loads(pickle.dumps(model))):
        for same in (pl.from_pandas(frames[0]), pa.Table.from_pandas(frames[0])):
            assert (asked.predict(same) == known).all()
        for unit, frame in zip(("us", "s"), frames[1:], strict=True):
            for other in (frame, pa.Table.from_pandas(frame)):
                with pytest.raises(DataError, match=rf"'at' .* unit '{unit}', and had .*'ns'"):
                    asked.predict(other)
        with pytest.raises(DataError, match=r"'at' .* unit 'us'"):
            asked.partial_fit(pl.from_pandas(frames[1]), label)
    dates = pl.DataFrame({"at": at.dt.date.tolist(), "x": x})
    beside = AMFRegressor(2).fit(dates, label)
    assert len(beside.predict(dates)) == n
    with pytest.raises(DataError, match=r"'at' .* unit 'us', and had times in the unit 'D'"):
        beside.predict(dates.cast({"at": pl.Datetime("us")}))
    with pytest.raises(DataError, match=r"'x' .* unit 'ms', and had numbers"):
        beside.predict(dates.with_columns(x=pl.Series(at.dt.as_unit("ms"))))
    model.fit(frames[2], label).predict(frames[2])
    array = frames[2].to_numpy()
    AMFRegressor(2).fit(array, label).predict(array)
    with pytest.raises(DataError, match=r"column 0 of X has times in the unit 'ns'"):
        AMFRegressor(2).fit(array, label).predict(frames[0].to_numpy())


def test_stored_units_of_times_are_checked(tmp_path: Path) -> None:
    AMFRegressor(2).fit(pd.DataFrame({"at": days}), label).save(tmp_path)
    path = tmp_path / "run.json"
    content = document.unseal(path.read_bytes(), "run.json", "")
    for wrong in ([], [1], ["s", "s"]):
        path.write_bytes(document.seal({**content, "time_units": wrong}))
        with pytest.raises(CorruptError, match="time_units should be"):
            load(tmp_path)
    del content["time_units"]  # as earlier versions wrote it
    path.write_bytes(document.seal(content))
    load(tmp_path).predict(pd.DataFrame({"at": days.dt.as_unit("s")}))
