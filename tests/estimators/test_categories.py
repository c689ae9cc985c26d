"""Columns of frames that are categories: the forest of rows encoded by hand, to the byte."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.model_selection import cross_val_score

import dmondrian
from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    CorruptError,
    DataError,
    GeneralizedMondrianForestClassifier,
    GeneralizedMondrianForestRegressor,
    MondrianFeatures,
    MondrianForestClassifier,
    MondrianForestRegressor,
    MondrianKernelClassifier,
    MondrianKernelRegressor,
    OnlineRandomForestClassifier,
    OnlineRandomForestRegressor,
    ParameterError,
)
from dmondrian.checkpoint import document, encode_forest
from dmondrian.checkpoint.opening import ADVICE
from dmondrian.data import Schema
from dmondrian.data.encode import encode_features
from dmondrian.displays import PartitionDisplay
from dmondrian.export import shap_trees, to_onnx
from dmondrian.frames import FrameModel
from tests.cli.command import call

SMALL: dict[str, Any] = {"n_estimators": 2, "random_state": 0}
ON: dict[str, Any] = {**SMALL, "categorical_features": "from_dtype"}
MISSING: dict[str, Any] = {**ON, "missing_values": "encode"}
LEVELS = ["Wien", "Graz", "Linz", "Bregenz"]  # of the type; the last never comes
N = 300
draw = np.random.default_rng(0)
TOWNS = draw.choice(LEVELS[:3], N)
SIZES = draw.choice([10, 2, 5], N)  # numbers as categories
FRAME = pd.DataFrame(
    {
        "x": draw.random(N).astype(np.float32),
        "town": pd.Categorical(TOWNS, LEVELS),
        "is_new": draw.random(N) > 0.5,
        "size": pd.Categorical(SIZES, [10, 2, 5]),
    }
)
TARGETS = FRAME["x"].to_numpy() + (TOWNS == "Graz")
LABELS = np.where(TARGETS > 0.8, "yes", "no")
GAPS = FRAME.copy()
for name in ("x", "town", "size"):
    GAPS.loc[draw.random(N) < 0.2, name] = None


def by_hand(frame: pd.DataFrame, filling: float | None = None) -> np.ndarray:
    """Return features: levels in the order of their texts, others, and what is missing."""
    features = []
    for name, levels in (("x", None), ("town", sorted(LEVELS)), ("is_new", None),
                         ("size", ["10", "2", "5"])):  # fmt: skip
        column, is_missing = frame[name], frame[name].isna().to_numpy()
        if levels is None:
            features.append(np.where(is_missing, filling or 0.0, column.astype(float)))
            unit = 1.0
        else:
            texts = column.astype(object).map(str).to_numpy()
            unit = 1.0 / (len(levels) + (filling is not None))
            features += [(texts == level) * unit for level in levels]
            features.append(~(np.isin(texts, levels) | is_missing) * unit)
        if filling is not None:
            features.append(is_missing * unit)
    return np.stack(features, axis=1).astype(np.float32)


def state_of(model: Any) -> bytes:
    return encode_forest(*model.forest_.stored())


def as_polars(frame: pd.DataFrame) -> pl.DataFrame:
    values = {name: frame[name].astype(object).tolist() for name in frame}
    values |= {
        name: [None if v != v else str(v) for v in values[name]] for name in ("town", "size")
    }
    made = pl.DataFrame(values)
    return made.with_columns(
        pl.col("x").fill_nan(None).cast(pl.Float32),
        pl.col("town").cast(pl.Enum(LEVELS)),
        pl.col("size").cast(pl.Enum(["10", "2", "5"])),
    )


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "amf-classifier": (AMFClassifier, {"warmup_rows": 64}),
    "following": (AMFClassifier, {"drift": "follow", "experts": ("mondrian", "boosted")}),
    "amf-regressor": (AMFRegressor, {"calibrate": True}),
    "mondrian-classifier": (MondrianForestClassifier, {}),
    "cube": (MondrianForestRegressor, {"domain": "cube", "lifetime": 3.0}),
    "generalized-classifier": (GeneralizedMondrianForestClassifier, {"lifetime": 3.0}),
    "generalized-regressor": (GeneralizedMondrianForestRegressor, {"lifetime": 3.0}),
    "kernel-classifier": (MondrianKernelClassifier, {"lifetime": 2.0}),
    "kernel-regressor": (MondrianKernelRegressor, {"lifetime": 2.0}),
    "online-classifier": (OnlineRandomForestClassifier, {}),
    "online-regressor": (OnlineRandomForestRegressor, {}),
}


# Cases outside of the thorough run too: one encodes for all, before any tree sees a row.
QUICK = ("amf-classifier", "generalized-classifier", "kernel-regressor", "online-regressor")
WITH_GAPS = ("amf-classifier", "following", "cube", "kernel-regressor", "online-classifier")


@pytest.mark.parametrize(
    ("has_gaps", "case"),
    [
        *(
            pytest.param(False, case, marks=[pytest.mark.thorough] * (case not in QUICK))
            for case in CASES
        ),
        *(
            pytest.param(True, case, marks=[pytest.mark.thorough] * (case == "amf-classifier"))
            for case in WITH_GAPS
        ),
    ],
)
def test_it_is_the_forest_of_rows_encoded_by_hand(case: str, has_gaps: bool) -> None:
    kind, settings = CASES[case]
    frame, chosen, filling = FRAME, ON, None
    if has_gaps:
        frame, chosen, filling = GAPS, MISSING, 0.5 if case == "cube" else 0.0
    y = LABELS if "Classifier" in kind.__name__ else TARGETS
    own = kind(**chosen, **settings).fit(frame, y)
    known = kind(**SMALL, **settings).fit(by_hand(frame, filling), y)
    assert state_of(own) == state_of(known)
    assert own.n_features_in_ == 4
    for rows in (slice(0, 50), slice(0, 1)):
        found = own.predict(frame[rows])
        np.testing.assert_array_equal(found, known.predict(by_hand(frame[rows], filling)))
    if hasattr(own, "feature_importances_"):
        widths = [1, 5, 1, 4] if filling is None else [2, 6, 2, 5]
        parts = np.split(known.feature_importances_, np.cumsum(widths)[:-1])
        np.testing.assert_array_equal(own.feature_importances_, [part.sum() for part in parts])
    if case.startswith("kernel"):  # whose sums are of calls
        return
    first = {"classes": ["no", "yes"]} if y is LABELS else {}
    whole, parts = kind(**chosen, **settings), kind(**chosen, **settings)
    whole.partial_fit(frame, y, **first)
    for part in (slice(0, 1), slice(1, 9), slice(9, 120), slice(120, N)):
        parts.partial_fit(frame[part], y[part], **first)
    assert state_of(parts) == state_of(whole)


def test_levels_are_encoded_as_in_a_job() -> None:
    model = AMFClassifier(**MISSING).fit(GAPS, LABELS)
    column = model._columns[1]
    assert column is not None
    data = pa.Array.from_pandas(GAPS["town"])
    known = encode_features(Schema((column,)), {"town": data}, N, {}, str)
    np.testing.assert_array_equal(model._check_rows(GAPS)[:, 2:8], known)


def test_frames_of_other_kinds_and_orders_of_categories() -> None:
    known = state_of(AMFClassifier(**ON).fit(FRAME, LABELS))
    turned = FRAME.assign(town=pd.Categorical(TOWNS, LEVELS[::-1]))
    ordered = FRAME.assign(town=pd.Categorical(TOWNS, LEVELS, ordered=True))
    for frame in (turned, ordered, as_polars(FRAME)):
        assert state_of(AMFClassifier(**ON).fit(frame, LABELS)) == known
        both = {**ON, "categorical_features": ["size", 1]}
        model = AMFClassifier(**both).fit(frame, LABELS)
        assert state_of(model) == known
        assert state_of(model.fit(FRAME, LABELS)) == known
    model = AMFClassifier(**ON).partial_fit(FRAME[:100], LABELS[:100], ["no", "yes"])
    model.partial_fit(as_polars(FRAME)[100:200], LABELS[100:200])
    model.partial_fit(turned[200:], LABELS[200:])
    whole = AMFClassifier(**ON).partial_fit(FRAME, LABELS, ["no", "yes"])
    assert state_of(model) == state_of(whole)
    gaps = AMFClassifier(**MISSING).fit(as_polars(GAPS), LABELS)
    assert state_of(gaps) == state_of(AMFClassifier(**MISSING).fit(GAPS, LABELS))


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
def test_a_column_of_texts_is_named(kind: Any) -> None:
    plain = kind({"x": [0.0, 1.0], "town": [2.0, 3.0]})
    texts = kind({"x": [0.0, 1.0], "town": ["Bern", "Ulm"]})
    with pytest.raises(ParameterError, match=r"column 'town' of X has texts .*from_dtype"):
        AMFClassifier(1).fit(texts, [0, 1])
    model = AMFClassifier(1).fit(plain, [0, 1])
    for ask in (model.predict, lambda X: model.partial_fit(X, [0, 1])):
        with pytest.raises(ParameterError, match=r"'town' .*had numbers when .*: give numbers$"):
            ask(texts)


def test_without_categories_it_changes_nothing() -> None:
    plain = FRAME[["x", "is_new"]].astype(float)
    known = state_of(AMFClassifier(**SMALL).fit(plain, LABELS))
    assert state_of(AMFClassifier(**ON).fit(plain, LABELS)) == known
    assert state_of(AMFClassifier(**ON).fit(plain.to_numpy(), LABELS)) == known


def test_frames_to_learn_have_the_first_ones_categories() -> None:
    model = AMFClassifier(**ON).fit(FRAME, LABELS)
    before = state_of(model)
    others = (
        FRAME.assign(town=pd.Categorical(TOWNS, LEVELS[:3])),
        FRAME.assign(town=pd.Categorical(TOWNS, [*LEVELS, "Enns"])),
        FRAME.assign(town=TOWNS),
    )
    for frame in others:
        for rows in (slice(0, 1), slice(0, 9)):
            with pytest.raises(DataError, match="'town' has the categories"):
                model.partial_fit(frame[rows], LABELS[rows])
    with pytest.raises(DataError, match="DataFrame"):
        model.partial_fit(by_hand(FRAME), LABELS)
    with pytest.raises(ValueError, match="feature names"):
        model.partial_fit(FRAME[["town", "x", "is_new", "size"]], LABELS)
    assert state_of(model) == before


def test_unknown_values_are_others_and_missing_ones_are_refused() -> None:
    model = AMFClassifier(**ON).fit(FRAME, LABELS)
    known = AMFClassifier(**SMALL).fit(by_hand(FRAME), LABELS)
    new = FRAME[:7].assign(town="Enns", size=7)
    answer = known.predict_proba(by_hand(new))
    np.testing.assert_array_equal(model.predict_proba(new), answer)
    new["town"] = pd.Categorical(new["town"])
    np.testing.assert_array_equal(model.predict_proba(new), answer)
    for part in (GAPS, GAPS[GAPS["town"].isna()][:1]):
        with pytest.raises(ValueError, match="NaN"):
            model.predict(part)
        with pytest.raises(ValueError, match="NaN"):
            AMFClassifier(**ON).fit(part, LABELS[: len(part)])
    for bad in (object(), b"\xff", [1]):
        with pytest.raises(DataError, match="no texts"):
            model.predict(FRAME[:1].assign(town=[bad]))
    lazy = as_polars(FRAME).lazy()
    for rows in (by_hand(FRAME), by_hand(FRAME)[:1], FRAME["town"], TOWNS, lazy):
        with pytest.raises(DataError, match="DataFrame with the columns"):
            model.predict(rows)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(FRAME[["x", "is_new", "size"]])


@pytest.mark.parametrize(
    "settings",
    [ON, MISSING, {**ON, "categorical_features": np.array([1, 3])}],
    ids=["", "gaps", "places"],
)
def test_it_is_stored_and_goes_on(tmp_path: Path, settings: dict[str, Any]) -> None:
    frame = GAPS if settings is MISSING else FRAME
    model = AMFClassifier(**settings).fit(frame[:200], LABELS[:200])
    model.save(tmp_path / "m")
    others = dmondrian.load(tmp_path / "m"), pickle.loads(pickle.dumps(model))
    asked = FrameModel(tmp_path / "m")
    known = model.predict_proba(frame)
    forms = [frame, frame[["size", "is_new", "x", "town"]], as_polars(frame)]
    for form in (*forms, pa.Table.from_pandas(frame), frame.assign(spare=1)):
        found = asked.predict_proba(form)
        columns = [np.asarray(found[name]) for name in ("proba_no", "proba_yes")]
        np.testing.assert_array_equal(np.stack(columns, axis=1), known)
    text, _ = call("describe", tmp_path / "m", "--features")
    assert "town=Bregenz" in text
    model.partial_fit(frame[200:], LABELS[200:])
    for other in others:
        np.testing.assert_array_equal(other.predict_proba(frame), known)
        assert other.feature_names_in_.tolist() == ["x", "town", "is_new", "size"]
        assert other.n_features_in_ == 4
        other.partial_fit(frame[200:], LABELS[200:])
        assert state_of(other) == state_of(model)
        with pytest.raises(DataError, match="categories"):
            other.partial_fit(FRAME.assign(town=TOWNS), LABELS)
    plain = AMFClassifier(**SMALL).fit(by_hand(FRAME), LABELS)
    plain.save(tmp_path / "plain")
    stored = (tmp_path / "plain" / "run.json").read_text()
    assert "categor" not in stored


def test_stored_categories_are_checked(tmp_path: Path) -> None:
    AMFClassifier(**ON).fit(FRAME, LABELS).save(tmp_path / "m")
    file = tmp_path / "m" / "run.json"
    good = document.unseal(file.read_bytes(), "run.json", ADVICE)
    town = good["categories"][1]
    for bad in (
        [], 5, {"a": 1}, [None] * 4, [*good["categories"], None], [None, 5, None, town],
        [None, ["town"], None, town], [None, [*town[:2], ["a", "a"]], None, town],
        [None, [*town[:2], []], None, town], [None, [*town[:2], [1, 2, 3, 4]], None, town],
        [None, ["city", *town[1:]], *good["categories"][2:]], [None, "town", None, town],
    ):  # fmt: skip
        file.write_bytes(document.seal({**good, "categories": bad}))
        with pytest.raises(CorruptError, match="categories"):
            dmondrian.load(tmp_path / "m")
    file.write_bytes(document.seal({**good, "feature_names": None}))
    with pytest.raises(CorruptError, match="categories"):
        dmondrian.load(tmp_path / "m")
    file.write_bytes(document.seal(good))
    assert json.dumps(good["categories"][3][2]) == '["10", "2", "5"]'
    dmondrian.load(tmp_path / "m")


def test_levels_of_open_categories_are_those_of_the_first_rows(tmp_path: Path) -> None:
    frame = as_polars(FRAME).with_columns(pl.col("town").cast(pl.String).cast(pl.Categorical))
    model = AMFClassifier(**ON).fit(frame[:200], LABELS[:200])
    town = model._columns[1]
    assert list(town.levels) == sorted(set(TOWNS[:200]))
    enum = frame.with_columns(pl.col("town").cast(pl.String).cast(pl.Enum(town.levels)))
    beside = AMFClassifier(**ON).fit(enum[:200], LABELS[:200])
    known = beside.predict_proba(enum)
    assert np.array_equal(model.predict_proba(frame), known)
    # Others that come later are other levels, also those that are learned.
    new = frame.with_columns(pl.lit("Enns").cast(pl.Categorical).alias("town"))
    with pytest.warns(UserWarning, match="none of"):
        model.partial_fit(new[200:], LABELS[200:])
    assert list(model._columns[1].levels) == list(town.levels)
    model.save(tmp_path / "m")
    assert np.array_equal(
        dmondrian.load(tmp_path / "m").predict_proba(frame), model.predict_proba(frame)
    )
    features = MondrianFeatures(5, categorical_features="from_dtype", random_state=0).fit(FRAME)
    assert np.array_equal(
        features.transform(as_polars(FRAME)).toarray(),
        MondrianFeatures(5, random_state=0).fit(by_hand(FRAME)).transform(by_hand(FRAME)).toarray(),
    )


@pytest.mark.parametrize(
    ("frame", "given", "message"),
    [
        (by_hand(FRAME), [0], "columns of a pandas or polars DataFrame"),
        (FRAME, ["x"], "'x' is not of categories"),
        (FRAME, ["city"], "names 'city'"),
        (FRAME, [4], "names 4"),
        (FRAME, [True], "names True"),
        (FRAME, "from_type", "categorical_features"),
        (FRAME.assign(town=pd.Categorical([None] * N)), "from_dtype", "no categories"),
        (
            FRAME.assign(town=pd.Categorical(["1"] * N, ["1", 1])),
            "from_dtype",
            "'town' are not all texts",
        ),
        (FRAME.assign(size=pd.cut(FRAME["x"], 3)), "from_dtype", "'size' are not all texts"),
        (
            FRAME.assign(size=pd.Categorical(np.arange(N, dtype="u8") + 2**63)),
            "from_dtype",
            "numbers within 64 bits",
        ),
        (FRAME.assign(town=FRAME["town"].astype(str)), None, "categorical_features='from_dtype'"),
        (FRAME.set_axis(["x", "x", "y", "z"], axis=1), "from_dtype", "a name of its own"),
        (FRAME.set_axis([0, 1, 2, 3], axis=1), "from_dtype", "a name of its own"),
        (FRAME.assign(town=TOWNS), "from_dtype", "could not convert"),
        (as_polars(FRAME).with_columns(pl.col("town").cast(pl.String)), ["town"], "not of categ"),
        (
            as_polars(FRAME).with_columns(pl.col("town").cast(pl.String)),
            "from_dtype",
            "Categorical",
        ),
    ],
)
def test_what_is_no_category_is_refused(frame: Any, given: Any, message: str) -> None:
    model = AMFClassifier(**SMALL, categorical_features=given)
    with pytest.raises(ValueError, match=message):
        model.fit(frame, LABELS)
    assert not hasattr(model, "forest_")


def test_what_does_not_go_with_them_is_refused(tmp_path: Path) -> None:
    two = FRAME[["x", "town"]]
    model = AMFClassifier(**ON).fit(two, LABELS)
    with pytest.raises(ParameterError, match="plain numbers"):
        PartitionDisplay.from_estimator(model, two)
    with pytest.raises(ParameterError, match="SHAP"):
        shap_trees(model)
    with pytest.raises(ParameterError, match="train a run"):
        to_onnx(model)
    with pytest.raises(ParameterError, match=r"a run takes texts"):
        model._check_run()
    one = MondrianForestClassifier(**ON).fit(two, LABELS)
    other = two.assign(town=pd.Categorical(TOWNS, ["A", *LEVELS[:3]]))
    with pytest.raises(ParameterError, match="cannot be merged"):
        one.merge(MondrianForestClassifier(**ON).fit(other, LABELS))
    more = MondrianForestClassifier(**ON).set_params(random_state=0)
    merged = MondrianForestClassifier(**ON).fit(two, LABELS)
    assert merged._columns == more.fit(two, LABELS)._columns


def test_on_the_cube_numbers_are_checked_by_name() -> None:
    frame = FRAME.copy()
    model = MondrianForestRegressor(**ON, domain="cube", lifetime=2.0).fit(frame, TARGETS)
    frame.loc[3, "x"] = 1.5
    with pytest.raises(DataError, match="'x'"):
        model.predict(frame)


def test_it_is_fixed_and_found_anew_by_fit() -> None:
    given = ["town", "size"]
    model = AMFClassifier(**SMALL, categorical_features=given).fit(FRAME, LABELS)
    given.remove("size")
    with pytest.raises(ParameterError, match="changed after the first rows"):
        model.partial_fit(FRAME, LABELS)
    other = FRAME.assign(town=pd.Categorical(TOWNS, LEVELS[:3]))
    model = AMFClassifier(**ON).fit(FRAME, LABELS).fit(other, LABELS)
    assert state_of(model) == state_of(AMFClassifier(**ON).fit(other, LABELS))
    model.set_params(categorical_features=None).fit(by_hand(FRAME), LABELS)
    assert state_of(model) == state_of(AMFClassifier(**SMALL).fit(by_hand(FRAME), LABELS))
    assert (cross_val_score(AMFClassifier(**ON), FRAME, LABELS, cv=3) > 0.5).all()


def test_a_column_of_which_no_value_is_known_is_warned_of() -> None:
    days = pd.Categorical(pd.to_datetime(np.where(LABELS == "yes", "2020-01-01", "2021-01-01")))
    model = AMFClassifier(**ON).fit(FRAME.assign(town=days), LABELS)
    texts = FRAME.assign(town=np.array(days.astype(str), object))
    with pytest.warns(UserWarning, match="none of 8 values of the column 'town' is one of its 2"):
        model.predict(texts[:8])
    model.predict(texts[:7])  # they may be new


def test_a_delay_is_no_length_of_numpys() -> None:
    model = AMFClassifier(drift="follow", delay=np.timedelta64(50, "ns"))
    with pytest.raises(ParameterError, match='give a time as text, such as "1 day"'):
        model.fit(np.zeros((4, 1)), [0, 1, 0, 1])
