"""Every fault of stored nodes is found, and none that is not there: kernels beside plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.forest import state
from dmondrian.forest.forest import Forest

D, ROUNDS = 4, 1500
HOSTILE: dict[str, list[Any]] = {
    "left": [-2, -1, 0, 1, 2**31 - 1, -(2**31), "m", "other"],
    "right": [-2, -1, 0, 1, 2**31 - 1, "m", "other"],
    "parent": [-2, -1, 0, 2**31 - 1, "m", "other"],
    "feature": [-2, -1, 0, D - 1, D, 2**31 - 1],
    "time": [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e-300, 1e300, "other"],
    "lower": [np.nan, np.inf, -np.inf, 3.4e38, "other"],
    "upper": [np.nan, np.inf, -np.inf, -3.4e38, "other"],
    "stat": [np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, 1e308, 1.0, "other"],
}


def wrong_links(entry: dict[str, Any], a: dict[str, np.ndarray]) -> str | None:
    """Return what is wrong with the links, or nothing; written for reading, not for speed."""
    left, right, parent, m = a["left"], a["right"], a["parent"], len(a["left"])
    inside = left >= 0
    if not 0 <= entry["root"] < m or parent[entry["root"]] != -1:
        return "root"
    children = np.concatenate([left[inside], right[inside]])
    parents = np.concatenate([np.flatnonzero(inside)] * 2)
    ends = (left[~inside] == -1) & (right[~inside] == -1)
    in_range = ((children >= 0) & (children < m)).all()
    if not (ends.all() and in_range and sorted({*children, entry["root"]}) == list(range(m))):
        return "binary tree"
    if len(children) != m - 1 or not (parent[children] == parents).all():
        return "binary tree"
    feature, time = a["feature"], a["time"]
    if not ((feature[inside] >= 0) & (feature[inside] < D)).all() or (feature[~inside] != -1).any():
        return "features outside"
    if not ((time[parents] < time[children]) & (time[parents] > 0)).all():
        return "increase downward"
    return None if np.isposinf(time[~inside]).all() else "split time inf"


def wrong_values(a: dict[str, np.ndarray]) -> str | None:
    both = np.isfinite(a["lower"]) & np.isfinite(a["upper"])
    return None if (both & (a["lower"] <= a["upper"])).all() else "boxes"


def wrong_statistics(
    a: dict[str, np.ndarray], is_counts: bool, may_be_empty: bool, signed: bool
) -> str | None:
    stat, weight, is_leaf = a["stat"], a["stat"][:, 0], a["left"] < 0
    may = is_leaf & may_be_empty & ((a["parent"] >= 0) | ("fringe" in a))
    if not np.isfinite(stat).all() or not ((weight > 0) | (may & (weight == 0))).all():
        return "row counts positive"
    if is_counts:
        within = (stat[:, 1:] >= 0) & (stat[:, 1:] <= weight[:, None])
        return None if within.all() else "classes"
    return None if (stat[:, 2 : 3 if signed else 4] >= 0).all() else "squares"


def are_cells(root: int, a: dict[str, np.ndarray]) -> bool:
    low, high, cut, full = a["lower"], a["upper"], a["threshold"], a["stat"][:, 0] > 0
    sound = (low[root] >= 0).all() and (high[root] <= 1).all() and ((cut >= 0) & (cut <= 1)).all()
    for v in np.flatnonzero(a["left"] >= 0):
        left, right, j = a["left"][v], a["right"][v], a["feature"][v]
        sound &= not full[left] or high[left, j] <= cut[v]
        sound &= not full[right] or low[right, j] > cut[v]
        for child in (u for u in (left, right) if full[u]):
            sound &= (low[child] >= low[v]).all() and (high[child] <= high[v]).all()
    return bool(sound)


def grown(n_classes: int, domain: str, n: int = 12) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    rng = np.random.default_rng(n_classes)
    kind = "classifier" if n_classes else "regressor"
    chosen: dict[str, Any] = {"aggregation": "mean", "lifetime": 3.0} if domain == "cube" else {}
    family = "mondrian-forest" if chosen else "amf"
    parameters = ForestParameters(
        algorithm=f"{family}-{kind}", n_features=D, n_classes=n_classes, seed=1, domain=domain,
        **chosen,
    )  # fmt: skip
    forest = Forest(parameters, [0])
    X = rng.random((n, D), np.float32)
    forest.update(X, rng.integers(0, 2, n).astype(np.float64))
    header, trees = forest.state()
    return header["trees"][0], trees[0]


def damaged(arrays: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the fields with one or two entries changed."""
    new = {name: array.copy() for name, array in arrays.items()}
    for _ in range(rng.integers(1, 3)):
        name = list(HOSTILE)[rng.integers(len(HOSTILE))]
        flat = new[name].reshape(-1)
        value = HOSTILE[name][rng.integers(len(HOSTILE[name]))]
        value = {"m": len(new["left"]), "other": flat[rng.integers(len(flat))]}.get(value, value)
        flat[rng.integers(len(flat))] = value
    return new


def printed(check: Callable[..., None], *args: Any, **named: Any) -> str:
    try:
        check(*args, **named)
    except CorruptError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("domain", ["range", "cube"])
@pytest.mark.parametrize("n_classes", [0, 3])
def test_faults_are_those_that_are_there(n_classes: int, domain: str) -> None:
    entry, arrays = grown(n_classes, domain)
    rng, found = np.random.default_rng(7), set()
    for turn in range(ROUNDS):
        a = damaged(arrays, rng) if turn else arrays
        if turn % 5 == 4:
            a = {**a, "fringe": np.zeros(0, np.int32)}
        is_counts, signed, may = n_classes > 0, turn % 2 == 0, domain == "cube"
        reported = [
            (wrong_links(entry, a), printed(state.check_links, entry, a, D)),
            (wrong_values(a), printed(state.check_values, entry, a)),
            (
                wrong_statistics(a, is_counts, may, signed),
                printed(state.check_statistics, entry, a, is_counts, may, has_signed_prices=signed),
            ),
        ]
        for expected, message in reported:
            assert (expected in message) if expected else (message == ""), (turn, expected, message)
            found.add(expected)
    kinds = {"root", "binary tree", "features outside", "increase downward", "split time inf"}
    assert found >= {None, *kinds, "boxes", "row counts positive"}
    assert ("classes" if n_classes else "squares") in found


def test_nodes_apart_from_the_tree_are_found() -> None:
    """Links that agree with each other everywhere, but lead round in a circle."""
    entry, arrays = grown(3, "range")
    inside = np.flatnonzero((arrays["left"] >= 0) & (arrays["parent"] >= 0))
    v = int(next(u for u in inside if arrays["left"][arrays["left"][u]] < 0))
    a = {name: array.copy() for name, array in arrays.items()}
    leaf, above = int(a["left"][v]), int(a["parent"][v])
    side = "left" if a["left"][above] == v else "right"
    a[side][above], a["parent"][leaf] = leaf, above  # the leaf takes the place of v,
    a["left"][v], a["parent"][v] = v, v  # which is its own child
    assert "increase downward" in printed(state.check_links, entry, a, D)


def test_nodes_that_no_split_names_are_found() -> None:
    entry, arrays = grown(3, "range")
    for v in np.flatnonzero(arrays["left"] >= 0):
        a = {name: array.copy() for name, array in arrays.items()}
        a["left"][v] = a["right"][v] = a["feature"][v] = -1  # a leaf like any other
        a["time"][v] = np.inf
        assert "binary tree" in printed(state.check_links, entry, a, D)


def test_a_box_is_looked_at_to_its_last_feature() -> None:
    entry, arrays = grown(0, "range")
    for name in ("lower", "upper"):
        for place in np.ndindex(arrays[name].shape):
            a = {**arrays, name: arrays[name].copy()}
            a[name][place] = np.nan
            assert "boxes" in printed(state.check_values, entry, a)


@pytest.mark.parametrize("n_classes", [0, 3])
def test_boxes_apart_from_their_cells_are_found(n_classes: int) -> None:
    """What draws cells anew would go another way than a box's corner, or draw without end."""
    entry, arrays = grown(n_classes, "cube", n=40)
    assert (arrays["stat"][:, 0] == 0).any()
    rng, found = np.random.default_rng(5), {True: 0, False: 0}
    for turn in range(ROUNDS):
        a = {name: array.copy() for name, array in arrays.items()}
        if turn:
            flat = a[("lower", "upper", "threshold")[turn % 3]].reshape(-1)
            values = [0.0, 1.0, -1e-30, 1.5, flat[rng.integers(len(flat))]]
            flat[rng.integers(len(flat))] = values[rng.integers(len(values))]
        if turn % 7 == 6:  # just at the split, which is on its left
            v = rng.choice(np.flatnonzero(a["left"] >= 0))
            side = ("lower", "right") if turn % 2 else ("upper", "left")
            a[side[0]][a[side[1]][v], a["feature"][v]] = a["threshold"][v]
        expected = are_cells(entry["root"], a)
        assert expected or turn
        assert ("sides of splits" in printed(state.check_cells, entry, a)) is not expected
        found[expected] += 1
    assert min(found.values()) > 100


def test_a_stored_forest_on_the_cube_has_its_boxes_in_their_cells() -> None:
    parameters = ForestParameters(
        algorithm="mondrian-forest-classifier", n_features=3, n_classes=2, seed=1, domain="cube",
        aggregation="mean",
    )  # fmt: skip
    forest = Forest(parameters, [0])
    X = np.random.default_rng(0).random((20, 3), np.float32)
    forest.update(X, (X[:, 0] > 0.5).astype(np.float64))
    header, (arrays,) = forest.state()
    v = int(((arrays["left"] < 0) & (arrays["stat"][:, 0] > 0)).argmax())
    arrays["lower"][v] = arrays["upper"][v] = 2.0  # rows of 1 might never part from it
    with pytest.raises(CorruptError, match="sides of splits"):
        Forest.from_state(header, [arrays])


@pytest.mark.parametrize("rows", [0, 10])
@pytest.mark.parametrize("behind", [0, 1])
def test_trees_that_learned_other_rows_are_no_forest(rows: int, behind: int) -> None:
    """Kernels are not given an empty tree among others."""
    parameters = ForestParameters(algorithm="amf-classifier", n_features=D, n_classes=2, seed=1)
    forests = [Forest(parameters, [0, 1]), Forest(parameters, [0, 1])]
    X = np.random.default_rng(0).random((20, D), np.float32)
    for forest, n in zip(forests, (20, rows), strict=True):
        forest.update(X[:n], (X[:n, 0] > 0.5).astype(np.float64))
    (header, trees), (other, others) = (forest.state() for forest in forests)
    header["trees"][behind], trees[behind] = other["trees"][behind], others[behind]
    with pytest.raises(CorruptError, match="learned the same rows"):
        Forest.from_state(header, trees)
    parts = []
    for t, tree in enumerate(trees):
        parts.append(Forest.from_state({**header, "trees": [header["trees"][t]]}, [tree]))
    with pytest.raises(ParameterError, match="learned other rows"):
        Forest.join(parts)
