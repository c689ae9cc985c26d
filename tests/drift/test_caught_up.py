"""Who asks about later rows after `fit` is answered by trees that know all labels."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmondrian import AMFClassifier, AMFRegressor, load
from dmondrian.tree import nodes

N, DELAY = 330, 100  # 30 rows wait
RANDOM = np.random.default_rng(3)
X = RANDOM.random((N + DELAY, 3)).astype(np.float32)
Y = (np.where(np.arange(N + DELAY) < 200, X[:, 0], X[:, 1]) * 3).astype(int)
KINDS = pytest.mark.parametrize("kind", [AMFClassifier, AMFRegressor])
EXPERTS = pytest.mark.parametrize("experts", [("mondrian",), ("mondrian", "boosted")])


def made(kind: Any, delay: int | str = DELAY, experts: Any = ("mondrian",)) -> Any:
    return kind(3, drift="follow", delay=delay, experts=experts, random_state=0)


def answers(model: Any, rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = getattr(model, "predict_proba", model.predict)(rows)
    return found


def stream_of(model: Any, stop: int, y: np.ndarray = Y, **named: Any) -> Any:
    """Let a new model learn rows as a stream; return it."""
    known = {"classes": [0, 1, 2]} if isinstance(model, AMFClassifier) else {}
    return model.partial_fit(X[:stop], y[:stop], **known, **named)


def bytes_of(forest: Any) -> list[bytes]:
    """Return the nodes of all trees that are alive."""
    trees = [*forest.store.trees, *forest.covering_trees]
    return [array.tobytes() for tree in trees for _, array in sorted(nodes.fields(tree).items())]


@KINDS
@EXPERTS
def test_answers_are_the_forecasts_of_the_next_block_of_time(kind: Any, experts: Any) -> None:
    # Ten blocks of 33 rows; the last one waits until a row of a later time comes.
    times, n = np.repeat(np.arange(11.0), 33), 330
    y = Y if kind is AMFClassifier else Y + X[:, 2]
    model = made(kind, "1", experts).fit(X[:n], y[:n], times=times[:n])
    assert model.n_waiting_ == 33
    asked = answers(model, X[n : n + 33])
    labels = y[n : n + 33].astype(np.float64)
    forecasts = model.forest_.forecast_and_learn(X[n : n + 33], labels, times=times[n:])
    mean = forecasts if kind is AMFClassifier else forecasts[:, 0]
    np.testing.assert_array_equal(asked, mean)
    stale = stream_of(made(kind, "1", experts), n, y, times=times[:n])
    assert not np.array_equal(answers(stale, X[n : n + 33]), asked)


@KINDS
def test_trees_that_are_asked_are_those_of_all_rows(kind: Any) -> None:
    model, at_once = made(kind).fit(X[:N], Y[:N]), made(kind, 1).fit(X[:N], Y[:N])
    assert model.n_waiting_ == 30
    assert bytes_of(model.forest_.caught_up()) == bytes_of(at_once.forest_)
    assert bytes_of(model.forest_) != bytes_of(at_once.forest_)


@KINDS
@EXPERTS
def test_asking_changes_nothing_that_is_learned(kind: Any, experts: Any) -> None:
    one, other = made(kind, experts=experts), made(kind, experts=experts)
    one.fit(X[:N], Y[:N])
    answers(one, X)
    stream_of(other, N)
    for model in (one, other):
        model.partial_fit(X[N : N + 20], Y[N : N + 20])
    np.testing.assert_array_equal(answers(one, X), answers(other, X))
    assert pickle.dumps(one.forest_) == pickle.dumps(other.forest_)


@KINDS
def test_copies_and_stored_models_answer_alike(kind: Any, tmp_path: Path) -> None:
    model = made(kind).fit(X[:N], Y[:N])
    model.save(tmp_path / "model")
    expected = answers(model, X)
    again = load(tmp_path / "model")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), again):
        np.testing.assert_array_equal(answers(other, X), expected)
    assert again.partial_fit(X[N:], Y[N:]).n_waiting_ == N % DELAY


@KINDS
def test_calls_of_a_stream_are_answered_by_the_state_before_the_block(kind: Any) -> None:
    whole, more = stream_of(made(kind), 300), stream_of(made(kind), N)
    np.testing.assert_array_equal(answers(whole, X), answers(more, X))
