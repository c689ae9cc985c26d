"""What kernels are compiled for, and how many of them."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from numba import config

from dmondrian._numba.cache import kernel_files
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.estimators.single_row import SingleRow
from dmondrian.forest.forest import Forest
from dmondrian.tree.loops import predict, update
from tests.sources import parsed


@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
def test_weights_and_ways_to_predict_need_no_kernels_of_their_own() -> None:
    X, y = np.zeros((2, 3), np.float32), np.zeros(2)

    def learn(aggregation: str, weights: np.ndarray | None) -> int:
        given = {"algorithm": "mondrian-forest-classifier", "n_features": 3, "n_classes": 2}
        parameters = ForestParameters(**given, seed=1, aggregation=aggregation)
        Forest(parameters, [0]).update(X, y, weights)
        return len(update.signatures)

    first = learn("mean", None)
    assert learn("mean", np.ones(2)) == first
    assert learn("vote", None) == first
    assert learn("hierarchy", None) == first


@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
@pytest.mark.parametrize(
    "chosen",
    [
        {"algorithm": "amf-classifier", "domain": "range"},
        # Of kernels that other tests need, too.
        {
            "algorithm": "mondrian-forest-classifier",
            "domain": "cube",
            "aggregation": "hierarchy",
        },
    ],
    ids=lambda chosen: chosen["domain"],
)
def test_a_row_alone_needs_no_kernels_of_its_own(chosen: dict[str, str]) -> None:
    X = np.random.default_rng(0).random((20, 5)).astype(np.float32)
    X[:, 1:] = X[:, 1:] > 0.5  # boxes write such features as bits
    given = {"n_features": 5, "n_classes": 2, **chosen}
    forest = Forest(ForestParameters(**given, seed=1), [0, 1])
    forest.update(X, X[:, 1].astype(np.float64))
    forest.predict_sums(X)
    before = [*update.signatures, *predict.signatures]
    alone = SingleRow(forest)
    for row in (X[:1], X[:1].astype(np.float64)):
        assert alone.mean(row) is not None
        assert alone.learn(row, 1.0)
    assert [*update.signatures, *predict.signatures] == before


def made_by(function: ast.FunctionDef) -> set[str]:
    """Return the names of arrays that a function makes."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            names = target.elts if several else [target]
            values = value.elts if several else [value]
            found |= {
                ast.unparse(name)
                for name, made in zip(names, values, strict=True)
                if ast.unparse(made).startswith(("np.empty", "np.zeros", "np.full"))
            }
    return found


def borrowed(nodes: list[ast.stmt]) -> set[str]:
    """Return the names that are borrowed there, but in no loop."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.If):
            found |= borrowed([*node.body, *node.orelse])
        elif not isinstance(node, ast.For | ast.While):
            calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
            found |= {ast.unparse(c.args[0]) for c in calls if ast.unparse(c.func) == "unowned"}
    return found


def handed_on(function: ast.FunctionDef, names: set[str]) -> set[str]:
    """Return which of these a function hands, not borrowed, to what may return a view of them."""
    alone = {id(node.value) for node in ast.walk(function) if isinstance(node, ast.Expr)}
    found: set[str] = set()
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and id(call) not in alone:
            to = ast.unparse(call.func)
            if to != "unowned" and not to.startswith("np."):
                found |= names & {ast.unparse(argument) for argument in call.args}
    return found


def test_arrays_of_a_kernels_own_outlive_their_use() -> None:
    """Numba frees an array after the last line that names it, whoever has borrowed it."""
    functions = [
        node
        for path in kernel_files()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef)
    ]
    assert any(made_by(function) for function in functions)
    for function in functions:
        early = made_by(function) & borrowed(function.body)
        assert not early, f"{function.name}: unowned {early} within the loop"
        if {"kernel", "allocating"} & {ast.unparse(each) for each in function.decorator_list}:
            viewed = handed_on(function, made_by(function))
            assert not viewed, f"{function.name}: unowned {viewed} where it is handed on"
