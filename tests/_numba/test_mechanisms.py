"""Mechanisms that save time or memory can be left out, for the same forests and predictions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import config

import dmondrian
from dmondrian._numba import cache, mechanisms
from dmondrian._numba.mechanisms import MECHANISMS
from dmondrian.errors import ParameterError

ROOT = Path(dmondrian.__file__).parents[1]
FORESTS = """
import hashlib, json
import numpy as np
from numba import config
from dmondrian import AMFClassifier
from dmondrian.estimators import single_row
from dmondrian._numba.mode import is_stock
from dmondrian.checkpoint.deltas import encode_state
from dmondrian.forest import forest as of_forests
from dmondrian.tree import prefetch
from dmondrian.tree.memory import aligned, bytes_held

of_forests.LEAST_SPARSE = 0
passed = []
learn = single_row.SingleRow.learn
single_row.SingleRow.learn = lambda *given: passed.append(0) or learn(*given)
rng = np.random.default_rng(0)
X = rng.random((700, 12)).astype(np.float32)
X[:, 9:] = X[:, 9:] > 0.5  # bits
X[:, 6:9] = np.round(X[:, 6:9] * 64) / 64  # steps
y = (X[:, 0] + X[:, 10] > X[:, 7]).astype(int)
given = {"alpha": 0.5, "charge_opening": True, "feature_scales": None}
forest = AMFClassifier(2, random_state=1, n_jobs=1, **given).fit(X[:600], y[:600])
for r in range(600, 700):
    forest.partial_fit(X[r : r + 1], y[r : r + 1])
many = X if config.DISABLE_JIT else np.concatenate([X] * 10)  # so many that flat copies pay
answers = forest.predict_proba(many)[:700], forest.predict_proba(X[:1])
fields = [each[name] for each in forest.forest_.state()[1] for name in sorted(each)]
both = [np.ascontiguousarray(each).tobytes() for each in (*answers, *fields)]
(tree, _) = forest.forest_.store.trees
print(json.dumps({
    "digest": hashlib.sha256(b"".join(both)).hexdigest(),
    "bits": len(tree.columns.binary) > 0,
    "int16": len(tree.columns.stepped) > 0,
    "single_row": len(passed) > 0,
    "flat": forest.forest_.predictor.frozen_cache.kept is not None,
    "deltas": encode_state(forest.forest_).marks is not None,
    "look_ahead": prefetch.N_AHEAD > 1,
    "huge_pages": bytes_held(aligned(10**6, 16, np.int32, soon=10**6), 1) > 1 << 20,
    "passes": not is_stock(),
}))
"""
COMPILED = ["look_ahead", "prefetch", "speculation", "simd"]
# Left out by what is called, of the same kernels: together, and each alone in the thorough run.
CHOSEN = [name for name in MECHANISMS if name not in [*COMPILED, "int16"]]
PASSES = "passes"  # of our own, in Numba's compiler: what the stock mode does without


def printed(without: str, is_compiled: bool = True) -> dict[str, Any]:
    """Return what the script prints without some mechanisms."""
    env = {**os.environ, "DMONDRIAN_NUMBA_STOCK": str(int(without == PASSES))}
    env |= {"DMONDRIAN_WITHOUT": "" if without == PASSES else without, "PYTHONPATH": str(ROOT)}
    if not is_compiled:
        env["NUMBA_DISABLE_JIT"] = "1"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORESTS],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """What the script prints with all mechanisms."""
    found = printed("")
    assert all(used for name, used in found.items() if name != "digest")
    return found


@pytest.mark.slow
@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
@pytest.mark.parametrize(
    ("without", "is_compiled"),
    [
        (", ".join(CHOSEN), True),
        (", ".join(MECHANISMS), False),  # the code that is compiled where they are left out
        *(
            pytest.param(without, True, marks=pytest.mark.thorough)  # a minute of compilation
            for without in (*CHOSEN, "int16", ", ".join(MECHANISMS), PASSES)
        ),
    ],
)
def test_a_forest_has_the_same_bytes_without(
    without: str, is_compiled: bool, whole: dict[str, Any]
) -> None:
    found, left_out = printed(without, is_compiled), without.split(", ")
    assert found["digest"] == whole["digest"]
    used = {name: used for name, used in found.items() if name != "digest"}
    assert used == {name: name not in left_out for name in used}


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set what is to be left out, for this test."""

    def name(without: str) -> None:
        monkeypatch.setenv("DMONDRIAN_WITHOUT", without)
        mechanisms.left_out.cache_clear()

    yield name
    monkeypatch.undo()
    mechanisms.left_out.cache_clear()


def test_what_is_left_out_is_named_by_the_environment(named: Any) -> None:
    named("bits, simd,,")
    assert [name for name in MECHANISMS if not mechanisms.uses(name)] == ["simd", "bits"]
    assert mechanisms.left_out_of_code() == ["simd"]
    named("")
    assert all(map(mechanisms.uses, MECHANISMS))


def test_a_name_that_is_none_is_refused(named: Any) -> None:
    named("bits,preftech")
    with pytest.raises(ParameterError, match="names preftech: name some of look_ahead, prefetch"):
        mechanisms.uses("bits")
    named("")
    with pytest.raises(KeyError):
        mechanisms.uses("preftech")


def test_kernels_without_a_mechanism_are_kept_apart(named: Any) -> None:
    """But for those that compiled code does not depend on."""
    found = []
    for without in ["", "bits,int16,single_row,flat", *COMPILED]:
        named(without)
        found.append(cache.source_digest.__wrapped__())
    assert found[0] == found[1]
    assert len(set(found[1:])) == 1 + len(COMPILED)
