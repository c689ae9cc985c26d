"""C source of forests, compiled: it answers as the forests do."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestClassifier,
    GeneralizedMondrianForestRegressor,
    MondrianForestClassifier,
    MondrianKernelRegressor,
    OnlineRandomForestClassifier,
    ParameterError,
)
from dmondrian.ensemble.settings.loss_settings import BINARY, REGRESSION
from dmondrian.export import to_c
from tests.cli.command import call, events

COMPILER = shutil.which("gcc") or shutil.which("cc")
STRICT = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
Ask = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

compiled = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_breast_cancer(return_X_y=True)
    return X.astype(np.float32), y


@pytest.fixture(scope="module")
def numbers() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_diabetes(return_X_y=True)
    return X.astype(np.float32), y


def built(source: str, folder: Path, n_outputs: int, name: str = "forest") -> Ask:
    """Compile a source; return a function of rows that gives their outputs and numbers."""
    assert COMPILER is not None
    (folder / "it.c").write_text(source)
    library = folder / "it.so"
    command = [COMPILER, *STRICT, "-O1", "-shared", "-fPIC", "it.c", "-o", str(library), "-lm"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    predict = getattr(ctypes.CDLL(str(library)), f"{name}_predict")
    predict.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    def ask(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        X = np.ascontiguousarray(X, np.float32)
        out = np.full((len(X), n_outputs + 1), -7.0)  # the last shows what is written beyond
        numbers = [predict(x.ctypes.data, o.ctypes.data) for x, o in zip(X, out, strict=True)]
        assert (out[:, -1] == -7.0).all()
        return out[:, :-1], np.array(numbers)

    return ask


def spread(X: np.ndarray, n: int = 3000) -> np.ndarray:
    """Return rows between and beyond those of X."""
    rng = np.random.default_rng(1)
    return (X[rng.integers(len(X), size=n)] * rng.normal(1.0, 0.3, (n, X.shape[1]))).astype("f4")


@compiled
@pytest.mark.parametrize(
    "make",
    [
        lambda: AMFClassifier(calibrate=False, random_state=0),
        lambda: MondrianForestClassifier(random_state=0, aggregation="mean", lifetime=3.0),
        lambda: OnlineRandomForestClassifier(random_state=0),
    ],
    ids=["amf", "mean", "online"],
)
def test_probabilities_and_classes_are_equal_to_the_last_bit(rows, make, tmp_path) -> None:
    X, y = rows
    names = np.array(['"no"\n*/', "ja, natürlich??/"])
    forest = make().fit(X, names[y])
    source = to_c(forest, name="of_cells")
    asked = np.concatenate([X, spread(X)])
    out, classes = built(source, tmp_path, 2, "of_cells")(asked)
    assert (out == forest.predict_proba(asked)).all()
    assert (forest.classes_[classes] == forest.predict(asked)).all()
    assert len(np.unique(out[:, 0])) > 10
    library = ctypes.CDLL(str(tmp_path / "it.so"))
    labels = (ctypes.c_char_p * 2).in_dll(library, "of_cells_classes")
    assert [label.decode() for label in labels if label] == list(forest.classes_)


@compiled
def test_means_of_labels_are_equal_to_the_last_bit(numbers, tmp_path) -> None:
    X, y = numbers
    forest = AMFRegressor(random_state=0, feature_scales=[0.3, 1.7] * 5).fit(X, y)
    asked = np.concatenate([X, spread(X)])
    out, classes = built(to_c(forest), tmp_path, 1)(asked)
    assert (out[:, 0] == forest.predict(asked)).all()
    assert not classes.any()


@compiled
def test_a_missing_number_is_encoded_and_else_refused(rows, tmp_path) -> None:
    X, y = rows
    holes = X.copy()
    holes[np.random.default_rng(2).random(X.shape) < 0.1] = np.nan
    forest = AMFClassifier(calibrate=False, random_state=0, missing_values="encode").fit(holes, y)
    (tmp_path / "holes").mkdir()
    ask = built(to_c(forest), tmp_path / "holes", 2)
    out, _ = ask(holes)
    assert (out == forest.predict_proba(holes)).all()
    strict = built(to_c(AMFClassifier(random_state=0).fit(X, y)), tmp_path, 2)
    for asked, value in ((ask, np.inf), (strict, np.nan), (strict, -np.inf)):
        row = X[:1].copy()
        row[0, -1] = value
        out, classes = asked(row)
        assert classes.tolist() == [-1]
        assert (out == -7.0).all()


@compiled
def test_calibrated_probabilities_are_near_as_is_promised(rows, tmp_path) -> None:
    X, y = rows
    forest = MondrianForestClassifier(
        random_state=0, aggregation="mean", predict_extension="leaf", calibrate=True
    ).fit(X, y)
    assert forest.calibration_exponent_ != 1.0
    asked = spread(X)
    out, _ = built(to_c(forest), tmp_path, 2)(asked)
    np.testing.assert_allclose(out, forest.predict_proba(asked), rtol=1e-12, atol=0.0)


@compiled
def test_probabilities_that_are_mixed_with_their_powers_are_as_near(rows, tmp_path) -> None:
    X, y = rows
    forest = AMFClassifier(random_state=0).fit(X[:40], y[:40])
    assert 0.0 < forest.calibration_weight_ < 1.0
    asked = spread(X, 500)
    out, classes = built(to_c(forest), tmp_path, 2)(asked)
    np.testing.assert_allclose(out, forest.predict_proba(asked), rtol=1e-12, atol=0.0)
    assert (classes == forest.predict(asked)).all()


@compiled
@pytest.mark.parametrize("loss", BINARY)
def test_losses_of_two_classes(rows, loss, tmp_path) -> None:
    X, y = rows
    forest = GeneralizedMondrianForestClassifier(3, loss=loss, random_state=0, lifetime=1.0)
    forest.fit(X, y)
    asked = spread(X, 500)
    is_hinge = loss == "hinge"
    out, classes = built(to_c(forest), tmp_path, 1 if is_hinge else 2)(asked)
    assert (classes == forest.predict(asked)).all()
    wanted = forest.decision_function(asked)[:, None] if is_hinge else forest.predict_proba(asked)
    np.testing.assert_allclose(out, wanted, rtol=1e-12, atol=1e-15)


SETTINGS: dict[str, dict[str, Any]] = {
    "geometric": {"bound": 8.0},
    "quantile": {"quantile": [0.9, 0.1, 0.5]},
}


@compiled
@pytest.mark.parametrize("loss", REGRESSION)
def test_losses_of_numbers(numbers, loss, tmp_path) -> None:
    X, y = numbers
    forest = GeneralizedMondrianForestRegressor(
        3, random_state=0, loss=loss, **SETTINGS.get(loss, {})
    )
    forest.fit(X, np.round(y / 50.0) + 1.0)
    asked = spread(X, 500)
    wanted = forest.predict(asked).reshape(len(asked), -1)
    out, _ = built(to_c(forest), tmp_path, wanted.shape[1])(asked)
    np.testing.assert_allclose(out, wanted, rtol=1e-12, atol=0.0)


def test_what_the_source_cannot_hold_is_refused(rows, monkeypatch) -> None:
    X, y = rows
    with pytest.raises(ParameterError, match="vary within a leaf"):
        to_c(AMFClassifier(1, predict_extension="expected").fit(X, y))
    with pytest.raises(ParameterError, match="the Mondrian kernel finds"):
        to_c(MondrianKernelRegressor(1, lifetime=1.0).fit(X[:100], y[:100]))
    forest = AMFClassifier(1, random_state=0).fit(X, y)
    for name in ("2nd", "a-b", "é", ""):
        with pytest.raises(ParameterError, match="as names in C are"):
            to_c(forest, name=name)
    for label in ("a\0b", "\ud800"):
        named = AMFClassifier(1, random_state=0).fit(X, np.where(y, label, "b"))
        with pytest.raises(ParameterError, match="is no text of C"):
            to_c(named)
    monkeypatch.setattr("dmondrian.export.c_source.LARGEST_FILE", len(to_c(forest)) // 2)
    with pytest.raises(ParameterError, match="compilers need many times that"):
        to_c(forest)


def test_a_node_takes_no_more_text_than_is_counted() -> None:
    X = (np.random.default_rng(0).normal(size=(500, 100)) * 1e-30).astype(np.float32)
    forest = AMFRegressor(2, random_state=0).fit(X, np.random.default_rng(1).normal(size=500))
    source = to_c(forest)
    n_leaves = source.count("{-1,")
    assert len(source) < 32 * (2 * n_leaves) + 24 * n_leaves + 1500


@compiled
def test_the_command_writes_source_and_replaces_no_other_file(rows, tmp_path: Path) -> None:
    X, y = rows
    forest = AMFClassifier(2, calibrate=False, random_state=0).fit(X, y)
    forest.save(tmp_path / "model")
    file = tmp_path / "forest.c"
    for _ in range(2):  # its own file is replaced
        stdout, _ = call("export", tmp_path / "model", "-o", file, "--json")
    (reported,) = events(stdout)
    assert reported["bytes"] == file.stat().st_size
    out, _ = built(file.read_text(), tmp_path, 2)(X)
    assert (out == forest.predict_proba(X)).all()
    file.write_text("int main(void) { return 0; }\n")
    _, stderr = call("export", tmp_path / "model", "--to", "c", "-o", file, code=2)
    assert "is not a forest as C source" in stderr
