"""Merged forests are the forest that learned all rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.forest.merge import merge
from dmondrian.tree.invariants import check
from tests.reference.cases import Case, numbers
from tests.reference.kernel import arrays_of, parameters_of
from tests.reference.test_cube import assert_same_cells, cube_case, preorder, reference_of
from tests.reference.test_lifetime import changes


def parts_of(case: Case, regression: bool, n_parts: int, **more: object) -> list[Forest]:
    """Return forests that learned every n-th row each."""
    forests = []
    for part in range(n_parts):
        forest = Forest(parameters_of(case, regression, **more), [case.tree])
        w = None if case.w is None else case.w[part::n_parts]
        forest.update(case.X[part::n_parts], case.y[part::n_parts], w)
        forests.append(forest)
    return forests


def whole_weights(number: int, regression: bool = False) -> Case:
    case = cube_case(number, regression)
    return dataclasses.replace(case, w=None if case.w is None else np.ceil(case.w))


@pytest.mark.parametrize("number", numbers(40, 2))
@pytest.mark.parametrize("n_parts", [2, 5])
@pytest.mark.parametrize("lifetime", [None, 2.0])
def test_counts_are_those_of_all_rows(number: int, n_parts: int, lifetime: float | None) -> None:
    case = whole_weights(number)
    more = changes(False, domain="cube", lifetime=lifetime)
    (whole,) = parts_of(case, False, 1, **more)
    merged = merge(parts_of(case, False, n_parts, **more))
    assert_same_cells(merged, reference_of(case, False, lifetime or np.inf))
    assert merged.total_weight == whole.total_weight
    a, b = arrays_of(whole)[0], arrays_of(merged)[0]
    for name in ("time", "feature", "threshold", "stat", "lower", "upper"):
        assert a[name][preorder(whole)].tobytes() == b[name][preorder(merged)].tobytes(), name
    for tree in merged.trees:
        check(tree, paused=lifetime is not None, may_be_empty=True)
    queries = np.random.default_rng(number).random((9, case.X.shape[1])).astype(np.float32)
    assert (
        merged.predict_sums(queries).total.tobytes() == whole.predict_sums(queries).total.tobytes()
    )


@pytest.mark.parametrize("number", range(0, 40, 4))
def test_sums_are_those_of_all_rows(number: int) -> None:
    case = whole_weights(number, regression=True)
    more = changes(True, "hierarchy", domain="cube")
    (whole,) = parts_of(case, True, 1, **more)
    merged = merge(parts_of(case, True, 3, **more))
    queries = np.random.default_rng(number).random((9, case.X.shape[1])).astype(np.float32)
    a, b = (f.predict_sums(queries, spread=True) for f in (whole, merged))
    np.testing.assert_allclose(a.total, b.total, rtol=1e-9, atol=1e-9)
    assert a.square is not None
    assert b.square is not None
    np.testing.assert_allclose(a.square, b.square, rtol=1e-9, atol=1e-9)


def test_parts_are_left_as_they_were_and_go_on() -> None:
    case = whole_weights(1)
    parts = parts_of(case, False, 2, **changes(False, domain="cube"))
    before = arrays_of(parts[0])[0]
    merged = merge(parts)
    merged.update(case.X, case.y)
    for name, array in arrays_of(parts[0])[0].items():
        assert array.tobytes() == before[name].tobytes()
    w = 1.0 + (np.ones(len(case.X)) if case.w is None else case.w)
    assert_same_cells(merged, reference_of(dataclasses.replace(case, w=w), False))


def test_what_cannot_be_merged_is_refused() -> None:
    case = whole_weights(2)
    cube = changes(False, domain="cube")
    forest = Forest(parameters_of(case, **cube), [0])
    for bad in (
        Forest(parameters_of(case, **changes(False)), [0]),
        Forest(parameters_of(case, **(cube | {"max_nodes": 9})), [0]),
        Forest(parameters_of(case, domain="cube"), [0]),
    ):
        with pytest.raises(ParameterError, match="can be merged"):
            merge([bad, bad])
    for other in (
        Forest(parameters_of(case, **cube), [1]),
        Forest(parameters_of(case, **(cube | {"lifetime": 2.0})), [0]),
    ):
        with pytest.raises(ParameterError, match="different"):
            merge([forest, other])
    with pytest.raises(ParameterError, match="nothing"):
        merge([])


@pytest.mark.parametrize("number", [9, 12, 16])
def test_merged_trees_write_their_boxes_alike(number: int) -> None:
    """Where one tree's boxes tell of a third value of a column that another's do not tell of."""
    rng = np.random.default_rng(number)
    X = rng.integers(0, 3, (24, 8)).astype(np.float32) / 2
    X[:, :4] = np.round(X[:, :4])
    y = (X[:, 2] + X[:, 3] > 1.0).astype(np.float64)
    parameters = ForestParameters(
        algorithm="mondrian-forest-classifier", n_features=8, n_classes=2, seed=5, domain="cube",
        aggregation="mean", lifetime=0.3,
    )  # fmt: skip
    forests = [Forest(parameters, range(3)) for _ in range(3)]
    for forest, rows in zip(forests, (slice(12), slice(12, 24), slice(24)), strict=True):
        forest.update(X[rows], y[rows])
    merged, whole = merge(forests[:2]), forests[2]
    assert len({tree.columns.binary.tobytes() for tree in merged.trees}) == 1
    for forest in (merged, whole):
        forest.update(X[::-1].copy(), y)
    found, expected = (one.predict_sums(X, distance=True) for one in (merged, whole))
    assert found.total.tobytes() == expected.total.tobytes()
    assert found.distance is not None
    assert expected.distance is not None
    assert found.distance.tobytes() == expected.distance.tobytes()
