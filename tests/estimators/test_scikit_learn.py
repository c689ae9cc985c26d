"""scikit-learn's estimator contract, and the parts of it that its checks do not run."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

import dmondrian
from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestClassifier,
    MondrianDensity,
    MondrianFeatures,
    MondrianForestClassifier,
)
from dmondrian.estimators import ALGORITHMS

# An online learner depends on the order of its rows, and this check shuffles the repeated
# rows against the weighted ones. In fixed order weights equal repeats, to the byte:
# tests/reference and test_whole_weights_equal_repeats below.
SHUFFLED = "rows are shuffled between the two fits"
SHUFFLES_ROWS = {"check_sample_weight_equivalence_on_dense_data": SHUFFLED}
SHUFFLES_SPARSE_ROWS = {"check_sample_weight_equivalence_on_sparse_data": SHUFFLED}
# Each row of the check's noise is in a cell of its own, which has one class, whatever it weighs.
GROWN_OUT = {
    "check_class_weight_classifiers": "means of trees that are grown until no cell has two classes"
}
UNORDERED = MondrianDensity, MondrianFeatures  # have no weights, or cells of the cube
MEANS_OF_LEAVES = GeneralizedMondrianForestClassifier, MondrianForestClassifier


def takes_sparse_rows(estimator: Any) -> bool:
    """Whether scikit-learn's check of sparse rows has weights of rows in an order."""
    return not isinstance(estimator, UNORDERED) and get_tags(estimator).input_tags.sparse


def small(kind: type) -> Any:
    """Return an estimator of few trees, where that changes no outcome of the checks."""
    estimator = kind(clip=True) if kind is MondrianDensity else kind()
    if kind is GeneralizedMondrianForestClassifier:  # with which three trees agree by chance
        return estimator
    size = "n_components" if kind is MondrianFeatures else "n_estimators"
    return estimator.set_params(**{size: 3})


@parametrize_with_checks(
    [
        *(small(kind) for kind in ALGORITHMS.values()),
        AMFClassifier(2, drift="follow"),
        AMFRegressor(2, drift="follow"),
    ],
    expected_failed_checks=lambda e: {
        **({} if isinstance(e, UNORDERED) else SHUFFLES_ROWS),
        **(SHUFFLES_SPARSE_ROWS if takes_sparse_rows(e) else {}),
        **(GROWN_OUT if isinstance(e, MEANS_OF_LEAVES) else {}),
    },
)
def test_scikit_learn_checks(estimator, check) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def classes() -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(400, 6, n_informative=4, n_classes=3, random_state=0)
    return MinMaxScaler().fit_transform(X), y


def test_feature_names_are_checked_in_fit_and_partial_fit(classes) -> None:
    X, y = classes
    frame = pd.DataFrame(X, columns=list("abcdef"))
    forest = AMFClassifier(random_state=0).fit(frame, y)
    assert forest.feature_names_in_.tolist() == list("abcdef")
    forest.partial_fit(frame, y)
    with pytest.raises(ValueError, match="feature names should match"):
        forest.partial_fit(frame[list("fedcba")], y)
    with pytest.raises(ValueError, match="feature names should match"):
        forest.predict(frame.rename(columns={"a": "z"}))


@pytest.mark.parametrize("parameter", ["alpha", "learning_rate", "n_estimators", "max_nodes"])
@pytest.mark.parametrize("value", [-1, 0, "much", [1]])
def test_parameters_are_constrained(classes, parameter, value) -> None:
    with pytest.raises(ValueError, match=parameter):
        AMFClassifier(**{parameter: value}).fit(*classes)


def test_grid_search_and_pipeline(classes) -> None:
    X, y = classes
    pipe = make_pipeline(MinMaxScaler(), AMFClassifier(n_estimators=3, random_state=0))
    search = GridSearchCV(pipe, {"amfclassifier__alpha": [0.05, 0.5]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.6


def test_a_saved_model_keeps_labels_and_names(classes, tmp_path) -> None:
    X, y = classes
    labels = np.array(["no", "perhaps", "yes"])[y]
    forest = AMFClassifier(n_estimators=2, random_state=0)
    forest.fit(pd.DataFrame(X, columns=list("abcdef")), labels).save(tmp_path / "m")
    loaded = dmondrian.load(tmp_path / "m")
    assert loaded.classes_.tolist() == ["no", "perhaps", "yes"]
    assert loaded.feature_names_in_.tolist() == list("abcdef")
    assert loaded.get_params() == forest.get_params()


@pytest.mark.parametrize(
    ("code", "bad"),
    [
        # scikit-learn itself loads pandas and with it pyarrow, where they are installed.
        (
            "import dmondrian; dmondrian.AMFClassifier",
            "dask distributed obstore dmondrian.checkpoint dmondrian.data dmondrian.store "
            "dmondrian.distributed sklearn.metrics",
        ),
        # what worker processes import before their first step, and what they never need
        (
            "import dmondrian.distributed",
            "sklearn pandas scipy.stats dmondrian.estimators tqdm tomli_w trustme narwhals",
        ),
        (
            "import dmondrian, dmondrian.cli",
            "sklearn numba numpy dask pyarrow jinja2 tqdm tomli_w trustme",
        ),
        (
            "from contextlib import suppress; from dmondrian.cli import main\n"
            "with suppress(SystemExit): main(['--help'])\n"
            "pass",
            "sklearn numba numpy dask pyarrow jinja2 tqdm tomli_w trustme",
        ),
    ],
)
def test_imports_load_only_what_is_used(code: str, bad: str) -> None:
    check = f"; import sys; found = set({bad!r}.split()) & set(sys.modules); sys.exit(str(found))"
    done = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True)
    assert done.stderr.strip() == "set()"


def test_an_import_looks_for_no_garbage_and_leaves_the_rest_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = (
        "import gc; import dmondrian; found = []; "
        "gc.callbacks.append(lambda when, about: found.append(about)); "
        "kind = dmondrian.AMFClassifier; gc.callbacks.clear(); import sys; "
        "sys.exit(0 if gc.isenabled() and len(found) < 3 else str(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    monkeypatch.setitem(dmondrian._LAZY, "Nothing", "dmondrian.nowhere")
    for collects in (True, False):
        (gc.enable if collects else gc.disable)()
        try:
            with pytest.raises(ModuleNotFoundError):
                dmondrian.Nothing  # noqa: B018
            assert gc.isenabled() == collects
        finally:
            gc.enable()


def test_the_lazy_package_has_all_its_names() -> None:
    space: dict[str, object] = {}
    exec("from dmondrian import *", space)
    assert {*dmondrian.__all__} <= {*space} & {*dir(dmondrian)}
    assert space["AMFClassifier"] is ALGORITHMS["amf-classifier"]
    assert not hasattr(dmondrian, "AMFClasifier")
