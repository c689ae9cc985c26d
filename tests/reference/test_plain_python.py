"""The kernels give the same bytes compiled, as plain Python, and with bounds checks."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest

from tests.reference.cases import random_case
from tests.reference.kernel import kernel_forest

N_CASES = 40


def digest() -> str:
    """Return a digest of the states and predictions of the first random cases."""
    found = hashlib.sha256()
    for number in range(N_CASES):
        for regression in (False, True):
            case = random_case(number, regression)
            forest = kernel_forest(case, regression, expected_extension=number % 2 == 0)
            header, trees = forest.state()
            found.update(json.dumps(header["trees"]).encode())
            for tree in trees:
                for name in sorted(tree):
                    found.update(tree[name].tobytes())
            found.update(forest.predict_sums(case.X, distance=True).total.tobytes())
            found.update(forest.weighted_depth(case.X).tobytes())
    return found.hexdigest()


@pytest.mark.parametrize(
    "flag",
    ["NUMBA_DISABLE_JIT", pytest.param("NUMBA_BOUNDSCHECK", marks=pytest.mark.slow)],
)
def test_same_bytes_under_the_flag(flag: str) -> None:
    program = "from tests.reference.test_plain_python import digest; print(digest())"
    answer = subprocess.run(
        # Plain Python warns where 64-bit products wrap around, as they must.
        [sys.executable, "-W", "ignore:overflow encountered:RuntimeWarning", "-c", program],
        env={**os.environ, flag: "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == digest()
