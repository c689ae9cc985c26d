"""Theorems about ever more rows, as far as a stream shows them, and laws that their proofs need.

M17, Theorem 3; Z24, Proposition 14; D13, Theorem 1, Lemma 13 and Proposition 15. Errors are
measured against functions that are known, so that they have no noise of a test set; each test of
an error has a forest beside it that the theorem does not promise anything of, and that stalls.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from dmondrian import (
    GeneralizedMondrianForestClassifier,
    OnlineRandomForestClassifier,
    PowerLifetime,
)
from dmondrian.tree.nodes import ESTIMATED
from tests.laws.grow import grow_forest

STEPS = [2**k for k in (9, 11, 13, 15)]


def share(X: np.ndarray) -> np.ndarray:
    """Return a Lipschitz probability of class 1, on both sides of 1/2 four times."""
    zigzag = np.abs(2.0 * (2.0 * X.mean(axis=1) % 1.0) - 1.0)
    return 0.1 + 0.8 * zigzag


def stream(d: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, labels, and points to ask at."""
    rng = np.random.default_rng(seed)
    X, asked = (rng.random((n, d), np.float32) for n in (STEPS[-1], 4000))
    return X, (rng.random(len(X)) < share(X)).astype(float), asked


def slope_of(errors: list[float]) -> float:
    return float(np.polyfit(np.log(STEPS), np.log(errors), 1)[0])


@pytest.mark.parametrize("d", [1, 2])
def test_the_error_of_the_classifier_falls_faster_than_the_root_of_the_minimax_rate(d: int) -> None:
    """M17, Theorem 3: L(g_n) - L* = o(n^(-1 / (d + 2))) at lifetimes n^(1 / (d + 2))."""
    X, y, asked = stream(d, seed=d)
    truth = share(asked)
    growth = PowerLifetime(2.0, 1.0 / (d + 2))
    forest = grow_forest(
        X[:0], n_trees=20, algorithm="mondrian-forest-classifier", aggregation="mean",
        domain="cube", lifetime=growth.at(STEPS[-1]), seed=d,
    )  # fmt: skip
    growing, fixed = [], []
    for done, n in pairwise((0, *STEPS)):
        forest.update(X[done:n], y[done:n])
        sums = forest.predict_sums(asked, lifetimes=np.array([0.5, growth.at(n)]))
        for found, predicted in zip((fixed, growing), sums.total[..., 1] / 20.0, strict=True):
            is_wrong = (predicted > 0.5) != (truth > 0.5)
            found.append(float((np.abs(2.0 * truth - 1.0) * is_wrong).mean()))
            # Devroye, Gyorfi, Lugosi (1996), Theorem 6.5, by which Theorem 2 gives Theorem 3.
            assert found[-1] <= 2.0 * np.sqrt(((predicted - truth) ** 2).mean())
    assert slope_of(growing) < -1.0 / (d + 2), growing
    assert slope_of(fixed) > -0.5 / (d + 2), fixed


def logistic(p: np.ndarray, z: np.ndarray) -> np.ndarray:
    return (p * np.logaddexp(0.0, -z) + (1.0 - p) * np.logaddexp(0.0, z)) / np.log(2.0)


def exponential(p: np.ndarray, z: np.ndarray) -> np.ndarray:
    return p * np.exp(-z) + (1.0 - p) * np.exp(z)


RISKS: dict[str, tuple[Callable, Callable]] = {
    "logistic": (logistic, lambda p: np.log(p / (1.0 - p))),
    "exponential": (exponential, lambda p: 0.5 * np.log(p / (1.0 - p))),
}


@pytest.mark.parametrize("loss", sorted(RISKS))
def test_the_risk_of_binary_costs_nears_the_least_of_all(loss: str) -> None:
    """Z24, Proposition 14: the phi-risk tends to that of the best function."""
    X, y, asked = stream(1, seed=3)
    p = share(asked)
    risk, best = RISKS[loss]
    forest = GeneralizedMondrianForestClassifier(
        20, loss=loss, lifetime=PowerLifetime(2.0, 1.0 / 3.0), domain="cube", empty_cell="prior",
        max_lifetime=70.0, random_state=0,
    )  # fmt: skip
    growing, fixed = [], []
    for done, n in pairwise((0, *STEPS)):
        forest.partial_fit(X[done:n], y[done:n], classes=[0.0, 1.0])
        for found, lifetime in ((fixed, 2.0), (growing, None)):
            z = forest.decision_function(asked, lifetime)
            found.append(float((risk(p, z) - risk(p, best(p))).mean()))
    assert all(later < 0.6 * former for former, later in pairwise(growing)), growing
    assert growing[-1] < 0.01 < 0.05 < fixed[-1], (growing, fixed)


def test_an_online_random_forest_nears_the_bayes_error() -> None:
    """D13, Theorem 1, of a forest whose leaves need ever more rows, beside one that stops."""
    X, y, asked = stream(2, seed=5)
    truth = share(asked)

    def errors(**changes: object) -> list[float]:
        forest = OnlineRandomForestClassifier(
            20, aggregation="vote", min_samples_leaf=4.0, min_samples_growth=1.1,
            must_split_ratio=4.0, min_gain=0.02, random_state=0, **changes,
        )  # fmt: skip
        found = []
        for done, n in pairwise((0, *STEPS)):
            forest.partial_fit(X[done:n], y[done:n].astype(int), classes=[0, 1])
            is_wrong = forest.predict(asked) != (truth > 0.5)
            found.append(float((np.abs(2.0 * truth - 1.0) * is_wrong).mean()))
        return found

    found, stopped = errors(), errors(max_nodes=15)
    assert found[-1] < 0.5 * found[-2] or found[-1] < 0.01, found
    assert found[-1] < 0.03 < stopped[-1], (found, stopped)


def on_noise(
    n: int, max_fringe: int | None, pure_from: float = 1.0
) -> OnlineRandomForestClassifier:
    """Return a forest of labels that nothing tells, but 0 where the first column is above."""
    X = np.random.default_rng(7).random((n, 2), np.float32)
    y = np.where(X[:, 0] > pure_from, 0, np.random.default_rng(8).integers(0, 2, n))
    forest = OnlineRandomForestClassifier(
        4, max_fringe=max_fringe, min_samples_leaf=3.0, min_samples_growth=1.3,
        must_split_ratio=2.0, min_gain=0.0, n_thresholds=5, random_state=1,
    )  # fmt: skip
    return forest.partial_fit(X, y, classes=[0, 1])


@pytest.mark.parametrize("max_fringe", [3, None])
def test_the_cost_of_a_tree_bounds_its_splits(max_fringe: int | None) -> None:
    """D13, Lemma 13: a split at depth d takes 2 alpha(d) estimation rows, used by no other."""
    for n in (2000, 20_000):
        forest = on_noise(n, max_fringe)
        for t in range(4):
            reported = forest.nodes(t)
            depth = reported["depth"][reported["left"] >= 0]
            n_rows = float(forest.forest_.trees[t].head_f[ESTIMATED])
            assert len(depth) > 5
            assert (2.0 * 3.0 * 1.3**depth).sum() <= n_rows


def test_leaves_with_errors_enter_the_fringe() -> None:
    """D13, Proposition 15: each of the leaves that wait for one of three places gets it."""
    early, late = on_noise(3000, 3), on_noise(200_000, 3)
    n_waiting = 0
    for t in range(4):
        before, after = early.nodes(t), late.nodes(t)  # ids are permanent
        waits = (before["left"] < 0) & ~before["fringe"]
        n_waiting += int(waits.sum())
        was_in = (after["left"] >= 0) | after["fringe"]
        assert was_in[: len(waits)][waits].all()
    assert n_waiting > 40


def test_leaves_without_errors_wait() -> None:
    """D13, Remark 14: they are left as they are, as long as others have errors."""
    early, late = on_noise(3000, 3, pure_from=0.5), on_noise(60_000, 3, pure_from=0.5)
    n_pure, n_rows = 0, 0.0
    for t in range(4):
        before, after = early.nodes(t), late.nodes(t)
        pure = (before["left"] < 0) & (before["counts"][:, 1] == 0.0)
        pure = np.flatnonzero(pure)[after["counts"][: len(pure)][pure, 1] == 0.0]  # and ever since
        assert (after["left"][pure] < 0).all()
        assert not after["fringe"][pure].any()
        assert (after["left"] >= 0).sum() > 2 * (before["left"] >= 0).sum()
        n_pure, n_rows = n_pure + len(pure), n_rows + after["n_rows"][pure].sum()
    assert n_pure >= 4
    assert n_rows > 10_000.0
