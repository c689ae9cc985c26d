"""Forests that are read to be asked alone have no boxes, and the same predictions."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestRegressor,
    MondrianDensity,
    MondrianForestClassifier,
    MondrianForestRegressor,
    MondrianKernelRegressor,
    OnlineRandomForestClassifier,
)
from dmondrian.checkpoint import load_trees
from dmondrian.checkpoint.codec import decode_blob, encode_forest
from dmondrian.checkpoint.model import look_at_model
from dmondrian.checkpoint.stored_trees import peek_blobs
from dmondrian.distributed.scoring.memory_plan import memory_of
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.forest import forest as of_forests
from dmondrian.forest.forest import Forest
from dmondrian.forest.state import BOXES
from dmondrian.tree.box_encoding_choice import alike

LEAFWISE: dict[str, Any] = {
    "amf-classifier": AMFClassifier(3),
    "amf-regressor": AMFRegressor(3),
    "mondrian-forest-classifier": MondrianForestClassifier(3, predict_extension="leaf"),
    "mondrian-forest-regressor": MondrianForestRegressor(3, predict_extension="leaf"),
    "generalized": GeneralizedMondrianForestRegressor(3, loss="quantile", quantile=[0.2, 0.7]),
}
OTHERS: dict[str, Any] = {
    "extension": AMFClassifier(3, predict_extension="expected"),
    "cube": AMFClassifier(3, domain="cube"),
    "following": AMFClassifier(3, drift="follow"),
    "density": MondrianDensity(3),
    "kernel": MondrianKernelRegressor(3, lifetime=2.0),
    "no boxes": OnlineRandomForestClassifier(3),
}


def fitted(estimator: Any, n: int = 400) -> Any:
    rng = np.random.default_rng(0)
    X = rng.random((n, 6)).astype(np.float32)
    X[:, 2], X[:, 3] = X[:, 2] > 0.5, np.round(3.0 * X[:, 3]) / 3.0
    if isinstance(estimator, MondrianDensity):
        return estimator.set_params(random_state=0).fit(X)
    is_classifier = hasattr(estimator, "predict_proba")
    y = (X[:, 0] > X[:, 1]).astype(int) if is_classifier else X[:, 0] - X[:, 1]
    return estimator.set_params(random_state=0).fit(X, y)


def asked(n: int) -> np.ndarray:
    return np.random.default_rng(1).random((n, 6)).astype(np.float32) * 1.4 - 0.2


@pytest.mark.parametrize("name", LEAFWISE)
@pytest.mark.parametrize("is_sparse", [False, True])
def test_predictions_are_those_of_the_whole_forest(
    name: str, is_sparse: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_sparse:
        monkeypatch.setattr(of_forests, "LEAST_SPARSE", 1)
    estimator = fitted(LEAFWISE[name])
    estimator.save(tmp_path / "model")
    blobs, _, _ = look_at_model(tmp_path / "model")
    whole, boxless = load_trees(blobs), load_trees(blobs, with_boxes=False)
    assert whole.parameters.predicts_without_boxes
    for n in (1, 2, 700):
        found = [forest.predict_sums(asked(n), spread=True) for forest in (whole, boxless)]
        assert found[0].total.tobytes() == found[1].total.tobytes()
        assert found[0].square is not None
        assert found[0].square.tobytes() == found[1].square.tobytes()  # type: ignore[union-attr]  # asked for
    assert boxless.n_bytes < whole.n_bytes
    (contents,) = peek_blobs(blobs)
    assert sum(contents.sizes) - sum(contents.boxless_sizes) == 2 * 4 * 6 * contents.n_nodes
    before = boxless.predict_sums(asked(5)).total
    for use in (
        lambda: boxless.update(asked(3), np.zeros(3)),
        lambda: boxless.predict_sums(asked(3), distance=True),
        boxless.state,
        boxless.stored,
    ):
        with pytest.raises(ParameterError, match=r"without their boxes.*load the forest anew"):
            use()
    assert boxless.predict_sums(asked(5)).total.tobytes() == before.tobytes()


MOST_OF_ARROW = """
import sys
import pyarrow
from dmondrian.checkpoint import load_trees
from dmondrian.checkpoint.model import look_at_model
load_trees(look_at_model(sys.argv[1])[0], with_boxes=False)
print(pyarrow.default_memory_pool().max_memory())
"""


@pytest.mark.parametrize("n_estimators", [1, 4])
def test_columns_that_are_decoded_are_planned_for(n_estimators: int, tmp_path: Path) -> None:
    X = np.random.default_rng(0).random((6000, 60)).astype(np.float32)
    estimator = AMFClassifier(n_estimators, random_state=0).fit(X, np.arange(6000) % 2)
    estimator.save(tmp_path / "model")
    (blob,), _, _ = look_at_model(tmp_path / "model")
    (contents,) = peek_blobs([blob])
    planned = memory_of(blob, contents.boxless_sizes, contents.sizes, is_in_turn=True)
    found = subprocess.run(
        [sys.executable, "-c", MOST_OF_ARROW, tmp_path / "model"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert planned.loading >= blob.n_bytes + int(found.stdout) + max(contents.boxless_sizes)
    assert planned.held < 2 * sum(contents.boxless_sizes)


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_read_whole(name: str) -> None:
    assert not fitted(OTHERS[name], 100).forest_.parameters.predicts_without_boxes


def test_boxes_that_should_be_there_are_missed() -> None:
    header, trees = fitted(AMFClassifier(3)).forest_.state()
    without = [{k: v for k, v in tree.items() if k not in BOXES} for tree in trees]
    with pytest.raises(CorruptError, match="should have the fields"):
        Forest.from_state(header, without)
    with pytest.raises(CorruptError, match="should have the fields"):
        Forest.from_state(header, trees, with_boxes=False)


class _InTurn:
    """Trees of which each has to be gone two trees later."""

    def __init__(self, trees: list[dict[str, np.ndarray]]) -> None:
        self._trees, self._taken = trees, list[weakref.ref[np.ndarray]]()

    def __len__(self) -> int:
        return len(self._trees)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for tree in self._trees:
            assert all(taken() is None for taken in self._taken[:-1])
            fields = {name: field.copy() for name, field in tree.items()}
            self._taken.append(weakref.ref(fields["stat"]))
            yield fields


def test_a_forest_is_made_of_its_trees_one_after_the_other() -> None:
    forest = fitted(AMFClassifier(6)).forest_
    header, trees = forest.state()
    made = Forest.from_state(header, _InTurn(trees))
    assert encode_forest(*made.state()) == encode_forest(*forest.state())
    found = decode_blob(encode_forest(*forest.state()), name="it")
    assert len(found.trees) == len(list(found.trees)) == 6
    assert list(found.trees) == []  # one iteration


def test_a_tree_that_needs_other_boxes_has_all_written_anew() -> None:
    """Values in between are seen by the last tree alone, as of rows that others weigh with 0."""
    X = np.zeros((40, 2), np.float32)
    X[:, 0] = np.arange(40) % 2
    X[:, 1] = np.arange(40)
    y = (np.arange(40) % 3 == 0).astype(int)
    plain = AMFClassifier(3, random_state=0, feature_scales=None, feature_units=None)
    header, trees = plain.fit(X, y).forest_.state()
    lower = trees[-1]["lower"]
    leaf = int(np.flatnonzero(trees[-1]["left"] < 0)[0])
    lower[leaf, 0] = trees[-1]["upper"][leaf, 0] = np.float32(1e-7 * np.pi)
    entries = header["trees"]
    first = Forest.from_state({**header, "trees": entries[:1]}, trees[:1])
    expected = [{name: field.copy() for name, field in tree.items()} for tree in trees]
    made = Forest.from_state(header, trees)
    assert (len(first.trees[0].columns.numeric), len(made.trees[0].columns.numeric)) == (0, 1)
    assert alike(made.trees)
    for tree, its in zip(made.state()[1], expected, strict=True):
        assert {name: field.tobytes() for name, field in tree.items()} == {
            name: field.tobytes() for name, field in its.items()
        }
