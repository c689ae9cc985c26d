"""A birth that fails or is interrupted leaves the forest as it was, and is done again."""

from __future__ import annotations

import hashlib
import itertools
import pickle
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from dmondrian import AMFClassifier
from dmondrian.boosting.boosted_set import BoostedSet
from dmondrian.drift import members as members_module
from dmondrian.drift import scaled_trees
from dmondrian.drift.drift_forest import DriftForest
from dmondrian.estimators.stream_following import EXPERTS
from dmondrian.forest.forest import Forest
from tests.cli.command import TIMEOUT
from tests.drift.streams import early_births, switching
from tests.drift.test_scaled_trees import settings_of

N = 330


class BoostingSettings(Forest):
    """Where new scaled trees learn the rows that are kept."""

    def update(self, *given: Any, **named: Any) -> None:
        is_new = not self.total_weight
        super().update(*given, **named)
        if is_new:
            self.grown()

    def grown(self) -> None:
        """Come to the end of their growth."""


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    early_births(monkeypatch)
    monkeypatch.setattr(scaled_trees, "Forest", BoostingSettings)


def fail_once(
    patch: pytest.MonkeyPatch, where: Any, name: str, error: type[BaseException], at: int = 0
) -> None:
    """Have call number ``at`` of the function of this name fail, and no other."""
    found, calls = getattr(where, name), itertools.count()

    def failing(*given: Any, **named: Any) -> Any:
        if next(calls) == at:
            raise error
        return found(*given, **named)

    patch.setattr(where, name, failing)


PLACES = [(scaled_trees, "learn_scales"), (BoostingSettings, "grown"), (BoostedSet, "fit")]


@pytest.mark.parametrize(("where", "name"), PLACES, ids=["search", "growth", "set"])
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize(("delay", "period"), [(1, None), (40, None), (1, "40")])
def test_a_birth_that_fails_costs_no_row(
    where: Any, name: str, error: Any, delay: int, period: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    rng = np.random.default_rng(1)
    X, classes = switching(N)
    y, w = classes.astype(float), rng.choice([0.0, 0.5, 1.0, 3.0], N)
    times = None if period is None else np.cumsum(rng.integers(0, 3, N)) * 1.0
    monkeypatch.setattr(members_module, "_LEAST_ROWS", 17)
    monkeypatch.setattr(members_module, "_MOST_ROWS", 17)
    whole, before, forest = (
        DriftForest(settings_of(delay, period=period), range(3)) for _ in range(3)
    )

    def learn(one: DriftForest, first: int, last: int) -> None:
        own = None if times is None else times[first:last]
        one.update(X[first:last], y[first:last], w[first:last], times=own)

    learn(whole, 0, N)
    with monkeypatch.context() as patch:
        fail_once(patch, where, name, error, at=1)
        with pytest.raises(error):
            learn(forest, 0, N)
    n = forest.n_done
    assert 64 < n < N
    learn(before, 0, n)
    assert pickle.dumps(forest.state()) == pickle.dumps(before.state())
    np.testing.assert_array_equal(forest.predict_proba(X), before.predict_proba(X))
    learn(forest, n, N)
    assert pickle.dumps(forest.state()) == pickle.dumps(whole.state())
    assert len(forest.scaled_trees) == 3 * scaled_trees.N_TREES


def fitted() -> tuple[AMFClassifier, np.ndarray, np.ndarray]:
    """A model whose trees have learned 40 rows, where 30 wait: the first birth is among these."""
    X, y = switching(N)
    model = AMFClassifier(2, drift="follow", delay=40, experts=EXPERTS, random_state=0)
    return model.fit(X[:70], y[:70]), X, y


@pytest.mark.parametrize(("where", "name"), PLACES, ids=["search", "growth", "set"])
@pytest.mark.parametrize("asks", [True, False])
def test_what_waits_is_known_after_a_birth_that_failed(where: Any, name: str, asks: bool) -> None:
    """Amid a prediction, by a copy that learns the rows that wait, or amid further rows."""
    model, X, y = fitted()
    again, *_ = fitted()
    known = model.predict_proba(X)
    with pytest.MonkeyPatch.context() as patch:
        fail_once(patch, where, name, MemoryError)
        with pytest.raises(MemoryError):
            again.predict_proba(X) if asks else again.partial_fit(X[70:], y[70:])
    assert again.n_waiting_ == 30
    np.testing.assert_array_equal(again.predict_proba(X), known)
    for one in (model, again):
        one.partial_fit(X[70:], y[70:])
    assert pickle.dumps(again.forest_.state()) == pickle.dumps(model.forest_.state())


def test_readers_do_not_wait_for_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = switching(N)
    model = AMFClassifier(2, drift="follow", experts=EXPERTS, random_state=0)
    model.partial_fit(X[:10], y[:10], classes=[0, 1])
    model.partial_fit(X[10:60], y[10:60])
    before, search, found = model.predict_proba(X), scaled_trees.learn_scales, []

    def read_amid(*given: Any) -> Any:
        thread = threading.Thread(target=lambda: found.append(model.predict_proba(X)))
        thread.daemon = True
        thread.start()
        thread.join(30)
        return search(*given)

    monkeypatch.setattr(scaled_trees, "learn_scales", read_amid)
    model.partial_fit(X[60:64], y[60:64])
    assert len(found) == 1
    np.testing.assert_array_equal(found[0], before)


INTERRUPTED = """
from dmondrian import AMFClassifier
from dmondrian.drift import scaled_trees
from dmondrian.estimators.stream_following import EXPERTS
from tests.drift.test_failed_births import digest, switching

search, is_first = scaled_trees.learn_scales, [True]

def again_and_again(*given):
    while is_first.pop():
        search(*given)  # loads, or compiles, its kernels, amid which Python may lose an interrupt
        print("searching", flush=True)
        while True:
            search(*given)
    return search(*given)

X, y = switching(1500)
model = AMFClassifier(2, drift="follow", experts=EXPERTS, random_state=0)
model.partial_fit(X[:1000], y[:1000], classes=[0, 1])
scaled_trees.learn_scales = again_and_again
try:
    model.partial_fit(X[1000:], y[1000:])
except KeyboardInterrupt:
    is_first[:] = [False]
    n = model.forest_.rows_so_far["learned"]
    model.predict(X)
    model.partial_fit(X[n:], y[n:])
    print(n, digest(model))
"""


def digest(model: AMFClassifier) -> str:
    return hashlib.sha256(pickle.dumps(model.forest_.state())).hexdigest()


def test_ctrl_c_ends_a_search_and_costs_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that searches until the signal comes, which is held nowhere amid a search."""
    monkeypatch.undo()
    X, y = switching(1500)
    whole = AMFClassifier(2, drift="follow", experts=EXPERTS, random_state=0)
    whole.partial_fit(X, y, classes=[0, 1])
    command = [sys.executable, "-W", "ignore", "-c", INTERRUPTED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "searching\n"
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=TIMEOUT)
        finally:
            process.kill()
    n, found = out.split()
    assert int(n) == 1000
    assert found == digest(whole)
