"""Missing values that are encoded: the forest of rows that are encoded by hand, to the byte."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import dmondrian
from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    CorruptError,
    DataError,
    GeneralizedMondrianForestClassifier,
    GeneralizedMondrianForestRegressor,
    MondrianDensity,
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
from dmondrian.displays import PartitionDisplay
from dmondrian.distributed import predict
from dmondrian.export import shap_trees, to_onnx
from dmondrian.frames import FrameModel
from tests.cli.command import call
from tests.estimators.test_scikit_learn import SHUFFLES_ROWS, SHUFFLES_SPARSE_ROWS

SMALL: dict[str, Any] = {"n_estimators": 2, "random_state": 0}
ENCODED: dict[str, Any] = {**SMALL, "missing_values": "encode"}
BOTH = ("mondrian", "boosted")
draw = np.random.default_rng(0)
X = draw.random((300, 3)).astype(np.float32)
TARGETS = X[:, 0] + draw.normal(0.0, 0.2, 300)
LABELS = np.where(TARGETS > 0.5, "yes", "no")
X[draw.random(X.shape) < 0.2] = np.nan
X[5], X[40:60, 1] = np.nan, np.nan
WEIGHTS = draw.integers(0, 3, 300).astype(np.float64)
NEW = X[::-1][:50]


def by_hand(X: np.ndarray, filling: float = 0.0) -> np.ndarray:
    """Return each column, and beside it whether it is missing."""
    features = []
    for column in np.asarray(X, np.float32).T:
        is_missing = [value != value for value in column.tolist()]
        features += [np.where(is_missing, filling, column), np.array(is_missing, float)]
    return np.stack(features, axis=1).astype(np.float32)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "amf-classifier": (AMFClassifier, {"warmup_rows": 64}),
    "amf-classifier, calibrated": (AMFClassifier, {"calibrate": True}),
    "amf-classifier, following": (AMFClassifier, {"drift": "follow", "delay": 5}),
    "amf-classifier, boosted": (AMFClassifier, {"drift": "follow", "experts": BOTH}),
    "amf-regressor": (AMFRegressor, {}),
    "amf-regressor, following": (AMFRegressor, {"drift": "follow"}),
    "amf-regressor, boosted": (AMFRegressor, {"drift": "follow", "experts": BOTH}),
    "mondrian-classifier": (MondrianForestClassifier, {}),
    "mondrian-regressor": (MondrianForestRegressor, {}),
    "cube": (MondrianForestRegressor, {"domain": "cube", "lifetime": 3.0}),
    "hierarchy": (MondrianForestRegressor, {"aggregation": "hierarchy", "lifetime": 3.0}),
    "generalized-classifier": (GeneralizedMondrianForestClassifier, {"lifetime": 3.0}),
    "generalized-regressor": (
        GeneralizedMondrianForestRegressor,
        {"loss": "quantile", "quantile": 0.7, "lifetime": 3.0},
    ),
    "kernel-classifier": (MondrianKernelClassifier, {"lifetime": 2.0}),
    "kernel-regressor": (MondrianKernelRegressor, {"lifetime": 2.0}),
    "online-classifier": (OnlineRandomForestClassifier, {}),
    "online-regressor": (OnlineRandomForestRegressor, {}),
}
# Cases outside of the thorough run too: one encodes for all, before any tree sees a row.
QUICK = (
    *("amf-classifier", "amf-regressor, boosted", "mondrian-regressor", "hierarchy"),
    *("generalized-regressor", "kernel-regressor"),
)
ASKED: dict[str, Callable[[Any, np.ndarray], Any]] = {
    "predict": lambda f, X: f.predict(X),
    "predict_proba": lambda f, X: f.predict_proba(X),
    "decision_function": lambda f, X: f.decision_function(X),
    "predict_quantiles": lambda f, X: f.predict_quantiles(X, [0.2, 0.8]),
    "weighted_depth": lambda f, X: f.weighted_depth(X),
    "staged_predict": lambda f, X: list(f.staged_predict(X, [0.5, 1.0])),
}


def state_of(model: Any) -> bytes:
    return encode_forest(*model.forest_.stored())


def labels_of(kind: Any) -> np.ndarray:
    return LABELS if "Classifier" in kind.__name__ else TARGETS


def same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize(
    ("case", "w"),
    [
        pytest.param(
            case,
            w,
            id=f"{name}-{case}",
            marks=()
            if (case in QUICK if w is None else case == QUICK[0])
            else pytest.mark.thorough,
        )
        for name, w in (("", None), ("weighted rows", WEIGHTS))
        for case in CASES
    ],
)
def test_it_is_the_forest_of_rows_encoded_by_hand(case: str, w: np.ndarray | None) -> None:
    kind, settings = CASES[case]
    filling, y = 0.5 if case == "cube" else 0.0, labels_of(kind)
    own = kind(**ENCODED, **settings).fit(X, y, w)
    known = kind(**SMALL, **settings).fit(by_hand(X, filling), y, w)
    assert state_of(own) == state_of(known)
    assert own.n_features_in_ == 3
    seen = by_hand(NEW, filling)
    for name, ask in ASKED.items():
        if not hasattr(own, name) or (name == "weighted_depth" and not case.startswith("amf")):
            continue  # depths are found by the same code, which is compiled for each kind anew
        try:
            answer = ask(known, seen)
        except ParameterError:  # of this forest there is none
            continue
        same(ask(own, NEW), answer)
        if name != "staged_predict":
            for i in range(3):  # the way of single rows
                same(ask(own, NEW[i : i + 1]), ask(known, seen[i : i + 1]))
    if hasattr(own, "feature_importances_"):
        importances = known.feature_importances_.reshape(3, 2).sum(axis=1)
        same(own.feature_importances_, importances)


@pytest.mark.parametrize(
    "case",
    [each if each in QUICK else pytest.param(each, marks=pytest.mark.thorough) for each in CASES],
)
def test_chunks_and_single_rows_change_no_byte(case: str) -> None:
    kind, settings = CASES[case]
    y = labels_of(kind)
    first = {"classes": ["no", "yes"]} if y is LABELS else {}
    whole, parts, alone = (kind(**ENCODED, **settings) for _ in range(3))
    whole.partial_fit(X, y, **first)
    for part in (slice(0, 6), slice(6, 7), slice(7, 131), slice(131, 300)):  # the first: row 5
        parts.partial_fit(X[part], y[part], **first)
    assert state_of(parts) == state_of(whole)
    if case.startswith("kernel"):  # whose exact sums are of calls
        return
    for i in range(80):
        alone.partial_fit(X[i : i + 1].astype(np.float64 if i % 2 else np.float32), y[i : i + 1],
                          **first)  # fmt: skip
    alone.partial_fit(X[80:], y[80:])
    assert state_of(alone) == state_of(whole)


def test_calibrated_intervals_are_of_encoded_rows() -> None:
    own = MondrianForestRegressor(**ENCODED).fit(X[:200], TARGETS[:200])
    known = MondrianForestRegressor(**SMALL).fit(by_hand(X[:200]), TARGETS[:200])
    own.calibrate_intervals(X[200:], TARGETS[200:])
    known.calibrate_intervals(by_hand(X[200:]), TARGETS[200:])
    same(own.interval_scores_, known.interval_scores_)
    same(own.predict_interval(NEW, 0.8, calibrated=True),
         known.predict_interval(by_hand(NEW), 0.8, calibrated=True))  # fmt: skip
    same(own.predict(NEW, return_std=True), known.predict(by_hand(NEW), return_std=True))
    settings = {"loss": "quantile", "quantile": 0.5, "lifetime": 3.0}
    first = GeneralizedMondrianForestRegressor(**ENCODED, **settings).fit(X[:200], TARGETS[:200])
    other = GeneralizedMondrianForestRegressor(**SMALL, **settings)
    other.fit(by_hand(X[:200]), TARGETS[:200])
    first.calibrate_intervals(X[200:], TARGETS[200:])
    other.calibrate_intervals(by_hand(X[200:]), TARGETS[200:])
    same(first.interval_scores_, other.interval_scores_)


def test_confidence_intervals_are_of_encoded_rows() -> None:
    settings = {"domain": "cube", "lifetime": 2.0, "split_pure": True}
    settings = {name: settings[name] for name in ("domain", "lifetime")}
    own = MondrianForestRegressor(**ENCODED, **settings, empty_cell="parent").fit(X, TARGETS)
    known = MondrianForestRegressor(**SMALL, **settings, empty_cell="parent")
    known.fit(by_hand(X, 0.5), TARGETS)
    same(own.confidence_interval(NEW, X),
         known.confidence_interval(by_hand(NEW, 0.5), by_hand(X, 0.5)))  # fmt: skip


def test_chosen_lifetimes_are_of_encoded_rows() -> None:
    own = GeneralizedMondrianForestRegressor(**ENCODED).fit(X[:200], TARGETS[:200])
    known = GeneralizedMondrianForestRegressor(**SMALL).fit(by_hand(X[:200]), TARGETS[:200])
    own.choose_lifetime(X[200:], TARGETS[200:])
    known.choose_lifetime(by_hand(X[200:]), TARGETS[200:])
    assert state_of(own) == state_of(known)


@pytest.mark.parametrize("names", [False, True])
def test_it_is_stored_and_goes_on(tmp_path: Path, names: bool) -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"]) if names else X
    new = pd.DataFrame(NEW, columns=["a", "b", "c"]) if names else NEW
    model = AMFClassifier(**ENCODED).fit(frame[:200], LABELS[:200])
    model.save(tmp_path / "m")
    others = dmondrian.load(tmp_path / "m"), pickle.loads(pickle.dumps(model))
    for other in others:
        assert other.get_params() == model.get_params()
        assert other.n_features_in_ == 3
        same(other.predict_proba(new), model.predict_proba(new))
    model.partial_fit(frame[200:], LABELS[200:])
    for other in others:
        assert state_of(other.partial_fit(frame[200:], LABELS[200:])) == state_of(model)
        if names:
            assert other.feature_names_in_.tolist() == ["a", "b", "c"]
    stored = json.loads((tmp_path / "m" / "run.json").read_text())
    known = ["a", "a=<null>", "b", "b=<null>", "c", "c=<null>"]
    assert stored["feature_names"] == (known if names else None)
    text, _ = call("describe", tmp_path / "m", "--features")
    assert ("b=<null>" in text) is names
    AMFClassifier(**SMALL).fit(by_hand(X), LABELS).save(tmp_path / "plain")
    assert "missing_values" not in (tmp_path / "plain" / "run.json").read_text()


def test_features_of_a_stored_forest_are_pairs(tmp_path: Path) -> None:
    AMFClassifier(**SMALL).fit(np.nan_to_num(X), LABELS).save(tmp_path / "m")
    file = tmp_path / "m" / "run.json"
    stored = document.unseal(file.read_bytes(), "run.json", ADVICE)
    stored["estimator"]["missing_values"] = "encode"
    file.write_bytes(document.seal(stored))
    with pytest.raises(CorruptError, match="two features a column"):
        dmondrian.load(tmp_path / "m")


def test_frames_with_missing_values(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = AMFClassifier(**ENCODED).fit(frame, LABELS)
    model.save(tmp_path / "m")
    known = model.predict_proba(frame)
    asked = FrameModel(tmp_path / "m")
    nullable = frame.convert_dtypes()
    assert nullable.isna().equals(frame.isna())
    same(AMFClassifier(**ENCODED).fit(nullable, LABELS).predict_proba(nullable), known)
    for other in (
        frame,
        frame[["c", "a", "b"]],
        nullable,
        pl.DataFrame(frame),
        pl.DataFrame(frame).fill_nan(None),
        pa.Table.from_pandas(frame),
    ):
        found = asked.predict_proba(other)
        columns = [np.asarray(found[name]) for name in ("proba_no", "proba_yes")]
        same(np.stack(columns, axis=1), known)


def test_columns_that_are_missing_always_or_for_the_first_time() -> None:
    gone = X.copy()
    gone[:, 1] = np.nan
    own = AMFClassifier(**ENCODED).fit(gone, LABELS)
    assert state_of(own) == state_of(AMFClassifier(**SMALL).fit(by_hand(gone), LABELS))
    full = np.nan_to_num(X)
    own = AMFClassifier(**ENCODED).fit(full, LABELS)  # no value is missing
    known = AMFClassifier(**SMALL).fit(by_hand(full), LABELS)
    same(own.predict_proba(NEW), known.predict_proba(by_hand(NEW)))
    own = AMFClassifier(**ENCODED).fit(np.full((20, 2), np.nan), LABELS[:20])
    assert np.isfinite(own.predict_proba([[np.nan, 1.0]])).all()


def test_wide_rows() -> None:
    wide = np.where(draw.random((60, 700)) < 0.3, np.nan, draw.random((60, 700)))
    for settings in ({}, {"drift": "follow", "experts": BOTH}):
        own = AMFClassifier(**ENCODED, **settings).fit(wide, LABELS[:60])
        known = AMFClassifier(**SMALL, **settings).fit(by_hand(wide), LABELS[:60])
        assert state_of(own) == state_of(known)


def test_scales_are_of_features() -> None:
    scales = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    own = AMFClassifier(**ENCODED, feature_scales=scales).fit(X, LABELS)
    known = AMFClassifier(**SMALL, feature_scales=scales).fit(by_hand(X), LABELS)
    assert state_of(own) == state_of(known)
    same(own.feature_scales_, scales)
    with pytest.raises(ParameterError, match=r"expected \(6,\)"):
        AMFClassifier(**ENCODED, feature_scales=scales[:3]).fit(X, LABELS)


def test_infinite_numbers_and_missing_labels_and_weights_are_refused() -> None:
    model = AMFClassifier(**ENCODED).fit(X, LABELS)
    before = state_of(model)
    for bad in (np.inf, -np.inf):
        rows = X[:3].astype(np.float64)
        rows[1, 2] = bad
        for part in (rows, rows[1:2]):
            for do in (
                lambda part=part: model.partial_fit(part, LABELS[: len(part)]),
                lambda part=part: model.predict(part),
                lambda part=part: AMFClassifier(**ENCODED).fit(part, LABELS[: len(part)]),
            ):
                with pytest.raises(ValueError, match="infinity"):
                    do()
    y = TARGETS.copy()
    y[7] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        AMFRegressor(**ENCODED).fit(X, y)
    with pytest.raises(ValueError, match="NaN"):
        AMFRegressor(**ENCODED).fit(X, TARGETS).partial_fit(X[7:8], y[7:8])
    with pytest.raises(ValueError, match="sample_weight"):
        model.partial_fit(X, LABELS, sample_weight=np.full(300, np.nan))
    for rows in (by_hand(X), by_hand(X)[:1], X[:1, :2]):  # encoded before, or too few
        with pytest.raises(ValueError, match="features"):
            model.predict(rows)
        with pytest.raises(ValueError, match="features"):
            model.partial_fit(rows, LABELS[: len(rows)])
    assert state_of(model) == before


def test_by_default_they_are_refused() -> None:
    for kind, settings in CASES.values():
        with pytest.raises(ParameterError, match=r"NaN.*: missing_values='encode' learns"):
            kind(**SMALL, **settings).fit(X, labels_of(kind))
    model = AMFClassifier(**SMALL).fit(np.nan_to_num(X), LABELS)
    with pytest.raises(ParameterError, match=r"NaN.*: missing_values='encode' learns"):
        model.predict(X[5:6])
    model.missing_values = "encode"
    with pytest.raises(ParameterError, match="begun without missing_values='encode'"):
        model.predict(X[5:6])
    with pytest.raises(ParameterError, match=r"NaN.*: fill them"):
        MondrianDensity().fit(X)
    with pytest.raises(ValueError, match="missing_values"):
        AMFClassifier(missing_values="ignore").fit(X, LABELS)
    assert "missing_values" not in MondrianDensity().get_params()
    with pytest.raises(ParameterError, match=r"NaN.*: missing_values='encode' learns"):
        MondrianFeatures().fit(X)


def test_features_are_those_of_rows_encoded_by_hand(tmp_path: Path) -> None:
    model = MondrianFeatures(5, missing_values="encode", random_state=0).partial_fit(X[:100])
    model.partial_fit(X[100:])
    plain = MondrianFeatures(5, random_state=0).fit(by_hand(X))
    wanted = plain.transform(by_hand(NEW)).toarray()
    assert np.array_equal(model.transform(NEW).toarray(), wanted)
    model.save(tmp_path / "m")
    assert np.array_equal(dmondrian.load(tmp_path / "m").transform(NEW).toarray(), wanted)


def test_it_is_fixed_from_the_first_row_on() -> None:
    model = AMFClassifier(**ENCODED).fit(X, LABELS)
    known = model.predict_proba(NEW)
    model.missing_values = "error"
    same(model.predict_proba(NEW), known)  # the forest is as it was begun
    same(model.predict_proba(NEW[:1]), known[:1])
    for rows in (slice(0, 1), slice(0, 5)):
        with pytest.raises(ParameterError, match="changed after the first rows"):
            model.partial_fit(X[rows], LABELS[rows])
    with pytest.raises(ValueError, match="NaN"):
        model.fit(X, LABELS)
    model.fit(np.nan_to_num(X), LABELS)
    assert model.forest_.parameters.n_features == 3


def test_on_the_cube_columns_are_checked_by_name() -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = MondrianForestRegressor(**ENCODED, domain="cube", lifetime=2.0).fit(frame, TARGETS)
    frame.loc[3, "b"] = 1.5
    with pytest.raises(DataError, match="'b'"):
        model.predict(frame)


def test_onnx_encodes_them() -> None:
    runtime = pytest.importorskip("onnxruntime")
    for kind in (AMFClassifier, AMFRegressor):
        model = kind(**ENCODED).fit(X, labels_of(kind))
        session = runtime.InferenceSession(to_onnx(model).SerializeToString())
        found = session.run(None, {"X": NEW})[-1]
        known = model.predict_proba(NEW) if kind is AMFClassifier else model.predict(NEW)[:, None]
        np.testing.assert_allclose(found, known, rtol=1e-6)


def test_what_does_not_go_with_them_is_refused(tmp_path: Path) -> None:
    import dask.array as da

    model = AMFClassifier(**ENCODED).fit(X[:, :2], LABELS)
    with pytest.raises(ParameterError, match="whether one is missing"):
        PartitionDisplay.from_estimator(model, X[:, :2])
    with pytest.raises(ParameterError, match="SHAP"):
        shap_trees(model)
    with pytest.raises(ParameterError, match="a run encodes missing values"):
        model._check_run()
    model.save(tmp_path / "m")
    with pytest.raises(ParameterError, match="encodes the rows"):
        predict(tmp_path / "m", da.from_array(X[:, :2]))
    one = MondrianForestClassifier(**ENCODED).fit(X[:, :1], LABELS)
    other = MondrianForestClassifier(**SMALL).fit(by_hand(X[:, :1]), LABELS)
    with pytest.raises(ParameterError, match="cannot be merged"):
        one.merge(other)


@parametrize_with_checks(
    [AMFClassifier(2, missing_values="encode"), AMFRegressor(2, missing_values="encode")],
    expected_failed_checks=lambda _: SHUFFLES_ROWS | SHUFFLES_SPARSE_ROWS,
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    assert estimator.__sklearn_tags__().input_tags.allow_nan
    check(estimator)
