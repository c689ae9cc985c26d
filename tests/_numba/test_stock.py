"""The stock mode: Numba's public interface alone, for the same forests."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numba
import pytest
from numba import config
from packaging.requirements import Requirement

import dmondrian
from dmondrian._numba import mode

ROOT = Path(dmondrian.__file__).parents[1]
# Parts, a hook and an array that parts hand on: what all kernels are made of.
KERNEL = """
from typing import NamedTuple
import numpy as np
from dmondrian._numba.jit import allocating, hook, implements, inline, kernel, noinline
from dmondrian._numba.mode import is_stock

class Twice(NamedTuple):
    factor: float

@hook
def scaled(policy, x):
    ...

@implements(scaled, Twice)
def _(policy, x):
    return policy.factor * x

@inline
def third(x):
    return x / 3.0

@noinline
def shifted(policy, x):
    return scaled(policy, third(x)) + 0.1

@allocating
def total(policy, X):
    made = np.empty(len(X))
    for i in range(len(X)):
        made[i] = shifted(policy, X[i])
    return made.sum()

@kernel
def run(policy, X):
    return total(policy, X)

print(is_stock(), float(run(Twice(2.0), np.linspace(0.0, 1.0, 1000))).hex())
"""
# Of one kernel; tests/_numba/test_mechanisms.py has more of them.
FOREST = """
import hashlib
import numpy as np
from dmondrian import OnlineRandomForestRegressor
from dmondrian._numba.mode import is_stock

X = np.random.default_rng(0).random((600, 3)).astype(np.float32)
forest = OnlineRandomForestRegressor(2, random_state=1, n_jobs=1).fit(X, X[:, 0] > X[:, 1])
print(is_stock(), hashlib.sha256(forest.predict(X).tobytes()).hexdigest())
"""


def printed(script: Path, stock: str) -> list[str]:
    """Return what a script prints in this mode."""
    env = {**os.environ, "DMONDRIAN_NUMBA_STOCK": stock, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(KERNEL, id="kernel"),
        pytest.param(FOREST, id="forest", marks=[pytest.mark.slow, pytest.mark.thorough]),
    ],
)
def test_the_stock_mode_has_the_same_results(text: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    (ours, expected), (stock, found) = printed(script, "0"), printed(script, "1")
    assert (ours, stock) == ("False", "True")
    assert found == expected


def asked(monkeypatch: pytest.MonkeyPatch, version: str, stock: str | None = None) -> bool:
    """Return the mode with this version of Numba."""
    monkeypatch.delenv("DMONDRIAN_NUMBA_STOCK", raising=False)
    if stock is not None:
        monkeypatch.setenv("DMONDRIAN_NUMBA_STOCK", stock)
    monkeypatch.setattr(numba, "__version__", version)
    return mode.is_stock.__wrapped__()


def test_a_version_that_was_not_tested_is_used_by_its_public_interface(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (low, high) = mode.TESTED
    inside = f"{low[0]}.{low[1]}.0"
    with caplog.at_level(logging.WARNING, "dmondrian"):
        assert not asked(monkeypatch, inside)
        assert not caplog.records
        for version in (f"{high[0]}.{high[1]}.0rc1", f"{high[0] + 1}.0.0", "0.60.1"):
            assert asked(monkeypatch, version)
            assert f"numba {version} was not tested" in caplog.text
            assert not asked(monkeypatch, version, "0")
    assert asked(monkeypatch, inside, "1")


def test_private_parts_that_are_not_there_are_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(name: str) -> None:
        raise ImportError(f"cannot import name JITCodeLibrary for {name}")

    monkeypatch.setattr(importlib, "import_module", gone)
    assert asked(monkeypatch, numba.__version__)
    assert "differs from what was tested (cannot import name JITCodeLibrary" in caplog.text


def bounds(requirements: list[str], name: str) -> tuple[str, str]:
    """Return the least version of a package that is required, and the first that is too new."""
    (found,) = (one for one in map(Requirement, requirements) if one.name == name)
    by_operator = {one.operator: one.version.removesuffix("dev0") for one in found.specifier}
    assert set(by_operator) == {">=", "<"}
    return by_operator[">="], by_operator["<"]


def test_the_bounds_of_the_package_are_those_that_were_tested() -> None:
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert bounds(ours, "numba") == tuple(".".join(map(str, bound)) for bound in mode.TESTED)
    # Each Numba takes one llvmlite: those that ours allows are of the Numbas that it allows.
    low, high = (tuple(map(int, bound.split("."))) for bound in bounds(ours, "llvmlite"))
    of_numba = bounds(metadata.requires("numba") or [], "llvmlite")
    least, too_new = (tuple(map(int, bound.split(".")[:2])) for bound in of_numba)
    assert low <= least < too_new <= high
    minor = int(numba.__version__.split(".")[1])
    if minor == mode.TESTED[0][1]:
        assert least == low
    if minor == mode.TESTED[1][1] - 1:
        assert too_new == high
