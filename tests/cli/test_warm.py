"""What `dmondrian warm` goes through; tests/cluster/test_processors.py runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sklearn.utils._param_validation import StrOptions

from dmondrian.cli.warm import CHOICES, DOMAINS, _kinds
from dmondrian.ensemble.settings.parameters import policies
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.estimators import ALGORITHMS
from dmondrian.estimators.base import BaseForest
from tests.cli.command import TIMEOUT, arguments


def kernel_types(estimator: BaseForest) -> tuple[object, ...]:
    """Return what a forest's kernels are compiled for, beside the settings that are values."""
    estimator._validate_params()
    n_classes = 2 if estimator.algorithm.endswith("classifier") else 0
    parameters = estimator._forest_parameters(3, n_classes)
    calibrate = getattr(estimator, "calibrate", False)
    if parameters.follows_stream:
        if calibrate is True:
            raise ParameterError("its guard learns an exponent already")
        calibrate = False  # also of "auto"
    parameters.check()
    return *map(type, policies(parameters)), bool(calibrate), parameters.follows_stream


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
                except (ParameterError, CorruptError):  # scales and the cube do not go together
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


@pytest.mark.thorough
def test_kernels_that_cannot_be_kept_are_no_success(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    words = arguments("warm", "--algorithm", "mondrian-features", "--domain", "cube")
    done = subprocess.run(
        words, env={**os.environ, "DMONDRIAN_CACHE_DIR": str(tmp_path)}, capture_output=True,
        text=True, timeout=TIMEOUT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    assert "could not be kept in" in done.stderr.splitlines()[-1]
    assert done.stdout == ""


GONE_THROUGH = """
import sys

from dmondrian.cli.warm import DOMAINS, _kinds, _use
from dmondrian.tuning import feature_scales

feature_scales._STEPS = feature_scales._ROUNDS = 1  # each does what the others do

for algorithm, chosen in _kinds(sys.argv[1:], DOMAINS):
    try:
        _use(algorithm, chosen)
    except Exception as error:
        raise SystemExit(f"{algorithm}, {chosen}: {error!r}") from error
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    ["mondrian-density", pytest.param("mondrian-forest-regressor", marks=pytest.mark.thorough)],
)
@pytest.mark.thorough
def test_forests_can_answer_all_that_they_are_asked(algorithm: str) -> None:
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1"}  # the same steps, without a compilation each
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GONE_THROUGH, algorithm],
        env=env, capture_output=True, text=True, timeout=TIMEOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
