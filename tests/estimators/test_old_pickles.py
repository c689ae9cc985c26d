"""Pickles of version 0.1.0 name some modules by the places that they had then."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest

from dmondrian import ConvexLoss, MondrianForestRegressor, PowerLifetime
from dmondrian.ensemble.lifetime_selection import LifetimePath
from dmondrian.joint_fit.lifetime_sweep import KernelPath

OLD = {
    "dmondrian.lifetime": PowerLifetime,
    "dmondrian.own_loss": ConvexLoss,
    "dmondrian.selection": LifetimePath,
    "dmondrian.kernel.path": KernelPath,
}


@pytest.mark.parametrize(("place", "kind"), OLD.items())
def test_a_class_is_found_at_its_old_place(place: str, kind: type) -> None:
    script = (
        "import pickle, sys\n"
        f"found = pickle.loads(b'c{place}\\n{kind.__name__}\\n.')\n"
        "print(found.__module__, found.__qualname__)\n"
    )
    command = (sys.executable, "-c", script)  # where nothing else has been imported
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.split() == [kind.__module__, kind.__qualname__]


def test_a_module_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module("dmondrian.kernels")


def test_an_old_estimator_is_read_by_a_new_process() -> None:
    X = np.random.default_rng(0).random((30, 2))
    forest = MondrianForestRegressor(2, lifetime=PowerLifetime(1.0, 0.25), random_state=1)
    reported = forest.fit(X, X[:, 0]).predict(X[:5]).tolist()
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
    assert run.stdout.decode().strip() == str(reported)
