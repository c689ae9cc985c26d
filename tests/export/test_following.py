"""Exports of forests that follow the stream answer as these do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmondrian import AMFClassifier, AMFRegressor, ParameterError
from dmondrian.export import partial_dependence, shap_trees, to_c, to_onnx
from tests.drift.streams import early_births, numbers, switching
from tests.export.test_c_source import built, compiled
from tests.export.test_onnx import answers

N = 700
EXPERTS = [("mondrian",), ("mondrian", "boosted"), ("mondrian", "boosted", "scaled")]
MOST = EXPERTS[-1]
ASKED = np.random.default_rng(5).uniform(-0.5, 1.5, (2000, 4)).astype(np.float32)


def fitted(n_classes: int, experts: tuple[str, ...] = MOST, n: int = N, **others: Any) -> Any:
    X, y = switching(n, n_classes) if n_classes else numbers(n)
    make: Any = AMFClassifier if n_classes else AMFRegressor
    settings = {"drift": "follow", "experts": experts, "random_state": 0, **others}
    names = np.array(["left", "middle", "right"])
    return make(5, **settings).fit(X, names[y] if n_classes else y)


@pytest.mark.parametrize("experts", EXPERTS)
@pytest.mark.parametrize("delay", [1, 100])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_are_those_of_the_forest(
    n_classes: int, delay: int, experts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    early_births(monkeypatch)
    forest = fitted(n_classes, experts, delay=delay)
    reported = answers(to_onnx(forest), {"X": ASKED})
    proba = forest.predict_proba(ASKED)
    np.testing.assert_allclose(reported["probabilities"], proba, rtol=1e-6)
    top = np.sort(proba, axis=1)
    is_clear = top[:, -1] - top[:, -2] > 1e-6
    assert is_clear.mean() > 0.99
    assert (reported["label"] == forest.predict(ASKED))[is_clear].all()


@pytest.mark.parametrize("experts", EXPERTS)
@pytest.mark.parametrize("delay", [1, 100])
def test_numbers_are_those_of_the_forest(
    delay: int, experts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    early_births(monkeypatch)
    forest = fitted(0, experts, delay=delay)
    reported = answers(to_onnx(forest), {"X": ASKED})["prediction"]
    np.testing.assert_allclose(reported[:, 0], forest.predict(ASKED), rtol=1e-6)


def test_few_rows_leave_inputs_without_trees() -> None:
    for n_classes in (0, 3):
        forest = fitted(n_classes, n=40)  # one octave, no set, no scaled trees
        reported = answers(to_onnx(forest), {"X": ASKED})
        wanted = forest.predict_proba(ASKED) if n_classes else forest.predict(ASKED)[:, None]
        found = reported["probabilities" if n_classes else "prediction"]
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_set_that_saw_one_class_has_no_trees() -> None:
    X, _ = switching(200)
    forest = AMFClassifier(3, drift="follow", experts=EXPERTS[1], random_state=0)
    forest.partial_fit(X, np.zeros(200, int), classes=[0, 1])
    found = answers(to_onnx(forest), {"X": ASKED})["probabilities"]
    np.testing.assert_allclose(found, forest.predict_proba(ASKED), rtol=1e-6)


def test_columns_that_the_forest_scales() -> None:
    X, y = switching(N)
    given = {"feature_scales": [0.3, 1.0, 3.7, 0.11], "random_state": 0}
    forest = AMFClassifier(5, drift="follow", experts=EXPERTS[1], **given).fit(X, y)
    found = answers(to_onnx(forest), {"X": ASKED})["probabilities"]
    np.testing.assert_allclose(found, forest.predict_proba(ASKED), rtol=1e-6)


@compiled
def test_numbers_in_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    early_births(monkeypatch)
    forest = fitted(0)
    ask = built(to_c(forest), tmp_path, 1)
    found, _ = ask(ASKED[:200])
    np.testing.assert_allclose(found[:, 0], forest.predict(ASKED[:200]), rtol=1e-12)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_shap_values_sum_to_the_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    from shap import TreeExplainer

    early_births(monkeypatch)
    forest = fitted(0)
    explained = TreeExplainer(shap_trees(forest), data=ASKED[:20].astype(np.float64))
    values = explained.shap_values(ASKED[:40].astype(np.float64)).reshape(40, 4)
    whole = values.sum(axis=1) + explained.expected_value
    np.testing.assert_allclose(whole, forest.predict(ASKED[:40]), rtol=1e-6)


def test_partial_dependence_of_all_columns_is_the_forecast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    early_births(monkeypatch)
    forest = fitted(0)
    found = partial_dependence(forest, [0, 1, 2, 3], ASKED[:50])
    np.testing.assert_allclose(found[:, 0], forest.predict(ASKED[:50]), rtol=1e-9)
    # Of one column it is between the least and the greatest forecast, as means over rows are.
    alone = partial_dependence(forest, [3], ASKED[:50, 3:])
    assert np.isfinite(alone).all()
    assert alone.std() > 0.1  # the newest labels depend on later columns


def test_classes_are_no_sum_over_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    early_births(monkeypatch)
    for export in (shap_trees, to_c):
        with pytest.raises(ParameterError, match="mixes logarithms"):
            export(fitted(2))


@pytest.mark.parametrize("n_classes", [0, 2])
def test_a_forest_without_rows_is_refused(n_classes: int) -> None:
    X, y = switching(5)
    make: Any = AMFClassifier if n_classes else AMFRegressor
    known = {"classes": [0, 1]} if n_classes else {}
    forest = make(2, drift="follow").partial_fit(X, y, sample_weight=np.zeros(5), **known)
    for export in (to_onnx,) if n_classes else (to_onnx, to_c, shap_trees):
        with pytest.raises(ParameterError, match="learned no row of positive weight"):
            export(forest)


def test_rows_are_those_that_the_exported_trees_know() -> None:
    forest = fitted(0, delay=100, n=330)
    assert forest.n_waiting_ == 30
    about = {entry.key: entry.value for entry in to_onnx(forest).metadata_props}
    assert about["rows_learned"] == "330"
    assert " 330 rows" in to_c(forest)


def test_a_forest_whose_rows_all_wait_is_refused() -> None:
    for n_classes in (0, 2):
        with pytest.warns(UserWarning, match="wait"):
            forest = fitted(n_classes, n=50, delay=100)
        with pytest.raises(ParameterError, match="wait"):
            to_onnx(forest)
