"""Ways down to a prediction: nodes that do not matter are passed over, and change no bit."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.rules import aggregate
from dmondrian.rules.aggregate import Aggregate
from dmondrian.tree import nodes
from dmondrian.tree.box_encoding import row_of
from dmondrian.tree.box_encoding_choice import query_rows
from dmondrian.tree.keyed_random import tree_key
from dmondrian.tree.loops import first_needed, predict_row
from dmondrian.tree.policies import Visit, parting

K = 3
LIFETIMES = ([np.inf], [0.3], [0.5, 2.0, 30.0], [4.0, np.inf])


@numba.njit(error_model="numpy")
def answered(growth, stat, loss, rule, tree, key, rows, leaf, noted, lifetimes, work, answers):  # type: ignore[no-untyped-def]  # compiled for what it is given
    x = row_of(rows, 0)
    first = first_needed(rule, tree, noted, parting(growth, tree, leaf, x), lifetimes[0])
    cell = predict_row(
        growth, stat, loss, rule, tree, key, x, leaf, noted, lifetimes, work[0], work[1], answers
    )
    return first, cell


def way_of(tree: nodes.Tree, row: np.ndarray) -> list[int]:
    """Return the nodes on a row's way, the root first."""
    way = [int(tree.head_i[nodes.ROOT])]
    while tree.i[way[-1], nodes.LEFT] >= 0:
        goes_left = row[tree.i[way[-1], nodes.FEATURE]] <= tree.f[way[-1], nodes.THRESHOLD]
        way.append(int(tree.i[way[-1], nodes.LEFT if goes_left else nodes.RIGHT]))
    return way


def forest_of(settings: dict[str, Any], n: int = 120) -> tuple[Ensemble, np.ndarray]:
    """Return a tree that has learned rows, and those, others among them and rows far away."""
    kind = "amf-classifier" if "aggregation" not in settings else "mondrian-forest-classifier"
    draw = np.random.default_rng(0)
    X = draw.random((n, 2)).astype(np.float32)
    forest = Ensemble(ForestParameters(kind, 2, K, 5, **settings), range(1))
    y = (X.sum(axis=1) * K / 2.0 + draw.random(n) * 0.3).astype(np.int64) % K
    forest.update(X, y.astype(np.float64))
    others = draw.random((40, 2)).astype(np.float32)
    if settings.get("domain") == "cube":
        return forest, np.concatenate([X[:40], others])
    return forest, np.concatenate([X[:40], others, 3.0 * others - 1.0]).astype(np.float32)


@pytest.mark.parametrize(
    ("settings", "is_shortened"),
    [
        ({"aggregation": "hierarchy", "expected_extension": True}, True),
        ({"aggregation": "hierarchy"}, True),
        ({"aggregation": "hierarchy", "expected_extension": True, "discount": 0.1}, True),
        pytest.param(
            {"aggregation": "hierarchy", "domain": "cube", "lifetime": 9.0, "discount": 500.0},
            True,
            marks=pytest.mark.thorough,
        ),
        ({"aggregation": "mean", "expected_extension": True}, True),
        pytest.param({"expected_extension": True}, False, marks=pytest.mark.thorough),
    ],
    ids=["hierarchy", "leaves", "small discount", "cube", "mean", "amf"],
)
def test_nodes_that_are_passed_over_change_no_bit(
    settings: dict[str, Any], is_shortened: bool
) -> None:
    forest, X = forest_of(settings)
    tree, (growth, stat, loss, rule) = forest.trees[0], forest.policies
    key, found = tree_key(np.uint64(5), np.uint64(0)), 0
    for lifetimes in LIFETIMES[:1] if isinstance(rule, Aggregate) else LIFETIMES:
        lives = np.minimum(lifetimes, forest.parameters.realised_lifetime)
        lives = np.unique(lives)
        for row in X:
            rows = query_rows(row[None], tree.columns)
            way = way_of(tree, row)
            reported = []
            for noted in (way[1:], way[1 : len(way) // 2], []):  # of the last, all nodes are passed
                answers = np.zeros((len(lives), K))
                first, cell = answered(
                    growth, stat, loss, rule, tree, key, rows, np.int64(way[-1]),
                    np.array(noted, np.int32), lives, np.zeros((2, K)), answers,
                )  # fmt: skip
                assert first <= len(noted)
                found += first > 0
                reported.append((answers.tobytes(), int(cell)))
            assert reported[0] == reported[1] == reported[2]
    assert (found > 0) == is_shortened


def test_a_node_without_a_share_is_not_asked_for_a_forecast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forest, X = forest_of({}, 3000)
    tree, path, passed = forest.trees[0], np.zeros(K), []
    monkeypatch.setattr(aggregate, "add_forecast", lambda loss, tree, v, *_: passed.append(v))
    stop = getattr(aggregate.stop_probability, "py_func", aggregate.stop_probability)
    monkeypatch.setattr(aggregate, "stop_probability", stop)
    n = n_asked = 0
    for row in X:
        for v in way_of(tree, row)[:-1]:
            at = Visit(np.uint64(v), False, np.inf, 1.0, 0.5)
            rest = aggregate.pass_node_aggregate(
                Aggregate(True), forest.policies.loss, tree, at, path
            )
            has_share = tree.i[v, nodes.EXPONENT] >= 0
            assert passed == ([v] if has_share else [])
            assert has_share or rest == 0.5
            passed.clear()
            n, n_asked = n + 1, n_asked + has_share
    assert 0 < n_asked < n
