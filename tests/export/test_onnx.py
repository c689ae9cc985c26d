"""Exported models answer as the forests do, in a runtime that knows nothing of this package."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from sklearn.datasets import make_classification

import dmondrian
from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    ConvexLoss,
    GeneralizedMondrianForestClassifier,
    GeneralizedMondrianForestRegressor,
    MissingPackageError,
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
from dmondrian.ensemble.settings.loss_settings import BINARY, REGRESSION
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.export import to_c, to_onnx
from tests.cli.command import call, events

D = 6
SCALES = [0.3, 1.0, 2.0, 3.7, 0.11, 1.9]  # no powers of two: products and quotients round


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(4000, D, n_informative=5, n_redundant=0, n_classes=3, random_state=0)
    return X.astype(np.float32), y


@pytest.fixture(scope="module")
def asked() -> np.ndarray:
    return np.random.default_rng(1).normal(0.0, 2.0, (100_000, D)).astype(np.float32)


def answers(model, feed) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def check_labels(reported, wanted, proba) -> None:
    """Compare labels where the first two classes are apart, in float32."""
    top = np.sort(proba, axis=1)
    is_clear = top[:, -1] - top[:, -2] > 1e-6
    assert (reported == wanted)[is_clear].all()
    assert is_clear.mean() > 0.8


def test_probabilities_are_equal_to_the_last_bit_of_float32(rows, asked) -> None:
    forest = AMFClassifier(calibrate=False, random_state=0, feature_scales=SCALES).fit(*rows)
    reported = answers(to_onnx(forest), {"X": asked})
    proba = forest.predict_proba(asked)
    # Another order of additions decides where a sum lies half-way between two float32 numbers.
    assert (reported["probabilities"] != proba.astype(np.float32)).sum() <= 2
    np.testing.assert_allclose(reported["probabilities"], proba, rtol=2.0**-23, atol=0.0)
    check_labels(reported["label"], forest.predict(asked), proba)


def test_probabilities_that_are_mixed_with_their_powers(rows, asked) -> None:
    X, y = rows
    forest = AMFClassifier(random_state=0).fit(X[:40], y[:40])
    assert 0.0 < forest.calibration_weight_ < 1.0
    reported = answers(to_onnx(forest), {"X": asked[:2000]})
    proba = forest.predict_proba(asked[:2000])
    rounding = 2.0**-22 * (1.0 + forest.calibration_exponent_)
    np.testing.assert_allclose(reported["probabilities"], proba, rtol=rounding, atol=0.0)
    check_labels(reported["label"], forest.predict(asked[:2000]), proba)


def test_means_of_labels_are_equal_to_the_last_bit_of_float32(rows, asked) -> None:
    X, y = rows
    forest = AMFRegressor(random_state=0).fit(X, X[:, 0] * y + 1e3)
    reported = answers(to_onnx(forest), {"X": asked})["prediction"]
    mean = forest.predict(asked)
    assert (reported[:, 0] != mean.astype(np.float32)).sum() <= 2
    np.testing.assert_allclose(reported[:, 0], mean, rtol=2.0**-23, atol=0.0)


@pytest.mark.parametrize(
    "settings",
    [
        {"aggregation": "mean", "lifetime": 3.0},
        {"aggregation": "vote"},
        {"aggregation": "mean", "predict_extension": "leaf", "calibrate": True},
        pytest.param(
            {"aggregation": "hierarchy", "predict_extension": "leaf", "calibrate": True},
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["mean", "vote", "calibrated", "hierarchy, calibrated"],
)
def test_forests_with_a_lifetime_and_calibrated_ones(rows, asked, settings) -> None:
    X, y = rows
    names = np.array(["left", "middle", "right"])
    forest = MondrianForestClassifier(random_state=0, **settings).fit(X, names[y])
    reported = answers(to_onnx(forest), {"X": asked[:5000]})
    proba = forest.predict_proba(asked[:5000])
    # A power multiplies relative rounding by its exponent.
    rounding = 2.0**-22 * (1.0 + forest.calibration_exponent_)
    np.testing.assert_allclose(reported["probabilities"], proba, rtol=rounding, atol=1e-37)
    assert settings.get("calibrate", False) == (forest.calibration_exponent_ != 1.0)
    assert reported["label"].dtype == object
    check_labels(reported["label"], forest.predict(asked[:5000]), proba)


def test_a_gaussian_hierarchy_forecasts_its_mean(rows, asked) -> None:
    X, y = rows
    forest = MondrianForestRegressor(
        random_state=0, aggregation="hierarchy", predict_extension="leaf", lifetime=None
    ).fit(X, y)
    reported = answers(to_onnx(forest), {"X": asked[:5000]})["prediction"]
    np.testing.assert_allclose(reported[:, 0], forest.predict(asked[:5000]), rtol=2.0**-23)


@pytest.mark.parametrize("aggregation", ["mean", "vote"])
def test_online_random_forests_of_classes(rows, asked, aggregation) -> None:
    X, y = rows
    forest = OnlineRandomForestClassifier(random_state=0, aggregation=aggregation).fit(X, y)
    assert forest.forest_.n_nodes > 50
    reported = answers(to_onnx(forest), {"X": asked[:5000]})
    proba = forest.predict_proba(asked[:5000])
    assert len(np.unique(proba, axis=0)) > 20
    np.testing.assert_allclose(reported["probabilities"], proba, rtol=2.0**-23, atol=0.0)
    top = np.sort(proba, axis=1)
    is_clear = top[:, -1] - top[:, -2] > 1e-6  # votes of ten trees are often level
    assert (reported["label"] == forest.predict(asked[:5000]))[is_clear].all()
    assert is_clear.mean() > 0.5


def test_online_random_forests_of_numbers(rows, asked) -> None:
    X, _ = rows
    forest = OnlineRandomForestRegressor(random_state=0).fit(X, 10.0 * X[:, 0] + X[:, 1])
    reported = answers(to_onnx(forest), {"X": asked[:5000]})["prediction"]
    mean = forest.predict(asked[:5000])
    assert len(np.unique(mean)) > 20
    np.testing.assert_allclose(reported[:, 0], mean, rtol=2.0**-23, atol=1e-12)


def test_rows_that_the_forest_refuses_have_no_answer(rows) -> None:
    X, y = rows[0][:300, :2], rows[0][:300, 0]
    cases = (
        AMFClassifier(2, random_state=0).fit(X, y > y.mean()),
        AMFClassifier(2, random_state=0, missing_values="encode").fit(X, y > y.mean()),
        AMFRegressor(2, random_state=0, drift="follow").fit(X, y),
    )
    good, bad = X[:1], np.array([[np.inf, 0.0], [0.0, -np.inf], [np.nan, 0.0]], np.float32)
    for forest in cases:
        ask = forest.predict_proba if hasattr(forest, "classes_") else forest.predict
        found = answers(to_onnx(forest), {"X": np.concatenate([good, bad])})
        numbers = found["probabilities" if hasattr(forest, "classes_") else "prediction"]
        takes_nan = forest.missing_values == "encode"
        np.testing.assert_allclose(np.ravel(numbers[0]), np.ravel(ask(good)), rtol=1e-6)
        assert np.isnan(numbers[1:3]).all()
        assert np.isnan(numbers[3]).all() != takes_nan
        for row in bad[: 2 if takes_nan else 3]:
            with pytest.raises(ValueError):
                ask(row[None])


@pytest.mark.parametrize("loss", BINARY)
def test_binary_losses(rows, asked, loss) -> None:
    X, y = rows
    forest = GeneralizedMondrianForestClassifier(loss=loss, random_state=0, lifetime=4.0)
    forest.fit(X, y > 0)
    reported = answers(to_onnx(forest), {"X": asked[:5000]})
    decision = forest.decision_function(asked[:5000])
    np.testing.assert_allclose(reported["decision"][:, 0], decision, rtol=2.0**-23, atol=1e-12)
    is_clear = np.abs(decision) > 1e-7
    assert (reported["label"] == forest.predict(asked[:5000]))[is_clear].all()
    if loss == "hinge":
        assert "probabilities" not in reported
    else:
        proba = forest.predict_proba(asked[:5000])
        np.testing.assert_allclose(reported["probabilities"], proba, rtol=1e-6, atol=3e-7)


SETTINGS: dict[str, dict[str, Any]] = {
    "geometric": {"bound": 8.0},
    "quantile": {"quantile": [0.9, 0.1, 0.5], "lifetime": "penalized"},
}


@pytest.mark.parametrize("loss", REGRESSION)
def test_losses_of_numbers(rows, asked, loss) -> None:
    X, y = rows
    forest = GeneralizedMondrianForestRegressor(random_state=0, loss=loss, **SETTINGS.get(loss, {}))
    forest.fit(X, y + 1.0)
    reported = answers(to_onnx(forest), {"X": asked[:5000]})["prediction"]
    mean = forest.predict(asked[:5000]).reshape(reported.shape)
    np.testing.assert_allclose(reported, mean, rtol=2e-6, atol=1e-37)


def test_a_loss_whose_response_is_not_known_is_refused(rows, monkeypatch) -> None:
    """A new one, that is, which nobody wrote into the exports."""
    X, y = rows
    forest = GeneralizedMondrianForestRegressor(1, random_state=0).fit(X[:50], y[:50])
    new = dataclasses.replace(forest.forest_.parameters.cost, loss="novel")
    monkeypatch.setattr(ForestParameters, "cost", new)
    for export in (to_onnx, to_c):
        with pytest.raises(ParameterError, match="'novel': this export does not know the response"):
            export(forest)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: AMFClassifier(predict_extension="expected"), "vary within a leaf"),
        (lambda: MondrianForestClassifier(aggregation="hierarchy"), "vary within a leaf"),
        (lambda: AMFClassifier(domain="cube", clip=True, calibrate=False), "no list of leaves"),
        (
            lambda: GeneralizedMondrianForestRegressor(
                loss=ConvexLoss(lambda z, y: (z - y) ** 2, lambda z, y: 2.0 * (z - y))
            ),
            "a Python function",
        ),
        (lambda: MondrianKernelRegressor(lifetime=1.0), "the Mondrian kernel finds"),
        (lambda: MondrianKernelClassifier(lifetime=1.0), "the Mondrian kernel finds"),
    ],
)
def test_what_is_no_tree_ensemble_is_refused_with_the_reason(rows, make, reason) -> None:
    X, y = rows
    forest = make().set_params(random_state=0, n_estimators=1).fit(X[:300], y[:300])
    with pytest.raises(ParameterError, match=reason):
        to_onnx(forest)


def test_a_cost_of_ones_own_is_refused_with_the_reason(rows) -> None:
    X, y = rows
    cost = ConvexLoss(lambda z, y: (1.0 - y * z) ** 2, lambda z, y: -2.0 * y * (1.0 - y * z))
    forest = GeneralizedMondrianForestClassifier(1, loss=cost, random_state=0)
    with pytest.raises(ParameterError, match="a Python function"):
        to_onnx(forest.fit(X[:300], y[:300] > 0))


def test_what_has_no_labels_is_refused_with_the_reason(rows) -> None:
    X = rows[0][:300]
    with pytest.raises(ParameterError, match="the Mondrian kernel finds"):
        to_onnx(MondrianFeatures(2, random_state=0).fit(X))
    density = MondrianDensity(n_estimators=1, clip=True, random_state=0).fit(X)
    with pytest.raises(ParameterError, match="a density divides"):
        to_onnx(density)


def test_a_forest_beyond_the_largest_file_is_refused(rows, monkeypatch) -> None:
    forest = AMFClassifier(n_estimators=2, random_state=0).fit(rows[0][:300], rows[1][:300])
    reported = len(to_onnx(forest).SerializeToString())
    monkeypatch.setattr("dmondrian.export.onnx_trees.LARGEST_FILE", reported - 1)
    with pytest.raises(ParameterError, match=r"holds 2\.1 GB"):
        to_onnx(forest)


def test_without_onnx_the_extra_is_named(rows, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingPackageError, match=r"dmondrian\[onnx\]"):
        to_onnx(AMFClassifier())


def test_the_command_writes_a_file_or_explains_why_not(rows, tmp_path: Path) -> None:
    forest = AMFClassifier(n_estimators=2, calibrate=False, random_state=0)
    forest.fit(rows[0][:300], rows[1][:300])
    forest.save(tmp_path / "model")
    file = tmp_path / "forest.onnx"
    stdout, _ = call("export", tmp_path / "model", "--to", "onnx", "-o", file, "--json")
    (reported,) = events(stdout)
    assert (reported["inputs"], reported["outputs"]) == (["X"], ["label", "probabilities"])
    assert reported["bytes"] == file.stat().st_size
    session = onnxruntime.InferenceSession(file)
    about = session.get_modelmeta().custom_metadata_map
    assert "not part of this model" in about["inputs"]
    assert about["dmondrian"] == dmondrian.__version__
    assert json.loads(about.get("feature_names", "null")) is None
    reported = session.run(["probabilities"], {"X": rows[0]})[0]
    assert (reported == forest.predict_proba(rows[0]).astype(np.float32)).mean() > 0.9999
    _, stderr = call("export", tmp_path / "model", "-o", tmp_path / "none" / "x.onnx", code=2)
    assert "there is no folder" in stderr
    _, stderr = call("export", tmp_path / "model", "--to", "onnx", "-o", tmp_path, code=2)
    assert "cannot be written (Is a directory)" in stderr
    for name, ending in (("forest.h", "'.h'"), ("forest", "no ending")):
        _, stderr = call("export", tmp_path / "model", "-o", tmp_path / name, code=2)
        assert f"expected a file that ends in .onnx or .c, got {ending}; rename it" in stderr
        assert not (tmp_path / name).exists()
    call("export", tmp_path / "model", "--to", "c", "-o", tmp_path / "forest.h")
    assert "forest_predict" in (tmp_path / "forest.h").read_text()
    call("export", tmp_path / "model", "-o", tmp_path / "FOREST.ONNX")
    assert (tmp_path / "FOREST.ONNX").read_bytes() == file.read_bytes()
