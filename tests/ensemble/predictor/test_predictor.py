"""A frozen forest predicts what the forest does, to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from dmondrian.ensemble import predict
from dmondrian.ensemble.predictor import predictor
from dmondrian.ensemble.predictor.predictor_kernels import FrozenTree, predict_frozen
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.threads import run_threads
from dmondrian.forest.forest import Forest

ROWS = 700
NEVER, ALWAYS = predictor.FreezingCost(10**9, 8.0), predictor.FreezingCost(-(10**9), 8.0)


def draw(n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n_classes)
    X = rng.random((ROWS, 4)).astype(np.float32)
    X[::5] = X[::10].repeat(2, axis=0)[: len(X[::5])]  # rows that come again
    y = X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(0, 0.2, ROWS)
    return X, np.floor(y * n_classes / 2.5).clip(0, n_classes - 1) if n_classes else y + 1000.0


def parameters(**changes: object) -> ForestParameters:
    settings: dict = {"n_features": 4, "seed": 3, "alpha": 0.5, **changes}
    kind = "classifier" if settings["n_classes"] else "regressor"
    family = "mondrian-forest" if "aggregation" in settings else "amf"
    return ForestParameters(algorithm=f"{family}-{kind}", **settings)


CASES = {
    "mixture": {"n_classes": 3},
    "mixture of labels": {"n_classes": 0},
    "mean": {"n_classes": 3, "aggregation": "mean", "lifetime": 4.0},
    "vote": {"n_classes": 3, "aggregation": "vote"},
    "mean of labels": {"n_classes": 0, "aggregation": "mean", "lifetime": 4.0},
    "Kneser-Ney": {"n_classes": 3, "aggregation": "hierarchy"},
    "Gaussian": {"n_classes": 0, "aggregation": "hierarchy", "lifetime": 4.0},
    "scaled": {"n_classes": 2, "feature_scales": (0.5, 2.0, 0.25, 1.0), "split_pure": True},
}


@pytest.mark.parametrize("name", CASES)
def test_frozen_trees_say_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = draw(CASES[name]["n_classes"])
    forest = Forest(parameters(**CASES[name]), range(3))
    forest.update(X, y)
    asked = np.random.default_rng(9).random((ROWS, 4)).astype(np.float32)
    asked[:50] = X[:50]
    asked[50:60, 0] = 5.0  # far from all boxes
    asked[60] = 1e35  # beyond all thresholds but the last of a way
    monkeypatch.setattr(predictor, "_COST", NEVER)
    plain = forest.predict_sums(asked, spread=True, distance=True)
    assert forest.predictor.frozen_cache.n_bytes == 0
    monkeypatch.setattr(predictor, "_COST", ALWAYS)
    monkeypatch.setattr(predictor, "_AT_ONCE", ROWS)  # two trees, then the third
    for n_threads in (1, 2):
        for n in (ROWS, 17, 1):
            predicted = forest.predict_sums(asked[:n], n_threads, spread=True, distance=True)
            assert predicted.total.tobytes() == plain.total[:n].tobytes()
            assert predicted.square is not None
            assert predicted.distance is not None
            assert plain.square is not None
            assert plain.distance is not None
            assert predicted.distance.tobytes() == plain.distance[:n].tobytes()
            assert predicted.square.tobytes() == plain.square[:n].tobytes()
    assert forest.predictor.frozen_cache.n_bytes > 0


def test_boxes_of_two_values_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distances come from boxes that are written as bits, or anew where a third value is asked."""
    X, y = draw(3)
    X = np.concatenate([X, (X > 0.6).astype(np.float32), X[:, ::-1] ** 2, X[:, :3]], axis=1)
    X = (X * 30.0 ** -np.where(np.arange(15) < 8, 0, np.arange(15) % 7)).astype(np.float32)
    settings = {**CASES["mixture"], "n_features": X.shape[1]}
    forest = Forest(parameters(**settings), range(3))
    forest.update(X, y)
    assert len(forest.trees[0].columns.binary) == 4
    for third in (False, True):
        asked = np.roll(X, 1, axis=0)
        asked[::7, 5] = 0.25 if third else 1.0
        asked[:, [0, 1, 2, 3, *range(8, 15)]] *= np.float32(0.9)  # they extend; the sum is rounded
        monkeypatch.setattr(predictor, "_COST", NEVER)
        monkeypatch.setattr(predict, "_CHUNK", 64)
        plain = forest.predict_sums(asked, distance=True)
        monkeypatch.setattr(predictor, "_COST", ALWAYS)
        monkeypatch.setattr(predictor, "_BYTES_PER_ROW", 2**30)
        monkeypatch.setattr(predictor, "_LEAST_ROWS", 100)
        predicted = forest.predict_sums(asked, 2, distance=True)
        assert forest.predictor.frozen_cache.n_bytes > 0
        assert plain.distance is not None
        assert predicted.distance is not None
        assert plain.distance.max() > 0.0
        assert predicted.total.tobytes() == plain.total.tobytes()
        assert predicted.distance.tobytes() == plain.distance.tobytes()
        forest.update(X[:1], y[:1])  # frozen no more


def test_rows_are_asked_about_in_equal_parts_that_suit_the_tree() -> None:
    groups = np.zeros((3 * 4096, 16), np.int32)
    small = FrozenTree(groups[:1], np.zeros((1, 2)), np.zeros(1, np.int32))
    large = FrozenTree(groups, np.zeros((3 * 4096, 4)), np.zeros(3 * 4096, np.int32))
    at_once = 3 * 4096 * (64 + 32) // predictor._BYTES_PER_ROW
    assert at_once > predictor._LEAST_ROWS
    for trees, most in (([small], predictor._LEAST_ROWS), ([small, large, small], at_once)):
        for n in (1, most - 1, most, most + 1, 3 * most + 2):
            part = predictor.rows_at_a_time(trees, n)
            n_parts = -(-n // part)
            assert part <= most
            assert n_parts == -(-n // most)
            assert n_parts * part - n < n_parts


def test_no_call_answers_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "_COST", ALWAYS)
    monkeypatch.setattr(predictor, "_AT_ONCE", 4 * ROWS - 1)
    calls = []

    def ask(*args: Any) -> None:
        calls.append(len(args[1]))
        predict_frozen(*args)

    monkeypatch.setattr(predictor, "predict_frozen", ask)
    X, y = draw(2)
    for repeats, with_distance in (
        (1, [4, 3]),
        (8, [2, 2, 2, 1]),
    ):  # 32 features take longer
        wide = np.tile(X, (1, repeats))
        forest = Forest(parameters(n_classes=2, n_features=wide.shape[1]), range(7))
        forest.update(wide, y)
        for distance, expected in ((False, [4, 3]), (True, with_distance)):
            calls.clear()
            forest.predict_sums(wide, distance=distance)
            assert calls == expected


def test_trees_made_for_a_call_are_let_go_of() -> None:
    X, y = draw(2)
    X = np.concatenate([X, X > 0.6], axis=1, dtype=np.float32)
    for cost in (NEVER, ALWAYS):
        forest = Forest(parameters(n_classes=2, n_features=8), range(2))
        forest.update(X, y)
        assert len(forest.trees[0].columns.binary) == 4
        third = X.copy()
        third[0, 5] = 0.25
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(predictor, "_COST", cost)
            forest.predict_sums(third, distance=True)
        assert forest.store.trees == list(forest.trees)


def test_few_rows_are_not_spread_over_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "_COST", ALWAYS)
    X, y = draw(2)
    forest = Forest(parameters(n_classes=2), range(2))
    forest.update(X, y)
    asked = np.tile(X, (30, 1))
    tasks = []

    def run(work: Callable[[int], None], starts: Sequence[int], n_threads: int) -> None:
        tasks.append(len(starts))
        run_threads(work, starts, n_threads)

    monkeypatch.setattr(predict, "run_threads", run)
    plain = forest.predict_sums(asked).total
    for n, n_threads, expected in ((64, 64, 1), (4096, 2, 1), (2 * 4096, 2, 2), (4097, 64, 2)):
        predicted = forest.predict_sums(asked[:n], n_threads).total
        assert tasks[-1] == expected
        assert predicted.tobytes() == plain[:n].tobytes()


def test_what_is_frozen_is_not_what_was_learned_since(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "_COST", ALWAYS)
    X, y = draw(2)
    forests = [Forest(parameters(n_classes=2), range(2)) for _ in range(2)]
    for start in (0, 350):
        for forest in forests:
            forest.update(X[start : start + 350], y[start : start + 350])
        frozen_total = forests[0].predict_sums(X).total
        assert forests[0].predictor.frozen_cache.n_bytes > 0
        monkeypatch.setattr(predictor, "_COST", NEVER)
        assert forests[1].predict_sums(X).total.tobytes() == frozen_total.tobytes()
        monkeypatch.setattr(predictor, "_COST", ALWAYS)


def test_trees_are_frozen_once_the_rows_asked_about_pay_for_it() -> None:
    X, y = draw(3)
    forest = Forest(parameters(n_classes=3), range(2))
    forest.update(X, y)
    n_nodes = forest.n_nodes / 2
    n_asked, cost = 0, predictor._COST
    while not forest.predictor.frozen_cache.n_bytes:
        assert cost.nodes_per_row * (n_asked - cost.least_rows) < n_nodes
        forest.predict_sums(X[:7])
        n_asked += 7
    assert cost.nodes_per_row * (n_asked - cost.least_rows) >= n_nodes
    assert n_asked > cost.least_rows + 7
    forest.update(X[:1], y[:1])
    forest.predict_sums(X[:7])
    assert (
        forest.predictor.frozen_cache.n_bytes == 0
    )  # the rows asked about before have been paid for


def test_what_is_asked_in_turns_pays_for_each_freezing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "_COST", predictor.FreezingCost(0, 1.0))
    X, y = draw(3)
    forest = Forest(parameters(**{**CASES["mean"], "lifetime": 400.0}), range(2))
    forest.update(X, y)
    made: list[predictor.FrozenTrees] = []
    n_calls = 8 * forest.n_nodes // (2 * 64)
    for k in range(n_calls):
        forest.predict_sums(X[:64], lifetimes=np.array([200.0 + k % 2]))
        kept = forest.predictor.frozen_cache.kept
        if kept is not None and (not made or kept is not made[-1]):
            made.append(kept)
    assert n_calls > 40
    assert 2 <= len(made) <= 8


def test_an_empty_tree_and_no_row_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "_COST", ALWAYS)
    asked = parameters(n_classes=4)
    X = np.full((3, 4), 0.5, np.float32)
    assert (Forest(asked, range(2)).predict_sums(X).total == 0.5).all()
    forest = Forest(asked, range(2))
    forest.update(X[:1], np.zeros(1))
    assert forest.predict_sums(X[:0]).total.shape == (0, 4)
