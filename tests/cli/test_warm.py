"""What `dmondrian warm` goes through; tests/cluster/test_processors.py runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from numba import config
from sklearn.utils._param_validation import StrOptions

from dmondrian.cli.warm import CHOICES, DOMAINS, _kinds
from dmondrian.errors import ParameterError
from dmondrian.estimators import ALGORITHMS
from dmondrian.estimators.base import BaseForest
from dmondrian.parameters import policies
from tests.cli.command import TIMEOUT, arguments


def kernel_types(estimator: BaseForest) -> tuple[object, ...]:
    """Return what a forest's kernels are compiled for, beside the settings that are values."""
    estimator._validate_params()
    n_classes = 2 if estimator.algorithm.endswith("classifier") else 0
    chosen = policies(estimator._forest_parameters(3, n_classes))
    return *map(type, chosen), bool(getattr(estimator, "calibrate", False))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_choice_of_kernels_is_gone_through(algorithm: str) -> None:
    kind = ALGORITHMS[algorithm]
    kinds = [kind(**chosen) for _, chosen in _kinds([algorithm], DOMAINS)]
    types = {kernel_types(estimator) for estimator in kinds}
    assert len(types) == len(kinds)  # and none of them twice
    for name, constraints in kind._parameter_constraints.items():
        options = {value for c in constraints if isinstance(c, StrOptions) for value in c.options}
        if "boolean" in constraints:
            options |= {False, True}
        for value in options:
            for estimator in kinds:
                try:
                    found = kernel_types(kind(**{**estimator.get_params(), name: value}))
                except ParameterError:  # scales and the cube do not go together
                    continue
                assert found in types, f"{name}={value}: add it to CHOICES"


def test_all_algorithms_are_gone_through() -> None:
    assert set(CHOICES) == set(ALGORITHMS)


def test_without_a_compiler_the_command_refuses() -> None:
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        arguments("warm"), env=env, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 2
    assert "NUMBA_DISABLE_JIT is set" in done.stderr


TWO = ["--algorithm", "mondrian-features", "--algorithm", "mondrian-density", "--domain", "cube"]


@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
def test_processes_compile_all_that_one_needs() -> None:
    command = arguments("warm", "--json", *TWO)
    done = subprocess.run(
        [*command, "--processes", "2"], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stderr
    assert "2 of 2 algorithms done; 2 processes compile" in done.stderr
    assert "compiling kernels" not in done.stderr  # each process would say so
    again = subprocess.run(
        [*command, "--processes", "1"], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert json.loads(again.stdout)["compiled"] == 0
    assert "1 of 2 done; now mondrian-density" in again.stderr


@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
@pytest.mark.parametrize("victim", ["a process", "the command"])
def test_no_process_outlives_the_command(victim: str, tmp_path: Path) -> None:
    env = {**os.environ, "DMONDRIAN_CACHE_DIR": str(tmp_path)}
    command = arguments("warm", *TWO, "--processes", "2")
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as started:
        below, end = [], time.monotonic() + TIMEOUT
        while not list(tmp_path.rglob("*.turn")):  # until something is compiled
            assert time.monotonic() < end
            time.sleep(0.1)
            below = psutil.Process(started.pid).children(recursive=True)
        if victim == "a process":
            compiles = [each for each in below if "spawn_main" in " ".join(each.cmdline())]
            compiles[0].kill()
            _, told = started.communicate(timeout=TIMEOUT)
            assert started.returncode == 1
            assert "a process that compiled was stopped" in told
        else:
            started.send_signal(signal.SIGKILL)
        _, left = psutil.wait_procs(below, timeout=TIMEOUT)
    assert len(below) >= 2
    assert left == []


def test_no_process_at_all_is_refused() -> None:
    done = subprocess.run(
        arguments("warm", "--processes", "0"), capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 2
    assert "--processes should be 1 or more, got 0" in done.stderr
