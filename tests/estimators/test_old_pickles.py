"""Pickles of version 0.1.0 name some modules by the places that they had then."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

from dmondrian import ConvexLoss, MondrianForestRegressor, PowerLifetime
from dmondrian.ensemble.lifetime_selection import LifetimePath

OLD = {
    "dmondrian.lifetime": PowerLifetime,
    "dmondrian.own_loss": ConvexLoss,
    "dmondrian.selection": LifetimePath,
}


@pytest.mark.parametrize(("place", "kind"), OLD.items())
def test_a_class_is_found_at_its_old_place(place: str, kind: type) -> None:
    assert pickle.loads(f"c{place}\n{kind.__name__}\n.".encode()) is kind


def test_an_old_estimator_is_read_by_a_new_process() -> None:
    X = np.random.default_rng(0).random((30, 2))
    forest = MondrianForestRegressor(2, lifetime=PowerLifetime(1.0, 0.25), random_state=1)
    told = forest.fit(X, X[:, 0]).predict(X[:5]).tolist()
    new = PowerLifetime.__module__.encode()
    data = pickle.dumps(forest, protocol=0)
    assert data.count(b"c" + new + b"\n") == 1
    old = data.replace(b"c" + new + b"\n", b"cdmondrian.lifetime\n")
    script = (
        "import pickle, sys, numpy as np\n"
        "forest = pickle.loads(sys.stdin.buffer.read())\n"
        "X = np.random.default_rng(0).random((30, 2))\n"
        "print(forest.predict(X[:5]).tolist())\n"
    )
    run = subprocess.run((sys.executable, "-c", script), input=old, capture_output=True, check=True)
    assert run.stdout.decode().strip() == str(told)
